//! The very publication that has run is delivered a second time, after the minion has forgotten it.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Report, STACK, Watch, jobs, outcome, publish, until};
use crate::bed::Bed;
use crate::{Host, Progress};

/// Keeps the load that reached the minion, restarts the minion (which forgets the jids it has seen, being
/// memory only: `salt/minion.py`, `jid_queue`, 3006.27), and pushes the load into the master's
/// `publish_pull.ipc` again.
///
/// # Errors
/// The bed does not do as it is told.
pub fn delivered_again(bed: &Bed, minion: usize, say: &Progress) -> Result<Report> {
    bed.set_pillar(minion, &[("pause_s", json!(2))])?;
    let watch = Watch::new(bed, minion, "oduflow_job.run")?;
    let request_id = publish(bed, minion)?;
    let job = until(
        Duration::from_secs(60),
        "Salt has no record of the job",
        || {
            Ok(jobs(bed, minion)?
                .into_iter()
                .find(|job| job.fun == "oduflow_job.run"))
        },
    )?;
    let first = outcome(bed, &request_id, Duration::from_secs(60))?;
    say.say(&format!("state {}; restarting the minion", first["state"]));
    bed.minion_restart(minion)?;
    say.say("pushing the same publication again");
    let socket = bed.publish_pull_path();
    let request = json!({"path": socket, "load": job.load});
    bed.call::<Value>(Host::Master, "push", request)?;
    until(
        Duration::from_secs(30),
        "the publication did not reach the minion again",
        || Ok((watch.published()? > 1).then_some(())),
    )?;
    thread::sleep(Duration::from_secs(2)); // a worker is started for it
    until(
        Duration::from_secs(60),
        "the second delivery does not end",
        || {
            Ok(jobs(bed, minion)?
                .iter()
                .all(|running| running.jid != job.jid)
                .then_some(()))
        },
    )?;
    bed.set_pillar(minion, &[])?;
    let body = bed.gw_json(&["show", &request_id])?.body;
    let mut report = watch.report("delivered_again", &body)?;
    report.expect(report.state == "succeeded", "the state is succeeded");
    report.expect(
        report.passed == Some(STACK) && report.total == Some(STACK),
        "60 of 60 states passed",
    );
    report.expect(report.published == 2, "delivered twice");
    report.expect(report.executed == 1, "executed once");
    Ok(report)
}
