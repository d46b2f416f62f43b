//! The journal's own promises, on a real SQLite file.

use super::*;
use crate::config::Transport;
use crate::record::Observation;
use gw_wire::id::{Sha256Hex, Token};
use gw_wire::receipt::{Outcome, Receipt};

fn request(minion: &str) -> Request {
    Request {
        request_id: RequestId::random(),
        minion_id: MinionId::parse(minion).expect("an id"),
        profile: Profile::Configure,
        state_data: None,
    }
}

fn claim(jid: &str) -> Claim {
    Claim {
        jid: Jid::parse(jid).expect("a jid"),
        transport: Transport::Ipc,
        not_after: "2026-12-01T00:00:00Z".parse().expect("a time"),
        master_key: Sha256Hex::of(b"m"),
        minion_key: Sha256Hex::of(b"n"),
    }
}

fn dispatch(request: &Request) -> Dispatch {
    Dispatch {
        request_id: request.request_id,
        generation: 1,
    }
}

const JID: &str = "20261130220939633426";
const LATER: &str = "20261130220939633427";

fn open() -> (tempfile::TempDir, Journal) {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(&directory.path().join("gw")).expect("opens");
    (directory, journal)
}

fn sql(directory: &tempfile::TempDir, statement: &str) -> Result<usize, rusqlite::Error> {
    Connection::open(directory.path().join("gw/journal.sqlite"))
        .expect("opens")
        .execute(statement, [])
}

