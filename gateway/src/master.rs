//! The Salt master as the gateway sees it: its keys on disk, and the two ways to publish.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gw_wire::id::{MinionId, Sha256Hex};
use gw_wire::key::{KeyError, MAX_PEM_BYTES, PublicKey};
use gw_wire::master_answer::MasterAnswer;
use gw_wire::publication::Publication;
use gw_wire::zmtp::Endpoint;
use gw_wire::zmtp::push::{PushEnd, push};
use gw_wire::zmtp::req::{RequestError, request};

use crate::config::Transport;
use crate::master_config::{IpcMode, MasterConfig};
use crate::words;

/// How long a PUSH to the publisher may take, from connecting to the last byte.
const PUSH_DEADLINE: Duration = Duration::from_secs(5);
/// How long the master may take to answer a clear request. Salt's own client waits 5 s and sends again
/// (`salt/client/__init__.py`, `pub`, 3006.27); we never send again, so we can wait.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// The longest root key that is read. Salt writes 76 bytes (`salt/crypt.py`, `Crypticle`, 3006.27).
const MAX_ROOT_KEY_BYTES: u64 = 1024;

/// How a send ended. Never a guess: whatever is not sure is `Unclear`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sending {
    /// Every byte left (ipc), or the master acknowledged our jid (request).
    Done {
        /// The publisher was seen to read it all (ipc only).
        read_by_publisher: bool,
    },
    /// Certain: nothing was published.
    NotSent(String),
    /// It may have been published.
    Unclear(String),
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// There is none.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("cannot read key {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no usable key.
    #[error("cannot use key {path}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyError,
    },
}

/// The master beside which this gateway runs.
#[derive(Debug, Clone)]
pub struct Master {
    config: MasterConfig,
    transport: Transport,
}

impl Master {
    /// A master with its configuration, reached by one transport.
    pub fn new(config: MasterConfig, transport: Transport) -> Self {
        Master { config, transport }
    }

    /// How publications leave.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What an operator should know about this set-up, in one line, if anything.
    pub fn warning(&self) -> Option<&'static str> {
        // salt/transport/zeromq.py, pull_uri, 3006.27: a loopback port without any authentication.
        (self.config.ipc_mode == IpcMode::Tcp).then_some(
            "ipc_mode is tcp: any local user of this machine can publish jobs as root on the master's loopback port",
        )
    }

    /// SHA-256 of the master's public key.
    pub fn fingerprint(&self) -> Result<Sha256Hex, KeyFileError> {
        read_key(&self.config.pki_dir.join("master.pub")).map(|key| key.fingerprint())
    }

    /// The accepted key of a minion, read anew: it may have been replaced or deleted since.
    pub fn accepted_key(&self, minion_id: &MinionId) -> Result<PublicKey, KeyFileError> {
        read_key(&self.config.pki_dir.join("minions").join(minion_id.as_str()))
    }

    /// Hands a publication to the transport, once, and says how that ended. Waits for the network.
    pub async fn publish(&self, publication: &Publication) -> Sending {
        match self.transport {
            Transport::Ipc => self.push(publication).await,
            Transport::Request => self.request(publication).await,
        }
    }

    async fn push(&self, publication: &Publication) -> Sending {
        let endpoint = match self.config.ipc_mode {
            IpcMode::Ipc => Endpoint::Unix(self.config.sock_dir.join("publish_pull.ipc")),
            IpcMode::Tcp => {
                Endpoint::Tcp(([127, 0, 0, 1], self.config.tcp_master_publish_pull).into())
            }
        };
        let load = publication.to_bare_load(&self.config.user);
        match push(&endpoint, &load, PUSH_DEADLINE).await {
            PushEnd::Sent { read_by_peer } => Sending::Done {
                read_by_publisher: read_by_peer,
            },
            PushEnd::NotSent(why) => Sending::NotSent(format!("{endpoint}: {}", words(&why))),
            PushEnd::Partial {
                written,
                total,
                source,
            } => Sending::Unclear(format!(
                "{endpoint}: {written} of {total} bytes written: {source}"
            )),
        }
    }

    async fn request(&self, publication: &Publication) -> Sending {
        let (user, key) = match self.root_key() {
            Ok(found) => found,
            Err(why) => return Sending::NotSent(why),
        };
        let load = publication.to_clear_request(&user, &key);
        match request(self.config.request_addr, load.into(), REQUEST_DEADLINE).await {
            Ok(answer) => match MasterAnswer::parse(&answer, publication.jid) {
                MasterAnswer::Acknowledged => Sending::Done {
                    read_by_publisher: false,
                },
                MasterAnswer::Rejected(words) => {
                    Sending::NotSent(format!("the master rejected it: {words}"))
                }
                MasterAnswer::Unclear(words) => {
                    Sending::Unclear(format!("the master answered: {words}"))
                }
            },
            Err(error @ RequestError::NotSent { .. }) => Sending::NotSent(words(&error)),
            Err(error @ RequestError::Lost { .. }) => Sending::Unclear(words(&error)),
        }
    }

    /// The root key, read anew since the master writes it at each start, and the user that goes with it.
    ///
    /// `salt/daemons/masterapi.py`, `access_keys`, 3006.27: `.<user>_key` for the user that the master was
    /// started by and for the one that it runs as.
    fn root_key(&self) -> Result<(String, String), String> {
        let mut last = String::new();
        for user in ["root", self.config.user.as_str()] {
            let path = self.config.cachedir.join(format!(".{user}_key"));
            let length = std::fs::metadata(&path).map(|meta| meta.len());
            match length.and_then(|length| {
                if length > MAX_ROOT_KEY_BYTES {
                    return Err(io::Error::other(format!(
                        "it is over the limit of {MAX_ROOT_KEY_BYTES} bytes"
                    )));
                }
                std::fs::read_to_string(&path)
            }) {
                Ok(key) => return Ok((user.to_owned(), key)),
                Err(error) => {
                    last = format!("cannot read the master's key {}: {error}", path.display())
                }
            }
        }
        Err(last)
    }
}

fn read_key(path: &Path) -> Result<PublicKey, KeyFileError> {
    let read = |source| KeyFileError::Read {
        path: path.to_owned(),
        source,
    };
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > MAX_PEM_BYTES as u64 => {
            Err(KeyError::TooLong(meta.len() as usize))
        }
        Ok(_) => PublicKey::from_pem(&std::fs::read(path).map_err(read)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(KeyFileError::Missing(path.to_owned()));
        }
        Err(error) => return Err(read(error)),
    }
    .map_err(|source| KeyFileError::Key {
        path: path.to_owned(),
        source,
    })
}
