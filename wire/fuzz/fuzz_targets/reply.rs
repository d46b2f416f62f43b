//! The two frames of a reply, split at the first byte 0xff, and the one frame of an acknowledgement.
#![no_main]

use bytes::Bytes;
use gw_wire::reply::{Acknowledgement, MAX_REPLY_BYTES, UnverifiedReply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let cut = data.iter().position(|byte| *byte == 0xff).unwrap_or(data.len());
    let frames = [Bytes::copy_from_slice(&data[..cut]), Bytes::copy_from_slice(&data[cut..])];
    if UnverifiedReply::from_frames(&frames).is_ok() {
        assert!(frames[0].len() <= MAX_REPLY_BYTES);
    }
    drop(Acknowledgement::from_frames(&frames[..1]));
});
