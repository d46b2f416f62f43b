//! PUSH against peers that stop, die or lie at a chosen byte: what each of the three ends stands for.
//!
//! The tests run on one thread, and a peer that acts without awaiting in between cannot be overtaken.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io;
use std::path::Path;
use std::time::Duration;

use gw_wire::zmtp::frame::{self, GREETING_LEN};
use gw_wire::zmtp::push::{NotSent, PushEnd, push};
use gw_wire::zmtp::{Endpoint, HandshakeError};
use rustix::net::{RecvFlags, recv};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

const PATIENCE: Duration = Duration::from_secs(20);
const IMPATIENCE: Duration = Duration::from_millis(300);
const HUGE: usize = 16 << 20;

struct Listening {
    listener: UnixListener,
    endpoint: Endpoint,
    _dir: TempDir,
}

fn listen() -> Listening {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pull.ipc");
    Listening {
        listener: UnixListener::bind(&path).unwrap(),
        endpoint: Endpoint::Unix(path),
        _dir: dir,
    }
}

impl Listening {
    async fn accept(&self) -> UnixStream {
        self.listener.accept().await.unwrap().0
    }
}

/// Everything of the peer's handshake but its READY, which is returned.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, socket_type: &str) -> Vec<u8> {
    stream.write_all(&frame::greeting()).await.unwrap();
    let mut theirs = vec![0; GREETING_LEN + frame::ready("PUSH").len()];
    stream
        .read_exact(&mut theirs[..GREETING_LEN])
        .await
        .unwrap();
    stream
        .read_exact(&mut theirs[GREETING_LEN..])
        .await
        .unwrap();
    assert_eq!(
        theirs,
        [&frame::greeting()[..], &frame::ready("PUSH")].concat()
    );
    frame::ready(socket_type)
}

async fn shake<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let ready = greet(stream, "PULL").await;
    stream.write_all(&ready).await.unwrap();
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode_message_frame(&mut bytes, false, message);
    bytes
}

fn not_sent(end: PushEnd) -> NotSent {
    match end {
        PushEnd::NotSent(why) => why,
        other => panic!("expected NotSent, got {other:?}"),
    }
}

/// What `push` says of a peer that does `peer` and, unless that returned it, hangs up.
async fn end_with<F, T>(
    message: &[u8],
    deadline: Duration,
    peer: impl FnOnce(UnixStream) -> F,
) -> PushEnd
where
    F: Future<Output = T>,
{
    let listening = listen();
    let peer = async { peer(listening.accept().await).await };
    tokio::join!(push(&listening.endpoint, message, deadline), peer).0
}

