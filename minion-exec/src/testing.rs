//! What the tests of several modules use.

use gw_wire::id::{Jid, MinionId, Profile, RequestId, StateDigest};
use gw_wire::receipt::Binding;

/// A binding whose jid ends in `n` and whose request is the same for all.
pub fn binding(n: u32) -> Binding {
    Binding {
        minion_id: MinionId::parse("client-123e4567-e89b-42d3-a456-426614174000").expect("an id"),
        request_id: RequestId::parse("0b0e4567-e89b-42d3-a456-426614174000").expect("an id"),
        jid: Jid::parse(&format!("20261130220939{n:06}")).expect("a jid"),
        profile: Profile::Configure,
        state_digest: StateDigest::default(),
    }
}

/// The same for another, random request.
pub fn other_request(n: u32) -> Binding {
    Binding {
        request_id: RequestId::random(),
        ..binding(n)
    }
}
