//! The Salt worker at the other end of our standard input.
//!
//! Lines of JSON go both ways over one socket pair that the worker made. Its process is watched through
//! a pidfd: a socket that ends says nothing, since what a state started may have inherited the other end.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gw_wire::id::Token;
use gw_wire::reply::Survival;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown, sockopt,
};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::reduce::Report;

/// The longest line after the first, in bytes.
const MAX_LINE_BYTES: usize = 4096;

/// Why there is no worker to talk to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Started by hand, or by something else.
    #[error("standard input is not a socket of Salt's worker")]
    NotAWorker(#[source] io::Error),
    /// The worker is not our parent: it died before we could watch it.
    #[error("the process that started this one is gone")]
    Gone,
    /// The socket failed.
    #[error("cannot talk to Salt's worker")]
    Io(#[from] io::Error),
    /// A line is longer than its limit; it was read to its end and dropped.
    #[error("a line of Salt's worker is over the limit of {0} bytes")]
    TooLong(usize),
    /// The socket ended in the middle of a line.
    #[error("the socket of Salt's worker ended early")]
    Ended,
}

/// What the worker is told.
#[derive(Debug, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Order {
    /// Call this one state function. Two descriptors come along: execution lock and request lock.
    Call {
        /// The claim, to be named to `gw-exec finish` if this executor dies.
        claim_id: Token,
        /// Whether the job is in a scope of its own.
        survival: Survival,
        /// The function.
        fun: &'static str,
        /// Its positional arguments.
        arg: Vec<Value>,
        /// Its keyword arguments.
        kwarg: serde_json::Map<String, Value>,
    },
    /// Give this to Salt.
    Return {
        /// The return.
        value: Value,
    },
}

/// What the worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    /// States finished so far, and low chunks in all.
    Progress(u32, u32),
    /// The state function is done.
    Result(Report),
}

/// What happened to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It said something.
    Said(Word),
    /// It said something that makes no sense.
    Nonsense,
    /// Its process is gone, and it had said no more than what was given out before.
    Died,
}

/// The worker.
#[derive(Debug)]
pub struct Worker {
    socket: OwnedFd,
    pid: Pid,
    pidfd: OwnedFd,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
    ended: bool,
}

impl Worker {
    /// Takes over standard input.
    pub fn on_stdin() -> Result<Self, WorkerError> {
        let not_a_worker = |errno: Errno| WorkerError::NotAWorker(errno.into());
        let stdin = io::stdin();
        let socket = fcntl_dupfd_cloexec(stdin.as_fd(), 3).map_err(not_a_worker)?;
        // The process that made the socket pair; it cannot be forged.
        let peer = sockopt::socket_peercred(&socket).map_err(not_a_worker)?.pid;
        // Descriptor 0 must not keep the socket open once we let go of it.
        let null = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null).map_err(io::Error::from)?;
        Self::watch(socket, peer)
    }

    fn watch(socket: OwnedFd, peer: Pid) -> Result<Self, WorkerError> {
        let pidfd = match pidfd_open(peer, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Err(WorkerError::Gone),
            Err(errno) => return Err(WorkerError::Io(errno.into())),
        };
        // The number could have been given to another process only after our parent's end, and then it
        // is our parent no more.
        if getppid() != Some(peer) {
            return Err(WorkerError::Gone);
        }
        Ok(Worker {
            socket,
            pid: peer,
            pidfd,
            buffer: Vec::new(),
            fds: Vec::new(),
            ended: false,
        })
    }

    /// The worker's process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The first line, of at most `limit` bytes. A longer one is read to its end, so that the worker can
    /// finish writing and hear our answer, and takes no more memory.
    pub fn first_line(&mut self, limit: usize) -> Result<Vec<u8>, WorkerError> {
        let mut too_long = false;
        loop {
            if let Some(line) = self.take_line() {
                if too_long || line.len() > limit {
                    return Err(WorkerError::TooLong(limit));
                }
                return Ok(line);
            }
            if self.buffer.len() > limit {
                too_long = true;
                self.buffer.clear();
            }
            if self.ended {
                return Err(WorkerError::Ended);
            }
            self.receive(RecvFlags::empty())?;
        }
    }

    /// The descriptors that came with what was read so far: those of two locks, or of none.
    pub fn take_locks(&mut self) -> Option<[OwnedFd; 2]> {
        std::mem::take(&mut self.fds).try_into().ok()
    }

    /// Waits for the next word, or for the worker's end, at most until `deadline`; `None` then.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Event>, WorkerError> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(match serde_json::from_slice(&line) {
                    Ok(word) => Event::Said(word),
                    Err(_) => Event::Nonsense,
                }));
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Ok(Some(Event::Nonsense));
            }
            let (readable, dead) = self.wait(deadline)?;
            if readable {
                self.receive(RecvFlags::DONTWAIT)?;
            } else if dead {
                return Ok(Some(Event::Died));
            } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Waits until the worker has closed its end or died, at most `patience`: it has then let go of the
    /// locks too.
    pub fn wait_for_end(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.ended && Instant::now() < deadline {
            // What it may still say is of no interest any more.
            self.buffer.clear();
            let received = match self.wait(Some(deadline)) {
                Ok((true, _)) => self.receive(RecvFlags::DONTWAIT),
                Ok((false, true)) => return,
                Ok((false, false)) => Ok(()),
                Err(error) => Err(error),
            };
            if received.is_err() {
                return;
            }
        }
    }

    /// Gives an order, with descriptors if there are any. After an error the connection is over both ways:
    /// the worker, which waits for its order, must not wait for ever, and we not for its result.
    pub fn order(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let given = self.send(order, fds);
        if given.is_err() {
            // It fails only if the connection is over already.
            let _over = shutdown(&self.socket, Shutdown::Both);
        }
        given
    }

    fn send(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(
                control.push(SendAncillaryMessage::ScmRights(fds)),
                "there is room for the descriptors of two locks"
            );
        }
        let mut sent = 0;
        while sent < line.len() {
            let iov = [IoSlice::new(&line[sent..])];
            match sendmsg(&self.socket, &iov, &mut control, SendFlags::NOSIGNAL) {
                // The descriptors went with the first byte.
                Ok(more) => (sent, control) = (sent + more, SendAncillaryBuffer::default()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let rest = self.buffer.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        line.pop();
        Some(line)
    }

    fn receive(&mut self, flags: RecvFlags) -> Result<(), WorkerError> {
        let mut chunk = [0u8; 64 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut control,
            flags,
        );
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        match received.map(|message| message.bytes) {
            Ok(0) => self.ended = true,
            Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The other end closed with our words unread: nothing more will come.
            Err(Errno::CONNRESET) => self.ended = true,
            Err(errno) => return Err(WorkerError::Io(errno.into())),
        }
        Ok(())
    }

    /// Whether the socket has something, and whether the process is gone.
    fn wait(&self, deadline: Option<Instant>) -> Result<(bool, bool), WorkerError> {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Both fit: a deadline of ours is minutes away.
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        if !self.ended {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, false)),
            Err(errno) => return Err(WorkerError::Io(errno.into())),
        }
        let seen = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok((seen(1), seen(0)))
    }
}
