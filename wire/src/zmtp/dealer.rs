//! The minion's side of the reply port: one message there, one answer back.
//!
//! Whoever has the gateway's address gets to answer, and the process that asks holds a job's locks. So
//! the server is trusted no more than the reply port trusts its peers: one connection per exchange, one
//! deadline for all of it, and an answer of at most 8 frames and 8 KiB. Whatever breaks a rule ends the
//! exchange with an error and nothing else. The answer is the only evidence of delivery.
//!
//! **Invariant: length-before-allocation.** A server can make this process hold about 32 KiB.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::handshake::{HandshakeError, handshake};
use super::incoming::{Incoming, MessageError, MessageLimits, Step, read_some};
use super::{frame, instant_after};

/// What an answer may take; an acknowledgement is far smaller.
const ANSWER: MessageLimits = MessageLimits {
    frame_bytes: 8 * 1024,
    frames: 8,
    message_bytes: 8 * 1024,
    command_bytes: 1024,
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A message of no frames cannot be sent.
    #[error("a message needs at least one frame")]
    Empty,
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
        /// What went wrong.
        source: ExchangeFault,
    },
    /// No answer before the deadline; the server may have the message.
    #[error("no answer from {addr} in time")]
    Timeout {
        /// The server's address.
        addr: SocketAddr,
    },
}

/// The cause of an [`ExchangeError::Failed`].
#[derive(Debug, thiserror::Error)]
pub enum ExchangeFault {
    /// The server is not a ROUTER that speaks ZMTP 3 with NULL security; nothing was sent.
    #[error("handshake failed")]
    Handshake(#[from] HandshakeError),
    /// The connection failed; the server may have the message.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The server hung up instead of answering; it may have the message.
    #[error("peer closed the connection before its answer")]
    Closed,
    /// The server has the message, or claims to, but its answer breaks a rule.
    #[error("the answer is not acceptable")]
    Answer(#[from] MessageError),
}

/// Sends `frames` as one message (no delimiter is added) to the ROUTER at `addr` and waits for one
/// answer of at most 8 frames and 8 KiB; all of it, from connecting on, ends at `deadline` from now. The
/// connection is closed afterwards. May be repeated by the caller: the server must tell duplicates apart.
///
/// The server may be anybody: it can fail the exchange, never more.
pub async fn exchange(
    addr: SocketAddr,
    frames: Vec<Bytes>,
    deadline: Duration,
) -> Result<Vec<Bytes>, ExchangeError> {
    let until = instant_after(deadline);
    if frames.is_empty() {
        return Err(ExchangeError::Empty);
    }
    let stream = connect(addr, until)
        .await
        .map_err(|source| ExchangeError::Unreachable { addr, source })?;
    match timeout_at(until, converse(stream, &frames)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ExchangeError::Failed { addr, source }),
        Err(_) => Err(ExchangeError::Timeout { addr }),
    }
}

async fn connect(addr: SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let stream = timeout_at(until, TcpStream::connect(addr)).await??;
    // READY and the message are two small writes, which the kernel would otherwise hold apart.
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn converse(mut stream: TcpStream, frames: &[Bytes]) -> Result<Vec<Bytes>, ExchangeFault> {
    let mut buf = BytesMut::new();
    handshake(
        &mut stream,
        &mut buf,
        "DEALER",
        &["ROUTER"],
        ANSWER.command_bytes,
    )
    .await?;
    stream.write_all(&frame::encode_message(frames)).await?;

    let mut answer = Incoming::new(ANSWER);
    loop {
        match answer.step(&mut buf)? {
            Step::Done(frames) => return Ok(frames),
            Step::Pong(pong) => stream.write_all(&pong).await?,
            Step::Again => {}
            Step::Read => {
                if read_some(&mut stream, &mut buf).await? == 0 {
                    return Err(ExchangeFault::Closed);
                }
            }
        }
    }
}
