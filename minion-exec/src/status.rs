//! What became of a job, read from the store. Nothing here writes.

use gw_wire::receipt::Binding;
use gw_wire::reply::{Answer, NotClaimedReason};

use crate::store::records::{Claimed, JidRecord};
use crate::store::{Store, StoreError};

/// Answers about the job as asked: every part of the binding counts.
///
/// A claim without a receipt whose lock is free is read once more: its executor may have committed and
/// gone between our reading and our probing. A free lock proves only that executor and worker are gone,
/// so the answer is `abandoned`, which ends nothing.
pub fn status(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    match store.jid(asked.jid)? {
        None => unknown_jid(store, asked),
        Some(record) if record.binding() != asked => conflict(store, asked),
        Some(JidRecord::Tombstone(tombstone)) => Ok(Answer::Refused {
            binding: tombstone.binding,
            reason: tombstone.reason,
        }),
        Some(JidRecord::Claim(claimed)) => {
            if let Some(answer) = receipt(store, &claimed)? {
                return Ok(answer);
            }
            let binding = asked.clone();
            if store.is_running(asked.request_id)? {
                return Ok(Answer::Running {
                    binding,
                    done: None,
                    total: None,
                });
            }
            Ok(receipt(store, &claimed)?.unwrap_or(Answer::Abandoned { binding }))
        }
    }
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
                Answer::Running {
                    binding,
                    done: None,
                    total: None,
                }
            } else {
                Answer::Abandoned { binding }
            })
        }
        _ => None,
    }
}

/// What contradicts the job as asked.
pub fn conflict(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    Ok(Answer::Conflict {
        binding: asked.clone(),
        receipt: store
            .receipt(asked.request_id)?
            .filter(|receipt| receipt.binding().minion_id == asked.minion_id),
    })
}

fn unknown_jid(store: &Store, asked: &Binding) -> Result<Answer, StoreError> {
    if store.request(asked.request_id)?.is_some() || store.receipt(asked.request_id)?.is_some() {
        return conflict(store, asked);
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
    }))
}
