//! One minion: a receipt store, a side-effect counter, the module in a process of its own, and a gateway that
//! hears and acknowledges every reply.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use gw_wire::id::{Jid, MinionId, Profile, RequestId, StateDigest, Token, now};
use gw_wire::key::PublicKey;
use gw_wire::receipt::Binding;
use gw_wire::reply::{Acknowledgement, Answer, Reply, UnverifiedReply};
use gw_wire::zmtp::router::{Limits, Server};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::power::Disk;
use super::syscall::What;
use super::tracer::{Fault, Trace, trace};

const HARNESS: &str = include_str!("harness.py");
const MINION: &str = "client-123e4567-e89b-42d3-a456-426614174000";
const PRIVATE_KEY: &[u8] = include_bytes!("../../../wire/fixtures/keys/rsa2048.pkcs1.pem");
const PUBLIC_KEY: &[u8] = include_bytes!("../../../wire/fixtures/keys/rsa2048.pub");
/// What a raw result holds, and nothing else may.
pub const MARKER: &str = "MARKER-RAW";

/// One publication of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The request.
    pub request_id: RequestId,
    /// The jid.
    pub jid: Jid,
}

impl Job {
    /// What evidence about it must be bound to.
    pub fn binding(&self) -> Binding {
        Binding {
            minion_id: MinionId::parse(MINION).expect("a legal id"),
            request_id: self.request_id,
            jid: self.jid,
            profile: Profile::Configure,
            state_digest: StateDigest::default(),
        }
    }
}

/// A call of the module.
#[derive(Debug, Clone)]
pub struct Ask {
    /// `run`, `status` or `revoke`.
    pub function: &'static str,
    /// About which job.
    pub job: Job,
    /// What the state does: `succeeded`, `failed` or `raises`.
    pub outcome: &'static str,
    /// More of `metadata.gw`.
    pub gw: Value,
    /// More of `oduflow_job` in the minion's configuration.
    pub config: Value,
}

impl Ask {
    /// A call with nothing special about it.
    pub fn new(function: &'static str, job: Job) -> Self {
        Ask {
            function,
            job,
            outcome: "succeeded",
            gw: json!({}),
            config: json!({}),
        }
    }
}

/// What all worlds share: the imported module, and the gateway.
pub struct Laboratory {
    python: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    executor: PathBuf,
    gateway: SocketAddr,
    replies: Arc<Mutex<Vec<Reply>>>,
    runtime: tokio::runtime::Runtime,
    last_jid: Option<Jid>,
    /// Calls traced so far.
    pub calls: usize,
}

impl Laboratory {
    /// Starts both.
    pub fn open(python: &Path, executor: PathBuf) -> Result<Self> {
        let module = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../minion-exec/salt/_modules/oduflow_job.py"
        );
        let mut python = Command::new(python)
            .args(["-B", "-c", HARNESS, module])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the harness")?;
        let input = python.stdin.take().context("the harness has an input")?;
        let output = python.stdout.take().context("the harness has an output")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
        let gateway = serve(&runtime, &replies)?;
        Ok(Laboratory {
            python,
            input,
            output: BufReader::new(output),
            executor,
            gateway,
            replies,
            runtime,
            last_jid: None,
            calls: 0,
        })
    }

    /// The executor under test.
    pub fn executor(&self) -> &Path {
        &self.executor
    }

    /// A job of a new request, under a jid above all others.
    pub fn job(&mut self) -> Job {
        let jid = Jid::next(self.last_jid, now());
        self.last_jid = Some(jid);
        Job {
            request_id: RequestId::random(),
            jid,
        }
    }

    /// Has the module called, and follows it to its end and to that of every process it starts.
    pub fn call(&mut self, world: &World, ask: &Ask, faults: &[Fault]) -> Result<Called> {
        self.calls += 1;
        let nonce = (ask.function != "run").then(Token::random);
        let call = self.line(world, ask, nonce);
        let go = world.path("go");
        if !go.exists() {
            nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU)
                .context("cannot make a fifo")?;
        }
        // For both ways, so that neither side waits for the other to open it.
        let mut go = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&go)
            .context("cannot open a fifo")?;
        let _absent = fs::remove_file(world.path("returned"));
        writeln!(self.input, "{call}").context("the harness is gone")?;
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context("the harness is gone")?;
        let worker = Pid::from_raw(line.trim().parse().context("the harness said no pid")?);
        let heard_before = self.heard().len();
        let trace = trace(worker, faults, || {
            go.write_all(b"!").context("cannot let the worker go")
        })?;
        let returned = fs::read(world.path("returned")).ok();
        Ok(Called {
            trace,
            returned: returned.and_then(|json| serde_json::from_slice(&json).ok()),
            replies: self.heard().split_off(heard_before),
        })
    }

    fn line(&self, world: &World, ask: &Ask, nonce: Option<Token>) -> Value {
        let Job { request_id, jid } = ask.job;
        let mut gw = json!({
            "protocol": 1,
            "generation": 1,
            "not_after": (ask.function == "run").then(|| now().as_second() + 300),
            "reply_port": self.gateway.port(),
            "nonce": nonce,
        });
        extend(&mut gw, &ask.gw);
        let mut config = json!({"executor": self.executor, "store": world.store()});
        extend(&mut config, &ask.config);
        let args = match ask.function {
            "run" => json!([request_id, "configure", ""]),
            _ => json!([request_id, "configure", "", jid]),
        };
        json!({
            "function": ask.function,
            "args": args,
            "kwargs": {"__pub_jid": jid, "__pub_metadata": {"gw": gw}, "__pub_tgt": [MINION]},
            "opts": {
                "id": MINION,
                "pki_dir": world.root(),
                "master_ip": "127.0.0.1",
                "cachedir": world.path("cache"),
                "oduflow_job": config,
            },
            "outcome": ask.outcome,
            "request_id": request_id,
            "counter": world.path("counter"),
            "go": world.path("go"),
            "returned": world.path("returned"),
            "stderr": world.path("stderr"),
        })
    }

    fn heard(&self) -> Vec<Reply> {
        self.replies
            .lock()
            .map(|heard| heard.clone())
            .unwrap_or_default()
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        let _gone = self.python.kill();
        let _gone = self.python.wait();
        // Its own threads end with it.
        let _entered = self.runtime.enter();
    }
}

