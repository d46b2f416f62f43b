//! Protocol 1 on the wire: the types that both sides share, Salt's loads, signed replies, and ZMTP.
//!
//! **Invariant:** this crate reads no file, keeps no state and decides nothing. It turns bytes into types
//! with limits, and types into bytes; [`zmtp`] alone touches sockets.
//!
//! | module | what it holds |
//! |---|---|
//! | [`id`] | `Jid`, `MinionId`, `RequestId`, `Profile`, digests and tokens |
//! | [`receipt`] | the receipt's nine fields and the binding of a job |
//! | [`state_data`] | canonical high data of the `custom` profile |
//! | [`publication`] | the Salt load, bare and as a clear request |
//! | [`master_answer`] | what the master's answer to a clear request means |
//! | [`reply`] | signed replies and their acknowledgement |
//! | [`key`] | Salt's RSA keys |
//! | [`zmtp`] | PUSH, the ROUTER server, REQ and DEALER exchanges |

pub mod id;
pub mod key;
pub mod master_answer;
pub mod publication;
pub mod receipt;
pub mod reply;
pub mod state_data;
pub mod zmtp;
