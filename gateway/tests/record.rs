//! What the daemon makes of sends and of evidence, seen from outside: the real `gw serve`, a publisher that
//! records what it is given, and a minion's key to sign with.
//!
//! The publisher here stands for no Salt: it only counts and answers capability calls, so that crashes,
//! hang-ups and lies can be placed exactly. Jobs on a real Salt are in the `tests` crate.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gw_wire::id::{MinionId, Profile, Token, now};
use gw_wire::key::PrivateKey;
use gw_wire::receipt::{Binding, Outcome, PROTOCOL, Receipt};
use gw_wire::reply::{Acknowledgement, Answer, Capability, Reply, ShortText, Survival};
use gw_wire::zmtp::dealer::exchange;
use gw_wire::zmtp::frame::{Frame, FrameLimits, greeting, ready};
use serde_json::Value;

const MINION: &str = "client-123e4567-e89b-42d3-a456-426614174000";
const CLAIM: &str = "0123456789abcdef0123456789abcdef";

struct Site {
    directory: tempfile::TempDir,
    port: u16,
    /// Every load that the publisher was given.
    loads: Arc<Mutex<Vec<Value>>>,
    /// What the minion says that it can apply.
    profiles: Arc<Mutex<Vec<Profile>>>,
    daemon: Mutex<Child>,
}

impl Site {
    fn start() -> Arc<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/keys");
        for name in ["pki/minions", "sock"] {
            std::fs::create_dir_all(path.join(name)).expect("made");
        }
        for name in ["pki/master.pub", &format!("pki/minions/{MINION}")] {
            std::fs::copy(keys.join("rsa2048.pub"), path.join(name)).expect("copied");
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let base = path.display();
        let master = format!("pki_dir: {base}/pki\nsock_dir: {base}/sock\n");
        std::fs::write(path.join("master"), master).expect("written");
        let config = format!(
            "master_config = \"{base}/master\"\nstate_dir = \"{base}/state\"\nsocket = \"{base}/gw.sock\"\n\
             reply_listen = \"127.0.0.1:{port}\"\npoll_first_s = 600\npoll_max_s = 600\n"
        );
        std::fs::write(path.join("gw.toml"), config).expect("written");
        let daemon = Mutex::new(spawn(path));
        let site = Arc::new(Site {
            directory,
            port,
            loads: Arc::default(),
            profiles: Arc::new(Mutex::new(Profile::BUILT_IN.to_vec())),
            daemon,
        });
        site.publisher();
        site.wait_for_daemon();
        site
    }

    /// Listens where the master's publisher would, for as long as the test runs.
    fn publisher(self: &Arc<Self>) {
        let listener = UnixListener::bind(self.socket()).expect("bound");
        let (loads, port) = (self.loads.clone(), self.port);
        let profiles = self.profiles.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(load) = receive(stream.expect("a connection")) else {
                    continue;
                };
                let nonce = load["metadata"]["gw"]["nonce"].as_str().map(str::to_owned);
                let fun = load["fun"].as_str().map(str::to_owned);
                loads.lock().expect("unpoisoned").push(load);
                if fun.as_deref() == Some("oduflow_job.capability") {
                    let nonce = nonce.map(|nonce| Token::parse(&nonce).expect("a token"));
                    let capability = Capability {
                        profiles: profiles.lock().expect("unpoisoned").clone(),
                        ..capable()
                    };
                    say(port, nonce, Answer::Capability(capability));
                }
            }
        });
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("sock/publish_pull.ipc")
    }

    fn wait_for_daemon(&self) {
        until("the daemon answers", || self.gw(&["list"]).status.success());
    }

    fn kill_and_restart(&self) {
        let mut daemon = self.daemon.lock().expect("unpoisoned");
        daemon.kill().expect("killed");
        daemon.wait().expect("reaped");
        *daemon = spawn(self.directory.path());
        drop(daemon);
        self.wait_for_daemon();
    }

    fn gw(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gw"))
            .arg("--config")
            .arg(self.directory.path().join("gw.toml"))
            .args(args)
            .output()
            .expect("gw runs")
    }

    fn publish(&self) -> (Option<i32>, Value) {
        self.publish_profile("configure")
    }

    /// Gives the minion one more profile.
    fn learns(&self, profile: &str) {
        let profile = Profile::parse(profile).expect("a profile");
        self.profiles.lock().expect("unpoisoned").push(profile);
    }

    fn publish_profile(&self, profile: &str) -> (Option<i32>, Value) {
        let output = self.gw(&["publish", MINION, "--profile", profile, "--json"]);
        let text = if output.stdout.is_empty() {
            &output.stderr
        } else {
            &output.stdout
        };
        (
            output.status.code(),
            serde_json::from_slice(text).expect("one JSON object"),
        )
    }

    fn show(&self, record: &Value) -> Value {
        let id = record["request_id"].as_str().expect("an id");
        serde_json::from_slice(&self.gw(&["show", id, "--json"]).stdout).expect("one JSON object")
    }

    fn runs(&self) -> usize {
        let loads = self.loads.lock().expect("unpoisoned");
        loads
            .iter()
            .filter(|load| load["fun"] == "oduflow_job.run")
            .count()
    }

    fn say(&self, answer: Answer) -> Acknowledgement {
        say(self.port, None, answer)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let daemon = self.daemon.get_mut().expect("unpoisoned");
        daemon.kill().ok();
        daemon.wait().ok();
    }
}

