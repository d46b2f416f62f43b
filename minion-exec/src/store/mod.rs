//! The receipt store: what this minion has claimed, refused and finished.
//!
//! | below the store | what | made by |
//! |---|---|---|
//! | `store.json` | the store's identity; the one file that changes | the first executor that opens it |
//! | `jids/<jid>.json` | claim or tombstone: one file per jid, two values | [`Store::claim`], [`Store::refuse`] |
//! | `requests/<request id>.json` | the running record, kept for ever | [`Store::claim`] |
//! | `reasons/<request id>.json` | why a receipt says `unknown` | [`Claim::commit`] |
//! | `receipts/<request id>.json` | protocol 1's nine fields | [`Claim::commit`] |
//! | `confirmed/<jid>.json` | that the gateway has the job's end | [`Store::confirm`] |
//! | `locks/*` | `execution`, `index`, `request-<request id>` | [`lock`] |
//!
//! Every file but the locks and `store.json` is written once and never changed. Its name appears only after
//! its content is durable ([`dir::Dir::create`]) and never replaces another. A file that cannot be trusted or
//! read is an error for the operator: it is named, left alone, and nothing runs on its account. Only
//! [`retention`] deletes, and nothing that anybody still needs.

pub mod audit;
pub mod chain;
pub mod claims;
pub mod dir;
pub mod lock;
pub mod machine;
pub mod records;
pub mod retention;
mod step;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gw_wire::id::{Jid, RequestId, Sha256Hex, Token};
use gw_wire::receipt::{MAX_RECEIPT_BYTES, Receipt, ReceiptError};
use gw_wire::reply::{NotClaimedReason, UnknownReason};

pub use claims::{Claim, ClaimOutcome, Settled};
use dir::Dir;
use lock::{EXECUTION, INDEX, Lock};
use machine::Machine;
use records::{
    Claimed, Identity, JidRecord, Linked, MAX_RECORD_BYTES, RecordError, Why, decode, encode,
};

/// The file with the store's identity.
const IDENTITY: &str = "store.json";
/// The directories below the store.
const DIRECTORIES: [&str; 6] = [
    "jids",
    "requests",
    "reasons",
    "receipts",
    "confirmed",
    "locks",
];
/// How long a change of the index waits for another one.
const INDEX_PATIENCE: Duration = Duration::from_secs(10);

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// **private-storage** does not hold.
    #[error("{path} must be {rule}")]
    Unsafe {
        /// The file or directory.
        path: PathBuf,
        /// What it must be.
        rule: &'static str,
    },
    /// Too long to be ours.
    #[error("{path} is over the limit of {limit} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// In bytes.
        limit: usize,
    },
    /// No record of ours.
    #[error("{path} is damaged or foreign, and was left alone")]
    Record {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: RecordError,
    },
    /// No receipt.
    #[error("{path} is damaged or foreign, and was left alone")]
    Receipt {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReceiptError,
    },
    /// A record under a name that is not its own.
    #[error("{path} holds the record of another job, and was left alone")]
    Misplaced {
        /// The file.
        path: PathBuf,
    },
}

