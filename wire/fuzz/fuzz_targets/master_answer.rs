//! The master's answer to a clear request.
#![no_main]

use gw_wire::id::Jid;
use gw_wire::master_answer::MasterAnswer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let jid = Jid::parse("20261130220939633426").expect("a jid");
    drop(MasterAnswer::parse(data, jid));
});
