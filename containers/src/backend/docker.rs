//! The Docker backend: the master and each minion are containers on a bridge network of their own.
//!
//! Everything made for a bed carries the label `gw-bed=<id>`; removal goes by that label alone. The containers
//! only sleep; daemons are started in them like on a local host, so that a daemon and its host can
//! be stopped apart. Where the bed is to have it, systemd is process 1 of the minions, and starts salt-minion.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::image::{self, docker};
use super::{Backend, Host, Kind};
use crate::binaries::Binaries;
use crate::layout::Layout;
use crate::{Progress, rpc};

/// What systemd needs as process 1 of a container that is not privileged: to mount, and the control groups of the
/// machine, of which it takes those below its own (no namespace for them: it must find itself there).
const SYSTEMD_OPTIONS: [&str; 13] = [
    "--cap-add",
    "SYS_ADMIN",
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "apparmor=unconfined",
    "--cgroupns",
    "host",
    "--volume",
    "/sys/fs/cgroup:/sys/fs/cgroup:rw",
    "--tmpfs",
    "/run",
    "--tmpfs=/tmp",
];

/// A bed's containers and network are found by its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub(crate) id: String,
    pub(crate) minions: usize,
    pub(crate) gateway: bool,
    pub(crate) systemd: bool,
}

#[derive(Debug)]
pub(crate) struct Docker {
    handle: Handle,
    janitor: Option<Child>,
    gone: bool,
}

impl Docker {
    /// Makes the image if need be, the network and the running containers; no daemon yet.
    pub(crate) fn new(
        binaries: Option<&Binaries>,
        minions: usize,
        systemd: bool,
        ca_bundle: Option<&Path>,
        progress: &Progress,
    ) -> Result<Self> {
        let image = image::ensure(ca_bundle, progress)?;
        let unique = tempfile::Builder::new()
            .prefix("gwbed-")
            .tempdir()
            .context("cannot choose a name")?;
        let id = unique
            .path()
            .file_name()
            .context("a temporary directory has a name")?;
        let id = id.to_string_lossy().to_lowercase();
        let mut bed = Self::attach(Handle {
            id,
            minions,
            gateway: binaries.is_some(),
            systemd,
        });
        bed.janitor = Some(bed.start_janitor()?);
        bed.create(&image, binaries)?;
        Ok(bed)
    }

    /// A bed that another process started and left running.
    pub(crate) fn attach(handle: Handle) -> Self {
        Self {
            handle,
            janitor: None,
            gone: false,
        }
    }

    fn create(&self, image: &str, binaries: Option<&Binaries>) -> Result<()> {
        let label = self.label();
        let network = &self.handle.id;
        docker(&["network", "create", "--label", &label, network])?;
        let host_py = tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
        std::fs::write(host_py.path(), rpc::HOST_PY).context("cannot write host.py")?;
        let hosts = std::iter::once(Host::Master).chain((0..self.handle.minions).map(Host::Minion));
        for host in hosts {
            let (name, alias) = (self.container(host), alias(host));
            let (options, command): (&[&str], &[&str]) = if self.has_systemd(host) {
                (&SYSTEMD_OPTIONS, &["/lib/systemd/systemd"])
            } else {
                (&["--init"], &[])
            };
            let common = [
                "--name",
                &name,
                "--hostname",
                &alias,
                "--network",
                network,
                "--network-alias",
                &alias,
                "--label",
                &label,
                image,
            ];
            docker(&[&["create"], options, &common, command].concat())?;
            let copy = |from: &Path, to: &str| {
                docker(&["cp", &from.to_string_lossy(), &format!("{name}:{to}")])
            };
            copy(host_py.path(), "/opt/host.py")?;
            if let Some(built) = binaries {
                let layout = self.layout(host);
                match host {
                    Host::Master => copy(&built.gw, &layout.gw)?,
                    Host::Minion(_) => copy(&built.gw_exec, &layout.gw_exec)?,
                };
            }
            docker(&["start", &name])?;
            self.wait_for_systemd(host)?;
            self.run_checked(host, "mkdir -p /var/log/bed")?;
            if binaries.is_some() {
                self.check_binary(host)?;
            }
        }
        Ok(())
    }

