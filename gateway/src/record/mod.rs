//! The state of one dispatch, and the one pure function that moves it.
//!
//! ```text
//!                   cancel
//!   accepted ─────────────────────────────► not_sent
//!      │ claim                                 ▲
//!      ▼            nothing left this process, │
//!   claimed ──────── or definitely rejected ───┘
//!      │ │
//!      │ └─ partial, unclear, or a restart ──► send_uncertain ─┐
//!      └─── every byte left ─────────────────► sent ───────────┤
//!                                                              │ evidence
//!             ┌───────────┬──────────┬─────────────┬───────────┘
//!             ▼           ▼          ▼             ▼
//!         succeeded    failed     unknown       refused
//! ```
//!
//! **evidence-only**: silence, absence, age, counts and error text are [`Event::Observed`], which moves
//! nothing. **terminal-once**: from an ended state nothing leads on; an equal receipt is silent, any other
//! evidence is an [`Alarm`]. Live operation and restart both go through [`transition`]; there is no other
//! way to write a state.

use gw_wire::id::{Jid, Sha256Hex, Token};
use gw_wire::receipt::{Outcome, Receipt};
use gw_wire::reply::{RefusalReason, UnknownReason};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Transport;

/// What was made durable before the one send: **intent-before-send**.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The Salt job that carries the request.
    pub jid: Jid,
    /// How it leaves.
    pub transport: Transport,
    /// The executor does not start later than this.
    pub not_after: Timestamp,
    /// SHA-256 of the master's public key.
    pub master_key: Sha256Hex,
    /// SHA-256 of the minion's accepted key; evidence counts under this key only.
    pub minion_key: Sha256Hex,
}

/// The state of one dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// The request is durable; no jid, nothing sent.
    Accepted,
    /// The intent is durable; after a crash here it may have been sent.
    Claimed,
    /// Every byte reached the kernel, or the master acknowledged.
    Sent,
    /// It may have been sent.
    SendUncertain {
        /// What is known, for a person.
        why: String,
    },
    /// Definitely not sent.
    NotSent {
        /// Why, for a person; the master's own words if it rejected.
        why: String,
    },
    /// The executor's durable word that this jid never ran and never will.
    Refused {
        /// Why.
        reason: RefusalReason,
    },
    /// Every state ran and passed.
    Succeeded {
        /// The nine fields.
        receipt: Receipt,
        /// The random id of the claim that ran.
        claim_id: Token,
    },
    /// At least one state failed.
    Failed {
        /// The nine fields.
        receipt: Receipt,
        /// The random id of the claim that ran.
        claim_id: Token,
    },
    /// It may have run, and nobody can know how it ended.
    Unknown {
        /// The nine fields.
        receipt: Receipt,
        /// The random id of the claim that ran.
        claim_id: Token,
        /// What the executor said beside them.
        reason: Option<UnknownReason>,
    },
}

/// What can happen to a dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The dispatcher is about to send.
    Claim(Claim),
    /// A precondition failed before the claim.
    Cancel {
        /// Why, for a person.
        why: String,
    },
    /// The transport took all of it.
    SendDone {
        /// Whether the publisher was seen to have read it (ipc only). Evidence for a person, no proof.
        read_by_publisher: bool,
    },
    /// The transport is sure that nothing was published.
    SendFailed {
        /// Why, for a person.
        why: String,
    },
    /// The transport cannot tell.
    SendUnclear {
        /// Why, for a person.
        why: String,
    },
    /// The daemon started and found the record.
    Restart,
    /// A verified terminal receipt.
    Receipt {
        /// The nine fields, whose binding is this dispatch's.
        receipt: Receipt,
        /// The random id of the claim that ran.
        claim_id: Token,
        /// Why it is unknown, if it is.
        reason: Option<UnknownReason>,
    },
    /// A verified tombstone.
    Refusal {
        /// Why.
        reason: RefusalReason,
    },
    /// A verified answer that ends nothing.
    Observed {
        /// What it says.
        kind: Observation,
        /// What else it says, for a person.
        detail: String,
    },
}

/// What a verified answer says that ends nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// Claimed, and its executor or worker lives.
    Running,
    /// Claimed, not running, no receipt.
    Abandoned,
    /// No trace of the jid in that moment.
    NotStarted,
    /// No trace of the jid, and retention may have deleted it.
    Expired,
    /// Not run, and no tombstone could be made.
    NotClaimed,
    /// The minion's store has the request, or the jid, with other values.
    Conflict,
}

impl Observation {
    /// The word in history and logs; the answer's kind on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Observation::Running => "running",
            Observation::Abandoned => "abandoned",
            Observation::NotStarted => "not_started",
            Observation::Expired => "expired",
            Observation::NotClaimed => "not_claimed",
            Observation::Conflict => "conflict",
        }
    }
}

