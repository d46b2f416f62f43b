//! The arguments of a call, from a stranger's text to types.

use gw_wire::id::{IdError, Jid, MinionId, Profile, ProfileName, RequestId, StateDigest};
use gw_wire::publication::{MAX_METADATA_BYTES, Metadata};
use gw_wire::receipt::{Binding, PROTOCOL};
use gw_wire::state_data::{StateData, StateDataError};
use serde_json::Value;

use crate::facts::Facts;
use crate::profiles::SiteProfiles;

/// What a caller asked for, as far as it can be named: enough to refuse it by name.
#[derive(Debug, Clone)]
pub struct Job {
    /// The job.
    pub binding: Binding,
    /// What to call, or why the request is invalid.
    pub call: Result<StateCall, RequestError>,
}

/// The one state function to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateCall {
    /// `state.sls` with a role.
    Sls(String),
    /// `state.high` with canonical high data.
    High(StateData),
}

/// Why a call cannot be taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// A name breaks its rule.
    #[error(transparent)]
    Id(#[from] IdError),
    /// An argument is missing or no string.
    #[error("argument {0} must be a string")]
    NotAString(&'static str),
    /// An argument is not of its form.
    #[error("argument {0} is not of its form")]
    Malformed(&'static str),
    /// There is no `__pub_jid`.
    #[error("the call has no jid")]
    NoJid,
    /// Keyword arguments.
    #[error("execution options are not accepted ({0} given)")]
    Options(u32),
    /// A profile that is neither protocol 1's nor in the site's file.
    #[error("there is no profile {0} on this minion")]
    NoSuchProfile(ProfileName),
    /// State data with a role.
    #[error("profile {0} takes no state data")]
    NoStateData(Profile),
    /// The high data breaks a rule; the text says which.
    #[error("{0}")]
    StateData(String),
    /// `metadata.gw` breaks a rule.
    #[error("metadata.gw must be protocol 1's, of at most {MAX_METADATA_BYTES} bytes")]
    Metadata,
}

impl From<StateDataError> for RequestError {
    fn from(error: StateDataError) -> Self {
        // serde_json's message names a position and a rule, and never quotes a value of high data, except
        // for the refused key names of ours.
        RequestError::StateData(match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }
}

impl Job {
    /// Parses the call of `run`. An error means that there is not even a job to refuse.
    pub fn parse(facts: &Facts, site: &SiteProfiles) -> Result<Self, RequestError> {
        let binding = parse_job(facts)?;
        let call = state_call(facts, binding.profile, site);
        Ok(Job { binding, call })
    }
}

/// Parses the arguments of `run` as far as they name the job.
pub fn parse_job(facts: &Facts) -> Result<Binding, RequestError> {
    let profile = Profile::parse(text(facts, "profile")?)?;
    let state_data = text(facts, "state_data_json")?;
    let state_digest = match profile {
        Profile::Custom => StateDigest::of(state_data.as_bytes()),
        _ => StateDigest::default(),
    };
    let jid = facts.jid.as_deref().ok_or(RequestError::NoJid)?;
    Ok(Binding {
        minion_id: MinionId::parse(&facts.minion_id)?,
        request_id: RequestId::parse(text(facts, "request_id")?)?,
        jid: Jid::parse(jid)?,
        profile,
        state_digest,
    })
}

fn state_call(
    facts: &Facts,
    profile: Profile,
    site: &SiteProfiles,
) -> Result<StateCall, RequestError> {
    parse_metadata(facts)?;
    if facts.unexpected > 0 {
        return Err(RequestError::Options(facts.unexpected));
    }
    let state_data = text(facts, "state_data_json")?;
    let role = match profile {
        Profile::Custom => {
            return Ok(StateCall::High(StateData::parse_canonical(state_data)?));
        }
        Profile::Site(name) => site.role(name).ok_or(RequestError::NoSuchProfile(name))?,
        fixed => fixed.role().expect("every other profile has a fixed role"),
    };
    if !state_data.is_empty() {
        return Err(RequestError::NoStateData(profile));
    }
    Ok(StateCall::Sls(role.to_owned()))
}

/// Parses the call of `status`: the job that is asked about.
pub fn parse_question(facts: &Facts) -> Result<Binding, RequestError> {
    if facts.unexpected > 0 {
        return Err(RequestError::Options(facts.unexpected));
    }
    Ok(Binding {
        minion_id: MinionId::parse(&facts.minion_id)?,
        request_id: RequestId::parse(text(facts, "request_id")?)?,
        jid: Jid::parse(text(facts, "jid")?)?,
        profile: Profile::parse(text(facts, "profile")?)?,
        state_digest: StateDigest::parse(text(facts, "state_digest")?)?,
    })
}

/// Parses `metadata.gw`: there is none if the publication is of another make.
pub fn parse_metadata(facts: &Facts) -> Result<Option<Metadata>, RequestError> {
    let Some(gw) = facts.metadata.as_ref().and_then(|all| all.get("gw")) else {
        return Ok(None);
    };
    if gw.to_string().len() > MAX_METADATA_BYTES {
        return Err(RequestError::Metadata);
    }
    match serde_json::from_value::<Metadata>(gw.clone()) {
        Ok(metadata) if metadata.protocol == PROTOCOL => Ok(Some(metadata)),
        _ => Err(RequestError::Metadata),
    }
}

fn text<'a>(facts: &'a Facts, name: &'static str) -> Result<&'a str, RequestError> {
    facts
        .args
        .get(name)
        .and_then(Value::as_str)
        .ok_or(RequestError::NotAString(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::good;

    fn job(change: impl FnOnce(&mut Value)) -> Result<Job, RequestError> {
        let mut facts = good();
        change(&mut facts);
        let site = serde_json::from_str(r#"{"backup":"roles.backup"}"#).expect("profiles");
        let facts = Facts::parse(facts.to_string().as_bytes()).expect("facts");
        Job::parse(&facts, &site)
    }

    #[test]
    fn a_fixed_profile_is_its_role() {
        let job = job(|_| {}).expect("a job");
        assert_eq!(
            job.call.expect("a call"),
            StateCall::Sls("roles.client_stack".to_owned())
        );
    }

    #[test]
    fn a_sites_profile_is_the_role_that_the_minions_file_names() {
        let job = job(|facts| facts["args"]["profile"] = "backup".into()).expect("a job");
        assert_eq!(job.binding.state_digest, StateDigest::default());
        assert_eq!(
            job.call.expect("a call"),
            StateCall::Sls("roles.backup".to_owned())
        );
    }

    #[test]
    fn custom_is_bound_by_the_digest_of_its_bytes() {
        let data = r#"{"a":{"test":["nop"]}}"#;
        let job = job(|facts| {
            facts["args"]["profile"] = "custom".into();
            facts["args"]["state_data_json"] = data.into();
        })
        .expect("a job");
        assert_eq!(job.binding.state_digest, StateDigest::of(data.as_bytes()));
        assert!(matches!(job.call, Ok(StateCall::High(_))));
    }

    #[test]
    fn a_nameable_request_that_is_invalid_can_be_refused_by_name() {
        type Change = fn(&mut Value);
        let changes: [Change; 9] = [
            |f| f["unexpected"] = 1.into(),
            |f| f["args"]["state_data_json"] = "{}".into(),
            |f| f["args"]["profile"] = "custom".into(),
            |f| f["args"]["profile"] = "other".into(),
            |f| {
                f["args"]["profile"] = "backup".into();
                f["args"]["state_data_json"] = "{}".into();
            },
            |f| {
                f["args"]["profile"] = "custom".into();
                f["args"]["state_data_json"] = r#"{"a":{"cmd":["run",{"parallel":true}]}}"#.into();
            },
            |f| f["metadata"]["gw"]["protocol"] = 2.into(),
            |f| f["metadata"]["gw"]["more"] = 1.into(),
            |f| f["metadata"]["gw"] = "x".repeat(5000).into(),
        ];
        for change in changes {
            assert!(job(change).expect("nameable").call.is_err());
        }
    }

    #[test]
    fn a_request_that_cannot_be_named_is_an_error() {
        type Change = fn(&mut Value);
        let changes: [Change; 8] = [
            |f| f["args"]["request_id"] = "0B0E4567-E89B-42D3-A456-426614174000".into(),
            |f| f["args"]["request_id"] = 7.into(),
            |f| f["args"]["profile"] = "Other".into(),
            |f| f["args"]["state_data_json"] = serde_json::json!({}),
            |f| f["jid"] = Value::Null,
            |f| f["jid"] = "2026".into(),
            |f| f["minion_id"] = "a/b".into(),
            |f| f["args"] = serde_json::json!({}),
        ];
        for change in changes {
            assert!(job(change).is_err());
        }
    }
}
