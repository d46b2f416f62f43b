//! `oduflow_job.run`: apply, at most once.
//!
//! The way down: parse, look the jid up, refuse what must be refused, take the locks, claim
//! (**claim-before-run**), have the worker call the one function, reduce, commit the receipt
//! (**receipt-before-return**), release the worker, send the signed receipt.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gw_wire::receipt::{Binding, Receipt};
use gw_wire::reply::{Answer, Problem, RefusalReason, StorePosition, Survival, UnknownReason};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::profiles::SiteProfiles;
use crate::reduce::{Reduced, reduce};
use crate::reply::{EVIDENCE_PATIENCE, Speaker};
use crate::request::{Job, StateCall};
use crate::session::{Session, tell};
use crate::status::{self, despite_error, fence, status};
use crate::store::lock::Lock;
use crate::store::records::Claimed;
use crate::store::{Claim, ClaimOutcome, Store, StoreError};
use crate::survival;
use crate::worker::{Event, Order, Word, Worker};

/// How far a jid may lie ahead of the minion's clock.
const CLOCK_TOLERANCE: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
/// How long a publication waits for the claim of a twin that has the request's lock, and the pause between
/// two looks.
const TWIN_PATIENCE: Duration = Duration::from_secs(2);
const TWIN_PAUSE: Duration = Duration::from_millis(10);
/// How long a receipt is tried to be made durable, and the pause between two tries.
const COMMIT_PATIENCE: Duration = Duration::from_secs(60);
const COMMIT_PAUSE: Duration = Duration::from_secs(1);
/// At most one progress reply in this time.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the call.
pub fn run(session: Session) {
    let mut problems = session.facts.problems();
    let site = session.site_profiles().unwrap_or_else(|problem| {
        problems.push(problem);
        SiteProfiles::default()
    });
    let job = match Job::parse(&session.facts, &site) {
        Ok(job) => job,
        Err(error) => return session.fail("invalid", &error.to_string()),
    };
    // A local call carries a jid that no master gave out: there is nothing to refuse by name.
    if problems.contains(&Problem::NotPublished) {
        return session.fail("not_published", Problem::NotPublished.explain());
    }
    let binding = job.binding.clone();
    let Some(store) = session.open_store() else {
        return session.fail_store();
    };
    if let Some(gw) = &session.metadata
        && let Err(error) = store.confirm(&gw.confirmed)
    {
        Session::report(&error);
    }
    match decide(&session, &store, job, &problems) {
        Ok(Decision::Answer(answer)) => session.answer(Some(&store), answer, EVIDENCE_PATIENCE),
        Ok(Decision::Run(claim, call)) => execute(session, &store, claim, call),
        Err(error) => {
            Session::report(&error);
            // Whatever became durable before the error decides; the jid's file is read again.
            match despite_error(&store, &binding) {
                Some(answer) => session.answer(Some(&store), answer, EVIDENCE_PATIENCE),
                None => session.fail_store(),
            }
        }
    }
}

enum Decision {
    Answer(Answer),
    Run(Claim, StateCall),
}

/// Whether this call may run. Every refusal is a tombstone before it is an answer, and a request that was
/// claimed before is a conflict before it is anything else.
fn decide(
    session: &Session,
    store: &Store,
    job: Job,
    problems: &[Problem],
) -> Result<Decision, StoreError> {
    let Job { binding, call } = job;
    let generation = session.generation();
    let answer = |answer| Ok(Decision::Answer(answer));
    let refuse = |reason| answer(fence(store, &binding, generation, reason)?);

    if store.jid(binding.jid)?.is_some() {
        return answer(status(store, &binding)?);
    }
    // First what this minion lacks: where the site's profiles cannot be read, none of them is known to be invalid.
    if let Some(problem) = problems.first() {
        tell(problem.explain());
        return refuse(RefusalReason::Incapable);
    }
    let call = match call {
        Ok(call) => call,
        Err(error) => {
            tell(&error.to_string());
            return refuse(RefusalReason::Invalid);
        }
    };
    let untimely = |last_claim: Option<Timestamp>| {
        let now = gw_wire::id::now();
        let behind = |moment: Timestamp| moment.duration_since(now) > CLOCK_TOLERANCE;
        let clock = behind(binding.jid.time()) || last_claim.is_some_and(behind);
        session
            .late_job()
            .then_some(RefusalReason::Late)
            .or(clock.then_some(RefusalReason::Clock))
    };
    if let Some(reason) = untimely(None) {
        return refuse(reason);
    }
    let Some(request) = lock_request(store, &binding)? else {
        return refuse(RefusalReason::Busy);
    };
    let Some(execution) = store.lock_execution()? else {
        return refuse(RefusalReason::Busy);
    };
    let survival = survival::enter(binding.jid, session.worker.pid());
    if session.facts.require_survival && survival == Survival::None {
        tell(Problem::Survival.explain());
        return refuse(RefusalReason::Incapable);
    }
    let locks = [execution, request];
    match store.claim(&binding, generation, survival, untimely, locks)? {
        ClaimOutcome::Claimed(claim) => Ok(Decision::Run(claim, call)),
        ClaimOutcome::Settled(settled) => answer(status::settled(store, &binding, settled)?),
        ClaimOutcome::Refuse(reason) => refuse(reason),
    }
}

