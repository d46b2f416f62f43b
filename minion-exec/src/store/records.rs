//! What stands in the store's files, beside receipts. Every record names its format and is read strictly.

use gw_wire::id::{Jid, RequestId, Sha256Hex, Token};
use gw_wire::receipt::Binding;
use gw_wire::reply::{RefusalReason, Survival, UnknownReason};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::machine::Machine;

/// The only format there is.
const FORMAT: u32 = 1;
/// The largest record, in bytes of JSON. The longest legal one takes under 900.
pub const MAX_RECORD_BYTES: usize = 4096;

/// Why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not the fields that this executor writes: torn, foreign, or of a later executor.
    #[error("not a record that this executor understands")]
    Json(#[from] serde_json::Error),
    /// Written by a later executor.
    #[error("record of format {0}, not 1")]
    Format(u32),
}

/// What a jid came to: of the two only one, for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JidRecord {
    /// It was claimed: it ran, runs, or may have run.
    Claim(Claimed),
    /// It never ran and never will.
    Tombstone(Tombstone),
}

/// The durable claim of a job; the same in the jid's file and in the request's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claimed {
    /// The job.
    pub binding: Binding,
    /// Which dispatch of the request it is.
    pub generation: u32,
    /// Drawn for this claim; two for one jid mean a cloned machine.
    pub claim_id: Token,
    /// By the minion's clock.
    pub claimed_at: Timestamp,
    /// Whether the job is out of reach of a restart of salt-minion.
    pub survival: Survival,
}

/// A refusal for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// The job.
    pub binding: Binding,
    /// Which dispatch of the request it is.
    pub generation: u32,
    /// Why.
    pub reason: RefusalReason,
    /// By the minion's clock.
    pub refused_at: Timestamp,
}

/// A jid's record and its place in the store's chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linked {
    /// Counts claims and tombstones from 1.
    pub sequence: u64,
    /// SHA-256 of the bytes of the record before; the store's genesis for the first.
    pub previous: Sha256Hex,
    /// The record.
    pub jid_record: JidRecord,
}

impl JidRecord {
    /// The job.
    pub fn binding(&self) -> &Binding {
        match self {
            JidRecord::Claim(claimed) => &claimed.binding,
            JidRecord::Tombstone(tombstone) => &tombstone.binding,
        }
    }
}

/// The identity of a store: the one record that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Drawn when the store was made, and again when its chain lacked what the gateway had seen.
    pub id: Token,
    /// What the first record names as the one before it.
    pub genesis: Sha256Hex,
    /// Where the store was made.
    pub machine: Machine,
    /// `id` was drawn again, and no publication has named it yet: nothing runs.
    pub renewed: bool,
    /// The highest jid that retention has deleted.
    pub pruned_below: Option<Jid>,
}

/// That the gateway has the end of a job in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    /// The request whose receipt may be deleted.
    pub request_id: RequestId,
    /// When the job was claimed or refused, by the minion's clock.
    pub since: Timestamp,
}

/// Why a receipt says `unknown`. Kept apart, because a receipt has no field for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Why {
    /// The reason.
    pub reason: UnknownReason,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    format: u32,
    record: T,
}

/// A record's JSON.
pub fn encode<T: Serialize>(record: T) -> Vec<u8> {
    serde_json::to_vec(&Envelope {
        format: FORMAT,
        record,
    })
    .expect("a record is plain data")
}

/// Reads a record.
pub fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T, RecordError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } = serde_json::from_slice(json)?;
    if format != FORMAT {
        return Err(RecordError::Format(format));
    }
    let Envelope { record, .. } = serde_json::from_slice(json)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::binding;
    use proptest::prelude::*;

    fn tombstone() -> JidRecord {
        JidRecord::Tombstone(Tombstone {
            binding: binding(1),
            generation: 1,
            reason: RefusalReason::Late,
            refused_at: gw_wire::id::now(),
        })
    }

    #[test]
    fn a_record_cut_anywhere_or_of_another_format_is_refused() {
        let json = encode(tombstone());
        assert_eq!(
            decode::<JidRecord>(&json).expect("reads"),
            tombstone_like(&json)
        );
        for end in 0..json.len() {
            assert!(decode::<JidRecord>(&json[..end]).is_err(), "cut at {end}");
        }
        let later = String::from_utf8(json)
            .expect("json")
            .replace("\"format\":1", "\"format\":2");
        assert!(matches!(
            decode::<JidRecord>(later.as_bytes()),
            Err(RecordError::Format(2))
        ));
    }

    fn tombstone_like(json: &[u8]) -> JidRecord {
        let value: serde_json::Value = serde_json::from_slice(json).expect("json");
        serde_json::from_value(value["record"].clone()).expect("a record")
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(decode::<JidRecord>(&bytes));
            drop(decode::<Claimed>(&bytes));
            drop(decode::<Identity>(&bytes));
        }

        #[test]
        fn a_changed_byte_never_panics_and_never_makes_the_other_kind(at in 0usize..200, to in any::<u8>()) {
            let mut json = encode(tombstone());
            let at = at % json.len();
            json[at] = to;
            if let Ok(record) = decode::<JidRecord>(&json) {
                prop_assert!(matches!(record, JidRecord::Tombstone(_)));
            }
        }
    }
}
