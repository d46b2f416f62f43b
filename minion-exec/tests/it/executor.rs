//! The real `gw-exec`, spoken to as Salt's module speaks to it, with a gateway that verifies every reply.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Call, Job, Minion, fresh_jid};
use gw_wire::id::Jid;
use gw_wire::receipt::Outcome;
use gw_wire::reply::{Answer, NotClaimedReason, Problem, RefusalReason, Reply, UnknownReason};
use serde_json::{Value, json};

fn no_return() -> Value {
    json!({"__no_return__": true})
}

fn outcome(answer: &Answer) -> (Outcome, u32, u32, Option<UnknownReason>) {
    match answer {
        Answer::Receipt {
            receipt, reason, ..
        } => (
            receipt.outcome(),
            receipt.passed(),
            receipt.total(),
            *reason,
        ),
        other => panic!("not a receipt: {other:?}"),
    }
}

fn refusal(answer: &Answer) -> RefusalReason {
    match answer {
        Answer::Refused { reason, .. } => *reason,
        other => panic!("not a refusal: {other:?}"),
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}

#[test]
fn a_job_is_called_once_with_fixed_options_and_its_signed_receipt_arrives() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    let mut order = call.called();
    let claim_id = order["claim_id"].take();
    assert!(claim_id.is_string(), "{claim_id}");
    assert_eq!(
        order,
        json!({"do": "call", "claim_id": null, "survival": "none", "fun": "state.sls", "arg": ["roles.client_stack"],
               "kwarg": {"test": false, "queue": false, "concurrent": false, "state_events": false}})
    );
    assert_eq!(minion.status(&job).kind(), "running");
    call.say(&json!({"progress": [37, 60]}));
    minion.reply(|reply| {
        matches!(
            reply.answer,
            Answer::Running {
                done: Some(37),
                total: Some(60),
                ..
            }
        )
    });
    // receipt-before-return: when the module may return, the receipt is there.
    assert!(!minion.receipt_file(&job).exists());
    assert_eq!(call.finish(60, 0), no_return());
    assert!(minion.receipt_file(&job).exists());
    drop(call);
    let answer = minion.end_of(&job);
    assert_eq!(outcome(&answer), (Outcome::Succeeded, 60, 60, None));
    assert_eq!(minion.status(&job), answer);
}

#[test]
fn a_failed_state_makes_a_failed_receipt_and_a_compile_error_an_unknown_one() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    call.finish(59, 1);
    drop(call);
    assert_eq!(
        outcome(&minion.end_of(&job)),
        (Outcome::Failed, 59, 60, None)
    );

    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    call.say(
        &json!({"result": {"shape": "list", "true": 0, "false": 0, "other": 0, "missing": 0}}),
    );
    call.returned();
    drop(call);
    let want = (Outcome::Unknown, 0, 0, Some(UnknownReason::NotAMapping));
    assert_eq!(outcome(&minion.end_of(&job)), want);
    assert_eq!(outcome(&minion.status(&job)), want);
}

#[test]
fn a_word_that_makes_no_sense_ends_in_an_unknown_receipt() {
    for word in [
        "{\"result\":{}}",
        "CANARY",
        &"x".repeat(10_000),
        "{\"progress\":[-1,2]}",
    ] {
        let minion = Minion::new();
        let job = Job::fresh();
        let mut call = minion.run(&job);
        call.called();
        call.say_raw(word);
        assert_eq!(call.returned(), no_return());
        drop(call);
        let (outcome, _, _, reason) = outcome(&minion.end_of(&job));
        assert_eq!(
            (outcome, reason),
            (Outcome::Unknown, Some(UnknownReason::Malformed))
        );
        assert!(!crate::support::holds(&minion.store(), "CANARY"));
    }
}

#[test]
fn the_same_publication_delivered_again_is_not_called_again() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut first = minion.run(&job);
    first.called();
    // While it runs. What the first executor says by itself comes before this, or with a count.
    first.say(&json!({"progress": [1, 2]}));
    let counted = |reply: &Reply| matches!(reply.answer, Answer::Running { done: Some(1), .. });
    minion.reply(counted);
    minion.forget_replies();
    assert_eq!(minion.run(&job).returned(), no_return());
    minion.reply(|reply| reply.answer.kind() == "running" && !counted(reply));
    first.finish(1, 0);
    drop(first);
    let answer = minion.end_of(&job);
    // And after its end, past its not-after time too: the jid is looked up first.
    minion.forget_replies();
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["not_after"] = 1.into();
    assert_eq!(minion.start("run", &facts).returned(), no_return());
    assert_eq!(minion.end_of(&job), answer);
    assert_eq!(minion.jid_files(), 1);
}

