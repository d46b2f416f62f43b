//! The demonstration: five scenarios on one bed, each of which counts and reads what it reports.
//!
//! A scenario is a function from a bed to a [`Report`]; tests call the same functions. It returns `Err` only where it
//! could not be played; an outcome that the documentation does not promise is in [`Report::complaints`].

mod delivered_again;
mod return_path_cut;
mod stock_client_ack_lost;
mod succeeds;
mod worker_killed;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use delivered_again::delivered_again;
pub use return_path_cut::return_path_cut;
pub use stock_client_ack_lost::stock_client_ack_lost;
pub use succeeds::succeeds;
pub use worker_killed::worker_killed;

use crate::bed::{Bed, minion_id};
use crate::{Builder, Host, Progress, Transport};

/// How many minions [`run`] needs.
pub const MINIONS: usize = 3;

/// The number of states of `roles.client_stack`.
const STACK: u64 = 60;

/// What a scenario found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Its name.
    pub scenario: &'static str,
    /// How the job was published: `ipc` or `request`.
    pub transport: String,
    /// How often the minion logged that a publication of this job reached it.
    pub published: usize,
    /// How often the role ran, by what it left outside Salt.
    pub executed: usize,
    /// How the job ended for its caller.
    pub state: String,
    /// States that passed, from the receipt; none without one.
    pub passed: Option<u64>,
    /// All states, from the receipt; none without one.
    pub total: Option<u64>,
    /// What was not as documented; nothing if all was well.
    #[serde(skip)]
    pub complaints: Vec<String>,
}

/// Sets up for [`run`]: `builder` with enough minions and a gateway that asks early about a silent job.
pub fn prepared(builder: Builder) -> Builder {
    builder.minions(MINIONS).gw("poll_first_s", "5")
}

/// Plays all scenarios; `done` gets each report as soon as there is one.
///
/// # Errors
/// A scenario could not be played to its end.
pub fn run(bed: &Bed, say: &Progress, mut done: impl FnMut(&Report)) -> Result<()> {
    // worker_killed blocks its minion, so it has one to itself
    done(&succeeds(bed, 0, say).context("scenario succeeds")?);
    done(&return_path_cut(bed, 0, say).context("scenario return_path_cut")?);
    done(&worker_killed(bed, 2, say).context("scenario worker_killed")?);
    done(&delivered_again(bed, 1, say).context("scenario delivered_again")?);
    done(&stock_client_ack_lost(bed, 0, say).context("scenario stock_client_ack_lost")?);
    Ok(())
}

impl Report {
    /// Adds a complaint unless `fact` holds.
    fn expect(&mut self, fact: bool, promise: &str) {
        if !fact {
            self.complaints.push(promise.to_owned());
        }
    }
}

/// A job that is watched: what the minion had seen and done before it was published.
struct Watch<'a> {
    bed: &'a Bed,
    minion: usize,
    fun: &'static str,
    deliveries: usize,
    executions: usize,
}

impl<'a> Watch<'a> {
    fn new(bed: &'a Bed, minion: usize, fun: &'static str) -> Result<Self> {
        let deliveries = bed.deliveries(minion, fun)?.len();
        Ok(Self {
            bed,
            minion,
            fun,
            deliveries,
            executions: bed.executions(minion)?,
        })
    }

    fn published(&self) -> Result<usize> {
        Ok(self
            .bed
            .deliveries(self.minion, self.fun)?
            .len()
            .saturating_sub(self.deliveries))
    }

    fn executed(&self) -> Result<usize> {
        Ok(self
            .bed
            .executions(self.minion)?
            .saturating_sub(self.executions))
    }

    /// The report of a job whose record is `body`.
    fn report(&self, scenario: &'static str, body: &Value) -> Result<Report> {
        Ok(Report {
            scenario,
            transport: body["transport"]
                .as_str()
                .unwrap_or(self.bed.transport().name())
                .to_owned(),
            published: self.published()?,
            executed: self.executed()?,
            state: body["state"].as_str().unwrap_or("none").to_owned(),
            passed: body["passed"].as_u64(),
            total: body["total"].as_u64(),
            complaints: Vec::new(),
        })
    }
}

/// A job that Salt's minion runs now.
#[derive(Debug, Clone, Deserialize)]
struct Job {
    jid: String,
    fun: String,
    pid: u32,
    /// The load that reached the minion, msgpack in base64.
    load: String,
}

/// The jobs that a minion runs now, by Salt's own records.
fn jobs(bed: &Bed, minion: usize) -> Result<Vec<Job>> {
    let host = Host::Minion(minion);
    let directory = bed.layout(host).at("var/cache/salt/minion/proc");
    bed.call(host, "jobs", json!({ "directory": directory }))
}

/// Publishes `roles.client_stack` without waiting; the request id.
fn publish(bed: &Bed, minion: usize) -> Result<String> {
    let answer = bed.gw_json(&["publish", &minion_id(minion), "--profile", "configure"])?;
    Ok(answer.text("request_id")?.to_owned())
}

/// Reads the record until it has an outcome.
fn outcome(bed: &Bed, request_id: &str, patience: Duration) -> Result<Value> {
    until(patience, "the job has no outcome", || {
        let body = bed.gw_json(&["show", request_id])?.body;
        let over = [
            "succeeded",
            "failed",
            "unknown",
            "refused",
            "not_sent",
            "closed",
        ];
        Ok(body["state"]
            .as_str()
            .is_some_and(|state| over.contains(&state))
            .then_some(body))
    })
}

/// Asks until there is an answer.
fn until<T>(
    patience: Duration,
    complaint: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > end {
            bail!("{complaint} after {} s", patience.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the role has begun on the minion.
fn begun(watch: &Watch<'_>) -> Result<()> {
    until(Duration::from_secs(60), "the role has not begun", || {
        Ok((watch.executed()? > 0).then_some(()))
    })
}

/// The transport whose name a report of the stock client bears: it knows one way only.
const STOCK_TRANSPORT: Transport = Transport::Request;
