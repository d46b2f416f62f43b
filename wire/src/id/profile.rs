//! Profiles: what a job applies.

use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::IdError;

/// What to apply: one of protocol 1's fixed roles, `custom` high data, or what a site has given a name of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// `roles.client_stack`
    Configure,
    /// `roles.client_production`
    Production,
    /// `roles.client_storage_resize`
    VolumeResize,
    /// `roles.client_credentials`
    Credentials,
    /// Canonical bounded high data, bound by its SHA-256.
    Custom,
    /// A role that only the minion knows, by a file of root's there.
    Site(ProfileName),
}

impl Profile {
    /// The profiles of protocol 1 itself, in the order of the documents.
    pub const BUILT_IN: [Profile; 5] = [
        Profile::Configure,
        Profile::Production,
        Profile::VolumeResize,
        Profile::Credentials,
        Profile::Custom,
    ];

    /// Parses a profile's name.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match Self::built_in(text) {
            Some(profile) => Ok(profile),
            None => ProfileName::parse(text).map(Profile::Site),
        }
    }

    fn built_in(text: &str) -> Option<Self> {
        Self::BUILT_IN
            .into_iter()
            .find(|profile| profile.as_str() == text)
    }

    /// The name as protocol 1 spells it.
    pub fn as_str(&self) -> &str {
        match self {
            Profile::Configure => "configure",
            Profile::Production => "production",
            Profile::VolumeResize => "volume_resize",
            Profile::Credentials => "credentials",
            Profile::Custom => "custom",
            Profile::Site(name) => name.as_str(),
        }
    }

    /// The role that a fixed profile applies; none for `custom`, and none that anybody but the minion knows for
    /// a site's.
    pub fn role(&self) -> Option<&'static str> {
        match self {
            Profile::Configure => Some("roles.client_stack"),
            Profile::Production => Some("roles.client_production"),
            Profile::VolumeResize => Some("roles.client_storage_resize"),
            Profile::Credentials => Some("roles.client_credentials"),
            Profile::Custom | Profile::Site(_) => None,
        }
    }
}
text_type!(Profile);

/// The name of a site's profile: 1 to 32 of `a-z 0-9 _`, a letter first, and none of protocol 1's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName(ArrayString<{ ProfileName::MAX_BYTES }>);

impl ProfileName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 32;

    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if first
            && text.bytes().all(legal)
            && Profile::built_in(text).is_none()
            && let Ok(name) = ArrayString::from(text)
        {
            return Ok(ProfileName(name));
        }
        Err(IdError::new(
            "a profile",
            "configure, production, volume_resize, credentials, custom, or a site's own: 1 to 32 of a-z 0-9 _, \
             a letter first",
            text,
        ))
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_type!(ProfileName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_one_of_protocol_1s_or_a_bounded_name() {
        for profile in Profile::BUILT_IN {
            assert_eq!(Profile::parse(profile.as_str()), Ok(profile));
            assert!(ProfileName::parse(profile.as_str()).is_err(), "{profile}");
        }
        for good in ["a", "backup_restore2", &"x".repeat(32)] {
            let name = ProfileName::parse(good).expect("a name");
            assert_eq!(Profile::parse(good), Ok(Profile::Site(name)));
            assert_eq!((name.as_str(), Profile::Site(name).role()), (good, None));
        }
        for bad in [
            "",
            "Backup",
            "2fast",
            "_x",
            "a-b",
            "a.b",
            "a=b",
            "a b",
            "a\n",
            "ä",
            &"x".repeat(33),
            &"x".repeat(5000),
        ] {
            assert!(Profile::parse(bad).is_err(), "{bad:?}");
        }
    }
}