#[test]
fn of_the_same_publication_delivered_twice_at_once_one_runs_and_none_is_refused() {
    for _ in 0..5 {
        let minion = Minion::new();
        let job = Job::fresh();
        // Both are under way before the first one can claim.
        let index = minion.hold_index();
        let twins = [minion.run(&job), minion.run(&job)];
        std::thread::sleep(Duration::from_millis(300));
        drop(index);
        let calls = twins.map(|mut twin| {
            let called = twin.order()["do"] == "call";
            called.then(|| twin.finish(1, 0));
            u32::from(called)
        });
        assert_eq!(calls.iter().sum::<u32>(), 1);
        assert_eq!(outcome(&minion.end_of(&job)).0, Outcome::Succeeded);
    }
}

#[test]
fn the_same_request_under_another_jid_is_a_conflict_that_shows_the_receipt() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    let again = job.again();
    assert_eq!(minion.run(&again).returned(), no_return());
    assert!(matches!(
        minion.end_of(&again),
        Answer::Conflict { receipt: None, .. }
    ));
    call.finish(1, 0);
    drop(call);
    minion.end_of(&job);
    let again = job.again();
    assert_eq!(minion.run(&again).returned(), no_return());
    assert!(matches!(
        minion.end_of(&again),
        Answer::Conflict {
            receipt: Some(_),
            ..
        }
    ));
    assert!(matches!(
        minion.status(&again),
        Answer::Conflict {
            receipt: Some(_),
            ..
        }
    ));
    // Whatever else would refuse it.
    type Change = fn(&mut Value);
    let changes: [Change; 3] = [
        |f| f["metadata"]["gw"]["not_after"] = 1.into(),
        |f| f["sudo_user"] = true.into(),
        |f| f["unexpected"] = 1.into(),
    ];
    for change in changes {
        let again = job.again();
        let mut facts = minion.run_facts(&again);
        change(&mut facts);
        assert_eq!(minion.start("run", &facts).returned(), no_return());
        assert_eq!(minion.end_of(&again).kind(), "conflict");
    }
    assert_eq!(minion.jid_files(), 1);
}

#[test]
fn a_second_job_is_refused_for_ever_while_one_runs() {
    let minion = Minion::new();
    let first = Job::fresh();
    let mut call = minion.run(&first);
    call.called();
    let second = Job::fresh();
    assert_eq!(minion.run(&second).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&second)), RefusalReason::Busy);
    call.finish(1, 0);
    drop(call);
    minion.end_of(&first);
    // Delivered again when nothing runs: still refused. A new generation of the request may run.
    minion.forget_replies();
    assert_eq!(minion.run(&second).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&second)), RefusalReason::Busy);
    assert_eq!(refusal(&minion.status(&second)), RefusalReason::Busy);
    let again = second.again();
    assert_eq!(minion.run(&again).returned(), no_return());
    assert_eq!(minion.end_of(&again).kind(), "conflict");
    let again = second.again();
    let mut facts = minion.run_facts(&again);
    facts["metadata"]["gw"]["generation"] = 2.into();
    minion.start("run", &facts).called();
}

#[test]
fn a_dead_executor_leaves_its_worker_the_locks_and_no_receipt() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    let mut executor = call.executor.lock().expect("no panic");
    executor.kill().expect("killed");
    executor.wait().expect("gone");
    drop(executor);
    assert_eq!(minion.status(&job).kind(), "running");
    let other = Job::fresh();
    assert_eq!(minion.run(&other).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&other)), RefusalReason::Busy);
    drop(call);
    assert_eq!(minion.status(&job).kind(), "abandoned");
    assert_eq!(minion.run(&job).returned(), no_return());
    minion.reply(|reply| reply.nonce.is_none() && reply.answer.kind() == "abandoned");
}

