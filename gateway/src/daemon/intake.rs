//! Step 8 of a job: what comes in at the reply port, from anyone at all, becomes evidence or nothing.
//!
//! The order is fixed: lengths, then parsing, then the minion's accepted key, then the signature over the
//! exact bytes, then the journal, then the acknowledgement. A reply is acknowledged only when what it says
//! is durable here; an executor that hears nothing sends the same bytes again.

use std::sync::Arc;

use bytes::Bytes;
use gw_wire::id::Sha256Hex;
use gw_wire::receipt::Binding;
use gw_wire::reply::{Acknowledgement, Answer, Reply, SignedReply, UnverifiedReply};
use gw_wire::zmtp::router::Peer;

use super::{Gateway, blocking};
use crate::api::Progress;
use crate::journal::JournalError;
use crate::record::Event;
use crate::words;

/// What to do with a verified reply.
enum Verdict {
    /// It is durable, or needs no durability.
    Recorded,
    /// It is about nothing that this gateway asked or sent.
    Rejected(&'static str),
}

/// Takes one message of the reply port and gives the frames of its answer.
pub(super) async fn take(
    gateway: Arc<Gateway>,
    peer: Peer,
    frames: Vec<Bytes>,
) -> Option<Vec<Bytes>> {
    let reject = |minion: &str, why: &str| {
        tracing::warn!(event = "reply_rejected", peer = %peer.addr, minion_id = minion, reason = why);
    };
    let unverified = match UnverifiedReply::from_frames(&frames) {
        Ok(unverified) => unverified,
        Err(error) => {
            reject("", &words(&error));
            return None;
        }
    };
    let sha256 = Sha256Hex::of(&frames[0]);
    let minion_id = unverified.claimed_minion().clone();
    let key = match gateway.master.accepted_key(&minion_id) {
        Ok(key) => key,
        Err(error) => {
            reject(minion_id.as_str(), &words(&error));
            return Some(Acknowledgement::Rejected(sha256).frames());
        }
    };
    let (reply, signed) = match unverified.verify(&key) {
        Ok(verified) => verified,
        Err(bad) => {
            reject(minion_id.as_str(), &words(&bad));
            return Some(Acknowledgement::Rejected(sha256).frames());
        }
    };
    match record(&gateway, &reply, &signed, key.fingerprint()).await {
        Ok(Verdict::Recorded) => {
            gateway.questions.deliver(&reply);
            Some(Acknowledgement::Recorded(sha256).frames())
        }
        Ok(Verdict::Rejected(why)) => {
            reject(minion_id.as_str(), why);
            Some(Acknowledgement::Rejected(sha256).frames())
        }
        // No word at all: the executor comes again, and perhaps the disk is better then.
        Err(error) => {
            tracing::error!(event = "journal_failed", reason = %words(&error));
            None
        }
    }
}

async fn record(
    gateway: &Arc<Gateway>,
    reply: &Reply,
    signed: &SignedReply,
    key: Sha256Hex,
) -> Result<Verdict, JournalError> {
    let expected = gateway.questions.expects(reply);
    let (event, binding) = match &reply.answer {
        Answer::Capability(_) if expected => {
            gateway.learn(reply, key);
            return Ok(Verdict::Recorded);
        }
        Answer::Capability(_) => {
            return Ok(Verdict::Rejected("a capability that was not asked for"));
        }
        // Durable on the minion, so they count whoever asked and whenever they come.
        Answer::Receipt {
            receipt, reason, ..
        } => (
            Event::Receipt {
                receipt: receipt.clone(),
                reason: *reason,
            },
            receipt.binding(),
        ),
        Answer::Refused { binding, reason } => (Event::Refusal { reason: *reason }, binding),
        Answer::Running {
            binding,
            done,
            total,
        } => {
            let progress = done
                .zip(*total)
                .map(|(done, total)| Progress { done, total });
            if !expected {
                return word_of_progress(gateway, binding.clone(), key, progress).await;
            }
            let detail = progress
                .map(|p| format!("{}/{}", p.done, p.total))
                .unwrap_or_default();
            (observed(reply, detail), binding)
        }
        Answer::NotClaimed { binding, reason } => {
            let detail = format!("{reason:?}").to_lowercase();
            (observed(reply, detail), binding)
        }
        // True in the moment of the question only.
        Answer::NotStarted { binding }
        | Answer::Abandoned { binding }
        | Answer::Conflict { binding, .. } => {
            if !expected {
                return Ok(Verdict::Rejected("an observation that was not asked for"));
            }
            (observed(reply, String::new()), binding)
        }
    };
    let (binding, signed) = (binding.clone(), signed.clone());
    blocking(gateway, move |gateway| {
        gateway.evidence(&binding, &key, &event, &signed)
    })
    .await
}

fn observed(reply: &Reply, detail: String) -> Event {
    Event::Observed {
        kind: reply.answer.kind().to_owned(),
        detail,
    }
}

impl Gateway {
    /// Whether evidence belongs to a record: **immutable-binding**, whole and exact, and the key that was
    /// accepted when it was claimed.
    fn evidence(
        &self,
        binding: &Binding,
        key: &Sha256Hex,
        event: &Event,
        signed: &SignedReply,
    ) -> Result<Verdict, JournalError> {
        let Some(record) = self.journal.find_jid(binding.jid)? else {
            return Ok(Verdict::Rejected("a jid that this journal never claimed"));
        };
        if record.binding().as_ref() != Some(binding) {
            return Ok(Verdict::Rejected("a binding that differs from the claim"));
        }
        if record
            .claim
            .as_ref()
            .is_none_or(|claim| claim.minion_key != *key)
        {
            return Ok(Verdict::Rejected(
                "a key other than the one accepted at the claim",
            ));
        }
        self.apply(record.request.request_id, event, Some(signed))?;
        if matches!(event, Event::Receipt { .. } | Event::Refusal { .. }) {
            self.progress.forget(binding.jid);
        }
        Ok(Verdict::Recorded)
    }
}

/// Progress that the executor tells unasked: kept in memory, for people who watch.
async fn word_of_progress(
    gateway: &Arc<Gateway>,
    binding: Binding,
    key: Sha256Hex,
    progress: Option<Progress>,
) -> Result<Verdict, JournalError> {
    // An executor that has no counts yet only says that it lives.
    let Some(progress) = progress else {
        return Ok(Verdict::Recorded);
    };
    blocking(gateway, move |gateway| {
        let Some(record) = gateway.journal.find_jid(binding.jid)? else {
            return Ok(Verdict::Rejected(
                "progress of a jid that this journal never claimed",
            ));
        };
        if record.binding().as_ref() != Some(&binding)
            || record
                .claim
                .as_ref()
                .is_none_or(|claim| claim.minion_key != key)
        {
            return Ok(Verdict::Rejected("progress that differs from the claim"));
        }
        if record.state.awaits_evidence() && gateway.progress.put(binding.jid, progress) {
            tracing::debug!(
                event = "progress",
                request_id = record.request.request_id.as_str(),
                minion_id = record.request.minion_id.as_str(),
                jid = binding.jid.as_str(),
                done = progress.done,
                total = progress.total,
            );
            gateway.journal.nudge();
        }
        Ok(Verdict::Recorded)
    })
    .await
}
