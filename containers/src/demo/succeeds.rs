//! A role of 60 states, followed to its receipt.

use anyhow::Result;

use super::{Report, STACK, Watch};
use crate::Progress;
use crate::bed::{Bed, minion_id};

/// Publishes, follows the progress, and reads the receipt.
///
/// # Errors
/// The bed does not do as it is told.
pub fn succeeds(bed: &Bed, minion: usize, say: &Progress) -> Result<Report> {
    let watch = Watch::new(bed, minion, "oduflow_job.run")?;
    let id = minion_id(minion);
    say.say(&format!("gw publish {id} --profile configure --wait"));
    let args = ["publish", &id, "--profile", "configure", "--wait=120"];
    let answer = bed.gw_follow(&args, |line| say.say(&format!("  {line}")))?;
    let mut report = watch.report("succeeds", &answer.body)?;
    report.expect(answer.code == 0, "gw ends with 0");
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