/// Something that an operator must look at; it never changes a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// A second terminal receipt that differs from the first.
    ReceiptDiffers,
    /// Evidence of execution for a dispatch that was definitely not sent, or refused. Blocks the target.
    RanAfterAll,
    /// A refusal for a dispatch that has a receipt.
    RefusedAfterReceipt,
    /// The transport was sure that nothing left, and the minion's evidence says otherwise.
    LeftAfterAll,
    /// The minion knows the request, or the jid, with other values: a lost or restored journal, or a
    /// second gateway. Blocks the target.
    Conflict,
    /// Two claims of one jid: two machines run under one key. Blocks the target.
    TwoClaims,
}

impl Alarm {
    /// The word in logs and history.
    pub fn as_str(self) -> &'static str {
        match self {
            Alarm::ReceiptDiffers => "receipt_differs",
            Alarm::RanAfterAll => "ran_after_all",
            Alarm::RefusedAfterReceipt => "refused_after_receipt",
            Alarm::LeftAfterAll => "left_after_all",
            Alarm::Conflict => "conflict",
            Alarm::TwoClaims => "two_claims",
        }
    }

    /// Whether the target must stay blocked: something ran, or may have run, that no record accounts for.
    pub fn blocks(self) -> bool {
        match self {
            Alarm::RanAfterAll | Alarm::Conflict | Alarm::TwoClaims => true,
            Alarm::ReceiptDiffers | Alarm::RefusedAfterReceipt | Alarm::LeftAfterAll => false,
        }
    }
}

/// What an event does to a dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Step {
    /// The new state; only the move to `Claimed` lets its caller send.
    Move(State),
    /// Nothing new about the state, but worth a row of history.
    Note,
    /// Nothing new at all.
    Silent,
    /// A contradiction: kept, acknowledged, raised.
    Alarm(Alarm),
}

/// An event that cannot happen in a state: a false belief of our own code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {event} cannot happen in state {state}")]
pub struct IllegalTransition {
    /// The state's name.
    pub state: &'static str,
    /// The event's name.
    pub event: &'static str,
}

/// The whole machine. Spelled out pair by pair, so that a new state or event stops the build here.
pub fn transition(state: &State, event: &Event) -> Result<Step, IllegalTransition> {
    use State as S;
    let illegal = || {
        Err(IllegalTransition {
            state: state.name(),
            event: event.name(),
        })
    };
    let step = match event {
        Event::Claim(_) => match state {
            S::Accepted => Step::Move(S::Claimed),
            S::Claimed
            | S::Sent
            | S::SendUncertain { .. }
            | S::NotSent { .. }
            | S::Refused { .. }
            | S::Succeeded { .. }
            | S::Failed { .. }
            | S::Unknown { .. } => return illegal(),
        },
        Event::Cancel { why } => match state {
            S::Accepted => Step::Move(S::NotSent { why: why.clone() }),
            S::Claimed
            | S::Sent
            | S::SendUncertain { .. }
            | S::NotSent { .. }
            | S::Refused { .. }
            | S::Succeeded { .. }
            | S::Failed { .. }
            | S::Unknown { .. } => return illegal(),
        },
        // The answer of the executor can overtake the result of the send: evidence stands.
        Event::SendDone { .. } => match state {
            S::Claimed => Step::Move(S::Sent),
            S::Refused { .. } | S::Succeeded { .. } | S::Failed { .. } | S::Unknown { .. } => {
                Step::Note
            }
            S::Accepted | S::Sent | S::SendUncertain { .. } | S::NotSent { .. } => {
                return illegal();
            }
        },
        Event::SendUnclear { why } => match state {
            S::Claimed => Step::Move(S::SendUncertain { why: why.clone() }),
            S::Refused { .. } | S::Succeeded { .. } | S::Failed { .. } | S::Unknown { .. } => {
                Step::Note
            }
            S::Accepted | S::Sent | S::SendUncertain { .. } | S::NotSent { .. } => {
                return illegal();
            }
        },
        Event::SendFailed { why } => match state {
            S::Claimed => Step::Move(S::NotSent { why: why.clone() }),
            // The transport swears that nothing left, and yet there is evidence: somebody lies.
            S::Refused { .. } | S::Succeeded { .. } | S::Failed { .. } | S::Unknown { .. } => {
                Step::Alarm(Alarm::LeftAfterAll)
            }
            S::Accepted | S::Sent | S::SendUncertain { .. } | S::NotSent { .. } => {
                return illegal();
            }
        },
        Event::Restart => match state {
            S::Claimed => Step::Move(S::SendUncertain {
                why: "the daemon stopped between the claim and the result of the send".to_owned(),
            }),
            S::Accepted
            | S::Sent
            | S::SendUncertain { .. }
            | S::NotSent { .. }
            | S::Refused { .. }
            | S::Succeeded { .. }
            | S::Failed { .. }
            | S::Unknown { .. } => Step::Silent,
        },
        Event::Receipt {
            receipt,
            claim_id,
            reason,
        } => match state {
            S::Accepted => return illegal(),
            S::Claimed | S::Sent | S::SendUncertain { .. } => {
                Step::Move(ended(receipt.clone(), *claim_id, *reason))
            }
            S::NotSent { .. } | S::Refused { .. } => Step::Alarm(Alarm::RanAfterAll),
            S::Succeeded {
                receipt: first,
                claim_id: first_id,
            }
            | S::Failed {
                receipt: first,
                claim_id: first_id,
            }
            | S::Unknown {
                receipt: first,
                claim_id: first_id,
                ..
            } => {
                if first_id != claim_id {
                    Step::Alarm(Alarm::TwoClaims)
                } else if first != receipt {
                    Step::Alarm(Alarm::ReceiptDiffers)
                } else {
                    Step::Silent
                }
            }
        },
        Event::Refusal { reason } => match state {
            S::Accepted => return illegal(),
            S::Claimed | S::Sent | S::SendUncertain { .. } => {
                Step::Move(S::Refused { reason: *reason })
            }
            // Definite on both sides: it did not run.
            S::NotSent { .. } => Step::Note,
            S::Refused { .. } => Step::Silent,
            S::Succeeded { .. } | S::Failed { .. } | S::Unknown { .. } => {
                Step::Alarm(Alarm::RefusedAfterReceipt)
            }
        },
        Event::Observed { kind, .. } => match (kind, state) {
            (_, S::Accepted) => return illegal(),
            (Observation::Conflict, _) => Step::Alarm(Alarm::Conflict),
            // A claim on the minion is evidence of execution.
            (
                Observation::Running | Observation::Abandoned,
                S::NotSent { .. } | S::Refused { .. },
            ) => Step::Alarm(Alarm::RanAfterAll),
            (
                Observation::NotStarted | Observation::Expired | Observation::NotClaimed,
                S::NotSent { .. } | S::Refused { .. },
            )
            | (
                Observation::Running
                | Observation::Abandoned
                | Observation::NotStarted
                | Observation::Expired
                | Observation::NotClaimed,
                S::Claimed | S::Sent | S::SendUncertain { .. },
            ) => Step::Note,
            // The receipt says more.
            (
                Observation::Running
                | Observation::Abandoned
                | Observation::NotStarted
                | Observation::Expired
                | Observation::NotClaimed,
                S::Succeeded { .. } | S::Failed { .. } | S::Unknown { .. },
            ) => Step::Silent,
        },
    };
    Ok(step)
}

