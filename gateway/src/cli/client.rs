//! HTTP over the daemon's Unix socket.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::exit::Exit;
use crate::api::{ErrorBody, ErrorView};
use crate::words;

/// The largest answer that is read, in bytes: a list of 10,000 records.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Why the daemon gave no record.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers there.
    #[error("no daemon answers on {path}")]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket is not one to trust with a request.
    #[error("{path} is not a socket of root or of this user (it belongs to uid {uid})")]
    ForeignSocket {
        /// The path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// It said no.
    #[error("{}", .0.message)]
    Refused(Box<ErrorView>, StatusCode),
    /// The connection broke, or the answer makes no sense. What was asked for may have been done.
    #[error("the daemon's answer was lost: {0}")]
    Lost(String),
}

impl ClientError {
    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            ClientError::NoDaemon { .. } => Exit::NoDaemon,
            ClientError::ForeignSocket { .. } => Exit::Usage,
            ClientError::Lost(_) => Exit::Error,
            ClientError::Refused(error, status) => match (error.code.as_str(), *status) {
                ("request_conflict", _) => Exit::Conflict,
                // A precondition was not met: nothing was claimed and nothing was sent.
                (
                    _,
                    StatusCode::LOCKED | StatusCode::PRECONDITION_FAILED | StatusCode::BAD_GATEWAY,
                ) => Exit::NotRun,
                (_, status) if status.is_client_error() => Exit::Usage,
                _ => Exit::Error,
            },
        }
    }

    /// The error as it is shown.
    pub fn view(&self) -> ErrorView {
        let local = |code: &str, hint: Option<&str>| ErrorView {
            code: code.to_owned(),
            message: words(self),
            hint: hint.map(str::to_owned),
            request_id: None,
        };
        match self {
            ClientError::Refused(error, _) => error.as_ref().clone(),
            ClientError::NoDaemon { .. } => local(
                "daemon_not_running",
                Some("start it with: gw serve (systemctl start gw)"),
            ),
            ClientError::ForeignSocket { .. } => local("socket_foreign", None),
            ClientError::Lost(_) => local(
                "answer_lost",
                Some("ask again with the same request id: a request is never sent twice"),
            ),
        }
    }

    /// Whether what was asked for may have been done all the same.
    pub fn leaves_doubt(&self) -> bool {
        match self {
            ClientError::Lost(_) => true,
            ClientError::Refused(_, status) => {
                status.is_server_error() && *status != StatusCode::BAD_GATEWAY
            }
            ClientError::NoDaemon { .. } | ClientError::ForeignSocket { .. } => false,
        }
    }
}

/// The way to one daemon.
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Looks at the socket before anything is said to it: whoever owns it sees every request and could
    /// answer anything.
    pub fn new(socket: PathBuf) -> Result<Self, ClientError> {
        let meta = match std::fs::metadata(&socket) {
            Ok(meta) => meta,
            Err(source) => {
                return Err(ClientError::NoDaemon {
                    path: socket,
                    source,
                });
            }
        };
        let uid = meta.uid();
        if !meta.file_type().is_socket() || (uid != 0 && uid != rustix::process::geteuid().as_raw())
        {
            return Err(ClientError::ForeignSocket { path: socket, uid });
        }
        Ok(Client { socket })
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).expect("request bodies are plain data");
        self.call(Method::POST, path, body.into()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let stream =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| ClientError::NoDaemon {
                    path: self.socket.clone(),
                    source,
                })?;
        let lost = |error: hyper::Error| ClientError::Lost(words(&error));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(lost)?;
        // An error of the connection shows up at the request too.
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "gw")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| ClientError::Lost(words(&error)))?;
        let answer = sender.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(|error| ClientError::Lost(error.to_string()))?
            .to_bytes();
        let unreadable = |error: serde_json::Error| ClientError::Lost(words(&error));
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(unreadable);
        }
        let body: ErrorBody = serde_json::from_slice(&bytes).map_err(unreadable)?;
        Err(ClientError::Refused(Box::new(body.error), status))
    }
}

/// Percent-encodes everything but unreserved characters (RFC 3986, 2.3).
pub fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}
