//! DEALER against servers that break each rule in turn: the exchange fails, in time, and nothing else.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::time::Duration;

use bytes::Bytes;
use gw_wire::zmtp::dealer::{ExchangeError, ExchangeFault, exchange};
use gw_wire::zmtp::frame::{self, GREETING_LEN, Malformed, encode_message};
use gw_wire::zmtp::{HandshakeError, MessageError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const IMPATIENCE: Duration = Duration::from_millis(400);

const COMMAND: u8 = 0b100;
const TEBIBYTE: u64 = 1 << 40;

type Outcome = Result<Vec<Bytes>, ExchangeError>;

fn question() -> Vec<Bytes> {
    vec!["question".into(), Bytes::new()]
}

/// What an exchange says of a server that does `server` and, unless that returned it, hangs up.
async fn outcome<F, T>(deadline: Duration, server: impl FnOnce(TcpStream) -> F) -> Outcome
where
    F: Future<Output = T>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = async { server(listener.accept().await.unwrap().0).await };
    tokio::join!(exchange(addr, question(), deadline), server).0
}

fn fault(outcome: Outcome) -> ExchangeFault {
    match outcome {
        Err(ExchangeError::Failed { source, .. }) => source,
        other => panic!("expected Failed, got {other:?}"),
    }
}

fn handshake_fault(outcome: Outcome) -> HandshakeError {
    match fault(outcome) {
        ExchangeFault::Handshake(why) => why,
        other => panic!("expected Handshake, got {other:?}"),
    }
}

fn answer_fault(outcome: Outcome) -> MessageError {
    match fault(outcome) {
        ExchangeFault::Answer(why) => why,
        other => panic!("expected Answer, got {other:?}"),
    }
}

async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut seen = vec![0; bytes.len()];
    timeout(PATIENCE, stream.read_exact(&mut seen))
        .await
        .expect("too few bytes")
        .unwrap();
    assert_eq!(seen, bytes);
}

/// A well-behaved ROUTER up to the moment when it has the question.
async fn hear(stream: &mut TcpStream) {
    stream
        .write_all(&[&frame::greeting()[..], &frame::ready("ROUTER")].concat())
        .await
        .unwrap();
    expect(stream, &frame::greeting()).await;
    expect(stream, &frame::ready("DEALER")).await;
    expect(stream, &encode_message(&question())).await;
}

/// What an exchange says of a server that answers with `bytes`, and stays.
async fn outcome_of_answer(bytes: &[u8]) -> Outcome {
    outcome(PATIENCE, async |mut stream| {
        hear(&mut stream).await;
        stream.write_all(bytes).await.unwrap();
        stream
    })
    .await
}

/// What an exchange says of a server that sends `bytes` from the start, and what it got itself.
async fn outcome_of_opening(bytes: &[u8]) -> (Outcome, Vec<u8>) {
    let mut seen = Vec::new();
    let outcome = outcome(PATIENCE, async |mut stream| {
        stream.write_all(bytes).await.unwrap();
        // Until it hangs up, with whatever of `bytes` it has not read.
        stream.read_to_end(&mut seen).await.ok();
    })
    .await;
    (outcome, seen)
}

fn long_header(flags: u8, len: u64) -> Vec<u8> {
    [&[flags | 0b010][..], &len.to_be_bytes()].concat()
}

fn command(body: &[u8]) -> Vec<u8> {
    [&long_header(COMMAND, body.len() as u64), body].concat()
}

fn ping(context: &[u8]) -> Vec<u8> {
    command(&[b"\x04PING\0\0", context].concat())
}

fn is_too_long(why: Malformed, expected_len: u64, expected_limit: usize) {
    match why {
        Malformed::TooLong { len, limit } => {
            assert_eq!((len, limit), (expected_len, expected_limit));
        }
        other => panic!("{other:?}"),
    }
}

// ---- what is fine ----

#[tokio::test]
async fn an_exchange_takes_one_connection_and_closes_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        hear(&mut stream).await;
        stream.write_all(&encode_message(&["yes"])).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    };
    let (outcome, ()) = tokio::join!(exchange(addr, question(), PATIENCE), server);
    assert_eq!(outcome.unwrap(), ["yes"]);
    assert!(timeout(IMPATIENCE, listener.accept()).await.is_err());
}

