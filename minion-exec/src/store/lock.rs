//! Locks that the kernel releases and nobody else.
//!
//! # one-run
//! A lock belongs to an open file description (`F_OFD_SETLK`), and so to everyone who holds a descriptor
//! of it: the executor, the Salt worker once it was passed one, and what the worker forks without an exec
//! meanwhile. It lasts until all of them have closed theirs. It is probed by `F_OFD_GETLK`, which takes
//! nothing. Lock files are never unlinked, and after locking the name must still lead to the file locked:
//! else two holders could each have "the" lock.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::StoreError;
use super::dir::Dir;
use super::step::{self, step};

/// The one managed apply of this minion.
pub const EXECUTION: &str = "execution";
/// Whoever changes what jids exist.
pub const INDEX: &str = "index";

/// A lock that is held as long as this value, or a duplicate of its descriptor, lives.
#[derive(Debug)]
pub struct Lock {
    fd: OwnedFd,
}

impl Lock {
    /// Takes the lock, or gives `None` at once if somebody has it.
    pub fn try_take(dir: &Dir, name: &str) -> Result<Option<Self>, StoreError> {
        let path = dir.path_of(name);
        let fd = dir.open_lock(name, true)?.ok_or(StoreError::Unsafe {
            path: path.clone(),
            rule: "a lock file that stays in place",
        })?;
        step();
        match fcntl(&fd, FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
            Err(errno) => return Err(lock_error("lock", path, errno)),
        }
        if !dir.is_named(name, fd.as_fd())? {
            return Err(StoreError::Unsafe {
                path,
                rule: "a lock file that stays in place",
            });
        }
        Ok(Some(Lock { fd }))
    }

    /// Takes over a descriptor that another process passed on; `None` if it is not of this lock's file, or if
    /// somebody else has the lock.
    pub fn adopt(dir: &Dir, name: &str, fd: OwnedFd) -> Result<Option<Self>, StoreError> {
        if !dir.is_named(name, fd.as_fd())? {
            return Ok(None);
        }
        // Changes nothing if the lock belongs to this open file description already.
        match fcntl(&fd, FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => Ok(Some(Lock { fd })),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(lock_error("lock", dir.path_of(name), errno)),
        }
    }

    /// Takes the lock, waiting at most `patience` for its holder. For locks held for moments only.
    pub fn take(dir: &Dir, name: &str, patience: Duration) -> Result<Self, StoreError> {
        let until = Instant::now() + patience;
        loop {
            if let Some(lock) = Self::try_take(dir, name)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                let path = dir.path_of(name);
                return Err(lock_error("lock in time", path, Errno::EAGAIN));
            }
            step::wait();
        }
    }

    /// Whether anybody holds the lock. Takes nothing and makes no file.
    pub fn is_held(dir: &Dir, name: &str) -> Result<bool, StoreError> {
        let Some(fd) = dir.open_lock(name, false)? else {
            return Ok(false);
        };
        step();
        let mut found = whole_file();
        fcntl(&fd, FcntlArg::F_OFD_GETLK(&mut found))
            .map_err(|errno| lock_error("probe", dir.path_of(name), errno))?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
    }

    /// The descriptor, to be passed to the worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        step::let_go();
    }
}

/// An exclusive lock on every byte; for `F_OFD_*` the process id must be 0.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

fn lock_error(what: &'static str, path: std::path::PathBuf, errno: Errno) -> StoreError {
    StoreError::Io {
        what,
        path,
        source: errno.into(),
    }
}
