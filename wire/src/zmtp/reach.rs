//! Is anybody listening? Asked before the `zeromq` crate is, whose `connect` keeps trying a refused
//! address until its time is up and then hides the cause.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Connects to `addr` and hangs up again; the server sees an empty connection. An error of kind
/// `TimedOut` may be the deadline's.
pub(super) async fn reach(addr: SocketAddr, until: Instant) -> io::Result<()> {
    timeout_at(until, TcpStream::connect(addr)).await??;
    Ok(())
}
