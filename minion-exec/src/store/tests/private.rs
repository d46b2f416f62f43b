//! **private-storage**: files and directories that are not as they must be.

use super::*;

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
        .claim(&other_request(2), 1, Survival::None, |_| None, locks)
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
    let open_spoiled = |spoil: &dyn Fn(&Path)| {
        let scratch = scratch();
        let path = scratch.path("");
        spoil(&path);
        open(&path).expect_err("refused").to_string()
    };
    let chmod = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o750)).expect("changed");
    };
    assert!(open_spoiled(&chmod).contains("mode 0700"));
    assert!(open_spoiled(&|path| chmod(&path.join("jids"))).contains("mode 0700"));
    assert!(
        open_spoiled(&|path| {
            let moved = path.with_file_name("moved");
            fs::rename(path, &moved).expect("renamed");
            symlink(&moved, path.with_file_name("job-receipts")).expect("linked");
        })
        .contains("cannot open")
    );
    let error = open(Path::new("relative")).expect_err("refused");
    assert!(error.to_string().contains("absolute"));
    let error = open(Path::new("/proc/no/such/place")).expect_err("refused");
    assert!(error.to_string().contains("cannot make"), "{error}");
}

#[test]
fn a_store_below_a_directory_that_another_user_can_change_is_refused() {
    let scratch = scratch();
    let above = scratch.directory.path();
    let open_with = |mode: u32| {
        fs::set_permissions(above, fs::Permissions::from_mode(mode)).expect("changed");
        open(&scratch.path("")).map(drop)
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
