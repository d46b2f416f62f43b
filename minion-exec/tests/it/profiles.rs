//! The site's own profiles: what a file of root's on the minion adds, and what a bad one takes away.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use gw_wire::id::{Profile, ProfileName};
use gw_wire::reply::{Answer, Capability, MAX_REPLY_BYTES, Problem, RefusalReason};
use serde_json::{Value, json};

use crate::support::{Job, Minion, fresh_jid};

fn no_return() -> Value {
    json!({"__no_return__": true})
}

fn write(minion: &Minion, content: &str) {
    fs::write(minion.profiles(), content).expect("written");
    fs::set_permissions(minion.profiles(), Permissions::from_mode(0o644)).expect("set");
}

fn site(name: &str) -> Profile {
    Profile::Site(ProfileName::parse(name).expect("a name"))
}

/// The capability, and how long its reply is.
fn capability(minion: &Minion) -> (Capability, usize) {
    minion.forget_replies();
    let facts = minion.facts(fresh_jid(), json!({}));
    assert_eq!(minion.start("capability", &facts).returned(), no_return());
    let reply = minion.reply(|_| true);
    let bytes = serde_json::to_vec(&reply).expect("JSON").len();
    match reply.answer {
        Answer::Capability(capability) => (capability, bytes),
        other => panic!("{other:?}"),
    }
}

fn refused(minion: &Minion, profile: &str) -> RefusalReason {
    let job = Job::fresh();
    let mut call = minion.start("run", &minion.run_facts_of(&job, profile));
    assert_eq!(call.returned(), no_return());
    match minion.end_of(&job) {
        Answer::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sites_profile_runs_the_role_that_the_file_names() {
    let minion = Minion::new();
    assert_eq!(refused(&minion, "backup"), RefusalReason::Invalid);
    write(&minion, r#"{"backup": "roles.site_backup"}"#);
    let job = Job::fresh();
    let mut call = minion.start("run", &minion.run_facts_of(&job, "backup"));
    let order = call.called();
    assert_eq!(
        (&order["fun"], &order["arg"]),
        (&json!("state.sls"), &json!(["roles.site_backup"]))
    );
    // What the file says now is nothing to a job that runs.
    write(&minion, "{}");
    assert_eq!(call.finish(2, 0), no_return());
    drop(call);
    match minion.end_of(&job) {
        Answer::Receipt { receipt, .. } => {
            assert_eq!(receipt.binding().profile, site("backup"));
            assert_eq!((receipt.passed(), receipt.total()), (2, 2));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(refused(&minion, "backup"), RefusalReason::Invalid);
}

#[test]
fn the_capability_lists_as_many_profiles_as_a_file_may_have() {
    let minion = Minion::new();
    assert_eq!(capability(&minion).0.profiles, Profile::BUILT_IN);
    let names: Vec<String> = (0..64)
        .map(|n| format!("{:x<32}", format!("p{n:02}_")))
        .collect();
    let all: Vec<String> = names
        .iter()
        .map(|name| format!(r#""{name}":"r""#))
        .collect();
    write(&minion, &format!("{{{}}}", all.join(",")));
    let (answer, bytes) = capability(&minion);
    let expected: Vec<Profile> = Profile::BUILT_IN
        .into_iter()
        .chain(names.iter().map(|name| site(name)))
        .collect();
    assert_eq!((answer.profiles, answer.problems), (expected, vec![]));
    assert!(bytes < MAX_REPLY_BYTES / 2, "{bytes}");
}

#[test]
fn an_unusable_file_is_a_problem_and_nothing_runs_not_even_a_fixed_profile() {
    let minion = Minion::new();
    type Break = fn(&Minion);
    let breaks: [Break; 3] = [
        |minion| {
            write(
                minion,
                r#"{"backup": "roles.backup", "configure": "roles.mine"}"#,
            )
        },
        |minion| write(minion, r#"{"backup": "roles.backup""#),
        |minion| {
            write(minion, r#"{"backup": "roles.backup"}"#);
            fs::set_permissions(minion.profiles(), Permissions::from_mode(0o666)).expect("set");
        },
    ];
    for break_it in breaks {
        break_it(&minion);
        let (answer, _) = capability(&minion);
        assert_eq!(answer.problems, [Problem::Profiles]);
        assert_eq!(answer.profiles, Profile::BUILT_IN);
        assert_eq!(refused(&minion, "configure"), RefusalReason::Incapable);
        assert_eq!(refused(&minion, "backup"), RefusalReason::Incapable);
    }
    write(&minion, r#"{"backup": "roles.backup"}"#);
    assert_eq!(capability(&minion).0.problems, []);
}
