//! One publication into the master's `publish_pull` socket, and the truth about how that ended.
//!
//! [`push`] opens a connection for one message and closes it afterwards. It never sends again: not
//! after an error, not to another peer, not later. There is no queue in which a message could outlive
//! the call. Whether it ended as [`PushEnd::NotSent`] or otherwise is decided by one fact only, the
//! number of bytes of the message that the kernel took from us:
//!
//! | bytes taken | end | may the peer have the message? |
//! |---|---|---|
//! | none | `NotSent` | no |
//! | some | `Partial` | no, if it drops unfinished frames as libzmq does; treat it as maybe |
//! | all | `Sent` | yes, even if it or this process dies now: the bytes are in its receive queue |

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::handshake::{HandshakeError, handshake};
use super::{Endpoint, frame, instant_after};

/// Longest READY accepted from a publisher, in bytes.
const MAX_COMMAND: usize = 1024;

/// How long to watch, after the last byte, whether the peer reads it all.
const READ_WATCH: Duration = Duration::from_millis(50);

/// Pause between two looks, and between two tries at a full listen backlog.
const PAUSE: Duration = Duration::from_millis(2);

/// How one [`push`] ended.
#[derive(Debug)]
pub enum PushEnd {
    /// Certain: no byte of the message left this process.
    NotSent(NotSent),
    /// Every byte of the message is in the kernel. Says nothing about what the peer does with it.
    Sent {
        /// The peer has taken every byte out of its receive queue within 50 ms. Evidence for a
        /// person, not a proof of publication; `false` proves nothing and is all that TCP gives.
        read_by_peer: bool,
    },
    /// Some bytes of the message are in the kernel, the rest never will be. Uncertain.
    Partial {
        /// Bytes that the kernel took, between 1 and `total - 1`; the frame's header counts.
        written: usize,
        /// Length of the frame in bytes.
        total: usize,
        /// What stopped the write; kind `TimedOut` for the deadline.
        source: io::Error,
    },
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// Nobody listens there, or we may not connect.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The peer is not a ZMTP 3 peer with NULL security, or hung up during the handshake.
    #[error("handshake failed")]
    Handshake(#[source] HandshakeError),
    /// The peer is no PULL socket but of the type named here.
    #[error("peer is a socket of type {0:?}, not PULL")]
    PeerType(String),
    /// The deadline passed first: while connecting, shaking hands, or waiting for room for one byte.
    #[error("the deadline passed before the first byte")]
    Timeout,
    /// The connection was dead, or said something unasked, when the write was about to begin.
    #[error("peer was gone or out of step before the first byte")]
    PeerGone(#[source] io::Error),
    /// The first write failed, and the kernel took nothing.
    #[error("the kernel took no byte of the message")]
    Write(#[source] io::Error),
}

/// Sends `message` as one single-frame message to the PULL socket at `endpoint`, once. All of it, from
/// connecting to the last byte, ends at `deadline` from now; on a Unix socket a look of at most 50 ms at
/// the peer's progress may follow.
///
/// Not cancel-safe: whoever drops the future does not learn how it ended and must assume
/// [`PushEnd::Partial`].
pub async fn push(endpoint: &Endpoint, message: &[u8], deadline: Duration) -> PushEnd {
    let until = instant_after(deadline);
    match endpoint {
        Endpoint::Unix(path) => {
            let mut stream = match timeout_at(until, connect_unix(path)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return PushEnd::NotSent(NotSent::Connect(error)),
                Err(_) => return PushEnd::NotSent(NotSent::Timeout),
            };
            match push_over(&mut stream, message, until).await {
                PushEnd::Sent { .. } => PushEnd::Sent {
                    read_by_peer: peer_reads_all(&stream).await,
                },
                other => other,
            }
        }
        Endpoint::Tcp(addr) => match timeout_at(until, TcpStream::connect(addr)).await {
            Ok(Ok(mut stream)) => push_over(&mut stream, message, until).await,
            Ok(Err(error)) => PushEnd::NotSent(NotSent::Connect(error)),
            Err(_) => PushEnd::NotSent(NotSent::Timeout),
        },
    }
}

/// Connects; waits while the listener's backlog is full, which Unix sockets report as `WouldBlock`.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(PAUSE).await,
            other => return other,
        }
    }
}