#[tokio::test]
async fn an_answer_in_single_bytes_is_an_answer() {
    let frames = ["one", "", "three"];
    let outcome = outcome(PATIENCE, async |mut stream| {
        stream.set_nodelay(true).unwrap();
        let opening = [&frame::greeting()[..], &frame::ready("ROUTER")].concat();
        for byte in [opening, encode_message(&frames)].concat() {
            stream.write_all(&[byte]).await.unwrap();
            yield_now().await;
        }
        stream
    })
    .await;
    assert_eq!(outcome.unwrap(), frames);
}

#[tokio::test]
async fn an_answer_may_come_with_the_handshake() {
    let all = [
        &frame::greeting()[..],
        &frame::ready("ROUTER"),
        &encode_message(&["early"]),
    ]
    .concat();
    let (outcome, _) = outcome_of_opening(&all).await;
    assert_eq!(outcome.unwrap(), ["early"]);
}

#[tokio::test]
async fn pings_before_and_within_the_answer_get_their_pongs() {
    let outcome = outcome(PATIENCE, async |mut stream| {
        hear(&mut stream).await;
        stream.write_all(&ping(b"before")).await.unwrap();
        expect(&mut stream, &frame::pong(b"before")).await;
        let mut bytes = Vec::new();
        frame::encode_message_frame(&mut bytes, true, b"one");
        bytes.extend(ping(b"within"));
        bytes.extend(command(b"\x05OTHER"));
        bytes.extend(ping(b""));
        frame::encode_message_frame(&mut bytes, false, b"two");
        stream.write_all(&bytes).await.unwrap();
        expect(&mut stream, &frame::pong(b"within")).await;
        expect(&mut stream, &frame::pong(b"")).await;
    })
    .await;
    assert_eq!(outcome.unwrap(), ["one", "two"]);
}

#[tokio::test]
async fn an_answer_of_8_frames_and_8_kib_is_within_the_limits() {
    let mut frames = vec![Bytes::from(vec![b'x'; 1024]); 8];
    let outcome = outcome_of_answer(&encode_message(&frames)).await;
    assert_eq!(outcome.unwrap(), frames);

    frames = vec![vec![b'x'; 8 * 1024].into()];
    let outcome = outcome_of_answer(&encode_message(&frames)).await;
    assert_eq!(outcome.unwrap(), frames);
}

// ---- what breaks a rule ----