/// Takes the request's lock; `None` if somebody has it.
///
/// It comes before the execution lock, for whoever has it may be this very publication, delivered twice at
/// once, and must not find its jid refused by its twin: the later one waits for the other's claim, and
/// refuses only when that does not come.
fn lock_request(store: &Store, binding: &Binding) -> Result<Option<Lock>, StoreError> {
    let until = Instant::now() + TWIN_PATIENCE;
    loop {
        let lock = store.lock_request(binding.request_id)?;
        if lock.is_some()
            || store.jid(binding.jid)?.is_some()
            || store.request(binding.request_id)?.is_some()
            || Instant::now() >= until
        {
            return Ok(lock);
        }
        thread::sleep(TWIN_PAUSE);
    }
}

/// Has the worker call the function, and commits what came of it.
fn execute(mut session: Session, store: &Store, claim: Claim, call: StateCall) {
    let progress = session.speaker.clone().and_then(|speaker| {
        Progress::start(speaker, store.position().ok(), claim.claimed().clone())
            .inspect_err(|error| tell(&format!("there will be no progress: {error}")))
            .ok()
    });
    let locks = claim.locks().each_ref().map(|lock| lock.fd());
    let reduced = match session.worker.order(&order(call, claim.claimed()), &locks) {
        Ok(()) => follow(&mut session.worker, progress.as_ref()),
        // It has not got the whole order; but that is no evidence of it, and claimed is claimed.
        Err(error) => {
            tell(&format!("cannot tell Salt's worker what to call: {error}"));
            Reduced::unknown(UnknownReason::WorkerDied)
        }
    };
    drop(progress);
    let answer = commit(store, &claim, &reduced);
    // The worker keeps its descriptors of the locks until it has its return. If it died, what the state
    // started may go on, and no other job begins beside it: not while anything is left in our scope, and
    // without one at least not until the gateway has been told, or our patience is over.
    let died = reduced.reason == Some(UnknownReason::WorkerDied);
    let kept = died.then(|| Arc::new(claim));
    let waiting = kept.clone().and_then(keep_while_others_live);
    let kept = kept.filter(|_| waiting.is_none());
    let keep = session.facts.keep();
    session.answer(Some(store), answer, EVIDENCE_PATIENCE);
    drop(kept);
    if let Some(thread) = waiting
        && thread.join().is_err()
    {
        tell("the thread that kept the locks panicked");
    }
    if let Err(error) = store.retain(keep, gw_wire::id::now()) {
        Session::report(&error);
    }
}

/// Keeps the locks of a dead worker's job until nobody but us is in its scope, from a thread of its own: the
/// receipt does not wait for that, nor the next job for the receipt. `None`: it has no scope, or there is no thread.
fn keep_while_others_live(claim: Arc<Claim>) -> Option<JoinHandle<()>> {
    if claim.claimed().survival == Survival::None {
        return None;
    }
    let waiting = thread::Builder::new().spawn(move || {
        if let Err(error) = survival::wait_until_alone() {
            tell(&format!("cannot see who is in the job's scope: {error}"));
            thread::sleep(EVIDENCE_PATIENCE);
        }
        drop(claim);
    });
    waiting
        .inspect_err(|error| tell(&format!("cannot wait for the job's scope: {error}")))
        .ok()
}

