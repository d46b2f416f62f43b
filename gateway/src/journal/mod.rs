//! The journal: what was asked, what was claimed, what is known. One SQLite file, one writer.
//!
//! **intent-before-send** and **evidence before acknowledgement** both rest on one rule: when a method
//! here returns, what it wrote survives a crash of the machine (`synchronous=FULL` in WAL mode: each
//! commit is one fsync of the log). A crash inside a method leaves the transaction undone.
//!
//! **io-outside-lock**: no method waits for a network; each is one short transaction that reads the
//! record anew, asks [`transition`] what the event does to it, and writes that or nothing.

mod view;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use gw_wire::id::{IdError, Jid, MinionId, Profile, RequestId, StateDigest, now};
use gw_wire::receipt::Binding;
use gw_wire::reply::SignedReply;
use gw_wire::state_data::{StateData, StateDataError};
use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::watch;

use crate::record::{Alarm, Claim, Event, IllegalTransition, State, Step, transition};
pub use view::{Filter, HistoryRow};

/// The only schema that this binary reads and writes, kept in SQLite's `user_version`.
const SCHEMA: u32 = 1;

/// Why the journal could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// SQLite or the disk below it.
    #[error("cannot use the journal")]
    Sqlite(#[from] rusqlite::Error),
    /// The state directory or the lock in it.
    #[error("cannot use the state directory {path}")]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another daemon has it.
    #[error("another daemon uses the journal in {0}")]
    InUse(PathBuf),
    /// Written by a newer gw.
    #[error("journal has schema {0}, newer than the {SCHEMA} that this gw knows")]
    Newer(u32),
    /// A row that no code of ours wrote.
    #[error("journal row of {what} cannot be read: {why}")]
    Damaged {
        /// Which row.
        what: String,
        /// Why.
        why: String,
    },
    /// A false belief of our own code; nothing was written.
    #[error(transparent)]
    Illegal(#[from] IllegalTransition),
}

/// What a caller asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub request_id: RequestId,
    /// The one machine.
    pub minion_id: MinionId,
    /// What to apply.
    pub profile: Profile,
    /// The data of `custom`.
    pub state_data: Option<StateData>,
}

impl Request {
    /// SHA-256 of the state data, empty for a fixed role.
    pub fn state_digest(&self) -> StateDigest {
        self.state_data
            .as_ref()
            .map(StateData::digest)
            .unwrap_or_default()
    }
}

/// A request and its newest dispatch, as the journal holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The request.
    pub request: Request,
    /// When it was made durable.
    pub accepted_at: Timestamp,
    /// Which dispatch this is, from 1.
    pub generation: u32,
    /// What was claimed; none before.
    pub claim: Option<Claim>,
    /// Where it stands.
    pub state: State,
    /// Evidence of execution came after a definite end.
    pub contradicted: bool,
    /// Rises with every row of history.
    pub revision: i64,
}

/// Names one dispatch of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// The request.
    pub request_id: RequestId,
    /// Which of its dispatches, from 1.
    pub generation: u32,
}

impl Record {
    /// Its name.
    pub fn dispatch(&self) -> Dispatch {
        Dispatch {
            request_id: self.request.request_id,
            generation: self.generation,
        }
    }

    /// The binding of the claimed job; none before the claim.
    pub fn binding(&self) -> Option<Binding> {
        Some(Binding {
            minion_id: self.request.minion_id.clone(),
            request_id: self.request.request_id,
            jid: self.claim.as_ref()?.jid,
            profile: self.request.profile,
            state_digest: self.request.state_digest(),
        })
    }
}

/// What became of [`Journal::accept`].
#[derive(Debug)]
pub enum Acceptance {
    /// The request is durable now.
    Created(Record),
    /// The same request with the same values was there.
    Existing(Record),
    /// The same request id with other values was there; nothing was written.
    Conflict(Record),
}

/// What became of [`Journal::apply`].
#[derive(Debug)]
pub struct Applied {
    /// The record after the event.
    pub record: Record,
    /// The state's name before.
    pub from: &'static str,
    /// What the event did.
    pub step: Step,
}

/// What became of [`Journal::claim`].
#[derive(Debug)]
pub enum Claimed {
    /// The claim is durable: its caller, and nobody else, may send it, once.
    Now(Box<Applied>),
    /// The minion has an unresolved dispatch; nothing was written.
    Blocked(Box<Record>),
}

/// The open journal. One per state directory: a lock file keeps a second daemon out.
pub struct Journal {
    connection: Mutex<Connection>,
    latest: watch::Sender<i64>,
    /// Held for its lock; the kernel frees it when the process ends, however it ends.
    _lock: std::fs::File,
}

