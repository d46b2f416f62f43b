//! The minion's side of the reply port: one message there, one answer back.
//!
//! Through the `zeromq` crate, one DEALER socket per exchange. The crate's `send` means "queued" and its
//! `recv` never returns once the server is gone; the answer is the only evidence of delivery, and every
//! wait ends at the deadline.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout_at;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::instant_after;
use super::reach::reach;

/// Why there is no answer. After any but `Unreachable` and `Empty` the server may have the message.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody accepts connections at the address; nothing was sent.
    #[error("cannot connect to {addr}")]
    Unreachable {
        /// The server's address.
        addr: SocketAddr,
        /// The cause; kind `TimedOut` if the deadline passed.
        source: io::Error,
    },
    /// The exchange failed.
    #[error("exchange with {addr} failed")]
    Failed {
        /// The server's address.
        addr: SocketAddr,
        /// What the crate says.
        source: ZmqError,
    },
    /// No answer before the deadline.
    #[error("no answer from {addr} in time")]
    Timeout {
        /// The server's address.
        addr: SocketAddr,
    },
    /// A message of no frames cannot be sent.
    #[error("a message needs at least one frame")]
    Empty,
}

/// Sends `frames` as one message (no delimiter is added) to the ROUTER at `addr` and waits for one
/// answer, all before `deadline` from now. May be repeated by the caller: the server must tell
/// duplicates apart.
///
/// The crate does not limit what the peer may send; ask only an address whose owner is trusted.
pub async fn exchange(
    addr: SocketAddr,
    frames: Vec<Bytes>,
    deadline: Duration,
) -> Result<Vec<Bytes>, ExchangeError> {
    let until = instant_after(deadline);
    let message = ZmqMessage::try_from(frames).map_err(|_| ExchangeError::Empty)?;
    reach(addr, until)
        .await
        .map_err(|source| ExchangeError::Unreachable { addr, source })?;

    let exchange = async {
        let mut socket = DealerSocket::new();
        socket.connect(&format!("tcp://{addr}")).await?;
        socket.send(message).await?;
        socket.recv().await
    };
    match timeout_at(until, exchange).await {
        Ok(Ok(answer)) => Ok(answer.into_vec()),
        Ok(Err(source)) => Err(ExchangeError::Failed { addr, source }),
        Err(_) => Err(ExchangeError::Timeout { addr }),
    }
}
