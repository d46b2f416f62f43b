//! Names of things, each parsed once: a value of one of these types is valid by construction.
//!
//! Every constructor takes text of any origin, checks its length before anything else, and gives one
//! [`IdError`] that names the thing and the limit. `Deserialize` goes through the same constructors.

use std::fmt;
use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{Timestamp, Unit};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Why a name was refused: what it is called, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {rule}, got {got}")]
pub struct IdError {
    what: &'static str,
    rule: &'static str,
    got: String,
}

impl IdError {
    fn new(what: &'static str, rule: &'static str, got: &str) -> Self {
        // Hostile input is quoted, escaped and cut, so that it can neither flood nor forge a log line.
        let shown: String = got.chars().take(64).collect();
        let more = if shown.len() < got.len() { "..." } else { "" };
        IdError {
            what,
            rule,
            got: format!("{shown:?}{more} ({} bytes)", got.len()),
        }
    }
}

/// Gives a type `Display`, `FromStr`, `Serialize` and `Deserialize` through its `parse` and `as_str`.
macro_rules! text_type {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.as_str())
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

mod profile;

pub use profile::{Profile, ProfileName};

/// Salt's job id: 20 digits, `YYYYMMDDhhmmss` and six digits of microseconds, a real time in UTC.
///
/// A Jid goes over the wire as a string: its number does not fit a msgpack integer (over 2^64).
/// The order of two Jids is the order of their times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jid([u8; 20]);

impl Jid {
    /// Parses exactly 20 ASCII digits that name a time that exists (no leap second).
    pub fn parse(text: &str) -> Result<Self, IdError> {
        const RULE: &str = "20 digits that are a time in UTC (YYYYMMDDhhmmss and microseconds)";
        let error = || IdError::new("a jid", RULE, text);
        let digits: [u8; 20] = text.as_bytes().try_into().map_err(|_| error())?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(error());
        }
        let jid = Jid(digits);
        jid.civil().ok_or_else(error)?;
        Ok(jid)
    }

    /// The Jid of a moment, cut to the microsecond.
    ///
    /// # Panics
    /// For a moment outside the years 1 to 9999, which no clock of ours gives.
    pub fn at(moment: Timestamp) -> Self {
        let civil = Offset::UTC.to_datetime(moment);
        let text = format!(
            "{:04}{:02}{:02}{:02}{:02}{:02}{:06}",
            civil.year(),
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute(),
            civil.second(),
            civil.subsec_nanosecond() / 1000
        );
        Jid::parse(&text).expect("a timestamp of the years 1 to 9999 formats to 20 digits")
    }

    /// The Jid for `now`, or the one just after `last` if the clock has not passed it: Jids given out in
    /// one journal only ever rise, also when the clock is set back.
    pub fn next(last: Option<Jid>, now: Timestamp) -> Self {
        let now = Jid::at(now);
        match last {
            Some(last) if last >= now => Jid::at(last.time() + jiff::Span::new().microseconds(1)),
            _ => now,
        }
    }

    /// The time that the digits spell.
    pub fn time(&self) -> Timestamp {
        self.civil()
            .and_then(|civil| Offset::UTC.to_timestamp(civil).ok())
            .expect("a Jid holds a time that exists, checked when it was made")
    }

    fn civil(&self) -> Option<DateTime> {
        let number = |range: std::ops::Range<usize>| -> Option<i32> {
            std::str::from_utf8(&self.0[range]).ok()?.parse().ok()
        };
        let small = |range| number(range).and_then(|n| i8::try_from(n).ok());
        DateTime::new(
            i16::try_from(number(0..4)?)
                .ok()
                .filter(|year| *year >= 1)?,
            small(4..6)?,
            small(6..8)?,
            small(8..10)?,
            small(10..12)?,
            small(12..14)?,
            number(14..20)? * 1000,
        )
        .ok()
    }

    /// The 20 digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a Jid holds ASCII digits")
    }
}
text_type!(Jid);

/// A Salt minion id: 1 to 128 bytes of `A-Z a-z 0-9 . _ -`, not starting with a dot.
///
/// Narrower than Salt (`salt/utils/verify.py`, `valid_id`, 3006.27), because the id becomes a file name
/// on the master and a target in a load. What a site's ids look like beyond that is [`MinionIdPattern`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MinionId(String);

