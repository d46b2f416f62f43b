//! A real Salt 3006.27 for tests, for the demonstration, and for people who want to look: a master, some
//! minions, and our gateway beside the master.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let bed = bed::Bed::builder().minions(2).gw("poll_first_s", "2").up()?;
//! let answer = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure", "--wait"])?;
//! assert_eq!(answer.text("state")?, "succeeded");
//! assert_eq!(bed.executions(0)?, 1);
//! # Ok(()) }
//! ```
//!
//! Two backends, one set of methods. [`Kind::Local`]: processes on loopback ports, each host with a directory
//! below `/tmp/gwbed-XXXXXX`; no Docker, no root. [`Kind::Docker`]: a container for each host, so that a host
//! can also be cut off the network. What a bed started ends with it, also when its owner is killed.
//!
//! **Executions are counted by effect.** The first state of each standard role appends a line to a file that
//! Salt does not know ([`Bed::executions`]); deliveries are counted in the minion's log ([`Bed::deliveries`]).
//!
//! **Stock Salt is used to watch, never to work.** Whether the minions are ready, and the comparison with the
//! stock client, go through Salt's own `salt`; no job of the gateway does.

mod backend;
mod bed;
mod binaries;
mod config;
pub mod crash;
pub mod demo;
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
