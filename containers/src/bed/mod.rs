//! [`Bed`]: a running master, its minions and a gateway, and what a test or a scenario may do to them.

mod builder;
mod daemons;
mod gateway;

use std::path::PathBuf;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use builder::Builder;
pub use gateway::Answer;

use crate::Progress;
use crate::backend::docker::Docker;
use crate::backend::local::Local;
use crate::backend::{Backend, Daemon, Handle, Host, Kind};
use crate::config::{self, Files, Net};
use crate::layout::Layout;
use crate::rpc;

/// How the gateway of a bed publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Into the master's `publish_pull.ipc`.
    Ipc,
    /// The clear `publish` command on the master's request port.
    Request,
}

impl Transport {
    /// Its name in `gw.toml` and in the gateway's answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Request => "request",
        }
    }
}

/// The id of minion `number`, counted from 0.
pub fn minion_id(number: usize) -> String {
    format!("client-00000000-0000-4000-8000-{number:012x}")
}

/// A running bed. Dropping it ends its processes (its own, no others) and removes its files,
/// unless it was built with `keep` or detached.
pub struct Bed {
    backend: Box<dyn Backend>,
    minions: usize,
    gateway: bool,
    transport: Transport,
    keep: bool,
    progress: Progress,
}

/// What another process needs to take a bed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The hosts.
    pub hosts: Handle,
    /// How many of them are minions.
    pub minions: usize,
    /// Whether it has a gateway.
    pub gateway: bool,
    /// How the gateway publishes.
    pub transport: Transport,
}

impl Bed {
    /// Lets the bed run on without this process; [`Bed::attach`] finds it again.
    ///
    /// # Errors
    /// The janitor that watches over this process could not be told.
    pub fn detach(mut self) -> Result<Record> {
        self.keep = true;
        self.backend.detach()?;
        Ok(Record {
            hosts: self.backend.record(),
            minions: self.minions,
            gateway: self.gateway,
            transport: self.transport,
        })
    }

    /// A detached bed. Dropping it leaves it running; [`Bed::down`] ends it.
    pub fn attach(record: Record) -> Self {
        let backend: Box<dyn Backend> = match record.hosts {
            Handle::Local(handle) => Box::new(Local::attach(handle)),
            Handle::Docker(handle) => Box::new(Docker::attach(handle)),
        };
        Self {
            backend,
            minions: record.minions,
            gateway: record.gateway,
            transport: record.transport,
            keep: true,
            progress: Progress::default(),
        }
    }

    /// Ends everything and removes the bed's files, kept or not.
    ///
    /// # Errors
    /// Something survived, or could not be removed.
    pub fn down(mut self) -> Result<()> {
        self.keep = true; // nothing is left to do for drop
        self.backend.destroy()
    }

    fn start(&self, net: &Net) -> Result<()> {
        self.progress.say("starting salt-master");
        self.spawn(Daemon::Master)?;
        self.wait_for_master(net)?;
        self.progress
            .say(&format!("starting {} minions", self.minions));
        for n in 0..self.minions {
            self.spawn(Daemon::Minion(n))?;
        }
        let all: Vec<usize> = (0..self.minions).collect();
        self.wait_for_minions(&all)?;
        if self.gateway {
            self.sync_module(&all)?;
            self.progress.say("starting the gateway");
            self.gateway_start()?;
        }
        Ok(())
    }

    fn wait_for_master(&self, net: &Net) -> Result<()> {
        // Ports, not sockets: with `ipc_mode: tcp` there are no sockets.
        let request = json!({"ports": [net.publish_port, net.ret_port]});
        self.wait(
            "salt-master does not listen",
            Duration::from_secs(60),
            Daemon::Master,
            || self.call(Host::Master, "ready", request.clone()),
        )
    }

    /// Waits until each of these minions answers Salt's own `test.ping`.
    ///
    /// # Errors
    /// One of them has not after two minutes.
    pub fn wait_for_minions(&self, minions: &[usize]) -> Result<()> {
        let Some(first) = minions.first() else {
            return Ok(());
        };
        self.wait(
            "a minion does not answer",
            Duration::from_secs(120),
            Daemon::Minion(*first),
            || {
                let answers = self.stock_call(minions, &["test.ping"])?;
                Ok(minions
                    .iter()
                    .all(|n| answers.get(&minion_id(*n)) == Some(&Value::Bool(true))))
            },
        )
    }

