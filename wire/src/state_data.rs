//! State data of the `custom` profile: canonical, bounded Salt high data.
//!
//! Canonical means one spelling for one meaning: JSON with keys sorted by their bytes and no white
//! space, so that both ends compute the same SHA-256 from the same bytes. Salt numbers states in the
//! order of their ids in the mapping, so sorted ids also fix the order of execution; a caller who needs
//! another order uses requisites or `order`.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::id::StateDigest;

/// The largest state data, in bytes, as given and in canonical form.
pub const MAX_BYTES: usize = 128 * 1024;
/// The deepest nesting of mappings and lists.
pub const MAX_DEPTH: usize = 16;
/// The most state ids.
pub const MAX_IDS: usize = 256;

/// Per-state options that are refused at any depth.
///
/// `parallel` makes Salt write raw results below its cache directory (`salt/state.py`, `call_parallel`,
/// 3006.27); `fire_event` asks for a raw result on the event bus.
const FORBIDDEN_KEYS: [&str; 2] = ["parallel", "fire_event"];

/// Why state data was refused.
#[derive(Debug, thiserror::Error)]
pub enum StateDataError {
    /// Over [`MAX_BYTES`].
    #[error("state data is {0} bytes, over the limit of {MAX_BYTES}")]
    TooLong(usize),
    /// Not JSON, or JSON that breaks a rule; the source names it.
    #[error("state data is not acceptable high data")]
    Json(#[source] serde_json::Error),
    /// Not a mapping of one to [`MAX_IDS`] state ids, each to a mapping.
    #[error("state data must map 1 to {MAX_IDS} state ids, each to a mapping of states")]
    Shape,
    /// Valid, but spelled otherwise than the canonical form.
    #[error("state data is not in canonical form")]
    NotCanonical,
}

/// Canonical state data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateData {
    canonical: String,
}

impl StateData {
    /// Reads state data in any JSON spelling and makes it canonical.
    pub fn canonicalize(json: &[u8]) -> Result<Self, StateDataError> {
        if json.len() > MAX_BYTES {
            return Err(StateDataError::TooLong(json.len()));
        }
        let mut reader = serde_json::Deserializer::from_slice(json);
        let value = Strict { depth: 0 }
            .deserialize(&mut reader)
            .map_err(StateDataError::Json)?;
        reader.end().map_err(StateDataError::Json)?;
        let ids = value.as_object().ok_or(StateDataError::Shape)?;
        if ids.is_empty() || ids.len() > MAX_IDS || !ids.values().all(Value::is_object) {
            return Err(StateDataError::Shape);
        }
        // serde_json's map is a BTreeMap here: keys leave it in the order of their bytes.
        let canonical = value.to_string();
        if canonical.len() > MAX_BYTES {
            return Err(StateDataError::TooLong(canonical.len()));
        }
        Ok(StateData { canonical })
    }

    /// Reads state data that must already be canonical, as it comes out of a publication.
    pub fn parse_canonical(json: &str) -> Result<Self, StateDataError> {
        let data = Self::canonicalize(json.as_bytes())?;
        if data.canonical == json {
            Ok(data)
        } else {
            Err(StateDataError::NotCanonical)
        }
    }

    /// The canonical JSON.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    /// SHA-256 of the canonical JSON.
    pub fn digest(&self) -> StateDigest {
        StateDigest::of(self.canonical.as_bytes())
    }
}

/// Builds a [`Value`] while refusing repeated keys, forbidden keys and deep nesting.
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(&self) -> Result<Strict, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!(
                "nesting is deeper than the limit of {MAX_DEPTH}"
            )));
        }
        Ok(Strict {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.deeper()?)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if FORBIDDEN_KEYS.contains(&key.as_str()) {
                return Err(A::Error::custom(format_args!(
                    "the key {key:?} is refused at any depth"
                )));
            }
            let value = map.next_value_seed(self.deeper()?)?;
            if object.contains_key(&key) {
                return Err(A::Error::custom("a key is repeated in one mapping"));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(json: &str) -> String {
        let error = StateData::canonicalize(json.as_bytes()).expect_err(json);
        match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }
    }

    #[test]
    fn canonical_form_sorts_keys_and_drops_white_space() {
        let data = StateData::canonicalize(
            b" { \"b\": {\"test\": [\"nop\"]}, \"a\": {\"x\": [1, 2.5, null]} } ",
        )
        .expect("high data");
        assert_eq!(
            data.as_str(),
            r#"{"a":{"x":[1,2.5,null]},"b":{"test":["nop"]}}"#
        );
        assert!(StateData::parse_canonical(data.as_str()).is_ok());
        assert!(StateData::parse_canonical(&format!("{} ", data.as_str())).is_err());
        assert_eq!(data.digest(), StateDigest::of(data.as_str().as_bytes()));
    }

    #[test]
    fn bad_state_data_is_refused_with_the_rule_it_breaks() {
        assert!(refused(r#"{"a":{"x":1},"a":{"x":2}}"#).contains("repeated"));
        assert!(refused(r#"{"a":{"x":NaN}}"#).contains("not acceptable"));
        assert!(refused(r#"{"a":{"x":1e999}}"#).contains("not acceptable"));
        assert!(refused(r#"{"a":{"cmd":["run",{"parallel":true}]}}"#).contains("parallel"));
        assert!(refused(r#"{"a":{"cmd":["run",{"fire_event":true}]}}"#).contains("fire_event"));
        assert!(refused("[]").contains("state ids"));
        assert!(refused("{}").contains("state ids"));
        assert!(refused(r#"{"a":[1]}"#).contains("state ids"));
        assert!(
            refused(&format!(
                r#"{{"a":{{"x":{}{}}}}}"#,
                "[".repeat(20),
                "]".repeat(20)
            ))
            .contains("deeper")
        );
        assert!(
            refused(&format!(r#"{{"a":{{"x":"{}"}}}}"#, "y".repeat(MAX_BYTES))).contains("limit")
        );
        assert!(refused(r#"{"a":{"x":1}} trailing"#).contains("not acceptable"));
        let many: Vec<String> = (0..257).map(|n| format!("\"i{n}\":{{}}")).collect();
        assert!(refused(&format!("{{{}}}", many.join(","))).contains("256"));
    }

    #[test]
    fn floats_keep_their_value_in_canonical_form() {
        // serde_json rounds this one unless `float_roundtrip` is on.
        let data = StateData::canonicalize(br#"{"a":{"k":90100.41102343426}}"#).expect("data");
        assert_eq!(
            StateData::parse_canonical(data.as_str()).expect("canonical"),
            data
        );
    }

    proptest! {
        #[test]
        fn canonical_form_is_a_fixed_point(text in "\\{\"[a-z]{1,3}\":\\{\"k\":(\\[[0-9]{1,3},\"[a-z]*\"\\]|[0-9]{1,5}\\.[0-9]{1,12}|null)\\}\\}") {
            if let Ok(data) = StateData::canonicalize(text.as_bytes()) {
                prop_assert_eq!(StateData::parse_canonical(data.as_str()).expect("canonical"), data);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(StateData::canonicalize(&bytes));
        }
    }
}
