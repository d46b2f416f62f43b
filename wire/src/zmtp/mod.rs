//! ZMTP 3.x (ZeroMQ's wire protocol), NULL mechanism: only as much of it as a job needs.
//!
//! | module | what | whose code |
//! |---|---|---|
//! | [`frame`] | greeting, frames, commands as bytes; no I/O | ours |
//! | [`push`] | one publication into the master's `publish_pull` socket, three honest ends | ours |
//! | [`router`] | the reply port: a ROUTER server for untrusted peers, with limits | ours |
//! | [`dealer`] | the minion's side of the reply port, one exchange with an untrusted server | ours |
//! | [`req`] | one exchange with the master's request port | the `zeromq` crate |
//!
//! PUSH is written by hand because a socket library answers "queued" where a publication needs "how many
//! bytes left this process"; ROUTER and DEALER because it trusts its peers where neither end of the reply
//! port may: a declared length can make the crate abort the process. [`req`] talks to the master, which
//! is trusted. The crate and libzmq are the test peers (`tests/zmtp_peers.rs`).
//!
//! **Invariant: length-before-allocation.** A length that a peer declares is compared with a limit
//! before any memory is reserved for it, and buffers grow only as bytes arrive. Home: [`frame`].
//!
//! Everything here needs a tokio runtime with I/O and time enabled. Deadlines are absolute from the
//! call on; a longer one than a day is taken as a day.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

pub mod dealer;
pub mod frame;
mod handshake;
mod incoming;
pub mod push;
pub mod req;
pub mod router;

pub use handshake::HandshakeError;
pub use incoming::MessageError;

/// Where a ZMTP peer listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A Unix stream socket; the kernel allows at most 107 bytes of path.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// The form that ZeroMQ uses: `ipc:///path` or `tcp://address:port`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "ipc://{}", path.display()),
            Self::Tcp(addr) => write!(f, "tcp://{addr}"),
        }
    }
}

/// The instant `wait` from now; capped at a day, so that no caller's value can overflow the clock.
fn instant_after(wait: Duration) -> Instant {
    const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
    Instant::now() + wait.min(A_DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_as_zeromq_writes_it() {
        let unix = Endpoint::Unix("/run/salt/publish_pull.ipc".into());
        assert_eq!(unix.to_string(), "ipc:///run/salt/publish_pull.ipc");
        let tcp = Endpoint::Tcp("[::1]:4506".parse().expect("an address"));
        assert_eq!(tcp.to_string(), "tcp://[::1]:4506");
    }
}
