//! What a peer sends once hands are shaken: frames put together into messages, within limits.
//!
//! Deadlines are the caller's. So is the reading, so that it can have another deadline for each step.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frame::{self, Command, DecodeError, Frame, FrameLimits, Malformed};

/// Room made in a buffer before each read, in bytes.
const READ_CHUNK: usize = 4096;

/// Reads what has arrived, at least one byte, to the end of `buf`, or 0 bytes if the peer hung up.
/// Cancel-safe.
pub(super) async fn read_some<S>(stream: &mut S, buf: &mut BytesMut) -> io::Result<usize>
where
    S: AsyncRead + Unpin,
{
    buf.reserve(READ_CHUNK);
    stream.read_buf(buf).await
}

/// What a peer sent instead of a message within the limits.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Not a frame, not a command, or one that is too long. If all frames together are too long, the
    /// limit named is the room that was left for the last one.
    #[error("peer sent what cannot be accepted")]
    Malformed(#[from] Malformed),
    /// Too many frames in one message; holds the limit.
    #[error("peer sent a message of more than {0} frames")]
    Frames(usize),
    /// A command that belongs to the handshake.
    #[error("peer sent READY or ERROR after the handshake")]
    Handshake,
}

/// What one message, and the commands around it, may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageLimits {
    /// Bytes in one frame.
    pub frame_bytes: usize,
    /// Frames.
    pub frames: usize,
    /// Bytes in all frames.
    pub message_bytes: usize,
    /// Bytes in one command.
    pub command_bytes: usize,
}

/// One message on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    limits: MessageLimits,
    frames: Vec<Bytes>,
    /// Bytes that further frames may have.
    room: usize,
}

/// What to do next about an [`Incoming`].
#[derive(Debug)]
pub(super) enum Step {
    /// Take the message; it is complete.
    Done(Vec<Bytes>),
    /// Write these bytes, which answer a PING, and ask again.
    Pong(Vec<u8>),
    /// Ask again.
    Again,
    /// Read more and ask again.
    Read,
}

impl Incoming {
    pub(super) fn new(limits: MessageLimits) -> Self {
        Self {
            limits,
            frames: Vec::new(),
            room: limits.message_bytes,
        }
    }

    /// Whether a first frame is there.
    pub(super) fn has_begun(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Takes one frame from the front of `buf`, if it is there as a whole. A command other than PING and
    /// those of the handshake is passed over.
    pub(super) fn step(&mut self, buf: &mut BytesMut) -> Result<Step, MessageError> {
        let limits = FrameLimits {
            message: self.room.min(self.limits.frame_bytes),
            command: self.limits.command_bytes,
        };
        let (step, taken) = match Frame::decode(buf, limits) {
            Ok((Frame::Message { more, body }, taken)) => {
                if self.frames.len() == self.limits.frames {
                    return Err(MessageError::Frames(self.limits.frames));
                }
                self.room -= body.len();
                // A copy, so that a frame keeps no more memory alive than its own length.
                self.frames.push(Bytes::copy_from_slice(body));
                let step = if more {
                    Step::Again
                } else {
                    Step::Done(std::mem::take(&mut self.frames))
                };
                (step, taken)
            }
            Ok((Frame::Command(body), taken)) => match Command::decode(body)? {
                Command::Ping { context } => (Step::Pong(frame::pong(context)), taken),
                Command::Other => (Step::Again, taken),
                Command::Ready { .. } | Command::Error { .. } => {
                    return Err(MessageError::Handshake);
                }
            },
            Err(DecodeError::Malformed(why)) => return Err(why.into()),
            Err(DecodeError::Incomplete) => return Ok(Step::Read),
        };
        buf.advance(taken);
        Ok(step)
    }
}
