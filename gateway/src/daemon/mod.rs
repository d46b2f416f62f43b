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
use gw_wire::reply::Capability;
use gw_wire::zmtp::router::{Limits, Server};
use tokio::sync::watch;

use crate::config::Config;
use crate::journal::{Applied, Journal, JournalError};
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
    let replies = Server::bind(config.reply_listen, Limits::default())
        .with_context(|| format!("cannot listen for replies on {}", config.reply_listen))?;
    let socket = server::bind(&config.socket)?;
    let gateway = Arc::new(Gateway {
        reply_port: replies.local_addr()?.port(),
        last_jid: Mutex::new(journal.highest_jid()?),
        journal,
        master,
        questions: Questions::default(),
        progress: ProgressBoard::default(),
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
        tokio::spawn(async move { gateway.dispatch_and_log(record).await });
    }

    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupt = tokio::signal::ctrl_c() => interrupt?,
    }
    tracing::info!(event = "daemon_stopping");
    stop.send_replace(true);
    for task in [intake, poller, api] {
        task.await.context("a part of the daemon failed")?;
    }
    remove_socket(&gateway.config.socket);
    Ok(())
}

/// Leaves no dead socket behind. A crash does; the next start takes that one away.
fn remove_socket(socket: &PathBuf) {
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::warn!(event = "config_warning", reason = %format!("cannot remove {}: {error}", socket.display()));
    }
}

impl Gateway {
    /// What a start makes of the records: every `claimed` one may have been sent and is never sent again;
    /// the `accepted` ones, whose claim does not exist, are returned to be gone on with.
    fn recover(&self) -> Result<Vec<crate::journal::Record>, JournalError> {
        let mut accepted = Vec::new();
        for record in self.journal.unfinished()? {
            self.apply(record.request.request_id, &Event::Restart, None)?;
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
        request_id: gw_wire::id::RequestId,
        event: &Event,
        evidence: Option<&gw_wire::reply::SignedReply>,
    ) -> Result<Applied, JournalError> {
        let applied = self.journal.apply(request_id, event, evidence)?;
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