#[test]
fn the_same_request_gives_the_record_and_other_values_a_conflict() {
    let (_directory, journal) = open();
    let first = request("client-1");
    assert!(matches!(journal.accept(&first), Ok(Acceptance::Created(_))));
    assert!(matches!(
        journal.accept(&first),
        Ok(Acceptance::Existing(_))
    ));
    for other in [
        Request {
            minion_id: MinionId::parse("client-2").expect("an id"),
            ..first.clone()
        },
        Request {
            profile: Profile::Production,
            ..first.clone()
        },
        Request {
            profile: Profile::Custom,
            state_data: Some(StateData::canonicalize(br#"{"a":{"test":["nop"]}}"#).expect("data")),
            ..first.clone()
        },
    ] {
        assert!(matches!(
            journal.accept(&other),
            Ok(Acceptance::Conflict(_))
        ));
    }
    let kept = journal
        .find(first.request_id)
        .expect("reads")
        .expect("is there");
    assert_eq!((kept.request, kept.state), (first, State::Accepted));
}

#[test]
fn one_open_a_second_claim_for_a_minion_is_blocked_and_the_store_itself_agrees() {
    let (directory, journal) = open();
    let (first, second) = (request("client-1"), request("client-1"));
    journal.accept(&first).expect("accepted");
    journal.accept(&second).expect("accepted");
    assert!(matches!(
        journal.claim(first.request_id, &claim(JID)),
        Ok(Claimed::Now(_))
    ));
    assert!(matches!(
        journal.claim(second.request_id, &claim(LATER)),
        Ok(Claimed::Blocked(_))
    ));
    let error = sql(
        &directory,
        &format!(
            "UPDATE dispatch SET state = 'sent', jid = '{LATER}', claim = '{{}}' WHERE request_id = '{}'",
            second.request_id
        ),
    )
    .expect_err("the index refuses");
    assert!(error.to_string().contains("UNIQUE"), "{error}");
}

#[test]
fn immutable_binding_and_history_cannot_be_changed_by_hand() {
    let (directory, journal) = open();
    let first = request("client-1");
    journal.accept(&first).expect("accepted");
    journal
        .claim(first.request_id, &claim(JID))
        .expect("claimed");
    for statement in [
        "UPDATE request SET profile = 'production'",
        "DELETE FROM request",
        "UPDATE dispatch SET jid = '20261130220939633499'",
        "UPDATE dispatch SET minion_id = 'client-2'",
        "DELETE FROM dispatch",
        "UPDATE history SET event = '{}'",
        "DELETE FROM history",
    ] {
        assert!(sql(&directory, statement).is_err(), "{statement}");
    }
}

#[test]
fn terminal_once_the_first_receipt_stands_and_a_different_one_raises() {
    let (_directory, journal) = open();
    let first = request("client-1");
    journal.accept(&first).expect("accepted");
    journal
        .claim(first.request_id, &claim(JID))
        .expect("claimed");
    let binding = journal
        .find(first.request_id)
        .expect("reads")
        .and_then(|r| r.binding())
        .expect("bound");
    let receipt = |outcome, passed| Event::Receipt {
        receipt: Receipt::new(binding.clone(), outcome, passed, 2).expect("a receipt"),
        claim_id: Token::parse(&"0".repeat(32)).expect("a token"),
        reason: None,
    };
    let applied = journal
        .apply(dispatch(&first), &receipt(Outcome::Succeeded, 2), None)
        .expect("applied");
    assert!(matches!(applied.step, Step::Move(State::Succeeded { .. })));
    let again = journal
        .apply(dispatch(&first), &receipt(Outcome::Succeeded, 2), None)
        .expect("applied");
    assert_eq!(again.step, Step::Silent);
    let other = journal
        .apply(dispatch(&first), &receipt(Outcome::Failed, 1), None)
        .expect("applied");
    assert_eq!(other.step, Step::Alarm(Alarm::ReceiptDiffers));
    let kept = journal
        .find(first.request_id)
        .expect("reads")
        .expect("is there");
    assert_eq!(kept.state.name(), "succeeded");
    assert_eq!(journal.history(first.request_id).expect("reads").len(), 3);
}

#[test]
fn evidence_that_it_ran_after_all_blocks_the_target() {
    let (_directory, journal) = open();
    let (first, second) = (request("client-1"), request("client-1"));
    journal.accept(&first).expect("accepted");
    journal.accept(&second).expect("accepted");
    journal
        .claim(first.request_id, &claim(JID))
        .expect("claimed");
    journal
        .apply(
            dispatch(&first),
            &Event::SendFailed { why: "w".into() },
            None,
        )
        .expect("applied");
    assert!(journal.blocking(&first.minion_id).expect("reads").is_none());
    let running = Event::Observed {
        kind: Observation::Running,
        detail: String::new(),
    };
    journal
        .apply(dispatch(&first), &running, None)
        .expect("applied");
    assert!(matches!(
        journal.claim(second.request_id, &claim(LATER)),
        Ok(Claimed::Blocked(_))
    ));
}

#[test]
fn a_second_daemon_and_a_newer_schema_are_kept_out() {
    let (directory, journal) = open();
    let path = directory.path().join("gw");
    assert!(matches!(Journal::open(&path), Err(JournalError::InUse(_))));
    drop(journal);
    sql(&directory, "PRAGMA user_version = 2").ok();
    assert!(matches!(Journal::open(&path), Err(JournalError::Newer(2))));
}

#[test]
fn a_state_directory_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gw");
    std::fs::create_dir(&path).expect("made");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
    assert!(matches!(
        Journal::open(&path),
        Err(JournalError::Directory { .. })
    ));
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let (directory, journal) = open();
    let first = request("client-1");
    journal.accept(&first).expect("accepted");
    journal
        .claim(first.request_id, &claim(JID))
        .expect("claimed");
    drop(journal);
    let journal = Journal::open(&directory.path().join("gw")).expect("opens");
    let record = journal
        .find(first.request_id)
        .expect("reads")
        .expect("is there");
    assert_eq!(
        (record.state, record.claim),
        (State::Claimed, Some(claim(JID)))
    );
    assert_eq!(
        journal.highest_jid().expect("reads"),
        Some(Jid::parse(JID).expect("a jid"))
    );
}

#[test]
fn the_same_signed_bytes_are_kept_once() {
    let (_directory, journal) = open();
    let first = request("client-1");
    journal.accept(&first).expect("accepted");
    journal
        .claim(first.request_id, &claim(JID))
        .expect("claimed");
    let signed = SignedReply {
        json: "{}".into(),
        signature: "s".into(),
    };
    let event = Event::Observed {
        kind: Observation::NotClaimed,
        detail: String::new(),
    };
    for expected in [Step::Note, Step::Silent, Step::Silent] {
        let applied = journal
            .apply(dispatch(&first), &event, Some(&signed))
            .expect("applied");
        assert_eq!(applied.step, expected);
    }
    assert_eq!(journal.history(first.request_id).expect("reads").len(), 2);
}