#[tokio::test]
async fn a_missing_socket_is_not_sent_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(dir.path().join("nobody"));
    match not_sent(push(&endpoint, b"x", PATIENCE).await) {
        NotSent::Connect(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_dead_socket_is_not_sent_at_once() {
    let Listening {
        listener,
        endpoint,
        _dir,
    } = listen();
    drop(listener);
    match not_sent(push(&endpoint, b"x", PATIENCE).await) {
        NotSent::Connect(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_not_sent() {
    let endpoint = Endpoint::Unix(Path::new("/").join("x".repeat(200)));
    assert!(matches!(
        not_sent(push(&endpoint, b"x", PATIENCE).await),
        NotSent::Connect(_)
    ));
}

#[tokio::test]
async fn a_full_backlog_is_waited_out_until_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full.ipc");
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let listener = socket.listen(0).unwrap();
    let waiting = UnixStream::connect(&path).await.unwrap();

    let endpoint = Endpoint::Unix(path);
    assert!(matches!(
        not_sent(push(&endpoint, b"x", IMPATIENCE).await),
        NotSent::Timeout
    ));

    let make_room = async {
        drop(waiting);
        listener.accept().await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        shake(&mut stream).await;
        stream
    };
    let (end, _stream) = tokio::join!(push(&endpoint, b"x", PATIENCE), make_room);
    assert!(matches!(end, PushEnd::Sent { .. }), "{end:?}");
}

#[tokio::test]
async fn a_peer_that_never_answers_the_greeting_is_not_sent_at_the_deadline() {
    let end = end_with(b"x", IMPATIENCE, async |stream| stream).await;
    assert!(matches!(not_sent(end), NotSent::Timeout));
}

#[tokio::test]
async fn a_peer_that_closes_before_its_ready_is_not_sent() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        greet(&mut stream, "PULL").await;
    })
    .await;
    assert!(matches!(
        not_sent(end),
        NotSent::Handshake(HandshakeError::Closed)
    ));
}

#[tokio::test]
async fn a_peer_that_closes_right_after_the_handshake_is_not_sent() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        let ready = greet(&mut stream, "PULL").await;
        assert_eq!(stream.try_write(&ready).unwrap(), ready.len());
    })
    .await;
    match not_sent(end) {
        NotSent::PeerGone(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_that_talks_after_its_ready_is_not_sent() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        let ready = greet(&mut stream, "PULL").await;
        let both = [ready, framed(b"unasked")].concat();
        assert_eq!(stream.try_write(&both).unwrap(), both.len());
        stream
    })
    .await;
    match not_sent(end) {
        NotSent::PeerGone(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_of_another_type_is_not_sent() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        let ready = greet(&mut stream, "REP").await;
        stream.write_all(&ready).await.unwrap();
        stream
    })
    .await;
    match not_sent(end) {
        NotSent::PeerType(found) => assert_eq!(found, "REP"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_is_not_sent() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream
    })
    .await;
    assert!(matches!(
        not_sent(end),
        NotSent::Handshake(HandshakeError::Malformed(_))
    ));
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_partial_at_the_deadline() {
    let end = end_with(&vec![7; HUGE], IMPATIENCE, async |mut stream| {
        shake(&mut stream).await;
        stream
    })
    .await;
    match end {
        PushEnd::Partial {
            written,
            total,
            source,
        } => {
            assert!(0 < written && written < total);
            assert_eq!(total, HUGE + 9);
            assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_peer_that_dies_in_mid_message_is_partial_with_the_true_count() {
    let end = end_with(&vec![7; HUGE], PATIENCE, async |mut stream| {
        shake(&mut stream).await;
        stream.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
    })
    .await;
    match end {
        PushEnd::Partial { written, total, .. } => assert!((1 << 20) <= written && written < total),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_arrives_whole_and_alone_and_is_known_to_be_read() {
    for len in [0, 1, 255, 256, 65_536, 3_000_000] {
        let message = vec![b'm'; len];
        let listening = listen();
        let peer = async {
            let mut stream = listening.accept().await;
            shake(&mut stream).await;
            let mut seen = Vec::new();
            stream.read_to_end(&mut seen).await.unwrap();
            seen
        };
        let (end, seen) = tokio::join!(
            async { push(&listening.endpoint, &message, PATIENCE).await },
            peer
        );
        assert!(
            matches!(end, PushEnd::Sent { read_by_peer: true }),
            "{len}: {end:?}"
        );
        assert_eq!(seen, framed(&message));
    }
}

#[tokio::test]
async fn a_message_in_the_queue_of_a_stopped_peer_is_sent_but_not_read() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        shake(&mut stream).await;
        stream
    })
    .await;
    assert!(
        matches!(
            end,
            PushEnd::Sent {
                read_by_peer: false
            }
        ),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_queue_that_was_thrown_away_unread_does_not_count_as_read() {
    let end = end_with(b"x", PATIENCE, async |mut stream| {
        shake(&mut stream).await;
        // Asks the kernel: tokio's view of readiness is older than the message.
        let mut byte = [0];
        while recv(&stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(
        matches!(
            end,
            PushEnd::Sent {
                read_by_peer: false
            }
        ),
        "{end:?}"
    );
}

#[tokio::test]
async fn tcp_carries_the_same_message_and_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let peer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        shake(&mut stream).await;
        let mut seen = Vec::new();
        stream.read_to_end(&mut seen).await.unwrap();
        seen
    };
    let (end, seen) = tokio::join!(push(&endpoint, b"load", PATIENCE), peer);
    assert!(
        matches!(
            end,
            PushEnd::Sent {
                read_by_peer: false
            }
        ),
        "{end:?}"
    );
    assert_eq!(seen, framed(b"load"));

    drop(listener);
    assert!(matches!(
        not_sent(push(&endpoint, b"x", PATIENCE).await),
        NotSent::Connect(_)
    ));
}
