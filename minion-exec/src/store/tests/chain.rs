//! The chain of records, and what a gateway has seen of it.

use gw_wire::reply::StorePosition;

use super::*;

fn refuse(store: &Store, n: u32) -> Settled {
    store
        .refuse(&other_request(n), 1, RefusalReason::Late)
        .expect("the store works")
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(copied.expect("cp runs").success());
}

/// Whether the store would claim something new.
fn trusted(store: &Store) -> bool {
    let identity = store.identity().expect("readable");
    store.distrust(&identity).is_none()
}

#[test]
fn each_record_counts_one_and_names_the_one_before() {
    let scratch = scratch();
    let start = scratch.store.position().expect("readable");
    assert_eq!(start.sequence, 0);
    let mut previous = start.head;
    for n in 1..=5 {
        if n == 3 {
            drop(claimed(scratch.claim(&binding(n), 1)));
        } else {
            record(refuse(&scratch.store, n));
        }
        let position = scratch.store.position().expect("readable");
        assert_eq!(position.sequence, u64::from(n));
        let mut seen = Vec::new();
        scratch
            .store
            .each_record(|linked, head| seen.push((linked.sequence, linked.previous, head)))
            .expect("readable");
        let newest = seen
            .into_iter()
            .find(|(sequence, ..)| *sequence == u64::from(n))
            .expect("there");
        assert_eq!(newest, (u64::from(n), previous, position.head.clone()));
        previous = position.head;
    }
}

#[test]
fn a_store_that_was_rolled_back_runs_nothing_until_its_new_id_is_named() {
    let scratch = scratch();
    record(refuse(&scratch.store, 1));
    let early = scratch.store.position().expect("readable");
    let backup = scratch.directory.path().join("backup");
    copy(&scratch.path(""), &backup);
    record(refuse(&scratch.store, 2));
    let seen = scratch.store.position().expect("readable");
    for position in [&early, &seen] {
        scratch.store.meet(Some(position)).expect("works");
        assert!(trusted(&scratch.store), "the chain has {position:?}");
    }

    fs::remove_dir_all(scratch.path("")).expect("removed");
    copy(&backup, &scratch.path(""));
    let store = open(&scratch.path("")).expect("a store");
    // It has grown beyond what was seen of it meanwhile, with other records.
    for n in 3..6 {
        record(refuse(&store, n));
    }
    store.meet(Some(&early)).expect("works");
    assert!(trusted(&store));
    store.meet(Some(&seen)).expect("works");
    let changed = store.position().expect("readable");
    assert_ne!(changed.id, seen.id);
    let distrusted = |n| match claim(&store, &other_request(n), 1) {
        ClaimOutcome::Settled(Settled::Distrusted(reason)) => {
            reason == NotClaimedReason::StoreChanged
        }
        other => panic!("{other:?}"),
    };
    assert!(distrusted(7));
    assert_eq!(
        refuse(&store, 7),
        Settled::Distrusted(NotClaimedReason::StoreChanged)
    );

    // Neither a gateway that knows nothing, nor the old position again, changes that, nor draws a third id.
    for seen in [None, Some(&seen), Some(&early)] {
        store.meet(seen).expect("works");
        assert!(distrusted(7));
        assert_eq!(store.position().expect("readable"), changed);
    }
    // What is known is still answered.
    let known = other_request(1);
    assert!(store.jid(known.jid).expect("readable").is_some());

    store.meet(Some(&changed)).expect("works");
    claimed(claim(&store, &other_request(7), 1));
    assert_eq!(store.position().expect("readable").id, changed.id);
}

#[test]
fn a_new_store_in_the_place_of_one_that_was_seen_runs_nothing() {
    let scratch = scratch();
    let seen = StorePosition {
        id: Token::random(),
        sequence: 0,
        head: Sha256Hex::of(b"another genesis"),
    };
    let before = scratch.store.position().expect("readable");
    scratch.store.meet(Some(&seen)).expect("works");
    assert!(!trusted(&scratch.store));
    assert_ne!(scratch.store.position().expect("readable").id, before.id);
    // Its own beginning, under the old id, is not enough either.
    scratch.store.meet(Some(&before)).expect("works");
    assert!(!trusted(&scratch.store));
}

#[test]
fn a_store_of_another_machine_runs_nothing_whatever_a_gateway_says() {
    let scratch = scratch();
    let id = scratch.directory.path().join("machine-id");
    fs::write(&id, "0123456789abcdef0123456789abcdef\n").expect("written");
    let machine = Machine::at(&id, "/no/product_uuid".as_ref()).expect("readable");
    let clone = Store::open(&scratch.path(""), machine.clone()).expect("a store");
    clone
        .meet(Some(&clone.position().expect("readable")))
        .expect("works");
    assert_eq!(
        refuse(&clone, 1),
        Settled::Distrusted(NotClaimedReason::Machine)
    );
    assert!(matches!(
        claim(&clone, &other_request(1), 1),
        ClaimOutcome::Settled(Settled::Distrusted(NotClaimedReason::Machine))
    ));
    // The machine itself goes on.
    claimed(scratch.claim(&binding(1), 1));
    let json = fs::read_to_string(scratch.path("store.json")).expect("readable");
    assert!(!json.contains("0123456789abcdef0123456789abcdef"), "{json}");
}
