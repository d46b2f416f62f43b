//! Beside the others: Salt's own client, whose acknowledgements are lost on the way.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Report, STOCK_TRANSPORT, Watch, jobs, until};
use crate::bed::{Bed, minion_id};
use crate::{Host, Progress};

/// How the call ended for its caller.
#[derive(Debug, Deserialize)]
struct Ended {
    raised: Option<String>,
    answer: Value,
}

/// One `LocalClient.run_job` with a timeout of 4 s through a proxy that swallows the master's answers. The client
/// sends again, under a new jid each time (`salt/channel/client.py`, `REQUEST_CHANNEL_TRIES`, 3006.27).
///
/// # Errors
/// The bed does not do as it is told.
pub fn stock_client_ack_lost(bed: &Bed, minion: usize, say: &Progress) -> Result<Report> {
    let watch = Watch::new(bed, minion, "state.sls")?;
    say.say("one call of Salt's own client, the master's answers swallowed");
    let request = json!({
        "config": format!("{}/master", bed.layout(Host::Master).salt_config()),
        "target": minion_id(minion),
        "fun": "state.sls",
        "arg": ["roles.client_storage_resize"],
        "timeout": 4,
    });
    let ended: Ended = bed.call(Host::Master, "ack_lost", request)?;
    until(Duration::from_secs(60), "the stock jobs do not end", || {
        Ok(jobs(bed, minion)?
            .iter()
            .all(|job| job.fun != "state.sls")
            .then_some(()))
    })?;
    let state = ended.raised.unwrap_or_else(|| "returned".to_owned());
    say.say(&format!("the client says: {state}: {}", ended.answer));
    let mut report = Report {
        scenario: "stock_client_ack_lost",
        transport: STOCK_TRANSPORT.name().to_owned(),
        published: watch.published()?,
        executed: watch.executed()?,
        state,
        passed: None,
        total: None,
        complaints: Vec::new(),
    };
    report.expect(
        report.state == "SaltClientError",
        "the client says that it could not send",
    );
    report.expect(report.published > 1, "published more than once");
    report.expect(report.executed > 1, "executed more than once");
    Ok(report)
}