async fn push_over<S>(stream: &mut S, message: &[u8], until: Instant) -> PushEnd
where
    S: AsyncRead + AsyncWrite + AsFd + Unpin,
{
    let mut buf = BytesMut::new();
    let shaken = handshake(stream, &mut buf, "PUSH", &["PULL"], MAX_COMMAND);
    match timeout_at(until, shaken).await {
        Ok(Ok(())) => {}
        Ok(Err(HandshakeError::SocketType(found))) => {
            return PushEnd::NotSent(NotSent::PeerType(found));
        }
        Ok(Err(error)) => return PushEnd::NotSent(NotSent::Handshake(error)),
        Err(_) => return PushEnd::NotSent(NotSent::Timeout),
    }

    let bytes = frame::encode_message(&[message]);
    if let Err(error) = check_silent(stream, &buf) {
        return PushEnd::NotSent(NotSent::PeerGone(error));
    }
    write_once(stream, &bytes, until).await
}

/// A PULL peer says nothing after its READY. If the connection is readable all the same, it ended or is
/// out of step: better known now than after the first byte.
fn check_silent(stream: &impl AsFd, behind_ready: &[u8]) -> io::Result<()> {
    if !behind_ready.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "unexpected data from a PULL peer",
        ));
    }
    // Asks the kernel itself: tokio's own view of readiness may be older.
    let mut byte = [0];
    match recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
        Ok((_, 0)) => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "peer closed the connection",
        )),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "unexpected data from a PULL peer",
        )),
    }
}

/// Writes `bytes` and counts. `write` and not `write_all`, because the count is the verdict: a socket
/// write that fails took nothing, one that is abandoned while pending took nothing.
async fn write_once<S>(stream: &mut S, bytes: &[u8], until: Instant) -> PushEnd
where
    S: AsyncWrite + Unpin,
{
    let total = bytes.len();
    let mut written = 0;
    while written < total {
        let source = match timeout_at(until, stream.write(&bytes[written..])).await {
            Ok(Ok(taken)) if taken > 0 => {
                written += taken;
                continue;
            }
            Ok(Ok(_)) => io::ErrorKind::WriteZero.into(),
            Ok(Err(error)) => error,
            Err(_) if written == 0 => return PushEnd::NotSent(NotSent::Timeout),
            Err(elapsed) => elapsed.into(),
        };
        return match written {
            0 => PushEnd::NotSent(NotSent::Write(source)),
            _ => PushEnd::Partial {
                written,
                total,
                source,
            },
        };
    }
    PushEnd::Sent {
        read_by_peer: false,
    }
}

/// Watches for at most [`READ_WATCH`] whether the peer takes all we wrote.
///
/// A peer that closes with bytes unread empties the queue too. The kernel marks our end with an error
/// before it does so (`unix_release_sock`), so the error is looked at after the queue.
async fn peer_reads_all(stream: &UnixStream) -> bool {
    let until = instant_after(READ_WATCH);
    loop {
        match unread_by_peer(stream) {
            Ok(0) => return matches!(stream.take_error(), Ok(None)),
            Ok(_) if Instant::now() < until => sleep(PAUSE).await,
            _ => return false,
        }
    }
}

/// Memory that the kernel holds for what we wrote and the peer has not read, in bytes (`TIOCOUTQ`).
fn unread_by_peer(stream: &UnixStream) -> io::Result<i32> {
    use rustix::ioctl::{Getter, ioctl};
    const TIOCOUTQ: rustix::ioctl::Opcode = libc::TIOCOUTQ as rustix::ioctl::Opcode;

    #[expect(unsafe_code, reason = "rustix has no wrapper for TIOCOUTQ")]
    // SAFETY: TIOCOUTQ stores one C int through its argument and reads nothing (unix(7), tty_ioctl(4)).
    let unread = unsafe { ioctl(stream, Getter::<TIOCOUTQ, libc::c_int>::new()) };
    Ok(unread?)
}
