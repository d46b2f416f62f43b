//! ZMTP 3.x as bytes: greeting, frames and the commands of the NULL mechanism. No I/O.
//!
//! Decoders borrow from their input, never allocate and never panic. They tell
//! [`DecodeError::Incomplete`] (read more and ask again) from [`DecodeError::Malformed`] (hang up), and
//! say the latter as soon as the bytes show it: a wrong first byte needs no 63 others.
//!
//! Specification: ZeroMQ RFC 23 (ZMTP 3.0) and 37 (ZMTP 3.1, which adds PING and PONG).

/// Length of a greeting in bytes, in both directions.
pub const GREETING_LEN: usize = 64;

/// Longest context of a PING that a PONG must echo, in bytes (RFC 37).
const MAX_PING_CONTEXT: usize = 16;

const FLAG_MORE: u8 = 0b001;
const FLAG_LONG: u8 = 0b010;
const FLAG_COMMAND: u8 = 0b100;

const MAJOR: u8 = 3;
const MINOR: u8 = 1;
const MECHANISM: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Why a decoder gave no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input is a proper prefix of something that may be valid.
    #[error("the input ends early")]
    Incomplete,
    /// No continuation of the input is acceptable.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// What is wrong with bytes from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first ten bytes are not ZMTP's signature.
    #[error("not a ZMTP signature")]
    Signature,
    /// An older protocol than ZMTP 3.0; holds the major version.
    #[error("ZMTP major version {0} is older than 3")]
    Version(u8),
    /// A security mechanism other than NULL.
    #[error("security mechanism is not NULL")]
    Mechanism,
    /// Reserved flag bits, or a command that claims to have more frames; holds the flags byte.
    #[error("frame flags {0:#04x} are not allowed")]
    Flags(u8),
    /// A frame longer than its limit, both in bytes.
    #[error("frame of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// Declared by the peer.
        len: u64,
        /// Allowed here.
        limit: usize,
    },
    /// A command whose name, properties or fields do not add up.
    #[error("command is not well-formed")]
    Command,
}

/// Our greeting: ZMTP 3.1, NULL.
pub fn greeting() -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    out[0] = 0xFF;
    out[9] = 0x7F;
    out[10] = MAJOR;
    out[11] = MINOR;
    out[12..32].copy_from_slice(&MECHANISM);
    out
}

/// Accepts a peer's greeting, [`GREETING_LEN`] bytes at the start of `input`: ZMTP 3.0 or newer with
/// the NULL mechanism. Padding, the as-server flag and the filler are ignored, as libzmq does.
pub fn check_greeting(input: &[u8]) -> Result<(), DecodeError> {
    let seen = &input[..input.len().min(GREETING_LEN)];
    for (at, byte) in seen.iter().copied().enumerate() {
        match at {
            0 if byte != 0xFF => return Err(Malformed::Signature.into()),
            9 if byte != 0x7F => return Err(Malformed::Signature.into()),
            10 if byte < MAJOR => return Err(Malformed::Version(byte).into()),
            12..32 if byte != MECHANISM[at - 12] => return Err(Malformed::Mechanism.into()),
            _ => {}
        }
    }
    if seen.len() < GREETING_LEN {
        Err(DecodeError::Incomplete)
    } else {
        Ok(())
    }
}

/// Longest frame bodies to accept, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// For a frame of a message.
    pub message: usize,
    /// For a command.
    pub command: usize,
}

/// One frame, its body borrowed from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A frame of a message; `more` says that another one follows.
    Message {
        /// Not the last frame of its message.
        more: bool,
        /// The frame's bytes.
        body: &'a [u8],
    },
    /// A command, for [`Command::decode`].
    Command(&'a [u8]),
}

impl<'a> Frame<'a> {
    /// The frame at the start of `input` and the number of bytes it takes there. A length over its
    /// limit is malformed as soon as the header is complete, whatever of the body has arrived.
    pub fn decode(input: &'a [u8], limits: FrameLimits) -> Result<(Self, usize), DecodeError> {
        let (&flags, rest) = input.split_first().ok_or(DecodeError::Incomplete)?;
        let command = flags & FLAG_COMMAND != 0;
        let more = flags & FLAG_MORE != 0;
        if flags & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 || (command && more) {
            return Err(Malformed::Flags(flags).into());
        }
        let (declared, rest) = if flags & FLAG_LONG != 0 {
            let (len, rest) = rest.split_first_chunk().ok_or(DecodeError::Incomplete)?;
            (u64::from_be_bytes(*len), rest)
        } else {
            let (&len, rest) = rest.split_first().ok_or(DecodeError::Incomplete)?;
            (u64::from(len), rest)
        };
        let limit = if command {
            limits.command
        } else {
            limits.message
        };
        let len = usize::try_from(declared).ok().filter(|len| *len <= limit);
        let len = len.ok_or(Malformed::TooLong {
            len: declared,
            limit,
        })?;

        let body = rest.get(..len).ok_or(DecodeError::Incomplete)?;
        let taken = input.len() - rest.len() + len;
        Ok((
            if command {
                Self::Command(body)
            } else {
                Self::Message { more, body }
            },
            taken,
        ))
    }
}

