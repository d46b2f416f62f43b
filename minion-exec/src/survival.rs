//! Whether a job outlives the service that it came through.
//!
//! A worker begins in the control group of salt-minion's unit, and everything in there is killed when the unit is
//! stopped or restarted (`KillMode=mixed`, as Salt's packages have it since 3006.26; a dead main process is
//! enough). So the executor asks systemd's manager for a scope of their own, `gw-job-<jid>.scope`, for the worker
//! and itself; what the state starts is born there. It happens before the claim, so that the claim, and each reply
//! about it, can say whether it worked.
//!
//! A scope also tells what a lock cannot: whether anything that the state started is still there, unless it left
//! for another unit ([`others_in_scope`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use gw_wire::id::Jid;
use gw_wire::reply::Survival;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, geteuid, getpid};
use zbus::{OwnedObjectPath, Variant};

use crate::session::{chain, tell};

/// How long the manager may take, all in all.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at who is in the scope.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Where systemd mounts control groups; its own version 1 hierarchy, and version 2 beside and without that.
const HIERARCHIES: [&str; 3] = [
    "/sys/fs/cgroup/systemd",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup",
];
/// There is such a directory where systemd is process 1 (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// The part of systemd's manager that is asked (org.freedesktop.systemd1(5)).
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;

    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        auxiliary: &[(&str, &[(&str, Variant<'_>)])],
    ) -> zbus::Result<OwnedObjectPath>;

    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: OwnedObjectPath,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

/// Why a job stays in the minion's service.
#[derive(Debug, thiserror::Error)]
enum StayError {
    #[error("systemd's manager cannot be asked")]
    Bus(#[from] zbus::Error),
    #[error("systemd's manager did not answer in time")]
    TimedOut,
    #[error("the bus closed the connection")]
    Closed,
    #[error("systemd's manager ended the scope's start with {0:?}")]
    NotStarted(String),
    #[error("process {pid} is not in {scope}")]
    NotMoved { pid: u32, scope: String },
    #[error("cannot read the system's files")]
    Io(#[from] io::Error),
}

/// Moves the worker and this process out of the minion's service, into `gw-job-<jid>.scope`.
///
/// [`Survival::Scope`] means that both were seen there. Any error is told on standard error and leaves the job
/// where it is, which is no reason not to run it.
pub fn enter(jid: Jid, worker: Pid) -> Survival {
    if !has_manager() {
        return Survival::None;
    }
    let scope = format!("gw-job-{jid}.scope");
    let pids = [worker, getpid()].map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    match in_time(start_scope(&scope, jid, pids)).and_then(|()| verify(&scope, pids)) {
        Ok(()) => Survival::Scope,
        Err(error) => {
            let why = chain(&error);
            tell(&format!(
                "the job does not outlive a restart of salt-minion: {why}"
            ));
            Survival::None
        }
    }
}

/// Whether [`enter`] can be expected to work: systemd's manager is there and answers.
pub fn possible() -> Survival {
    if !has_manager() {
        return Survival::None;
    }
    match in_time(ping()) {
        Ok(()) => Survival::Scope,
        Err(error) => {
            let why = chain(&error);
            tell(&format!(
                "no job would outlive a restart of salt-minion: {why}"
            ));
            Survival::None
        }
    }
}

/// Whether any process but this one is in our scope, or in a control group below it.
///
/// # Errors
/// This process is in no scope of a job, or the control groups cannot be read.
pub fn others_in_scope() -> io::Result<bool> {
    others_below(&own_scope()?, std::process::id())
}

/// Waits until nobody else is in our scope, however long that takes.
///
/// # Errors
/// As [`others_in_scope`].
pub fn wait_until_alone() -> io::Result<()> {
    while others_in_scope()? {
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Whether our scope is being stopped: systemd has sent SIGTERM, which this process blocks.
///
/// The stop waits for us, and at the machine's shutdown everybody waits for the stop.
pub fn is_stopping() -> bool {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTERM);
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    own_scope().is_ok()
        && SignalFd::with_flags(&mask, flags).is_ok_and(|pending| {
            // Looked at and not read: it stays pending.
            let mut fds = [PollFd::new(&pending, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
}

/// Whether systemd is process 1, and we are in one of its units and may ask it without anybody's leave.
fn has_manager() -> bool {
    Path::new(BOOTED).is_dir()
        && geteuid().is_root()
        && paths_of("self").is_ok_and(|paths| paths.iter().any(|path| is_unit(path)))
}

fn in_time(asking: impl Future<Output = Result<(), StayError>>) -> Result<(), StayError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { tokio::time::timeout(PATIENCE, asking).await })
        .map_err(|_| StayError::TimedOut)?
}

async fn ping() -> Result<(), StayError> {
    let bus = zbus::Connection::system().await?;
    let peer = Some("org.freedesktop.DBus.Peer");
    let manager = Some("org.freedesktop.systemd1");
    bus.call_method(manager, "/org/freedesktop/systemd1", peer, "Ping", &())
        .await?;
    Ok(())
}

async fn start_scope(scope: &str, jid: Jid, pids: [u32; 2]) -> Result<(), StayError> {
    let bus = zbus::Connection::system().await?;
    let manager = ManagerProxy::new(&bus).await?;
    let mut ended = manager.receive_job_removed().await?;
    // Without it the manager keeps its signals to itself.
    manager.subscribe().await?;
    let properties = [
        (
            "Description",
            Variant::from(format!("Salt job {jid} of gw-exec")),
        ),
        ("PIDs", Variant::from(pids.to_vec())),
        // It goes away with its last process, also if that was killed.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    let job = manager
        .start_transient_unit(scope, "fail", &properties, &[])
        .await?;
    while let Some(signal) = ended.next().await {
        let end = signal.args()?;
        if end.job == job {
            return match end.result {
                "done" => Ok(()),
                other => Err(StayError::NotStarted(other.to_owned())),
            };
        }
    }
    Err(StayError::Closed)
}

fn verify(scope: &str, pids: [u32; 2]) -> Result<(), StayError> {
    for pid in pids {
        let paths = paths_of(&pid.to_string())?;
        if !paths
            .iter()
            .any(|path| path.file_name().is_some_and(|name| name == scope))
        {
            let scope = scope.to_owned();
            return Err(StayError::NotMoved { pid, scope });
        }
    }
    Ok(())
}

/// The control group of our scope, as a directory.
fn own_scope() -> io::Result<PathBuf> {
    let paths = paths_of("self")?;
    let scope = paths.iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("gw-job-") && name.ends_with(".scope")
    });
    let scope = scope.ok_or_else(|| io::Error::other("not in the scope of a job"))?;
    HIERARCHIES
        .iter()
        .map(|root| PathBuf::from(format!("{root}{}", scope.display())))
        .find(|directory| directory.join("cgroup.procs").exists())
        .ok_or_else(|| io::Error::other("the control group of the scope is not mounted"))
}

/// Whether a process other than `us` is in this control group or below.
fn others_below(group: &Path, us: u32) -> io::Result<bool> {
    let others = |text: &str| text.lines().any(|line| line != us.to_string());
    match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) if others(&text) => return Ok(true),
        Ok(_) => {}
        // A group below went away with its last process.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && others_below(&entry.path(), us)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn paths_of(process: &str) -> io::Result<Vec<PathBuf>> {
    Ok(parse(&fs::read_to_string(format!(
        "/proc/{process}/cgroup"
    ))?))
}

/// The control groups that systemd sorts a process by (cgroups(7), `/proc/pid/cgroup`): in its own version 1
/// hierarchy, in version 2, or, while a machine has both, in the two of them.
fn parse(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            (controllers == "name=systemd" || (id == "0" && controllers.is_empty()))
                .then(|| PathBuf::from(path))
        })
        .collect()
}

fn is_unit(path: &Path) -> bool {
    path.extension()
        .is_some_and(|kind| kind == "service" || kind == "scope")
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_1: &str = "\
12:pids:/system.slice/salt-minion.service
1:name=systemd:/docker/0a1b/system.slice/salt-minion.service
0::/
";
    const VERSION_2: &str = "0::/system.slice/salt-minion.service\n";

    #[test]
    fn the_unit_is_found_with_either_version_of_control_groups() {
        assert!(is_unit(&parse(VERSION_1)[0]) && !is_unit(&parse(VERSION_1)[1]));
        assert_eq!(
            parse(VERSION_2),
            [Path::new("/system.slice/salt-minion.service")]
        );
        for outside in [
            "0::/\n",
            "1:name=systemd:/docker/0a1b\n",
            "",
            "nonsense\n1:\n",
        ] {
            assert!(!parse(outside).iter().any(|path| is_unit(path)));
        }
    }

    #[test]
    fn others_are_those_in_the_group_or_below_it_and_not_ourselves() {
        let group = tempfile::tempdir().expect("a directory");
        let below = group.path().join("below");
        fs::create_dir(&below).expect("a directory");
        let put = |path: &Path, text: &str| {
            fs::write(path.join("cgroup.procs"), text).expect("a file");
        };
        put(group.path(), "7\n");
        put(&below, "");
        assert!(!others_below(group.path(), 7).expect("readable"));
        assert!(others_below(group.path(), 77).expect("readable"));
        put(&below, "8\n");
        assert!(others_below(group.path(), 7).expect("readable"));
    }
}
