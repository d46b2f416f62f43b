//! One exchange with the master's request port.
//!
//! Through the `zeromq` crate, one REQ socket per exchange and never a second use: its REQ does not
//! match answers to requests, so that on a used socket a late answer would be taken for the next one's.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use zeromq::{ReqSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::instant_after;

/// How an exchange failed: the difference decides whether a publication may have happened.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Certain: no byte of the payload left this process.
    #[error("request to {addr} was not sent")]
    NotSent {
        /// The server's address.
        addr: SocketAddr,
        /// Why.
        source: RequestFault,
    },
    /// The payload may have arrived: anything that goes wrong once sending has begun.
    #[error("request to {addr} has no answer")]
    Lost {
        /// The server's address.
        addr: SocketAddr,
        /// Why.
        source: RequestFault,
    },
}

/// The cause of a [`RequestError`].
#[derive(Debug, thiserror::Error)]
pub enum RequestFault {
    /// The TCP connection cannot be made.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The crate gave up: at the handshake, at the send or at the answer.
    #[error("the connection failed")]
    Socket(#[source] ZmqError),
    /// The deadline passed.
    #[error("the deadline passed")]
    Timeout,
    /// An answer of more than one frame, or of none; holds their number.
    #[error("the answer has {0} frames, not one")]
    Frames(usize),
}

/// Sends `payload` to the REP or ROUTER socket at `addr` and waits for its one-frame answer, all before
/// `deadline` from now. Never sends twice.
///
/// Dropping the future means the same as [`RequestError::Lost`].
pub async fn request(
    addr: SocketAddr,
    payload: Bytes,
    deadline: Duration,
) -> Result<Bytes, RequestError> {
    let until = instant_after(deadline);
    let mut socket = match connect(addr, until).await {
        Ok(socket) => socket,
        Err(source) => return Err(RequestError::NotSent { addr, source }),
    };
    // From here on the payload may be on its way.
    exchange(&mut socket, payload, until)
        .await
        .map_err(|source| RequestError::Lost { addr, source })
}

/// A connected socket, its handshake done.
async fn connect(addr: SocketAddr, until: Instant) -> Result<ReqSocket, RequestFault> {
    reach(addr, until)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => RequestFault::Timeout,
            _ => RequestFault::Connect(error),
        })?;
    let mut options = SocketOptions::default();
    options.no_connect_timeout(); // ours holds
    let mut socket = ReqSocket::with_options(options);
    match timeout_at(until, socket.connect(&format!("tcp://{addr}"))).await {
        Ok(Ok(())) => Ok(socket),
        Ok(Err(error)) => Err(RequestFault::Socket(error)),
        Err(_) => Err(RequestFault::Timeout),
    }
}

/// Is anybody listening? Asked before the crate is, whose `connect` keeps trying a refused address until
/// its time is up and then hides the cause. The server sees an empty connection. An error of kind
/// `TimedOut` may be the deadline's.
async fn reach(addr: SocketAddr, until: Instant) -> io::Result<()> {
    timeout_at(until, TcpStream::connect(addr)).await??;
    Ok(())
}

async fn exchange(
    socket: &mut ReqSocket,
    payload: Bytes,
    until: Instant,
) -> Result<Bytes, RequestFault> {
    let exchange = async {
        socket.send(ZmqMessage::from(payload)).await?;
        socket.recv().await
    };
    let answer = match timeout_at(until, exchange).await {
        Ok(Ok(answer)) => answer.into_vec(),
        Ok(Err(error)) => return Err(RequestFault::Socket(error)),
        Err(_) => return Err(RequestFault::Timeout),
    };
    match <[Bytes; 1]>::try_from(answer) {
        Ok([frame]) => Ok(frame),
        Err(frames) => Err(RequestFault::Frames(frames.len())),
    }
}
