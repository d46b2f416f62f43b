//! Follows a worker and everything it starts, system call by system call, and strikes at one of them.
//!
//! A thread's calls are counted one by one, in the order in which they are made, so that a point means the same
//! call each time. What is struck is looked at in that very moment: a point at which another call stands than was
//! recorded does not count.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::syscall::{Call, decode};

/// How long a traced call of the module may take before it counts as hung. The executor tries a receipt for 60 s.
const PATIENCE: Duration = Duration::from_secs(100);

/// Which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The process that runs the module.
    Worker,
    /// The first `gw-exec` that it starts.
    Executor,
    /// The second one, after the first has died.
    Finish,
}

impl Role {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Executor => "executor",
            Role::Finish => "finish",
        }
    }
}

/// One system call of one run: the `ordinal`th of its thread that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The process.
    pub role: Role,
    /// Its threads are numbered as they come to be; 0 is the first.
    pub thread: usize,
    /// Counted from 0.
    pub ordinal: usize,
}

/// What to do at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL to the process before the call has any effect.
    Kill,
    /// The call has no effect and fails.
    Fail(Errno),
    /// As `Fail`, and so does every later call of the process that writes to a file system.
    FailFromHere(Errno),
    /// A write takes half of what it was given.
    Short,
}

/// A strike, and the call that must be found there.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What.
    pub strike: Strike,
    /// The name of the system call that was recorded there.
    pub name: &'static str,
}

/// One call that was made.
#[derive(Debug, Clone)]
pub struct Event {
    /// Where.
    pub place: Place,
    /// What.
    pub call: Call,
    /// What it gave back; none if the process did not live to see it.
    pub result: Option<i64>,
}

/// What a traced call came to.
#[derive(Debug, Default)]
pub struct Trace {
    /// In the order in which the calls ended, or were struck.
    pub events: Vec<Event>,
    /// How many of the faults struck the call that they were meant for.
    pub struck: usize,
    /// It did not end in time, and was ended.
    pub hung: bool,
}

struct Thread {
    role: Role,
    process: Pid,
    number: usize,
    calls: usize,
    entered: Option<Entered>,
    /// A call is under way; its end is the next stop.
    inside: bool,
}

struct Entered {
    place: Place,
    call: Call,
    fail: Option<Errno>,
}

/// Traces process `worker`, which waits for `go`, to its end and to that of all it starts.
pub fn trace(worker: Pid, faults: &[Fault], go: impl FnOnce() -> Result<()>) -> Result<Trace> {
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(worker, options).context(
        "cannot trace the worker\nhint: run as root, or set kernel.yama.ptrace_scope to 0 or 1",
    )?;
    ptrace::interrupt(worker).context("cannot stop the worker")?;
    let mut tracer = Tracer {
        threads: HashMap::new(),
        children: 0,
        numbers: HashMap::new(),
        faults,
        failing: None,
        trace: Trace::default(),
        alive: Arc::default(),
    };
    tracer.add(worker, worker, Role::Worker);
    let over = Arc::new(AtomicBool::new(false));
    let watchdog = watch(Arc::clone(&tracer.alive), Arc::clone(&over));
    let traced = go().and_then(|()| tracer.run());
    over.store(true, Ordering::Relaxed);
    tracer.trace.hung = watchdog.join().unwrap_or(true);
    traced.map(|()| tracer.trace)
}

/// Ends everything that is traced when patience is over; says whether it had to.
fn watch(alive: Arc<Mutex<Vec<Pid>>>, over: Arc<AtomicBool>) -> std::thread::JoinHandle<bool> {
    let until = Instant::now() + PATIENCE;
    std::thread::spawn(move || {
        while Instant::now() < until {
            if over.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        for process in alive.lock().map(|alive| alive.clone()).unwrap_or_default() {
            let _gone = kill(process, Signal::SIGKILL);
        }
        true
    })
}

struct Tracer<'a> {
    threads: HashMap<Pid, Thread>,
    /// How many processes the worker has started.
    children: usize,
    /// How many threads each process has had.
    numbers: HashMap<Pid, usize>,
    faults: &'a [Fault],
    failing: Option<(Role, Errno)>,
    trace: Trace,
    alive: Arc<Mutex<Vec<Pid>>>,
}

