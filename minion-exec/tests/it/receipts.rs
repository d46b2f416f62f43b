//! `gw-exec receipts`, by hand on the minion.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Job, Minion};

fn receipts(store: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gw-exec"))
        .arg("receipts")
        .args(args)
        .arg("--store")
        .arg(store)
        .output()
        .expect("runs")
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8(output.stdout.clone())
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("json"))
        .collect()
}

/// One job that succeeded, one that was refused, and one that was abandoned.
fn lived_in() -> (Minion, [Job; 3]) {
    let minion = Minion::new();
    let jobs = [(); 3].map(|()| Job::fresh());
    let mut call = minion.run(&jobs[0]);
    call.called();
    call.finish(2, 0);
    drop(call);
    minion.end_of(&jobs[0]);
    minion.ask("revoke", &jobs[1], json!({}));
    let mut call = minion.run(&jobs[2]);
    call.called();
    call.executor
        .lock()
        .expect("no panic")
        .kill()
        .expect("killed");
    drop(call);
    (minion, jobs)
}

/// Every file below a directory with its content and times.
fn snapshot(directory: &Path) -> Vec<(String, Vec<u8>, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let metadata = fs::metadata(&path).expect("there");
        let name = path.to_string_lossy().into_owned();
        all.push((name, Vec::new(), metadata.modified().expect("a time")));
        if path.is_dir() {
            all.extend(snapshot(&path));
        } else {
            let last = all.last_mut().expect("just pushed");
            last.1 = fs::read(&path).expect("readable");
        }
    }
    all.sort();
    all
}

#[test]
fn list_and_show_tell_every_job_and_change_nothing() {
    let (minion, jobs) = lived_in();
    let before = snapshot(&minion.store());
    let listed = receipts(&minion.store(), &["list", "--json"]);
    assert_eq!(listed.status.code(), Some(0));
    let told: Vec<(Value, Value, Value)> = lines(&listed)
        .iter()
        .map(|job| {
            (
                job["jid"].clone(),
                job["state"].clone(),
                job["reason"].clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (json!(jobs[0].jid), json!("succeeded"), json!(null)),
            (json!(jobs[1].jid), json!("refused"), json!("revoked")),
            (json!(jobs[2].jid), json!("abandoned"), json!(null)),
        ]
    );
    let text = String::from_utf8(receipts(&minion.store(), &["list"]).stdout).expect("text");
    assert_eq!(text.lines().count(), 3);
    assert!(
        text.contains("refused (revoked)") && text.contains("2/2"),
        "{text}"
    );

    for name in [jobs[0].jid.to_string(), jobs[0].request_id.to_string()] {
        let shown = receipts(&minion.store(), &["show", &name, "--json"]);
        assert_eq!(lines(&shown)[0]["receipt"]["passed"], 2);
    }
    let unknown = receipts(&minion.store(), &["show", "20200101000000000000"]);
    assert_eq!(unknown.status.code(), Some(1));
    let nonsense = receipts(&minion.store(), &["show", "yesterday"]);
    assert_eq!(nonsense.status.code(), Some(2));
    let verified = receipts(&minion.store(), &["verify"]);
    assert_eq!(
        (
            verified.status.code(),
            String::from_utf8_lossy(&verified.stdout).as_ref()
        ),
        (Some(0), "3 records, newest number 3, 0 findings\n")
    );
    assert_eq!(snapshot(&minion.store()), before);
}

#[test]
fn verify_finds_what_no_executor_leaves() {
    let found = |spoil: &dyn Fn(&Path, &[Job; 3])| {
        let (minion, jobs) = lived_in();
        spoil(&minion.store(), &jobs);
        let verified = receipts(&minion.store(), &["verify", "--json"]);
        assert_eq!(verified.status.code(), Some(1), "{verified:?}");
        lines(&verified)[0]["findings"].to_string()
    };
    let jid_file = |store: &Path, job: &Job| store.join(format!("jids/{}.json", job.jid));
    let altered = found(&|store, jobs| {
        let path = jid_file(store, &jobs[1]);
        let text = fs::read_to_string(&path).expect("readable");
        fs::write(&path, text.replace("revoked", "invalid")).expect("written");
    });
    assert!(altered.contains("does not follow"), "{altered}");
    let lost = found(&|store, jobs| fs::remove_file(jid_file(store, &jobs[1])).expect("removed"));
    assert!(lost.contains("gap"), "{lost}");
    let orphan = found(&|store, jobs| fs::remove_file(jid_file(store, &jobs[0])).expect("removed"));
    assert!(orphan.contains("no claim that it belongs to"), "{orphan}");
    let torn = found(&|store, jobs| fs::write(jid_file(store, &jobs[1]), "{").expect("written"));
    assert!(torn.contains("damaged or foreign"), "{torn}");
    let open = found(&|store, jobs| {
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(jid_file(store, &jobs[0]), mode).expect("changed");
    });
    assert!(open.contains("mode 0600"), "{open}");
    let stray = found(&|store, _| {
        let path = store.join("requests/notes.txt");
        fs::write(&path, "").expect("written");
    });
    assert!(stray.contains("notes.txt"), "{stray}");
}

#[test]
fn a_store_that_is_not_there_is_an_error_and_is_not_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("none");
    let output = receipts(&store, &["list"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"));
    assert!(!store.exists());
}
