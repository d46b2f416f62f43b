//! The signed reply: what the executor on a minion says to the gateway, and the acknowledgement.
//!
//! **exact-bytes**: the signature covers [`DOMAIN`] and the bytes that were sent. They are parsed to find
//! whose key to ask for, but nothing in them counts before [`UnverifiedReply::verify`] has passed over
//! those same bytes, and nothing is encoded again on the way.
//!
//! A reply travels as two frames, the JSON and its signature; the acknowledgement is one frame of JSON
//! that names the SHA-256 of the reply's JSON. An acknowledgement is not signed: it only stops retries.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{MinionId, Profile, Sha256Hex, Token};
use crate::key::{BadSignature, PrivateKey, PublicKey};
use crate::receipt::{Binding, PROTOCOL, Receipt};

/// What a signature covers before the reply's bytes, so that no other use of the minion's Salt key can
/// ever produce a signature that passes here. These bytes may never change.
pub const DOMAIN: &[u8] = b"oduflow-job-reply-1\0";

/// The largest reply, in bytes of JSON. The largest legal one, a conflict with a receipt, takes under 2000.
pub const MAX_REPLY_BYTES: usize = 8 * 1024;
/// The longest signature, in bytes: RSA 8192.
pub const MAX_SIGNATURE_BYTES: usize = 1024;
/// The largest acknowledgement, in bytes of JSON.
pub const MAX_ACKNOWLEDGEMENT_BYTES: usize = 512;

/// What an executor says, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Always [`PROTOCOL`].
    pub protocol: u32,
    /// Who speaks; the accepted key of this minion must verify the signature.
    pub minion_id: MinionId,
    /// When it was signed, by the minion's clock.
    pub signed_at: Timestamp,
    /// The nonce of the question that this answers; none for what the executor says unasked.
    pub nonce: Option<Token>,
    /// Which receipt store speaks, and how far it has come; none if no store could be opened.
    pub store: Option<StorePosition>,
    /// What it says.
    pub answer: Answer,
}

/// The identity of a receipt store and how far its chain of records has come. Another id, a lower sequence,
/// or another head for a known sequence means that the disk below it was replaced or rolled back, and that
/// it no longer proves what did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePosition {
    /// Drawn when the store was made, and again when its chain lacked what the gateway had seen of it.
    pub id: Token,
    /// The number of the newest claim or tombstone; 0 before the first.
    pub sequence: u64,
    /// SHA-256 of that record's bytes, which name the SHA-256 of the one before; that of the store's first
    /// identity before the first record.
    pub head: Sha256Hex,
}

/// Whether a job outlives the minion's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Survival {
    /// Executor and worker are in a systemd scope of their own: a restart of salt-minion does not reach them.
    Scope,
    /// They are where the minion started them, and end with its control group.
    None,
}

impl Survival {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Survival::Scope => "scope",
            Survival::None => "none",
        }
    }
}

/// The kinds of reply. Only `receipt` and `refused` ever end a record; the rest is history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// Whether and how this minion can run protocol 1.
    Capability(Capability),
    /// The terminal receipt, durable on the minion.
    Receipt {
        /// The nine fields.
        receipt: Receipt,
        /// The random id of the claim that ran: two of them for one jid mean a cloned machine.
        claim_id: Token,
        /// Why the outcome is `unknown`; none otherwise.
        reason: Option<UnknownReason>,
        /// Whether the job was out of reach of a restart of salt-minion.
        survival: Survival,
    },
    /// A durable tombstone: this jid never ran and never will.
    Refused {
        /// The job.
        binding: Binding,
        /// Why.
        reason: RefusalReason,
    },
    /// Claimed, and the executor or its worker lives.
    Running {
        /// The job.
        binding: Binding,
        /// States finished so far, as far as this executor knows.
        done: Option<u32>,
        /// States in all, as far as this executor knows.
        total: Option<u32>,
        /// Whether the job is out of reach of a restart of salt-minion.
        survival: Survival,
    },
    /// Claimed, not running, and no receipt: it may have run. Not terminal, since it proves nothing.
    Abandoned {
        /// The job.
        binding: Binding,
    },
    /// No evidence of this jid at all. Not terminal: it may still be delivered.
    NotStarted {
        /// The job.
        binding: Binding,
    },
    /// No record of this jid, and retention has deleted records of jids as high: it proves nothing.
    Expired {
        /// The job.
        binding: Binding,
    },
    /// Not run now, and no tombstone could be made durable: it may still run when delivered again.
    NotClaimed {
        /// The job.
        binding: Binding,
        /// Why.
        reason: NotClaimedReason,
    },
    /// What was asked about contradicts what this store holds.
    Conflict {
        /// The job as asked.
        binding: Binding,
        /// The receipt that this store has for the request, if any.
        receipt: Option<Receipt>,
    },
}