fn spawn(site: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gw"))
        .arg("--config")
        .arg(site.join("gw.toml"))
        .arg("serve")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("gw starts")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what} within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The PULL side of one connection: handshake, then one load.
fn receive(mut stream: UnixStream) -> std::io::Result<Value> {
    stream.write_all(&greeting())?;
    stream.write_all(&ready("PULL"))?;
    let mut theirs = vec![0; 64 + ready("PUSH").len()];
    stream.read_exact(&mut theirs)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let limits = FrameLimits {
        message: 1 << 20,
        command: 1024,
    };
    match Frame::decode(&bytes, limits) {
        Ok((Frame::Message { body, .. }, _)) => {
            Ok(rmp_serde::from_slice(body).expect("a load is msgpack"))
        }
        other => Err(std::io::Error::other(format!("{other:?}"))),
    }
}

/// Signs an answer with the minion's key and sends it to the reply port.
fn say(port: u16, nonce: Option<Token>, answer: Answer) -> Acknowledgement {
    let key = include_bytes!("../../wire/fixtures/keys/rsa2048.pkcs1.pem");
    let reply = Reply {
        protocol: PROTOCOL,
        minion_id: MinionId::parse(MINION).expect("an id"),
        signed_at: "2026-12-01T00:00:00Z".parse().expect("a time"),
        nonce,
        store: None,
        answer,
    };
    let frames = reply
        .sign(&PrivateKey::from_pem(key).expect("a key"))
        .frames();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = runtime.expect("a runtime").block_on(exchange(
        ([127, 0, 0, 1], port).into(),
        frames,
        Duration::from_secs(20),
    ));
    Acknowledgement::from_frames(&answer.expect("an answer")).expect("an acknowledgement")
}

fn capable() -> Capability {
    Capability {
        salt_version: ShortText::try_from("3006.27".to_owned()).expect("short"),
        module_sha256: None,
        executor_sha256: None,
        euid: 0,
        profiles: Profile::BUILT_IN.to_vec(),
        survival: Survival::None,
        problems: Vec::new(),
    }
}

fn binding(record: &Value) -> Binding {
    let fields = ["minion_id", "request_id", "jid", "profile", "state_digest"];
    let fields = fields.map(|name| (name.to_owned(), record[name].clone()));
    serde_json::from_value(Value::Object(fields.into_iter().collect())).expect("a binding")
}

fn receipt(record: &Value, passed: u32, claim_id: &str) -> Answer {
    let outcome = if passed == 2 {
        Outcome::Succeeded
    } else {
        Outcome::Failed
    };
    Answer::Receipt {
        receipt: Receipt::new(binding(record), outcome, passed, 2).expect("a receipt"),
        claim_id: Token::parse(claim_id).expect("a token"),
        reason: None,
        survival: Survival::None,
    }
}

fn alarms(record: &Value) -> Vec<&str> {
    let rows = record["history"].as_array().expect("a history");
    rows.iter()
        .filter_map(|row| row["alarm"].as_str())
        .collect()
}

#[test]
fn one_send_a_daemon_killed_as_soon_as_the_load_is_out_never_sends_it_again() {
    let site = Site::start();
    let caller = site.clone();
    let publishing = std::thread::spawn(move || caller.publish());
    until("the load comes", || site.runs() == 1);
    site.kill_and_restart();
    let (code, _) = publishing.join().expect("gw ends");
    assert_ne!(code, Some(0));
    let listed = site.gw(&["list", "--json"]).stdout;
    let record: Value = serde_json::from_slice(&listed).expect("one record");
    assert!(
        ["sent", "send_uncertain"].contains(&record["state"].as_str().expect("text")),
        "{record}"
    );
    assert!(matches!(
        site.say(receipt(&record, 2, CLAIM)),
        Acknowledgement::Recorded(_)
    ));
    assert_eq!(site.show(&record)["state"], "succeeded");
    assert_eq!(site.runs(), 1);
}

