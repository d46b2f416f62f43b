//! `gw` as its users meet it: what bad input gets, which exit code says what, and what is left behind.
//!
//! The daemon here stands beside a Salt configuration without a running master, since nothing in this file
//! may reach one: every request ends before a claim. Jobs on a real Salt are in the `tests` crate.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MINION: &str = "client-123e4567-e89b-42d3-a456-426614174000";
const REQUEST: &str = "0b0e4567-e89b-42d3-a456-426614174000";

struct Daemon {
    directory: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    fn start() -> Self {
        let directory = site();
        let child = serve(directory.path()).spawn().expect("gw starts");
        let daemon = Daemon { directory, child };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !daemon.directory.path().join("gw.sock").exists() {
            assert!(Instant::now() < deadline, "the daemon makes its socket");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn gw(&self, args: &[&str]) -> Output {
        gw(self.directory.path(), args)
    }

    fn records(&self) -> String {
        let output = self.gw(&["list", "--json"]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A directory with a gw.toml and Salt's configuration, and no master behind it.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    std::fs::create_dir_all(path.join("pki/minions")).expect("made");
    std::fs::copy(key("rsa2048.pub"), path.join("pki/master.pub")).expect("copied");
    std::fs::write(
        path.join("master"),
        format!(
            "pki_dir: {0}/pki\nsock_dir: {0}/sock\ncachedir: {0}/cache\n",
            path.display()
        ),
    )
    .expect("written");
    std::fs::write(
        path.join("gw.toml"),
        format!(
            "master_config = \"{0}/master\"\nstate_dir = \"{0}/state\"\nsocket = \"{0}/gw.sock\"\n\
             reply_listen = \"127.0.0.1:0\"\ncapability_timeout_s = 1\n",
            path.display()
        ),
    )
    .expect("written");
    directory
}

fn key(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../wire/fixtures/keys")
        .join(name)
}

fn serve(site: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gw"));
    command
        .arg("--config")
        .arg(site.join("gw.toml"))
        .arg("serve");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn gw(site: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gw"))
        .arg("--config")
        .arg(site.join("gw.toml"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("gw runs")
}

/// The error code and the exit code of a command that must fail.
fn failure(output: &Output) -> (String, i32) {
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    let error: serde_json::Value =
        serde_json::from_str(text.trim()).unwrap_or_else(|_| panic!("one JSON error: {output:?}"));
    (
        error["error"]["code"].as_str().expect("a code").to_owned(),
        output.status.code().expect("an exit code"),
    )
}

#[test]
fn bad_input_gets_one_error_with_a_stable_code_and_leaves_nothing_behind() {
    let daemon = Daemon::start();
    let site = daemon.directory.path();
    let file = |name: &str, text: &str| {
        let path = site.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let long = format!("client-{}", "x".repeat(300));
    let twice = file(
        "twice.json",
        r#"{"a":{"test":["nop"]},"a":{"test":["nop"]}}"#,
    );
    let nan = file("nan.json", r#"{"a":{"test":["nop",{"x":NaN}]}}"#);
    let parallel = file(
        "parallel.json",
        r#"{"a":{"cmd":["run",{"parallel":true}]}}"#,
    );
    let large = file(
        "large.json",
        &format!(r#"{{"a":{{"x":["{}"]}}}}"#, "y".repeat(200_000)),
    );
    for (args, code) in [
        (vec!["a/b", "--profile", "configure"], "bad_minion_id"),
        (vec!["..", "--profile", "configure"], "bad_minion_id"),
        (vec![&long, "--profile", "configure"], "bad_minion_id"),
        (vec!["web1", "--profile", "configure"], "bad_minion_id"),
        (vec![MINION, "--profile", "Reboot"], "unknown_profile"),
        (vec![MINION, "--profile", ""], "unknown_profile"),
        (
            vec![
                MINION,
                "--profile",
                "configure",
                "--request-id",
                "0B0E4567-E89B-42D3-A456-426614174000",
            ],
            "bad_request_id",
        ),
        (
            vec![
                MINION,
                "--profile",
                "configure",
                "--request-id",
                "0b0e4567e89b42d3a456426614174000",
            ],
            "bad_request_id",
        ),
        (vec![MINION, "--profile", "custom"], "bad_state_data"),
        (
            vec![MINION, "--profile", "backup", "--state-data", &twice],
            "bad_state_data",
        ),
        (
            vec![MINION, "--profile", "configure", "--state-data", &twice],
            "bad_state_data",
        ),
        (
            vec![MINION, "--profile", "custom", "--state-data", &twice],
            "bad_state_data",
        ),
        (
            vec![MINION, "--profile", "custom", "--state-data", &nan],
            "bad_state_data",
        ),
        (
            vec![MINION, "--profile", "custom", "--state-data", &parallel],
            "bad_state_data",
        ),
        (
            vec![MINION, "--profile", "custom", "--state-data", &large],
            "usage",
        ),
        (
            vec![
                MINION,
                "--profile",
                "custom",
                "--state-data",
                "/nonexistent",
            ],
            "usage",
        ),
    ] {
        let output = daemon.gw(&[vec!["publish", "--json"], args.clone()].concat());
        assert_eq!(failure(&output), (code.to_owned(), 2), "{args:?}");
    }
    assert_eq!(
        failure(&daemon.gw(&["list", "--state", "done", "--json"])),
        ("bad_state".to_owned(), 2)
    );
    assert_eq!(
        failure(&daemon.gw(&["show", "../x", "--json"])),
        ("usage".to_owned(), 2)
    );
    assert_eq!(
        failure(&daemon.gw(&["show", REQUEST, "--json"])),
        ("request_unknown".to_owned(), 2)
    );
    assert_eq!(daemon.records(), "");
}

#[test]
fn a_nul_or_a_body_that_is_no_request_is_refused_by_the_api_itself() {
    use std::io::{Read, Write};
    let daemon = Daemon::start();
    for (body, status) in [
        (r#"{"minion_id":"a\u0000b","profile":"configure"}"#, "400"),
        (
            r#"{"minion_id":"x","profile":"configure","extra":1}"#,
            "422",
        ),
        ("{", "400"),
        ("", "400"),
    ] {
        let path = daemon.directory.path().join("gw.sock");
        let mut stream = std::os::unix::net::UnixStream::connect(path).expect("connects");
        write!(
            stream,
            "POST /v1/requests HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        assert_eq!(answer.split(' ').nth(1), Some(status), "{body}: {answer}");
        assert!(answer.contains(r#"{"error":{"code":"#), "{answer}");
    }
    assert_eq!(daemon.records(), "");
}

#[test]
fn a_precondition_that_fails_exits_with_5_and_records_nothing() {
    let daemon = Daemon::start();
    let publish = [
        "publish",
        "--json",
        MINION,
        "--profile",
        "configure",
        "--request-id",
        REQUEST,
    ];
    assert_eq!(
        failure(&daemon.gw(&publish)),
        ("minion_not_accepted".to_owned(), 5)
    );
    let minion_key = daemon.directory.path().join("pki/minions").join(MINION);
    for (name, code) in [
        ("rsa1024.pub", "minion_key_unusable"),
        ("ec.pub", "minion_key_unusable"),
        ("rsa2048.pkcs1.pem", "minion_key_unusable"),
        // The key is good, and no publisher is there to publish the capability call.
        ("rsa2048.pub", "master_unreachable"),
    ] {
        std::fs::copy(key(name), &minion_key).expect("copied");
        assert_eq!(
            failure(&daemon.gw(&publish)),
            (code.to_owned(), 5),
            "{name}"
        );
    }
    std::fs::write(&minion_key, "garbage").expect("written");
    assert_eq!(
        failure(&daemon.gw(&publish)),
        ("minion_key_unusable".to_owned(), 5)
    );
    assert_eq!(daemon.records(), "");
}

#[test]
fn no_daemon_exits_with_7_and_a_foreign_socket_is_not_spoken_to() {
    let site = site();
    let publish = ["publish", "--json", MINION, "--profile", "configure"];
    assert_eq!(
        failure(&gw(site.path(), &publish)),
        ("daemon_not_running".to_owned(), 7)
    );
    // A socket that nobody listens on any more.
    let socket = site.path().join("gw.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    assert_eq!(
        failure(&gw(site.path(), &publish)),
        ("daemon_not_running".to_owned(), 7)
    );
    // Something that is no socket.
    std::fs::remove_file(&socket).expect("removed");
    std::fs::write(&socket, "").expect("written");
    assert_eq!(
        failure(&gw(site.path(), &publish)),
        ("socket_foreign".to_owned(), 2)
    );
    // Somebody else's socket; only root can give one away.
    std::fs::remove_file(&socket).expect("removed");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    if std::os::unix::fs::chown(&socket, Some(65534), None).is_ok() {
        assert_eq!(
            failure(&gw(site.path(), &publish)),
            ("socket_foreign".to_owned(), 2)
        );
        let output = serve(site.path())
            .stderr(Stdio::piped())
            .output()
            .expect("gw runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("65534"),
            "{output:?}"
        );
    } else {
        assert!(std::env::var_os("CI").is_none(), "CI must run this as root");
        println!("skipped: giving a socket to another user needs root");
    }
}

#[test]
fn a_broken_configuration_is_named_and_exits_without_a_trace() {
    for (name, text, words) in [
        ("gw.toml", "publsh = \"ipc\"\n", "publsh"),
        ("master", "pki_dir: [\n", "master is not valid"),
        ("master.d/x.conf", "- a\n", "x.conf"),
    ] {
        let site = site();
        let path = site.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, text).expect("written");
        let output = serve(site.path())
            .stderr(Stdio::piped())
            .output()
            .expect("gw runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(!site.path().join("state").exists() && !site.path().join("gw.sock").exists());
    }
}

#[test]
fn the_socket_is_private_and_a_second_daemon_is_kept_out() {
    let daemon = Daemon::start();
    let mode = |name: &str| {
        let meta = std::fs::metadata(daemon.directory.path().join(name)).expect("there");
        meta.permissions().mode() & 0o777
    };
    assert_eq!((mode("gw.sock"), mode("state")), (0o600, 0o700));
    let output = serve(daemon.directory.path())
        .stderr(Stdio::piped())
        .output()
        .expect("gw runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("another daemon"),
        "{output:?}"
    );
}

#[test]
fn help_has_examples_and_the_exit_codes() {
    let site = site();
    for command in ["serve", "publish", "poll", "show", "list", "completion"] {
        let output = gw(site.path(), &[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("Examples:"),
            "{command}"
        );
    }
    let help = gw(site.path(), &["--help"]);
    for code in 0..=7 {
        assert!(
            String::from_utf8_lossy(&help.stdout).contains(&format!("\n  {code}  ")),
            "{code}"
        );
    }
    assert_eq!(gw(site.path(), &["publish"]).status.code(), Some(2));
}
