//! Revoke, the fence of a late job, and a store that lacks what the gateway has seen, on the real `gw-exec`.

use crate::support::{Job, Minion};
use gw_wire::id::now;
use gw_wire::reply::{Answer, NotClaimedReason, Problem, RefusalReason, Reply};
use serde_json::{Value, json};

fn late() -> Value {
    json!({"not_after": now().as_second() - 1})
}

fn reason(reply: &Reply) -> RefusalReason {
    match &reply.answer {
        Answer::Refused { reason, .. } => *reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// Delivers the job and expects that it does not run.
fn does_not_run(minion: &Minion, job: &Job) -> Answer {
    minion.forget_replies();
    let mut call = minion.run(job);
    assert_eq!(call.returned(), json!({"__no_return__": true}));
    drop(call);
    minion.end_of(job)
}

#[test]
fn a_revoked_job_never_runs_and_says_so_again() {
    let minion = Minion::new();
    let job = Job::fresh();
    assert_eq!(
        reason(&minion.ask("revoke", &job, json!({}))),
        RefusalReason::Revoked
    );
    for _ in 0..2 {
        let answer = does_not_run(&minion, &job);
        assert!(
            matches!(
                answer,
                Answer::Refused {
                    reason: RefusalReason::Revoked,
                    ..
                }
            ),
            "{answer:?}"
        );
    }
    // The first refusal stands, also against another reason.
    assert_eq!(
        reason(&minion.ask("status", &job, late())),
        RefusalReason::Revoked
    );
    assert_eq!(minion.jid_files(), 1);
}

#[test]
fn revoke_of_a_claimed_job_answers_its_status_and_changes_nothing() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    let answer = minion.ask("revoke", &job, json!({})).answer;
    assert!(matches!(answer, Answer::Running { .. }), "{answer:?}");
    call.finish(2, 0);
    drop(call);
    let ended = minion.end_of(&job);
    assert!(matches!(ended, Answer::Receipt { .. }), "{ended:?}");
    assert_eq!(minion.ask("revoke", &job, json!({})).answer, ended);
}

#[test]
fn revoke_of_an_abandoned_claim_is_no_refusal() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    call.executor
        .lock()
        .expect("no panic")
        .kill()
        .expect("killed");
    drop(call);
    let answer = minion.ask("revoke", &job, json!({})).answer;
    assert!(matches!(answer, Answer::Abandoned { .. }), "{answer:?}");
}

#[test]
fn a_status_call_fences_a_job_without_a_claim_only_after_its_not_after_time() {
    let minion = Minion::new();
    let job = Job::fresh();
    let early = json!({"not_after": now().as_second() + 60});
    for gw in [json!({}), early] {
        let answer = minion.ask("status", &job, gw).answer;
        assert!(matches!(answer, Answer::NotStarted { .. }), "{answer:?}");
    }
    assert_eq!(minion.jid_files(), 0);
    assert_eq!(
        reason(&minion.ask("status", &job, late())),
        RefusalReason::Late
    );
    let answer = does_not_run(&minion, &job);
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
}

#[test]
fn a_status_call_after_the_not_after_time_leaves_a_claimed_job_alone() {
    let minion = Minion::new();
    let job = Job::fresh();
    let mut call = minion.run(&job);
    call.called();
    let answer = minion.ask("status", &job, late()).answer;
    assert!(matches!(answer, Answer::Running { .. }), "{answer:?}");
    call.finish(1, 0);
}

#[test]
fn a_fenced_request_runs_again_under_a_higher_generation_only() {
    let minion = Minion::new();
    let job = Job::fresh();
    minion.ask("revoke", &job, json!({}));
    let same = job.again();
    let answer = does_not_run(&minion, &same);
    assert!(matches!(answer, Answer::Conflict { .. }), "{answer:?}");
    let next = job.again();
    let mut facts = minion.run_facts(&next);
    facts["metadata"]["gw"]["generation"] = 2.into();
    let mut call = minion.start("run", &facts);
    call.called();
    call.finish(1, 0);
}

#[test]
fn positions_rise_and_a_run_goes_on_from_any_that_was_seen() {
    let minion = Minion::new();
    let mut seen: Vec<Value> = Vec::new();
    for n in 0..3 {
        let job = Job::fresh();
        for position in &seen {
            let reply = minion.ask("status", &job, json!({"store": position}));
            assert!(matches!(reply.answer, Answer::NotStarted { .. }));
        }
        let reply = minion.ask("revoke", &job, json!({}));
        let position = reply.store.expect("a position");
        assert_eq!(position.sequence, n + 1);
        seen.push(serde_json::to_value(position).expect("json"));
    }
}

