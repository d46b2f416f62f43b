//! What a stranger sends to the reply port: a greeting, then frames until one is cut or malformed.
#![no_main]

use gw_wire::zmtp::frame::{Command, Frame, FrameLimits, GREETING_LEN, check_greeting};
use libfuzzer_sys::fuzz_target;

const LIMITS: FrameLimits = FrameLimits {
    message: 4096,
    command: 256,
};

fuzz_target!(|data: &[u8]| {
    // Frames are tried without a valid greeting too: 64 exact bytes are hard to guess.
    let mut rest = if check_greeting(data).is_ok() {
        &data[GREETING_LEN..]
    } else {
        data
    };
    while let Ok((frame, taken)) = Frame::decode(rest, LIMITS) {
        assert!(0 < taken && taken <= rest.len());
        match frame {
            Frame::Message { body, .. } => assert!(body.len() <= LIMITS.message),
            Frame::Command(body) => {
                assert!(body.len() <= LIMITS.command);
                if let Ok(Command::Ping { context }) = Command::decode(body) {
                    assert!(context.len() <= 16);
                }
            }
        }
        rest = &rest[taken..];
    }
});
