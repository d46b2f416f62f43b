//! Every name: what parses is spelled as it was given.
#![no_main]

use gw_wire::id::{Jid, MinionId, Profile, RequestId, Sha256Hex, StateDigest, Token};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    macro_rules! spelled {
        ($($name:ident),*) => {$(
            if let Ok(id) = $name::parse(text) {
                assert_eq!(id.as_str(), text);
            }
        )*};
    }
    spelled!(Jid, MinionId, Profile, RequestId, Sha256Hex, StateDigest, Token);
});
