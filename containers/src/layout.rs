//! Where things are on a host. The same tree in both backends: below `/` in a container, below a directory
//! of its own for a local host (which is Salt's `root_dir` then).

/// The files and programs of one host. Paths are absolute, as seen on that host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Empty for `/`, otherwise an absolute path without a slash at the end.
    pub(crate) root: String,
    /// The directory of `salt-master`, `salt`, `python` ...
    pub(crate) salt_bin: String,
    /// What `bed` runs on the host with that Python.
    pub(crate) host_py: String,
    /// The gateway's program; empty where the bed has no gateway.
    pub(crate) gw: String,
    /// The executor's program; empty where the bed has no gateway.
    pub(crate) gw_exec: String,
}

impl Layout {
    /// A path below this host's root; `path` has no slash in front.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    /// A program of the Salt environment.
    pub(crate) fn salt(&self, program: &str) -> String {
        format!("{}/{program}", self.salt_bin)
    }

    /// Salt's configuration directory.
    pub(crate) fn salt_config(&self) -> String {
        self.at("etc/salt")
    }

    /// The gateway's configuration.
    pub(crate) fn gw_toml(&self) -> String {
        self.at("etc/gw/gw.toml")
    }

    /// The gateway's API socket.
    pub(crate) fn gw_socket(&self) -> String {
        self.at("run/gw/gw.sock")
    }

    /// The log of the gateway (its standard error).
    pub(crate) fn gw_log(&self) -> String {
        self.at("var/log/bed/gw.log")
    }

    /// One line for each execution of a standard role.
    pub(crate) fn counter(&self) -> String {
        self.at("var/lib/bed/executions.log")
    }

    /// Where the standard roles write files.
    pub(crate) fn target(&self) -> String {
        self.at("var/lib/bed/target")
    }

    /// The executor's receipt store.
    pub(crate) fn store(&self) -> String {
        self.at("var/lib/oduflow/job-receipts")
    }

    /// The file of the site's own profiles; a bed makes none.
    pub(crate) fn profiles(&self) -> String {
        self.at("etc/oduflow/job-profiles.json")
    }

    /// Into this socket the gateway pushes publications.
    pub(crate) fn publish_pull(&self) -> String {
        self.at("var/run/salt/master/publish_pull.ipc")
    }
}
