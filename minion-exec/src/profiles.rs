//! The site's own profiles: which role each applies, by a file of root's on the minion.
//!
//! The file is one JSON object, name to role, such as `{"backup": "roles.backup"}`. What is in it decides what a
//! publication can have applied here, so it is taken whole or not at all, and only if nobody but root (and the
//! user that the executor runs as) could have written it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use gw_wire::id::{Profile, ProfileName};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::store::StoreError;
use crate::store::dir::read_foreign;

/// The file where the configuration names no other.
pub const DEFAULT_PROFILES: &str = "/etc/oduflow/job-profiles.json";

/// The largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 16 * 1024;
/// The most profiles: what a capability can carry beside everything else.
pub const MAX_PROFILES: usize = 64;
/// The longest role, in bytes.
const MAX_ROLE_BYTES: usize = 128;

/// The profiles of a site; none where there is no file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteProfiles(BTreeMap<ProfileName, Role>);

/// The name of an sls: 1 to 128 of `A-Z a-z 0-9 _ . -`, with dots only between other characters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Role(String);

/// Why a file of profiles cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfilesError {
    /// It is not root's alone, too long, or cannot be read.
    #[error("the file of the site's profiles cannot be used")]
    File(#[from] StoreError),
    /// Its content.
    #[error("{path} is no valid file of profiles")]
    Content {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks, and where.
        source: serde_json::Error,
    },
}

impl SiteProfiles {
    /// Reads the file, which need not be there.
    pub fn load(path: &Path) -> Result<Self, ProfilesError> {
        let Some(content) = read_foreign(path, MAX_FILE_BYTES)? else {
            return Ok(SiteProfiles::default());
        };
        serde_json::from_slice(&content).map_err(|source| ProfilesError::Content {
            path: path.to_owned(),
            source,
        })
    }

    /// The role of a profile.
    pub fn role(&self, name: ProfileName) -> Option<&str> {
        self.0.get(&name).map(|role| role.0.as_str())
    }

    /// Every profile, in the order of the names.
    pub fn profiles(&self) -> impl Iterator<Item = Profile> {
        self.0.keys().copied().map(Profile::Site)
    }
}

impl<'de> Deserialize<'de> for SiteProfiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

