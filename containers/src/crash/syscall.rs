//! The system calls of x86-64 Linux that change something others can see.

use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::Pid;

use super::tracer::memory;

/// One call, as far as it matters.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: What,
}

/// What a call does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Opens a file that it may create.
    Create(PathBuf),
    /// Writes to a file.
    Write(PathBuf, Vec<u8>),
    /// Syncs a file or a directory.
    Sync(PathBuf),
    /// Gives a file another name.
    Rename(PathBuf, PathBuf),
    /// Deletes a name.
    Unlink(PathBuf),
    /// Makes a directory.
    Mkdir(PathBuf),
    /// Takes, changes or releases a lock.
    Lock(PathBuf),
    /// Says something over a socket.
    Send(Vec<u8>),
    /// Starts, changes or ends a process or a thread.
    Process,
}

impl Call {
    /// Whether a file system that is full, or broken, would fail it.
    pub fn writes_files(&self) -> bool {
        matches!(
            self.what,
            What::Create(_)
                | What::Write(..)
                | What::Sync(_)
                | What::Rename(..)
                | What::Unlink(_)
                | What::Mkdir(_)
        )
    }

    /// For reports: the name, and the last two parts of the path.
    pub fn describe(&self) -> String {
        let short = |path: &Path| {
            let parts: Vec<_> = path.iter().rev().take(2).collect();
            let parts: Vec<_> = parts
                .iter()
                .rev()
                .map(|part| part.to_string_lossy())
                .collect();
            parts.join("/")
        };
        match &self.what {
            What::Create(path)
            | What::Write(path, _)
            | What::Sync(path)
            | What::Unlink(path)
            | What::Mkdir(path)
            | What::Lock(path) => format!("{} {}", self.name, short(path)),
            What::Rename(from, to) => format!("{} {} {}", self.name, short(from), short(to)),
            What::Send(_) | What::Process => self.name.to_owned(),
        }
    }
}

/// The most bytes of a message that are looked at.
const MAX_BYTES: usize = 64 * 1024;

/// Decodes the call that a stopped thread is about to make; `None` for one that changes nothing.
pub fn decode(pid: Pid, regs: &libc::user_regs_struct) -> Option<Call> {
    let number = i64::try_from(regs.orig_rax).ok()?;
    let (a, b, c, d) = (regs.rdi, regs.rsi, regs.rdx, regs.r10);
    let process = |name| {
        Some(Call {
            name,
            what: What::Process,
        })
    };
    let call = |name, what: Option<What>| what.map(|what| Call { name, what });
    match number {
        libc::SYS_open => call("open", create(pid, libc::AT_FDCWD as u64, a, b)),
        libc::SYS_openat => call("openat", create(pid, a, b, c)),
        libc::SYS_openat2 => {
            let flags = u64::from_ne_bytes(memory(pid, c, 8).ok()?.try_into().ok()?);
            call("openat2", create(pid, a, b, flags))
        }
        libc::SYS_write => call("write", write(pid, a, b, c)),
        libc::SYS_fsync => call("fsync", Some(What::Sync(path_of(pid, a)?))),
        libc::SYS_fdatasync => call("fdatasync", Some(What::Sync(path_of(pid, a)?))),
        libc::SYS_rename => {
            let here = libc::AT_FDCWD as u64;
            call(
                "rename",
                Some(What::Rename(path_at(pid, here, a)?, path_at(pid, here, b)?)),
            )
        }
        libc::SYS_renameat2 => call(
            "renameat2",
            Some(What::Rename(path_at(pid, a, b)?, path_at(pid, c, d)?)),
        ),
        libc::SYS_unlinkat => call("unlinkat", Some(What::Unlink(path_at(pid, a, b)?))),
        libc::SYS_mkdirat => call("mkdirat", Some(What::Mkdir(path_at(pid, a, b)?))),
        libc::SYS_fcntl if [libc::F_OFD_SETLK as u64, libc::F_SETLK as u64].contains(&b) => {
            call("fcntl", Some(What::Lock(path_of(pid, a)?)))
        }
        // The end of a lock, or of the socket by whose end the other side knows something.
        libc::SYS_close => {
            let path = path_of(pid, a)?;
            let name = path.to_string_lossy();
            let tells = name.contains("/locks/") || name.starts_with("socket:");
            call("close", tells.then_some(What::Lock(path)))
        }
        libc::SYS_sendto => call("sendto", Some(What::Send(memory(pid, b, limit(c)).ok()?))),
        libc::SYS_sendmsg => call("sendmsg", Some(What::Send(message(pid, b)?))),
        libc::SYS_shutdown => process("shutdown"),
        libc::SYS_connect => process("connect"),
        libc::SYS_clone => process("clone"),
        libc::SYS_clone3 => process("clone3"),
        libc::SYS_fork => process("fork"),
        libc::SYS_vfork => process("vfork"),
        libc::SYS_execve => process("execve"),
        libc::SYS_kill => process("kill"),
        libc::SYS_tgkill => process("tgkill"),
        libc::SYS_setsid => process("setsid"),
        libc::SYS_exit => process("exit"),
        libc::SYS_exit_group => process("exit_group"),
        _ => None,
    }
}

fn limit(length: u64) -> usize {
    usize::try_from(length).map_or(MAX_BYTES, |length| length.min(MAX_BYTES))
}

fn create(pid: Pid, directory: u64, name: u64, flags: u64) -> Option<What> {
    let creates = flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
    creates.then(|| path_at(pid, directory, name).map(What::Create))?
}

fn write(pid: Pid, fd: u64, address: u64, length: u64) -> Option<What> {
    let path = path_of(pid, fd)?;
    let bytes = memory(pid, address, limit(length)).ok()?;
    let name = path.to_string_lossy();
    if name.starts_with("socket:") {
        return Some(What::Send(bytes));
    }
    // Neither a pipe, an eventfd nor a terminal is a file.
    (name.starts_with('/') && !name.starts_with("/dev/")).then_some(What::Write(path, bytes))
}

/// The bytes of a message's first part.
fn message(pid: Pid, header: u64) -> Option<Vec<u8>> {
    let word = |address| {
        Some(u64::from_ne_bytes(
            memory(pid, address, 8).ok()?.try_into().ok()?,
        ))
    };
    // struct msghdr: name, namelen, iov at 16; struct iovec: base, len.
    let iov = word(header + 16)?;
    memory(pid, word(iov)?, limit(word(iov + 8)?)).ok()
}

fn path_of(pid: Pid, fd: u64) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/fd/{}", fd as i32)).ok()
}

fn path_at(pid: Pid, directory: u64, name: u64) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    // Byte by byte, for the string may end where the memory does.
    while bytes.len() < 4096 {
        let byte = memory(pid, name + bytes.len() as u64, 1).ok()?[0];
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    let name = PathBuf::from(String::from_utf8(bytes).ok()?);
    if name.is_absolute() {
        return Some(name);
    }
    let holder = match directory as i32 {
        libc::AT_FDCWD => std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?,
        fd => path_of(pid, fd as u64)?,
    };
    Some(holder.join(name))
}
