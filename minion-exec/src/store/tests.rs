//! The store against racing writers and against files that are not as they must be.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Barrier;

use super::*;
use crate::testing::{binding, other_request};

struct Scratch {
    directory: tempfile::TempDir,
    store: Store,
}

fn scratch() -> Scratch {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(&directory.path().join("oduflow/job-receipts")).expect("a store");
    Scratch { directory, store }
}

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.directory
            .path()
            .join("oduflow/job-receipts")
            .join(name)
    }

    fn claim(&self, binding: &Binding, generation: u32) -> ClaimOutcome {
        claim(&self.store, binding, generation)
    }
}

fn claim(store: &Store, binding: &Binding, generation: u32) -> ClaimOutcome {
    let execution = store.lock_execution().expect("lockable").expect("free");
    let request = store
        .lock_request(binding.request_id)
        .expect("lockable")
        .expect("free");
    store
        .claim(binding, generation, || None, [execution, request])
        .expect("the store works")
}

fn claimed(outcome: ClaimOutcome) -> Claim {
    match outcome {
        ClaimOutcome::Claimed(claim) => claim,
        other => panic!("not claimed: {other:?}"),
    }
}

#[test]
fn everything_in_a_store_is_private_and_has_one_link() {
    let scratch = scratch();
    let claim = claimed(scratch.claim(&binding(1), 1));
    let receipt = Receipt::new(binding(1), Outcome::Unknown, 0, 0).expect("a receipt");
    claim
        .commit(&scratch.store, &receipt, Some(UnknownReason::WorkerDied))
        .expect("durable");
    let mut waiting = vec![scratch.path("")];
    let mut files = 0;
    while let Some(directory) = waiting.pop() {
        assert_eq!(
            fs::metadata(&directory).expect("there").mode() & 0o7777,
            0o700
        );
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("there");
            if metadata.is_dir() {
                waiting.push(path);
            } else {
                assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (0o600, 1));
                files += 1;
            }
        }
    }
    // Identity, jid, request, reason, receipt, three locks: and no temporary file.
    assert_eq!(files, 8);
}

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
                        let store = Store::open(&scratch.path("")).expect("a store");
                        start.wait();
                        if n % 2 == 0 {
                            return store
                                .refuse(binding, 1, RefusalReason::Late)
                                .expect("the store works")
                                .expect("refused or known");
                        }
                        let locks = [
                            Lock::try_take(&store.locks, &format!("a{n}")),
                            Lock::try_take(&store.locks, &format!("b{n}")),
                        ]
                        .map(|lock| lock.expect("lockable").expect("free"));
                        match store
                            .claim(binding, 1, || None, locks)
                            .expect("the store works")
                        {
                            ClaimOutcome::Claimed(claim) => {
                                JidRecord::Claim(claim.claimed().clone())
                            }
                            ClaimOutcome::Known(record) => record,
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
fn a_request_is_claimed_once_whatever_jid_and_generation_it_comes_with() {
    let scratch = scratch();
    drop(claimed(scratch.claim(&binding(5), 1)));
    assert!(matches!(
        scratch.claim(&binding(5), 1),
        ClaimOutcome::Known(_)
    ));
    assert!(matches!(
        scratch.claim(&binding(6), 9),
        ClaimOutcome::Conflict
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
        ClaimOutcome::Conflict
    ));
    // Nor is there anything to refuse: what became of the request is known.
    let refused = scratch.store.refuse(&binding(7), 9, RefusalReason::Late);
    assert_eq!(refused.expect("the store works"), None);
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
        ClaimOutcome::Known(_)
    ));
    assert!(matches!(
        scratch.claim(&binding(6), 1),
        ClaimOutcome::Conflict
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

/// Replaces the jid's file, and expects an error about it, no claim, and the file left as it was.
fn spoiled(spoil: impl FnOnce(&Path)) -> String {
    let scratch = scratch();
    scratch
        .store
        .refuse(&binding(1), 1, RefusalReason::Late)
        .expect("refused");
    let path = scratch
        .path("jids")
        .join(format!("{}.json", binding(1).jid));
    spoil(&path);
    let before = fs::symlink_metadata(&path).expect("there");
    let error = scratch.store.jid(binding(1).jid).expect_err("refused");
    assert!(
        error.to_string().contains(binding(1).jid.as_str()),
        "{error}"
    );
    let locks = [EXECUTION, INDEX].map(|name| {
        Lock::try_take(&scratch.store.reasons, name)
            .expect("lockable")
            .expect("free")
    });
    scratch
        .store
        .claim(&other_request(2), 1, || None, locks)
        .expect_err("nothing runs on a spoiled store");
    let after = fs::symlink_metadata(&path).expect("still there");
    assert_eq!(
        (
            before.ino(),
            before.mode(),
            before.len(),
            before.mtime_nsec()
        ),
        (after.ino(), after.mode(), after.len(), after.mtime_nsec())
    );
    error.to_string()
}

#[test]
fn a_file_that_is_not_private_or_not_ours_is_reported_and_left_alone() {
    let rewrite = |path: &Path, content: &[u8]| fs::write(path, content).expect("written");
    assert!(
        spoiled(|path| {
            let elsewhere = path.with_extension("elsewhere");
            fs::rename(path, &elsewhere).expect("renamed");
            symlink(&elsewhere, path).expect("linked");
        })
        .contains("symbolic link")
    );
    assert!(
        spoiled(|path| fs::hard_link(path, path.with_extension("twin")).expect("linked"))
            .contains("one link")
    );
    assert!(
        spoiled(|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("changed");
        })
        .contains("mode 0600")
    );
    assert!(
        spoiled(|path| {
            fs::remove_file(path).expect("removed");
            fs::create_dir(path).expect("made");
        })
        .contains("regular file")
    );
    assert!(
        spoiled(|path| {
            fs::remove_file(path).expect("removed");
            nix_fifo(path);
        })
        .contains("regular file")
    );
    assert!(spoiled(|path| rewrite(path, b"")).contains("damaged or foreign"));
    assert!(spoiled(|path| rewrite(path, b"{\"format\":2,\"record\":{}}")).contains("damaged"));
    assert!(spoiled(|path| rewrite(path, &[b' '; 5000])).contains("limit of 4096"));
    assert!(
        spoiled(|path| {
            let torn = fs::read(path).expect("readable");
            rewrite(path, &torn[..torn.len() / 2]);
        })
        .contains("damaged or foreign")
    );
    assert!(
        spoiled(|path| {
            let other = fs::read_to_string(path).expect("readable");
            rewrite(
                path,
                other.replace("220939000001", "220939000002").as_bytes(),
            );
        })
        .contains("another job")
    );
    // Only root can give a file away.
    if rustix::process::geteuid().is_root() {
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(65534), None).expect("given");
        assert!(spoiled(give).contains("owned by"));
    }
}

