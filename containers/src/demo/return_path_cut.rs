//! The way back through the master is cut while the job runs; the receipt does not go that way.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Report, STACK, Watch, begun, outcome, publish};
use crate::bed::Bed;
use crate::{Progress, Signal};

/// Stops the master's request workers and event publisher before the job ends, and lets them go on afterwards.
///
/// # Errors
/// The bed does not do as it is told.
pub fn return_path_cut(bed: &Bed, minion: usize, say: &Progress) -> Result<Report> {
    bed.set_pillar(minion, &[("pause_s", json!(5))])?;
    let watch = Watch::new(bed, minion, "oduflow_job.run")?;
    let request_id = publish(bed, minion)?;
    begun(&watch)?;
    let cut = Cut::new(bed)?;
    say.say(&format!(
        "the role runs; SIGSTOP to {} processes of the master",
        cut.pids.len()
    ));
    let body = outcome(bed, &request_id, Duration::from_secs(60))?;
    let still_cut = cut.holds()?;
    drop(cut);
    say.say("the outcome is there; SIGCONT");
    bed.set_pillar(minion, &[])?;
    bed.wait_for_minions(&[minion])?;
    let mut report = watch.report("return_path_cut", &body)?;
    report.expect(
        still_cut,
        "the master's processes were stopped until the receipt had come",
    );
    report.expect(report.state == "succeeded", "the state is succeeded");
    report.expect(
        report.passed == Some(STACK) && report.total == Some(STACK),
        "60 of 60 states passed",
    );
    report.expect(
        report.published == 1 && report.executed == 1,
        "published once, executed once",
    );
    Ok(report)
}

/// Stopped processes of the master, which go on when this is dropped, whatever happens.
struct Cut<'a> {
    bed: &'a Bed,
    pids: Vec<u32>,
}

impl<'a> Cut<'a> {
    fn new(bed: &'a Bed) -> Result<Self> {
        let master = bed.master_processes()?;
        ensure!(
            !master.request_workers.is_empty(),
            "cannot tell the master's request workers"
        );
        ensure!(
            !master.event_publisher.is_empty(),
            "cannot tell the master's event publisher"
        );
        let pids = [master.request_workers, master.event_publisher].concat();
        let cut = Self { bed, pids };
        bed.signal_master(Signal::Stop, &cut.pids)?;
        Ok(cut)
    }

    fn holds(&self) -> Result<bool> {
        let all = self.bed.all_master_processes()?;
        Ok(self.pids.iter().all(|pid| {
            all.iter()
                .any(|found| found.pid == *pid && found.state == "T")
        }))
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // a bed that cannot be reached any more is about to be removed
        self.bed.signal_master(Signal::Continue, &self.pids).ok();
    }
}