#[tokio::test]
async fn a_frame_length_of_one_tebibyte_fails_the_handshake() {
    for flags in [0, COMMAND] {
        let bytes = [&frame::greeting()[..], &long_header(flags, TEBIBYTE)].concat();
        let limit = if flags == COMMAND { 1024 } else { 0 };
        match handshake_fault(outcome_of_opening(&bytes).await.0) {
            HandshakeError::Malformed(why) => is_too_long(why, TEBIBYTE, limit),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_frame_length_of_one_tebibyte_fails_the_answer() {
    for (flags, limit) in [(0, 8 * 1024), (0b001, 8 * 1024), (COMMAND, 1024)] {
        for len in [TEBIBYTE, u64::MAX, limit as u64 + 1] {
            match answer_fault(outcome_of_answer(&long_header(flags, len)).await) {
                MessageError::Malformed(why) => is_too_long(why, len, limit),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn endless_more_frames_fail_the_answer() {
    let outcome = outcome(PATIENCE, async |mut stream| {
        hear(&mut stream).await;
        while stream.write_all(&[0b001, 0].repeat(1000)).await.is_ok() {}
    })
    .await;
    let why = answer_fault(outcome);
    assert!(matches!(why, MessageError::Frames(8)), "{why:?}");
}

#[tokio::test]
async fn frames_that_are_too_long_together_fail_the_answer() {
    let frames = [vec![b'x'; 5000], vec![b'x'; 5000]];
    match answer_fault(outcome_of_answer(&encode_message(&frames)).await) {
        MessageError::Malformed(why) => is_too_long(why, 5000, 8 * 1024 - 5000),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_no_frame_or_no_command_fails_the_answer() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[0b1000, 0],
        &[COMMAND | 0b001, 0],
        &command(b""),
        &ping(&[b'x'; 17]),
    ] {
        let why = answer_fault(outcome_of_answer(bytes).await);
        assert!(matches!(why, MessageError::Malformed(_)), "{why:?}");
    }
}

#[tokio::test]
async fn a_second_ready_fails_the_answer() {
    let why = answer_fault(outcome_of_answer(&frame::ready("ROUTER")).await);
    assert!(matches!(why, MessageError::Handshake), "{why:?}");
}

#[tokio::test]
async fn a_curve_server_sees_our_greeting_and_no_more() {
    let mut greeting = frame::greeting();
    greeting[12..32].copy_from_slice(b"CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let (outcome, seen) = outcome_of_opening(&greeting).await;
    let why = handshake_fault(outcome);
    assert!(
        matches!(why, HandshakeError::Malformed(Malformed::Mechanism)),
        "{why:?}"
    );
    assert_eq!(seen, frame::greeting());
}

#[tokio::test]
async fn a_socket_of_another_type_does_not_see_the_message() {
    for other in ["PULL", "REP", "DEALER", "router"] {
        let bytes = [&frame::greeting()[..], &frame::ready(other)].concat();
        let (outcome, seen) = outcome_of_opening(&bytes).await;
        match handshake_fault(outcome) {
            HandshakeError::SocketType(found) => assert_eq!(found, other),
            why => panic!("{why:?}"),
        }
        assert_eq!(seen.len(), GREETING_LEN + frame::ready("DEALER").len());
    }
}

#[tokio::test]
async fn a_refusal_is_told() {
    let bytes = [&frame::greeting()[..], &command(b"\x05ERROR\x02no")].concat();
    match handshake_fault(outcome_of_opening(&bytes).await.0) {
        HandshakeError::Refused(reason) => assert_eq!(reason, "no"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_within_its_answer_has_not_answered() {
    let answer = encode_message(&["almost"]);
    for len in 0..answer.len() {
        let outcome = outcome(PATIENCE, async |mut stream| {
            hear(&mut stream).await;
            stream.write_all(&answer[..len]).await.unwrap();
        })
        .await;
        let why = fault(outcome);
        assert!(matches!(why, ExchangeFault::Closed), "{why:?}");
    }
}

// ---- the deadline ----

async fn is_timeout(server: impl AsyncFnOnce(&mut TcpStream)) {
    let started = Instant::now();
    let outcome = outcome(IMPATIENCE, async |mut stream| {
        server(&mut stream).await;
        stream
    })
    .await;
    assert!(
        matches!(outcome, Err(ExchangeError::Timeout { .. })),
        "{outcome:?}"
    );
    assert!(started.elapsed() >= IMPATIENCE);
    assert!(started.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn a_mute_server_is_left_at_the_deadline() {
    is_timeout(async |_| {}).await;
    is_timeout(async |stream| stream.write_all(&frame::greeting()).await.unwrap()).await;
    is_timeout(async |stream| hear(stream).await).await;
    is_timeout(async |stream| {
        hear(stream).await;
        stream.write_all(&[0b001, 1, b'x', 0]).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_trickles_is_left_at_the_deadline() {
    is_timeout(async |stream| {
        while stream.write_all(&frame::greeting()[..1]).await.is_ok() {
            // A greeting's first byte is checked, the next eight are not.
            sleep(IMPATIENCE / 5).await;
        }
    })
    .await;
    is_timeout(async |stream| {
        hear(stream).await;
        while stream.write_all(&ping(b"")).await.is_ok() {
            sleep(IMPATIENCE / 5).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_read_is_left_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(&[&frame::greeting()[..], &frame::ready("ROUTER")].concat())
            .await
            .unwrap();
        stream
    };
    let huge = vec![Bytes::from(vec![b'x'; 64 << 20])];
    let (outcome, _stream) = tokio::join!(exchange(addr, huge, IMPATIENCE), server);
    assert!(
        matches!(outcome, Err(ExchangeError::Timeout { .. })),
        "{outcome:?}"
    );
}

/// The server has a thread of its own, so that there is always something to read.
#[tokio::test]
async fn a_flood_of_commands_does_not_outlast_the_deadline() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    for what in [command(b"\x05OTHER"), ping(b"")] {
        let listener = listener.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut pongs = stream.try_clone().unwrap();
            std::thread::spawn(move || while pongs.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {});
            stream
                .write_all(&[&frame::greeting()[..], &frame::ready("ROUTER")].concat())
                .unwrap();
            let many = what.repeat(1000);
            while stream.write_all(&many).is_ok() {}
        });
        let started = Instant::now();
        let outcome = exchange(addr, question(), IMPATIENCE).await;
        assert!(
            matches!(outcome, Err(ExchangeError::Timeout { .. })),
            "{outcome:?}"
        );
        assert!(started.elapsed() < PATIENCE / 2);
        flood.join().unwrap();
    }
}
