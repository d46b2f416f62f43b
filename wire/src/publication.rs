//! The one thing that the gateway publishes: a Salt load that calls `oduflow_job` on one minion.
//!
//! Two spellings of the same load: bare, for the master's `publish_pull.ipc`, whose publisher process adds
//! `serial`, encrypts and signs (`salt/channel/server.py`, `wrap_payload`, 3006.27); and as the clear
//! command `publish` for the request port (`salt/master.py`, `ClearFuncs.publish`, 3006.27).
//!
//! Always `tgt_type: list` with one id, which works with `zmq_filtering` on and off; `fun` a string and
//! `module_executors: [direct_call]`, without which `__no_return__` is not honoured (`salt/minion.py`,
//! `_thread_return` and `_execute_job_function`, 3006.27). `metadata` reaches the module as
//! `__pub_metadata` and cannot be spoofed by an argument, being in the load (`load_args_and_kwargs`).

use serde::{Deserialize, Serialize};

use crate::id::{Jid, MinionId, Profile, RequestId, StateDigest, Token};
use crate::receipt::{Binding, PROTOCOL};
use crate::reply::StorePosition;
use crate::state_data::StateData;

/// The largest `metadata.gw` that an executor reads, in bytes of JSON.
pub const MAX_METADATA_BYTES: usize = 4096;

/// The most jids in [`Metadata::confirmed`].
pub const MAX_CONFIRMED: usize = 16;

/// The version of a request. A master answers "bad load" to one below `minimum_auth_version`, 3 by default
/// (`salt/channel/server.py`, `handle_message`, 3006.27).
const REQUEST_VERSION: u8 = 3;

/// One publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The Salt job.
    pub jid: Jid,
    /// The one machine.
    pub minion_id: MinionId,
    /// What the minion is told to do.
    pub call: Call,
    /// What rides beside the arguments.
    pub metadata: Metadata,
}

/// A call of the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `oduflow_job.run(request_id, profile, state_data_json)`: apply, at most once.
    Run {
        /// The caller's name for the request.
        request_id: RequestId,
        /// What to apply.
        profile: Profile,
        /// The high data of `custom`; none for a fixed role.
        state_data: Option<StateData>,
    },
    /// `oduflow_job.status(request_id, profile, state_digest, jid)`: what became of that job.
    Status(Binding),
    /// `oduflow_job.revoke(request_id, profile, state_digest, jid)`: that job shall never run, unless it has
    /// been claimed.
    Revoke(Binding),
    /// `oduflow_job.capability()`: whether this minion can run a job.
    Capability,
}

/// `metadata.gw` of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Always [`PROTOCOL`].
    pub protocol: u32,
    /// Which dispatch of the request this is; 1 is the first. Absent in a publication of another make.
    #[serde(default = "first_generation")]
    pub generation: u32,
    /// The executor does not start a run later than this, in seconds since the epoch. With a status call: that
    /// of the job asked about; once it has passed, a job without a record is refused for ever.
    pub not_after: Option<i64>,
    /// The gateway's reply port at the minion's own master.
    pub reply_port: u16,
    /// Names the question; the answer repeats it.
    pub nonce: Option<Token>,
    /// The newest position of the minion's receipt store that the gateway has seen and accepted. An executor
    /// whose chain lacks it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StorePosition>,
    /// Jobs of this minion whose end is durable in the gateway's journal, at most [`MAX_CONFIRMED`].
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "confirmed"
    )]
    pub confirmed: Vec<Jid>,
}

fn confirmed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Jid>, D::Error> {
    let jids = Vec::<Jid>::deserialize(deserializer)?;
    if jids.len() > MAX_CONFIRMED {
        return Err(serde::de::Error::custom("too many confirmed jids"));
    }
    Ok(jids)
}

fn first_generation() -> u32 {
    1
}