/// Not a test of its own: the worker that [`a_killed_worker_makes_an_unknown_receipt_and_keeps_others_out_until_it_is_known`] kills.
#[test]
#[ignore = "run by another test"]
fn a_worker_that_never_ends() {
    let facts = std::env::var("GW_EXEC_TEST_FACTS").expect("started by the other test");
    let mut call = Call::start_with("run", &facts);
    call.called();
    std::fs::write(std::env::var("GW_EXEC_TEST_CALLED").expect("a path"), "").expect("written");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_worker_makes_an_unknown_receipt_and_keeps_others_out_until_it_is_known() {
    let minion = Minion::new();
    let job = Job::fresh();
    // Nobody listens on the reply port at first.
    let port = free_port();
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["reply_port"] = port.into();
    let called = minion.key().with_file_name("called");
    let mut worker = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args([
            "--exact",
            "executor::a_worker_that_never_ends",
            "--ignored",
            "--nocapture",
        ])
        .env("GW_EXEC_TEST_FACTS", facts.to_string())
        .env("GW_EXEC_TEST_CALLED", &called)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("started");
    while !called.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.kill().expect("killed");
    worker.wait().expect("gone");
    let want = (Outcome::Unknown, 0, 0, Some(UnknownReason::WorkerDied));
    while !minion.receipt_file(&job).exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(outcome(&minion.status(&job)), want);
    let other = Job::fresh();
    assert_eq!(minion.run(&other).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&other)), RefusalReason::Busy);
    minion.forget_replies();
    minion.listen_on(port);
    assert_eq!(outcome(&minion.end_of(&job)), want);
    // The executor ends when it has heard the acknowledgement.
    std::thread::sleep(Duration::from_secs(1));
    minion.run(&Job::fresh()).called();
}

#[test]
fn a_worker_that_cannot_be_told_what_to_call_makes_an_unknown_receipt() {
    let minion = Minion::new();
    let job = Job::fresh();
    // Its end of the socket is closed before the order, and its process (this one) lives on.
    drop(minion.run(&job));
    let want = (Outcome::Unknown, 0, 0, Some(UnknownReason::WorkerDied));
    assert_eq!(outcome(&minion.end_of(&job)), want);
}

#[test]
fn what_comes_too_late_too_early_or_out_of_order_is_refused_for_ever() {
    let minion = Minion::new();
    let earlier = Job::fresh();

    let late = Job::fresh();
    let mut facts = minion.run_facts(&late);
    facts["metadata"]["gw"]["not_after"] = (gw_wire::id::now().as_second() - 1).into();
    assert_eq!(minion.start("run", &facts).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&late)), RefusalReason::Late);
    // The tombstone decides, not the clock.
    minion.forget_replies();
    assert_eq!(minion.run(&late).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&late)), RefusalReason::Late);

    let in_ten_minutes = gw_wire::id::now() + jiff::SignedDuration::from_mins(10);
    let early = Job {
        jid: Jid::at(in_ten_minutes),
        ..Job::fresh()
    };
    assert_eq!(minion.run(&early).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&early)), RefusalReason::Clock);

    assert_eq!(minion.run(&earlier).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&earlier)), RefusalReason::BelowFloor);

    minion.run(&Job::fresh()).called();
}

#[test]
fn a_job_that_becomes_late_while_it_waits_for_the_store_is_refused() {
    let minion = Minion::new();
    let job = Job::fresh();
    let index = minion.hold_index();
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["not_after"] = (gw_wire::id::now().as_second() + 1).into();
    let mut call = minion.start("run", &facts);
    std::thread::sleep(Duration::from_millis(2500));
    drop(index);
    assert_eq!(call.returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&job)), RefusalReason::Late);
}