/// A whole message: its frames one behind the other; no bytes for no frames.
pub fn encode_message(frames: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let len: usize = frames.iter().map(|body| body.as_ref().len() + 9).sum();
    let mut out = Vec::with_capacity(len);
    for (at, body) in frames.iter().enumerate() {
        encode_message_frame(&mut out, at + 1 < frames.len(), body.as_ref());
    }
    out
}

/// Appends one frame of a message to `out`.
pub fn encode_message_frame(out: &mut Vec<u8>, more: bool, body: &[u8]) {
    encode_frame(out, if more { FLAG_MORE } else { 0 }, body);
}

fn encode_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.push(flags | FLAG_LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// A command that a peer may send under the NULL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Ends the handshake. Other properties than the socket type (identity, resource) are ignored.
    Ready {
        /// As the peer writes it, for example `DEALER`.
        socket_type: &'a [u8],
    },
    /// Refuses the handshake.
    Error {
        /// At most 255 bytes of text, untrusted.
        reason: &'a [u8],
    },
    /// Asks for a PONG with the same context of at most 16 bytes.
    Ping {
        /// To be echoed.
        context: &'a [u8],
    },
    /// Anything else, PONG included.
    Other,
}

impl<'a> Command<'a> {
    /// The command that fills `body`, the body of a command frame.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let (name, rest) = short_string(body).ok_or(Malformed::Command)?;
        match name {
            b"READY" => socket_type(rest).map(|socket_type| Self::Ready { socket_type }),
            b"ERROR" => match short_string(rest) {
                Some((reason, [])) => Ok(Self::Error { reason }),
                _ => Err(Malformed::Command),
            },
            b"PING" => match rest.split_first_chunk::<2>() {
                Some((_ttl, context)) if context.len() <= MAX_PING_CONTEXT => {
                    Ok(Self::Ping { context })
                }
                _ => Err(Malformed::Command),
            },
            b"" => Err(Malformed::Command),
            _ => Ok(Self::Other),
        }
    }
}

/// A READY command frame that declares `socket_type`, for example `PUSH`.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    command_frame(&body)
}

/// A PONG command frame that answers a PING with this context.
pub fn pong(context: &[u8]) -> Vec<u8> {
    command_frame(&[b"\x04PONG", context].concat())
}

fn command_frame(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 9);
    encode_frame(&mut out, FLAG_COMMAND, body);
    out
}

/// The one `Socket-Type` among READY's properties; names of properties know no case (RFC 23).
fn socket_type(mut properties: &[u8]) -> Result<&[u8], Malformed> {
    let mut found = None;
    while !properties.is_empty() {
        let (name, rest) = short_string(properties).ok_or(Malformed::Command)?;
        let (len, rest) = rest.split_first_chunk().ok_or(Malformed::Command)?;
        let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| Malformed::Command)?;
        let (value, rest) = rest.split_at_checked(len).ok_or(Malformed::Command)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") && found.replace(value).is_some() {
            return Err(Malformed::Command);
        }
        properties = rest;
    }
    found.ok_or(Malformed::Command)
}

