//! Signed replies: made with the minion's own Salt key, sent to the gateway beside its master.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gw_wire::id::{MinionId, Token};
use gw_wire::key::{KeyError, MAX_PEM_BYTES, PrivateKey};
use gw_wire::publication::Metadata;
use gw_wire::receipt::PROTOCOL;
use gw_wire::reply::{Acknowledgement, Answer, Reply, SignedReply, StorePosition};
use gw_wire::zmtp::dealer::exchange;

use crate::facts::Facts;
use crate::survival::is_stopping;

/// How long a receipt or a refusal is sent again until it is acknowledged.
pub const EVIDENCE_PATIENCE: Duration = Duration::from_secs(600);
/// The same for the answer to a question, which the gateway simply asks again.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How much longer anything is sent when our scope is being stopped: less than systemd waits, which is 90 s.
const STOPPING_PATIENCE: Duration = Duration::from_secs(10);
/// For one connection, message and acknowledgement.
const EXCHANGE_DEADLINE: Duration = Duration::from_secs(10);
/// The same for progress, which is sent once.
const PROGRESS_DEADLINE: Duration = Duration::from_secs(2);
/// The first pause between two tries, doubled each time up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(15);

/// Why no reply can be made.
#[derive(Debug, thiserror::Error)]
pub enum SpeakerError {
    /// The key file cannot be read.
    #[error("cannot read the minion's key {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The key cannot be used.
    #[error("cannot use the minion's key {path}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: KeyError,
    },
    /// Facts without a usable address.
    #[error("the address of the minion's master must be numeric")]
    Address,
}

/// Who speaks, to whom, about which question.
#[derive(Debug)]
pub struct Speaker {
    key: PrivateKey,
    minion_id: MinionId,
    gateway: SocketAddr,
    nonce: Option<Token>,
}

impl Speaker {
    /// Reads the minion's key and finds the gateway: on the reply port of the minion's own master.
    pub fn new(
        facts: &Facts,
        minion_id: &MinionId,
        metadata: &Metadata,
    ) -> Result<Self, SpeakerError> {
        let address = facts.master_ip.as_deref().unwrap_or_default();
        // Salt writes an IPv6 address in brackets (`salt/utils/zeromq.py`, `ip_bracket`, 3006.27).
        let ip: IpAddr = address
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .map_err(|_| SpeakerError::Address)?;
        Ok(Speaker {
            key: read_key(facts)?,
            minion_id: minion_id.clone(),
            gateway: SocketAddr::new(ip, metadata.reply_port),
            nonce: metadata.nonce,
        })
    }

    /// Signs an answer.
    pub fn sign(&self, store: Option<StorePosition>, answer: Answer) -> SignedReply {
        Reply {
            protocol: PROTOCOL,
            minion_id: self.minion_id.clone(),
            signed_at: gw_wire::id::now(),
            nonce: self.nonce,
            store,
            answer,
        }
        .sign(&self.key)
    }

    /// Sends the same bytes until they are acknowledged or rejected, or patience ends: soon, when systemd
    /// stops our scope. What has been made durable can be asked for.
    pub fn deliver(&self, reply: &SignedReply, patience: Duration) -> Delivery {
        let mut until = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            if is_stopping() {
                until = until.min(Instant::now() + STOPPING_PATIENCE);
            }
            match self.send_once(reply, EXCHANGE_DEADLINE) {
                Some(Acknowledgement::Recorded(_)) => return Delivery::Recorded,
                Some(Acknowledgement::Rejected(_)) => return Delivery::Rejected,
                None => {}
            }
            if Instant::now() + pause >= until {
                return Delivery::GivenUp;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Sends a reply once, and does not mind if it is lost.
    pub fn mention(&self, reply: &SignedReply) {
        drop(self.send_once(reply, PROGRESS_DEADLINE));
    }

    /// The gateway's word on exactly these bytes, if it came in time.
    fn send_once(&self, reply: &SignedReply, deadline: Duration) -> Option<Acknowledgement> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let answer = runtime
            .block_on(exchange(self.gateway, reply.frames(), deadline))
            .ok()?;
        let word = Acknowledgement::from_frames(&answer)?;
        let (Acknowledgement::Recorded(sha256) | Acknowledgement::Rejected(sha256)) = &word;
        (*sha256 == reply.sha256()).then_some(word)
    }
}

/// How the sending of a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the gateway's journal.
    Recorded,
    /// The gateway will never take it.
    Rejected,
    /// Nobody acknowledged it; a status call can still ask for it.
    GivenUp,
}

fn read_key(facts: &Facts) -> Result<PrivateKey, SpeakerError> {
    let path = PathBuf::from(&facts.pki_dir).join("minion.pem");
    let mut pem = Vec::new();
    let read = std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_PEM_BYTES as u64 + 1).read_to_end(&mut pem));
    match read {
        Ok(_) => PrivateKey::from_pem(&pem).map_err(|source| SpeakerError::Key { path, source }),
        Err(source) => Err(SpeakerError::Read { path, source }),
    }
}