impl MinionId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Parses an id; the site's pattern is checked apart, by [`MinionIdPattern::check`].
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=Self::MAX_BYTES).contains(&text.len())
            && text.bytes().all(legal)
            && !text.starts_with('.')
        {
            return Ok(MinionId(text.to_owned()));
        }
        Err(IdError::new(
            "a minion id",
            "1 to 128 of A-Z a-z 0-9 . _ - and not start with a dot",
            text,
        ))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_type!(MinionId);

/// Which minion ids a site uses: a regular expression over the whole id.
#[derive(Debug, Clone)]
pub struct MinionIdPattern(regex_lite::Regex);

impl MinionIdPattern {
    /// The pattern where nothing else is configured: `client-` and a canonical UUID.
    pub const DEFAULT: &str = "client-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";

    /// Compiles a pattern of at most 512 bytes.
    pub fn parse(pattern: &str) -> Result<Self, IdError> {
        let error = || {
            IdError::new(
                "minion_id_pattern",
                "a regular expression of at most 512 bytes",
                pattern,
            )
        };
        if pattern.len() > 512 {
            return Err(error());
        }
        regex_lite::Regex::new(&format!("^(?:{pattern})$"))
            .map(MinionIdPattern)
            .map_err(|_| error())
    }

    /// Checks an id against the pattern.
    pub fn check(&self, id: &MinionId) -> Result<(), IdError> {
        if self.0.is_match(id.as_str()) {
            return Ok(());
        }
        Err(IdError::new(
            "a minion id",
            "one that minion_id_pattern matches",
            id.as_str(),
        ))
    }
}

impl Default for MinionIdPattern {
    fn default() -> Self {
        Self::parse(Self::DEFAULT).expect("the default pattern is a regular expression")
    }
}

/// The caller's name for one request: a canonical UUID (lower case, with hyphens).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(uuid::fmt::Hyphenated, [u8; 36]);

impl RequestId {
    /// Parses the one canonical spelling; upper case, braces and missing hyphens are refused, so that
    /// a request has one name in files, loads and logs.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let error = || IdError::new("a request id", "a UUID in lower case with hyphens", text);
        if text.len() != 36 {
            return Err(error());
        }
        let id = Self::from_uuid(uuid::Uuid::try_parse(text).map_err(|_| error())?);
        if id.as_str() == text {
            Ok(id)
        } else {
            Err(error())
        }
    }

    /// A fresh random id.
    pub fn random() -> Self {
        Self::from_uuid(uuid::Uuid::new_v4())
    }

    fn from_uuid(uuid: uuid::Uuid) -> Self {
        let mut text = [0; 36];
        uuid.hyphenated().encode_lower(&mut text);
        RequestId(uuid.hyphenated(), text)
    }

    /// The 36 characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.1).expect("a hyphenated UUID is ASCII")
    }
}
text_type!(RequestId);

/// SHA-256 of canonical state data in lower-case hexadecimal; empty for a fixed role.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StateDigest(String);

impl StateDigest {
    /// Parses nothing, or 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() || is_hex(text, 64) {
            return Ok(StateDigest(text.to_owned()));
        }
        Err(IdError::new(
            "a state digest",
            "empty or 64 lower-case hexadecimal digits",
            text,
        ))
    }

    /// The digest of canonical state data.
    pub fn of(canonical: &[u8]) -> Self {
        StateDigest(sha256_hex(canonical))
    }

    /// The hexadecimal text, or nothing.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_type!(StateDigest);

/// A SHA-256 in lower-case hexadecimal: of a public key's DER, of a file, or of signed bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Hex(String);

impl Sha256Hex {
    /// Parses 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if is_hex(text, 64) {
            return Ok(Sha256Hex(text.to_owned()));
        }
        Err(IdError::new(
            "a SHA-256",
            "64 lower-case hexadecimal digits",
            text,
        ))
    }

    /// The SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Sha256Hex(sha256_hex(bytes))
    }

    /// The hexadecimal text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_type!(Sha256Hex);

/// 128 random bits in lower-case hexadecimal: the nonce of one question, the id of one claim, the id of
/// one receipt store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; 32]);

impl Token {
    /// Parses 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let error = || IdError::new("a token", "32 lower-case hexadecimal digits", text);
        if !is_hex(text, 32) {
            return Err(error());
        }
        Ok(Token(text.as_bytes().try_into().map_err(|_| error())?))
    }

    /// A fresh one from the system's random source (122 of its bits are random: it is a version 4 UUID).
    pub fn random() -> Self {
        let mut text = [0; 32];
        uuid::Uuid::new_v4().simple().encode_lower(&mut text);
        Token(text)
    }

    /// The 32 characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a Token holds hexadecimal digits")
    }
}
text_type!(Token);

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            use fmt::Write as _;
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
            text
        })
}