/// A string behind one byte of length, and what follows it.
fn short_string(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = input.split_first()?;
    rest.split_at_checked(usize::from(len))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: FrameLimits = FrameLimits {
        message: 1000,
        command: 300,
    };

    fn malformed(bytes: &[u8]) -> Malformed {
        match Frame::decode(bytes, LIMITS) {
            Err(DecodeError::Malformed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn ready_body(frame: &[u8]) -> &[u8] {
        match Frame::decode(frame, LIMITS) {
            Ok((Frame::Command(body), taken)) if taken == frame.len() => body,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn a_message_frame_survives_the_round_trip(
            more: bool,
            body in vec(any::<u8>(), 0..=LIMITS.message),
            behind in vec(any::<u8>(), 0..20),
        ) {
            let mut bytes = Vec::new();
            encode_message_frame(&mut bytes, more, &body);
            let len = bytes.len();
            bytes.extend_from_slice(&behind);
            prop_assert_eq!(
                Frame::decode(&bytes, LIMITS),
                Ok((Frame::Message { more, body: &body }, len))
            );
        }

        #[test]
        fn a_proper_prefix_of_a_frame_is_incomplete(
            more: bool,
            body in vec(any::<u8>(), 0..=LIMITS.message),
            cut: prop::sample::Index,
        ) {
            let mut bytes = Vec::new();
            encode_message_frame(&mut bytes, more, &body);
            let prefix = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(Frame::decode(prefix, LIMITS), Err(DecodeError::Incomplete));
        }

        #[test]
        fn a_ready_survives_the_round_trip(socket_type in "[A-Z]{0,200}") {
            let frame = ready(&socket_type);
            prop_assert_eq!(
                Command::decode(ready_body(&frame)),
                Ok(Command::Ready { socket_type: socket_type.as_bytes() })
            );
        }

        #[test]
        fn a_truncated_ready_is_malformed(socket_type in "[A-Z]{1,20}", cut: prop::sample::Index) {
            let frame = ready(&socket_type);
            let body = ready_body(&frame);
            prop_assert_eq!(
                Command::decode(&body[..cut.index(body.len())]),
                Err(Malformed::Command)
            );
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
            if check_greeting(&bytes).is_ok() {
                prop_assert!(bytes.len() >= GREETING_LEN);
            }
            if let Ok((Frame::Command(body) | Frame::Message { body, .. }, taken)) =
                Frame::decode(&bytes, LIMITS)
            {
                prop_assert!(body.len() < taken && taken <= bytes.len());
            }
            if let Ok(Command::Ping { context }) = Command::decode(&bytes) {
                prop_assert!(context.len() <= MAX_PING_CONTEXT);
            }
        }

        #[test]
        fn a_declared_length_over_its_limit_needs_no_body(over in 1001..=u64::MAX) {
            let mut bytes = vec![FLAG_LONG];
            bytes.extend_from_slice(&over.to_be_bytes());
            prop_assert_eq!(malformed(&bytes), Malformed::TooLong { len: over, limit: 1000 });
        }
    }

    #[test]
    fn every_proper_prefix_of_a_greeting_is_incomplete() {
        let whole = greeting();
        for cut in 0..GREETING_LEN {
            assert_eq!(
                check_greeting(&whole[..cut]),
                Err(DecodeError::Incomplete),
                "at {cut}"
            );
        }
        assert_eq!(check_greeting(&[&whole[..], b"more"].concat()), Ok(()));
    }

    #[test]
    fn a_foreign_greeting_is_refused_as_soon_as_it_shows() {
        let with = |at: usize, byte: u8| {
            let mut bytes = greeting();
            bytes[at] = byte;
            (check_greeting(&bytes[..=at]), check_greeting(&bytes))
        };
        let refused = |why: Malformed| (Err(why.into()), Err(why.into()));
        assert_eq!(with(0, b'G'), refused(Malformed::Signature));
        assert_eq!(with(9, 0), refused(Malformed::Signature));
        assert_eq!(with(10, 2), refused(Malformed::Version(2)));
        assert_eq!(with(12, b'C'), refused(Malformed::Mechanism));
        assert_eq!(with(16, b'S'), refused(Malformed::Mechanism));
        // ZMTP 3.0, a later 4.x, libzmq's old-style signature length.
        assert_eq!(with(11, 0).1, Ok(()));
        assert_eq!(with(10, 4).1, Ok(()));
        assert_eq!(with(8, 1).1, Ok(()));
    }

    #[test]
    fn reserved_flags_and_commands_with_more_are_malformed() {
        assert_eq!(malformed(&[0b1000]), Malformed::Flags(0b1000));
        assert_eq!(malformed(&[0b0101]), Malformed::Flags(0b0101));
    }

    #[test]
    fn commands_have_a_limit_of_their_own() {
        let mut bytes = vec![FLAG_COMMAND | FLAG_LONG];
        bytes.extend_from_slice(&301u64.to_be_bytes());
        assert_eq!(
            malformed(&bytes),
            Malformed::TooLong {
                len: 301,
                limit: 300
            }
        );
    }

    #[test]
    fn ready_needs_exactly_one_socket_type() {
        assert_eq!(Command::decode(b"\x05READY"), Err(Malformed::Command));
        let twice = b"\x05READY\x0bSocket-Type\0\0\0\x03REQ\x0bsocket-type\0\0\0\x03REQ";
        assert_eq!(Command::decode(twice), Err(Malformed::Command));
        let amid = b"\x05READY\x08Identity\0\0\0\0\x0bSOCKET-type\0\0\0\x03REQ\x01x\0\0\0\x01y";
        assert_eq!(
            Command::decode(amid),
            Ok(Command::Ready {
                socket_type: b"REQ"
            })
        );
    }

    #[test]
    fn heartbeats_and_errors_are_understood() {
        assert_eq!(
            Command::decode(b"\x04PING\0\x10beat"),
            Ok(Command::Ping { context: b"beat" })
        );
        assert_eq!(Command::decode(b"\x04PING\0"), Err(Malformed::Command));
        assert_eq!(
            Command::decode(&[&b"\x04PING\0\0"[..], &[0; 17]].concat()),
            Err(Malformed::Command)
        );
        assert_eq!(pong(b"beat"), b"\x04\x09\x04PONGbeat");
        assert_eq!(
            Command::decode(b"\x05ERROR\x04nope"),
            Ok(Command::Error { reason: b"nope" })
        );
        assert_eq!(
            Command::decode(b"\x05ERROR\x05nope"),
            Err(Malformed::Command)
        );
        assert_eq!(Command::decode(b"\x04PONG"), Ok(Command::Other));
        assert_eq!(Command::decode(b"\0"), Err(Malformed::Command));
    }
}
