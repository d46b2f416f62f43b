//! The crash matrix: every place at which a minion's executor or worker may be cut, tried one by one.
//!
//! The real module calls the real `gw-exec`, in a process of its own as under Salt, with a state function that only
//! counts. Each run is traced; at one system call it is struck (killed, made to fail, cut short), or the power is
//! cut there; then everything that comes after a crash is played, and what must hold is checked.

mod check;
mod power;
mod scenario;
mod syscall;
mod tracer;
mod world;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use gw_wire::reply::Answer;
use nix::errno::Errno;
use serde::Serialize;

use crate::{Progress, binaries, salt};
use check::{Verdict, hear, look, recover};
pub use scenario::Scenario;
use scenario::Stage;
use syscall::What;
use tracer::{Event, Fault, Role, Strike, Trace};
use world::{Called, Laboratory, World};

/// How a run is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL before each call.
    Kill,
    /// Each call that writes to the file system fails with ENOSPC.
    Enospc,
    /// The same with EIO.
    Eio,
    /// The same with EINTR.
    Eintr,
    /// Each write takes half.
    Short,
    /// From a call on the file system is full.
    Full,
    /// The power is cut after each call.
    Power,
}

impl Kind {
    /// All, in the order of the report.
    pub const ALL: [Kind; 7] = [
        Kind::Kill,
        Kind::Enospc,
        Kind::Eio,
        Kind::Eintr,
        Kind::Short,
        Kind::Full,
        Kind::Power,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::Enospc => "enospc",
            Kind::Eio => "eio",
            Kind::Eintr => "eintr",
            Kind::Short => "short",
            Kind::Full => "full",
            Kind::Power => "power",
        }
    }

    fn strike(self) -> Option<Strike> {
        match self {
            Kind::Kill => Some(Strike::Kill),
            Kind::Enospc => Some(Strike::Fail(Errno::ENOSPC)),
            Kind::Eio => Some(Strike::Fail(Errno::EIO)),
            Kind::Eintr => Some(Strike::Fail(Errno::EINTR)),
            Kind::Short => Some(Strike::Short),
            Kind::Full => Some(Strike::FailFromHere(Errno::ENOSPC)),
            Kind::Power => None,
        }
    }

    /// Whether an event is a point of this kind.
    fn strikes(self, event: &Event) -> bool {
        match self {
            Kind::Kill => true,
            Kind::Power => false,
            // The worker's own writes are the state's; what they do is the state's business.
            _ if event.place.role == Role::Worker => false,
            Kind::Short => matches!(&event.call.what, What::Write(_, bytes) if bytes.len() > 1),
            Kind::Enospc | Kind::Eio | Kind::Eintr => event.call.writes_files(),
            // A disk that is full when a file is begun; one that fills up later is `Enospc`.
            Kind::Full => matches!(event.call.what, What::Create(_)),
        }
    }
}

/// What to try.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which calls.
    pub scenarios: Vec<Scenario>,
    /// How they are disturbed.
    pub kinds: Vec<Kind>,
    /// Of each scenario and kind, at most so many points, spread evenly; all if none.
    pub at_most: Option<usize>,
    /// Chooses where there is a choice.
    pub seed: u64,
    /// The `gw-exec` to try; this workspace's own if none.
    pub executor: Option<PathBuf>,
}

/// One thing that did not hold.
#[derive(Debug, Clone, Serialize)]
pub struct Violation {
    /// The scenario.
    pub scenario: &'static str,
    /// How it was disturbed.
    pub kind: &'static str,
    /// Where.
    pub place: String,
    /// What did not hold.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} at {}: {}",
            self.scenario, self.kind, self.place, self.what
        )
    }
}

/// How many points of one scenario and kind there are, and were tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Places at which it can be disturbed.
    pub places: usize,
    /// Points that were tried and seen to be struck. For `power` one place is several points: one for each state
    /// that may be left there.
    pub points: usize,
    /// Points that could not be struck: in three tries another call stood there.
    pub missed: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// By scenario and kind.
    pub counts: BTreeMap<(&'static str, Kind), Count>,
    /// Everything that did not hold.
    pub violations: Vec<Violation>,
}

