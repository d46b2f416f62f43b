//! The receipt store: what this minion has claimed, refused and finished.
//!
//! | below the store | what | made by |
//! |---|---|---|
//! | `store.json` | the store's random id | the first executor that opens it |
//! | `jids/<jid>.json` | claim or tombstone: one file per jid, two values | [`Store::claim`], [`Store::refuse`] |
//! | `requests/<request id>.json` | the running record | [`Store::claim`] |
//! | `reasons/<request id>.json` | why a receipt says `unknown` | [`Claim::commit`] |
//! | `receipts/<request id>.json` | protocol 1's nine fields | [`Claim::commit`] |
//! | `locks/*` | `execution`, `index`, `request-<request id>` | [`lock`] |
//!
//! Every file but the locks is written once and never changed. Its name appears only after its content is
//! durable ([`dir::Dir::create`]) and never replaces another. A file that cannot be trusted or read is an
//! error for the operator: it is named, left alone, and nothing runs on its account.

pub mod dir;
pub mod lock;
pub mod records;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gw_wire::id::{Jid, RequestId, Token};
use gw_wire::receipt::{Binding, MAX_RECEIPT_BYTES, Outcome, Receipt, ReceiptError};
use gw_wire::reply::{RefusalReason, StorePosition, UnknownReason};

use dir::{Created, Dir};
use lock::{EXECUTION, INDEX, Lock};
use records::{
    Claimed, Identity, JidRecord, MAX_RECORD_BYTES, RecordError, Tombstone, Why, decode, encode,
};

/// The file with the store's id.
const IDENTITY: &str = "store.json";
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

/// What [`Store::claim`] came to.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// The job is ours to run, once.
    Claimed(Claim),
    /// The jid had a record already; nothing was changed.
    Known(JidRecord),
    /// The request was claimed before, or its earlier dispatches do not allow another.
    Conflict,
    /// It must be refused; nothing was changed.
    Refuse(RefusalReason),
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    jids: Dir,
    requests: Dir,
    reasons: Dir,
    receipts: Dir,
    locks: Dir,
    id: Token,
}