impl Journal {
    /// Opens or makes the journal in `directory`, which is made 0700 if it is not there.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let lock = prepare(directory)?;
        let connection = Connection::open(directory.join("journal.sqlite"))?;
        // FULL: a commit returns after the log is on the disk. The default of WAL, NORMAL, does not.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let schema: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match schema {
            // A crash between the statements leaves none of them: they are one transaction.
            0 => connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {} PRAGMA user_version = {SCHEMA}; COMMIT;",
                include_str!("schema.sql")
            ))?,
            SCHEMA => {}
            newer => return Err(JournalError::Newer(newer)),
        }
        let latest: Option<i64> =
            connection.query_row("SELECT max(seq) FROM history", [], |row| row.get(0))?;
        Ok(Journal {
            connection: Mutex::new(connection),
            latest: watch::Sender::new(latest.unwrap_or(0)),
            _lock: lock,
        })
    }

    /// Makes a request durable as `accepted`, once: the same id again gives the record, or a conflict.
    pub fn accept(&self, request: &Request) -> Result<Acceptance, JournalError> {
        self.write(|tx| {
            if let Some(record) = find(tx, request.request_id)? {
                return Ok(if record.request == *request {
                    Acceptance::Existing(record)
                } else {
                    Acceptance::Conflict(record)
                });
            }
            let at = now();
            tx.execute(
                "INSERT INTO request (request_id, minion_id, profile, state_digest, state_data, accepted_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    request.request_id.as_str(),
                    request.minion_id.as_str(),
                    request.profile.as_str(),
                    request.state_digest().as_str(),
                    request.state_data.as_ref().map(StateData::as_str),
                    at.to_string(),
                ],
            )?;
            tx.execute(
                "INSERT INTO dispatch (request_id, generation, minion_id, state, detail, revision)
                 VALUES (?1, 1, ?2, 'accepted', ?3, 0)",
                params![request.request_id.as_str(), request.minion_id.as_str(), json(&State::Accepted)],
            )?;
            let record = find(tx, request.request_id)?.expect("the row was just inserted");
            Ok(Acceptance::Created(record))
        })
    }

    /// Makes a claim durable: **one-open** and the jid's uniqueness are the store's own constraints.
    pub fn claim(&self, request_id: RequestId, claim: &Claim) -> Result<Claimed, JournalError> {
        self.write(|tx| {
            let record = known(tx, request_id)?;
            if let Some(open) = blocking(tx, &record.request.minion_id)? {
                return Ok(Claimed::Blocked(Box::new(open)));
            }
            apply(tx, record, &Event::Claim(claim.clone()), None)
                .map(|applied| Claimed::Now(Box::new(applied)))
        })
    }

    /// Applies one event to one dispatch, together with the evidence for it. The same signed bytes a second
    /// time are [`Step::Silent`]: a repetition costs no row.
    pub fn apply(
        &self,
        dispatch: Dispatch,
        event: &Event,
        evidence: Option<&SignedReply>,
    ) -> Result<Applied, JournalError> {
        self.write(|tx| {
            let record = view::one(
                tx,
                "r.request_id = ?1 AND d.generation = ?2",
                params![dispatch.request_id.as_str(), dispatch.generation],
            )?
            .ok_or_else(|| damaged("dispatch", "it is not in the journal"))?;
            apply(tx, record, event, evidence)
        })
    }

    /// The newest dispatch of a request.
    pub fn find(&self, request_id: RequestId) -> Result<Option<Record>, JournalError> {
        find(&self.lock(), request_id)
    }

    /// The unresolved or contradicted dispatch that blocks a minion.
    pub fn blocking(&self, minion_id: &MinionId) -> Result<Option<Record>, JournalError> {
        blocking(&self.lock(), minion_id)
    }

    /// The highest jid that was ever claimed.
    pub fn highest_jid(&self) -> Result<Option<Jid>, JournalError> {
        let text: Option<String> =
            self.lock()
                .query_row("SELECT max(jid) FROM dispatch", [], |row| row.get(0))?;
        text.map(|text| Jid::parse(&text).map_err(|error| damaged("dispatch", error)))
            .transpose()
    }

    /// Changes with every commit; holds the newest row of history.
    pub fn changes(&self) -> watch::Receiver<i64> {
        self.latest.subscribe()
    }

    /// Wakes everyone who waits for a change, for news that is not journaled (progress).
    pub fn nudge(&self) {
        self.latest.send_modify(|_| {});
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic inside a transaction rolled it back; the connection is still good.
        self.connection
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut connection = self.lock();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&tx)?;
        let latest: Option<i64> =
            tx.query_row("SELECT max(seq) FROM history", [], |row| row.get(0))?;
        // A crash before this line leaves nothing of the work, one after it leaves all of it.
        tx.commit()?;
        self.latest.send_replace(latest.unwrap_or(0));
        Ok(done)
    }
}

