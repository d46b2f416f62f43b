//! The process that applies the states is killed in the middle of one.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Report, Watch, begun, jobs, outcome, publish, until};
use crate::bed::{Bed, minion_id};
use crate::{Progress, Signal};

/// How long the state sleeps in which the worker dies, in seconds.
const PAUSE: u32 = 20;

/// Kills the worker; then tries to publish to the same minion again. The minion stays blocked.
///
/// # Errors
/// The bed does not do as it is told.
pub fn worker_killed(bed: &Bed, minion: usize, say: &Progress) -> Result<Report> {
    bed.set_pillar(minion, &[("pause_s", json!(PAUSE))])?;
    let watch = Watch::new(bed, minion, "oduflow_job.run")?;
    let request_id = publish(bed, minion)?;
    begun(&watch)?;
    let sleeping = format!("sleep {PAUSE}");
    until(
        Duration::from_secs(60),
        "the long state has not begun",
        || {
            let all = bed.minion_processes(minion)?;
            Ok(all
                .iter()
                .any(|process| process.title.ends_with(&sleeping))
                .then_some(()))
        },
    )?;
    let worker = until(
        Duration::from_secs(10),
        "Salt has no record of the job's worker",
        || {
            Ok(jobs(bed, minion)?
                .into_iter()
                .find(|job| job.fun == "oduflow_job.run"))
        },
    )?;
    ensure!(
        bed.signal_minion(minion, Signal::Kill, &[worker.pid])? == [worker.pid],
        "cannot kill the worker {}",
        worker.pid
    );
    say.say(&format!(
        "in the middle of a state: SIGKILL to its worker, process {}",
        worker.pid
    ));
    let body = outcome(bed, &request_id, Duration::from_secs(90))?;
    say.say(&format!(
        "state {}; publishing to the same minion again",
        body["state"]
    ));
    let again = bed.gw_json(&["publish", &minion_id(minion), "--profile", "configure"])?;
    say.say(&format!(
        "gw ends with {}: {}",
        again.code, again.body["error"]["message"]
    ));
    thread::sleep(Duration::from_secs(3)); // anything sent again would have arrived by then
    bed.set_pillar(minion, &[])?;
    let mut report = watch.report("worker_killed", &body)?;
    report.expect(report.state == "unknown", "the state is unknown");
    report.expect(
        again.code == 5,
        "a further publish to the blocked minion is refused with 5",
    );
    report.expect(
        report.published == 1 && report.executed == 1,
        "published once, executed once",
    );
    Ok(report)
}