fn order(call: StateCall, claimed: &Claimed) -> Order {
    let (fun, arg) = match call {
        StateCall::Sls(role) => ("state.sls", Value::from(role)),
        StateCall::High(data) => (
            "state.high",
            serde_json::from_str(data.as_str()).expect("canonical state data is JSON"),
        ),
    };
    // Neither the publication nor the minion's configuration may change how a job runs.
    let options = ["test", "queue", "concurrent", "state_events"];
    let kwarg: Map<String, Value> = options
        .into_iter()
        .map(|name| (name.to_owned(), json!(false)))
        .collect();
    Order::Call {
        claim_id: claimed.claim_id,
        survival: claimed.survival,
        fun,
        arg: vec![arg],
        kwarg,
    }
}

/// Listens until the worker has a result or is gone.
fn follow(worker: &mut Worker, progress: Option<&Progress>) -> Reduced {
    loop {
        match worker.next(None) {
            Ok(Some(Event::Said(Word::Progress(done, total)))) => {
                if let Some(progress) = progress {
                    progress.update(done, total);
                }
            }
            Ok(Some(Event::Said(Word::Result(report)))) => return reduce(&report),
            // What the state started may go on; nobody can say any more how it ends.
            Ok(Some(Event::Died)) => return Reduced::unknown(UnknownReason::WorkerDied),
            Ok(Some(Event::Nonsense)) => return Reduced::unknown(UnknownReason::Malformed),
            Ok(None) => {}
            Err(error) => {
                tell(&error.to_string());
                return Reduced::unknown(UnknownReason::Malformed);
            }
        }
    }
}

/// Makes the receipt durable, and gives the answer that says so; `abandoned` if the claim stays without one.
pub fn commit(store: &Store, claim: &Claim, reduced: &Reduced) -> Answer {
    let Claimed {
        binding,
        claim_id,
        survival,
        ..
    } = claim.claimed().clone();
    match commit_in_time(store, claim, reduced) {
        Some(receipt) => Answer::Receipt {
            // A receipt that was there before ours stands, and its reason is not ours to give.
            reason: reduced
                .reason
                .filter(|_| receipt.outcome() == reduced.outcome),
            receipt,
            claim_id,
            survival,
        },
        None => Answer::Abandoned { binding },
    }
}

/// Tries to make the receipt durable for [`COMMIT_PATIENCE`].
fn commit_in_time(store: &Store, claim: &Claim, reduced: &Reduced) -> Option<Receipt> {
    let binding = claim.claimed().binding.clone();
    let receipt = Receipt::new(binding, reduced.outcome, reduced.passed, reduced.total)
        .expect("a reduction's counts fit its outcome, and the request's digest its profile");
    let until = Instant::now() + COMMIT_PATIENCE;
    let mut told = false;
    loop {
        match claim.commit(store, &receipt, reduced.reason) {
            Ok(receipt) => return Some(receipt),
            Err(error) if !told => Session::report(&error),
            Err(_) => {}
        }
        told = true;
        if Instant::now() >= until {
            tell("the receipt could not be made durable in time; the claim stays without one");
            return None;
        }
        thread::sleep(COMMIT_PAUSE);
    }
}

/// Signed `running` replies from a thread of their own: neither the run nor the receipt waits for them.
struct Progress {
    updates: Sender<(u32, u32)>,
}

impl Progress {
    fn start(
        speaker: Arc<Speaker>,
        store: Option<StorePosition>,
        claimed: Claimed,
    ) -> io::Result<Self> {
        let (updates, received) = channel();
        // Not `thread::spawn`, which panics when the system has no thread left.
        thread::Builder::new()
            .spawn(move || tell_progress(&speaker, store.as_ref(), &claimed, &received))?;
        Ok(Progress { updates })
    }

    fn update(&self, done: u32, total: u32) {
        // The thread lives as long as we do; if it panicked, progress is lost and nothing else.
        let _lost = self.updates.send((done.min(total), total));
    }
}

fn tell_progress(
    speaker: &Speaker,
    store: Option<&StorePosition>,
    claimed: &Claimed,
    updates: &Receiver<(u32, u32)>,
) {
    let mut latest = None;
    loop {
        let answer = Answer::Running {
            binding: claimed.binding.clone(),
            done: latest.map(|(done, _)| done),
            total: latest.map(|(_, total)| total),
            survival: claimed.survival,
        };
        let sent_at = Instant::now();
        speaker.mention(&speaker.sign(store.cloned(), answer));
        thread::sleep(PROGRESS_INTERVAL.saturating_sub(sent_at.elapsed()));
        match updates.recv() {
            Ok(update) => latest = Some(updates.try_iter().last().unwrap_or(update)),
            Err(_) => return,
        }
    }
}