impl Metadata {
    /// Metadata of a question that wants an answer on `reply_port` naming `nonce`.
    pub fn question(reply_port: u16, nonce: Token) -> Self {
        Metadata {
            protocol: PROTOCOL,
            generation: 1,
            not_after: None,
            reply_port,
            nonce: Some(nonce),
            store: None,
            confirmed: Vec::new(),
        }
    }

    /// Metadata of a run.
    pub fn run(reply_port: u16, generation: u32, not_after: i64) -> Self {
        Metadata {
            protocol: PROTOCOL,
            generation,
            not_after: Some(not_after),
            reply_port,
            nonce: None,
            store: None,
            confirmed: Vec::new(),
        }
    }
}

impl Call {
    /// The Salt function.
    pub fn fun(&self) -> &'static str {
        match self {
            Call::Run { .. } => "oduflow_job.run",
            Call::Status(_) => "oduflow_job.status",
            Call::Revoke(_) => "oduflow_job.revoke",
            Call::Capability => "oduflow_job.capability",
        }
    }

    /// Its arguments: strings only, none of which Salt takes for a keyword argument (`salt/utils/args.py`,
    /// `KWARG_REGEX`, 3006.27, needs a name and `=` at the start; ours are hexadecimal, digits, a profile's
    /// name, or JSON that starts with a brace).
    pub fn args(&self) -> Vec<String> {
        match self {
            Call::Run {
                request_id,
                profile,
                state_data,
            } => vec![
                request_id.to_string(),
                profile.to_string(),
                state_data
                    .as_ref()
                    .map(|data| data.as_str().to_owned())
                    .unwrap_or_default(),
            ],
            Call::Status(binding) | Call::Revoke(binding) => vec![
                binding.request_id.to_string(),
                binding.profile.to_string(),
                binding.state_digest.to_string(),
                binding.jid.to_string(),
            ],
            Call::Capability => Vec::new(),
        }
    }

    /// SHA-256 of the state data that rides in the call.
    pub fn state_digest(&self) -> StateDigest {
        match self {
            Call::Run {
                state_data: Some(data),
                ..
            } => data.digest(),
            Call::Run {
                state_data: None, ..
            }
            | Call::Capability => StateDigest::default(),
            Call::Status(binding) | Call::Revoke(binding) => binding.state_digest.clone(),
        }
    }
}

#[derive(Serialize)]
struct GwMetadata<'a> {
    gw: &'a Metadata,
}

#[derive(Serialize)]
struct BareLoad<'a> {
    fun: &'static str,
    arg: Vec<String>,
    tgt: [&'a str; 1],
    tgt_type: &'static str,
    jid: &'a str,
    ret: &'static str,
    user: &'a str,
    module_executors: [&'static str; 1],
    metadata: GwMetadata<'a>,
}

#[derive(Serialize)]
struct ClearRequest<'a> {
    enc: &'static str,
    version: u8,
    load: ClearLoad<'a>,
}

#[derive(Serialize)]
struct ClearLoad<'a> {
    cmd: &'static str,
    fun: &'static str,
    arg: Vec<String>,
    tgt: [&'a str; 1],
    tgt_type: &'static str,
    jid: &'a str,
    ret: &'static str,
    user: &'a str,
    key: &'a str,
    kwargs: ClearKwargs<'a>,
}

#[derive(Serialize)]
struct ClearKwargs<'a> {
    module_executors: [&'static str; 1],
    metadata: GwMetadata<'a>,
}

const DIRECT_CALL: [&str; 1] = ["direct_call"];

impl Publication {
    /// What a run's receipt must be bound to; none for a question.
    pub fn binding(&self) -> Option<Binding> {
        match &self.call {
            Call::Run {
                request_id,
                profile,
                ..
            } => Some(Binding {
                minion_id: self.minion_id.clone(),
                request_id: *request_id,
                jid: self.jid,
                profile: *profile,
                state_digest: self.call.state_digest(),
            }),
            Call::Status(_) | Call::Revoke(_) | Call::Capability => None,
        }
    }

