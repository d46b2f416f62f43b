//! [`Builder`]: says what a bed is to be, and brings it up.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use super::{Bed, Transport};
use crate::backend::docker::Docker;
use crate::backend::local::{self, Local};
use crate::backend::{Backend, Host, Kind};
use crate::config::{self, Net};
use crate::{Progress, binaries, salt};

/// What a bed is to be; made by [`Bed::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    kind: Kind,
    minions: usize,
    systemd: bool,
    gateway: bool,
    keep: bool,
    transport: Transport,
    master_config: String,
    minion_config: String,
    executor_config: Map<String, Value>,
    pillar: String,
    states: Vec<(String, String)>,
    gw: BTreeMap<String, String>,
    ca_bundle: Option<PathBuf>,
    progress: Progress,
}

impl Builder {
    /// Local processes (the default) or containers.
    pub fn backend(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// How many minions; 1 by default.
    pub fn minions(mut self, minions: usize) -> Self {
        self.minions = minions;
        self
    }

    /// systemd as process 1 of each minion's host, and salt-minion a unit of it as Salt's packages ship it. Only
    /// containers can.
    pub fn systemd(mut self, systemd: bool) -> Self {
        self.systemd = systemd;
        self
    }

    /// Without a gateway neither `gw` nor `gw-exec` is built, and the minions have no `oduflow_job`: stock Salt.
    pub fn gateway(mut self, gateway: bool) -> Self {
        self.gateway = gateway;
        self
    }

    /// Leave the processes and files behind when the bed is dropped.
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// How the gateway publishes; over ipc by default.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// More of the master's configuration (YAML), which overrides the bed's own.
    pub fn master_config(mut self, yaml: &str) -> Self {
        self.master_config.push_str(yaml);
        self
    }

    /// More of every minion's configuration (YAML), which overrides the bed's own.
    pub fn minion_config(mut self, yaml: &str) -> Self {
        self.minion_config.push_str(yaml);
        self
    }

    /// Sets a key of `oduflow_job` in every minion's configuration, such as `("retain_count", 10.into())`.
    pub fn executor_config(mut self, key: &str, value: Value) -> Self {
        self.executor_config.insert(key.to_owned(), value);
        self
    }

    /// More pillar (YAML) for every minion.
    pub fn pillar(mut self, yaml: &str) -> Self {
        self.pillar.push_str(yaml);
        self
    }

    /// One more file below the master's `file_roots`, such as `roles/extra.sls`; may replace a standard role.
    pub fn state(mut self, path: &str, text: &str) -> Self {
        self.states.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Sets a key of `gw.toml` to a TOML value, such as `("poll_first_s", "2")`.
    pub fn gw(mut self, key: &str, toml: &str) -> Self {
        self.gw.insert(key.to_owned(), toml.to_owned());
        self
    }

    /// Authorities (PEM) to trust while an image is built, besides the public ones.
    pub fn ca_bundle(mut self, path: Option<PathBuf>) -> Self {
        self.ca_bundle = path;
        self
    }

    /// Where to tell what is going on.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Starts everything and waits until each minion has answered and the gateway's socket does.
    ///
    /// That minions are ready is found out with Salt's own client. The bed uses it for this and for
    /// comparisons; the product never does.
    ///
    /// # Errors
    /// Whatever could not be made or did not answer in time, with the end of its log.
    pub fn up(self) -> Result<Bed> {
        if self.systemd && self.kind == Kind::Local {
            bail!("a local host cannot have a systemd of its own\nhint: use the docker backend");
        }
        let built = if self.gateway {
            self.progress.say("building gw and gw-exec");
            Some(binaries()?)
        } else {
            None
        };
        let (backend, net, user, euid): (Box<dyn Backend>, _, _, _) = match self.kind {
            Kind::Local => {
                let salt_bin = salt::environment(&self.progress)?;
                let [publish_port, ret_port, reply_port] = local::free_ports()?;
                let bind = "127.0.0.1";
                let net = Net {
                    bind,
                    master: bind,
                    publish_port,
                    ret_port,
                    reply_port,
                };
                let backend = Box::new(Local::new(salt_bin, built.as_ref(), self.minions)?);
                (backend, net, None, rustix::process::geteuid().as_raw())
            }
            Kind::Docker => {
                let (publish_port, ret_port, reply_port) = (4505, 4506, 4510);
                let net = Net {
                    bind: "0.0.0.0",
                    master: "master",
                    publish_port,
                    ret_port,
                    reply_port,
                };
                let ca_bundle = self.ca_bundle.as_deref();
                let (minions, systemd) = (self.minions, self.systemd);
                let backend =
                    Docker::new(built.as_ref(), minions, systemd, ca_bundle, &self.progress)?;
                (Box::new(backend), net, Some("root".to_owned()), 0)
            }
        };
        let bed = Bed {
            backend,
            minions: self.minions,
            gateway: self.gateway,
            transport: self.transport,
            keep: self.keep,
            progress: self.progress.clone(),
        };
        let user = match user {
            Some(user) => user,
            None => bed.sh(Host::Master, "id -un", &[])?.trim().to_owned(),
        };
        self.write_files(&bed, &net, &user, euid)?;
        bed.start(&net)?;
        Ok(bed)
    }

    fn write_files(&self, bed: &Bed, net: &Net, user: &str, euid: u32) -> Result<()> {
        let layout = bed.layout(Host::Master);
        let module = if self.gateway { Some(module()?) } else { None };
        let mut files = config::master(&layout, net, user, &self.master_config, module.as_deref());
        files.extend(config::gateway(
            &layout,
            net,
            self.transport,
            euid,
            &self.gw,
        ));
        files.extend(config::pillar_top(&layout, self.minions, &self.pillar));
        for (path, text) in &self.states {
            files.insert(
                layout.at(&format!("srv/salt/{path}")),
                (text.clone(), "0644"),
            );
        }
        for n in 0..self.minions {
            let host = bed.layout(Host::Minion(n));
            files.extend(config::pillar(&layout, &host, n, &Map::new()));
            bed.put(
                Host::Minion(n),
                &config::minion(
                    &host,
                    net,
                    n,
                    user,
                    &self.executor_config,
                    &self.minion_config,
                ),
            )?;
            if self.systemd {
                bed.put(Host::Minion(n), &config::unit(&host))?;
                bed.sh(Host::Minion(n), "systemctl daemon-reload", &[])?;
            }
        }
        bed.put(Host::Master, &files)
    }
}

/// The Salt module, as it is in this workspace now.
fn module() -> Result<String> {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../minion-exec/salt/_modules/oduflow_job.py"
    ));
    fs::read_to_string(path)
        .with_context(|| format!("cannot read the Salt module {}", path.display()))
}

impl Bed {
    /// One local minion, a gateway that publishes over ipc, nothing kept: until told otherwise.
    pub fn builder() -> Builder {
        Builder {
            kind: Kind::Local,
            minions: 1,
            systemd: false,
            gateway: true,
            keep: false,
            transport: Transport::Ipc,
            master_config: String::new(),
            minion_config: String::new(),
            executor_config: Map::new(),
            pillar: String::new(),
            states: Vec::new(),
            gw: BTreeMap::new(),
            ca_bundle: None,
            progress: Progress::default(),
        }
    }
}
