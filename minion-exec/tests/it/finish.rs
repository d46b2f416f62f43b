//! An executor that dies while its worker lives: `gw-exec finish`, played step by step as the module does.

use std::os::fd::OwnedFd;

use crate::support::{Call, Job, Minion, mapping};
use gw_wire::id::Token;
use gw_wire::receipt::Outcome;
use gw_wire::reply::Answer;
use serde_json::{Value, json};

/// A job whose executor was killed after the worker was told to call: the claim id and the locks.
fn orphaned(minion: &Minion, job: &Job) -> (Value, Vec<OwnedFd>) {
    let mut call = minion.run(job);
    let order = call.called();
    kill(&call);
    let locks = std::mem::take(&mut call.locks);
    (order["claim_id"].clone(), locks)
}

fn kill(call: &Call) {
    let mut executor = call.executor.lock().expect("no panic");
    executor.kill().expect("killed");
    executor.wait().expect("gone");
}

fn finish(minion: &Minion, job: &Job, claim_id: &Value, locks: &[OwnedFd]) -> Value {
    let mut facts = minion.run_facts(job);
    facts["args"]["claim_id"] = claim_id.clone();
    facts["args"]["result"] = mapping(3, 0)["result"].clone();
    let mut call = minion.start_passing("finish", &facts.to_string(), locks);
    call.returned()
}

#[test]
fn the_worker_of_a_dead_executor_has_its_receipt_committed_and_sent() {
    let minion = Minion::new();
    let job = Job::fresh();
    let (claim_id, locks) = orphaned(&minion, &job);
    assert!(matches!(minion.status(&job), Answer::Running { .. }));
    minion.forget_replies();
    assert_eq!(
        finish(&minion, &job, &claim_id, &locks),
        json!({"__no_return__": true})
    );
    drop(locks);
    match minion.end_of(&job) {
        Answer::Receipt {
            receipt,
            claim_id: sent,
            ..
        } => {
            assert_eq!(
                (receipt.outcome(), receipt.passed(), receipt.total()),
                (Outcome::Succeeded, 3, 3)
            );
            assert_eq!(Some(sent.as_str()), claim_id.as_str());
        }
        other => panic!("{other:?}"),
    }
    // The next job runs.
    let mut call = minion.run(&Job::fresh());
    call.called();
    call.finish(1, 0);
}

#[test]
fn a_receipt_that_was_there_before_stands() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    let claim_id = call.called()["claim_id"].clone();
    let locks = std::mem::take(&mut call.locks);
    call.say(&mapping(1, 1));
    minion.await_receipt(&job);
    kill(&call);
    drop(call);
    minion.forget_replies();
    finish(&minion, &job, &claim_id, &locks);
    drop(locks);
    match minion.end_of(&job) {
        Answer::Receipt { receipt, .. } => assert_eq!(receipt.outcome(), Outcome::Failed),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_finishes_a_job_without_its_claim_and_both_of_its_locks() {
    let minion = Minion::new();
    let job = Job::fresh();
    let (claim_id, locks) = orphaned(&minion, &job);
    let other = json!(Token::random());
    let swapped: Vec<OwnedFd> = locks
        .iter()
        .rev()
        .map(|fd| fd.try_clone().expect("cloned"))
        .collect();
    let foreign: Vec<OwnedFd> = (0..2)
        .map(|_| std::fs::File::open("/dev/null").expect("there").into())
        .collect();
    // A second open file description of the right files does not have the locks.
    let reopened: Vec<OwnedFd> = [
        "execution".to_owned(),
        format!("request-{}", job.request_id),
    ]
    .iter()
    .map(|name| {
        let path = minion.store().join("locks").join(name);
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(path)
            .expect("there")
            .into()
    })
    .collect();
    for (claim_id, locks) in [
        (&other, &locks),
        (&claim_id, &swapped),
        (&claim_id, &foreign),
        (&claim_id, &reopened),
        (&claim_id, &Vec::new()),
    ] {
        let returned = finish(&minion, &job, claim_id, locks);
        assert!(returned["error"].is_string(), "{returned}");
        assert!(!minion.receipt_file(&job).exists());
    }
    assert_eq!(
        finish(&minion, &job, &claim_id, &locks),
        json!({"__no_return__": true})
    );
}
