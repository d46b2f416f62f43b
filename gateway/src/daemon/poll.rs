//! Step 7 of a job: when no receipt came in time, ask. Status calls may be repeated; publications never.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use gw_poller::questions::{NoAnswer, Question};
use gw_wire::id::{Jid, now};
use tokio::sync::Semaphore;

use super::{Gateway, blocking, journal_failed};
use crate::journal::Record;

/// How often the poller looks which jobs are due.
const TICK: Duration = Duration::from_millis(500);
/// How many status calls may wait for their answers at once.
const MAX_OUTSTANDING: usize = 64;

/// Asks about every job that is due, until `stopped`.
pub(super) async fn run(gateway: Arc<Gateway>, stopped: impl Future<Output = ()>) {
    let outstanding = Arc::new(Semaphore::new(MAX_OUTSTANDING));
    // Per job: how often it was asked about, and when it is due, in time since its jid.
    let mut plan: HashMap<Jid, (u32, Duration)> = HashMap::new();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let open = match blocking(&gateway, |gateway| gateway.journal.unfinished()).await {
            Ok(open) => open,
            Err(error) => {
                journal_failed(error);
                continue;
            }
        };
        let open: HashMap<Jid, Record> = open
            .into_iter()
            .filter_map(|record| Some((record.claim.as_ref()?.jid, record)))
            .collect();
        plan.retain(|jid, _| open.contains_key(jid));
        for (jid, record) in open {
            let schedule = gateway.schedule();
            let (attempt, due) = plan.entry(jid).or_insert((0, schedule.pause(jid, 0)));
            let age = Duration::try_from(now().duration_since(jid.time())).unwrap_or_default();
            if age < *due {
                continue;
            }
            // All permits taken: the job stays due and has its turn at a later tick.
            let Ok(permit) = outstanding.clone().try_acquire_owned() else {
                break;
            };
            *attempt += 1;
            *due = age + schedule.pause(jid, *attempt);
            let gateway = gateway.clone();
            tokio::spawn(async move {
                if let Err(error) = gateway.ask_status(&record).await {
                    tracing::info!(
                        event = "status_unanswered",
                        request_id = record.request.request_id.as_str(),
                        minion_id = record.request.minion_id.as_str(),
                        jid = jid.as_str(),
                        reason = %error,
                    );
                }
                drop(permit);
            });
        }
    }
}

impl Gateway {
    /// Asks once what became of a record's job. The answer is in the journal when this returns.
    pub(super) async fn ask_status(self: &Arc<Self>, record: &Record) -> Result<(), NoAnswer> {
        let Some(binding) = record.binding() else {
            return Ok(());
        };
        self.ask(Question::Status(binding)).await.map(drop)
    }
}
