//! What the commands print: JSON for programs, aligned lines for people.

use std::io;

use serde::Serialize;

use super::exit::Exit;
use super::print;
use crate::api::{ErrorBody, ErrorView, RecordView};

/// Prints one record, with its history if it has one.
pub fn record(record: &RecordView, json: bool) -> io::Result<()> {
    if json {
        return print(&to_json(record));
    }
    let counts = record
        .passed
        .zip(record.total)
        .map(|(passed, total)| format!("{passed}/{total} states passed"));
    let running = record
        .progress
        .map(|progress| format!("running {}/{}", progress.done, progress.total));
    let state = match (&record.reason, counts.or(running)) {
        (Some(reason), Some(counts)) => format!("{} ({reason}), {counts}", record.state),
        (Some(reason), None) => format!("{} ({reason})", record.state),
        (None, Some(counts)) => format!("{}, {counts}", record.state),
        (None, None) => record.state.clone(),
    };
    let blocked = if record.blocks_target {
        "yes, until this request is resolved"
    } else {
        "no"
    };
    let generation = record.generation.to_string();
    for (name, value) in [
        ("request", Some(record.request_id.as_str())),
        ("minion", Some(record.minion_id.as_str())),
        ("profile", Some(record.profile.as_str())),
        (
            "digest",
            Some(record.state_digest.as_str()).filter(|digest| !digest.is_empty()),
        ),
        ("state", Some(state.as_str())),
        ("jid", record.jid.as_deref()),
        ("transport", record.transport.as_deref()),
        ("generation", Some(generation.as_str())),
        ("accepted", Some(record.accepted_at.as_str())),
        ("not after", record.not_after.as_deref()),
        ("blocks target", Some(blocked)),
    ] {
        if let Some(value) = value {
            print(&format!("{name:<14}{value}"))?;
        }
    }
    for row in &record.history {
        let mut line = format!(
            "  {}  {:<12} -> {:<14} {}",
            row.at, row.event, row.state, row.detail
        );
        if let Some(alarm) = &row.alarm {
            line.push_str(&format!(" ALARM {alarm}"));
        }
        if let Some(sha256) = &row.evidence_sha256 {
            line.push_str(&format!(" [signed, sha256 {}...]", &sha256[..12]));
        }
        print(line.trim_end())?;
    }
    Ok(())
}

/// Prints many records, a line each.
pub fn list(records: &[RecordView], json: bool) -> io::Result<()> {
    for record in records {
        if json {
            print(&to_json(record))?;
            continue;
        }
        let counts = match (record.passed, record.total, record.progress) {
            (Some(passed), Some(total), _) => format!("{passed}/{total}"),
            (_, _, Some(progress)) => format!("{}/{}", progress.done, progress.total),
            _ => "-".to_owned(),
        };
        print(&format!(
            "{}  {}  {:<14} {:<14} {counts:>7}  {}",
            record.request_id, record.minion_id, record.profile, record.state, record.accepted_at
        ))?;
    }
    Ok(())
}

/// Prints an error on standard error.
pub fn error(error: &ErrorView, json: bool) {
    if json {
        eprintln!(
            "{}",
            to_json(&ErrorBody {
                error: error.clone()
            })
        );
        return;
    }
    eprintln!("gw: {} [{}]", error.message, error.code);
    if let Some(hint) = &error.hint {
        eprintln!("hint: {hint}");
    }
    if let Some(id) = &error.request_id {
        eprintln!("hint: gw show {id}");
    }
}

/// An error that the daemon has no part in.
pub fn local_error(error: &anyhow::Error, exit: Exit) -> ErrorView {
    let code = if exit == Exit::Usage {
        "usage"
    } else {
        "error"
    };
    ErrorView {
        code: code.to_owned(),
        message: crate::words(error.as_ref()),
        hint: None,
        request_id: None,
    }
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("views are plain data")
}