fn ended(receipt: Receipt, claim_id: Token, reason: Option<UnknownReason>) -> State {
    match receipt.outcome() {
        Outcome::Succeeded => State::Succeeded { receipt, claim_id },
        Outcome::Failed => State::Failed { receipt, claim_id },
        Outcome::Unknown => State::Unknown {
            receipt,
            claim_id,
            reason,
        },
    }
}

impl State {
    /// The state's name in the journal, the API, the CLI and the logs.
    pub fn name(&self) -> &'static str {
        match self {
            State::Accepted => "accepted",
            State::Claimed => "claimed",
            State::Sent => "sent",
            State::SendUncertain { .. } => "send_uncertain",
            State::NotSent { .. } => "not_sent",
            State::Refused { .. } => "refused",
            State::Succeeded { .. } => "succeeded",
            State::Failed { .. } => "failed",
            State::Unknown { .. } => "unknown",
        }
    }

    /// Every state's name.
    pub const NAMES: [&'static str; 9] = [
        "accepted",
        "claimed",
        "sent",
        "send_uncertain",
        "not_sent",
        "refused",
        "succeeded",
        "failed",
        "unknown",
    ];

    /// Whether evidence may still come: the poller asks about these.
    pub fn awaits_evidence(&self) -> bool {
        matches!(
            self,
            State::Claimed | State::Sent | State::SendUncertain { .. }
        )
    }

    /// Whether it is unresolved: nobody may dispatch to this minion beside it. **one-open**
    pub fn blocks_target(&self) -> bool {
        self.awaits_evidence() || matches!(self, State::Unknown { .. })
    }

    /// The terminal receipt, if there is one.
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            State::Succeeded { receipt, .. }
            | State::Failed { receipt, .. }
            | State::Unknown { receipt, .. } => Some(receipt),
            State::Accepted
            | State::Claimed
            | State::Sent
            | State::SendUncertain { .. }
            | State::NotSent { .. }
            | State::Refused { .. } => None,
        }
    }

    /// Why it is so, for a person; none where the name says it all.
    pub fn reason(&self) -> Option<&str> {
        match self {
            State::SendUncertain { why } | State::NotSent { why } => Some(why),
            State::Refused { reason } => Some(reason.as_str()),
            State::Unknown { reason, .. } => reason.map(UnknownReason::as_str),
            State::Accepted
            | State::Claimed
            | State::Sent
            | State::Succeeded { .. }
            | State::Failed { .. } => None,
        }
    }
}

impl Event {
    /// The event's name in history and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Claim(_) => "claim",
            Event::Cancel { .. } => "cancel",
            Event::SendDone { .. } => "send_done",
            Event::SendFailed { .. } => "send_failed",
            Event::SendUnclear { .. } => "send_unclear",
            Event::Restart => "restart",
            Event::Receipt { .. } => "receipt",
            Event::Refusal { .. } => "refusal",
            Event::Observed { .. } => "observed",
        }
    }
}

#[cfg(test)]
mod tests;