impl Report {
    /// The counts, a row for each scenario: points tried, and places in brackets where they differ.
    pub fn table(&self, plan: &Plan) -> String {
        let mut table = format!("{:16}", "");
        for kind in &plan.kinds {
            table.push_str(&format!("{:>13}", kind.name()));
        }
        let mut missed = 0;
        for scenario in &plan.scenarios {
            table.push_str(&format!("\n{:16}", scenario.name()));
            for kind in &plan.kinds {
                let count = self
                    .counts
                    .get(&(scenario.name(), *kind))
                    .copied()
                    .unwrap_or_default();
                missed += count.missed;
                let cell = if count.places == count.points {
                    count.points.to_string()
                } else {
                    format!("{} ({})", count.points, count.places)
                };
                table.push_str(&format!("{cell:>13}"));
            }
        }
        if missed > 0 {
            table.push_str(&format!(
                "\n{missed} points could not be struck in three tries"
            ));
        }
        table
    }

    /// Points in all.
    pub fn points(&self) -> usize {
        self.counts.values().map(|count| count.points).sum()
    }
}

/// Tries everything that the plan asks for.
///
/// # Errors
/// The matrix could not be played: no Salt, no right to trace, no space.
pub fn run(plan: &Plan, progress: &Progress) -> Result<Report> {
    let python = salt::environment(progress)?.join("python");
    let executor = match &plan.executor {
        Some(path) => fs::canonicalize(path).context("cannot find the executor")?,
        None => binaries()?.gw_exec,
    };
    let mut laboratory = Laboratory::open(&python, executor)?;
    let mut report = Report::default();
    for scenario in &plan.scenarios {
        let mut matrix = Matrix {
            laboratory: &mut laboratory,
            scenario: *scenario,
            plan,
            progress,
            report: &mut report,
        };
        matrix.play()?;
    }
    Ok(report)
}

struct Matrix<'a> {
    laboratory: &'a mut Laboratory,
    scenario: Scenario,
    plan: &'a Plan,
    progress: &'a Progress,
    report: &'a mut Report,
}

