//! The machine, pair by pair.

use super::*;
use gw_wire::receipt::Binding;

fn receipt(outcome: Outcome, passed: u32, total: u32) -> Receipt {
    let binding: Binding = serde_json::from_value(serde_json::json!({
        "minion_id": "client-1",
        "request_id": "0b0e4567-e89b-42d3-a456-426614174000",
        "jid": "20261130220939633426",
        "profile": "configure",
        "state_digest": "",
    }))
    .expect("a binding");
    Receipt::new(binding, outcome, passed, total).expect("a receipt")
}

fn claim_id() -> Token {
    Token::parse("0123456789abcdef0123456789abcdef").expect("a token")
}

fn states() -> Vec<State> {
    vec![
        State::Accepted,
        State::Claimed,
        State::Sent,
        State::SendUncertain { why: "w".into() },
        State::NotSent { why: "w".into() },
        State::Refused {
            reason: RefusalReason::Busy,
        },
        State::Succeeded {
            receipt: receipt(Outcome::Succeeded, 2, 2),
            claim_id: claim_id(),
        },
        State::Failed {
            receipt: receipt(Outcome::Failed, 1, 2),
            claim_id: claim_id(),
        },
        State::Unknown {
            receipt: receipt(Outcome::Unknown, 0, 0),
            claim_id: claim_id(),
            reason: Some(UnknownReason::WorkerDied),
        },
    ]
}

fn events() -> Vec<Event> {
    let key = Sha256Hex::of(b"k");
    let observed = |kind| Event::Observed {
        kind,
        detail: String::new(),
    };
    vec![
        Event::Claim(Claim {
            jid: Jid::parse("20261130220939633426").expect("a jid"),
            transport: Transport::Ipc,
            not_after: "2026-12-01T00:00:00Z".parse().expect("a time"),
            master_key: key.clone(),
            minion_key: key,
        }),
        Event::Cancel { why: "w".into() },
        Event::SendDone {
            read_by_publisher: true,
        },
        Event::SendFailed { why: "w".into() },
        Event::SendUnclear { why: "w".into() },
        Event::Restart,
        Event::Receipt {
            receipt: receipt(Outcome::Succeeded, 2, 2),
            claim_id: claim_id(),
            reason: None,
        },
        Event::Receipt {
            receipt: receipt(Outcome::Failed, 1, 2),
            claim_id: claim_id(),
            reason: None,
        },
        Event::Receipt {
            receipt: receipt(Outcome::Unknown, 0, 0),
            claim_id: claim_id(),
            reason: None,
        },
        Event::Receipt {
            receipt: receipt(Outcome::Succeeded, 2, 2),
            claim_id: Token::random(),
            reason: None,
        },
        Event::Refusal {
            reason: RefusalReason::Late,
        },
        observed(Observation::Running),
        observed(Observation::Abandoned),
        observed(Observation::NotStarted),
        observed(Observation::Expired),
        observed(Observation::NotClaimed),
        observed(Observation::Conflict),
    ]
}

/// The name of an event, told apart where the machine tells it apart.
fn label(event: &Event) -> String {
    match event {
        Event::Receipt {
            claim_id: other, ..
        } if *other != claim_id() => "receipt of another claim".to_owned(),
        Event::Receipt { receipt, .. } => format!("receipt: {}", receipt.outcome().as_str()),
        Event::Observed { kind, .. } => format!("observed: {}", kind.as_str()),
        other => other.name().to_owned(),
    }
}

fn table() -> String {
    let mut text = String::from("| event | ");
    text.push_str(&State::NAMES.join(" | "));
    text.push_str(" |\n|---|");
    text.push_str(&"---|".repeat(State::NAMES.len()));
    text.push('\n');
    for event in events() {
        text.push_str(&format!("| {} |", label(&event)));
        for state in states() {
            let cell = match transition(&state, &event) {
                Ok(Step::Move(next)) => format!("**{}**", next.name()),
                Ok(Step::Note) => "history".to_owned(),
                Ok(Step::Silent) => "-".to_owned(),
                Ok(Step::Alarm(alarm)) => format!("alarm {}", alarm.as_str()),
                Err(IllegalTransition { .. }) => "illegal".to_owned(),
            };
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    text
}

/// To make the table anew after a wanted change: paste what the failing assertion prints.
#[test]
fn the_table_in_the_documentation_is_the_machine() {
    let document = include_str!("../../../docs/state-machine.md");
    let table = table();
    assert!(
        document.contains(&table),
        "docs/state-machine.md must hold this table:\n{table}"
    );
}

#[test]
fn the_names_are_in_the_order_of_the_states() {
    let names: Vec<&str> = states().iter().map(State::name).collect();
    assert_eq!(names, State::NAMES);
}

#[test]
fn terminal_once_nothing_leads_out_of_an_ended_state() {
    for state in states()
        .into_iter()
        .filter(|state| !state.awaits_evidence() && *state != State::Accepted)
    {
        for event in events() {
            assert!(
                !matches!(transition(&state, &event), Ok(Step::Move(_))),
                "{state:?} {event:?}"
            );
        }
    }
}

#[test]
fn evidence_only_observations_move_nothing() {
    for state in states() {
        for event in events()
            .into_iter()
            .filter(|event| matches!(event, Event::Observed { .. }))
        {
            assert!(
                !matches!(transition(&state, &event), Ok(Step::Move(_))),
                "{state:?} {event:?}"
            );
        }
    }
}

#[test]
fn one_send_only_a_claim_of_an_accepted_record_gives_leave_to_send() {
    for state in states() {
        for event in events() {
            if let Ok(Step::Move(State::Claimed)) = transition(&state, &event) {
                assert_eq!((&state, event.name()), (&State::Accepted, "claim"));
            }
        }
    }
}