    /// Brings `_modules/oduflow_job.py` to the minions the way a site would. The minion's main process takes
    /// note of a new module a moment after the call has returned.
    fn sync_module(&self, minions: &[usize]) -> Result<()> {
        self.progress.say("handing the Salt module to the minions");
        self.stock_call(minions, &["saltutil.sync_modules"])?;
        let Some(first) = minions.first() else {
            return Ok(());
        };
        self.wait(
            "a minion does not load the module",
            Duration::from_secs(60),
            Daemon::Minion(*first),
            || {
                let answers = self.stock_call(minions, &["sys.list_functions", "oduflow_job"])?;
                Ok(minions.iter().all(|n| {
                    answers
                        .get(&minion_id(*n))
                        .and_then(Value::as_array)
                        .is_some_and(|names| !names.is_empty())
                }))
            },
        )
    }

    /// Polls `done` until it says so; otherwise an error with the end of the daemon's log.
    fn wait(
        &self,
        complaint: &str,
        patience: Duration,
        daemon: Daemon,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + patience;
        while !done()? {
            if Instant::now() > end {
                let log = self.log(daemon).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(15).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!(
                    "{complaint} after {} s; its log ends:\n{}",
                    patience.as_secs(),
                    tail.join("\n")
                );
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    // ---- what there is -------------------------------------------------------------------------

    /// How many minions there are.
    pub fn minions(&self) -> usize {
        self.minions
    }

    /// How the gateway publishes.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Local or Docker.
    pub fn kind(&self) -> Kind {
        self.backend.kind()
    }

    pub(crate) fn layout(&self, host: Host) -> Layout {
        self.backend.layout(host)
    }

    /// What minion `number` has below its root: a path on its own host.
    pub fn minion_root(&self, number: usize) -> PathBuf {
        PathBuf::from(self.layout(Host::Minion(number)).at(""))
    }

    /// The master host's root: a path on that host.
    pub fn master_root(&self) -> PathBuf {
        PathBuf::from(self.layout(Host::Master).at(""))
    }

    /// The receipt store of a minion: a path on its own host.
    pub fn minion_store(&self, number: usize) -> PathBuf {
        PathBuf::from(self.layout(Host::Minion(number)).store())
    }

    /// The master's `publish_pull.ipc`: a path on its host.
    pub fn publish_pull_path(&self) -> PathBuf {
        PathBuf::from(self.layout(Host::Master).publish_pull())
    }

    /// The gateway's API socket: a path on the master's host.
    pub fn gateway_socket(&self) -> PathBuf {
        PathBuf::from(self.layout(Host::Master).gw_socket())
    }

    /// The gateway's configuration: a path on the master's host.
    pub fn gateway_config(&self) -> PathBuf {
        PathBuf::from(self.layout(Host::Master).gw_toml())
    }

    /// The value of a minion's pillar that its roles bring into states and command output.
    pub fn canary(&self, number: usize) -> String {
        config::canary(number)
    }

    /// How often a standard role began on this minion, counted outside Salt by what it did.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn executions(&self, number: usize) -> Result<usize> {
        let host = Host::Minion(number);
        Ok(self
            .sh(host, r#"cat "$1""#, &[&self.layout(host).counter()])?
            .lines()
            .count())
    }

    /// The log of salt-minion.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn minion_log(&self, number: usize) -> Result<String> {
        self.log(Daemon::Minion(number))
    }

    /// The log of salt-master.
    ///
    /// # Errors
    /// The master's host cannot be asked.
    pub fn master_log(&self) -> Result<String> {
        self.log(Daemon::Master)
    }

    /// What the gateway wrote to standard error.
    ///
    /// # Errors
    /// The master's host cannot be asked.
    pub fn gateway_log(&self) -> Result<String> {
        self.log(Daemon::Gateway)
    }

    fn log(&self, daemon: Daemon) -> Result<String> {
        let layout = self.layout(daemon.host());
        let logs = match daemon {
            Daemon::Master => [
                layout.at("var/log/bed/salt-master.log"),
                layout.at("var/log/salt/master"),
            ],
            Daemon::Minion(_) => [
                layout.at("var/log/bed/salt-minion.log"),
                layout.at("var/log/salt/minion"),
            ],
            Daemon::Executor(_) => ["/dev/null".to_owned(), "/dev/null".to_owned()],
            Daemon::Gateway => [layout.gw_log(), "/dev/null".to_owned()],
        };
        self.sh(
            daemon.host(),
            r#"cat "$1" "$2" 2>/dev/null || true"#,
            &[&logs[0], &logs[1]],
        )
    }

    /// The deliveries that the minion logged: the jids of `Executing command <fun> with jid ...`
    /// (`salt/minion.py`, `_handle_decoded_payload`, 3006.27), run or not, oldest first.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn deliveries(&self, number: usize, fun: &str) -> Result<Vec<String>> {
        let mark = format!("Executing command {fun} with jid ");
        let log = self.minion_log(number)?;
        Ok(log
            .lines()
            .filter_map(|line| line.split_once(&mark))
            .map(|(_, jid)| jid.trim().into())
            .collect())
    }
}

impl Bed {
    // ---- the hosts -----------------------------------------------------------------------------

