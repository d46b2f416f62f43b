//! What must hold on a minion whatever was struck, each by its name in ARCHITECTURE.md.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use gw_wire::receipt::Outcome;
use gw_wire::reply::{Answer, NotClaimedReason};
use serde_json::json;

use super::syscall::What;
use super::tracer::{Event, Role, Trace};
use super::world::{Ask, Called, Job, Laboratory, MARKER, World};

/// What is known about one job: everything that was ever said about it.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// In the order in which it was said.
    pub answers: Vec<Answer>,
    /// The gateway had confirmed its end, so that retention may forget it.
    pub confirmed: bool,
}

/// Collects what does not hold.
#[derive(Debug, Default)]
pub struct Verdict {
    /// One line each.
    pub violations: Vec<String>,
}

impl Verdict {
    fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }
}

/// Plays what comes after a crash: the same publication again, questions, the request under another jid, another
/// job. Every answer is held against everything said before.
pub fn recover(
    laboratory: &mut Laboratory,
    world: &World,
    ask: &Ask,
    mut past: Past,
    bystanders: &[(Job, Past)],
) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let (job, past) = (ask.job, &mut past);
    look(&mut verdict, world, &job, past)?;

    let mut run = Ask::new("run", job);
    run.config = ask.config.clone();
    let called = laboratory.call(world, &run, &[])?;
    hear(&mut verdict, world, &job, past, &called, "delivered again")?;
    let called = laboratory.call(world, &Ask::new("status", job), &[])?;
    hear(&mut verdict, world, &job, past, &called, "asked")?;
    verdict.must(!called.answers(&job).is_empty(), || {
        "a status call has no answer".to_owned()
    });
    let effects = world.effects(&job)?;

    let again = Job {
        jid: laboratory.job().jid,
        ..job
    };
    let called = laboratory.call(world, &Ask::new("run", again), &[])?;
    verdict.must(world.effects(&job)? == effects, || {
        "one-claim: the request ran under another jid".to_owned()
    });
    sound(&mut verdict, world, &called);

    for (bystander, past) in bystanders {
        let mut past = past.clone();
        for function in ["status", "run"] {
            let called = laboratory.call(world, &Ask::new(function, *bystander), &[])?;
            let when = format!("{function} of an earlier job");
            hear(&mut verdict, world, bystander, &mut past, &called, &when)?;
        }
        look(&mut verdict, world, bystander, &past)?;
    }

    // The gateway names the position that it has seen last, and so accepts a store's new id.
    let seen = called.replies.last().and_then(|reply| reply.store.clone());
    let other = laboratory.job();
    let mut next = Ask::new("run", other);
    next.gw = json!({"store": seen});
    let called = laboratory.call(world, &next, &[])?;
    let succeeded = called.answers(&other).iter().any(|answer| {
        matches!(answer, Answer::Receipt { receipt, .. } if receipt.outcome() == Outcome::Succeeded)
    });
    verdict.must(succeeded && world.effects(&other)? == 1, || {
        format!(
            "the next job does not run: {:?}, {:?}",
            called.returned,
            called.answers(&other)
        )
    });
    sound(&mut verdict, world, &called);
    look(&mut verdict, world, &job, past)?;
    verify(&mut verdict, laboratory, world)?;
    Ok(verdict)
}

/// Holds one call and its answers against the past, of which they become a part.
pub fn hear(
    verdict: &mut Verdict,
    world: &World,
    job: &Job,
    past: &mut Past,
    called: &Called,
    when: &str,
) -> Result<()> {
    sound(verdict, world, called);
    for answer in called.answers(job) {
        for before in &past.answers {
            if let Some(why) = contradiction(before, &answer, past.confirmed) {
                verdict.violations.push(format!("{when}: {why}"));
            }
        }
        let ran = world.effects(job)? > 0;
        verdict.must(!ran || !denies(&answer), || {
            format!("{when}: the state ran, and the answer is {}", answer.kind())
        });
        if let Answer::Receipt { receipt, .. } = &answer {
            verdict.must(receipt.outcome() == Outcome::Unknown || ran, || {
                format!(
                    "{when}: a receipt of {} without a run",
                    receipt.outcome().as_str()
                )
            });
        }
        past.answers.push(answer);
    }
    Ok(())
}

/// Says that the job has not run.
fn denies(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { .. } | Answer::NotStarted { .. })
        || matches!(answer, Answer::NotClaimed { reason, .. } if *reason != NotClaimedReason::Store)
}