/// Why the outcome of a claimed job is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownReason {
    /// The Salt worker ended without a result; what it started may go on.
    WorkerDied,
    /// The state function raised.
    Exception,
    /// The result is no mapping: a compile error, a conflict, a string, None.
    NotAMapping,
    /// The mapping of results is empty.
    Empty,
    /// A result is neither True nor False (test mode gives None).
    NotBoolean,
    /// A state that the run had has no result (`state.soft_kill`, or a run cut short).
    Incomplete,
    /// The module's words made no sense.
    Malformed,
}

/// Why a job was refused for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// Delivered after its not-after time.
    Late,
    /// Another managed apply was running.
    Busy,
    /// The arguments are not a valid request.
    Invalid,
    /// This minion cannot run protocol 1 as it is configured now.
    Incapable,
    /// The minion's clock is more than 5 minutes behind the jid, or behind its own last claim.
    Clock,
    /// A higher jid has been claimed or refused before.
    BelowFloor,
    /// Somebody asked that it never run, and it had not been claimed.
    Revoked,
}

/// Why nothing durable could be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotClaimedReason {
    /// The receipt store cannot be used (wrong owner, mode, a symlink, a full or failing disk).
    Store,
    /// The store was made on another machine: a cloned or moved disk.
    Machine,
    /// The store's chain lacks what the gateway has seen of it: rolled back or replaced. Nothing runs until
    /// a publication names the store's new identity.
    StoreChanged,
}

impl NotClaimedReason {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            NotClaimedReason::Store => "store",
            NotClaimedReason::Machine => "machine",
            NotClaimedReason::StoreChanged => "store_changed",
        }
    }
}

impl RefusalReason {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusalReason::Late => "late",
            RefusalReason::Busy => "busy",
            RefusalReason::Invalid => "invalid",
            RefusalReason::Incapable => "incapable",
            RefusalReason::Clock => "clock",
            RefusalReason::BelowFloor => "below_floor",
            RefusalReason::Revoked => "revoked",
        }
    }
}

impl UnknownReason {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            UnknownReason::WorkerDied => "worker_died",
            UnknownReason::Exception => "exception",
            UnknownReason::NotAMapping => "not_a_mapping",
            UnknownReason::Empty => "empty",
            UnknownReason::NotBoolean => "not_boolean",
            UnknownReason::Incomplete => "incomplete",
            UnknownReason::Malformed => "malformed",
        }
    }
}

/// What a minion can do, as its executor (or, where that is missing, its module) found it just now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capability {
    /// Salt's own version.
    pub salt_version: ShortText,
    /// SHA-256 of the module's file.
    pub module_sha256: Option<Sha256Hex>,
    /// SHA-256 of the executor's file; none if the executor is missing.
    pub executor_sha256: Option<Sha256Hex>,
    /// The effective user id that states run under.
    pub euid: u32,
    /// The profiles that this executor knows.
    pub profiles: Vec<Profile>,
    /// Whether jobs outlive a restart of salt-minion here.
    pub survival: Survival,
    /// Everything that keeps this minion from running a job. Empty means capable.
    pub problems: Vec<Problem>,
}

/// At most 64 bytes of printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShortText(String);

impl ShortText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ShortText {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() <= 64 && text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Ok(ShortText(text));
        }
        Err("text must be at most 64 bytes of printable ASCII")
    }
}

impl From<ShortText> for String {
    fn from(text: ShortText) -> String {
        text.0
    }
}

/// One thing that keeps a minion from running a job; never worked around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// Salt is not exactly 3006.27, which the module's shims were made for.
    SaltVersion,
    /// `multiprocessing: False`: jobs are threads, and the shims would reach other jobs.
    Threads,
    /// `sudo_user` is set: the job would run in `salt-call`, under another jid.
    SudoUser,
    /// An executor other than `direct_call`.
    Executors,
    /// `state_data: terse`: an all-success run would return nothing.
    StateDataTerse,
    /// The function was not called by a publication of the master.
    NotPublished,
    /// The minion's id does not match the pattern on the minion.
    MinionIdPattern,
    /// `gw-exec` could not be started.
    ExecutorMissing,
    /// The receipt store cannot be used.
    Store,
    /// The receipt store was made on another machine.
    Machine,
    /// The receipt store lacks what a gateway has seen of it.
    StoreChanged,
    /// `require_survival` is set, and jobs would end with salt-minion's control group.
    Survival,
    /// The file of the site's own profiles cannot be used.
    Profiles,
}