#[test]
fn an_invalid_request_is_refused_by_name_or_answered_with_an_error() {
    let minion = Minion::new();
    for (change, value) in [
        (
            "/args/state_data_json",
            json!("{\"a\":{\"test\":[\"nop\"]}}"),
        ),
        ("/args/profile", json!("custom")),
        ("/unexpected", json!(1)),
    ] {
        let job = Job::fresh();
        let mut facts = minion.run_facts(&job);
        *facts.pointer_mut(change).expect("a fact") = value;
        assert_eq!(
            minion.start("run", &facts).returned(),
            no_return(),
            "{change}"
        );
        assert_eq!(
            refusal(&minion.end_of(&job)),
            RefusalReason::Invalid,
            "{change}"
        );
    }
    let high_data = |text: &str| ("custom".to_owned(), text.to_owned());
    for (profile, state_data) in [
        high_data(r#"{"a":{"x":1},"a":{"x":2}}"#),
        high_data(r#"{"a":{"x":NaN}}"#),
        high_data(r#"{"a":{"cmd":["run",{"parallel":true}]}}"#),
        high_data(&format!(r#"{{"a":{{"x":"{}"}}}}"#, "y".repeat(200_000))),
    ] {
        let job = Job::fresh();
        let args = json!({"request_id": job.request_id, "profile": profile, "state_data_json": state_data});
        assert_eq!(
            minion.start("run", &minion.facts(job.jid, args)).returned(),
            no_return()
        );
        assert_eq!(refusal(&minion.end_of(&job)), RefusalReason::Invalid);
    }

    let refused = minion.jid_files();
    for (change, value) in [
        (
            "/args/request_id",
            json!("0B0E4567-E89B-42D3-A456-426614174000"),
        ),
        (
            "/args/request_id",
            json!("0b0e4567e89b42d3a456426614174000"),
        ),
        ("/args/request_id", json!({"__kwarg__": true})),
        ("/args/profile", json!("Sudo")),
        ("/args/state_data_json", Value::Null),
        ("/jid", json!("20261399999999999999")),
        ("/jid", Value::Null),
        ("/minion_id", json!("client/../x")),
        ("/minion_id", json!("a\u{0}b")),
        ("/minion_id", json!("x".repeat(300))),
    ] {
        let mut facts = minion.run_facts(&Job::fresh());
        *facts.pointer_mut(change).expect("a fact") = value;
        let returned = minion.start("run", &facts).returned();
        assert_eq!(returned["error"], "invalid", "{change}: {returned}");
    }
    let long = minion
        .run_facts(&Job::fresh())
        .to_string()
        .replace("configure", &"x".repeat(1 << 20));
    assert_eq!(
        minion.start_with("run", &long).returned()["error"],
        "too_long"
    );
    for line in ["", "{", "[]", "{\"args\":{}}", "\u{0}"] {
        assert_eq!(minion.start_with("run", line).returned()["error"], "facts");
    }
    assert_eq!(minion.jid_files(), refused);
}

#[test]
fn an_incapable_minion_says_why_and_refuses() {
    let minion = Minion::new();
    let ask = |change: &dyn Fn(&mut Value)| {
        let mut facts = minion.facts(fresh_jid(), json!({}));
        change(&mut facts);
        minion.forget_replies();
        let returned = minion.start("capability", &facts).returned();
        assert_eq!(returned, no_return());
        match minion.reply(|_| true).answer {
            Answer::Capability(capability) => capability,
            other => panic!("{other:?}"),
        }
    };
    let capability = ask(&|_| {});
    assert_eq!(capability.problems, []);
    assert_eq!(capability.euid, rustix::process::geteuid().as_raw());
    assert!(capability.executor_sha256.is_some() && capability.module_sha256.is_some());
    assert_eq!(ask(&|f| f["module"] = "/none".into()).module_sha256, None);
    assert_eq!(
        ask(&|f| f["state_data"] = "terse".into()).problems,
        [Problem::StateDataTerse]
    );
    assert_eq!(
        ask(&|f| f["store"] = "/proc/none".into()).problems,
        [Problem::Store]
    );
    assert_eq!(
        ask(&|f| {
            f["salt_version"] = "3007.1".into();
            f["own_process"] = false.into();
        })
        .problems,
        [Problem::SaltVersion, Problem::Threads]
    );

    // A store that lost its claims is no store.
    std::fs::rename(
        minion.store().join("jids"),
        minion.store().with_file_name("lost"),
    )
    .expect("moved");
    assert_eq!(ask(&|_| {}).problems, [Problem::Store]);
    let job = Job::fresh();
    assert_eq!(minion.run(&job).returned()["error"], "store");
    std::fs::rename(
        minion.store().with_file_name("lost"),
        minion.store().join("jids"),
    )
    .expect("moved back");

    let job = Job::fresh();
    let mut facts = minion.run_facts(&job);
    facts["sudo_user"] = true.into();
    assert_eq!(minion.start("run", &facts).returned(), no_return());
    assert_eq!(refusal(&minion.end_of(&job)), RefusalReason::Incapable);

    let before = minion.jid_files();
    let mut facts = minion.run_facts(&Job::fresh());
    facts["published"] = false.into();
    assert_eq!(
        minion.start("run", &facts).returned()["error"],
        "not_published"
    );
    assert_eq!(minion.jid_files(), before);
}

#[test]
fn without_a_usable_store_nothing_is_claimed_and_without_a_key_nothing_is_begun() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut facts = minion.run_facts(&job);
    facts["store"] = "/proc/none".into();
    // Whether the job was claimed cannot be said, and so it is not.
    for function in ["run", "status"] {
        facts["args"] = json!({"request_id": job.request_id, "profile": "configure",
            "state_data_json": "", "state_digest": "", "jid": job.jid});
        let returned = minion.start(function, &facts).returned();
        assert_eq!(returned["error"], "store", "{returned}");
    }
    assert!(minion.all_replies().is_empty());

    let mut facts = minion.run_facts(&job);
    facts["master_ip"] = "salt".into();
    assert_eq!(
        minion.start("run", &facts).returned()["error"],
        "cannot_sign"
    );
    for key in ["garbage".to_owned(), "x".repeat(100_000)] {
        std::fs::write(minion.key(), key).expect("written");
        let returned = minion.run(&job).returned();
        assert_eq!(returned["error"], "cannot_sign", "{returned}");
    }
    std::fs::remove_file(minion.key()).expect("removed");
    assert_eq!(minion.run(&job).returned()["error"], "cannot_sign");
    assert!(!minion.store().exists());
}

#[test]
fn not_claimed_is_said_only_of_a_job_that_has_no_claim() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    std::fs::write(minion.receipt_file(&job), "in the way").expect("written");
    assert_eq!(minion.status(&job).kind(), "running");
    let executor = Arc::clone(&call.executor);
    executor.lock().expect("no panic").kill().expect("killed");
    executor.lock().expect("no panic").wait().expect("gone");
    drop(call);
    assert_eq!(minion.status(&job).kind(), "abandoned");

    // Nothing can be claimed or refused while one jid's record is damaged; this one has no record.
    let jids = minion.store().join("jids");
    std::fs::write(jids.join(format!("{}.json", fresh_jid())), "").expect("written");
    let other = Job::fresh();
    assert_eq!(minion.run(&other).returned(), no_return());
    assert!(matches!(
        minion.end_of(&other),
        Answer::NotClaimed {
            reason: NotClaimedReason::Store,
            ..
        }
    ));
    // And of this one it cannot be said.
    std::fs::write(jids.join(format!("{}.json", job.jid)), "").expect("damaged");
    minion.forget_replies();
    assert_eq!(minion.run(&job).returned()["error"], "store");
    assert!(minion.all_replies().is_empty());
}

#[test]
fn without_metadata_the_answers_go_to_salt() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut facts = minion.run_facts(&job);
    facts["metadata"] = Value::Null;
    let mut call = minion.start("run", &facts);
    call.called();
    let receipt = call.finish(2, 0);
    assert_eq!(receipt["status"], "succeeded");
    assert_eq!(receipt.as_object().map(serde_json::Map::len), Some(9));
    drop(call);

    let asked = |profile: &str| {
        let args = json!({"request_id": job.request_id, "profile": profile, "state_digest": "", "jid": job.jid});
        let mut facts = minion.facts(fresh_jid(), args);
        facts["metadata"] = Value::Null;
        minion.start("status", &facts).returned()
    };
    assert_eq!(asked("configure"), receipt);
    assert_eq!(asked("production")["conflict"]["receipt"], receipt);
    assert_eq!(asked("Nonsense")["error"], "invalid");
    assert!(minion.all_replies().is_empty());

    assert_eq!(minion.status(&Job::fresh()).kind(), "not_started");
}

#[test]
fn a_result_given_after_a_reply_was_lost_is_sent_again_until_acknowledged() {
    let minion = Minion::new();
    let job = Job::fresh();
    // Nobody listens on the reply port at first.
    let port = free_port();
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["reply_port"] = port.into();
    let mut call = minion.start("run", &facts);
    call.called();
    assert_eq!(call.finish(1, 0), no_return());
    drop(call);
    std::thread::sleep(Duration::from_millis(1500));
    // It listens at last: the same bytes come.
    minion.listen_on(port);
    assert_eq!(outcome(&minion.end_of(&job)).0, Outcome::Succeeded);
}

/// Where every write fails: a log on a full disk.
fn full() -> std::process::Stdio {
    std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("there")
        .into()
}

#[test]
fn a_full_disk_below_standard_error_costs_no_receipt_and_no_exit_code() {
    let minion = Minion::new();
    let job = Job::fresh();
    let facts = minion.run_facts(&job).to_string();
    let mut call = minion.look_after(Call::start_telling(full(), "run", &facts));
    call.called();
    // The first try to commit fails, which is told.
    std::fs::write(minion.receipt_file(&job), "in the way").expect("written");
    call.say(&crate::support::mapping(1, 0));
    std::thread::sleep(Duration::from_millis(500));
    std::fs::remove_file(minion.receipt_file(&job)).expect("removed");
    assert_eq!(call.returned(), no_return());
    drop(call);
    assert_eq!(outcome(&minion.end_of(&job)).0, Outcome::Succeeded);
}

#[test]
fn started_by_hand_it_explains_itself() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_gw-exec"))
        .arg("run")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("not a socket of Salt's worker") && stderr.contains("hint:"),
        "{stderr}"
    );
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_gw-exec"))
        .arg("run")
        .stdin(std::process::Stdio::null())
        .stderr(full())
        .status()
        .expect("started");
    assert_eq!(status.code(), Some(2));
}
