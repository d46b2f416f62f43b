//! The daemon: one journal, one reply port, one local API, one poller, beside one salt-master.
//!
//! The way of one job: [`api`](self) takes the request, [`dispatch`] claims and sends it, [`intake`] takes
//! the executor's evidence, [`poll`] asks when none comes. All of them write through the journal only.

mod dispatch;
mod error;
mod intake;
mod poll;
mod progress;
mod server;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use gw_poller::questions::Questions;
use gw_poller::schedule::Schedule;
use gw_wire::id::{Jid, MinionId, Sha256Hex, now};
use gw_wire::reply::{Capability, MAX_REPLY_BYTES, MAX_SIGNATURE_BYTES, SignedReply};
use gw_wire::zmtp::router::{Limits, Server};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::journal::{Applied, Dispatch, Journal, JournalError};
use crate::master::Master;
use crate::master_config::MasterConfig;
use crate::record::{Event, Step};
use crate::words;
use error::ApiError;
use progress::ProgressBoard;

/// What every part of the daemon shares.
struct Gateway {
    config: Config,
    master: Master,
    reply_port: u16,
    journal: Journal,
    questions: Questions,
    progress: ProgressBoard,
    capabilities: Mutex<HashMap<MinionId, Known>>,
    last_jid: Mutex<Option<Jid>>,
    rejections: intake::Rejections,
    /// Dispatches in hand: a stop waits for them, since a claim whose send is cut is uncertain for good.
    tasks: TaskTracker,
}

/// A capability that was answered, and the key that signed it.
struct Known {
    at: Instant,
    key: Sha256Hex,
    capability: Capability,
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn serve(config: Config, master: MasterConfig) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let master = Master::new(master, config.publish);
    runtime.block_on(run(config, master))
}

async fn run(config: Config, master: Master) -> anyhow::Result<()> {
    if let Some(warning) = master.warning() {
        tracing::warn!(event = "config_warning", reason = warning);
    }
    // The journal's lock comes first: without it nothing else may be touched.
    let journal = Journal::open(&config.state_dir)?;
    let replies = Server::bind(config.reply_listen, limits(raise_descriptor_limit()?))
        .with_context(|| format!("cannot listen for replies on {}", config.reply_listen))?;
    let socket = server::bind(&config.socket)?;
    let gateway = Arc::new(Gateway {
        reply_port: replies.local_addr()?.port(),
        last_jid: Mutex::new(journal.highest_jid()?),
        journal,
        master,
        questions: Questions::default(),
        progress: ProgressBoard::default(),
        rejections: intake::Rejections::default(),
        tasks: TaskTracker::new(),
        capabilities: Mutex::default(),
        config,
    });
    let accepted = gateway.recover()?;

    let (stop, stopping) = watch::channel(false);
    let stopped = || {
        let mut stopping = stopping.clone();
        async move {
            // An error means that the sender is gone, which also means stop.
            drop(stopping.wait_for(|stop| *stop).await);
        }
    };
    let intake = tokio::spawn({
        let gateway = gateway.clone();
        replies.serve(
            move |peer, frames| intake::take(gateway.clone(), peer, frames),
            stopped(),
        )
    });
    let poller = tokio::spawn(poll::run(gateway.clone(), stopped()));
    let api = tokio::spawn(server::run(gateway.clone(), socket, stopped()));
    tracing::info!(
        event = "daemon_started",
        version = env!("CARGO_PKG_VERSION"),
        reply_port = gateway.reply_port,
        transport = gateway.master.transport().as_str(),
        socket = %gateway.config.socket.display(),
    );
    for record in accepted {
        let gateway = gateway.clone();
        let tasks = gateway.tasks.clone();
        tasks.spawn(async move { gateway.dispatch_and_log(record).await });
    }

    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut parts = [("intake", intake), ("poller", poller), ("api", api)];
    let dead = tokio::select! {
        _ = terminate.recv() => None,
        interrupt = tokio::signal::ctrl_c() => { interrupt?; None }
        name = first_dead(&mut parts) => Some(name),
    };
    tracing::info!(event = "daemon_stopping");
    stop.send_replace(true);
    for (name, task) in parts {
        if dead != Some(name) {
            task.await
                .with_context(|| format!("the daemon's {name} failed"))?;
        }
    }
    gateway.tasks.close();
    gateway.tasks.wait().await;
    remove_socket(&gateway.config.socket);
    match dead {
        None => Ok(()),
        // Without one of its parts the daemon would publish and never learn, so it ends; systemd restarts it.
        Some(name) => anyhow::bail!("the daemon's {name} ended by itself"),
    }
}

