//! The chain of a store's records, and what a gateway has seen of it.
//!
//! Each claim and tombstone has a number and names the SHA-256 of the one before. A gateway that remembers
//! the newest number and its SHA-256 thus finds out, or has the executor find out, that the disk below the
//! store was rolled back or replaced: then a jid without a record may have run all the same.

use gw_wire::id::{Jid, RequestId, Sha256Hex, Token};
use gw_wire::reply::{NotClaimedReason, RefusalReason, StorePosition};
use jiff::Timestamp;

use super::records::{Identity, JidRecord, Linked, MAX_RECORD_BYTES, encode};
use super::{IDENTITY, Store, StoreError, jid_of};

/// What all records together say.
#[derive(Debug)]
pub(super) struct Scan {
    /// The highest jid claimed, refused or deleted. One refused because the clock was behind does not count,
    /// or one absurd jid would refuse all others for ever.
    ///
    /// It is derived from the claims and tombstones themselves: if a power cut undoes one whose name was not
    /// synced yet, the floor sinks with it, and nothing ran under that jid.
    pub floor: Option<Jid>,
    /// When the last claim was made, by the minion's clock. Tombstones do not count: a late delivery to a
    /// clock far ahead must not refuse everything after the clock was set right.
    pub last_claim: Option<Timestamp>,
    /// Every record of the one request that was asked for.
    pub of_request: Vec<JidRecord>,
    /// The number and the SHA-256 of the newest record.
    pub newest: (u64, Sha256Hex),
}

impl Store {
    /// How far the store's chain has come, durably.
    pub fn position(&self) -> Result<StorePosition, StoreError> {
        let identity = self.identity()?;
        let (sequence, head) = self.scan(&identity, None)?.newest;
        Ok(StorePosition {
            id: identity.id,
            sequence,
            head,
        })
    }

    /// Takes note of what the gateway has seen of this store and accepted; `None` if it has seen nothing.
    ///
    /// A chain that lacks it gets a new id, durably, and is not trusted until a publication names that id
    /// ([`Store::distrust`]). A crash in between leaves the old identity, and the next publication comes here
    /// again.
    pub fn meet(&self, seen: Option<&StorePosition>) -> Result<(), StoreError> {
        let Some(seen) = seen else {
            return Ok(());
        };
        let before = self.identity()?;
        if self.distrust(&before).is_none() && self.holds(&before, seen)? {
            return Ok(());
        }
        let _index = self.lock_index()?;
        let identity = self.identity()?;
        let holds = self.holds(&identity, seen)?;
        let changed = match self.distrust(&identity) {
            // Moving a store to another machine is no decision of a gateway's.
            Some(NotClaimedReason::Machine) => return Ok(()),
            // The gateway's operator has accepted the new id.
            _ if holds && identity.renewed => Identity {
                renewed: false,
                ..identity
            },
            None if !holds => Identity {
                id: Token::random(),
                renewed: true,
                ..identity
            },
            // Another executor was quicker, or the new id still waits for the operator.
            _ => return Ok(()),
        };
        self.root.replace(IDENTITY, &encode(changed))
    }

    /// Whether the chain has this position. One whose record retention has deleted cannot be told from one
    /// that never was.
    fn holds(&self, identity: &Identity, seen: &StorePosition) -> Result<bool, StoreError> {
        if seen.id != identity.id {
            return Ok(false);
        }
        if seen.sequence == 0 {
            return Ok(seen.head == identity.genesis);
        }
        let mut found = false;
        self.each_record(|linked, head| {
            found |= linked.sequence == seen.sequence && head == seen.head;
        })?;
        Ok(found)
    }

    /// Reads every jid's record.
    ///
    /// All names are durable when it returns, so that no later record names one that a power cut can undo,
    /// and no reply a position that it can. (Their content was durable before they had their names.)
    pub(super) fn scan(
        &self,
        identity: &Identity,
        request: Option<RequestId>,
    ) -> Result<Scan, StoreError> {
        let mut scan = Scan {
            floor: identity.pruned_below,
            last_claim: None,
            of_request: Vec::new(),
            newest: (0, identity.genesis.clone()),
        };
        self.each_record(|linked, head| {
            if linked.sequence > scan.newest.0 {
                scan.newest = (linked.sequence, head);
            }
            let record = linked.jid_record;
            let jid = record.binding().jid;
            match &record {
                JidRecord::Claim(claimed) => {
                    scan.floor = scan.floor.max(Some(jid));
                    scan.last_claim = scan.last_claim.max(Some(claimed.claimed_at));
                }
                JidRecord::Tombstone(tombstone) if tombstone.reason == RefusalReason::Clock => {}
                JidRecord::Tombstone(_) => scan.floor = scan.floor.max(Some(jid)),
            }
            if request == Some(record.binding().request_id) {
                scan.of_request.push(record);
            }
        })?;
        self.jids.sync()?;
        Ok(scan)
    }

    /// Gives every jid's record with its SHA-256, in no order, some of them perhaps twice.
    pub(super) fn each_record(
        &self,
        mut each: impl FnMut(Linked, Sha256Hex),
    ) -> Result<(), StoreError> {
        'listing: loop {
            for name in self.jids.names()? {
                let Some(jid) = jid_of(&name) else {
                    continue;
                };
                let Some(json) = self.jids.peek(&name, MAX_RECORD_BYTES)? else {
                    // Retention has deleted it since, which it does to the newest record only when there is
                    // a newer one: that must not be missed.
                    continue 'listing;
                };
                let linked = self.jid_record(jid, &name, &json)?;
                each(linked, Sha256Hex::of(&json));
            }
            return Ok(());
        }
    }
}
