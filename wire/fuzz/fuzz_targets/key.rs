//! A PEM file of anybody's making.
#![no_main]

use gw_wire::key::{PrivateKey, PublicKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drop(PublicKey::from_pem(data));
    drop(PrivateKey::from_pem(data));
});