    /// Waits until systemd, where there is one, has started what it starts by itself.
    fn wait_for_systemd(&self, host: Host) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let end = Instant::now() + PATIENCE;
        while self.has_systemd(host) {
            let output = self.run(host, "systemctl is-system-running", &[], b"")?;
            let word = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            match word.as_str() {
                "running" | "degraded" => break,
                _ if Instant::now() > end => bail!(
                    "systemd of {host:?} does not run after {} s: {word} {}",
                    PATIENCE.as_secs(),
                    String::from_utf8_lossy(&output.stderr).trim_end()
                ),
                _ => thread::sleep(Duration::from_millis(200)),
            }
        }
        Ok(())
    }

    fn run_checked(&self, host: Host, script: &str) -> Result<()> {
        let output = self.run(host, script, &[], b"")?;
        if !output.status.success() {
            bail!(
                "cannot prepare {host:?}: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Ok(())
    }

    /// The executables are built on this machine, whose C library may be newer than Debian 12's.
    fn check_binary(&self, host: Host) -> Result<()> {
        let layout = self.layout(host);
        let program = if host == Host::Master {
            &layout.gw
        } else {
            &layout.gw_exec
        };
        self.run_checked(host, &format!("{program} --version >/dev/null"))
            .context(
                "an executable built on this machine does not run on Debian 12\n\
             hint: build on Debian 12 or older, or for x86_64-unknown-linux-musl",
            )
    }

    fn label(&self) -> String {
        format!("gw-bed={}", self.handle.id)
    }

    fn container(&self, host: Host) -> String {
        format!("{}-{}", self.handle.id, alias(host))
    }

    fn start_janitor(&self) -> Result<Child> {
        const SCRIPT: &str = r#"read -r done && exit 0
            docker ps --all --quiet --filter "label=$1" | xargs -r docker rm --force --volumes
            docker network ls --quiet --filter "label=$1" | xargs -r docker network rm"#;
        Command::new("/bin/sh")
            .args(["-c", SCRIPT, "sh", &self.label()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the janitor")
    }
}

impl Backend for Docker {
    fn kind(&self) -> Kind {
        Kind::Docker
    }

    fn has_systemd(&self, host: Host) -> bool {
        self.handle.systemd && host != Host::Master
    }

    fn layout(&self, _host: Host) -> Layout {
        let program = |path: &str| {
            if self.handle.gateway {
                path.to_owned()
            } else {
                String::new()
            }
        };
        Layout {
            root: String::new(),
            salt_bin: "/opt/salt/bin".to_owned(),
            host_py: "/opt/host.py".to_owned(),
            gw: program("/usr/local/bin/gw"),
            gw_exec: program("/usr/local/sbin/gw-exec"),
        }
    }

    fn command(&self, host: Host, script: &str, args: &[&str], terminal: bool) -> Command {
        let mut command = Command::new("docker");
        command.args(["exec", "--interactive"]);
        if terminal {
            command.arg("--tty");
        } else {
            command.process_group(0);
        }
        command
            .args([&self.container(host), "sh", "-c", script, "sh"])
            .args(args);
        command
    }

    fn reboot(&self, host: Host) -> Result<()> {
        docker(&["restart", "--time", "0", &self.container(host)])?;
        self.wait_for_systemd(host)
    }

    fn freeze(&self, minion: usize, frozen: bool) -> Result<()> {
        let verb = if frozen { "pause" } else { "unpause" };
        docker(&[verb, &self.container(Host::Minion(minion))]).map(drop)
    }

    fn cut(&self, minion: usize, cut: bool) -> Result<()> {
        let host = Host::Minion(minion);
        let (network, name, alias) = (&self.handle.id, self.container(host), alias(host));
        if cut {
            docker(&["network", "disconnect", network, &name])?;
        } else {
            docker(&["network", "connect", "--alias", &alias, network, &name])?;
        }
        Ok(())
    }

    fn record(&self) -> super::Handle {
        super::Handle::Docker(self.handle.clone())
    }

    fn detach(&mut self) -> Result<()> {
        super::dismiss_janitor(&mut self.janitor)
    }

    fn destroy(&mut self) -> Result<()> {
        if !self.gone {
            let filter = format!("label={}", self.label());
            for container in docker(&["ps", "--all", "--quiet", "--filter", &filter])?.lines() {
                docker(&["rm", "--force", "--volumes", container])?;
            }
            for network in docker(&["network", "ls", "--quiet", "--filter", &filter])?.lines() {
                docker(&["network", "rm", network])?;
            }
            self.gone = true;
        }
        super::dismiss_janitor(&mut self.janitor)
    }
}

/// A host's name on the network.
fn alias(host: Host) -> String {
    match host {
        Host::Master => "master".to_owned(),
        Host::Minion(n) => format!("m{n}"),
    }
}