/// The present moment, cut to the microsecond, as it is kept in records.
pub fn now() -> Timestamp {
    Timestamp::now()
        .round(Unit::Microsecond)
        .unwrap_or_else(|_| Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_jid_is_a_real_time_in_utc() {
        assert!(Jid::parse("20261130220939633426").is_ok());
        for bad in [
            "",
            "2026113022093963342",
            "202611302209396334260",
            "20261330220939633426",
            "20260230220939633426",
            "20261130250939633426",
            "2026113022093963342x",
            "00001130220939633426",
            "２０２６１１３０",
        ] {
            assert!(Jid::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn jids_rise_when_the_clock_stands_or_goes_back() {
        let noon: Timestamp = "2026-12-01T12:00:00Z".parse().expect("a time");
        let first = Jid::next(None, noon);
        let second = Jid::next(Some(first), noon);
        let third = Jid::next(Some(second), noon - jiff::Span::new().hours(5));
        assert_eq!(first.as_str(), "20261201120000000000");
        assert_eq!(second.as_str(), "20261201120000000001");
        assert_eq!(third.as_str(), "20261201120000000002");
        let midnight = Jid::parse("20261231235959999999").expect("a jid");
        assert_eq!(
            Jid::next(Some(midnight), noon).as_str(),
            "20270101000000000000"
        );
    }

    #[test]
    fn minion_ids_that_could_leave_a_directory_or_a_line_are_refused() {
        assert!(MinionId::parse("client-1").is_ok());
        for bad in [
            "",
            "a/b",
            "a\0b",
            "..",
            ".hidden",
            "a b",
            "a\nb",
            &"x".repeat(300),
            "ü",
        ] {
            assert!(MinionId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_pattern_covers_the_whole_id() {
        let pattern = MinionIdPattern::default();
        let id = |text: &str| MinionId::parse(text).expect("an id");
        assert!(
            pattern
                .check(&id("client-123e4567-e89b-42d3-a456-426614174000"))
                .is_ok()
        );
        assert!(
            pattern
                .check(&id("x-client-123e4567-e89b-42d3-a456-426614174000"))
                .is_err()
        );
        assert!(
            pattern
                .check(&id("client-123E4567-e89b-42d3-a456-426614174000"))
                .is_err()
        );
        assert!(
            MinionIdPattern::parse("a|b")
                .expect("a pattern")
                .check(&id("ab"))
                .is_err()
        );
        assert!(MinionIdPattern::parse("(").is_err());
    }

    #[test]
    fn request_ids_have_one_spelling() {
        let good = "123e4567-e89b-42d3-a456-426614174000";
        assert_eq!(RequestId::parse(good).expect("a uuid").to_string(), good);
        for bad in [
            "123E4567-e89b-42d3-a456-426614174000",
            "123e4567e89b42d3a456426614174000",
            "{123e4567-e89b-42d3-a456-426614174000}",
            "",
        ] {
            assert!(RequestId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_quote_hostile_input_in_one_short_line() {
        let text = MinionId::parse(&"a\n".repeat(5000))
            .expect_err("an error")
            .to_string();
        assert!(text.len() < 400 && !text.contains('\n'), "{text}");
    }

    proptest! {
        #[test]
        fn parsers_take_any_text_without_panicking(text in "\\PC{0,64}|[0-9]{20}") {
            if let Ok(jid) = Jid::parse(&text) {
                prop_assert_eq!(Jid::at(jid.time()), jid);
            }
            drop(MinionId::parse(&text));
            drop(RequestId::parse(&text));
            drop(Profile::parse(&text));
            drop(StateDigest::parse(&text));
            drop(Token::parse(&text));
        }

        #[test]
        fn every_moment_has_a_jid_that_reads_back(micros in 0i64..4_000_000_000_000_000) {
            let moment = Timestamp::from_microsecond(micros).expect("in range");
            let jid = Jid::at(moment);
            prop_assert_eq!(jid.time(), moment);
            prop_assert_eq!(Jid::parse(jid.as_str()).expect("parses"), jid);
        }
    }
}
