//! What a backend must do. Everything else (configuration, daemons, readiness, counting) is written once,
//! in `bed.rs`, in terms of "run this on that host".

use std::io::Write as _;
use std::process::{Child, Command, Output};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::rpc;

pub(crate) mod docker;
pub(crate) mod image;
pub(crate) mod local;

/// Where the hosts of a bed live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Processes of this machine on loopback ports.
    Local,
    /// Containers on a private network, one host each.
    Docker,
}

/// One host of a bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Runs salt-master and the gateway.
    Master,
    /// Runs one salt-minion; counted from 0.
    Minion(usize),
}

/// A daemon of a bed; the whole of its processes, workers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    Master,
    Minion(usize),
    /// Every `gw-exec` of a minion, which no daemon starts but a job.
    Executor(usize),
    Gateway,
}

impl Daemon {
    pub(crate) fn host(self) -> Host {
        match self {
            Self::Master | Self::Gateway => Host::Master,
            Self::Minion(n) | Self::Executor(n) => Host::Minion(n),
        }
    }
}

/// The hosts of one bed.
pub(crate) trait Backend: Send + Sync {
    fn kind(&self) -> Kind;

    /// Whether systemd is process 1 on `host`, and salt-minion one of its services.
    fn has_systemd(&self, _host: Host) -> bool {
        false
    }

    /// The files of `host` and what is installed there.
    fn layout(&self, host: Host) -> Layout;

    /// A command that runs `sh -c script` on `host` with `args` as `$1`.. and hands input and output on. With
    /// `terminal` it may take the caller's terminal; without, Ctrl-C there does not reach it.
    fn command(&self, host: Host, script: &str, args: &[&str], terminal: bool) -> Command;

    /// Runs that command with `stdin` as its input and waits for it.
    fn run(&self, host: Host, script: &str, args: &[&str], stdin: &[u8]) -> Result<Output> {
        rpc::output(&mut self.command(host, script, args, false), stdin)
    }

    /// The host as a whole: stopped at once and started again, without its daemons.
    fn reboot(&self, host: Host) -> Result<()>;

    /// Freezes every process of a minion's host, or thaws it.
    fn freeze(&self, minion: usize, frozen: bool) -> Result<()>;

    /// Cuts a minion's host off the network, or connects it again.
    fn cut(&self, minion: usize, cut: bool) -> Result<()>;

    /// Something that finds the hosts again in another process.
    fn record(&self) -> Handle;

    /// From now on the hosts outlive this process.
    fn detach(&mut self) -> Result<()>;

    /// Ends everything that was started for this bed and removes its files.
    fn destroy(&mut self) -> Result<()>;
}

/// What must be remembered to find a bed's hosts again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "backend")]
pub enum Handle {
    /// Processes of this machine.
    Local(local::Handle),
    /// Containers.
    Docker(docker::Handle),
}

/// Tells the janitor that its owner ends in order, and waits until it has gone.
fn dismiss_janitor(janitor: &mut Option<Child>) -> Result<()> {
    if let Some(mut child) = janitor.take() {
        if let Some(stdin) = child.stdin.as_mut() {
            writeln!(stdin, "done").context("cannot talk to the janitor")?;
        }
        child.wait().context("cannot wait for the janitor")?;
    }
    Ok(())
}