    /// The msgpack map that goes into `publish_pull.ipc`. `user` is the name in the job's records.
    pub fn to_bare_load(&self, user: &str) -> Vec<u8> {
        msgpack(&BareLoad {
            fun: self.call.fun(),
            arg: self.call.args(),
            tgt: [self.minion_id.as_str()],
            tgt_type: "list",
            jid: self.jid.as_str(),
            ret: "",
            user,
            module_executors: DIRECT_CALL,
            metadata: GwMetadata { gw: &self.metadata },
        })
    }

    /// The msgpack request for the master's request port. `key` is the root key that the master writes
    /// anew at each start (`salt/daemons/masterapi.py`, `access_keys`, 3006.27). Metadata and executors
    /// ride in `kwargs`, the only place from which `_prep_pub` takes them.
    pub fn to_clear_request(&self, user: &str, key: &str) -> Vec<u8> {
        msgpack(&ClearRequest {
            enc: "clear",
            version: REQUEST_VERSION,
            load: ClearLoad {
                cmd: "publish",
                fun: self.call.fun(),
                arg: self.call.args(),
                tgt: [self.minion_id.as_str()],
                tgt_type: "list",
                jid: self.jid.as_str(),
                ret: "",
                user,
                key,
                kwargs: ClearKwargs {
                    module_executors: DIRECT_CALL,
                    metadata: GwMetadata { gw: &self.metadata },
                },
            },
        })
    }
}

fn msgpack<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).expect("a load is plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication() -> Publication {
        Publication {
            jid: Jid::parse("20261130220939633426").expect("a jid"),
            minion_id: MinionId::parse("client-1").expect("an id"),
            call: Call::Run {
                request_id: RequestId::parse("0b0e4567-e89b-42d3-a456-426614174000")
                    .expect("an id"),
                profile: Profile::Configure,
                state_data: None,
            },
            metadata: Metadata::run(4510, 1, 1_800_000_000),
        }
    }

    #[test]
    fn the_bare_load_is_what_the_publisher_takes() {
        let load: serde_json::Value =
            rmp_serde::from_slice(&publication().to_bare_load("root")).expect("msgpack");
        assert_eq!(
            load,
            serde_json::json!({
                "fun": "oduflow_job.run",
                "arg": ["0b0e4567-e89b-42d3-a456-426614174000", "configure", ""],
                "tgt": ["client-1"],
                "tgt_type": "list",
                "jid": "20261130220939633426",
                "ret": "",
                "user": "root",
                "module_executors": ["direct_call"],
                "metadata": {"gw": {"protocol": 1, "generation": 1, "not_after": 1_800_000_000, "reply_port": 4510, "nonce": null}},
            })
        );
    }

    #[test]
    fn the_clear_request_carries_metadata_where_salt_takes_it_from() {
        let request: serde_json::Value =
            rmp_serde::from_slice(&publication().to_clear_request("root", "k")).expect("msgpack");
        assert_eq!(
            (&request["enc"], &request["version"]),
            (&"clear".into(), &3.into())
        );
        assert_eq!(request["load"]["cmd"], "publish");
        assert_eq!(request["load"]["key"], "k");
        assert_eq!(
            request["load"]["kwargs"]["module_executors"][0],
            "direct_call"
        );
        assert_eq!(
            request["load"]["kwargs"]["metadata"]["gw"]["reply_port"],
            4510
        );
    }

    #[test]
    fn no_argument_can_be_taken_for_a_keyword() {
        let data = StateData::canonicalize(br#"{"a":{"test":["nop",{"x":"k=v"}]}}"#).expect("data");
        let request_id = RequestId::random();
        let call = Call::Run {
            request_id,
            profile: Profile::Custom,
            state_data: Some(data),
        };
        for arg in call.args() {
            let name = arg.split('=').next().expect("a first part");
            assert!(name.len() == arg.len() || arg.starts_with('{'), "{arg}");
        }
    }
}