#[test]
fn a_store_that_lacks_what_was_seen_runs_nothing_until_the_gateway_names_its_new_id() {
    let minion = Minion::new();
    minion.ask("revoke", &Job::fresh(), json!({}));
    let foreign =
        json!({"id": "0123456789abcdef0123456789abcdef", "sequence": 1, "head": "ab".repeat(32)});
    let job = Job::fresh();
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["store"] = foreign;
    let mut call = minion.start("run", &facts);
    assert_eq!(call.returned(), json!({"__no_return__": true}));
    drop(call);
    let store_changed = |answer: &Answer| {
        matches!(
            answer,
            Answer::NotClaimed {
                reason: NotClaimedReason::StoreChanged,
                ..
            }
        )
    };
    assert!(store_changed(&minion.end_of(&job)));
    assert!(store_changed(&does_not_run(&minion, &job)));
    // Neither a late status call nor a revocation makes a tombstone that would prove something.
    assert!(store_changed(&minion.ask("status", &job, late()).answer));
    let reply = minion.ask("revoke", &job, json!({}));
    assert!(store_changed(&reply.answer));
    match minion.ask("capability", &job, json!({})).answer {
        Answer::Capability(capability) => {
            assert_eq!(capability.problems, [Problem::StoreChanged]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(minion.jid_files(), 1);

    // The operator has accepted the id: the next publication names it.
    let mut facts = minion.run_facts(&job);
    facts["metadata"]["gw"]["store"] =
        serde_json::to_value(reply.store.expect("a position")).expect("json");
    let mut call = minion.start("run", &facts);
    call.called();
    call.finish(1, 0);
}

#[test]
fn a_store_made_on_another_machine_runs_nothing() {
    let minion = Minion::new();
    minion.ask("revoke", &Job::fresh(), json!({}));
    let path = minion.store().join("store.json");
    let mut store: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("readable")).expect("json");
    store["record"]["machine"]["machine_id"] = "cd".repeat(32).into();
    std::fs::write(&path, store.to_string()).expect("written");
    let answer = does_not_run(&minion, &Job::fresh());
    assert!(
        matches!(
            answer,
            Answer::NotClaimed {
                reason: NotClaimedReason::Machine,
                ..
            }
        ),
        "{answer:?}"
    );
    assert_eq!(minion.jid_files(), 1);
}

#[test]
fn a_clock_that_was_set_back_behind_the_last_claim_refuses() {
    let minion = Minion::new();
    let first = Job::fresh();
    let mut call = minion.run(&first);
    call.called();
    call.finish(1, 0);
    drop(call);
    minion.end_of(&first);
    // As if that job had been claimed ten minutes from now.
    let path = minion.store().join(format!("jids/{}.json", first.jid));
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("readable")).expect("json");
    let ahead = now() + jiff::SignedDuration::from_mins(10);
    record["record"]["jid_record"]["claim"]["claimed_at"] = ahead.to_string().into();
    std::fs::write(&path, record.to_string()).expect("written");
    let answer = does_not_run(&minion, &Job::fresh());
    assert!(
        matches!(
            answer,
            Answer::Refused {
                reason: RefusalReason::Clock,
                ..
            }
        ),
        "{answer:?}"
    );
}

#[test]
fn a_job_that_the_gateway_confirmed_is_forgotten_where_retention_is_on() {
    let minion = Minion::new();
    let run = |job: &Job, confirmed: Vec<&Job>| {
        let mut facts = minion.run_facts(job);
        facts["retain_count"] = 0.into();
        let jids: Vec<_> = confirmed.iter().map(|job| job.jid).collect();
        facts["metadata"]["gw"]["confirmed"] = json!(jids);
        let mut call = minion.start("run", &facts);
        call.called();
        call.finish(1, 0);
        let executor = std::sync::Arc::clone(&call.executor);
        drop(call);
        minion.end_of(job);
        // Retention comes last of all.
        assert!(
            executor
                .lock()
                .expect("no panic")
                .wait()
                .expect("gone")
                .success()
        );
    };
    let (first, second, third) = (Job::fresh(), Job::fresh(), Job::fresh());
    run(&first, vec![]);
    run(&second, vec![]);
    assert_eq!(minion.jid_files(), 2);
    run(&third, vec![&first]);
    assert_eq!(minion.jid_files(), 2);
    assert!(!minion.receipt_file(&first).exists());
    assert!(minion.receipt_file(&second).exists());
    for function in ["status", "revoke"] {
        let answer = minion.ask(function, &first, late()).answer;
        assert!(matches!(answer, Answer::Expired { .. }), "{answer:?}");
    }
    assert!(matches!(
        does_not_run(&minion, &first),
        Answer::Expired { .. }
    ));
}
