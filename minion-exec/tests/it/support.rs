//! The module's side of the socket, and a gateway's reply port, for the real `gw-exec`.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gw_exec::store::Store;
use gw_exec::store::dir::Dir;
use gw_exec::store::lock::{INDEX, Lock};
use gw_exec::store::machine::Machine;
use gw_wire::id::{Jid, RequestId, Token};
use gw_wire::key::PublicKey;
use gw_wire::reply::{Acknowledgement, Answer, Reply, UnverifiedReply};
use gw_wire::zmtp::router::{Limits, Server};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};

pub const MINION: &str = "client-123e4567-e89b-42d3-a456-426614174000";
/// The module as it is served.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/salt/_modules/oduflow_job.py");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/fixtures/keys");
const PATIENCE: Duration = Duration::from_secs(20);

/// One minion: a store, a key, and the gateway that hears its replies.
pub struct Minion {
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    replies: Arc<Mutex<Vec<Reply>>>,
    gateway: SocketAddr,
    executors: Mutex<Vec<Executor>>,
}

type Executor = Arc<Mutex<Child>>;

/// Executors that nobody will acknowledge any more would go on trying for minutes.
impl Drop for Minion {
    fn drop(&mut self) {
        for executor in self.executors.lock().expect("no panic").drain(..) {
            let mut executor = executor.lock().expect("no panic");
            executor.kill().expect("killed, or gone before");
            executor.wait().expect("gone");
        }
    }
}