impl Matrix<'_> {
    fn play(&mut self) -> Result<()> {
        let stage = self.scenario.set_up(self.laboratory)?;
        let disk = stage.world.disk()?;
        let mut calm = self.call(&stage.world, &stage, &[])?;
        let standing: Vec<Fault> = self
            .scenario
            .standing_fault(&calm.trace)
            .into_iter()
            .collect();
        let mut disk = disk;
        let mut stage = stage;
        if !standing.is_empty() {
            stage = self.scenario.set_up(self.laboratory)?;
            disk = stage.world.disk()?;
            calm = self.call(&stage.world, &stage, &standing)?;
        }
        let mut verdict = Verdict::default();
        let mut past = stage.past.clone();
        hear(
            &mut verdict,
            &stage.world,
            &stage.ask.job,
            &mut past,
            &calm,
            "undisturbed",
        )?;
        look(&mut verdict, &stage.world, &stage.ask.job, &past)?;
        self.keep(Kind::Kill, "nowhere", verdict);
        for kind in self.plan.kinds.clone() {
            // A receipt that cannot be written is tried for a minute.
            let slow = kind == Kind::Full && self.scenario != Scenario::FirstRun;
            if slow && self.plan.at_most.is_some() {
                continue;
            }
            if kind == Kind::Power {
                self.cut_power(&stage, &disk, &calm)?;
            } else {
                self.strike_all(kind, &calm.trace, &standing)?;
            }
            let count = *self.count(kind);
            self.progress.say(&format!(
                "{:16} {:7} {:4} places, {:5} points",
                self.scenario.name(),
                kind.name(),
                count.places,
                count.points
            ));
        }
        Ok(())
    }

    fn count(&mut self, kind: Kind) -> &mut Count {
        let key = (self.scenario.name(), kind);
        self.report.counts.entry(key).or_default()
    }

    fn keep(&mut self, kind: Kind, place: &str, verdict: Verdict) {
        for what in verdict.violations {
            let violation = Violation {
                scenario: self.scenario.name(),
                kind: kind.name(),
                place: place.to_owned(),
                what,
            };
            self.progress.say(&format!("VIOLATION {violation}"));
            self.report.violations.push(violation);
        }
    }

    fn call(&mut self, world: &World, stage: &Stage, faults: &[Fault]) -> Result<Called> {
        self.laboratory.call(world, &stage.ask, faults)
    }

    /// Every point of a kind, or as many as the plan allows, evenly spread.
    fn chosen<T>(&self, all: Vec<T>) -> Vec<T> {
        let Some(at_most) = self.plan.at_most.filter(|most| *most < all.len()) else {
            return all;
        };
        let (length, offset) = (all.len(), self.plan.seed as usize % all.len());
        let wanted: HashSet<usize> = (0..at_most)
            .map(|n| (n * length / at_most + offset) % length)
            .collect();
        all.into_iter()
            .enumerate()
            .filter(|(n, _)| wanted.contains(n))
            .map(|(_, item)| item)
            .collect()
    }

    fn strike_all(&mut self, kind: Kind, calm: &Trace, standing: &[Fault]) -> Result<()> {
        let Some(strike) = kind.strike() else {
            return Ok(());
        };
        let places: Vec<Event> = calm
            .events
            .iter()
            .filter(|event| self.scenario.covers(event.place) && kind.strikes(event))
            .cloned()
            .collect();
        self.count(kind).places = places.len();
        for event in self.chosen(places) {
            let fault = Fault {
                place: event.place,
                strike,
                name: event.call.name,
            };
            self.strike(kind, &event, fault, standing)?;
        }
        Ok(())
    }

    fn strike(
        &mut self,
        kind: Kind,
        event: &Event,
        fault: Fault,
        standing: &[Fault],
    ) -> Result<()> {
        let faults = [standing, &[fault]].concat();
        for _ in 0..3 {
            let stage = self.scenario.set_up(self.laboratory)?;
            let called = self.call(&stage.world, &stage, &faults)?;
            if called.trace.struck < faults.len() {
                continue;
            }
            let mut verdict = Verdict::default();
            let mut past = stage.past.clone();
            let job = stage.ask.job;
            hear(
                &mut verdict,
                &stage.world,
                &job,
                &mut past,
                &called,
                "struck",
            )?;
            let after = recover(
                self.laboratory,
                &stage.world,
                &stage.ask,
                past,
                &stage.bystanders,
            )?;
            verdict.violations.extend(after.violations);
            self.keep(kind, &describe(event), verdict);
            self.count(kind).points += 1;
            return Ok(());
        }
        self.count(kind).missed += 1;
        Ok(())
    }

    /// Cuts the power after each call of an unharmed run, in every way that the medium allows.
    fn cut_power(&mut self, stage: &Stage, before: &power::Disk, calm: &Called) -> Result<()> {
        let mut disk = before.clone();
        let mut seen = HashSet::new();
        let mut cuts = Vec::new();
        let mut past = stage.past.clone();
        let said = calm.answers(&stage.ask.job);
        for event in &calm.trace.events {
            if event.result.is_some_and(|result| result < 0) {
                continue;
            }
            let changed = stage.world.holds(&event.call.what) && disk.apply(&event.call.what);
            // The side effect is outside of the machine.
            disk.apply(&What::Sync(stage.world.path("counter")));
            let told = told(&event.call.what, &said);
            if let Some(answer) = &told {
                past.answers.push(answer.clone());
            }
            if !changed && told.is_none() {
                continue;
            }
            self.count(Kind::Power).places += 1;
            let (states, _all) = disk.cuts(self.plan.seed);
            for left in states {
                if seen.insert((left.clone(), past.answers.len())) {
                    cuts.push((describe(event), left, past.clone()));
                }
            }
        }
        for (place, left, past) in self.chosen(cuts) {
            let world = World::empty()?;
            power::make(&left, world.root())?;
            let after = recover(self.laboratory, &world, &stage.ask, past, &stage.bystanders)?;
            self.keep(Kind::Power, &place, after);
            self.count(Kind::Power).points += 1;
        }
        Ok(())
    }
}

/// The answer that a message carries to the gateway, if it ends or denies something.
fn told(what: &What, said: &[Answer]) -> Option<Answer> {
    let What::Send(bytes) = what else {
        return None;
    };
    let text = String::from_utf8_lossy(bytes);
    said.iter()
        .rev()
        .find(|answer| {
            answer.kind() != "running"
                && text.contains(&format!("\"answer\":{{\"{}\"", answer.kind()))
        })
        .cloned()
}

fn describe(event: &Event) -> String {
    format!(
        "{} thread {} call {} ({})",
        event.place.role.name(),
        event.place.thread,
        event.place.ordinal,
        event.call.describe()
    )
}
