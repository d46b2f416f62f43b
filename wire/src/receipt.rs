//! The receipt of protocol 1: nine fields, no more and no fewer.
//!
//! It is the one thing that says how a job ended. It holds counts and names of ours only: nothing that a
//! state was called, said, changed or printed.

use serde::{Deserialize, Serialize};

use crate::id::{Jid, MinionId, Profile, RequestId, StateDigest};

/// The only protocol there is.
pub const PROTOCOL: u32 = 1;

/// The largest receipt, in bytes of JSON. The nine fields of the longest legal values take under 600.
pub const MAX_RECEIPT_BYTES: usize = 2048;

/// The most states that a receipt can count. Far above any real run; keeps the numbers small integers.
pub const MAX_STATES: u32 = 1_000_000;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every state ran and every result was exactly True.
    Succeeded,
    /// A valid mapping of results that holds a False.
    Failed,
    /// It may have run, in part or in whole: no result can be relied on.
    Unknown,
}

impl Outcome {
    /// The word in the receipt.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
        }
    }
}

/// What a claim, a publication and a receipt have in common and may never change: the binding of one job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The one machine.
    pub minion_id: MinionId,
    /// The caller's name for the request.
    pub request_id: RequestId,
    /// The Salt job that carries it.
    pub jid: Jid,
    /// What to apply.
    pub profile: Profile,
    /// SHA-256 of the state data, empty for a fixed role.
    pub state_digest: StateDigest,
}

/// The terminal receipt of one job, durable on the minion before Salt sees a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "ReceiptFields", into = "ReceiptFields")]
pub struct Receipt {
    binding: Binding,
    outcome: Outcome,
    passed: u32,
    total: u32,
}

/// A receipt whose fields contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// Another protocol.
    #[error("receipt is of protocol {0}, not 1")]
    Protocol(u32),
    /// Counts that no run can have, or that the outcome rules out.
    #[error("receipt counts {passed} of {total} passed, which {outcome} cannot be")]
    Counts {
        /// The claimed outcome.
        outcome: &'static str,
        /// States whose result was True.
        passed: u32,
        /// All states.
        total: u32,
    },
    /// A fixed role with a digest, or custom data without.
    #[error("receipt of profile {0} has the wrong kind of state digest")]
    Digest(Profile),
    /// Too long to be a receipt.
    #[error("receipt is {0} bytes, over the limit of {MAX_RECEIPT_BYTES}")]
    TooLong(usize),
    /// Not the nine fields.
    #[error("receipt is not protocol 1's nine fields")]
    Json(#[source] serde_json::Error),
}

impl Receipt {
    /// Makes a receipt whose counts fit its outcome: success needs at least one state and all of them
    /// passed; failure needs one that did not pass.
    pub fn new(
        binding: Binding,
        outcome: Outcome,
        passed: u32,
        total: u32,
    ) -> Result<Self, ReceiptError> {
        let fits = match outcome {
            Outcome::Succeeded => total > 0 && passed == total,
            Outcome::Failed => passed < total,
            Outcome::Unknown => passed <= total,
        };
        if !fits || total > MAX_STATES {
            return Err(ReceiptError::Counts {
                outcome: outcome.as_str(),
                passed,
                total,
            });
        }
        if (binding.profile == Profile::Custom) == binding.state_digest.as_str().is_empty() {
            return Err(ReceiptError::Digest(binding.profile));
        }
        Ok(Receipt {
            binding,
            outcome,
            passed,
            total,
        })
    }

    /// Reads a receipt from JSON: at most [`MAX_RECEIPT_BYTES`], exactly the nine fields, each once.
    pub fn from_json(json: &[u8]) -> Result<Self, ReceiptError> {
        if json.len() > MAX_RECEIPT_BYTES {
            return Err(ReceiptError::TooLong(json.len()));
        }
        let fields: ReceiptFields = serde_json::from_slice(json).map_err(ReceiptError::Json)?;
        fields.try_into()
    }

    /// The receipt as JSON, its fields in protocol 1's order.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a receipt is plain data")
    }

    /// What the receipt is for.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// States whose result was exactly True.
    pub fn passed(&self) -> u32 {
        self.passed
    }

    /// All states that the run had.
    pub fn total(&self) -> u32 {
        self.total
    }
}

