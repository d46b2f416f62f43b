//! What became of a job, read from the store; and the fence: that a job which has not been claimed never will.
//!
//! Nothing here ever writes a receipt.

use gw_wire::receipt::Binding;
use gw_wire::reply::{Answer, NotClaimedReason, RefusalReason};

use crate::store::records::{Claimed, JidRecord};
use crate::store::{Settled, Store, StoreError};

/// Answers about the job as asked: every part of the binding counts.
///
/// A claim without a receipt whose lock is free is read once more: its executor may have committed and
/// gone between our reading and our probing. A free lock proves only that executor and worker are gone,
/// so the answer is `abandoned`, which ends nothing.
pub fn status(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    match store.jid(asked.jid)? {
        None => unknown_jid(store, asked),
        Some(record) => known(store, asked, record),
    }
}

/// The answer for a jid whose record is known.
fn known(store: &Store, asked: &Binding, record: JidRecord) -> Result<Answer, StoreError> {
    if record.binding() != asked {
        return conflict(store, asked);
    }
    let claimed = match record {
        JidRecord::Tombstone(tombstone) => {
            return Ok(Answer::Refused {
                binding: tombstone.binding,
                reason: tombstone.reason,
            });
        }
        JidRecord::Claim(claimed) => claimed,
    };
    if let Some(answer) = receipt(store, &claimed)? {
        return Ok(answer);
    }
    if store.is_running(asked.request_id)? {
        return Ok(running(&claimed));
    }
    if let Some(answer) = receipt(store, &claimed)? {
        return Ok(answer);
    }
    // Retention deletes the jid's record before the receipt: gone with it, the job had ended.
    match store.jid(asked.jid)? {
        Some(_) => Ok(Answer::Abandoned {
            binding: asked.clone(),
        }),
        None => unknown_jid(store, asked),
    }
}

/// The answer for a job that is over, one way or the other, for this call.
pub fn settled(store: &Store, asked: &Binding, settled: Settled) -> Result<Answer, StoreError> {
    let binding = asked.clone();
    match settled {
        Settled::Known(record) => known(store, asked, record),
        Settled::Conflict => conflict(store, asked),
        Settled::Expired => Ok(Answer::Expired { binding }),
        Settled::Distrusted(reason) => Ok(Answer::NotClaimed { binding, reason }),
    }
}

/// Refuses the job for ever unless it has been claimed, and says what became of it either way.
pub fn fence(
    store: &Store,
    asked: &Binding,
    generation: u32,
    reason: RefusalReason,
) -> Result<Answer, StoreError> {
    settled(store, asked, store.refuse(asked, generation, reason)?)
}

/// What is certain about the job although an error stood in the way; `None` if nothing is. `not_claimed` is
/// certain only if its jid can be looked up and has no record.
pub fn despite_error(store: &Store, asked: &Binding) -> Option<Answer> {
    let binding = asked.clone();
    let Some(record) = store.jid(asked.jid).ok()? else {
        let reason = NotClaimedReason::Store;
        return Some(Answer::NotClaimed { binding, reason });
    };
    if let Ok(answer) = status(store, asked) {
        return Some(answer);
    }
    match record {
        JidRecord::Claim(claimed) if claimed.binding == *asked => {
            Some(if store.is_running(asked.request_id).ok()? {
                running(&claimed)
            } else {
                Answer::Abandoned { binding }
            })
        }
        _ => None,
    }
}

fn running(claimed: &Claimed) -> Answer {
    Answer::Running {
        binding: claimed.binding.clone(),
        done: None,
        total: None,
        survival: claimed.survival,
    }
}

/// What contradicts the job as asked.
fn conflict(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    Ok(Answer::Conflict {
        binding: asked.clone(),
        receipt: store
            .receipt(asked.request_id)?
            .filter(|receipt| receipt.binding().minion_id == asked.minion_id),
    })
}

fn unknown_jid(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    let identity = store.identity()?;
    if identity.pruned_below >= Some(asked.jid) {
        return settled(store, asked, Settled::Expired);
    }
    if let Some(reason) = store.distrust(&identity) {
        return settled(store, asked, Settled::Distrusted(reason));
    }
    if store.request(asked.request_id)?.is_some() || store.receipt(asked.request_id)?.is_some() {
        // Perhaps by this very job, claimed since we looked its jid up.
        return match store.jid(asked.jid)? {
            Some(record) => known(store, asked, record),
            None => conflict(store, asked),
        };
    }
    Ok(Answer::NotStarted {
        binding: asked.clone(),
    })
}

fn receipt(store: &Store, claimed: &Claimed) -> Result<Option<Answer>, StoreError> {
    let request = claimed.binding.request_id;
    let Some(receipt) = store.receipt(request)? else {
        return Ok(None);
    };
    if *receipt.binding() != claimed.binding {
        return conflict(store, &claimed.binding).map(Some);
    }
    Ok(Some(Answer::Receipt {
        receipt,
        claim_id: claimed.claim_id,
        reason: store.reason(request)?,
        survival: claimed.survival,
    }))
}