    pub(crate) fn call<T: serde::de::DeserializeOwned>(
        &self,
        host: Host,
        op: &str,
        request: Value,
    ) -> Result<T> {
        rpc::call(self.backend.as_ref(), host, op, request)
    }

    fn put(&self, host: Host, files: &Files) -> Result<()> {
        self.call(host, "put", json!({ "files": files }))
    }

    /// Runs a shell script on a host; its arguments are `$1`, `$2` ...
    ///
    /// # Errors
    /// It could not be started. How it ended is in the output.
    pub fn exec(&self, host: Host, script: &str, args: &[&str]) -> Result<Output> {
        self.backend.run(host, script, args, b"")
    }

    /// Like [`Bed::exec`], for scripts that must succeed; returns what was printed.
    ///
    /// # Errors
    /// It could not be started, or did not end with 0.
    pub fn sh(&self, host: Host, script: &str, args: &[&str]) -> Result<String> {
        let output = self.exec(host, script, args)?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{script:?} on {host:?} ended with {}: {}",
                output.status,
                words.trim_end()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sets keys of the minion's pillar below `bed`: `pause_s` (seconds that `client_stack` sleeps half-way) or
    /// `production_fails` (true by default). Replaces what was set before; the next run sees it.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn set_pillar(&self, number: usize, keys: &[(&str, Value)]) -> Result<()> {
        let more = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect();
        let (master, host) = (self.layout(Host::Master), self.layout(Host::Minion(number)));
        self.put(Host::Master, &config::pillar(&master, &host, number, &more))
    }

    /// Salt's own command line on the master: for comparisons, never part of the product.
    ///
    /// # Errors
    /// It could not be started.
    pub fn stock_salt(&self, args: &[&str]) -> Result<Output> {
        let layout = self.layout(Host::Master);
        let (program, config) = (layout.salt("salt"), layout.salt_config());
        let head = [program.as_str(), config.as_str()];
        let script = r#"salt=$1 config=$2; shift 2; exec "$salt" -c "$config" "$@""#;
        self.exec(Host::Master, script, &[&head, args].concat())
    }

    /// One stock call; minion id -> answer, without those that did not answer.
    fn stock_call(&self, minions: &[usize], call: &[&str]) -> Result<Map<String, Value>> {
        let ids: Vec<String> = minions.iter().map(|n| minion_id(*n)).collect();
        let ids = ids.join(",");
        let head = [
            "--out=json",
            "--static",
            "--timeout=5",
            "--log-level=quiet",
            "-L",
            &ids,
        ];
        let output = self.stock_salt(&[&head, call].concat())?;
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = self.backend.destroy()
        {
            self.progress
                .say(&format!("cannot remove the bed: {error:#}"));
        }
    }
}
