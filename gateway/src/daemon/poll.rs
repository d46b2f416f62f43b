//! Step 7 of a job: when no receipt came in time, ask. Status calls may be repeated; publications never.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gw_poller::questions::{NoAnswer, Question};
use gw_wire::id::{Jid, RequestId, now};
use tokio::sync::Semaphore;

use super::{Gateway, blocking, journal_failed};
use crate::journal::Record;
use crate::words;

/// How often the poller looks which jobs are due.
const TICK: Duration = Duration::from_millis(500);
/// How many status calls may wait for their answers at once.
const MAX_OUTSTANDING: usize = 64;

/// Asks about every job that is due, until `stopped`.
pub(super) async fn run(gateway: Arc<Gateway>, stopped: impl Future<Output = ()>) {
    let outstanding = Arc::new(Semaphore::new(MAX_OUTSTANDING));
    // Per job: how often it was asked about, and when it is asked next. By the monotonic clock: a wall clock
    // that was set back must not silence the poller.
    let mut plan: HashMap<Jid, (u32, Instant)> = HashMap::new();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let awaiting = match blocking(&gateway, |gateway| gateway.journal.awaiting()).await {
            Ok(awaiting) => awaiting,
            Err(error) => {
                journal_failed(error);
                continue;
            }
        };
        let jids: HashSet<Jid> = awaiting.iter().map(|(_, jid)| *jid).collect();
        plan.retain(|jid, _| jids.contains(jid));
        gateway.progress.keep_only(&jids);
        let schedule = gateway.schedule();
        for (request_id, jid) in awaiting {
            let (attempt, due) = plan.entry(jid).or_insert_with(|| {
                let age = Duration::try_from(now().duration_since(jid.time())).unwrap_or_default();
                (0, Instant::now() + schedule.until_first(jid, age))
            });
            if Instant::now() < *due {
                continue;
            }
            // All permits taken: the job stays due and has its turn at a later tick.
            let Ok(permit) = outstanding.clone().try_acquire_owned() else {
                break;
            };
            *attempt += 1;
            *due = Instant::now() + schedule.pause(jid, *attempt);
            let gateway = gateway.clone();
            tokio::spawn(async move {
                gateway.poll_one(request_id).await;
                drop(permit);
            });
        }
    }
}

impl Gateway {
    /// Asks about one job whose turn it is; says in the log if nobody answered.
    async fn poll_one(self: &Arc<Self>, request_id: RequestId) {
        let found = blocking(self, move |gateway| gateway.journal.find(request_id)).await;
        let record = match found {
            Ok(Some(record)) if record.state.awaits_evidence() => record,
            Ok(_) => return,
            Err(error) => {
                journal_failed(error);
                return;
            }
        };
        if let Err(error) = self.ask_status(&record).await {
            status_unanswered(&record, &error);
        }
    }

    /// Asks once what became of a record's job. The answer is in the journal when this returns.
    pub(super) async fn ask_status(self: &Arc<Self>, record: &Record) -> Result<(), NoAnswer> {
        let (Some(binding), Some(claim)) = (record.binding(), &record.claim) else {
            return Ok(());
        };
        let not_after = Some(claim.not_after.as_second());
        self.ask(Question::Status(binding, not_after))
            .await
            .map(drop)
    }
}

/// Silence proves nothing; the log has it for people who look into a network.
pub(super) fn status_unanswered(record: &Record, error: &NoAnswer) {
    tracing::info!(
        event = "status_unanswered",
        request_id = record.request.request_id.as_str(),
        minion_id = record.request.minion_id.as_str(),
        jid = record.claim.as_ref().map(|claim| claim.jid.to_string()).unwrap_or_default(),
        reason = %words(error),
    );
}
