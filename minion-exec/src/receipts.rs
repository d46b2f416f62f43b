//! `gw-exec receipts`: the local store, for an operator on the minion. Read-only.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use gw_wire::id::{Jid, RequestId};
use gw_wire::reply::UnknownReason;
use serde_json::{Value, json};

use crate::facts::DEFAULT_STORE;
use crate::store::Store;
use crate::store::audit::{Audit, Entry};
use crate::store::machine::Machine;
use crate::store::records::JidRecord;

/// Look at the receipt store of this machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gw-exec receipts list                      every job that this machine claimed or refused, oldest first
  gw-exec receipts list --json | tail -n 1   the newest, as one JSON object
  gw-exec receipts show 20261201093000123456
  gw-exec receipts verify                    exit code 1 if anything is not as an executor leaves it

Run it as the user that the executor runs as, usually root. It changes nothing.")]
pub struct Receipts {
    #[command(subcommand)]
    command: Command,
    /// The store, if the minion's configuration names another (oduflow_job: store).
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = DEFAULT_STORE)]
    store: PathBuf,
    /// JSON: one object a line.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One line per job
    List,
    /// All that is known of one job
    Show {
        /// A jid (20 digits) or a request id (a UUID)
        #[arg(value_name = "JID|REQUEST-ID")]
        job: String,
    },
    /// Check every file, and the chain of records
    Verify,
}

/// Runs the command. `false`: `verify` found something, or `show` found nothing.
pub fn receipts(command: &Receipts) -> Result<bool> {
    let audit = look(&command.store)?;
    let mut out = io::stdout().lock();
    match &command.command {
        Command::List => {
            for entry in &audit.entries {
                if command.json {
                    writeln!(out, "{}", object(entry))?;
                } else {
                    writeln!(out, "{}", line(entry))?;
                }
            }
            for finding in &audit.findings {
                eprintln!("gw-exec: {}: {}", finding.about, finding.what);
            }
            Ok(true)
        }
        Command::Show { job } => show(&mut out, command.json, &audit, job),
        Command::Verify => verify(&mut out, command.json, &audit),
    }
}

fn look(path: &Path) -> Result<Audit> {
    let store = Machine::this()
        .and_then(|machine| Store::open_existing(path, machine))
        .context("cannot look at the receipt store\nhint: run as root; --store if the minion's configuration names another")?;
    store.audit().context("cannot look at the receipt store")
}

fn show(out: &mut impl Write, as_json: bool, audit: &Audit, job: &str) -> Result<bool> {
    let (jid, request) = (Jid::parse(job).ok(), RequestId::parse(job).ok());
    if jid.is_none() && request.is_none() {
        bail!("{job:?} is neither a jid (20 digits) nor a request id (a UUID)");
    }
    let mut found = false;
    for entry in &audit.entries {
        let binding = entry.linked.jid_record.binding();
        if Some(binding.jid) != jid && Some(binding.request_id) != request {
            continue;
        }
        found = true;
        let object = object(entry);
        if as_json {
            writeln!(out, "{object}")?;
        } else {
            for (name, value) in object.as_object().into_iter().flatten() {
                match value {
                    Value::Null => {}
                    Value::String(text) => writeln!(out, "{name:14} {text}")?,
                    other => writeln!(out, "{name:14} {other}")?,
                }
            }
            writeln!(out)?;
        }
    }
    if !found {
        eprintln!("gw-exec: the store has no record of {job}");
    }
    Ok(found)
}

fn verify(out: &mut impl Write, as_json: bool, audit: &Audit) -> Result<bool> {
    let newest = audit
        .entries
        .iter()
        .map(|entry| entry.linked.sequence)
        .max();
    if as_json {
        let identity = audit.identity.as_ref();
        writeln!(
            out,
            "{}",
            json!({
                "id": identity.map(|identity| identity.id),
                "records": audit.entries.len(),
                "sequence": newest.unwrap_or(0),
                "pruned_below": identity.and_then(|identity| identity.pruned_below),
                "leftovers": audit.leftovers,
                "findings": audit.findings,
            })
        )?;
    } else {
        for finding in &audit.findings {
            writeln!(out, "{}: {}", finding.about, finding.what)?;
        }
        if audit.leftovers > 0 {
            writeln!(
                out,
                "{} unfinished files (.new-*): nothing reads them, and they may be deleted",
                audit.leftovers
            )?;
        }
        writeln!(
            out,
            "{} records, newest number {}, {} findings",
            audit.entries.len(),
            newest.unwrap_or(0),
            audit.findings.len()
        )?;
    }
    Ok(audit.findings.is_empty())
}

/// What the job came to, and why; in the words of the wire.
fn state(entry: &Entry) -> (&'static str, Option<&'static str>) {
    match (&entry.linked.jid_record, &entry.receipt) {
        (JidRecord::Tombstone(tombstone), _) => ("refused", Some(tombstone.reason.as_str())),
        (JidRecord::Claim(_), Some(receipt)) => (
            receipt.outcome().as_str(),
            entry.reason.map(UnknownReason::as_str),
        ),
        (JidRecord::Claim(_), None) if entry.running => ("running", None),
        (JidRecord::Claim(_), None) => ("abandoned", None),
    }
}

fn line(entry: &Entry) -> String {
    let binding = entry.linked.jid_record.binding();
    let counts = entry
        .receipt
        .as_ref()
        .map(|receipt| format!("{}/{}", receipt.passed(), receipt.total()));
    let state = match state(entry) {
        (state, Some(reason)) => format!("{state} ({reason})"),
        (state, None) => state.to_owned(),
    };
    format!(
        "{}  {}  {:13}  {state:24}  {:>9}  {}",
        binding.jid,
        binding.request_id,
        binding.profile.as_str(),
        counts.as_deref().unwrap_or("-"),
        if entry.confirmed { "confirmed" } else { "-" }
    )
}

fn object(entry: &Entry) -> Value {
    let record = &entry.linked.jid_record;
    let binding = record.binding();
    let (claim_id, survival, generation, at) = match record {
        JidRecord::Claim(claimed) => (
            Some(claimed.claim_id),
            Some(claimed.survival),
            claimed.generation,
            claimed.claimed_at,
        ),
        JidRecord::Tombstone(tombstone) => (None, None, tombstone.generation, tombstone.refused_at),
    };
    let (state, reason) = state(entry);
    json!({
        "jid": binding.jid,
        "request_id": binding.request_id,
        "minion_id": binding.minion_id,
        "profile": binding.profile,
        "state_digest": binding.state_digest,
        "state": state,
        "reason": reason,
        "at": at.to_string(),
        "generation": generation,
        "claim_id": claim_id,
        "survival": survival,
        "confirmed": entry.confirmed,
        "sequence": entry.linked.sequence,
        "previous": entry.linked.previous,
        "sha256": entry.sha256,
        "receipt": entry.receipt,
    })
}
