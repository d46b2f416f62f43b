//! The reply port: a ZMTP ROUTER server for peers that nobody vouches for.
//!
//! Each connection is one task: handshake, then one message at a time, its handler, its answer. An
//! answer belongs to the connection its message came from; identities that peers declare are ignored.
//! So a peer can neither take another's answer nor hold it up, and one that does not read its answers
//! stops only itself. Whatever breaks a rule or passes a deadline loses its connection without a word.
//!
//! **Invariant: length-before-allocation**, and all else that [`Limits`] names: what strangers can make
//! this process hold is at most `max_connections` times about three times `max_message_bytes`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::net::sockopt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::handshake::handshake;
use super::incoming::{Incoming, MessageLimits, Step, read_some};
use super::{frame, instant_after};

/// Connections that the kernel holds for us until we accept them.
const BACKLOG: u32 = 4096;

/// Wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one peer, and all peers together, may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections in all; further ones wait in the listen backlog (4096).
    pub max_connections: usize,
    /// Open connections of one IPv4 address or one IPv6 /64; further ones are closed at once.
    pub max_connections_per_address: usize,
    /// Bytes in one frame of a message.
    pub max_frame_bytes: usize,
    /// Frames in one message.
    pub max_frames: usize,
    /// Bytes in all frames of one message.
    pub max_message_bytes: usize,
    /// Bytes in one command (READY, PING).
    pub max_command_bytes: usize,
    /// From accept to the peer's READY.
    pub handshake_deadline: Duration,
    /// From the first byte of a message to its last. Commands in between take from it.
    pub message_deadline: Duration,
    /// From the handshake or the last answer to the first byte of the next message. Heartbeats do not
    /// extend it.
    pub idle_deadline: Duration,
    /// For one answer to be taken by the kernel.
    pub write_deadline: Duration,
}

/// For messages of up to 64 KiB in up to 8 frames, from peers that connect for one exchange: 1024
/// connections, 128 per address, commands of 1 KiB, 10 s for a handshake, a message or an answer, 60 s
/// idle. Strangers can then hold about 200 MiB at worst, one address 26.
impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_connections_per_address: 128,
            max_frame_bytes: 64 * 1024,
            max_frames: 8,
            max_message_bytes: 64 * 1024,
            max_command_bytes: 1024,
            handshake_deadline: Duration::from_secs(10),
            message_deadline: Duration::from_secs(10),
            idle_deadline: Duration::from_secs(60),
            write_deadline: Duration::from_secs(10),
        }
    }
}

impl Limits {
    fn of_message(&self) -> MessageLimits {
        MessageLimits {
            frame_bytes: self.max_frame_bytes,
            frames: self.max_frames,
            message_bytes: self.max_message_bytes,
            command_bytes: self.max_command_bytes,
        }
    }
}

/// Where a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection; proves nothing.
    pub addr: SocketAddr,
}

/// A bound reply port that does not accept yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: Limits,
}

impl Server {
    /// Binds `addr` (port 0: any free one) with `SO_REUSEADDR` and a backlog of 4096. Connections wait
    /// there from now on. Must be called within a tokio runtime.
    pub fn bind(addr: SocketAddr, limits: Limits) -> io::Result<Self> {
        let socket = if addr.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        // Linux hands these down to the connections it accepts.
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        sockopt::set_tcp_keepidle(&socket, Duration::from_secs(30))?;
        sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(&socket, 3)?;
        socket.bind(addr)?;
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            limits,
        })
    }

    /// The address bound, with the real port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves.
    ///
    /// `handler` gets the frames of each message as they came: a REQ peer's begin with an empty
    /// delimiter, which its answer must repeat; a DEALER's do not. Its answer goes back on the same
    /// connection; `None`, or no frames, closes the connection. Handlers of different connections run
    /// concurrently, those of one connection one after the other, and only the handler itself can limit
    /// its time. One that panics loses its connection only.
    ///
    /// On shutdown nothing more is read; handlers that run are awaited and their answers written. If the
    /// future is dropped instead, they are cancelled.
    pub async fn serve<H, F>(self, handler: H, shutdown: impl Future<Output = ()>)
    where
        H: Fn(Peer, Vec<Bytes>) -> F + Send + Sync + 'static,
        F: Future<Output = Option<Vec<Bytes>>> + Send + 'static,
    {
        let Self { listener, limits } = self;
        let handler = Arc::new(handler);
        let (stop, stopping) = watch::channel(false);
        let mut open = Connections::default();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = open.one_ended(), if !open.tasks.is_empty() => {}
                (stream, addr) = accept(&listener), if open.tasks.len() < limits.max_connections => {
                    let handler = Arc::clone(&handler);
                    let mut stopping = stopping.clone();
                    open.admit(addr.ip(), limits.max_connections_per_address, async move {
                        let mut connection = Connection { stream, buf: BytesMut::new(), limits };
                        // However it ends, the connection is closed: there is nobody to tell.
                        let _closed = connection.converse(Peer { addr }, &*handler, &mut stopping).await;
                    });
                }
            }
        }
        drop(listener);
        stop.send_replace(true);
        while !open.tasks.is_empty() {
            open.one_ended().await;
        }
    }
}

