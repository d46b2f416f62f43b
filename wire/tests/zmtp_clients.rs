//! DEALER and REQ exchanges against real, dead and mute servers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gw_wire::zmtp::dealer::{ExchangeError, ExchangeFault, exchange};
use gw_wire::zmtp::req::{RequestError, RequestFault, request};
use gw_wire::zmtp::router::{Limits, Server};
use tokio::net::TcpListener;
use zeromq::{PullSocket, RepSocket, Socket, SocketRecv, SocketSend, ZmqMessage};
use zmtp_python::{Script, python};

mod zmtp_python;

const PATIENCE: Duration = Duration::from_secs(30);
const IMPATIENCE: Duration = Duration::from_millis(400);

// ---- DEALER ----

#[tokio::test]
async fn an_exchange_with_nobody_fails_at_once() {
    let addr = nobody().await;
    let started = Instant::now();
    let error = exchange(addr, vec![Bytes::from_static(b"x")], PATIENCE)
        .await
        .unwrap_err();
    assert!(
        matches!(error, ExchangeError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(started.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn an_exchange_with_a_server_that_does_not_accept_ends_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let error = exchange(addr, vec![Bytes::from_static(b"x")], IMPATIENCE)
        .await
        .unwrap_err();
    assert!(matches!(error, ExchangeError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn an_exchange_that_the_server_declines_to_answer_fails_at_once() {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    let addr = server.local_addr().unwrap();
    tokio::spawn(server.serve(async |_, _| None, std::future::pending()));
    let error = exchange(addr, vec![Bytes::from_static(b"x")], PATIENCE)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            ExchangeError::Failed {
                source: ExchangeFault::Closed,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_empty_message_is_not_exchanged() {
    let error = exchange(nobody().await, vec![], PATIENCE)
        .await
        .unwrap_err();
    assert!(matches!(error, ExchangeError::Empty), "{error:?}");
}

/// An address on which nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

// ---- REQ ----

fn not_sent(result: Result<Bytes, RequestError>) -> RequestFault {
    match result {
        Err(RequestError::NotSent { source, .. }) => source,
        other => panic!("expected NotSent, got {other:?}"),
    }
}

fn lost(result: Result<Bytes, RequestError>) -> RequestFault {
    match result {
        Err(RequestError::Lost { source, .. }) => source,
        other => panic!("expected Lost, got {other:?}"),
    }
}

/// One REP of the crate that answers one request with `answer`, or never.
async fn rep(answer: Option<ZmqMessage>) -> SocketAddr {
    let mut rep = RepSocket::new();
    let bound = rep.bind("tcp://127.0.0.1:0").await.unwrap();
    let addr = bound
        .to_string()
        .trim_start_matches("tcp://")
        .parse()
        .unwrap();
    tokio::spawn(async move {
        let request = rep.recv().await.unwrap().into_vec();
        assert_eq!(request, [&b"load"[..]]);
        if let Some(answer) = answer {
            rep.send(answer).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    addr
}

#[tokio::test]
async fn a_request_to_the_crates_rep_is_answered() {
    let addr = rep(Some("answer".into())).await;
    assert_eq!(
        request(addr, "load".into(), PATIENCE).await.unwrap(),
        "answer"
    );
}

#[tokio::test]
async fn a_request_to_libzmqs_router_is_answered() {
    let Some(python) = python() else { return };
    let router = r#"
s = ctx.socket(zmq.ROUTER)
print(s.bind_to_random_port("tcp://127.0.0.1"))
for _ in range(3):
    ident, delimiter, body = s.recv_multipart()
    s.send_multipart([ident, delimiter, b"answer to " + body])
"#;
    let mut router = Script::start(python, router, &[]);
    let addr = format!("127.0.0.1:{}", router.line()).parse().unwrap();
    for number in 0..3 {
        let answer = request(addr, format!("{number}").into(), PATIENCE)
            .await
            .unwrap();
        assert_eq!(answer, format!("answer to {number}"));
    }
}

#[tokio::test]
async fn a_request_to_nobody_is_not_sent_at_once() {
    let started = Instant::now();
    let fault = not_sent(request(nobody().await, "load".into(), PATIENCE).await);
    assert!(matches!(fault, RequestFault::Connect(_)), "{fault:?}");
    assert!(started.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn a_request_is_not_sent_if_the_handshake_never_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fault = not_sent(request(listener.local_addr().unwrap(), "load".into(), IMPATIENCE).await);
    assert!(matches!(fault, RequestFault::Timeout), "{fault:?}");
}

#[tokio::test]
async fn a_request_to_another_type_of_socket_is_not_sent() {
    let mut pull = PullSocket::new();
    let bound = pull.bind("tcp://127.0.0.1:0").await.unwrap();
    let addr = bound
        .to_string()
        .trim_start_matches("tcp://")
        .parse()
        .unwrap();
    let fault = not_sent(request(addr, "load".into(), PATIENCE).await);
    assert!(matches!(fault, RequestFault::Socket(_)), "{fault:?}");
}

#[tokio::test]
async fn a_request_without_an_answer_is_lost_at_the_deadline() {
    let addr = rep(None).await;
    let fault = lost(request(addr, "load".into(), IMPATIENCE).await);
    assert!(matches!(fault, RequestFault::Timeout), "{fault:?}");
}

#[tokio::test]
async fn a_request_whose_connection_dies_is_lost() {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    let addr = server.local_addr().unwrap();
    tokio::spawn(server.serve(async |_, _| None, std::future::pending()));
    lost(request(addr, "load".into(), PATIENCE).await);
}

#[tokio::test]
async fn an_answer_of_two_frames_is_lost() {
    let two = ZmqMessage::try_from(vec![Bytes::new(), Bytes::new()]).unwrap();
    let fault = lost(request(rep(Some(two)).await, "load".into(), PATIENCE).await);
    assert!(matches!(fault, RequestFault::Frames(2)), "{fault:?}");
}
