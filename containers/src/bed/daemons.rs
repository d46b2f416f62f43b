//! The daemons of a bed: starting, stopping, freezing, killing them and their hosts.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use super::Bed;
use crate::backend::{Daemon, Host};
use crate::master::MasterProcesses;
use crate::rpc::{self, Process, Signal};

impl Bed {
    /// The tag and the words of the title by which a daemon's processes are known.
    fn marks(&self, daemon: Daemon) -> (String, Vec<String>) {
        let layout = self.layout(daemon.host());
        let config = format!(" -c {}", layout.salt_config());
        match daemon {
            Daemon::Master => (
                layout.at("salt-master"),
                vec!["/bin/salt-master".into(), config],
            ),
            Daemon::Minion(_) => (
                layout.at("salt-minion"),
                vec!["/bin/salt-minion".into(), config],
            ),
            Daemon::Executor(_) => (layout.gw_exec, vec![]),
            Daemon::Gateway => (layout.at("gw"), vec![]),
        }
    }

    pub(super) fn spawn(&self, daemon: Daemon) -> Result<()> {
        if self.is_service(daemon) {
            let start = "systemctl start salt-minion";
            return self.sh(daemon.host(), start, &[]).map(drop);
        }
        let layout = self.layout(daemon.host());
        let (tag, _) = self.marks(daemon);
        let (config, gw_toml) = (layout.salt_config(), layout.gw_toml());
        let (log, command): (String, Vec<String>) = match daemon {
            Daemon::Gateway => (
                layout.gw_log(),
                vec![
                    layout.gw.clone(),
                    "--config".into(),
                    gw_toml,
                    "serve".into(),
                ],
            ),
            Daemon::Executor(_) => bail!("only a job starts an executor"),
            Daemon::Master | Daemon::Minion(_) => {
                let name = if daemon == Daemon::Master {
                    "salt-master"
                } else {
                    "salt-minion"
                };
                let log = layout.at(&format!("var/log/bed/{name}.log"));
                (
                    log,
                    vec![
                        layout.salt(name),
                        "-c".into(),
                        config,
                        "--log-level=quiet".into(),
                    ],
                )
            }
        };
        // Salt takes a process that was killed and that nobody reaps (a container whose process 1 does not) for one
        // that still runs (`salt/utils/process.py`, `claim_mantle_of_responsibility`, 3006.27).
        let script = r#"export GW_BED="$1"; log=$2 run=$3; shift 3
            for file in "$run"/*salt-*.pid; do
                pid=$(grep -o '[0-9]*' "$file" | head -n 1)
                if grep -q '^State:.Z' "/proc/$pid/status"; then rm "$file"; fi
            done 2>/dev/null
            "$@" </dev/null >>"$log" 2>&1 &"#;
        let run = layout.at("var/run");
        let mut args = vec![tag.as_str(), log.as_str(), run.as_str()];
        args.extend(command.iter().map(String::as_str));
        self.sh(daemon.host(), script, &args).map(drop)
    }

    pub(super) fn processes(&self, daemon: Daemon) -> Result<Vec<Process>> {
        let (tag, command) = self.marks(daemon);
        self.call(
            daemon.host(),
            "processes",
            json!({"tag": tag, "command": command}),
        )
    }

    pub(super) fn signal(
        &self,
        daemon: Daemon,
        signal: Signal,
        pids: Option<&[u32]>,
    ) -> Result<Vec<u32>> {
        let (tag, command) = self.marks(daemon);
        rpc::signal(
            self.backend.as_ref(),
            daemon.host(),
            &tag,
            &command,
            signal,
            pids,
        )
    }

    pub(super) fn kill(&self, daemon: Daemon) -> Result<()> {
        let (tag, command) = self.marks(daemon);
        rpc::end_all(self.backend.as_ref(), daemon.host(), &tag, &command)
    }

    /// SIGTERM to the daemon's first process, as a service manager does, then patience.
    pub(super) fn stop(&self, daemon: Daemon) -> Result<()> {
        if self.is_service(daemon) {
            let stop = "systemctl stop salt-minion";
            return self.sh(daemon.host(), stop, &[]).map(drop);
        }
        let all = self.processes(daemon)?;
        let first = all
            .iter()
            .filter(|p| all.iter().all(|other| other.pid != p.ppid))
            .map(|p| p.pid);
        let Some(first) = first.min() else {
            return Ok(());
        };
        self.signal(daemon, Signal::Terminate, Some(&[first]))?;
        self.wait(
            "a daemon does not end",
            Duration::from_secs(90),
            daemon,
            || Ok(self.processes(daemon)?.is_empty()),
        )
    }

    /// Whether systemd starts and stops it.
    fn is_service(&self, daemon: Daemon) -> bool {
        matches!(daemon, Daemon::Minion(_)) && self.backend.has_systemd(daemon.host())
    }

    /// The executors of a minion that live now.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn executors(&self, number: usize) -> Result<Vec<Process>> {
        self.processes(Daemon::Executor(number))
    }

    /// Signals executors of a minion; pids that are not its own are left alone. Returns who was signalled.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn signal_executor(&self, number: usize, signal: Signal, pids: &[u32]) -> Result<Vec<u32>> {
        self.signal(Daemon::Executor(number), signal, Some(pids))
    }

    /// The processes of a minion: the two of salt-minion itself, its workers, and what these have started.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn minion_processes(&self, number: usize) -> Result<Vec<Process>> {
        self.processes(Daemon::Minion(number))
    }

    /// The master's processes by what they do.
    ///
    /// # Errors
    /// The master's host cannot be asked.
    pub fn master_processes(&self) -> Result<MasterProcesses> {
        Ok(MasterProcesses::from_titles(
            &self.processes(Daemon::Master)?,
        ))
    }

    /// Every process of the master, as it is.
    ///
    /// # Errors
    /// The master's host cannot be asked.
    pub fn all_master_processes(&self) -> Result<Vec<Process>> {
        self.processes(Daemon::Master)
    }

    /// Signals processes of the master; pids that are not its own are left alone. Returns who was signalled.
    ///
    /// # Errors
    /// The master's host cannot be asked.
    pub fn signal_master(&self, signal: Signal, pids: &[u32]) -> Result<Vec<u32>> {
        self.signal(Daemon::Master, signal, Some(pids))
    }

    /// Signals processes of a minion; pids that are not its own are left alone. Returns who was signalled.
    ///
    /// # Errors
    /// The minion's host cannot be asked.
    pub fn signal_minion(&self, number: usize, signal: Signal, pids: &[u32]) -> Result<Vec<u32>> {
        self.signal(Daemon::Minion(number), signal, Some(pids))
    }

    /// Ends salt-minion in order; a job that runs is waited for, 90 s at most.
    ///
    /// # Errors
    /// It still runs then.
    pub fn minion_stop(&self, number: usize) -> Result<()> {
        self.stop(Daemon::Minion(number))
    }

    /// SIGKILL to every process of the minion, workers and executors included. Executors first: one that sees its
    /// worker go has a receipt to write.
    ///
    /// # Errors
    /// One of them survived.
    pub fn minion_kill(&self, number: usize) -> Result<()> {
        self.kill(Daemon::Executor(number))?;
        self.kill(Daemon::Minion(number))?;
        // Of a worker whose state was just over.
        self.kill(Daemon::Executor(number))
    }

    /// Starts a stopped or killed minion and waits until it answers (so the master must run).
    ///
    /// # Errors
    /// It does not answer.
    pub fn minion_start(&self, number: usize) -> Result<()> {
        self.spawn(Daemon::Minion(number))?;
        self.wait_for_minions(&[number])
    }

    /// [`Bed::minion_stop`], then [`Bed::minion_start`].
    ///
    /// # Errors
    /// As these.
    pub fn minion_restart(&self, number: usize) -> Result<()> {
        self.minion_stop(number)?;
        self.minion_start(number)
    }

    /// The minion's whole host goes down at once and comes back (`docker restart` where it is a container), then
    /// its daemon is started.
    ///
    /// # Errors
    /// It does not come back, or does not answer.
    pub fn minion_reboot(&self, number: usize) -> Result<()> {
        self.backend.reboot(Host::Minion(number))?;
        self.minion_start(number)
    }

    /// Freezes every process of the minion's host.
    ///
    /// # Errors
    /// The host cannot be reached.
    pub fn minion_pause(&self, number: usize) -> Result<()> {
        self.backend.freeze(number, true)
    }

    /// Thaws the minion's host.
    ///
    /// # Errors
    /// The host cannot be reached.
    pub fn minion_resume(&self, number: usize) -> Result<()> {
        self.backend.freeze(number, false)
    }

    /// Cuts the minion's host off the network.
    ///
    /// # Errors
    /// The local backend cannot.
    pub fn partition(&self, number: usize) -> Result<()> {
        self.backend.cut(number, true)
    }

    /// Connects the minion's host again.
    ///
    /// # Errors
    /// The local backend cannot.
    pub fn heal(&self, number: usize) -> Result<()> {
        self.backend.cut(number, false)
    }

    /// Ends salt-master in order; the gateway goes on.
    ///
    /// # Errors
    /// It still runs after 90 s.
    pub fn master_stop(&self) -> Result<()> {
        self.stop(Daemon::Master)
    }

    /// SIGKILL to every process of salt-master; the gateway goes on.
    ///
    /// # Errors
    /// One of them survived.
    pub fn master_kill(&self) -> Result<()> {
        self.kill(Daemon::Master)
    }

    /// Starts a stopped or killed salt-master and waits until its sockets accept.
    ///
    /// # Errors
    /// They do not after a minute.
    pub fn master_start(&self) -> Result<()> {
        self.spawn(Daemon::Master)?;
        let sockets = [self.publish_pull_path()];
        self.wait(
            "salt-master does not listen",
            Duration::from_secs(60),
            Daemon::Master,
            || self.call(Host::Master, "ready", json!({ "sockets": sockets })),
        )
    }

    /// [`Bed::master_stop`], then [`Bed::master_start`].
    ///
    /// # Errors
    /// As these.
    pub fn master_restart(&self) -> Result<()> {
        self.master_stop()?;
        self.master_start()
    }

    /// SIGSTOP to every process of salt-master; the gateway goes on.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub fn master_pause(&self) -> Result<()> {
        self.signal(Daemon::Master, Signal::Stop, None).map(drop)
    }

    /// SIGCONT to every process of salt-master.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub fn master_resume(&self) -> Result<()> {
        self.signal(Daemon::Master, Signal::Continue, None)
            .map(drop)
    }
}