/// The next connection. Errors are waited out; those of a single connection (it is gone again) at once.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// The open connections and whose they are.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    address_of: HashMap<Id, IpAddr>,
    per_address: HashMap<IpAddr, usize>,
}

impl Connections {
    /// Runs `connection`, unless its address has `max_per_address` of them already.
    fn admit(
        &mut self,
        ip: IpAddr,
        max_per_address: usize,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        let address = counted_as(ip);
        let count = self.per_address.get(&address).copied().unwrap_or(0);
        if count < max_per_address {
            self.per_address.insert(address, count + 1);
            let task = self.tasks.spawn(connection);
            self.address_of.insert(task.id(), address);
        }
    }

    /// Waits for one connection to end and forgets it. Cancel-safe.
    async fn one_ended(&mut self) {
        let id = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(panicked)) => panicked.id(),
            None => return,
        };
        let address = self
            .address_of
            .remove(&id)
            .expect("every task was entered when spawned");
        let count = self
            .per_address
            .get_mut(&address)
            .expect("an open connection is counted");
        *count -= 1;
        if *count == 0 {
            self.per_address.remove(&address);
        }
    }
}

/// An IPv6 host commonly owns a whole /64, so that is what its connections are counted by.
fn counted_as(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// One connection. Its methods give `None` when it is to be closed.
struct Connection {
    stream: TcpStream,
    /// Read and not yet understood.
    buf: BytesMut,
    limits: Limits,
}

impl Connection {
    async fn converse<H, F>(
        &mut self,
        peer: Peer,
        handler: &H,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<()>
    where
        H: Fn(Peer, Vec<Bytes>) -> F,
        F: Future<Output = Option<Vec<Bytes>>>,
    {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return None,
            shaken = self.shake_hands() => shaken?,
        }
        loop {
            let message = tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return None,
                message = self.read_message() => message?,
            };
            let answer = handler(peer, message).await?;
            if answer.is_empty() {
                return None;
            }
            self.write(&frame::encode_message(&answer)).await?;
        }
    }

    async fn shake_hands(&mut self) -> Option<()> {
        let Self {
            stream,
            buf,
            limits,
        } = self;
        let shaken = handshake(
            stream,
            buf,
            "ROUTER",
            &["DEALER", "REQ"],
            limits.max_command_bytes,
        );
        timeout(limits.handshake_deadline, shaken).await.ok()?.ok()
    }

    /// The frames of the next message; answers heartbeats meanwhile.
    async fn read_message(&mut self) -> Option<Vec<Bytes>> {
        let idle_until = instant_after(self.limits.idle_deadline);
        let mut message_until = None;
        let mut message = Incoming::new(self.limits.of_message());
        if self.buf.is_empty() {
            self.buf = BytesMut::new(); // gives back what a long message needed
        }
        loop {
            if self.buf.is_empty() && !message.has_begun() {
                message_until = None; // nothing yet, or nothing but commands
            } else if message_until.is_none() {
                message_until = Some(instant_after(self.limits.message_deadline));
            }
            let until = message_until.unwrap_or(idle_until);
            // Looked at by ourselves as well: a read that is always ready would never time out.
            if Instant::now() >= until {
                return None;
            }

            match message.step(&mut self.buf).ok()? {
                Step::Done(frames) => return Some(frames),
                Step::Pong(pong) => self.write(&pong).await?,
                Step::Again => {}
                Step::Read => {
                    let read = read_some(&mut self.stream, &mut self.buf);
                    if timeout_at(until, read).await.ok()?.ok()? == 0 {
                        return None;
                    }
                }
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Option<()> {
        timeout(self.limits.write_deadline, self.stream.write_all(bytes))
            .await
            .ok()?
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_counted_by_its_network_and_a_mapped_one_by_its_ipv4_address() {
        let counted = |ip: &str| counted_as(ip.parse().expect("an address")).to_string();
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(counted("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(counted("192.0.2.7"), "192.0.2.7");
    }
}
