//! Step 8 of a job: what comes in at the reply port, from anyone at all, becomes evidence or nothing.
//!
//! The order is fixed: lengths, then parsing, then the minion's accepted key, then the signature over the
//! exact bytes, then the journal, then the acknowledgement. A reply is acknowledged only when what it says
//! is durable here; an executor that hears nothing sends the same bytes again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gw_wire::id::Sha256Hex;
use gw_wire::receipt::Binding;
use gw_wire::reply::{Acknowledgement, Answer, Reply, SignedReply, UnverifiedReply};
use gw_wire::zmtp::router::Peer;

use super::{Gateway, blocking, lock};
use crate::api::Progress;
use crate::journal::{JournalError, Record};
use crate::master::KeyFileError;
use crate::record::{Event, Observation};
use crate::words;

/// What to do with a verified reply.
enum Verdict {
    /// It is durable, or needs no durability.
    Recorded,
    /// It is about nothing that this gateway asked or sent.
    Rejected(&'static str),
}

/// Keeps strangers from filling the log: so many lines a minute, then a count.
#[derive(Default)]
pub(super) struct Rejections {
    window: Mutex<Option<(Instant, u64)>>,
}

impl Rejections {
    /// The most `reply_rejected` lines in a minute.
    const A_MINUTE: u64 = 60;

    fn log(&self, peer: Peer, minion: &str, why: &str) {
        let mut window = lock(&self.window);
        let (start, count) = window.get_or_insert((Instant::now(), 0));
        if start.elapsed() >= Duration::from_secs(60) {
            if *count > Self::A_MINUTE {
                let more = *count - Self::A_MINUTE;
                tracing::warn!(event = "reply_rejected", reason = %format!("and {more} more, not logged"));
            }
            (*start, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count <= Self::A_MINUTE {
            tracing::warn!(event = "reply_rejected", peer = %peer.addr, minion_id = minion, reason = why);
        }
    }
}

/// Takes one message of the reply port and gives the frames of its answer.
pub(super) async fn take(
    gateway: Arc<Gateway>,
    peer: Peer,
    frames: Vec<Bytes>,
) -> Option<Vec<Bytes>> {
    let unverified = match UnverifiedReply::from_frames(&frames) {
        Ok(unverified) => unverified,
        Err(error) => {
            // Never the cause's own words: serde quotes what the stranger sent.
            gateway.rejections.log(peer, "", &error.to_string());
            return None;
        }
    };
    let sha256 = Sha256Hex::of(&frames[0]);
    let minion_id = unverified.claimed_minion().clone();
    let reject = |why: &str| {
        gateway.rejections.log(peer, minion_id.as_str(), why);
        Some(Acknowledgement::Rejected(sha256.clone()).frames())
    };
    let key = match gateway.master.accepted_key(&minion_id) {
        Ok(key) => key,
        Err(error @ KeyFileError::Missing(_)) => return reject(&words(&error)),
        // Our own trouble, or a file in the middle of being written: the executor may come again.
        Err(error) => {
            gateway
                .rejections
                .log(peer, minion_id.as_str(), &words(&error));
            return None;
        }
    };
    let (reply, signed) = match unverified.verify(&key) {
        Ok(verified) => verified,
        Err(bad) => return reject(&words(&bad)),
    };
    match record(&gateway, &reply, &signed, key.fingerprint()).await {
        Ok(Verdict::Recorded) => {
            gateway.questions.deliver(&reply);
            Some(Acknowledgement::Recorded(sha256).frames())
        }
        Ok(Verdict::Rejected(why)) => reject(why),
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
            receipt,
            claim_id,
            reason,
            survival: _,
        } => (
            Event::Receipt {
                receipt: receipt.clone(),
                claim_id: *claim_id,
                reason: *reason,
            },
            receipt.binding(),
        ),
        Answer::Refused { binding, reason } => (Event::Refusal { reason: *reason }, binding),
        Answer::Running {
            binding,
            done,
            total,
            survival: _,
        } => {
            let progress = done
                .zip(*total)
                .map(|(done, total)| Progress { done, total });
            if !expected {
                return unasked_running(gateway, binding.clone(), key, progress, signed.clone())
                    .await;
            }
            let detail = progress
                .map(|p| format!("{}/{}", p.done, p.total))
                .unwrap_or_default();
            (observed(Observation::Running, detail), binding)
        }
        Answer::NotClaimed { binding, reason } => (
            observed(Observation::NotClaimed, reason.as_str().to_owned()),
            binding,
        ),
        Answer::Abandoned { binding } => (observed(Observation::Abandoned, String::new()), binding),
        Answer::Conflict { binding, .. } => {
            (observed(Observation::Conflict, String::new()), binding)
        }
        Answer::Expired { binding } => (observed(Observation::Expired, String::new()), binding),
        // True in the moment of the question only.
        Answer::NotStarted { binding } => {
            if !expected {
                return Ok(Verdict::Rejected("an observation that was not asked for"));
            }
            (observed(Observation::NotStarted, String::new()), binding)
        }
    };
    let (binding, signed) = (binding.clone(), signed.clone());
    blocking(gateway, move |gateway| {
        gateway.evidence(&binding, &key, &event, &signed)
    })
    .await
}

fn observed(kind: Observation, detail: String) -> Event {
    Event::Observed { kind, detail }
}

impl Gateway {
    /// The record that evidence belongs to: **immutable-binding**, whole and exact, and the key that was
    /// accepted when it was claimed.
    fn owner(
        &self,
        binding: &Binding,
        key: &Sha256Hex,
    ) -> Result<Result<Record, Verdict>, JournalError> {
        let Some(record) = self.journal.find_jid(binding.jid)? else {
            return Ok(Err(Verdict::Rejected(
                "a jid that this journal never claimed",
            )));
        };
        if record.binding().as_ref() != Some(binding) {
            return Ok(Err(Verdict::Rejected(
                "a binding that differs from the claim",
            )));
        }
        if record
            .claim
            .as_ref()
            .is_none_or(|claim| claim.minion_key != *key)
        {
            return Ok(Err(Verdict::Rejected(
                "a key other than the one accepted at the claim",
            )));
        }
        Ok(Ok(record))
    }

    fn evidence(
        &self,
        binding: &Binding,
        key: &Sha256Hex,
        event: &Event,
        signed: &SignedReply,
    ) -> Result<Verdict, JournalError> {
        let record = match self.owner(binding, key)? {
            Ok(record) => record,
            Err(verdict) => return Ok(verdict),
        };
        self.apply(record.dispatch(), event, Some(signed))?;
        if matches!(event, Event::Receipt { .. } | Event::Refusal { .. }) {
            self.progress.forget(binding.jid);
        }
        Ok(Verdict::Recorded)
    }
}

/// What the executor tells unasked while it runs: progress for people who watch, kept in memory; but for a
/// record that did not run, it is evidence that it did.
async fn unasked_running(
    gateway: &Arc<Gateway>,
    binding: Binding,
    key: Sha256Hex,
    progress: Option<Progress>,
    signed: SignedReply,
) -> Result<Verdict, JournalError> {
    blocking(gateway, move |gateway| {
        let record = match gateway.owner(&binding, &key)? {
            Ok(record) => record,
            Err(verdict) => return Ok(verdict),
        };
        if !record.state.awaits_evidence() {
            let event = observed(Observation::Running, String::new());
            return gateway.evidence(&binding, &key, &event, &signed);
        }
        // An executor that has no counts yet only says that it lives.
        if let Some(progress) = progress
            && gateway.progress.put(binding.jid, progress)
        {
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
