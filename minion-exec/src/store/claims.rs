//! Claims and tombstones: which jid may run, and which never will.

use std::os::fd::OwnedFd;

use gw_wire::id::Token;
use gw_wire::receipt::{Binding, Outcome, Receipt};
use gw_wire::reply::{NotClaimedReason, RefusalReason, Survival, UnknownReason};
use jiff::Timestamp;

use super::chain::Scan;
use super::dir::Created;
use super::lock::{EXECUTION, Lock};
use super::records::{Claimed, JidRecord, Linked, Tombstone, Why, encode};
use super::{Store, StoreError, json_name, request_lock};

/// What [`Store::claim`] came to.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// The job is ours to run, once.
    Claimed(Claim),
    /// It must be refused; nothing was changed.
    Refuse(RefusalReason),
    /// It was decided before; nothing was changed.
    Settled(Settled),
}

/// Why a jid can no longer be claimed, or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Settled {
    /// It has a record.
    Known(JidRecord),
    /// The request was claimed before, or its earlier dispatches do not allow another.
    Conflict,
    /// It has no record, and retention has deleted those of jids as high.
    Expired,
    /// It has no record, which proves nothing in this store.
    Distrusted(NotClaimedReason),
}

enum Standing {
    Settled(Settled),
    /// The jid may be claimed or refused.
    Fresh(Scan),
}

impl Store {
    /// Claims the job for the one run of its request.
    ///
    /// # claim-before-run
    /// [`Claim`] is made here and by [`Store::adopt`] only, and the run asks for one. Once it is given out,
    /// the jid's claim and then the running record are durable.
    ///
    /// # one-claim
    /// A request id is claimed at most once: both files are first-of-their-name, and any earlier jid of the
    /// request allows another only if all of them are tombstones of a lower generation. An error, too,
    /// means "do not run": the claim may have become durable without us knowing.
    ///
    /// `untimely` is asked at the last moment whether it is too late, or too early, to begin; it is told
    /// when the store's last claim was made.
    pub fn claim(
        &self,
        binding: &Binding,
        generation: u32,
        survival: Survival,
        untimely: impl FnOnce(Option<Timestamp>) -> Option<RefusalReason>,
        locks: [Lock; 2],
    ) -> Result<ClaimOutcome, StoreError> {
        let _index = self.lock_index()?;
        let scan = match self.standing(binding, generation)? {
            Standing::Settled(settled) => return Ok(ClaimOutcome::Settled(settled)),
            Standing::Fresh(scan) => scan,
        };
        if scan.floor.is_some_and(|floor| binding.jid < floor) {
            return Ok(ClaimOutcome::Refuse(RefusalReason::BelowFloor));
        }
        // Locks and a slow disk may have taken long.
        if let Some(reason) = untimely(scan.last_claim) {
            return Ok(ClaimOutcome::Refuse(reason));
        }
        let claimed = Claimed {
            binding: binding.clone(),
            generation,
            claim_id: Token::random(),
            claimed_at: gw_wire::id::now(),
            survival,
        };
        // A crash before this leaves nothing; after it a claim that never ran and never will: its jid
        // answers `abandoned`, and it keeps its request from every other jid.
        if let Some(settled) = self.link(scan, JidRecord::Claim(claimed.clone()))? {
            return Ok(ClaimOutcome::Settled(settled));
        }
        // A crash after this leaves the same, seen from both names.
        let name = json_name(binding.request_id.as_str());
        if self.requests.create(&name, &encode(&claimed))? == Created::Exists {
            return Ok(ClaimOutcome::Settled(Settled::Conflict));
        }
        Ok(ClaimOutcome::Claimed(Claim { claimed, locks }))
    }

    /// Makes the jid unrunnable for ever, unless it was decided before. The answer is what was decided: for
    /// a jid that could be refused, its new tombstone.
    pub fn refuse(
        &self,
        binding: &Binding,
        generation: u32,
        reason: RefusalReason,
    ) -> Result<Settled, StoreError> {
        let _index = self.lock_index()?;
        let scan = match self.standing(binding, generation)? {
            Standing::Settled(settled) => return Ok(settled),
            Standing::Fresh(scan) => scan,
        };
        let record = JidRecord::Tombstone(Tombstone {
            binding: binding.clone(),
            generation,
            reason,
            refused_at: gw_wire::id::now(),
        });
        // A crash before this leaves nothing, and the jid may run when it is delivered again.
        let lost = self.link(scan, record.clone())?;
        Ok(lost.unwrap_or(Settled::Known(record)))
    }

    /// Takes over the claim of an executor that died, from the worker that still holds its locks. `None` if
    /// the jid's record is not that claim, or the descriptors are not the locks.
    pub fn adopt(
        &self,
        binding: &Binding,
        claim_id: Token,
        locks: [OwnedFd; 2],
    ) -> Result<Option<Claim>, StoreError> {
        let claimed = match self.jid(binding.jid)? {
            Some(JidRecord::Claim(claimed))
                if claimed.binding == *binding && claimed.claim_id == claim_id =>
            {
                claimed
            }
            _ => return Ok(None),
        };
        let [execution, request] = locks;
        let execution = Lock::adopt(&self.locks, EXECUTION, execution)?;
        let request = Lock::adopt(&self.locks, &request_lock(binding.request_id), request)?;
        Ok(execution.zip(request).map(|(execution, request)| Claim {
            claimed,
            locks: [execution, request],
        }))
    }

    /// What is known of a jid and its request. It holds for as long as the index lock is held.
    fn standing(&self, binding: &Binding, generation: u32) -> Result<Standing, StoreError> {
        let identity = self.identity()?;
        let scan = self.scan(&identity, Some(binding.request_id))?;
        let may_dispatch_again = |record: &JidRecord| match record {
            JidRecord::Claim(_) => false,
            JidRecord::Tombstone(tombstone) => tombstone.generation < generation,
        };
        let settled = if let Some(record) = self.jid(binding.jid)? {
            Settled::Known(record)
        } else if identity.pruned_below >= Some(binding.jid) {
            Settled::Expired
        } else if let Some(reason) = self.distrust(&identity) {
            Settled::Distrusted(reason)
        } else if self.request(binding.request_id)?.is_some()
            || self.receipt(binding.request_id)?.is_some()
            || !scan.of_request.iter().all(may_dispatch_again)
        {
            Settled::Conflict
        } else {
            return Ok(Standing::Fresh(scan));
        };
        Ok(Standing::Settled(settled))
    }

    /// Appends a record to the chain under its jid. Gives what stands in its place if another has the jid,
    /// which takes a writer without the index lock.
    fn link(&self, scan: Scan, record: JidRecord) -> Result<Option<Settled>, StoreError> {
        let jid = record.binding().jid;
        let name = json_name(jid.as_str());
        let (sequence, previous) = scan.newest;
        let linked = Linked {
            sequence: sequence + 1,
            previous,
            jid_record: record,
        };
        if self.jids.create(&name, &encode(linked))? == Created::New {
            return Ok(None);
        }
        match self.jid(jid)? {
            Some(record) => Ok(Some(Settled::Known(record))),
            None => Err(StoreError::Unsafe {
                path: self.jids.path_of(&name),
                rule: "a file that stays in place",
            }),
        }
    }
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
