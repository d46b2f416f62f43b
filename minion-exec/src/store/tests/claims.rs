//! Claims, tombstones, receipts and locks against racing writers.

use super::*;

#[test]
fn of_many_claims_and_refusals_of_one_jid_exactly_one_wins_and_all_read_it() {
    for _ in 0..20 {
        let scratch = scratch();
        let start = Barrier::new(8);
        let binding = binding(1);
        let records: Vec<JidRecord> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let (scratch, start, binding) = (&scratch, &start, &binding);
                    scope.spawn(move || {
                        // A store of its own each, as each executor has: nothing is shared but files.
                        let store = open(&scratch.path("")).expect("a store");
                        start.wait();
                        if n % 2 == 0 {
                            return record(
                                store
                                    .refuse(binding, 1, RefusalReason::Late)
                                    .expect("the store works"),
                            );
                        }
                        let locks = [
                            Lock::try_take(&store.locks, &format!("a{n}")),
                            Lock::try_take(&store.locks, &format!("b{n}")),
                        ]
                        .map(|lock| lock.expect("lockable").expect("free"));
                        match store
                            .claim(binding, 1, Survival::None, |_| None, locks)
                            .expect("the store works")
                        {
                            ClaimOutcome::Claimed(claim) => {
                                JidRecord::Claim(claim.claimed().clone())
                            }
                            ClaimOutcome::Settled(Settled::Known(record)) => record,
                            other => panic!("{other:?}"),
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let winner = scratch
            .store
            .jid(binding.jid)
            .expect("readable")
            .expect("one");
        assert!(records.iter().all(|record| *record == winner));
        assert_eq!(scratch.store.position().expect("readable").sequence, 1);
    }
}

#[test]
fn a_request_is_claimed_once_whatever_jid_and_generation_it_comes_with() {
    let scratch = scratch();
    drop(claimed(scratch.claim(&binding(5), 1)));
    assert!(matches!(
        scratch.claim(&binding(5), 1),
        ClaimOutcome::Settled(Settled::Known(_))
    ));
    assert!(matches!(
        scratch.claim(&binding(6), 9),
        ClaimOutcome::Settled(Settled::Conflict)
    ));
    // Also if only the first of the two files became durable.
    fs::remove_file(
        scratch
            .path("requests")
            .join(format!("{}.json", binding(5).request_id)),
    )
    .expect("removed");
    assert!(matches!(
        scratch.claim(&binding(6), 9),
        ClaimOutcome::Settled(Settled::Conflict)
    ));
    // Nor is there anything to refuse: what became of the request is known.
    let refused = scratch.store.refuse(&binding(7), 9, RefusalReason::Late);
    assert_eq!(refused.expect("the store works"), Settled::Conflict);
    for n in [6, 7] {
        assert_eq!(scratch.store.jid(binding(n).jid).expect("readable"), None);
    }
}

#[test]
fn a_refused_request_runs_under_another_jid_of_a_higher_generation_only() {
    let scratch = scratch();
    scratch
        .store
        .refuse(&binding(5), 1, RefusalReason::Busy)
        .expect("refused");
    assert!(matches!(
        scratch.claim(&binding(5), 2),
        ClaimOutcome::Settled(Settled::Known(_))
    ));
    assert!(matches!(
        scratch.claim(&binding(6), 1),
        ClaimOutcome::Settled(Settled::Conflict)
    ));
    claimed(scratch.claim(&binding(6), 2));
}

#[test]
fn a_jid_below_the_floor_is_not_claimed_unless_the_floor_lay_ahead_of_the_clock() {
    let scratch = scratch();
    scratch
        .store
        .refuse(&other_request(9), 1, RefusalReason::Clock)
        .expect("refused");
    claimed(scratch.claim(&other_request(5), 1));
    assert!(matches!(
        scratch.claim(&other_request(4), 1),
        ClaimOutcome::Refuse(RefusalReason::BelowFloor)
    ));
    scratch
        .store
        .refuse(&other_request(7), 1, RefusalReason::Late)
        .expect("refused");
    assert!(matches!(
        scratch.claim(&other_request(6), 1),
        ClaimOutcome::Refuse(RefusalReason::BelowFloor)
    ));
    claimed(scratch.claim(&other_request(8), 1));
}

#[test]
fn the_first_receipt_stands() {
    let scratch = scratch();
    let claim = claimed(scratch.claim(&binding(1), 1));
    let first = Receipt::new(binding(1), Outcome::Succeeded, 2, 2).expect("a receipt");
    let second = Receipt::new(binding(1), Outcome::Failed, 1, 2).expect("a receipt");
    assert_eq!(
        claim.commit(&scratch.store, &first, None).expect("durable"),
        first
    );
    assert_eq!(
        claim
            .commit(&scratch.store, &second, None)
            .expect("durable"),
        first
    );
    let file = fs::read(
        scratch
            .path("receipts")
            .join(format!("{}.json", binding(1).request_id)),
    )
    .expect("there");
    assert_eq!(file, first.to_json().as_bytes());
}

#[test]
fn a_lock_lasts_as_long_as_any_holder_of_its_descriptor() {
    let scratch = scratch();
    let request = binding(1).request_id;
    assert!(!scratch.store.is_running(request).expect("probed"));
    let lock = scratch
        .store
        .lock_request(request)
        .expect("lockable")
        .expect("free");
    let passed_on = lock.fd().try_clone_to_owned().expect("a descriptor");
    drop(lock);
    assert!(scratch.store.is_running(request).expect("probed"));
    assert!(
        scratch
            .store
            .lock_request(request)
            .expect("lockable")
            .is_none()
    );
    drop(passed_on);
    assert!(!scratch.store.is_running(request).expect("probed"));
}