/// Why a later answer cannot be true after an earlier one.
fn contradiction(before: &Answer, after: &Answer, confirmed: bool) -> Option<String> {
    let told = || Some(format!("{} after {}", after.kind(), before.kind()));
    match (before, after) {
        (_, Answer::Expired { .. }) if confirmed => None,
        (_, Answer::Expired { .. }) => told(),
        (
            Answer::Receipt {
                receipt: first,
                claim_id: first_id,
                ..
            },
            Answer::Receipt {
                receipt: second,
                claim_id: second_id,
                ..
            },
        ) => (first != second || first_id != second_id).then(|| "another receipt".to_owned()),
        (Answer::Receipt { .. }, _) => told(),
        (Answer::Refused { reason, .. }, Answer::Refused { reason: later, .. }) => {
            (reason != later).then(|| "refused for another reason".to_owned())
        }
        (Answer::Refused { .. }, _) => told(),
        (
            Answer::Running { .. } | Answer::Abandoned { .. },
            Answer::Refused { .. } | Answer::NotStarted { .. } | Answer::Conflict { .. },
        ) => told(),
        (Answer::NotStarted { .. } | Answer::NotClaimed { .. }, Answer::Conflict { .. }) => told(),
        _ => None,
    }
}

/// What must hold of every call by itself.
pub fn sound(verdict: &mut Verdict, world: &World, called: &Called) {
    if let Some(lock) = let_go_early(&called.trace) {
        let what = format!("one-run: the executor let go of {lock} before its receipt");
        verdict.violations.push(what);
    }
    verdict.must(!called.trace.hung, || {
        "hung: a process did not end".to_owned()
    });
    let stderr = world.stderr();
    verdict.must(!stderr.contains("panicked"), || {
        let line = stderr.lines().find(|line| line.contains("panicked"));
        format!("panic: {}", line.unwrap_or_default())
    });
    verdict.must(!stderr.contains(MARKER), || {
        "nothing-raw: on standard error".to_owned()
    });
    let returned = called.returned.as_ref().map(ToString::to_string);
    verdict.must(!returned.unwrap_or_default().contains(MARKER), || {
        "nothing-raw: in the return to Salt".to_owned()
    });
    let replies = format!("{:?}", called.replies);
    verdict.must(!replies.contains(MARKER), || {
        "nothing-raw: in a reply".to_owned()
    });
}

/// The lock of a job that an executor closed although it made the job's receipt later on.
fn let_go_early(trace: &Trace) -> Option<String> {
    let done = |event: &&Event| event.result.is_some_and(|result| result >= 0);
    let mut closed: Vec<(Role, String)> = Vec::new();
    for event in trace.events.iter().filter(done) {
        let role = event.place.role;
        match &event.call.what {
            What::Lock(path) if event.call.name == "close" && role != Role::Worker => {
                let name = path.to_string_lossy();
                if name.contains("/locks/execution") || name.contains("/locks/request-") {
                    closed.push((role, name.into_owned()));
                }
            }
            What::Rename(_, to) if to.to_string_lossy().contains("/receipts/") => {
                let early = closed.iter().find(|(closer, _)| *closer == role);
                if let Some((_, name)) = early {
                    return Some(name.clone());
                }
            }
            _ => {}
        }
    }
    None
}

/// What must hold of the files at any moment at which nothing runs.
pub fn look(verdict: &mut Verdict, world: &World, job: &Job, past: &Past) -> Result<()> {
    let effects = world.effects(job)?;
    verdict.must(effects <= 1, || {
        format!("one-claim: the state ran {effects} times")
    });
    let claim = world.store().join(format!("jids/{}.json", job.jid));
    let claimed = fs::read_to_string(&claim).is_ok_and(|text| text.contains("\"claim\""));
    verdict.must(effects == 0 || claimed || past.confirmed, || {
        "claim-before-run: the state ran, and there is no claim".to_owned()
    });
    if world.store().exists() {
        private(verdict, &world.store())?;
    }
    Ok(())
}

fn private(verdict: &mut Verdict, directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).context("cannot list the store")? {
        let path = entry.context("cannot list the store")?.path();
        let metadata = fs::symlink_metadata(&path).context("cannot look at the store")?;
        let (mode, links) = (metadata.mode() & 0o7777, metadata.nlink());
        let held = if metadata.is_dir() {
            private(verdict, &path)?;
            mode == 0o700
        } else {
            mode == 0o600 && links == 1
        };
        verdict.must(held, || {
            format!("private-storage: {} is {mode:o}", path.display())
        });
        let content = fs::read(&path).unwrap_or_default();
        verdict.must(!String::from_utf8_lossy(&content).contains(MARKER), || {
            format!("nothing-raw: in {}", path.display())
        });
    }
    Ok(())
}

/// The executor's own view of its store.
fn verify(verdict: &mut Verdict, laboratory: &Laboratory, world: &World) -> Result<()> {
    let output = Command::new(laboratory.executor())
        .args(["receipts", "verify", "--store"])
        .arg(world.store())
        .output()
        .context("cannot run gw-exec")?;
    verdict.must(output.status.success(), || {
        format!(
            "receipts verify: {}",
            String::from_utf8_lossy(&output.stdout)
        )
    });
    Ok(())
}
