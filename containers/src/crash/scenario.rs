//! What is struck: one call of the module on a minion with a past.

use anyhow::Result;
use serde_json::json;

use super::check::Past;
use super::tracer::{Fault, Place, Role, Strike, Trace};
use super::world::{Ask, Job, Laboratory, World};

/// A minion just before the call that is struck.
pub struct Stage {
    /// Its files.
    pub world: World,
    /// The call.
    pub ask: Ask,
    /// What was said of the call's job.
    pub past: Past,
    /// Jobs that ended before, and what was said of them.
    pub bystanders: Vec<(Job, Past)>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// The first job of a minion: the store is made.
    FirstRun,
    /// A job on a store with a past, one state of which fails.
    RunThatFails,
    /// A state function that raises: the receipt is `unknown`, with a reason beside it.
    RunThatRaises,
    /// A job that comes after its not-after time.
    LateRun,
    /// A question about a job that was never delivered and whose time is over: the fence.
    LateStatus,
    /// A question about a job that ended.
    Status,
    /// A job that shall never run.
    Revoke,
    /// A revocation of a job that ended.
    RevokeOfEnded,
    /// A job that confirms earlier ones, which are then forgotten.
    Retention,
    /// A publication with a position that the store's chain lacks.
    StoreChanged,
    /// The executor dies before its receipt has a name, and the worker starts another.
    Finish,
}

impl Scenario {
    /// All, in the order of the report.
    pub const ALL: [Scenario; 11] = [
        Scenario::FirstRun,
        Scenario::RunThatFails,
        Scenario::RunThatRaises,
        Scenario::LateRun,
        Scenario::LateStatus,
        Scenario::Status,
        Scenario::Revoke,
        Scenario::RevokeOfEnded,
        Scenario::Retention,
        Scenario::StoreChanged,
        Scenario::Finish,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::FirstRun => "first-run",
            Scenario::RunThatFails => "run-that-fails",
            Scenario::RunThatRaises => "run-that-raises",
            Scenario::LateRun => "late-run",
            Scenario::LateStatus => "late-status",
            Scenario::Status => "status",
            Scenario::Revoke => "revoke",
            Scenario::RevokeOfEnded => "revoke-of-ended",
            Scenario::Retention => "retention",
            Scenario::StoreChanged => "store-changed",
            Scenario::Finish => "finish",
        }
    }

    /// The minion before the call, what is known of its jobs, and the call.
    pub fn set_up(self, laboratory: &mut Laboratory) -> Result<Stage> {
        let world = World::new()?;
        let mut past = Past::default();
        let mut bystanders = Vec::new();
        let before = match self {
            Scenario::FirstRun => 0,
            Scenario::Retention => 3,
            _ => 1,
        };
        for _ in 0..before {
            let job = laboratory.job();
            let called = laboratory.call(&world, &Ask::new("run", job), &[])?;
            let past = Past {
                answers: called.answers(&job),
                confirmed: self == Scenario::Retention,
            };
            bystanders.push((job, past));
        }
        let job = laboratory.job();
        let over = json!({"not_after": gw_wire::id::now().as_second() - 1});
        let mut ask = match self {
            Scenario::Status | Scenario::LateStatus => Ask::new("status", job),
            Scenario::Revoke | Scenario::RevokeOfEnded => Ask::new("revoke", job),
            _ => Ask::new("run", job),
        };
        match self {
            Scenario::FirstRun | Scenario::Revoke | Scenario::Finish => {}
            Scenario::RunThatFails => ask.outcome = "failed",
            Scenario::RunThatRaises => ask.outcome = "raises",
            Scenario::LateRun | Scenario::LateStatus => ask.gw = over,
            Scenario::Status | Scenario::RevokeOfEnded => {
                (ask.job, past) = bystanders.remove(0);
            }
            Scenario::Retention => {
                let jids: Vec<_> = bystanders.iter().map(|(job, _)| job.jid).collect();
                ask.gw = json!({"confirmed": jids});
                ask.config = json!({"retain_count": 0});
            }
            Scenario::StoreChanged => {
                let lacking = json!({"id": "0123456789abcdef0123456789abcdef", "sequence": 7, "head": "ab".repeat(32)});
                ask.gw = json!({"store": lacking});
            }
        }
        Ok(Stage {
            world,
            ask,
            past,
            bystanders,
        })
    }

    /// What is struck beside the place that is tried: for `finish`, the first executor at its receipt.
    pub fn standing_fault(self, calm: &Trace) -> Option<Fault> {
        if self != Scenario::Finish {
            return None;
        }
        let receipt = calm.events.iter().find(|event| {
            event.place.role == Role::Executor
                && event.call.name == "renameat2"
                && event.call.describe().contains("receipts/")
        })?;
        Some(Fault {
            place: receipt.place,
            strike: Strike::Kill,
            name: receipt.call.name,
        })
    }

    /// Whether a place belongs to this scenario; the others are tried where they came first.
    pub fn covers(self, place: Place) -> bool {
        (self == Scenario::Finish) == (place.role == Role::Finish)
    }
}
