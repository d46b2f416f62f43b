//! What a power cut may leave of a store, from the record of an unharmed run.
//!
//! The medium is the one of docs/durability.md: a file's content is safe from its `fsync` on, a name from that of
//! its directory. Before, each change of a name may be there or not, whatever became of the others, and the content of
//! a file may be all, half, or nothing of what was written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::syscall::What;

/// Of more states after one operation than this, a sample is taken.
pub const MAX_STATES: usize = 256;

type Ino = usize;

#[derive(Debug, Clone)]
enum Node {
    Dir {
        /// Names that a power cut keeps.
        safe: BTreeMap<String, Ino>,
        /// Changes since.
        pending: Vec<Change>,
    },
    File {
        content: Vec<u8>,
        /// How much of it a power cut keeps for sure; `None` if all.
        unsynced: bool,
    },
}

#[derive(Debug, Clone)]
enum Change {
    Set(String, Ino),
    Del(String),
    Move(String, String, Ino),
}

/// A file system as programs see it, with what is not safe yet.
#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
    nodes: Vec<Node>,
}

/// What a power cut left: every directory, and every file with its content.
pub type Left = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Disk {
    /// These files and directories below `root` as they are, all of it safe.
    pub fn read(root: &Path, names: &[&str]) -> Result<Self> {
        let mut disk = Disk {
            root: root.to_owned(),
            nodes: vec![Node::Dir {
                safe: BTreeMap::new(),
                pending: Vec::new(),
            }],
        };
        for name in names {
            let ino = disk.load(&root.join(name))?;
            if let Node::Dir { safe, .. } = &mut disk.nodes[0] {
                safe.insert((*name).to_owned(), ino);
            }
        }
        Ok(disk)
    }

    fn load(&mut self, path: &Path) -> Result<Ino> {
        let ino = self.nodes.len();
        if path.is_dir() {
            self.nodes.push(Node::Dir {
                safe: BTreeMap::new(),
                pending: Vec::new(),
            });
            let mut names = BTreeMap::new();
            for entry in fs::read_dir(path).context("cannot list")? {
                let entry = entry.context("cannot list")?;
                let name = entry.file_name().to_string_lossy().into_owned();
                names.insert(name, self.load(&entry.path())?);
            }
            if let Node::Dir { safe, .. } = &mut self.nodes[ino] {
                *safe = names;
            }
        } else {
            let content = fs::read(path).context("cannot read")?;
            self.nodes.push(Node::File {
                content,
                unsynced: false,
            });
        }
        Ok(ino)
    }

    /// Takes an operation in. `false`: it is not about this directory, or changes nothing.
    pub fn apply(&mut self, what: &What) -> bool {
        match what {
            What::Create(path) => {
                if self.find(path).is_some() {
                    return false;
                }
                self.add(
                    path,
                    Node::File {
                        content: Vec::new(),
                        unsynced: true,
                    },
                )
            }
            What::Mkdir(path) => {
                if self.find(path).is_some() {
                    return false;
                }
                let empty = Node::Dir {
                    safe: BTreeMap::new(),
                    pending: Vec::new(),
                };
                self.add(path, empty)
            }
            What::Write(path, bytes) => match self.find(path) {
                Some(ino) => {
                    if let Node::File { content, unsynced } = &mut self.nodes[ino] {
                        content.extend_from_slice(bytes);
                        *unsynced = true;
                    }
                    true
                }
                None => false,
            },
            What::Sync(path) => match self.find(path) {
                Some(ino) => {
                    self.sync(ino);
                    true
                }
                None => false,
            },
            What::Rename(from, to) => {
                let (Some(ino), Some((from_dir, from_name)), Some((to_dir, to_name))) =
                    (self.find(from), self.holder(from), self.holder(to))
                else {
                    return false;
                };
                if from_dir == to_dir {
                    self.change(from_dir, Change::Move(from_name, to_name, ino));
                } else {
                    self.change(from_dir, Change::Del(from_name));
                    self.change(to_dir, Change::Set(to_name, ino));
                }
                true
            }
            What::Unlink(path) => match (self.find(path), self.holder(path)) {
                (Some(_), Some((dir, name))) => {
                    self.change(dir, Change::Del(name));
                    true
                }
                _ => false,
            },
            What::Lock(_) | What::Send(_) | What::Process => false,
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> bool {
        let Some((dir, name)) = self.holder(path) else {
            return false;
        };
        self.nodes.push(node);
        let ino = self.nodes.len() - 1;
        self.change(dir, Change::Set(name, ino));
        true
    }

    fn change(&mut self, dir: Ino, change: Change) {
        if let Node::Dir { pending, .. } = &mut self.nodes[dir] {
            pending.push(change);
        }
    }

    fn sync(&mut self, ino: Ino) {
        match &mut self.nodes[ino] {
            Node::Dir { safe, pending } => {
                for change in pending.drain(..) {
                    apply(safe, &change);
                }
            }
            Node::File { unsynced, .. } => *unsynced = false,
        }
    }

    fn find(&self, path: &Path) -> Option<Ino> {
        let mut at = 0;
        for part in path.strip_prefix(&self.root).ok()? {
            let Node::Dir { safe, pending } = &self.nodes[at] else {
                return None;
            };
            let mut names = safe.clone();
            for change in pending {
                apply(&mut names, change);
            }
            at = *names.get(part.to_str()?)?;
        }
        Some(at)
    }

    fn holder(&self, path: &Path) -> Option<(Ino, String)> {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((self.find(path.parent()?)?, name))
    }

    /// Everything that a power cut may leave now; at most [`MAX_STATES`], chosen by `seed` if there are more.
    /// Gives also whether that is all.
    pub fn cuts(&self, seed: u64) -> (Vec<Left>, bool) {
        // Each choice: one pending change kept or not, or how much of an unsynced file is there.
        let mut ways: Vec<usize> = Vec::new();
        for node in &self.nodes {
            match node {
                Node::Dir { pending, .. } => ways.extend(pending.iter().map(|_| 2)),
                Node::File { unsynced: true, .. } => ways.push(3),
                Node::File { .. } => {}
            }
        }
        let all = ways
            .iter()
            .try_fold(1usize, |all, ways| all.checked_mul(*ways))
            .unwrap_or(usize::MAX);
        let count = all.min(MAX_STATES);
        let mut random = seed | 1;
        let states = (0..count).map(|n| {
            let mut number = n;
            if all > MAX_STATES && n >= 2 {
                // xorshift64: the first two, everything lost and everything kept, are always tried.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                number = random as usize;
            }
            let choices = ways.iter().map(|ways| {
                if all > MAX_STATES && n == 1 {
                    return ways - 1;
                }
                let choice = number % ways;
                number /= ways;
                choice
            });
            self.left(&choices.collect::<Vec<_>>())
        });
        (states.collect(), all <= MAX_STATES)
    }

    fn left(&self, choices: &[usize]) -> Left {
        let mut choices = choices.iter().copied();
        let mut next = || choices.next().unwrap_or(0);
        let kept: Vec<Node> = self
            .nodes
            .iter()
            .map(|node| match node {
                Node::Dir { safe, pending } => {
                    let mut safe = safe.clone();
                    for change in pending {
                        if next() == 1 {
                            apply(&mut safe, change);
                        }
                    }
                    Node::Dir {
                        safe,
                        pending: Vec::new(),
                    }
                }
                Node::File { content, unsynced } => {
                    let length = match unsynced.then(&mut next) {
                        Some(0) => 0,
                        Some(1) => content.len() / 2,
                        _ => content.len(),
                    };
                    Node::File {
                        content: content[..length].to_vec(),
                        unsynced: false,
                    }
                }
            })
            .collect();
        let mut left = Left::new();
        collect(&kept, 0, &PathBuf::new(), &mut left);
        left
    }
}

fn apply(names: &mut BTreeMap<String, Ino>, change: &Change) {
    match change {
        Change::Set(name, ino) => {
            names.insert(name.clone(), *ino);
        }
        Change::Del(name) => {
            names.remove(name);
        }
        Change::Move(from, to, ino) => {
            names.remove(from);
            names.insert(to.clone(), *ino);
        }
    }
}

fn collect(nodes: &[Node], at: Ino, path: &Path, left: &mut Left) {
    match &nodes[at] {
        Node::Dir { safe, .. } => {
            left.insert(path.to_owned(), None);
            for (name, ino) in safe {
                collect(nodes, *ino, &path.join(name), left);
            }
        }
        Node::File { content, .. } => {
            left.insert(path.to_owned(), Some(content.clone()));
        }
    }
}

/// Makes what a power cut left below `root`, which is there.
pub fn make(left: &Left, root: &Path) -> Result<()> {
    for (path, content) in left {
        let path = root.join(path);
        match content {
            None if path.exists() => {}
            None => fs::DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .with_context(|| format!("cannot make {}", path.display()))?,
            Some(content) => {
                fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
                fs::write(&path, content).context("cannot write")?;
                let mode = fs::Permissions::from_mode(0o600);
                fs::set_permissions(&path, mode).context("cannot set a mode")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, Disk) {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = Disk::read(directory.path(), &[]).expect("readable");
        (directory, disk)
    }

    #[test]
    fn a_renamed_file_may_be_lost_torn_or_whole_until_both_syncs() {
        let (directory, mut disk) = disk();
        let at = |name: &str| directory.path().join(name);
        assert!(disk.apply(&What::Create(at("new"))));
        assert!(disk.apply(&What::Write(at("new"), b"1234".to_vec())));
        assert!(disk.apply(&What::Rename(at("new"), at("name"))));
        let contents = |disk: &Disk| {
            let (states, all) = disk.cuts(1);
            assert!(all);
            let mut found: Vec<Option<Vec<u8>>> = states
                .into_iter()
                .map(|left| left.get(Path::new("name")).cloned().flatten())
                .collect();
            found.sort();
            found.dedup();
            found
        };
        let torn = [
            None,
            Some(b"".to_vec()),
            Some(b"12".to_vec()),
            Some(b"1234".to_vec()),
        ];
        assert_eq!(contents(&disk), torn);
        assert!(disk.apply(&What::Sync(at("name"))));
        assert_eq!(contents(&disk), [None, Some(b"1234".to_vec())]);
        assert!(disk.apply(&What::Sync(directory.path().to_owned())));
        assert_eq!(contents(&disk), [Some(b"1234".to_vec())]);
    }

    #[test]
    fn a_deleted_name_may_come_back_until_its_directory_is_synced() {
        let (directory, _) = disk();
        let path = directory.path().join("name");
        fs::write(&path, "x").expect("written");
        let mut disk = Disk::read(directory.path(), &["name"]).expect("readable");
        assert!(disk.apply(&What::Unlink(path)));
        assert_eq!(disk.cuts(1).0.len(), 2);
        assert!(disk.apply(&What::Sync(directory.path().to_owned())));
        assert_eq!(disk.cuts(1).0.len(), 1);
    }
}
