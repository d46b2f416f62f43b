//! A real Salt 3006.27, a master and some minions, with our gateway beside the master: for tests, for the demo
//! and for people who want to look at it.

mod backend;
mod bed;
mod binaries;
mod config;
mod layout;
mod master;
mod progress;
mod rpc;
pub mod salt;

pub use backend::{Handle, Host, Kind};
pub use bed::{Answer, Bed, Builder, Record, Transport, minion_id};
pub use binaries::{Binaries, binaries};
pub use master::MasterProcesses;
pub use progress::Progress;
pub use rpc::{Process, Signal};