#[test]
fn a_sites_profile_that_the_minion_does_not_name_is_not_sent() {
    let site = Site::start();
    let (code, refused) = site.publish_profile("backup");
    let error = &refused["error"];
    assert_eq!(
        (code, error["code"].as_str()),
        (Some(5), Some("profile_absent")),
        "{refused}"
    );
    assert!(
        error["hint"]
            .as_str()
            .expect("a hint")
            .contains("job-profiles.json")
    );
    assert_eq!(
        (site.runs(), site.gw(&["list", "--json"]).stdout.len()),
        (0, 0)
    );

    site.learns("backup");
    let (code, record) = site.publish_profile("backup");
    assert_eq!(
        (code, record["profile"].as_str()),
        (Some(4), Some("backup")),
        "{record}"
    );
    assert_eq!((record["state"].as_str(), site.runs()), (Some("sent"), 1));
    site.say(receipt(&record, 2, CLAIM));
    assert_eq!(site.show(&record)["state"], "succeeded");
}

#[test]
fn a_caller_that_hangs_up_leaves_nothing_for_a_restart_to_send() {
    let site = Site::start();
    for _ in 0..5 {
        let body = format!(r#"{{"minion_id":"{MINION}","profile":"configure"}}"#);
        let mut stream =
            UnixStream::connect(site.directory.path().join("gw.sock")).expect("connects");
        write!(
            stream,
            "POST /v1/requests HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("written");
        drop(stream);
        std::thread::sleep(Duration::from_millis(7));
    }
    std::thread::sleep(Duration::from_secs(1));
    let (before, listed) = (site.runs(), site.gw(&["list", "--json"]).stdout);
    let listed = String::from_utf8(listed).expect("text");
    assert!(!listed.contains(r#""state":"accepted""#), "{listed}");
    site.kill_and_restart();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(site.runs(), before);
    assert!(before <= 1, "one-open lets one through");
}

#[test]
fn evidence_that_a_job_ran_after_all_comes_unasked_and_blocks_the_target() {
    let site = Site::start();
    // A good capability is known, and then nobody listens: definitely not sent.
    let (_, first) = site.publish();
    assert!(matches!(
        site.say(receipt(&first, 2, CLAIM)),
        Acknowledgement::Recorded(_)
    ));
    std::fs::remove_file(site.socket()).expect("removed");
    let (code, record) = site.publish();
    assert_eq!(
        (code, record["state"].as_str()),
        (Some(5), Some("not_sent")),
        "{record}"
    );
    assert_eq!(record["blocks_target"], false);
    let running = Answer::Running {
        binding: binding(&record),
        done: Some(1),
        total: Some(2),
        survival: Survival::None,
    };
    assert!(matches!(site.say(running), Acknowledgement::Recorded(_)));
    let shown = site.show(&record);
    assert_eq!(
        (shown["state"].as_str(), alarms(&shown)),
        (Some("not_sent"), vec!["ran_after_all"])
    );
    let (code, refused) = site.publish();
    assert_eq!(
        (code, refused["error"]["code"].as_str()),
        (Some(5), Some("target_blocked"))
    );
}

#[test]
fn contradicting_receipts_change_nothing_and_cost_one_row_however_often_they_come() {
    let site = Site::start();
    let (_, record) = site.publish();
    for answer in [
        receipt(&record, 2, CLAIM),
        receipt(&record, 2, CLAIM),
        receipt(&record, 1, CLAIM),
        receipt(&record, 1, CLAIM),
        receipt(&record, 2, "fedcba9876543210fedcba9876543210"),
    ] {
        assert!(matches!(site.say(answer), Acknowledgement::Recorded(_)));
    }
    let shown = site.show(&record);
    assert_eq!(
        (shown["state"].as_str(), shown["passed"].as_u64()),
        (Some("succeeded"), Some(2))
    );
    assert_eq!(alarms(&shown), ["receipt_differs", "two_claims"]);
    let conflict = Answer::Conflict {
        binding: binding(&record),
        receipt: None,
    };
    assert!(matches!(site.say(conflict), Acknowledgement::Recorded(_)));
    assert_eq!(alarms(&site.show(&record)).last(), Some(&"conflict"));
}

#[test]
fn what_belongs_to_no_claim_is_rejected() {
    let site = Site::start();
    let (_, record) = site.publish();
    let mut other = record.clone();
    other["jid"] = gw_wire::id::Jid::at(now()).to_string().into();
    assert!(matches!(
        site.say(receipt(&other, 2, CLAIM)),
        Acknowledgement::Rejected(_)
    ));
    let mut other = record.clone();
    other["profile"] = "production".into();
    assert!(matches!(
        site.say(receipt(&other, 2, CLAIM)),
        Acknowledgement::Rejected(_)
    ));
    let unasked = Answer::NotStarted {
        binding: binding(&record),
    };
    assert!(matches!(site.say(unasked), Acknowledgement::Rejected(_)));
    assert!(matches!(
        site.say(Answer::Capability(capable())),
        Acknowledgement::Rejected(_)
    ));
    assert_eq!(site.show(&record)["state"], "sent");
}
