//! The local API's JSON: what `gw serve` answers on its socket, and what the CLI reads.
//!
//! These types are apart from the journal's, with a written conversion, so that neither can change the
//! other by accident. `docs/api.md` describes them for other clients.

use serde::{Deserialize, Serialize};

use crate::journal::{HistoryRow, Record};
use crate::record::Event;

/// `POST /v1/requests`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishBody {
    /// A canonical UUID; one is drawn if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The one machine.
    pub minion_id: String,
    /// What to apply.
    pub profile: String,
    /// High data for `custom`, in any JSON spelling; it is made canonical. As text, so that repeated keys
    /// are seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_data: Option<String>,
}

/// A record as every command shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordView {
    /// The caller's name for the request.
    pub request_id: String,
    /// The one machine.
    pub minion_id: String,
    /// What to apply.
    pub profile: String,
    /// SHA-256 of the state data; empty for a fixed role.
    pub state_digest: String,
    /// The state's name.
    pub state: String,
    /// Why it is so, where the name does not say it all.
    pub reason: Option<String>,
    /// Which dispatch, from 1.
    pub generation: u32,
    /// The Salt job; none before the claim.
    pub jid: Option<String>,
    /// `ipc` or `request`; none before the claim.
    pub transport: Option<String>,
    /// States passed, by the receipt.
    pub passed: Option<u32>,
    /// States in all, by the receipt.
    pub total: Option<u32>,
    /// The executor's last word while it runs. Progress, not evidence.
    pub progress: Option<Progress>,
    /// Whether this record keeps its minion from other jobs.
    pub blocks_target: bool,
    /// When the request was made durable.
    pub accepted_at: String,
    /// The executor does not start later than this; none before the claim.
    pub not_after: Option<String>,
    /// SHA-256 of the master's public key at the claim.
    pub master_key: Option<String>,
    /// SHA-256 of the minion's accepted key at the claim.
    pub minion_key: Option<String>,
    /// The exact nine fields, once they are known.
    pub receipt: Option<serde_json::Value>,
    /// Rises with every change; `after=` waits for a higher one.
    pub revision: i64,
    /// What happened, from the beginning; in `GET /v1/requests/{id}/history` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryView>,
}

/// States done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// States finished.
    pub done: u32,
    /// States in all.
    pub total: u32,
}

/// One thing that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HistoryView {
    /// Its place in the journal.
    pub seq: i64,
    /// When.
    pub at: String,
    /// What, by name.
    pub event: String,
    /// What else there is to say.
    pub detail: String,
    /// The state's name after it.
    pub state: String,
    /// What it raised.
    pub alarm: Option<String>,
    /// SHA-256 of the signed bytes that prove it.
    pub evidence_sha256: Option<String>,
}

impl RecordView {
    /// The view of a record, with the progress that is known for its job.
    pub fn new(record: &Record, progress: Option<Progress>) -> Self {
        let claim = record.claim.as_ref();
        let receipt = record.state.receipt();
        let ended = !record.state.awaits_evidence();
        RecordView {
            request_id: record.request.request_id.to_string(),
            minion_id: record.request.minion_id.to_string(),
            profile: record.request.profile.to_string(),
            state_digest: record.request.state_digest().to_string(),
            state: record.state.name().to_owned(),
            reason: record.state.reason().map(str::to_owned),
            generation: record.generation,
            jid: claim.map(|claim| claim.jid.to_string()),
            transport: claim.map(|claim| claim.transport.as_str().to_owned()),
            passed: receipt.map(|receipt| receipt.passed()),
            total: receipt.map(|receipt| receipt.total()),
            progress: progress.filter(|_| !ended),
            blocks_target: record.state.blocks_target() || record.contradicted,
            accepted_at: record.accepted_at.to_string(),
            not_after: claim.map(|claim| claim.not_after.to_string()),
            master_key: claim.map(|claim| claim.master_key.to_string()),
            minion_key: claim.map(|claim| claim.minion_key.to_string()),
            receipt: receipt
                .map(|receipt| serde_json::to_value(receipt).expect("a receipt is plain data")),
            revision: record.revision,
            history: Vec::new(),
        }
    }

    /// Whether nothing more will come of this dispatch by itself.
    pub fn is_ended(&self) -> bool {
        !matches!(
            self.state.as_str(),
            "accepted" | "claimed" | "sent" | "send_uncertain"
        )
    }
}

impl From<HistoryRow> for HistoryView {
    fn from(row: HistoryRow) -> Self {
        let detail = match &row.event {
            Event::Claim(claim) => format!("jid {} over {}", claim.jid, claim.transport.as_str()),
            Event::Cancel { why } | Event::SendFailed { why } | Event::SendUnclear { why } => {
                why.clone()
            }
            Event::SendDone {
                read_by_publisher: true,
            } => "read by the publisher".to_owned(),
            Event::SendDone {
                read_by_publisher: false,
            }
            | Event::Restart => String::new(),
            Event::Receipt { receipt, .. } => {
                format!(
                    "{} {}/{}",
                    receipt.outcome().as_str(),
                    receipt.passed(),
                    receipt.total()
                )
            }
            Event::Refusal { reason } => reason.as_str().to_owned(),
            Event::Observed { kind, detail } if detail.is_empty() => kind.as_str().to_owned(),
            Event::Observed { kind, detail } => format!("{} {detail}", kind.as_str()),
        };
        HistoryView {
            seq: row.seq,
            at: row.at.to_string(),
            event: row.event.name().to_owned(),
            detail,
            state: row.state,
            alarm: row.alarm,
            evidence_sha256: row.evidence_sha256,
        }
    }
}

/// Every error answer's body: `{"error": {...}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorView,
}

/// One error: a stable code for programs, words for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorView {
    /// Stable; docs/operating.md has a paragraph for each.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The request to ask for, where it may have been recorded all the same. Set by `gw` itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}