impl StoreError {
    /// What it is about.
    pub fn path(&self) -> &Path {
        match self {
            StoreError::Io { path, .. }
            | StoreError::Unsafe { path, .. }
            | StoreError::TooLong { path, .. }
            | StoreError::Record { path, .. }
            | StoreError::Receipt { path, .. }
            | StoreError::Misplaced { path } => path,
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    root: Dir,
    jids: Dir,
    requests: Dir,
    reasons: Dir,
    receipts: Dir,
    confirmed: Dir,
    locks: Dir,
    machine: Machine,
}

impl Store {
    /// Opens the store; where there is none, makes one for `machine`.
    ///
    /// `store.json` is the point from which on there is a store: it gets its name when all directories are
    /// durable, and before the first record. If it is there, a directory that is not was lost, and with it
    /// perhaps the claim of a job that would run again: that is an error, and nothing is made anew.
    pub fn open(path: &Path, machine: Machine) -> Result<Self, StoreError> {
        let root = Dir::open_root(path)?;
        while root.read(IDENTITY, MAX_RECORD_BYTES)?.is_none() {
            Self::make(&root, &machine)?;
        }
        Self::opened(root, machine)
    }

    /// Opens a store that must be there, to look at it.
    pub fn open_existing(path: &Path, machine: Machine) -> Result<Self, StoreError> {
        Self::opened(Dir::open_existing(path)?, machine)
    }

    fn opened(root: Dir, machine: Machine) -> Result<Self, StoreError> {
        let store = Store {
            jids: root.subdir("jids")?,
            requests: root.subdir("requests")?,
            reasons: root.subdir("reasons")?,
            receipts: root.subdir("receipts")?,
            confirmed: root.subdir("confirmed")?,
            locks: root.subdir("locks")?,
            root,
            machine,
        };
        store.identity()?;
        Ok(store)
    }

    /// Makes a store, or finds that another executor has just made it. A crash before the last step leaves
    /// directories without records, which the next one takes over.
    fn make(root: &Dir, machine: &Machine) -> Result<(), StoreError> {
        for name in DIRECTORIES {
            let made = root.make_subdir(name)?;
            if !made.names()?.is_empty() && root.peek(IDENTITY, MAX_RECORD_BYTES)?.is_none() {
                return Err(StoreError::Unsafe {
                    path: root.path_of(IDENTITY),
                    rule: "a file that stays in place",
                });
            }
        }
        root.sync_root()?;
        let id = Token::random();
        let identity = Identity {
            id,
            genesis: Sha256Hex::of(id.as_str().as_bytes()),
            machine: machine.clone(),
            renewed: false,
            pruned_below: None,
        };
        root.create(IDENTITY, &encode(identity)).map(drop)
    }

    /// The store's identity as it is now. It holds for as long as the index lock is held.
    pub fn identity(&self) -> Result<Identity, StoreError> {
        let json = self
            .root
            .read(IDENTITY, MAX_RECORD_BYTES)?
            .ok_or(StoreError::Unsafe {
                path: self.root.path_of(IDENTITY),
                rule: "a file that stays in place",
            })?;
        read_record(&self.root, IDENTITY, &json)
    }

    /// Why what this store does not hold proves nothing, and nothing may run on its account; `None` if it is
    /// to be trusted.
    pub fn distrust(&self, identity: &Identity) -> Option<NotClaimedReason> {
        if identity.machine != self.machine {
            return Some(NotClaimedReason::Machine);
        }
        identity.renewed.then_some(NotClaimedReason::StoreChanged)
    }

    fn lock_index(&self) -> Result<Lock, StoreError> {
        Lock::take(&self.locks, INDEX, INDEX_PATIENCE)
    }

    /// What the jid came to, durably; `None` if nothing is known of it.
    pub fn jid(&self, jid: Jid) -> Result<Option<JidRecord>, StoreError> {
        let name = json_name(jid.as_str());
        match self.jids.read(&name, MAX_RECORD_BYTES)? {
            Some(json) => {
                let linked = self.jid_record(jid, &name, &json)?;
                Ok(Some(linked.jid_record))
            }
            None => Ok(None),
        }
    }

    /// The running record of the request.
    pub fn request(&self, request: RequestId) -> Result<Option<Claimed>, StoreError> {
        let name = json_name(request.as_str());
        let Some(json) = self.requests.read(&name, MAX_RECORD_BYTES)? else {
            return Ok(None);
        };
        let claimed: Claimed = read_record(&self.requests, &name, &json)?;
        if claimed.binding.request_id != request {
            let path = self.requests.path_of(&name);
            return Err(StoreError::Misplaced { path });
        }
        Ok(Some(claimed))
    }

    /// The receipt of the request, durably.
    pub fn receipt(&self, request: RequestId) -> Result<Option<Receipt>, StoreError> {
        let name = json_name(request.as_str());
        let Some(json) = self.receipts.read(&name, MAX_RECEIPT_BYTES)? else {
            return Ok(None);
        };
        let path = self.receipts.path_of(&name);
        let receipt = match Receipt::from_json(&json) {
            Ok(receipt) => receipt,
            Err(source) => return Err(StoreError::Receipt { path, source }),
        };
        if receipt.binding().request_id != request {
            return Err(StoreError::Misplaced { path });
        }
        Ok(Some(receipt))
    }

    /// Why the request's receipt says `unknown`.
    pub fn reason(&self, request: RequestId) -> Result<Option<UnknownReason>, StoreError> {
        let name = json_name(request.as_str());
        match self.reasons.read(&name, MAX_RECORD_BYTES)? {
            Some(json) => {
                let why: Why = read_record(&self.reasons, &name, &json)?;
                Ok(Some(why.reason))
            }
            None => Ok(None),
        }
    }

    /// Takes the lock of the one managed apply; `None` if one is running.
    pub fn lock_execution(&self) -> Result<Option<Lock>, StoreError> {
        Lock::try_take(&self.locks, EXECUTION)
    }

    /// Takes the lock of one request; `None` if its executor or worker lives.
    pub fn lock_request(&self, request: RequestId) -> Result<Option<Lock>, StoreError> {
        Lock::try_take(&self.locks, &request_lock(request))
    }

    /// Whether the request's executor or worker lives.
    pub fn is_running(&self, request: RequestId) -> Result<bool, StoreError> {
        Lock::is_held(&self.locks, &request_lock(request))
    }

    fn jid_record(&self, jid: Jid, name: &str, json: &[u8]) -> Result<Linked, StoreError> {
        let linked: Linked = read_record(&self.jids, name, json)?;
        if linked.jid_record.binding().jid != jid {
            let path = self.jids.path_of(name);
            return Err(StoreError::Misplaced { path });
        }
        Ok(linked)
    }
}

fn read_record<T: serde::de::DeserializeOwned>(
    dir: &Dir,
    name: &str,
    json: &[u8],
) -> Result<T, StoreError> {
    decode(json).map_err(|source| StoreError::Record {
        path: dir.path_of(name),
        source,
    })
}

fn json_name(stem: &str) -> String {
    format!("{stem}.json")
}

fn request_lock(request: RequestId) -> String {
    format!("request-{request}")
}

fn jid_of(name: &str) -> Option<Jid> {
    Jid::parse(name.strip_suffix(".json")?).ok()
}

#[cfg(test)]
mod tests;
