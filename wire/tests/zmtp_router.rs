//! The reply port against strangers: raw connections that break each rule in turn, while an honest peer
//! must still be served.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use gw_wire::zmtp::frame::{self, Frame, FrameLimits, GREETING_LEN};
use gw_wire::zmtp::router::{Limits, Peer, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than any deadline of [`quick`], and than a slow machine needs.
const PATIENCE: Duration = Duration::from_secs(20);

fn quick() -> Limits {
    Limits {
        handshake_deadline: Duration::from_millis(400),
        message_deadline: Duration::from_millis(400),
        idle_deadline: Duration::from_millis(400),
        write_deadline: Duration::from_millis(400),
        ..Limits::default()
    }
}

struct Serving {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn serve<H, F>(limits: Limits, handler: H) -> Serving
where
    H: Fn(Peer, Vec<Bytes>) -> F + Send + Sync + 'static,
    F: Future<Output = Option<Vec<Bytes>>> + Send + 'static,
{
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let addr = server.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.serve(handler, async {
        stopped.await.ok();
    }));
    Serving { addr, stop, task }
}

fn echo(limits: Limits) -> Serving {
    serve(limits, async |_, frames| Some(frames))
}

async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.unwrap()
}

/// A connection with its handshake done, as DEALER.
async fn dealer(addr: SocketAddr) -> TcpStream {
    let mut stream = connect(addr).await;
    stream
        .write_all(&[&frame::greeting()[..], &frame::ready("DEALER")].concat())
        .await
        .unwrap();
    let mut theirs = vec![0; GREETING_LEN + frame::ready("ROUTER").len()];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!(
        theirs,
        [&frame::greeting()[..], &frame::ready("ROUTER")].concat()
    );
    stream
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let (last, front) = frames.split_last().unwrap();
    let mut bytes = Vec::new();
    front
        .iter()
        .for_each(|body| frame::encode_message_frame(&mut bytes, true, body));
    frame::encode_message_frame(&mut bytes, false, last);
    bytes
}

fn long_header(flags: u8, len: u64) -> Vec<u8> {
    [&[flags | 0b010][..], &len.to_be_bytes()].concat()
}

/// Waits until the server has closed this connection; panics if it says anything before.
async fn is_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("still open")
    {
        Ok(_) => assert_eq!(rest, b"", "said something instead of closing"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut seen = vec![0; bytes.len()];
    timeout(PATIENCE, stream.read_exact(&mut seen))
        .await
        .expect("no answer")
        .unwrap();
    assert_eq!(seen, bytes);
}

async fn still_serves(addr: SocketAddr) {
    let mut stream = dealer(addr).await;
    let ping = message(&[b"honest"]);
    stream.write_all(&ping).await.unwrap();
    expect(&mut stream, &ping).await;
}

/// A peer that sends `bytes` after its handshake loses its connection and nobody else does.
async fn is_cut(limits: Limits, bytes: &[u8]) {
    let serving = echo(limits);
    let mut honest = dealer(serving.addr).await;
    let mut stream = dealer(serving.addr).await;
    // The server may close before it has read it all.
    stream.write_all(bytes).await.ok();
    is_closed(&mut stream).await;
    honest.write_all(&message(&[b"still here"])).await.unwrap();
    expect(&mut honest, &message(&[b"still here"])).await;
    still_serves(serving.addr).await;
}

fn patient() -> Limits {
    Limits {
        idle_deadline: PATIENCE,
        message_deadline: PATIENCE,
        ..Limits::default()
    }
}

#[tokio::test]
async fn messages_of_one_connection_are_answered_in_order_frames_as_they_came() {
    let serving = echo(Limits::default());
    let mut stream = dealer(serving.addr).await;
    let big = vec![b'x'; 60_000];
    let all = [
        message(&[b"one"]),
        message(&[b"", b"two"]),
        message(&[&big]),
        message(&[b""]),
    ]
    .concat();
    stream.write_all(&all).await.unwrap();
    expect(&mut stream, &all).await;
}

#[tokio::test]
async fn a_message_may_arrive_byte_by_byte() {
    let serving = echo(Limits::default());
    let mut stream = dealer(serving.addr).await;
    stream.set_nodelay(true).unwrap();
    let bytes = message(&[b"", b"slow but steady"]);
    for byte in &bytes {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    expect(&mut stream, &bytes).await;
}

#[tokio::test]
async fn silent_and_half_greeted_connections_end_at_the_handshake_deadline() {
    let serving = echo(Limits {
        idle_deadline: PATIENCE,
        ..quick()
    });
    for sent in [0, 1, 63, GREETING_LEN, GREETING_LEN + 5] {
        let mut stream = connect(serving.addr).await;
        let bytes = [&frame::greeting()[..], &frame::ready("DEALER")].concat();
        stream.write_all(&bytes[..sent]).await.unwrap();
        let mut seen = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut seen))
            .await
            .expect("still open")
            .ok();
        assert!(seen.starts_with(&frame::greeting()));
    }
    still_serves(serving.addr).await;
}