/// An object without repeated names; serde's own maps would keep the last.
struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = SiteProfiles;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of profiles and their roles")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SiteProfiles, A::Error> {
        let mut profiles = BTreeMap::new();
        while let Some((name, role)) = map.next_entry::<ProfileName, Role>()? {
            if profiles.insert(name, role).is_some() {
                return Err(A::Error::custom(format_args!(
                    "profile {name} is there twice"
                )));
            }
            if profiles.len() > MAX_PROFILES {
                return Err(A::Error::custom(format_args!(
                    "over {MAX_PROFILES} profiles"
                )));
            }
        }
        Ok(SiteProfiles(profiles))
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let part = |part: &str| !part.is_empty() && part.bytes().all(legal);
        if text.len() <= MAX_ROLE_BYTES && text.split('.').all(part) {
            return Ok(Role(text));
        }
        Err(D::Error::custom(
            "a role must be 1 to 128 of A-Z a-z 0-9 _ . - with dots only between other characters",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use proptest::prelude::*;

    fn read(content: &str) -> Result<SiteProfiles, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("job-profiles.json");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        SiteProfiles::load(&path).map_err(|error| crate::session::chain(&error))
    }

    fn name(text: &str) -> ProfileName {
        ProfileName::parse(text).expect("a name")
    }

    #[test]
    fn no_file_means_no_profiles() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in ["none.json", "no/such/directory.json"] {
            let none = SiteProfiles::load(&directory.path().join(path)).expect("none");
            assert_eq!(none, SiteProfiles::default());
        }
    }

    #[test]
    fn each_profile_has_its_role() {
        let profiles = read(r#"{"backup": "roles.backup", "a2": "top-level_1"}"#).expect("valid");
        assert_eq!(profiles.role(name("backup")), Some("roles.backup"));
        assert_eq!(profiles.role(name("a2")), Some("top-level_1"));
        assert_eq!(profiles.role(name("other")), None);
        let names: Vec<String> = profiles.profiles().map(|p| p.to_string()).collect();
        assert_eq!(names, ["a2", "backup"]);
    }

    #[test]
    fn one_bad_entry_refuses_the_whole_file_and_the_error_says_why() {
        let many: Vec<String> = (0..=MAX_PROFILES)
            .map(|n| format!(r#""p{n}":"r""#))
            .collect();
        let long = format!(r#"{{"a":"{}"}}"#, "r".repeat(129));
        for (content, words) in [
            ("", "EOF"),
            ("[]", "an object of profiles"),
            (r#"{"a":"r"} x"#, "trailing"),
            (r#"{"a":"r","a":"r"}"#, "profile a is there twice"),
            (r#"{"good":"r","configure":"r"}"#, "a site's own"),
            (r#"{"A":"r"}"#, "a site's own"),
            (r#"{"a":1}"#, "expected a string"),
            (r#"{"a":["r"]}"#, "expected a string"),
            (r#"{"a":""}"#, "a role must be"),
            (r#"{"a":".r"}"#, "a role must be"),
            (r#"{"a":"r..s"}"#, "a role must be"),
            (r#"{"a":"r."}"#, "a role must be"),
            (r#"{"a":"r,s"}"#, "a role must be"),
            (r#"{"a":"r/s"}"#, "a role must be"),
            (r#"{"a":"test=True"}"#, "a role must be"),
            (&long, "a role must be"),
            (&format!("{{{}}}", many.join(",")), "over 64 profiles"),
            (
                &format!("{{}}{}", " ".repeat(MAX_FILE_BYTES)),
                "over the limit of 16384 bytes",
            ),
        ] {
            let error = read(content).expect_err(content);
            assert!(error.contains(words), "{content}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_could_have_written_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("job-profiles.json");
        fs::write(&path, "{}").expect("written");
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        let refused =
            |path: &Path| crate::session::chain(&SiteProfiles::load(path).expect_err("refused"));
        for writable in [0o664, 0o646, 0o666] {
            mode(writable);
            assert!(
                refused(&path).contains("writable by nobody else"),
                "{writable:o}"
            );
        }
        for good in [0o644, 0o600, 0o444] {
            mode(good);
            SiteProfiles::load(&path).expect("good");
        }

        let link = directory.path().join("link.json");
        symlink(&path, &link).expect("linked");
        assert!(refused(&link).contains("not a symbolic link"));
        fs::remove_file(&link).expect("removed");
        fs::hard_link(&path, &link).expect("linked");
        assert!(refused(&link).contains("one link"));
        fs::remove_file(&link).expect("removed");
        assert!(refused(directory.path()).contains("a regular file"));
        assert!(refused(Path::new("job-profiles.json")).contains("an absolute path"));

        let shared = directory.path().join("shared");
        fs::create_dir(&shared).expect("made");
        fs::copy(&path, shared.join("p.json")).expect("copied");
        fs::set_permissions(&shared, Permissions::from_mode(0o777)).expect("set");
        assert!(refused(&shared.join("p.json")).contains("changeable by nobody but root"));
        symlink(&shared, directory.path().join("way")).expect("linked");
        assert!(SiteProfiles::load(&directory.path().join("way/p.json")).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("job-profiles.json");
        fs::write(&path, "{}").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            let error = crate::session::chain(&SiteProfiles::load(&path).expect_err("refused"));
            assert!(error.contains("owned by root"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_content_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "[{}\":a-z,. ]{0,80}") {
            drop(serde_json::from_slice::<SiteProfiles>(&bytes));
            drop(serde_json::from_str::<SiteProfiles>(&text));
        }
    }
}
