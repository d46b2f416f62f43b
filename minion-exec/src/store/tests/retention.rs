//! What retention deletes, and what it leaves.

use std::collections::BTreeSet;

use gw_wire::receipt::Receipt;
use jiff::Timestamp;

use super::super::retention::Keep;
use super::*;

fn ended(scratch: &Scratch, binding: &Binding, outcome: Outcome) {
    let claim = claimed(scratch.claim(binding, 1));
    let passed = u32::from(outcome == Outcome::Succeeded);
    let receipt = Receipt::new(binding.clone(), outcome, passed, 1).expect("a receipt");
    claim
        .commit(&scratch.store, &receipt, None)
        .expect("durable");
}

fn left(scratch: &Scratch, directory: &str) -> BTreeSet<String> {
    fs::read_dir(scratch.path(directory))
        .expect("there")
        .map(|entry| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("text").replace(".json", "")
        })
        .collect()
}

fn names<const N: usize>(jids: [&Binding; N]) -> BTreeSet<String> {
    jids.iter().map(|binding| binding.jid.to_string()).collect()
}

const NONE: Keep = Keep {
    days: None,
    count: Some(0),
};

/// Six jobs: two ended, one `unknown`, one refused, one abandoned, one ended; all confirmed.
fn lived_in() -> (Scratch, Vec<Binding>) {
    let scratch = scratch();
    let jobs: Vec<Binding> = (1..=6).map(other_request).collect();
    ended(&scratch, &jobs[0], Outcome::Succeeded);
    ended(&scratch, &jobs[1], Outcome::Failed);
    ended(&scratch, &jobs[2], Outcome::Unknown);
    let refused = scratch.store.refuse(&jobs[3], 1, RefusalReason::Busy);
    record(refused.expect("refused"));
    drop(claimed(scratch.claim(&jobs[4], 1)));
    ended(&scratch, &jobs[5], Outcome::Succeeded);
    let jids: Vec<Jid> = jobs.iter().map(|job| job.jid).collect();
    scratch.store.confirm(&jids).expect("works");
    (scratch, jobs)
}

#[test]
fn only_what_is_confirmed_and_resolved_is_forgotten_and_never_the_newest_record() {
    let (scratch, jobs) = lived_in();
    let position = scratch.store.position().expect("readable");
    assert_eq!(
        scratch
            .store
            .retain(Keep::default(), gw_wire::id::now())
            .expect("off"),
        0
    );
    assert_eq!(
        scratch
            .store
            .retain(NONE, gw_wire::id::now())
            .expect("works"),
        3
    );
    assert_eq!(
        left(&scratch, "jids"),
        names([&jobs[2], &jobs[4], &jobs[5]])
    );
    assert_eq!(left(&scratch, "confirmed"), names([&jobs[5]]));
    assert_eq!(left(&scratch, "receipts").len(), 2);
    assert_eq!(left(&scratch, "requests").len(), 5);
    let identity = scratch.store.identity().expect("readable");
    assert_eq!(identity.pruned_below, Some(jobs[3].jid));
    assert_eq!(scratch.store.position().expect("readable"), position);
}

#[test]
fn a_forgotten_jid_is_expired_and_its_request_still_never_runs_again() {
    let (scratch, jobs) = lived_in();
    scratch
        .store
        .retain(NONE, gw_wire::id::now())
        .expect("works");
    for forgotten in [&jobs[0], &jobs[1], &jobs[3]] {
        let settled = scratch.store.refuse(forgotten, 9, RefusalReason::Revoked);
        assert_eq!(settled.expect("works"), Settled::Expired);
        assert!(matches!(
            scratch.claim(forgotten, 9),
            ClaimOutcome::Settled(Settled::Expired)
        ));
    }
    let again = Binding {
        jid: binding(9).jid,
        ..jobs[0].clone()
    };
    assert!(matches!(
        scratch.claim(&again, 9),
        ClaimOutcome::Settled(Settled::Conflict)
    ));
    claimed(scratch.claim(&other_request(9), 1));
}

#[test]
fn each_limit_that_is_set_protects() {
    let day = jiff::SignedDuration::from_hours(24);
    let kept = |keep: Keep, now: Timestamp| {
        let (scratch, _) = lived_in();
        scratch.store.retain(keep, now).expect("works");
        left(&scratch, "jids").len()
    };
    let now = gw_wire::id::now();
    let (days, count) = (Some(2), Some(3));
    // The newest three of the four confirmed ones are protected.
    assert_eq!(kept(Keep { days: None, count }, now), 5);
    assert_eq!(kept(Keep { days, count: None }, now), 6);
    assert_eq!(kept(Keep { days, count: None }, now + day * 3), 3);
    assert_eq!(kept(Keep { days, count }, now + day * 3), 5);
    assert_eq!(kept(Keep { days, count }, now), 6);
}

#[test]
fn a_confirmation_of_what_did_not_end_here_is_left_out() {
    let scratch = scratch();
    drop(claimed(scratch.claim(&binding(1), 1)));
    let unknown = other_request(2);
    let early = [binding(1).jid, unknown.jid];
    scratch.store.confirm(&early).expect("works");
    assert!(left(&scratch, "confirmed").is_empty());
}

#[test]
fn what_a_crash_in_the_middle_left_is_deleted_by_the_next_run() {
    let (scratch, jobs) = lived_in();
    scratch
        .store
        .retain(
            Keep {
                days: None,
                count: Some(3),
            },
            gw_wire::id::now(),
        )
        .expect("works");
    assert_eq!(
        left(&scratch, "jids"),
        names([&jobs[1], &jobs[2], &jobs[3], &jobs[4], &jobs[5]])
    );
    // As if the executor had died after the second jid's record was gone.
    let name = format!("jids/{}.json", jobs[1].jid);
    fs::remove_file(scratch.path(&name)).expect("removed");
    scratch
        .store
        .retain(NONE, gw_wire::id::now())
        .expect("works");
    assert_eq!(left(&scratch, "receipts").len(), 2);
    assert_eq!(left(&scratch, "confirmed"), names([&jobs[5]]));
}