#[tokio::test]
async fn an_idle_connection_ends_at_its_deadline() {
    let serving = echo(Limits {
        message_deadline: PATIENCE,
        ..quick()
    });
    let mut idle = dealer(serving.addr).await;
    is_closed(&mut idle).await;
}

#[tokio::test]
async fn heartbeats_do_not_keep_a_connection_open() {
    let serving = echo(Limits {
        message_deadline: PATIENCE,
        ..quick()
    });
    is_closed_while_repeating(serving.addr, b"", b"\x04\x07\x04PING\0\x10").await;
    // Each write ends one PING and begins the next, so that the connection is never quite idle.
    let serving = echo(Limits {
        idle_deadline: PATIENCE,
        ..quick()
    });
    is_closed_while_repeating(serving.addr, b"\x04", b"\x07\x04PING\0\x10\x04").await;
}

#[tokio::test]
async fn an_unfinished_message_ends_at_its_deadline_however_it_trickles() {
    let serving = echo(Limits {
        idle_deadline: PATIENCE,
        ..quick()
    });
    is_closed_while_repeating(serving.addr, &long_header(0, 60_000), b"x").await;
    still_serves(serving.addr).await;
}

/// A peer that sends `first` and then `again` every 20 ms loses its connection.
async fn is_closed_while_repeating(addr: SocketAddr, first: &[u8], again: &[u8]) {
    let mut stream = dealer(addr).await;
    stream.write_all(first).await.unwrap();
    let repeat = async {
        while stream.write_all(again).await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE / 2, repeat).await.expect("still open");
}

#[tokio::test]
async fn heartbeats_are_answered_between_and_within_messages() {
    let serving = echo(Limits::default());
    let mut stream = dealer(serving.addr).await;
    stream
        .write_all(b"\x04\x0b\x04PING\0\x10beat")
        .await
        .unwrap();
    expect(&mut stream, &frame::pong(b"beat")).await;
    stream
        .write_all(b"\x01\x01a\x04\x07\x04PING\0\x10\x00\x01b")
        .await
        .unwrap();
    expect(&mut stream, &frame::pong(b"")).await;
    expect(&mut stream, &message(&[b"a", b"b"])).await;
}

#[tokio::test]
async fn a_command_does_not_start_the_message_deadline() {
    let limits = Limits {
        idle_deadline: PATIENCE,
        ..quick()
    };
    let serving = echo(limits);
    for command in [&b"\x04\x06\x05OTHER"[..], b"\x04\x07\x04PING\0\x10"] {
        let mut stream = dealer(serving.addr).await;
        stream.write_all(command).await.unwrap();
        sleep(2 * limits.message_deadline).await;
        if command.ends_with(b"\x10") {
            expect(&mut stream, &frame::pong(b"")).await;
        }
        let late = message(&[b"late"]);
        stream.write_all(&late).await.unwrap();
        expect(&mut stream, &late).await;
    }
}

#[tokio::test]
async fn a_declared_tebibyte_is_cut_without_allocating_it() {
    let before = peak_memory_kib();
    is_cut(patient(), &long_header(0, 1 << 40)).await;
    is_cut(patient(), &long_header(0, u64::MAX)).await;
    is_cut(patient(), &long_header(0b100, 1 << 40)).await;

    let serving = echo(patient());
    let mut early = connect(serving.addr).await;
    let bytes = [&frame::greeting()[..], &long_header(0b100, 1 << 40)].concat();
    early.write_all(&bytes).await.unwrap();
    expect(
        &mut early,
        &[&frame::greeting()[..], &frame::ready("ROUTER")].concat(),
    )
    .await;
    is_closed(&mut early).await;
    assert!(peak_memory_kib() - before < 64 * 1024);
}

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_byte_over_a_limit_is_cut() {
    let limits = Limits {
        max_frame_bytes: 100,
        max_message_bytes: 150,
        max_frames: 3,
        ..patient()
    };
    is_cut(limits, &message(&[&[0; 101]])).await;
    is_cut(limits, &message(&[&[0; 100], &[0; 51]])).await;
    is_cut(limits, &message(&[b"", b"", b"", b""])).await;

    let serving = echo(limits);
    let mut stream = dealer(serving.addr).await;
    let most = message(&[&[0; 100], b"", &[0; 50]]);
    stream.write_all(&most).await.unwrap();
    expect(&mut stream, &most).await;
}

#[tokio::test]
async fn endless_more_frames_are_cut() {
    is_cut(patient(), &b"\x01\x00".repeat(100_000)).await;
}

#[tokio::test]
async fn frames_that_no_peer_sends_are_cut() {
    is_cut(patient(), b"\x80\x00").await;
    is_cut(patient(), b"\x05\x00").await;
    is_cut(patient(), &frame::ready("DEALER")).await;
    is_cut(patient(), b"\x04\x00").await;
}