impl Problem {
    /// What is wrong and what to do, for a person.
    pub fn explain(self) -> &'static str {
        match self {
            Problem::SaltVersion => "Salt on the minion is not exactly 3006.27",
            Problem::Threads => "the minion runs jobs as threads (set multiprocessing: True)",
            Problem::SudoUser => {
                "the minion has sudo_user set, which changes the jid and the arguments"
            }
            Problem::Executors => "the minion uses an executor other than direct_call",
            Problem::StateDataTerse => {
                "state_data: terse is set in the minion's configuration, grains or pillar"
            }
            Problem::NotPublished => "the function was called locally, not by a publication",
            Problem::MinionIdPattern => {
                "the minion's id does not match minion_id_pattern on the minion"
            }
            Problem::ExecutorMissing => "the executor gw-exec could not be started on the minion",
            Problem::Store => {
                "the receipt store on the minion cannot be used (owner, mode, symlink or disk)"
            }
            Problem::Machine => {
                "the receipt store was made on another machine (a cloned or moved disk)"
            }
            Problem::StoreChanged => {
                "the receipt store lacks what a gateway has seen of it (rolled back or replaced)"
            }
            Problem::Survival => {
                "require_survival is set, and a restart of salt-minion would end a job"
            }
            Problem::Profiles => "the file of the site's profiles on the minion cannot be used",
        }
    }

    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Problem::SaltVersion => "salt_version",
            Problem::Threads => "threads",
            Problem::SudoUser => "sudo_user",
            Problem::Executors => "executors",
            Problem::StateDataTerse => "state_data_terse",
            Problem::NotPublished => "not_published",
            Problem::MinionIdPattern => "minion_id_pattern",
            Problem::ExecutorMissing => "executor_missing",
            Problem::Store => "store",
            Problem::Machine => "machine",
            Problem::StoreChanged => "store_changed",
            Problem::Survival => "survival",
            Problem::Profiles => "profiles",
        }
    }
}

/// Why bytes off the wire are no reply.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// Not a JSON frame and a signature frame.
    #[error("reply has {0} frames, not 2")]
    Frames(usize),
    /// Over [`MAX_REPLY_BYTES`].
    #[error("reply is {0} bytes, over the limit of {MAX_REPLY_BYTES}")]
    TooLong(usize),
    /// Over [`MAX_SIGNATURE_BYTES`].
    #[error("signature is {0} bytes, over the limit of {MAX_SIGNATURE_BYTES}")]
    SignatureTooLong(usize),
    /// Not a reply of protocol 1.
    #[error("reply is not one of protocol 1")]
    Json(#[source] serde_json::Error),
    /// Another protocol.
    #[error("reply is of protocol {0}, not 1")]
    Protocol(u32),
    /// A minion that speaks of another minion's job.
    #[error("reply of {0} is about another minion's job")]
    Foreign(MinionId),
}

impl Reply {
    /// Signs the reply. The result's frames go on the wire as they are, also when sent again.
    pub fn sign(&self, key: &PrivateKey) -> SignedReply {
        let json = serde_json::to_vec(self).expect("a reply is plain data");
        let signature = key.sign(&signed_bytes(&json));
        SignedReply {
            json: json.into(),
            signature: signature.into(),
        }
    }
}

/// The exact bytes of a reply and their signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedReply {
    /// The reply as JSON.
    pub json: Bytes,
    /// RSA PKCS#1 v1.5 SHA-256 over [`DOMAIN`] and the JSON.
    pub signature: Bytes,
}

impl SignedReply {
    /// The two frames of the message.
    pub fn frames(&self) -> Vec<Bytes> {
        vec![self.json.clone(), self.signature.clone()]
    }

    /// What an acknowledgement of this reply names.
    pub fn sha256(&self) -> Sha256Hex {
        Sha256Hex::of(&self.json)
    }
}

