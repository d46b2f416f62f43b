//! PUSH, DEALER and the ROUTER server against real peers: the `zeromq` crate and libzmq (through pyzmq).
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use gw_wire::zmtp::Endpoint;
use gw_wire::zmtp::dealer::{ExchangeError, ExchangeFault, exchange};
use gw_wire::zmtp::push::{NotSent, PushEnd, push};
use gw_wire::zmtp::router::{Limits, Server};
use tokio::time::timeout;
use zeromq::{DealerSocket, PullSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};
use zmtp_python::{Script, python};

mod zmtp_python;

const PATIENCE: Duration = Duration::from_secs(30);
const IMPATIENCE: Duration = Duration::from_millis(400);

fn ipc() -> (tempfile::TempDir, Endpoint, String) {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(dir.path().join("pull.ipc"));
    let name = endpoint.to_string();
    (dir, endpoint, name)
}

// ---- PUSH ----

/// Prints each message's length and its first bytes until `sys.argv[2]` came and a second is silent.
const PULL: &str = r#"
pull = ctx.socket(zmq.PULL)
pull.bind(sys.argv[1])
print("ready")
seen = 0
while pull.poll(1000 if seen >= int(sys.argv[2]) else 30000):
    frames = pull.recv_multipart()
    assert len(frames) == 1
    print(len(frames[0]), frames[0][:20].decode())
    seen += 1
"#;

const PUSHED: usize = 20;
const LARGE: usize = 3_000_000;

/// Not a test of its own, but the process that the next one starts, waits for and starts again.
#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn push_and_exit() {
    let Some(path) = std::env::var_os("PUSH_TO") else {
        return;
    };
    let times = std::env::var("PUSH_TIMES").unwrap().parse().unwrap();
    let message = std::env::var("PUSH_WHAT").unwrap().repeat(times);
    let end = push(&Endpoint::Unix(path.into()), message.as_bytes(), PATIENCE).await;
    std::process::exit(if matches!(end, PushEnd::Sent { .. }) {
        0
    } else {
        1
    });
}

#[test]
fn a_process_that_exits_after_its_send_has_delivered_once() {
    let Some(python) = python() else { return };
    let (dir, _, name) = ipc();
    let mut pull = Script::start(python, PULL, &[&name, &(2 * PUSHED).to_string()]);
    assert_eq!(pull.line(), "ready");

    let mut expected = Vec::new();
    for number in 0..2 * PUSHED {
        let times = if number % 2 == 0 { 1 } else { LARGE / 20 };
        let what = format!("message {number:012}");
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "push_and_exit", "--ignored"])
            .env("PUSH_TO", dir.path().join("pull.ipc"))
            .env("PUSH_WHAT", &what)
            .env("PUSH_TIMES", times.to_string())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        expected.push(format!("{} {what}", 20 * times));
    }
    let mut seen = pull.finish();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn an_empty_message_arrives_at_libzmq() {
    let Some(python) = python() else { return };
    let (_dir, endpoint, name) = ipc();
    let mut pull = Script::start(python, PULL, &[&name, "1"]);
    assert_eq!(pull.line(), "ready");
    let end = push(&endpoint, b"", PATIENCE).await;
    assert!(matches!(end, PushEnd::Sent { .. }), "{end:?}");
    assert_eq!(pull.finish(), ["0 "]);
}

#[tokio::test]
async fn a_stopped_libzmq_peer_is_not_sent_and_gets_nothing_later() {
    let Some(python) = python() else { return };
    let (_dir, endpoint, name) = ipc();
    let mut pull = Script::start(python, PULL, &[&name, "1"]);
    assert_eq!(pull.line(), "ready");
    pull.stop();
    let end = push(&endpoint, b"never", IMPATIENCE).await;
    pull.go_on();
    assert!(matches!(end, PushEnd::NotSent(NotSent::Timeout)), "{end:?}");
    assert!(matches!(
        push(&endpoint, b"later", PATIENCE).await,
        PushEnd::Sent { .. }
    ));
    assert_eq!(pull.finish(), ["5 later"]);
}