fn nix_fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("made");
}

#[test]
fn a_store_directory_that_is_not_private_is_refused() {
    let open = |spoil: &dyn Fn(&Path)| {
        let scratch = scratch();
        let path = scratch.path("");
        spoil(&path);
        Store::open(&path).expect_err("refused").to_string()
    };
    let chmod = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o750)).expect("changed");
    };
    assert!(open(&chmod).contains("mode 0700"));
    assert!(open(&|path| chmod(&path.join("jids"))).contains("mode 0700"));
    assert!(
        open(&|path| {
            let moved = path.with_file_name("moved");
            fs::rename(path, &moved).expect("renamed");
            symlink(&moved, path.with_file_name("job-receipts")).expect("linked");
        })
        .contains("cannot open")
    );
    let error = Store::open(Path::new("relative")).expect_err("refused");
    assert!(error.to_string().contains("absolute"));
    let error = Store::open(Path::new("/proc/no/such/place")).expect_err("refused");
    assert!(error.to_string().contains("cannot make"), "{error}");
}

#[test]
fn a_store_that_lost_a_directory_or_its_identity_is_refused_and_nothing_is_made_anew() {
    for lost in ["jids", "requests", "reasons", "receipts", "locks"] {
        let scratch = scratch();
        fs::remove_dir_all(scratch.path(lost)).expect("removed");
        let error = Store::open(&scratch.path("")).expect_err("refused");
        assert!(error.to_string().contains("stays in place"), "{error}");
        assert!(!scratch.path(lost).exists());
    }
    let scratch = scratch();
    let refused = scratch
        .store
        .refuse(&binding(1), 1, RefusalReason::Late)
        .expect("refused");
    fs::remove_file(scratch.path("store.json")).expect("removed");
    let error = Store::open(&scratch.path("")).expect_err("refused");
    assert!(error.to_string().contains("store.json"), "{error}");
    assert!(!scratch.path("store.json").exists());
    assert_eq!(
        scratch.store.jid(binding(1).jid).expect("readable"),
        refused
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
        let first = Store::open(&store).expect("a store").id;
        assert_eq!(Store::open(&store).expect("a store").id, first);
    }
}

#[test]
fn of_many_executors_that_make_the_store_all_open_the_same_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("oduflow/job-receipts");
    let start = Barrier::new(8);
    let open = |n: u32| {
        start.wait();
        let store = Store::open(&path).expect("a store");
        store
            .refuse(&other_request(n), 1, RefusalReason::Late)
            .expect("refused");
        store.id
    };
    let ids: Vec<Token> = std::thread::scope(|scope| {
        let open = &open;
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || open(n))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
}

#[test]
fn a_store_below_a_directory_that_another_user_can_change_is_refused() {
    let scratch = scratch();
    let above = scratch.directory.path();
    let open_with = |mode: u32| {
        fs::set_permissions(above, fs::Permissions::from_mode(mode)).expect("changed");
        Store::open(&scratch.path("")).map(drop)
    };
    open_with(0o755).expect("a store");
    open_with(0o1777).expect("a sticky directory is fine");
    for mode in [0o775, 0o757] {
        let error = open_with(mode).expect_err("refused");
        assert!(error.to_string().contains("nobody but root"), "{error}");
    }
    open_with(0o755).expect("a store");
    // Only root can give a directory away.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(above, Some(65534), None).expect("given");
        open_with(0o755).expect_err("refused");
    }
}
