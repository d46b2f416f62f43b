//! The NULL handshake, the same from either side: greeting, greeting, READY, READY.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::frame::{self, Command, DecodeError, Frame, FrameLimits, GREETING_LEN, Malformed};
use super::incoming::read_some;

/// Why a connection never became a ZMTP connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer hung up.
    #[error("peer closed the connection during the handshake")]
    Closed,
    /// The transport failed.
    #[error("connection failed during the handshake")]
    Io(#[from] io::Error),
    /// The peer speaks something else, or another security mechanism.
    #[error("peer does not speak ZMTP 3 with NULL security")]
    Malformed(#[from] Malformed),
    /// The peer said why not, with an ERROR command.
    #[error("peer refused the handshake: {0:?}")]
    Refused(String),
    /// The peer sent something else than READY.
    #[error("peer sent something else than READY")]
    NotReady,
    /// The peer is a socket of another type, named here.
    #[error("peer is a socket of type {0:?}")]
    SocketType(String),
}

/// Carries the handshake through as a socket of type `ours`, with a peer of one of the types `accepts`
/// and a READY of at most `max_command` bytes. What the peer sent behind its READY is left in `buf`.
/// Has no deadline of its own.
pub(super) async fn handshake<S>(
    stream: &mut S,
    buf: &mut BytesMut,
    ours: &str,
    accepts: &[&str],
    max_command: usize,
) -> Result<(), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(&frame::greeting()).await?;
    loop {
        match frame::check_greeting(buf) {
            Ok(()) => break buf.advance(GREETING_LEN),
            Err(DecodeError::Malformed(why)) => return Err(why.into()),
            Err(DecodeError::Incomplete) => read_more(stream, buf).await?,
        }
    }

    // Only now, so that a peer of another mechanism never sees one of our commands.
    stream.write_all(&frame::ready(ours)).await?;
    let limits = FrameLimits {
        message: 0,
        command: max_command,
    };
    loop {
        let taken = match Frame::decode(buf, limits) {
            Ok((Frame::Command(body), taken)) => {
                check_ready(body, accepts)?;
                taken
            }
            Ok((Frame::Message { .. }, _)) => return Err(HandshakeError::NotReady),
            Err(DecodeError::Malformed(why)) => return Err(why.into()),
            Err(DecodeError::Incomplete) => {
                read_more(stream, buf).await?;
                continue;
            }
        };
        buf.advance(taken);
        return Ok(());
    }
}

fn check_ready(body: &[u8], accepts: &[&str]) -> Result<(), HandshakeError> {
    match Command::decode(body)? {
        Command::Ready { socket_type } => {
            if accepts
                .iter()
                .any(|accepted| accepted.as_bytes() == socket_type)
            {
                Ok(())
            } else {
                Err(HandshakeError::SocketType(
                    String::from_utf8_lossy(socket_type).into_owned(),
                ))
            }
        }
        Command::Error { reason } => Err(HandshakeError::Refused(
            String::from_utf8_lossy(reason).into_owned(),
        )),
        Command::Ping { .. } | Command::Other => Err(HandshakeError::NotReady),
    }
}

async fn read_more<S>(stream: &mut S, buf: &mut BytesMut) -> Result<(), HandshakeError>
where
    S: AsyncRead + Unpin,
{
    match read_some(stream, buf).await? {
        0 => Err(HandshakeError::Closed),
        _ => Ok(()),
    }
}