/// A reply that parsed, and of which nothing may be believed yet.
#[derive(Debug)]
pub struct UnverifiedReply {
    signed: SignedReply,
    reply: Reply,
}

impl UnverifiedReply {
    /// Takes a message's frames, checking lengths before anything is parsed.
    pub fn from_frames(frames: &[Bytes]) -> Result<Self, ReplyError> {
        let [json, signature] = frames else {
            return Err(ReplyError::Frames(frames.len()));
        };
        if json.len() > MAX_REPLY_BYTES {
            return Err(ReplyError::TooLong(json.len()));
        }
        if signature.len() > MAX_SIGNATURE_BYTES {
            return Err(ReplyError::SignatureTooLong(signature.len()));
        }
        let reply: Reply = serde_json::from_slice(json).map_err(ReplyError::Json)?;
        if reply.protocol != PROTOCOL {
            return Err(ReplyError::Protocol(reply.protocol));
        }
        if reply
            .answer
            .binding()
            .is_some_and(|binding| binding.minion_id != reply.minion_id)
        {
            return Err(ReplyError::Foreign(reply.minion_id));
        }
        Ok(UnverifiedReply {
            signed: SignedReply {
                json: json.clone(),
                signature: signature.clone(),
            },
            reply,
        })
    }

    /// Whose accepted key must verify it.
    pub fn claimed_minion(&self) -> &MinionId {
        &self.reply.minion_id
    }

    /// Checks the signature over the exact bytes; the reply counts from here on.
    pub fn verify(self, key: &PublicKey) -> Result<(Reply, SignedReply), BadSignature> {
        key.verify(&signed_bytes(&self.signed.json), &self.signed.signature)?;
        Ok((self.reply, self.signed))
    }
}

impl Answer {
    /// The job that the answer is about; none for a capability.
    pub fn binding(&self) -> Option<&Binding> {
        match self {
            Answer::Capability(_) => None,
            Answer::Receipt { receipt, .. } => Some(receipt.binding()),
            Answer::Refused { binding, .. }
            | Answer::Running { binding, .. }
            | Answer::Abandoned { binding }
            | Answer::NotStarted { binding }
            | Answer::Expired { binding }
            | Answer::NotClaimed { binding, .. }
            | Answer::Conflict { binding, .. } => Some(binding),
        }
    }

    /// The word for logs and history.
    pub fn kind(&self) -> &'static str {
        match self {
            Answer::Capability(_) => "capability",
            Answer::Receipt { .. } => "receipt",
            Answer::Refused { .. } => "refused",
            Answer::Running { .. } => "running",
            Answer::Abandoned { .. } => "abandoned",
            Answer::NotStarted { .. } => "not_started",
            Answer::Expired { .. } => "expired",
            Answer::NotClaimed { .. } => "not_claimed",
            Answer::Conflict { .. } => "conflict",
        }
    }
}

fn signed_bytes(json: &[u8]) -> Vec<u8> {
    [DOMAIN, json].concat()
}

/// The gateway's word on one reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Acknowledgement {
    /// The reply with this SHA-256 is durable in the journal, or was before.
    Recorded(Sha256Hex),
    /// The reply with this SHA-256 will never be taken (no such job, bad signature): do not send it again.
    Rejected(Sha256Hex),
}

impl Acknowledgement {
    /// Reads one from the frames of a message.
    pub fn from_frames(frames: &[Bytes]) -> Option<Self> {
        match frames {
            [json] if json.len() <= MAX_ACKNOWLEDGEMENT_BYTES => serde_json::from_slice(json).ok(),
            _ => None,
        }
    }

