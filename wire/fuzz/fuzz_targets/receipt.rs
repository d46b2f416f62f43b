//! A receipt file or the receipt in a reply: what parses is written back to the same meaning.
#![no_main]

use gw_wire::receipt::Receipt;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(receipt) = Receipt::from_json(data) {
        assert!(receipt.passed() <= receipt.total());
        assert_eq!(Receipt::from_json(receipt.to_json().as_bytes()).expect("reads back"), receipt);
    }
});