#[tokio::test]
async fn a_libzmq_peer_of_another_type_is_not_sent() {
    let Some(python) = python() else { return };
    let (_dir, endpoint, name) = ipc();
    let rep = "s = ctx.socket(zmq.REP); s.bind(sys.argv[1]); print('ready'); time.sleep(60)";
    let mut rep = Script::start(python, rep, &[&name]);
    assert_eq!(rep.line(), "ready");
    match push(&endpoint, b"x", PATIENCE).await {
        PushEnd::NotSent(NotSent::PeerType(found)) => assert_eq!(found, "REP"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_crates_pull_gets_every_message_once() {
    let mut pull = PullSocket::new();
    let bound = pull.bind("tcp://127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(
        bound
            .to_string()
            .trim_start_matches("tcp://")
            .parse()
            .unwrap(),
    );
    for number in 0..PUSHED {
        let message = format!("message {number}");
        let end = push(&endpoint, message.as_bytes(), PATIENCE).await;
        assert!(matches!(end, PushEnd::Sent { .. }), "{end:?}");
        let seen = timeout(PATIENCE, pull.recv())
            .await
            .unwrap()
            .unwrap()
            .into_vec();
        assert_eq!(seen, [message.as_bytes()]);
    }
    assert!(timeout(IMPATIENCE, pull.recv()).await.is_err());
}

// ---- DEALER ----

/// Every exchange of many at once gets what the ROUTER at `addr` made of its own message: the same
/// frames and one more, `ack`.
async fn get_their_own_answers(addr: SocketAddr) {
    let exchanges = (0..20).map(|number| {
        tokio::spawn(async move {
            let long = Bytes::from(vec![b'x'; 300 * number]);
            let frames = vec![format!("from {number}").into(), Bytes::new(), long];
            let answer = exchange(addr, frames.clone(), PATIENCE).await.unwrap();
            let ack = Bytes::from_static(b"ack");
            assert_eq!(answer, [&frames[..], &[ack]].concat());
        })
    });
    for exchange in exchanges.collect::<Vec<_>>() {
        exchange.await.unwrap();
    }
}

#[tokio::test]
async fn exchanges_with_our_router_get_their_own_answers() {
    get_their_own_answers(serve()).await;
}

#[tokio::test]
async fn exchanges_with_the_crates_router_get_their_own_answers() {
    let mut router = RouterSocket::new();
    let bound = router.bind("tcp://127.0.0.1:0").await.unwrap();
    let addr = bound
        .to_string()
        .trim_start_matches("tcp://")
        .parse()
        .unwrap();
    tokio::spawn(async move {
        loop {
            let mut message = router.recv().await.unwrap();
            message.push_back(Bytes::from_static(b"ack"));
            router.send(message).await.unwrap();
        }
    });
    get_their_own_answers(addr).await;
}

/// Answers for ever, each message `sys.argv[1]` seconds later; drops peers that do not answer a heartbeat.
const ROUTER: &str = r#"
s = ctx.socket(zmq.ROUTER)
s.heartbeat_ivl, s.heartbeat_timeout = 50, 200
s.router_mandatory = 1
print(s.bind_to_random_port("tcp://127.0.0.1"))
while True:
    frames = s.recv_multipart()
    time.sleep(float(sys.argv[1]))
    s.send_multipart(frames + [b"ack"])
"#;

#[tokio::test]
async fn exchanges_with_libzmqs_router_get_their_own_answers() {
    let Some(python) = python() else { return };
    let mut router = Script::start(python, ROUTER, &["0"]);
    let addr = format!("127.0.0.1:{}", router.line()).parse().unwrap();
    get_their_own_answers(addr).await;
}

#[tokio::test]
async fn heartbeats_of_libzmqs_router_are_answered_while_an_exchange_waits() {
    let Some(python) = python() else { return };
    let mut router = Script::start(python, ROUTER, &["1"]);
    let addr = format!("127.0.0.1:{}", router.line()).parse().unwrap();
    let answer = exchange(addr, vec![Bytes::from_static(b"x")], PATIENCE)
        .await
        .unwrap();
    assert_eq!(answer, [&b"x"[..], b"ack"]);
}

#[tokio::test]
async fn an_exchange_with_a_curve_router_of_libzmq_fails_in_the_handshake() {
    let Some(python) = python() else { return };
    let curve = r#"
s = ctx.socket(zmq.ROUTER)
if zmq.has("curve"):
    s.curve_server = True
    s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
    print(s.bind_to_random_port("tcp://127.0.0.1"))
else:
    print("none")
time.sleep(60)
"#;
    let mut router = Script::start(python, curve, &[]);
    let port = router.line();
    if port == "none" {
        return;
    }
    let addr = format!("127.0.0.1:{port}").parse().unwrap();
    // It reads our mechanism before it has sent its own, so either end may be the first to hang up.
    match exchange(addr, vec![Bytes::from_static(b"x")], PATIENCE).await {
        Err(ExchangeError::Failed {
            source: ExchangeFault::Handshake(_),
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

// ---- ROUTER ----

/// Answers with the frames that came and one more, `ack`.
fn serve() -> SocketAddr {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    let addr = server.local_addr().unwrap();
    let ack = async |_, mut frames: Vec<Bytes>| {
        frames.push(Bytes::from_static(b"ack"));
        Some(frames)
    };
    tokio::spawn(server.serve(ack, std::future::pending()));
    addr
}

async fn run_script(python: PathBuf, body: &'static str, args: Vec<String>) -> Vec<String> {
    let run = move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Script::start(python, body, &args).finish()
    };
    timeout(PATIENCE, tokio::task::spawn_blocking(run))
        .await
        .expect("no end")
        .unwrap()
}

#[tokio::test]
async fn dealers_of_the_crate_get_their_own_answers() {
    let addr = serve();
    let exchanges = (0..50).map(|number| {
        tokio::spawn(async move {
            let body = Bytes::from(format!("from {number}"));
            let mut dealer = DealerSocket::new();
            dealer.connect(&format!("tcp://{addr}")).await.unwrap();
            let message = ZmqMessage::try_from(vec![body.clone(), Bytes::new()]).unwrap();
            dealer.send(message).await.unwrap();
            let answer = timeout(PATIENCE, dealer.recv()).await.unwrap().unwrap();
            assert_eq!(
                answer.into_vec(),
                [body, Bytes::new(), Bytes::from_static(b"ack")]
            );
        })
    });
    for exchange in exchanges.collect::<Vec<_>>() {
        exchange.await.unwrap();
    }
}

#[tokio::test]
async fn a_message_of_64_kib_makes_the_exchange() {
    let addr = serve();
    let body = vec![b'x'; 64 * 1024];
    let mut dealer = DealerSocket::new();
    dealer.connect(&format!("tcp://{addr}")).await.unwrap();
    dealer.send(body.clone().into()).await.unwrap();
    let answer = timeout(PATIENCE, dealer.recv()).await.unwrap().unwrap();
    assert_eq!(answer.into_vec(), [&body[..], b"ack"]);
}

#[tokio::test]
async fn dealers_of_libzmq_get_their_own_answers_even_under_one_identity() {
    let Some(python) = python() else { return };
    let dealers = r#"
socks = [ctx.socket(zmq.DEALER) for _ in range(20)]
for s in socks:
    s.identity = b"same"
    s.connect(sys.argv[1])
for turn in range(3):
    for n, s in enumerate(socks):
        s.send_multipart([b"%d %d" % (turn, n), b"second"])
    for n, s in reversed(list(enumerate(socks))):
        assert s.poll(20000), n
        assert s.recv_multipart() == [b"%d %d" % (turn, n), b"second", b"ack"]
print("own answers")
"#;
    let addr = serve();
    let lines = run_script(python, dealers, vec![format!("tcp://{addr}")]).await;
    assert_eq!(lines, ["own answers"]);
}

#[tokio::test]
async fn a_req_of_libzmq_gets_its_answer_behind_the_delimiter() {
    let Some(python) = python() else { return };
    let req = r#"
req = ctx.socket(zmq.REQ)
req.connect(sys.argv[1])
for n in range(10):
    req.send(b"%d" % n)
    assert req.poll(20000)
    assert req.recv_multipart() == [b"%d" % n, b"ack"]
print("answered")
"#;
    let addr = serve();
    assert_eq!(
        run_script(python, req, vec![format!("tcp://{addr}")]).await,
        ["answered"]
    );
}

#[tokio::test]
async fn heartbeats_of_libzmq_keep_the_connection() {
    let Some(python) = python() else { return };
    let beating = r#"
s = ctx.socket(zmq.DEALER)
s.heartbeat_ivl, s.heartbeat_timeout = 50, 1000
events = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
s.connect(sys.argv[1])
s.send(b"first")
assert s.poll(20000) and s.recv_multipart() == [b"first", b"ack"]
print("lost" if events.poll(2500) else "kept")
"#;
    let addr = serve();
    assert_eq!(
        run_script(python, beating, vec![format!("tcp://{addr}")]).await,
        ["kept"]
    );
}

#[tokio::test]
async fn a_curve_client_of_libzmq_is_refused() {
    let Some(python) = python() else { return };
    let curve = r#"
if not zmq.has("curve"):
    print("refused")
    sys.exit()
s = ctx.socket(zmq.DEALER)
s.linger = 0
s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
s.curve_serverkey = zmq.curve_keypair()[0]
s.connect(sys.argv[1])
s.send(b"let me in")
print("answered" if s.poll(1000) else "refused")
"#;
    let addr = serve();
    assert_eq!(
        run_script(python, curve, vec![format!("tcp://{addr}")]).await,
        ["refused"]
    );
}
