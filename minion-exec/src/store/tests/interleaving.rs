//! Every order in which the operations of several executors can happen, on the real store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gw_wire::reply::Answer;

use super::super::retention::Keep;
use super::super::step::scheduled::{World, explore};
use super::*;
use crate::status;

/// What an executor said, and between which two moments.
#[derive(Debug, Clone)]
struct Said {
    from: usize,
    to: usize,
    answer: Answer,
    /// It claimed the job, and so ran it.
    ran: bool,
}

/// One minion, and the moments of its time.
struct Minion {
    scratch: Scratch,
    clock: AtomicUsize,
}

type Actor = Box<dyn FnOnce() -> Vec<Said> + Send>;

impl Minion {
    fn new() -> Arc<Self> {
        Arc::new(Minion {
            // In memory: thousands of stores are made, and nothing here is about a disk.
            scratch: scratch_in(tempfile::tempdir_in("/dev/shm").expect("a directory")),
            clock: AtomicUsize::new(0),
        })
    }

    fn tick(&self) -> usize {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn store(&self) -> Store {
        open(&self.scratch.path("")).expect("a store")
    }

    fn say(&self, from: usize, answer: Answer, ran: bool) -> Said {
        Said {
            from,
            to: self.tick(),
            answer,
            ran,
        }
    }

    /// The way of a publication through `run`, with a state that does nothing.
    fn runs(self: &Arc<Self>, binding: Binding) -> Actor {
        let minion = Arc::clone(self);
        let store = minion.store();
        Box::new(move || {
            let from = minion.tick();
            if store.jid(binding.jid).expect("works").is_some() {
                let answer = status::status(&store, &binding).expect("works");
                return vec![minion.say(from, answer, false)];
            }
            let locks = store
                .lock_request(binding.request_id)
                .expect("works")
                .zip(store.lock_execution().expect("works"));
            let Some((request, execution)) = locks else {
                let answer = status::fence(&store, &binding, 1, RefusalReason::Busy);
                return vec![minion.say(from, answer.expect("works"), false)];
            };
            let locks = [execution, request];
            match store
                .claim(&binding, 1, Survival::None, |_| None, locks)
                .expect("works")
            {
                ClaimOutcome::Claimed(claim) => {
                    let receipt = Receipt::new(binding.clone(), Outcome::Succeeded, 1, 1);
                    let receipt = receipt.expect("a receipt");
                    let receipt = claim.commit(&store, &receipt, None).expect("durable");
                    let answer = Answer::Receipt {
                        receipt,
                        claim_id: claim.claimed().claim_id,
                        reason: None,
                        survival: Survival::None,
                    };
                    drop(claim);
                    vec![minion.say(from, answer, true)]
                }
                ClaimOutcome::Settled(settled) => {
                    let answer = status::settled(&store, &binding, settled).expect("works");
                    vec![minion.say(from, answer, false)]
                }
                ClaimOutcome::Refuse(reason) => {
                    let answer = status::fence(&store, &binding, 1, reason).expect("works");
                    vec![minion.say(from, answer, false)]
                }
            }
        })
    }

    fn revokes(self: &Arc<Self>, binding: Binding) -> Actor {
        let (minion, store) = (Arc::clone(self), self.store());
        Box::new(move || {
            let from = minion.tick();
            let answer = status::fence(&store, &binding, 1, RefusalReason::Revoked);
            vec![minion.say(from, answer.expect("works"), false)]
        })
    }

    fn asks(self: &Arc<Self>, binding: Binding) -> Actor {
        let (minion, store) = (Arc::clone(self), self.store());
        Box::new(move || {
            let from = minion.tick();
            let answer = status::status(&store, &binding).expect("works");
            vec![minion.say(from, answer, false)]
        })
    }

    fn forgets(self: &Arc<Self>) -> Actor {
        let store = self.store();
        let keep = Keep {
            days: None,
            count: Some(0),
        };
        Box::new(move || {
            store.retain(keep, gw_wire::id::now()).expect("works");
            Vec::new()
        })
    }
}

/// What an answer says about whether the job is claimed: rises, and never falls.
fn rank(answer: &Answer) -> u8 {
    match answer {
        Answer::NotStarted { .. } | Answer::NotClaimed { .. } => 0,
        Answer::Running { .. } | Answer::Abandoned { .. } => 1,
        Answer::Receipt { .. } | Answer::Refused { .. } => 2,
        Answer::Expired { .. } => 3,
        Answer::Conflict { .. } | Answer::Capability(_) => 9,
    }
}

fn must_hold(said: &[Said], minion: &Minion) {
    let ran = said.iter().filter(|said| said.ran).count();
    assert!(ran <= 1, "one-claim: {said:?}");
    for one in said {
        assert_ne!(rank(&one.answer), 9, "contradicts its own job: {said:?}");
        let refused = matches!(one.answer, Answer::Refused { .. });
        assert!(!refused || ran == 0, "refused, and ran: {said:?}");
        for later in said.iter().filter(|later| later.from > one.to) {
            assert!(
                rank(&later.answer) >= rank(&one.answer),
                "{one:?} before {later:?}"
            );
        }
    }
    let audit = minion.store().audit().expect("works");
    assert!(audit.findings.is_empty(), "{:?}", audit.findings);
}

/// Tries every order, and gives how many there were.
fn all(name: &str, cast: impl Fn(&Arc<Minion>) -> Vec<Actor>) -> usize {
    let (tried, exhausted) = explore(LIMIT, || {
        let minion = Minion::new();
        let actors = cast(&minion);
        World {
            actors,
            check: Box::new(move |said: Vec<Vec<Said>>| {
                must_hold(&said.concat(), &minion);
            }),
        }
    });
    println!("{name}: {tried} orders, all: {exhausted}");
    assert!(exhausted, "{name}: more than {LIMIT} orders");
    tried
}

const LIMIT: usize = 60_000;

#[test]
fn a_question_beside_the_run_of_its_job_is_answered_by_what_is_so() {
    let tried = all("run, ask", |minion| {
        vec![minion.runs(binding(1)), minion.asks(binding(1))]
    });
    assert!(tried > 50, "{tried}");
}

#[test]
fn a_claim_and_a_revocation_exclude_each_other_in_every_order() {
    let tried = all("run, revoke", |minion| {
        vec![minion.runs(binding(1)), minion.revokes(binding(1))]
    });
    assert!(tried > 50, "{tried}");
}

#[test]
fn a_revocation_and_a_question_agree_in_every_order() {
    let tried = all("revoke, ask", |minion| {
        vec![minion.revokes(binding(1)), minion.asks(binding(1))]
    });
    assert!(tried > 50, "{tried}");
}

#[test]
fn a_question_about_a_job_that_is_being_forgotten_is_never_answered_as_abandoned() {
    let tried = all("retain, ask", |minion| {
        for n in [1, 2] {
            let claim = claimed(minion.scratch.claim(&other(n), 1));
            let receipt = Receipt::new(other(n), Outcome::Succeeded, 1, 1).expect("a receipt");
            let store = &minion.scratch.store;
            claim.commit(store, &receipt, None).expect("durable");
        }
        let store = &minion.scratch.store;
        store.confirm(&[other(1).jid, other(2).jid]).expect("works");
        let asks = minion.asks(other(1));
        let never_abandoned = move || {
            let said = asks();
            for one in &said {
                let known = matches!(one.answer, Answer::Receipt { .. } | Answer::Expired { .. });
                assert!(known, "{one:?}");
            }
            said
        };
        vec![minion.forgets(), Box::new(never_abandoned)]
    });
    assert!(tried > 50, "{tried}");
}

/// A binding whose request is its own and the same each time.
fn other(n: u32) -> Binding {
    let id = format!("0b0e4567-e89b-42d3-a456-{n:012}");
    Binding {
        request_id: RequestId::parse(&id).expect("an id"),
        ..binding(n)
    }
}