/// The nine fields as they stand in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiptFields {
    protocol: u32,
    minion_id: MinionId,
    request_id: RequestId,
    jid: Jid,
    profile: Profile,
    state_digest: StateDigest,
    status: Outcome,
    passed: u32,
    total: u32,
}

impl TryFrom<ReceiptFields> for Receipt {
    type Error = ReceiptError;

    fn try_from(fields: ReceiptFields) -> Result<Self, ReceiptError> {
        if fields.protocol != PROTOCOL {
            return Err(ReceiptError::Protocol(fields.protocol));
        }
        let binding = Binding {
            minion_id: fields.minion_id,
            request_id: fields.request_id,
            jid: fields.jid,
            profile: fields.profile,
            state_digest: fields.state_digest,
        };
        Receipt::new(binding, fields.status, fields.passed, fields.total)
    }
}

impl From<Receipt> for ReceiptFields {
    fn from(receipt: Receipt) -> Self {
        ReceiptFields {
            protocol: PROTOCOL,
            minion_id: receipt.binding.minion_id,
            request_id: receipt.binding.request_id,
            jid: receipt.binding.jid,
            profile: receipt.binding.profile,
            state_digest: receipt.binding.state_digest,
            status: receipt.outcome,
            passed: receipt.passed,
            total: receipt.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the protocol's description.
    const EXAMPLE: &str = r#"{"protocol":1,"minion_id":"client-123e4567-e89b-42d3-a456-426614174000","request_id":"0b0e4567-e89b-42d3-a456-426614174000","jid":"20261130220939633426","profile":"configure","state_digest":"","status":"succeeded","passed":60,"total":60}"#;

    #[test]
    fn the_nine_fields_read_and_write_in_their_order() {
        let receipt = Receipt::from_json(EXAMPLE.as_bytes()).expect("the example is a receipt");
        assert_eq!(receipt.to_json(), EXAMPLE);
        assert_eq!((receipt.passed(), receipt.total()), (60, 60));
    }

    #[test]
    fn a_missing_unknown_or_repeated_field_is_refused() {
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(EXAMPLE).expect("an object");
        assert_eq!(fields.len(), 9);
        for name in fields.keys() {
            let mut fewer = fields.clone();
            fewer.remove(name);
            let json = serde_json::to_vec(&fewer).expect("json");
            assert!(Receipt::from_json(&json).is_err(), "without {name}");
        }
        assert!(
            Receipt::from_json(EXAMPLE.replace("{\"pro", "{\"x\":1,\"pro").as_bytes()).is_err()
        );
        assert!(
            Receipt::from_json(
                EXAMPLE
                    .replace("{\"pro", "{\"jid\":\"20261130220939633426\",\"pro")
                    .as_bytes()
            )
            .is_err()
        );
        assert!(Receipt::from_json(format!("{EXAMPLE}{}", " ".repeat(3000)).as_bytes()).is_err());
    }

    #[test]
    fn counts_that_contradict_the_outcome_are_refused() {
        for (status, passed, total) in [
            ("succeeded", 59, 60),
            ("succeeded", 0, 0),
            ("failed", 60, 60),
            ("unknown", 2, 1),
            ("failed", 1, 2_000_000),
        ] {
            let json = EXAMPLE.replace(
                "\"succeeded\",\"passed\":60,\"total\":60",
                &format!("\"{status}\",\"passed\":{passed},\"total\":{total}"),
            );
            assert!(Receipt::from_json(json.as_bytes()).is_err(), "{json}");
        }
        assert!(Receipt::from_json(EXAMPLE.replace("configure", "custom").as_bytes()).is_err());
        assert!(
            Receipt::from_json(
                EXAMPLE
                    .replace("\"protocol\":1", "\"protocol\":2")
                    .as_bytes()
            )
            .is_err()
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            drop(Receipt::from_json(&bytes));
        }

        #[test]
        fn what_is_written_reads_back(passed in 0u32..100, total in 0u32..100) {
            let example = Receipt::from_json(EXAMPLE.as_bytes()).expect("a receipt");
            for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Unknown] {
                if let Ok(receipt) = Receipt::new(example.binding().clone(), outcome, passed, total) {
                    prop_assert_eq!(Receipt::from_json(receipt.to_json().as_bytes()).expect("reads"), receipt);
                }
            }
        }
    }
}
