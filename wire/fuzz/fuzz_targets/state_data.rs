//! State data: the canonical form is a fixed point.
#![no_main]

use gw_wire::state_data::{MAX_BYTES, StateData};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(state_data) = StateData::canonicalize(data) {
        assert!(state_data.as_str().len() <= MAX_BYTES);
        assert_eq!(StateData::parse_canonical(state_data.as_str()).expect("canonical"), state_data);
    }
});