#[tokio::test]
async fn other_mechanisms_types_and_protocols_are_refused() {
    let serving = echo(patient());
    let mut curve = frame::greeting();
    curve[12..17].copy_from_slice(b"CURVE");
    let mut old = frame::greeting();
    old[10] = 2;
    let plain = [&frame::greeting()[..], b"\x00\x01x"].concat();
    let wrong = |socket_type| [&frame::greeting()[..], &frame::ready(socket_type)].concat();
    for bytes in [
        [&curve[..], &frame::ready("DEALER")].concat(),
        [&old[..], &frame::ready("DEALER")].concat(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        plain,
        wrong("PUSH"),
        wrong("ROUTER"),
        wrong(""),
    ] {
        let mut stream = connect(serving.addr).await;
        stream.write_all(&bytes).await.unwrap();
        stream.write_all(&message(&[b"let me in"])).await.ok();
        let mut seen = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut seen))
            .await
            .expect("still open")
            .ok();
        let ours = [&frame::greeting()[..], &frame::ready("ROUTER")].concat();
        assert!(ours.starts_with(&seen), "{bytes:?} was answered");
    }
    still_serves(serving.addr).await;
}

#[tokio::test]
async fn a_peer_that_never_reads_stops_only_itself() {
    let serving = serve(
        Limits {
            idle_deadline: PATIENCE,
            ..quick()
        },
        async |_, frames| match &frames[0][..] {
            b"much" => Some(vec![Bytes::from(vec![0; 32 << 20])]),
            _ => Some(frames),
        },
    );
    let mut greedy = dealer(serving.addr).await;
    greedy.write_all(&message(&[b"much"])).await.unwrap();
    still_serves(serving.addr).await;

    // Its connection ends at the write deadline: what it gets, read late, is not the whole answer.
    sleep(Duration::from_secs(1)).await;
    let mut seen = Vec::new();
    timeout(PATIENCE, greedy.read_to_end(&mut seen))
        .await
        .expect("still open")
        .ok();
    assert!(seen.len() < 32 << 20);
    still_serves(serving.addr).await;
}

#[tokio::test]
async fn an_address_has_no_more_connections_than_its_cap() {
    let serving = echo(Limits {
        max_connections_per_address: 2,
        ..patient()
    });
    let first = dealer(serving.addr).await;
    let _second = dealer(serving.addr).await;
    let mut third = connect(serving.addr).await;
    is_closed(&mut third).await;

    drop(first);
    // The place is free once the server has seen the end.
    timeout(PATIENCE, async {
        loop {
            let mut stream = connect(serving.addr).await;
            let mut byte = [0];
            if matches!(stream.read(&mut byte).await, Ok(1)) {
                break;
            }
        }
    })
    .await
    .expect("the place never became free");
}

#[tokio::test]
async fn connections_over_the_total_wait_their_turn() {
    let serving = echo(Limits {
        max_connections: 1,
        ..patient()
    });
    let first = dealer(serving.addr).await;
    let mut second = connect(serving.addr).await;
    let mut byte = [0];
    assert!(
        timeout(Duration::from_millis(200), second.read(&mut byte))
            .await
            .is_err()
    );
    drop(first);
    expect(&mut second, &frame::greeting()).await;
}

#[tokio::test]
async fn no_answer_and_a_panic_end_only_their_own_connection() {
    let serving = serve(patient(), async |_, frames| match &frames[0][..] {
        b"no answer" => None,
        b"no frames" => Some(vec![]),
        b"panic" => panic!("on purpose"),
        _ => Some(frames),
    });
    for kind in [&b"no answer"[..], b"no frames", b"panic"] {
        let mut stream = dealer(serving.addr).await;
        stream.write_all(&message(&[kind])).await.unwrap();
        is_closed(&mut stream).await;
    }
    still_serves(serving.addr).await;
}

#[tokio::test]
async fn shutdown_answers_what_was_begun_and_closes_the_rest() {
    let begun = Arc::new(AtomicUsize::new(0));
    let (release, released) = tokio::sync::watch::channel(false);
    let counter = Arc::clone(&begun);
    let serving = serve(patient(), move |_, frames| {
        counter.fetch_add(1, Ordering::SeqCst);
        let mut released = released.clone();
        async move {
            released.wait_for(|go| *go).await.ok()?;
            Some(frames)
        }
    });
    let mut idle = dealer(serving.addr).await;
    let mut busy = dealer(serving.addr).await;
    busy.write_all(&message(&[b"work"])).await.unwrap();
    while begun.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(5)).await;
    }

    serving.stop.send(()).unwrap();
    is_closed(&mut idle).await;
    assert!(!serving.task.is_finished());
    assert!(TcpStream::connect(serving.addr).await.is_err());
    release.send(true).unwrap();
    expect(&mut busy, &message(&[b"work"])).await;
    is_closed(&mut busy).await;
    timeout(PATIENCE, serving.task)
        .await
        .expect("serve goes on")
        .unwrap();
}

#[test]
fn the_default_limits_take_a_message_of_64_kib() {
    let limits = Limits::default();
    let bytes = message(&[&vec![0; 64 * 1024]]);
    let frame_limits = FrameLimits {
        message: limits.max_frame_bytes,
        command: limits.max_command_bytes,
    };
    assert!(matches!(
        Frame::decode(&bytes, frame_limits),
        Ok((Frame::Message { .. }, _))
    ));
    assert!(limits.max_message_bytes >= 64 * 1024);
}