/// Makes the directory, checks that nobody else can look into it, and takes the lock.
fn prepare(directory: &Path) -> Result<std::fs::File, JournalError> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Directory { path, source }
    };
    // With `recursive` a directory that is there already is no error.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed(directory))?;
    // A power cut must not take the directory's name, or its parents', and with it the journal.
    for parent in directory.ancestors().skip(1) {
        std::fs::File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(failed(parent))?;
    }
    let meta = std::fs::symlink_metadata(directory).map_err(failed(directory))?;
    if !meta.is_dir()
        || meta.uid() != rustix::process::geteuid().as_raw()
        || meta.mode() & 0o077 != 0
    {
        return Err(failed(directory)(std::io::Error::other(
            "it must be a directory of the daemon's user with mode 0700",
        )));
    }
    let path = directory.join("lock");
    let lock = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(JournalError::InUse(directory.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(&path)(error)),
    }
}

/// The one place that writes a state: read, decide, write.
fn apply(
    tx: &Transaction<'_>,
    mut record: Record,
    event: &Event,
    evidence: Option<&SignedReply>,
) -> Result<Applied, JournalError> {
    let from = record.state.name();
    let step = match evidence {
        Some(signed) if is_kept(tx, &record, signed)? => Step::Silent,
        _ => transition(&record.state, event)?,
    };
    let alarm = match &step {
        Step::Silent => return Ok(Applied { record, from, step }),
        Step::Note => None,
        Step::Alarm(alarm) => Some(*alarm),
        Step::Move(next) => {
            record.state = next.clone();
            None
        }
    };
    if let Event::Claim(claim) = event {
        record.claim = Some(claim.clone());
    }
    record.contradicted |= alarm.is_some_and(Alarm::blocks);
    tx.execute(
        "INSERT INTO history (request_id, generation, at, event, state, alarm, evidence, signature)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            record.request.request_id.as_str(),
            record.generation,
            now().to_string(),
            json(event),
            record.state.name(),
            alarm.map(Alarm::as_str),
            evidence.map(|signed| signed.json.as_ref()),
            evidence.map(|signed| signed.signature.as_ref()),
        ],
    )?;
    record.revision = tx.last_insert_rowid();
    let changed = tx.execute(
        "UPDATE dispatch SET jid = ?3, claim = ?4, state = ?5, detail = ?6, contradicted = ?7, revision = ?8
         WHERE request_id = ?1 AND generation = ?2",
        params![
            record.request.request_id.as_str(),
            record.generation,
            record.claim.as_ref().map(|claim| claim.jid.as_str()),
            record.claim.as_ref().map(json),
            record.state.name(),
            json(&record.state),
            record.contradicted,
            record.revision,
        ],
    )?;
    assert_eq!(changed, 1, "the record was read in this transaction");
    Ok(Applied { record, from, step })
}

/// Whether these very bytes are in the dispatch's history.
fn is_kept(
    tx: &Transaction<'_>,
    record: &Record,
    signed: &SignedReply,
) -> Result<bool, JournalError> {
    Ok(tx
        .prepare_cached(
            "SELECT 1 FROM history WHERE request_id = ?1 AND generation = ?2 AND evidence = ?3",
        )?
        .exists(params![
            record.request.request_id.as_str(),
            record.generation,
            signed.json.as_ref(),
        ])?)
}

fn find(connection: &Connection, request_id: RequestId) -> Result<Option<Record>, JournalError> {
    view::one(
        connection,
        "r.request_id = ?1 ORDER BY d.generation DESC LIMIT 1",
        [request_id.as_str()],
    )
}

fn known(tx: &Transaction<'_>, request_id: RequestId) -> Result<Record, JournalError> {
    find(tx, request_id)?.ok_or_else(|| damaged("request", "it is not in the journal"))
}

fn blocking(connection: &Connection, minion_id: &MinionId) -> Result<Option<Record>, JournalError> {
    view::one(
        connection,
        "d.minion_id = ?1 AND (d.state IN ('claimed', 'sent', 'send_uncertain', 'unknown')
           OR d.contradicted = 1) LIMIT 1",
        [minion_id.as_str()],
    )
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("records are plain data")
}

fn damaged(what: impl Into<String>, why: impl std::fmt::Display) -> JournalError {
    JournalError::Damaged {
        what: what.into(),
        why: why.to_string(),
    }
}

impl From<IdError> for JournalError {
    fn from(error: IdError) -> Self {
        damaged("an id", error)
    }
}

impl From<StateDataError> for JournalError {
    fn from(error: StateDataError) -> Self {
        damaged("state data", error)
    }
}

#[cfg(test)]
mod tests;
