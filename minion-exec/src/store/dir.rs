//! One directory of the store, held by a descriptor.
//!
//! # private-storage
//! Nothing here is opened by a path that another user could redirect. The store's own path is resolved
//! without following any symlink, and every directory above it must be root's or ours and writable by
//! nobody else, unless it is sticky. Everything below is opened relative to a held descriptor, by one name,
//! beneath it. What was opened is then looked at (`fstat`), never what a path said before: a directory must
//! be ours with mode 0700, a file ours, regular, with mode 0600 and one link. Anything else is an error that
//! names it, and is left as it is.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use gw_wire::id::Token;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawMode, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::StoreError;
use super::step::step;

/// How names below a held directory are resolved.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Where new files are written before they get their name. A crash may leave such a file; nothing reads
/// it, and an operator may delete it.
const NEW_PREFIX: &str = ".new-";

/// Whether a file that must not replace another came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It did, and it is durable.
    New,
    /// Another file has the name.
    Exists,
}

/// A directory that passed the checks of **private-storage**.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens the store's directory at an absolute path. It and its parent are made (0700) if absent; that
    /// becomes durable by [`Dir::sync_root`].
    pub fn open_root(path: &Path) -> Result<Self, StoreError> {
        if !path.is_absolute() {
            return Err(StoreError::Unsafe {
                path: path.to_owned(),
                rule: "an absolute path",
            });
        }
        check_ancestors(path)?;
        let ancestors: Vec<&Path> = path.ancestors().take(2).collect();
        for missing in ancestors.into_iter().rev() {
            match open_absolute(missing, DIRECTORY) {
                Err(Errno::NOENT) => make_dir(fs::CWD, missing.as_os_str(), missing)?,
                Ok(_) => {}
                Err(source) => return Err(StoreError::io("open", missing, source)),
            }
        }
        Self::open_existing(path)
    }

    /// Opens the store's directory, which must be there.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        let fd = open_absolute(path, DIRECTORY)
            .map_err(|source| StoreError::io("open", path, source))?;
        Self::checked(fd, path.to_owned())
    }

    /// Makes the names of the store's directory and of its parent durable, whoever made them.
    pub fn sync_root(&self) -> Result<(), StoreError> {
        self.sync()?;
        for holder in self.path.ancestors().skip(1).take(2) {
            let error = |source| StoreError::io("sync", holder, source);
            let fd = open_absolute(holder, DIRECTORY).map_err(error)?;
            fs::fsync(fd).map_err(error)?;
        }
        Ok(())
    }

    /// Opens a directory below this one, which must be there.
    pub fn subdir(&self, name: &str) -> Result<Self, StoreError> {
        let path = self.path.join(name);
        match fs::openat2(&self.fd, name, DIRECTORY, Mode::empty(), BENEATH) {
            Ok(fd) => Self::checked(fd, path),
            Err(Errno::NOENT) => Err(StoreError::Unsafe {
                path,
                rule: "a directory that stays in place",
            }),
            Err(source) => Err(StoreError::io("open", &path, source)),
        }
    }

    /// The same, made (0700) if absent. Its name becomes durable by [`Dir::sync_root`].
    pub fn make_subdir(&self, name: &str) -> Result<Self, StoreError> {
        make_dir(self.fd.as_fd(), OsStr::new(name), &self.path.join(name))?;
        let dir = self.subdir(name)?;
        dir.sync()?;
        Ok(dir)
    }

    fn checked(fd: OwnedFd, path: PathBuf) -> Result<Self, StoreError> {
        let stat = fs::fstat(&fd).map_err(|source| StoreError::io("examine", &path, source))?;
        check(&stat, FileType::Directory, 0o700, &path)?;
        Ok(Dir { fd, path })
    }

    /// The whole file called `name`, at most `limit` bytes; `None` if there is none.
    ///
    /// File and directory are synced before the content is given out: its writer may have died between
    /// naming it and syncing the directory, and an answer must not rest on what a power cut can undo.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((content, file)) = self.read_file(name, limit)? else {
            return Ok(None);
        };
        let path = self.path.join(name);
        fs::fsync(&file).map_err(|source| StoreError::io("sync", &path, source))?;
        self.sync()?;
        Ok(Some(content))
    }

    /// Like [`Dir::read`] without the sync, for content that no answer rests on.
    pub fn peek(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read_file(name, limit)?.map(|(content, _)| content))
    }

    fn read_file(
        &self,
        name: &str,
        limit: usize,
    ) -> Result<Option<(Vec<u8>, std::fs::File)>, StoreError> {
        let path = self.path.join(name);
        step();
        let Some(fd) = self.open_file(name, OFlags::RDONLY)? else {
            return Ok(None);
        };
        let size = fs::fstat(&fd)
            .map_err(|source| StoreError::io("examine", &path, source))?
            .st_size;
        if usize::try_from(size).is_ok_and(|size| size > limit) {
            return Err(StoreError::TooLong { path, limit });
        }
        let file = std::fs::File::from(fd);
        let content = read_whole(&file, &path, limit)?;
        Ok(Some((content, file)))
    }

    /// Writes a file that must be the first of its name, and makes it durable.
    ///
    /// Of several writers of one name exactly one gets [`Created::New`]. After an error the file may or may
    /// not have its name; whoever reads it later syncs it.
    pub fn create(&self, name: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.write(name, content, RenameFlags::NOREPLACE)
    }

    /// Writes a file in the place of what has its name now, durably. For the one file that changes, by
    /// whoever holds the index lock. After an error, and after a crash, one of the two has the name, whole.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        self.write(name, content, RenameFlags::empty()).map(drop)
    }

    /// Deletes a file, durably; it may be gone already.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        step();
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.sync(),
            Err(source) => Err(StoreError::io("delete", &self.path.join(name), source)),
        }
    }

    fn write(&self, name: &str, content: &[u8], flags: RenameFlags) -> Result<Created, StoreError> {
        let path = self.path.join(name);
        let temporary = format!("{NEW_PREFIX}{}", Token::random());
        let result = self.write_and_name(&temporary, name, content, &path, flags);
        if !matches!(result, Ok(Created::New)) {
            // Best effort: a file under a temporary name means nothing to anyone.
            let _left = fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        result
    }

    fn write_and_name(
        &self,
        temporary: &str,
        name: &str,
        content: &[u8],
        path: &Path,
        flags: RenameFlags,
    ) -> Result<Created, StoreError> {
        // A crash up to the rename leaves at most an unread file under a temporary name.
        let fd = fs::openat2(
            &self.fd,
            temporary,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
            BENEATH,
        )
        .map_err(|source| StoreError::io("create", path, source))?;
        let mut file = std::fs::File::from(fd);
        file.write_all(content).map_err(|source| StoreError::Io {
            what: "write",
            path: path.to_owned(),
            source,
        })?;
        // The content is durable before its name: no name ever leads to a torn file.
        fs::fsync(&file).map_err(|source| StoreError::io("sync", path, source))?;
        // A crash here leaves the file under its name, or not, whole either way; a power cut may undo
        // the rename until the directory is synced.
        step();
        match fs::renameat_with(&self.fd, temporary, &self.fd, name, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(Created::Exists),
            Err(source) => return Err(StoreError::io("name", path, source)),
        }
        // From here on the file is there after every crash and power cut.
        self.sync()?;
        Ok(Created::New)
    }

    /// The names in this directory, in no order, without those of unfinished files.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.all_names()?;
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    /// How many unfinished files there are: those being written just now, and what a crash left.
    pub fn unfinished(&self) -> Result<usize, StoreError> {
        let names = self.all_names()?;
        Ok(names
            .iter()
            .filter(|name| name.starts_with(NEW_PREFIX))
            .count())
    }

    fn all_names(&self) -> Result<Vec<String>, StoreError> {
        let error = |source| StoreError::io("list", &self.path, source);
        step();
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Opens a lock file for reading and writing; with `create` it is made (empty, 0600) if absent.
    pub fn open_lock(&self, name: &str, create: bool) -> Result<Option<OwnedFd>, StoreError> {
        let flags = if create {
            OFlags::RDWR | OFlags::CREATE
        } else {
            OFlags::RDWR
        };
        self.open_file(name, flags)
    }

    /// Whether `fd` still is the file that `name` leads to.
    pub fn is_named(&self, name: &str, fd: BorrowedFd<'_>) -> Result<bool, StoreError> {
        let path = self.path.join(name);
        let error = |source| StoreError::io("examine", &path, source);
        let held = fs::fstat(fd).map_err(error)?;
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(source) => Err(error(source)),
        }
    }

    /// The path of a name, for messages only.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<Option<OwnedFd>, StoreError> {
        let path = self.path.join(name);
        // O_NONBLOCK: a FIFO in the place of a file must not stop us before it is looked at.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::empty()
        };
        let fd = match fs::openat2(&self.fd, name, flags, mode, BENEATH) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => {
                return Err(StoreError::Unsafe {
                    path,
                    rule: "a file, not a symbolic link",
                });
            }
            Err(source) => return Err(StoreError::io("open", &path, source)),
        };
        let stat = fs::fstat(&fd).map_err(|source| StoreError::io("examine", &path, source))?;
        check(&stat, FileType::RegularFile, 0o600, &path)?;
        if stat.st_nlink != 1 {
            return Err(StoreError::Unsafe {
                path,
                rule: "a file with one link",
            });
        }
        Ok(Some(fd))
    }

    /// Makes every name in this directory durable, and every deletion.
    pub fn sync(&self) -> Result<(), StoreError> {
        fs::fsync(&self.fd).map_err(|source| StoreError::io("sync", &self.path, source))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn open_absolute(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    fs::openat2(fs::CWD, path, flags, Mode::empty(), resolve)
}

/// The whole of a small file outside the store that must be as trustworthy as the store: reached without a
/// symlink, root's or ours, regular, with one link, and writable, as every directory above it, by nobody else.
/// `None` if there is none.
pub fn read_foreign(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
    let refuse = |rule| {
        Err(StoreError::Unsafe {
            path: path.to_owned(),
            rule,
        })
    };
    if !path.is_absolute() {
        return refuse("an absolute path");
    }
    check_ancestors(path)?;
    // O_NONBLOCK: a FIFO in the place of a file must not stop us before it is looked at.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match open_absolute(path, flags) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return refuse("a file, not a symbolic link"),
        Err(source) => return Err(StoreError::io("open", path, source)),
    };
    let stat = fs::fstat(&fd).map_err(|source| StoreError::io("examine", path, source))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("a regular file");
    }
    if !is_ours_or_roots(&stat) {
        return refuse("owned by root or the user that the executor runs as");
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return refuse("writable by nobody else than its owner");
    }
    if stat.st_nlink != 1 {
        return refuse("a file with one link");
    }
    read_whole(&std::fs::File::from(fd), path, limit).map(Some)
}