impl Store {
    /// Opens the store; where there is none, makes one.
    ///
    /// `store.json` is the point from which on there is a store: it gets its name when all directories are
    /// durable, and before the first record. If it is there, a directory that is not was lost, and with it
    /// perhaps the claim of a job that would run again: that is an error, and nothing is made anew.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let root = Dir::open_root(path)?;
        let identity: Identity = loop {
            if let Some(json) = root.read(IDENTITY, MAX_RECORD_BYTES)? {
                break read_record(&root, IDENTITY, &json)?;
            }
            Self::make(&root)?;
        };
        Ok(Store {
            jids: root.subdir("jids")?,
            requests: root.subdir("requests")?,
            reasons: root.subdir("reasons")?,
            receipts: root.subdir("receipts")?,
            locks: root.subdir("locks")?,
            id: identity.id,
        })
    }

    /// Makes a store, or finds that another executor has just made it. A crash before the last step leaves
    /// directories without records, which the next one takes over.
    fn make(root: &Dir) -> Result<(), StoreError> {
        for name in ["jids", "requests", "reasons", "receipts", "locks"] {
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
        root.create(IDENTITY, &encode(Identity { id })).map(drop)
    }

    /// The store's identity and the number of jids that it has a record of.
    pub fn position(&self) -> Result<StorePosition, StoreError> {
        let known = self.jids.names()?;
        Ok(StorePosition {
            id: self.id,
            sequence: known.iter().filter_map(|name| jid_of(name)).count() as u64,
        })
    }

    /// What the jid came to, durably; `None` if nothing is known of it.
    pub fn jid(&self, jid: Jid) -> Result<Option<JidRecord>, StoreError> {
        let name = json_name(jid.as_str());
        match self.jids.read(&name, MAX_RECORD_BYTES)? {
            Some(json) => self.jid_record(jid, &name, &json).map(Some),
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

    /// Claims the job for the one run of its request.
    ///
    /// # claim-before-run
    /// [`Claim`] is made here only, and the run asks for one. Once it is given out, the jid's claim and
    /// then the running record are durable.
    ///
    /// # one-claim
    /// A request id is claimed at most once: both files are first-of-their-name, and any earlier jid of the
    /// request allows another only if all of them are tombstones of a lower generation. An error, too,
    /// means "do not run": the claim may have become durable without us knowing.
    ///
    /// `untimely` is asked at the last moment whether it is too late, or too early, to begin.
    pub fn claim(
        &self,
        binding: &Binding,
        generation: u32,
        untimely: impl FnOnce() -> Option<RefusalReason>,
        locks: [Lock; 2],
    ) -> Result<ClaimOutcome, StoreError> {
        let _index = Lock::take(&self.locks, INDEX, INDEX_PATIENCE)?;
        let floor = match self.standing(binding, generation)? {
            Standing::Known(record) => return Ok(ClaimOutcome::Known(record)),
            Standing::Conflict => return Ok(ClaimOutcome::Conflict),
            Standing::Fresh(floor) => floor,
        };
        if floor.is_some_and(|floor| binding.jid < floor) {
            return Ok(ClaimOutcome::Refuse(RefusalReason::BelowFloor));
        }
        // Locks and a slow disk may have taken long.
        if let Some(reason) = untimely() {
            return Ok(ClaimOutcome::Refuse(reason));
        }
        let claimed = Claimed {
            binding: binding.clone(),
            generation,
            claim_id: Token::random(),
            claimed_at: gw_wire::id::now(),
        };
        // A crash before this leaves nothing; after it a claim that never ran and never will: its jid
        // answers `abandoned`, and it keeps its request from every other jid.
        let name = json_name(binding.jid.as_str());
        let record = JidRecord::Claim(claimed.clone());
        if self.jids.create(&name, &encode(record))? == Created::Exists {
            return Ok(match self.jid(binding.jid)? {
                Some(record) => ClaimOutcome::Known(record),
                None => ClaimOutcome::Conflict,
            });
        }
        // A crash after this leaves the same, seen from both names.
        let name = json_name(binding.request_id.as_str());
        if self.requests.create(&name, &encode(&claimed))? == Created::Exists {
            return Ok(ClaimOutcome::Conflict);
        }
        Ok(ClaimOutcome::Claimed(Claim { claimed, locks }))
    }

    /// Makes the jid unrunnable for ever, unless it has a record already: then that one is given. `None` if
    /// the request does not allow another dispatch (**one-claim**): then nothing was changed.
    pub fn refuse(
        &self,
        binding: &Binding,
        generation: u32,
        reason: RefusalReason,
    ) -> Result<Option<JidRecord>, StoreError> {
        let _index = Lock::take(&self.locks, INDEX, INDEX_PATIENCE)?;
        match self.standing(binding, generation)? {
            Standing::Known(record) => return Ok(Some(record)),
            Standing::Conflict => return Ok(None),
            Standing::Fresh(_) => {}
        }
        let name = json_name(binding.jid.as_str());
        let record = JidRecord::Tombstone(Tombstone {
            binding: binding.clone(),
            generation,
            reason,
            refused_at: gw_wire::id::now(),
        });
        // A crash before this leaves nothing, and the jid may run when it is delivered again.
        match self.jids.create(&name, &encode(&record))? {
            Created::New => Ok(Some(record)),
            Created::Exists => match self.jid(binding.jid)? {
                Some(record) => Ok(Some(record)),
                None => Err(StoreError::Unsafe {
                    path: self.jids.path_of(&name),
                    rule: "a file that stays in place",
                }),
            },
        }
    }

    /// What is known of a jid and its request. It holds for as long as the index lock is held.
    fn standing(&self, binding: &Binding, generation: u32) -> Result<Standing, StoreError> {
        let scan = self.scan(binding.request_id)?;
        let may_dispatch_again = |record: &JidRecord| match record {
            JidRecord::Claim(_) => false,
            JidRecord::Tombstone(tombstone) => tombstone.generation < generation,
        };
        if let Some(record) = self.jid(binding.jid)? {
            return Ok(Standing::Known(record));
        }
        if self.request(binding.request_id)?.is_some()
            || self.receipt(binding.request_id)?.is_some()
            || !scan.of_request.iter().all(may_dispatch_again)
        {
            return Ok(Standing::Conflict);
        }
        Ok(Standing::Fresh(scan.floor))
    }

    /// Reads every jid's record for the floor and for what is known of one request.
    ///
    /// The floor is the highest jid claimed or refused. One refused because it lay ahead of the clock does
    /// not count, or one absurd jid would refuse all others for ever. It is derived from the claims and
    /// tombstones themselves: if a power cut undoes one whose name was not synced yet, the floor sinks with
    /// it, and nothing ran under that jid.
    fn scan(&self, request: RequestId) -> Result<Scan, StoreError> {
        let mut scan = Scan::default();
        for name in self.jids.names()? {
            let Some(jid) = jid_of(&name) else {
                continue;
            };
            let Some(json) = self.jids.peek(&name, MAX_RECORD_BYTES)? else {
                continue;
            };
            let record = self.jid_record(jid, &name, &json)?;
            let ahead_of_clock = matches!(
                &record,
                JidRecord::Tombstone(tombstone) if tombstone.reason == RefusalReason::Clock
            );
            if !ahead_of_clock {
                scan.floor = scan.floor.max(Some(jid));
            }
            if record.binding().request_id == request {
                scan.of_request.push(record);
            }
        }
        Ok(scan)
    }

    fn jid_record(&self, jid: Jid, name: &str, json: &[u8]) -> Result<JidRecord, StoreError> {
        let record: JidRecord = read_record(&self.jids, name, json)?;
        if record.binding().jid != jid {
            let path = self.jids.path_of(name);
            return Err(StoreError::Misplaced { path });
        }
        Ok(record)
    }
}

enum Standing {
    /// The jid has a record.
    Known(JidRecord),
    /// The request does not allow another dispatch under this jid.
    Conflict,
    /// The jid may be claimed or refused; with the floor.
    Fresh(Option<Jid>),
}

#[derive(Default)]
struct Scan {
    floor: Option<Jid>,
    of_request: Vec<JidRecord>,
}

/// The right to run one job once, and its locks.
#[derive(Debug)]
pub struct Claim {
    claimed: Claimed,
    locks: [Lock; 2],
}

impl Claim {
    /// What was claimed.
    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    /// The execution lock and the request lock, to be passed to the worker.
    pub fn locks(&self) -> &[Lock; 2] {
        &self.locks
    }

    /// Makes the receipt durable. May be called again after an error.
    ///
    /// # receipt-before-return
    /// A [`Receipt`] leaves this executor only from here, durable. If another one was there before us, it
    /// stands and is given instead: the first terminal receipt is the receipt.
    pub fn commit(
        &self,
        store: &Store,
        receipt: &Receipt,
        reason: Option<UnknownReason>,
    ) -> Result<Receipt, StoreError> {
        let name = json_name(self.claimed.binding.request_id.as_str());
        if let Some(reason) = reason {
            debug_assert_eq!(receipt.outcome(), Outcome::Unknown);
            // A crash after this leaves a reason without a receipt, which nothing reads.
            store.reasons.create(&name, &encode(Why { reason }))?;
        }
        // A crash before this leaves the claim: `running` while the worker lives, then `abandoned`.
        let json = receipt.to_json();
        match store.receipts.create(&name, json.as_bytes())? {
            Created::New => Ok(receipt.clone()),
            Created::Exists => {
                store
                    .receipt(self.claimed.binding.request_id)?
                    .ok_or(StoreError::Unsafe {
                        path: store.receipts.path_of(&name),
                        rule: "a file that stays in place",
                    })
            }
        }
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
