//! What the master's answer to a clear `publish` means for the record.
//!
//! Only the exact answers that `ClearFuncs.publish` (`salt/master.py`, 3006.27) gives before it publishes
//! are rejections. Everything else, also an error nobody has seen yet, leaves the outcome open: with two
//! transports the first may have published before the second raised.

use rmpv::Value;

use crate::id::Jid;

/// The largest answer that is read, in bytes. It lists one minion and one jid.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The master's answer, weighed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterAnswer {
    /// The master says that it published under our jid.
    Acknowledged,
    /// The master refused before it published; these are its own words.
    Rejected(String),
    /// Anything else.
    Unclear(String),
}

impl MasterAnswer {
    /// Weighs the msgpack answer to a publication under `jid`.
    pub fn parse(bytes: &[u8], jid: Jid) -> Self {
        if bytes.len() > MAX_ANSWER_BYTES {
            return MasterAnswer::Unclear(format!("an answer of {} bytes", bytes.len()));
        }
        let mut rest = bytes;
        let value = match rmpv::decode::read_value_with_max_depth(&mut rest, 16) {
            Ok(value) if rest.is_empty() => value,
            _ => return MasterAnswer::Unclear("an answer that is not msgpack".to_owned()),
        };
        Self::weigh(&value, jid)
    }

    fn weigh(answer: &Value, jid: Jid) -> Self {
        if let Some(error) = get(answer, "error") {
            let name = get(error, "name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let message = get(error, "message")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let words = quote(&format!("{name}: {message}"));
            return match (name, message) {
                ("AuthenticationError", "Authentication error occurred.")
                | ("AuthorizationError", "Authorization error occurred.") => {
                    MasterAnswer::Rejected(words)
                }
                _ => MasterAnswer::Unclear(words),
            };
        }
        let Some(load) = get(answer, "load") else {
            return MasterAnswer::Unclear("an answer without a load".to_owned());
        };
        if let Some(error) = get(load, "error") {
            let words = quote(error.as_str().unwrap_or("an error that is not text"));
            let no_jid = get(load, "jid").is_none_or(Value::is_nil);
            let known = words.starts_with("Master could not resolve minions for target ")
                || words == "Master failed to assign jid";
            return if known && no_jid {
                MasterAnswer::Rejected(words)
            } else {
                MasterAnswer::Unclear(words)
            };
        }
        match get(load, "jid").and_then(Value::as_str) {
            Some(ours) if ours == jid.as_str() => MasterAnswer::Acknowledged,
            _ => MasterAnswer::Unclear("an answer that does not name our jid".to_owned()),
        }
    }
}

fn get<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?
        .iter()
        .find(|(name, _)| name.as_str() == Some(key))
        .map(|(_, value)| value)
}

/// The master's words in one line of at most 200 characters.
fn quote(words: &str) -> String {
    words
        .chars()
        .take(200)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(answer: serde_json::Value) -> MasterAnswer {
        let bytes = rmp_serde::to_vec_named(&answer).expect("msgpack");
        MasterAnswer::parse(&bytes, Jid::parse("20261130220939633426").expect("a jid"))
    }

    #[test]
    fn only_the_four_answers_given_before_publishing_are_rejections() {
        for answer in [
            json!({"error": {"name": "AuthenticationError", "message": "Authentication error occurred."}}),
            json!({"error": {"name": "AuthorizationError", "message": "Authorization error occurred."}}),
            json!({"enc": "clear", "load": {"jid": null, "minions": [], "error": "Master could not resolve minions for target ['x']"}}),
            json!({"enc": "clear", "load": {"error": "Master failed to assign jid"}}),
        ] {
            assert!(
                matches!(parse(answer.clone()), MasterAnswer::Rejected(_)),
                "{answer}"
            );
        }
    }

    #[test]
    fn our_jid_in_the_answer_is_an_acknowledgement() {
        let load = json!({"enc": "clear", "load": {"jid": "20261130220939633426", "minions": ["x"], "missing": []}});
        assert_eq!(parse(load), MasterAnswer::Acknowledged);
    }

    #[test]
    fn every_other_answer_leaves_the_outcome_open() {
        for answer in [
            json!({}),
            json!("bad load"),
            json!({"error": {"name": "TypeError", "message": "boom"}}),
            json!({"error": {"name": "AuthenticationError", "message": "something new"}}),
            json!({"load": {"jid": "20261130220939633427", "minions": ["x"]}}),
            json!({"load": {"jid": "20261130220939633426", "error": "Master failed to assign jid"}}),
            json!({"load": {"error": "Some exception handling minion payload"}}),
        ] {
            assert!(
                matches!(parse(answer.clone()), MasterAnswer::Unclear(_)),
                "{answer}"
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_never_reject(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let answer = MasterAnswer::parse(&bytes, Jid::parse("20261130220939633426").expect("a jid"));
            prop_assert!(matches!(answer, MasterAnswer::Unclear(_)));
        }
    }
}