impl Minion {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let pem = directory.path().join("minion.pem");
        std::fs::copy(format!("{KEYS}/rsa2048.pkcs1.pem"), pem).expect("copied");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
        let gateway = serve(&runtime, 0, &replies);
        Minion {
            directory,
            runtime,
            replies,
            gateway,
            executors: Mutex::default(),
        }
    }

    /// Starts `gw-exec` on these facts.
    pub fn start(&self, function: &str, facts: &Value) -> Call {
        self.start_with(function, &facts.to_string())
    }

    /// Starts `gw-exec` on this first line.
    pub fn start_with(&self, function: &str, line: &str) -> Call {
        self.look_after(Call::start_with(function, line))
    }

    /// The same, with descriptors beside the line.
    pub fn start_passing(&self, function: &str, line: &str, fds: &[OwnedFd]) -> Call {
        self.look_after(Call::start_passing(Stdio::inherit(), function, line, fds))
    }

    /// Waits until the job's receipt has its name.
    pub fn await_receipt(&self, job: &Job) {
        let until = Instant::now() + PATIENCE;
        while !self.receipt_file(job).exists() {
            assert!(Instant::now() < until, "no receipt of {job:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has the executor of a call end with this minion.
    pub fn look_after(&self, call: Call) -> Call {
        let executor = Arc::clone(&call.executor);
        self.executors.lock().expect("no panic").push(executor);
        call
    }

    /// Has the gateway listen on one more port.
    pub fn listen_on(&self, port: u16) {
        serve(&self.runtime, port, &self.replies);
    }

    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// The file of the site's profiles; none is there at first.
    pub fn profiles(&self) -> PathBuf {
        self.directory.path().join("job-profiles.json")
    }

    pub fn key(&self) -> PathBuf {
        self.directory.path().join("minion.pem")
    }

    /// The facts of a call on this minion; `args` by name.
    pub fn facts(&self, jid: Jid, args: Value) -> Value {
        json!({
            "args": args,
            "unexpected": 0,
            "jid": jid.as_str(),
            "metadata": {"gw": {
                "protocol": 1,
                "generation": 1,
                "not_after": gw_wire::id::now().as_second() + 300,
                "reply_port": self.gateway.port(),
                "nonce": null,
            }},
            "published": true,
            "minion_id": MINION,
            "salt_version": "3006.27",
            "own_process": true,
            "sudo_user": false,
            "executors": ["direct_call"],
            "state_data": "",
            "pki_dir": self.directory.path(),
            "master_ip": "127.0.0.1",
            "module": MODULE,
            "store": self.store(),
            "minion_id_pattern": null,
            "profiles": self.profiles(),
            "require_survival": false,
            "retain_days": null,
            "retain_count": null,
        })
    }

    pub fn run_facts(&self, job: &Job) -> Value {
        self.facts(
            job.jid,
            json!({"request_id": job.request_id, "profile": "configure", "state_data_json": ""}),
        )
    }

    /// The facts of a run of any profile without state data.
    pub fn run_facts_of(&self, job: &Job, profile: &str) -> Value {
        let mut facts = self.run_facts(job);
        facts["args"]["profile"] = profile.into();
        facts
    }

    /// Starts a run.
    pub fn run(&self, job: &Job) -> Call {
        self.start("run", &self.run_facts(job))
    }

    /// Asks for the status, and gives the answer that came over the reply port.
    pub fn status(&self, job: &Job) -> Answer {
        self.ask("status", job, json!({})).answer
    }

    /// Asks a question about a job with more of `metadata.gw`, and gives the reply.
    pub fn ask(&self, function: &str, job: &Job, gw: Value) -> Reply {
        let args = json!({"request_id": job.request_id, "profile": "configure", "state_digest": "", "jid": job.jid});
        let mut facts = self.facts(fresh_jid(), args);
        let nonce = Token::random();
        facts["metadata"]["gw"]["nonce"] = nonce.as_str().into();
        facts["metadata"]["gw"]["not_after"] = Value::Null;
        for (key, value) in gw.as_object().expect("an object") {
            facts["metadata"]["gw"][key] = value.clone();
        }
        let mut call = self.start(function, &facts);
        assert_eq!(call.returned(), json!({"__no_return__": true}));
        drop(call);
        self.reply(|reply| reply.nonce == Some(nonce))
    }

    /// Waits for the first reply that is wanted.
    pub fn reply(&self, wanted: impl Fn(&Reply) -> bool) -> Reply {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = self.all_replies().into_iter().find(|reply| wanted(reply)) {
                return reply;
            }
            assert!(
                Instant::now() < until,
                "heard only {:?}",
                self.all_replies()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the answer about a job that is not `running`.
    pub fn end_of(&self, job: &Job) -> Answer {
        self.reply(|reply| {
            reply.answer.kind() != "running"
                && reply.answer.binding().is_some_and(|b| b.jid == job.jid)
        })
        .answer
    }

    pub fn all_replies(&self) -> Vec<Reply> {
        self.replies.lock().expect("no panic").clone()
    }

    pub fn forget_replies(&self) {
        self.replies.lock().expect("no panic").clear();
    }

    /// Holds back every claim and refusal until it is dropped.
    pub fn hold_index(&self) -> Lock {
        self.open_store();
        let locks = Dir::open_root(&self.store().join("locks")).expect("a directory");
        Lock::take(&locks, INDEX, PATIENCE).expect("free")
    }

    /// The store as an executor on this machine opens it.
    pub fn open_store(&self) -> Store {
        Store::open(&self.store(), Machine::this().expect("readable")).expect("a store")
    }

    pub fn jid_files(&self) -> usize {
        std::fs::read_dir(self.store().join("jids")).map_or(0, Iterator::count)
    }

    pub fn receipt_file(&self, job: &Job) -> PathBuf {
        self.store()
            .join(format!("receipts/{}.json", job.request_id))
    }
}

/// A reply port that keeps and acknowledges every reply.
fn serve(
    runtime: &tokio::runtime::Runtime,
    port: u16,
    replies: &Arc<Mutex<Vec<Reply>>>,
) -> SocketAddr {
    let heard = Arc::clone(replies);
    runtime.block_on(async move {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Server::bind(addr, Limits::default()).expect("bound");
        let addr = server.local_addr().expect("an address");
        tokio::spawn(server.serve(
            move |_, frames| {
                let acknowledgement = hear(&heard, &frames);
                async move { Some(acknowledgement.frames()) }
            },
            std::future::pending(),
        ));
        addr
    })
}

fn hear(replies: &Mutex<Vec<Reply>>, frames: &[bytes::Bytes]) -> Acknowledgement {
    let pem = std::fs::read(format!("{KEYS}/rsa2048.pub")).expect("a key");
    let key = PublicKey::from_pem(&pem).expect("a key");
    let (reply, signed) = UnverifiedReply::from_frames(frames)
        .expect("a reply")
        .verify(&key)
        .expect("signed by the minion");
    replies.lock().expect("no panic").push(reply);
    Acknowledgement::Recorded(signed.sha256())
}

/// One publication of one request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub request_id: RequestId,
    pub jid: Jid,
}

impl Job {
    pub fn fresh() -> Self {
        Job {
            request_id: RequestId::random(),
            jid: fresh_jid(),
        }
    }

    /// The same request under a later jid.
    pub fn again(self) -> Self {
        Job {
            jid: fresh_jid(),
            ..self
        }
    }
}

/// A jid above every other of this process.
pub fn fresh_jid() -> Jid {
    static LAST: Mutex<Option<Jid>> = Mutex::new(None);
    let mut last = LAST.lock().expect("no panic");
    let next = Jid::next(*last, gw_wire::id::now());
    *last.insert(next)
}

/// A started `gw-exec` and our end of its socket. Dropping it closes the socket and the locks.
pub struct Call {
    pub executor: Executor,
    socket: UnixStream,
    buffer: Vec<u8>,
    pub locks: Vec<OwnedFd>,
}

impl Call {
    pub fn start_with(function: &str, line: &str) -> Self {
        Self::start_telling(Stdio::inherit(), function, line)
    }

    pub fn start_telling(stderr: Stdio, function: &str, line: &str) -> Self {
        Self::start_passing(stderr, function, line, &[])
    }

    fn start_passing(stderr: Stdio, function: &str, line: &str, fds: &[OwnedFd]) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let child = Command::new(env!("CARGO_BIN_EXE_gw-exec"))
            .arg(function)
            // On a machine with systemd, root's tests would move themselves into scopes.
            .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("started");
        let mut call = Call {
            executor: Arc::new(Mutex::new(child)),
            socket: ours,
            buffer: Vec::new(),
            locks: Vec::new(),
        };
        call.pass(line, fds);
        call
    }

    pub fn say(&mut self, word: &Value) {
        self.say_raw(&word.to_string());
    }

    pub fn say_raw(&mut self, line: &str) {
        self.socket
            .write_all(format!("{line}\n").as_bytes())
            .expect("written");
    }

    /// Says a line, whose first byte carries the descriptors.
    fn pass(&mut self, line: &str, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let line = [line.as_bytes(), b"\n"].concat();
        let first = [IoSlice::new(&line[..1])];
        sendmsg(&self.socket, &first, &mut control, SendFlags::empty()).expect("sent");
        self.socket.write_all(&line[1..]).expect("written");
    }

    /// The next order.
    pub fn order(&mut self) -> Value {
        while !self.buffer.contains(&b'\n') {
            let mut chunk = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let read = recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut chunk)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
            .expect("received")
            .bytes;
            assert!(read > 0, "gw-exec ended without an order");
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.locks.extend(fds);
                }
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
        let end = self
            .buffer
            .iter()
            .position(|b| *b == b'\n')
            .expect("a line");
        let rest = self.buffer.split_off(end + 1);
        let line = std::mem::replace(&mut self.buffer, rest);
        serde_json::from_slice(&line).expect("json")
    }

    /// Expects to be told to call a function.
    pub fn called(&mut self) -> Value {
        let order = self.order();
        assert_eq!(order["do"], "call", "{order}");
        assert_eq!(self.locks.len(), 2);
        order
    }

    /// Expects to be told what to return.
    pub fn returned(&mut self) -> Value {
        let order = self.order();
        assert_eq!(order["do"], "return", "{order}");
        order["value"].clone()
    }

    /// Plays the whole of a job with `passed` and `failed` states.
    pub fn finish(&mut self, passed: u32, failed: u32) -> Value {
        self.say(&mapping(passed, failed));
        self.returned()
    }
}

pub fn mapping(passed: u32, failed: u32) -> Value {
    json!({"result": {"shape": "mapping", "true": passed, "false": failed, "other": 0, "missing": 0}})
}

/// Asserts that nothing below a directory holds a byte string.
pub fn holds(directory: &Path, needle: &str) -> bool {
    std::fs::read_dir(directory)
        .expect("a directory")
        .any(|entry| {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                return holds(&path, needle);
            }
            String::from_utf8_lossy(&std::fs::read(path).expect("readable")).contains(needle)
        })
}