/// All that is in a file, unless it is over the limit.
fn read_whole(file: &std::fs::File, path: &Path, limit: usize) -> Result<Vec<u8>, StoreError> {
    let mut content = Vec::new();
    file.take(limit as u64 + 1)
        .read_to_end(&mut content)
        .map_err(|source| StoreError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        })?;
    if content.len() > limit {
        return Err(StoreError::TooLong {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(content)
}

fn is_ours_or_roots(stat: &Stat) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid)
}

/// Makes a directory, or finds that another process has just made it.
fn make_dir(holder: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), StoreError> {
    match fs::mkdirat(holder, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(source) => Err(StoreError::io("make", path, source)),
    }
}

/// Nobody but root and us may be able to move the store away. From the top down: what was found good above
/// keeps what is below from being replaced.
fn check_ancestors(path: &Path) -> Result<(), StoreError> {
    let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
    ancestors.reverse();
    for ancestor in ancestors {
        let fd = match open_absolute(ancestor, DIRECTORY | OFlags::PATH) {
            Ok(fd) => fd,
            // We make it, or fail to.
            Err(Errno::NOENT) => return Ok(()),
            Err(source) => return Err(StoreError::io("open", ancestor, source)),
        };
        let stat = fs::fstat(fd).map_err(|source| StoreError::io("examine", ancestor, source))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        // In a sticky directory others can neither rename nor delete what is not theirs.
        let shared = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
        if !is_ours_or_roots(&stat) || shared {
            return Err(StoreError::Unsafe {
                path: ancestor.to_owned(),
                rule: "changeable by nobody but root and the user that the executor runs as",
            });
        }
    }
    Ok(())
}

fn check(stat: &Stat, kind: FileType, mode: RawMode, path: &Path) -> Result<(), StoreError> {
    let rule = if FileType::from_raw_mode(stat.st_mode) != kind {
        match kind {
            FileType::Directory => "a directory",
            _ => "a regular file",
        }
    } else if stat.st_uid != rustix::process::geteuid().as_raw() {
        "owned by the user that the executor runs as"
    } else if stat.st_mode & 0o7777 != mode {
        match kind {
            FileType::Directory => "of mode 0700",
            _ => "of mode 0600",
        }
    } else {
        return Ok(());
    };
    Err(StoreError::Unsafe {
        path: path.to_owned(),
        rule,
    })
}

impl StoreError {
    pub(super) fn io(what: &'static str, path: &Path, source: Errno) -> Self {
        StoreError::Io {
            what,
            path: path.to_owned(),
            source: io::Error::from(source),
        }
    }
}