    /// The frames of the message.
    pub fn frames(&self) -> Vec<Bytes> {
        vec![
            serde_json::to_vec(self)
                .expect("an acknowledgement is plain data")
                .into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRIVATE: &[u8] = include_bytes!("../fixtures/keys/rsa2048.pkcs1.pem");
    const PUBLIC: &[u8] = include_bytes!("../fixtures/keys/rsa2048.pub");

    fn binding(minion: &str) -> Binding {
        serde_json::from_value(serde_json::json!({
            "minion_id": minion,
            "request_id": "0b0e4567-e89b-42d3-a456-426614174000",
            "jid": "20261130220939633426",
            "profile": "configure",
            "state_digest": "",
        }))
        .expect("a binding")
    }

    fn reply() -> Reply {
        Reply {
            protocol: PROTOCOL,
            minion_id: MinionId::parse("client-1").expect("an id"),
            signed_at: "2026-12-01T00:00:00Z".parse().expect("a time"),
            nonce: Some(Token::random()),
            store: Some(StorePosition {
                id: Token::random(),
                sequence: 7,
                head: Sha256Hex::of(b"a record"),
            }),
            answer: Answer::Running {
                binding: binding("client-1"),
                done: Some(37),
                total: Some(60),
                survival: Survival::Scope,
            },
        }
    }

    #[test]
    fn a_signed_reply_verifies_over_its_exact_bytes_only() {
        let private = PrivateKey::from_pem(PRIVATE).expect("a key");
        let public = PublicKey::from_pem(PUBLIC).expect("a key");
        let signed = reply().sign(&private);
        let (read, kept) = UnverifiedReply::from_frames(&signed.frames())
            .expect("parses")
            .verify(&public)
            .expect("verifies");
        assert_eq!(read, serde_json::from_slice(&signed.json).expect("json"));
        assert_eq!(kept, signed);

        // The same meaning in other bytes does not verify.
        let spaced = [signed.json.as_ref(), b" "].concat();
        let frames = [Bytes::from(spaced), signed.signature.clone()];
        assert!(
            UnverifiedReply::from_frames(&frames)
                .expect("parses")
                .verify(&public)
                .is_err()
        );

        // A signature made without the domain does not verify.
        let bare = Bytes::from(private.sign(&signed.json));
        let frames = [signed.json.clone(), bare];
        assert!(
            UnverifiedReply::from_frames(&frames)
                .expect("parses")
                .verify(&public)
                .is_err()
        );
    }

    #[test]
    fn a_minion_cannot_speak_for_another() {
        let mut foreign = reply();
        foreign.answer = Answer::NotStarted {
            binding: binding("client-2"),
        };
        let signed = foreign.sign(&PrivateKey::from_pem(PRIVATE).expect("a key"));
        assert!(matches!(
            UnverifiedReply::from_frames(&signed.frames()),
            Err(ReplyError::Foreign(_))
        ));
    }

    #[test]
    fn frames_over_a_limit_or_of_another_count_are_refused() {
        let ok = Bytes::from_static(b"x");
        assert!(matches!(
            UnverifiedReply::from_frames(&[]),
            Err(ReplyError::Frames(0))
        ));
        assert!(matches!(
            UnverifiedReply::from_frames(&[ok.clone(), ok.clone(), ok.clone()]),
            Err(ReplyError::Frames(3))
        ));
        let long = Bytes::from(vec![b' '; MAX_REPLY_BYTES + 1]);
        assert!(matches!(
            UnverifiedReply::from_frames(&[long, ok.clone()]),
            Err(ReplyError::TooLong(_))
        ));
        let long = Bytes::from(vec![0; MAX_SIGNATURE_BYTES + 1]);
        assert!(matches!(
            UnverifiedReply::from_frames(&[ok, long]),
            Err(ReplyError::SignatureTooLong(_))
        ));
    }

    #[test]
    fn unknown_fields_are_refused_at_every_level() {
        let json = serde_json::to_string(&reply()).expect("json");
        for (from, to) in [
            ("{\"protocol\"", "{\"extra\":1,\"protocol\""),
            ("{\"binding\"", "{\"extra\":1,\"binding\""),
            ("\"sequence\":7", "\"sequence\":7,\"extra\":1"),
        ] {
            let bad = json.replace(from, to);
            assert_ne!(bad, json);
            let frames = [Bytes::from(bad), Bytes::new()];
            assert!(
                matches!(
                    UnverifiedReply::from_frames(&frames),
                    Err(ReplyError::Json(_))
                ),
                "{to}"
            );
        }
    }

    #[test]
    fn acknowledgements_read_back() {
        let word = Acknowledgement::Recorded(Sha256Hex::of(b"x"));
        assert_eq!(Acknowledgement::from_frames(&word.frames()), Some(word));
        assert_eq!(Acknowledgement::from_frames(&[]), None);
        assert_eq!(
            Acknowledgement::from_frames(&[Bytes::from(vec![b' '; 600])]),
            None
        );
    }

    proptest! {
        #[test]
        fn arbitrary_frames_never_panic(a in proptest::collection::vec(any::<u8>(), 0..200), b in proptest::collection::vec(any::<u8>(), 0..50)) {
            drop(UnverifiedReply::from_frames(&[a.into(), b.into()]));
        }
    }
}
