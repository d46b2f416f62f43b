//! Making a store, at once and after a crash.

use super::*;

#[test]
fn of_many_writers_of_one_name_exactly_one_is_first_without_any_lock() {
    let scratch = scratch();
    for round in 0..20 {
        let name = format!("{round}.json");
        let start = Barrier::new(4);
        let write = |n: u8| {
            start.wait();
            let created = scratch.store.reasons.create(&name, &[n; 1000]);
            usize::from(created.expect("the store works") == Created::New)
        };
        let firsts: usize = std::thread::scope(|scope| {
            let write = &write;
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || write(n))).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("no panic"))
                .sum()
        });
        assert_eq!(firsts, 1);
        let content = scratch
            .store
            .reasons
            .read(&name, 1000)
            .expect("readable")
            .expect("there");
        assert!(content.iter().all(|byte| *byte == content[0]));
    }
    assert_eq!(
        fs::read_dir(scratch.path("reasons"))
            .expect("there")
            .count(),
        20
    );
}

#[test]
fn a_store_that_lost_a_directory_or_its_identity_is_refused_and_nothing_is_made_anew() {
    for lost in DIRECTORIES {
        let scratch = scratch();
        fs::remove_dir_all(scratch.path(lost)).expect("removed");
        let error = open(&scratch.path("")).expect_err("refused");
        assert!(error.to_string().contains("stays in place"), "{error}");
        assert!(!scratch.path(lost).exists());
    }
    let scratch = scratch();
    let refused = scratch
        .store
        .refuse(&binding(1), 1, RefusalReason::Late)
        .expect("refused");
    fs::remove_file(scratch.path("store.json")).expect("removed");
    let error = open(&scratch.path("")).expect_err("refused");
    assert!(error.to_string().contains("store.json"), "{error}");
    assert!(!scratch.path("store.json").exists());
    assert_eq!(
        scratch.store.jid(binding(1).jid).expect("readable"),
        Some(record(refused))
    );
}

#[test]
fn a_store_whose_making_was_cut_anywhere_is_made_by_the_next_executor() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut made = Vec::new();
    for part in ["oduflow", "job-receipts", "jids", "requests", "locks"] {
        made.push(part);
        let path = directory.path().join(made.len().to_string());
        fs::create_dir(&path).expect("made");
        let store = path.join("oduflow/job-receipts");
        for part in &made {
            let part = match *part {
                "oduflow" => path.join(part),
                "job-receipts" => store.clone(),
                part => store.join(part),
            };
            fs::create_dir(&part).expect("made");
            fs::set_permissions(part, fs::Permissions::from_mode(0o700)).expect("changed");
        }
        let first = open(&store)
            .expect("a store")
            .identity()
            .expect("readable")
            .id;
        assert_eq!(
            open(&store)
                .expect("a store")
                .identity()
                .expect("readable")
                .id,
            first
        );
    }
}

#[test]
fn of_many_executors_that_make_the_store_all_open_the_same_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("oduflow/job-receipts");
    let start = Barrier::new(8);
    let make = |n: u32| {
        start.wait();
        let store = open(&path).expect("a store");
        store
            .refuse(&other_request(n), 1, RefusalReason::Late)
            .expect("refused");
        store.identity().expect("readable").id
    };
    let ids: Vec<Token> = std::thread::scope(|scope| {
        let make = &make;
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || make(n))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
}