fn extend(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}

/// A reply port that keeps and acknowledges every reply.
fn serve(
    runtime: &tokio::runtime::Runtime,
    replies: &Arc<Mutex<Vec<Reply>>>,
) -> Result<SocketAddr> {
    let key = PublicKey::from_pem(PUBLIC_KEY).context("a fixture is no key")?;
    let heard = Arc::clone(replies);
    runtime.block_on(async move {
        let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), Limits::default())
            .context("cannot listen")?;
        let address = server.local_addr().context("cannot listen")?;
        tokio::spawn(server.serve(
            move |_, frames| {
                let verified = UnverifiedReply::from_frames(&frames)
                    .ok()
                    .and_then(|reply| reply.verify(&key).ok());
                let acknowledgement = verified.map(|(reply, signed)| {
                    if let Ok(mut heard) = heard.lock() {
                        heard.push(reply);
                    }
                    Acknowledgement::Recorded(signed.sha256()).frames()
                });
                async move { acknowledgement }
            },
            std::future::pending(),
        ));
        Ok(address)
    })
}

/// What became of a call.
#[derive(Debug)]
pub struct Called {
    /// What was done.
    pub trace: Trace,
    /// What the module gave to Salt; none if its worker did not live.
    pub returned: Option<Value>,
    /// What the gateway heard.
    pub replies: Vec<Reply>,
}

impl Called {
    /// What was said about a job, in order. Progress, which is told unasked and from a thread of its own, may
    /// come in after what was said later; it comes first here.
    pub fn answers(&self, job: &Job) -> Vec<Answer> {
        let progress = |reply: &Reply| reply.nonce.is_none() && reply.answer.kind() == "running";
        let (first, then): (Vec<_>, Vec<_>) = self.replies.iter().partition(|r| progress(r));
        first
            .into_iter()
            .chain(then)
            .map(|reply| reply.answer.clone())
            .filter(|answer| {
                answer
                    .binding()
                    .is_some_and(|binding| binding.jid == job.jid)
            })
            .collect()
    }
}

/// The files of one minion.
pub struct World {
    directory: tempfile::TempDir,
}

impl World {
    /// A minion that never had a job.
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("gwcrash-")
            .tempdir()
            .context("cannot make a directory")?;
        fs::write(directory.path().join("minion.pem"), PRIVATE_KEY).context("cannot write")?;
        fs::write(directory.path().join("counter"), "").context("cannot write")?;
        fs::create_dir(directory.path().join("var")).context("cannot make a directory")?;
        Ok(World { directory })
    }

    /// A directory that a power cut's remains are to be put into.
    pub fn empty() -> Result<Self> {
        let world = World::new()?;
        for file in ["minion.pem", "counter"] {
            fs::remove_file(world.path(file)).context("cannot remove")?;
        }
        fs::remove_dir(world.path("var")).context("cannot remove")?;
        Ok(world)
    }

    /// Its files as they are, all of them safe.
    pub fn disk(&self) -> Result<Disk> {
        Disk::read(self.root(), &["minion.pem", "counter", "var"])
    }

    /// Whether an operation is about one of the files that matter.
    pub fn holds(&self, what: &What) -> bool {
        let path = match what {
            What::Create(path)
            | What::Write(path, _)
            | What::Sync(path)
            | What::Rename(path, _)
            | What::Unlink(path)
            | What::Mkdir(path) => path,
            What::Lock(_) | What::Send(_) | What::Process => return false,
        };
        path.starts_with(self.path("var")) || *path == self.path("counter")
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A file of it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Its receipt store.
    pub fn store(&self) -> PathBuf {
        self.path("var/oduflow/job-receipts")
    }

    /// How often a request had its side effect.
    pub fn effects(&self, job: &Job) -> Result<usize> {
        let lines = fs::read_to_string(self.path("counter")).context("cannot read the counter")?;
        Ok(lines
            .lines()
            .filter(|line| *line == job.request_id.as_str())
            .count())
    }

    /// What executors and workers said on standard error.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }
}