impl Tracer<'_> {
    fn add(&mut self, thread: Pid, process: Pid, role: Role) {
        let number = self.numbers.entry(process).or_insert(0);
        let entry = Thread {
            role,
            process,
            number: *number,
            calls: 0,
            entered: None,
            inside: false,
        };
        *number += 1;
        self.threads.insert(thread, entry);
        if thread == process
            && let Ok(mut alive) = self.alive.lock()
        {
            alive.push(process);
        }
    }

    fn run(&mut self) -> Result<()> {
        while !self.threads.is_empty() {
            let status = waitpid(None, Some(WaitPidFlag::__WALL)).context("cannot wait")?;
            match status {
                WaitStatus::PtraceSyscall(pid) => self.syscall_stop(pid)?,
                // Nothing here stops a process by a signal, so none of these stops is to be kept up.
                WaitStatus::PtraceEvent(pid, ..) => {
                    self.adopt(pid)?;
                    resume(pid, None)?;
                }
                WaitStatus::Stopped(pid, signal) => resume(pid, Some(signal))?,
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => self.gone(pid),
                _ => {}
            }
        }
        Ok(())
    }

    fn gone(&mut self, pid: Pid) {
        if let Some(thread) = self.threads.remove(&pid) {
            // It did not live to see the end of its call.
            if let Some(entered) = thread.entered {
                self.trace.events.push(Event {
                    place: entered.place,
                    call: entered.call,
                    result: None,
                });
            }
        }
    }

    /// A process or thread that is seen for the first time.
    fn adopt(&mut self, pid: Pid) -> Result<()> {
        if self.threads.contains_key(&pid) {
            return Ok(());
        }
        let Some(process) = process_of(pid) else {
            return Ok(());
        };
        let role = match self
            .threads
            .values()
            .find(|thread| thread.process == process)
        {
            Some(thread) => thread.role,
            None => {
                self.children += 1;
                match self.children {
                    1 => Role::Executor,
                    2 => Role::Finish,
                    _ => bail!("the worker started a third process"),
                }
            }
        };
        self.add(pid, process, role);
        Ok(())
    }

    fn syscall_stop(&mut self, pid: Pid) -> Result<()> {
        self.adopt(pid)?;
        let Some(mut regs) = alive(ptrace::getregs(pid))? else {
            return Ok(());
        };
        let Some(thread) = self.threads.get_mut(&pid) else {
            return resume(pid, None);
        };
        // At the entry the kernel has put -ENOSYS there; a new thread's first stop is an exit.
        let entry = !thread.inside && regs.rax as i64 == -i64::from(Errno::ENOSYS as i32);
        if !entry {
            thread.inside = false;
            if let Some(entered) = thread.entered.take() {
                if let Some(errno) = entered.fail {
                    regs.rax = (-i64::from(errno as i32)) as u64;
                    alive(ptrace::setregs(pid, regs))?;
                }
                self.trace.events.push(Event {
                    place: entered.place,
                    call: entered.call,
                    result: Some(regs.rax as i64),
                });
            }
            return resume(pid, None);
        }
        thread.inside = true;
        let Some(call) = decode(pid, &regs) else {
            return resume(pid, None);
        };
        let place = Place {
            role: thread.role,
            thread: thread.number,
            ordinal: thread.calls,
        };
        thread.calls += 1;
        let process = thread.process;
        let found = self
            .faults
            .iter()
            .find(|fault| fault.place == place && fault.name == call.name)
            .map(|fault| fault.strike);
        self.trace.struck += usize::from(found.is_some());
        let mut fail = match self.failing {
            Some((role, errno)) if role == place.role && call.writes_files() => Some(errno),
            _ => None,
        };
        match found {
            Some(Strike::Kill) => {
                self.trace.events.push(Event {
                    place,
                    call,
                    result: None,
                });
                kill(process, Signal::SIGKILL).context("cannot kill")?;
                return Ok(());
            }
            Some(Strike::Fail(errno)) => fail = Some(errno),
            Some(Strike::FailFromHere(errno)) => {
                fail = Some(errno);
                self.failing = Some((place.role, errno));
            }
            Some(Strike::Short) => {
                regs.rdx /= 2;
                alive(ptrace::setregs(pid, regs))?;
            }
            None => {}
        }
        if fail.is_some() {
            // No such system call: it has no effect.
            regs.orig_rax = u64::MAX;
            alive(ptrace::setregs(pid, regs))?;
        }
        thread.entered = Some(Entered { place, call, fail });
        resume(pid, None)
    }
}

/// What a thread that was killed meanwhile no longer answers is no error: its end comes next.
fn alive<T>(answered: nix::Result<T>) -> Result<Option<T>> {
    match answered {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ESRCH) => Ok(None),
        Err(errno) => Err(errno).context("cannot trace"),
    }
}

fn resume(pid: Pid, signal: Option<Signal>) -> Result<()> {
    alive(ptrace::syscall(pid, signal)).map(drop)
}

fn process_of(thread: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Some(Pid::from_raw(line.trim().parse().ok()?))
}

/// Bytes of a stopped process.
pub fn memory(pid: Pid, address: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let file = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    file.read_exact_at(&mut bytes, address)?;
    Ok(bytes)
}