/// Waits for the first part that ends, which none does before it is told to.
async fn first_dead(parts: &mut [(&'static str, JoinHandle<()>); 3]) -> &'static str {
    let [(a, first), (b, second), (c, third)] = parts;
    tokio::select! {
        _ = first => a,
        _ = second => b,
        _ = third => c,
    }
}

/// Raises the soft limit of open files to the hard one, at most 65536, and gives the limit.
fn raise_descriptor_limit() -> anyhow::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.unwrap_or(u64::MAX).min(65_536);
    if now.current.is_none_or(|current| current >= wanted) {
        return Ok(now.current.unwrap_or(wanted));
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: now.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")?;
    Ok(wanted)
}

/// The reply port's limits: a reply's two frames and no more, and never so many connections that the
/// journal, the API and the transports would lack descriptors.
fn limits(descriptors: u64) -> Limits {
    let quarter = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
    let most = Limits::default().max_connections.min(quarter);
    Limits {
        max_connections: most,
        max_frames: 2,
        max_frame_bytes: MAX_REPLY_BYTES,
        max_message_bytes: MAX_REPLY_BYTES + MAX_SIGNATURE_BYTES,
        ..Limits::default()
    }
}

/// Leaves no dead socket behind. A crash does; the next start takes that one away.
fn remove_socket(socket: &PathBuf) {
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::warn!(event = "socket_left", reason = %format!("cannot remove {}: {error}", socket.display()));
    }
}

impl Gateway {
    /// What a start makes of the records: every `claimed` one may have been sent and is never sent again;
    /// the `accepted` ones, whose claim does not exist, are returned to be gone on with.
    fn recover(&self) -> Result<Vec<crate::journal::Record>, JournalError> {
        let mut accepted = Vec::new();
        for record in self.journal.unfinished()? {
            self.apply(record.dispatch(), &Event::Restart, None)?;
            if record.claim.is_none() {
                accepted.push(record);
            }
        }
        Ok(accepted)
    }

    /// A fresh jid, above every one that this journal and this process ever gave out.
    fn mint_jid(&self) -> Jid {
        let mut last = lock(&self.last_jid);
        let jid = Jid::next(*last, now());
        *last = Some(jid);
        jid
    }

    /// Applies an event and logs what it did: one line per transition.
    fn apply(
        &self,
        dispatch: Dispatch,
        event: &Event,
        evidence: Option<&SignedReply>,
    ) -> Result<Applied, JournalError> {
        let applied = self.journal.apply(dispatch, event, evidence)?;
        log(event, &applied);
        Ok(applied)
    }

    fn schedule(&self) -> Schedule {
        Schedule {
            first: self.config.poll_first,
            max: self.config.poll_max,
        }
    }
}

/// The log's line for what an event did. docs/log-schema.md lists the fields.
fn log(event: &Event, applied: &Applied) {
    let record = &applied.record;
    let request_id = record.request.request_id.as_str();
    let minion_id = record.request.minion_id.as_str();
    let jid = record
        .claim
        .as_ref()
        .map(|claim| claim.jid.to_string())
        .unwrap_or_default();
    let generation = record.generation;
    match &applied.step {
        Step::Move(state) => tracing::info!(
            event = "transition",
            request_id,
            minion_id,
            jid,
            generation,
            cause = event.name(),
            from = applied.from,
            to = state.name(),
            reason = state.reason(),
            passed = state.receipt().map(|receipt| receipt.passed()),
            total = state.receipt().map(|receipt| receipt.total()),
        ),
        Step::Note => {
            let detail = match event {
                Event::Observed { kind, .. } => kind.as_str(),
                other => other.name(),
            };
            tracing::info!(
                event = "observation",
                request_id,
                minion_id,
                jid,
                generation,
                kind = detail
            );
        }
        Step::Alarm(alarm) => tracing::error!(
            event = "alarm",
            request_id,
            minion_id,
            jid,
            generation,
            alarm = alarm.as_str(),
            cause = event.name(),
            state = applied.from,
        ),
        Step::Silent => {}
    }
}

/// Journal work, off the runtime's threads: each call may wait for the disk.
async fn blocking<T: Send + 'static>(
    gateway: &Arc<Gateway>,
    work: impl FnOnce(&Gateway) -> T + Send + 'static,
) -> T {
    let gateway = gateway.clone();
    match tokio::task::spawn_blocking(move || work(&gateway)).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A journal that fails is for the operator, and the caller learns no more than that.
fn journal_failed(error: JournalError) -> ApiError {
    tracing::error!(event = "journal_failed", reason = %words(&error));
    ApiError::internal(words(&error))
}
