//! The whole store at a glance, for a person. Nothing here writes, syncs, or waits for a lock.

use std::collections::BTreeMap;
use std::fmt;

use gw_wire::id::{Jid, RequestId, Sha256Hex};
use gw_wire::receipt::{MAX_RECEIPT_BYTES, Receipt};
use gw_wire::reply::{NotClaimedReason, UnknownReason};
use serde::Serialize;

use super::dir::Dir;
use super::records::{Claimed, Confirmed, Identity, JidRecord, Linked, MAX_RECORD_BYTES, Why};
use super::{IDENTITY, Store, StoreError, jid_of, read_record};

/// One job of the store.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its claim or tombstone, and the place of that in the chain.
    pub linked: Linked,
    /// SHA-256 of that record.
    pub sha256: Sha256Hex,
    /// Its receipt.
    pub receipt: Option<Receipt>,
    /// Why the receipt says `unknown`.
    pub reason: Option<UnknownReason>,
    /// Whether the gateway has its end.
    pub confirmed: bool,
    /// Whether its executor or worker lives.
    pub running: bool,
}

/// Something that is not as an executor leaves it.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What it is about: a path below the store, or a jid.
    pub about: String,
    /// What is wrong.
    pub what: String,
}

/// The store as it is.
#[derive(Debug)]
pub struct Audit {
    /// Its identity; none if it cannot be read.
    pub identity: Option<Identity>,
    /// Every job, by jid.
    pub entries: Vec<Entry>,
    /// Unfinished files of executors that died: harmless, an operator may delete them.
    pub leftovers: usize,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl Store {
    /// Looks at everything. While jobs come and go it may find what is only half done; look again then.
    pub fn audit(&self) -> Result<Audit, StoreError> {
        let mut findings = Findings(Vec::new());
        let identity = findings.keep(self.look_at::<Identity>(&self.root, IDENTITY));
        let requests: BTreeMap<RequestId, Claimed> =
            self.all(&self.requests, &mut findings, request_of)?;
        let reasons: BTreeMap<RequestId, Why> =
            self.all(&self.reasons, &mut findings, request_of)?;
        let confirmed: BTreeMap<Jid, Confirmed> =
            self.all(&self.confirmed, &mut findings, jid_of)?;
        let mut receipts = BTreeMap::new();
        for name in self.receipts.names()? {
            if let Some(receipt) = findings.keep(self.look_at_receipt(&name)) {
                receipts.insert(receipt.binding().request_id, receipt);
            }
        }
        let mut entries = BTreeMap::new();
        for name in self.jids.names()? {
            if let Some((linked, sha256)) = findings.keep(self.look_at_jid(&name)) {
                let binding = linked.jid_record.binding().clone();
                let claimed = matches!(linked.jid_record, JidRecord::Claim(_));
                let receipt = receipts
                    .get(&binding.request_id)
                    .filter(|receipt| claimed && *receipt.binding() == binding);
                let entry = Entry {
                    sha256,
                    receipt: receipt.cloned(),
                    reason: reasons
                        .get(&binding.request_id)
                        .filter(|_| receipt.is_some())
                        .map(|why| why.reason),
                    confirmed: confirmed.contains_key(&binding.jid),
                    running: claimed
                        && findings
                            .keep(self.is_running(binding.request_id).map(Some))
                            .unwrap_or(false),
                    linked,
                };
                entries.insert(binding.jid, entry);
            }
        }
        if let Some(identity) = &identity {
            self.check_identity(identity, &mut findings);
            check_chain(identity, &entries, &mut findings);
            check_pairs(identity, &entries, &requests, &receipts, &mut findings);
        }
        let mut leftovers = 0;
        for dir in [
            &self.root,
            &self.jids,
            &self.requests,
            &self.reasons,
            &self.receipts,
        ] {
            leftovers += dir.unfinished()?;
        }
        leftovers += self.confirmed.unfinished()?;
        Ok(Audit {
            identity,
            entries: entries.into_values().collect(),
            leftovers,
            findings: findings.0,
        })
    }

    fn check_identity(&self, identity: &Identity, findings: &mut Findings) {
        let what = match self.distrust(identity) {
            None => return,
            Some(NotClaimedReason::Machine) => "made on another machine; nothing runs",
            Some(NotClaimedReason::StoreChanged | NotClaimedReason::Store) => {
                "lacks what the gateway has seen; nothing runs until it names the new id"
            }
        };
        findings.add(IDENTITY, what);
    }

    fn look_at<T: serde::de::DeserializeOwned>(
        &self,
        dir: &Dir,
        name: &str,
    ) -> Result<Option<T>, StoreError> {
        match dir.peek(name, MAX_RECORD_BYTES)? {
            Some(json) => read_record(dir, name, &json).map(Some),
            None => Ok(None),
        }
    }

    fn look_at_jid(&self, name: &str) -> Result<Option<(Linked, Sha256Hex)>, StoreError> {
        let Some(jid) = jid_of(name) else {
            return Err(foreign(&self.jids, name));
        };
        match self.jids.peek(name, MAX_RECORD_BYTES)? {
            Some(json) => {
                let linked = self.jid_record(jid, name, &json)?;
                Ok(Some((linked, Sha256Hex::of(&json))))
            }
            None => Ok(None),
        }
    }

    fn look_at_receipt(&self, name: &str) -> Result<Option<Receipt>, StoreError> {
        let path = self.receipts.path_of(name);
        let Some(json) = self.receipts.peek(name, MAX_RECEIPT_BYTES)? else {
            return Ok(None);
        };
        match Receipt::from_json(&json) {
            Ok(receipt) if request_of(name) == Some(receipt.binding().request_id) => {
                Ok(Some(receipt))
            }
            Ok(_) => Err(StoreError::Misplaced { path }),
            Err(source) => Err(StoreError::Receipt { path, source }),
        }
    }

    fn all<K: Ord, T: serde::de::DeserializeOwned>(
        &self,
        dir: &Dir,
        findings: &mut Findings,
        key: impl Fn(&str) -> Option<K>,
    ) -> Result<BTreeMap<K, T>, StoreError> {
        let mut all = BTreeMap::new();
        for name in dir.names()? {
            let Some(key) = key(&name) else {
                findings.keep::<()>(Err(foreign(dir, &name)));
                continue;
            };
            if let Some(record) = findings.keep(self.look_at(dir, &name)) {
                all.insert(key, record);
            }
        }
        Ok(all)
    }
}

/// Each record's number is its own, and each names the one before, as far as retention has left it.
fn check_chain(identity: &Identity, entries: &BTreeMap<Jid, Entry>, findings: &mut Findings) {
    let mut chain: Vec<&Entry> = entries.values().collect();
    chain.sort_by_key(|entry| entry.linked.sequence);
    let mut before: (u64, &Sha256Hex) = (0, &identity.genesis);
    for entry in chain {
        let jid = entry.linked.jid_record.binding().jid;
        let sequence = entry.linked.sequence;
        if sequence == before.0 {
            findings.add(jid, format!("has number {sequence}, as another record has"));
        } else if sequence == before.0 + 1 {
            if entry.linked.previous != *before.1 {
                findings.add(
                    jid,
                    format!("does not follow record {} by its hash", before.0),
                );
            }
        } else if identity.pruned_below.is_none() {
            findings.add(jid, format!("follows a gap after record {}", before.0));
        }
        before = (sequence, &entry.sha256);
    }
}

/// What belongs together says the same.
fn check_pairs(
    identity: &Identity,
    entries: &BTreeMap<Jid, Entry>,
    requests: &BTreeMap<RequestId, Claimed>,
    receipts: &BTreeMap<RequestId, Receipt>,
    findings: &mut Findings,
) {
    for (jid, entry) in entries {
        let JidRecord::Claim(claimed) = &entry.linked.jid_record else {
            continue;
        };
        match requests.get(&claimed.binding.request_id) {
            Some(running) if running == claimed => {}
            Some(_) => findings.add(jid, "its request was claimed under another jid as well"),
            None if entry.receipt.is_some() => {
                findings.add(jid, "has a receipt and no running record");
            }
            // Cut between the two, and never run.
            None => {}
        }
    }
    for (request, receipt) in receipts {
        let jid = receipt.binding().jid;
        let claimed = entries
            .get(&jid)
            .is_some_and(|entry| entry.receipt.is_some());
        // Retention deletes the jid's record first.
        if !claimed && identity.pruned_below < Some(jid) {
            findings.add(
                format!("receipts/{request}.json"),
                "has no claim that it belongs to",
            );
        }
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, about: impl fmt::Display, what: impl Into<String>) {
        self.0.push(Finding {
            about: about.to_string(),
            what: what.into(),
        });
    }

    /// What could be read; the rest is a finding.
    fn keep<T>(&mut self, looked: Result<Option<T>, StoreError>) -> Option<T> {
        match looked {
            Ok(found) => found,
            Err(error) => {
                let text = crate::session::chain(&error);
                self.add(error.path().display(), text);
                None
            }
        }
    }
}

fn foreign(dir: &Dir, name: &str) -> StoreError {
    StoreError::Unsafe {
        path: dir.path_of(name),
        rule: "no file but an executor's",
    }
}

fn request_of(name: &str) -> Option<RequestId> {
    RequestId::parse(name.strip_suffix(".json")?).ok()
}
