//! The executor on a real minion: what is delivered twice, late, or beside another, does not run.

use std::time::Duration;

use anyhow::{Context as _, Result};
use bed::{Bed, Host};
use gw_tests::{bed, field, jid_file, publish, push, push_bare};
use gw_wire::id::{Jid, Profile, RequestId, now};
use gw_wire::publication::Call;

/// A run of any request under any jid.
fn push_run(bed: &Bed, request_id: RequestId, jid: Jid, not_after_s: i64) -> Result<()> {
    let call = Call::Run {
        request_id,
        profile: Profile::Configure,
        state_data: None,
    };
    push(bed, jid, call, Some(not_after_s))
}

/// Waits until the minion has no job left.
fn quiet(bed: &Bed) -> Result<()> {
    let directory = bed.minion_root(0).join("var/cache/salt/minion/proc");
    for _ in 0..200 {
        if bed
            .sh(
                Host::Minion(0),
                r#"ls "$1""#,
                &[&directory.to_string_lossy()],
            )?
            .trim()
            .is_empty()
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    anyhow::bail!("the minion is still busy after 40 s")
}

#[test]
fn one_claim_a_request_does_not_run_again_under_the_same_or_another_jid() -> Result<()> {
    let bed = bed().minions(1).up()?;
    let first = publish(&bed, 0, "configure", &[])?;
    assert_eq!(first.code, 0, "{first:?}");
    let request_id = RequestId::parse(field(&first, "request_id"))?;
    let jid = Jid::parse(field(&first, "jid"))?;
    for again in [jid, Jid::at(now())] {
        // A restart empties Salt's own memory of jids.
        bed.minion_restart(0)?;
        push_run(&bed, request_id, again, 300)?;
        for _ in 0..100 {
            if bed
                .deliveries(0, "oduflow_job.run")?
                .last()
                .map(String::as_str)
                == Some(again.as_str())
                && bed.deliveries(0, "oduflow_job.run")?.len() > 1
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        std::thread::sleep(Duration::from_secs(2));
        quiet(&bed)?;
    }
    assert_eq!(bed.deliveries(0, "oduflow_job.run")?.len(), 3);
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}

#[test]
fn one_claim_a_request_does_not_run_again_after_a_hundred_other_jids() -> Result<()> {
    let bed = bed().minions(1).up()?;
    let first = publish(&bed, 0, "configure", &[])?;
    assert_eq!(first.code, 0, "{first:?}");
    let request_id = RequestId::parse(field(&first, "request_id"))?;
    let jid = Jid::parse(field(&first, "jid"))?;
    // Salt remembers the last 100 jids (`salt/minion.py`, `jid_queue`, 3006.27).
    let pings = bed.deliveries(0, "test.ping")?.len();
    let mut last = Jid::at(now());
    for _ in 0..101 {
        last = Jid::next(Some(last), now());
        let ping = serde_json::json!({
            "fun": "test.ping", "arg": [], "tgt": [bed::minion_id(0)], "tgt_type": "list",
            "jid": last, "ret": "", "user": "root",
        });
        push_bare(&bed, &rmp_serde::to_vec_named(&ping)?)?;
    }
    delivered(&bed, "test.ping", pings + 101)?;
    push_run(&bed, request_id, jid, 300)?;
    delivered(&bed, "oduflow_job.run", 2)?;
    // Salt itself took it for a new job: it was the store that knew better.
    let started = format!("Starting a new job {jid}");
    for _ in 0..50 {
        if bed.minion_log(0)?.matches(&started).count() == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(bed.minion_log(0)?.matches(&started).count(), 2);
    quiet(&bed)?;
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}

/// Waits until Salt has begun so many jobs of a function.
fn delivered(bed: &Bed, fun: &str, count: usize) -> Result<()> {
    for _ in 0..200 {
        if bed.deliveries(0, fun)?.len() >= count {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    anyhow::bail!("fewer than {count} deliveries of {fun} after 40 s")
}

#[test]
fn one_run_a_second_job_beside_a_running_one_is_refused_for_ever() -> Result<()> {
    let bed = bed().minions(1).up()?;
    bed.set_pillar(0, &[("pause_s", 10.into())])?;
    let running = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    while bed.executions(0)? == 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let second = Jid::at(now());
    push_run(&bed, RequestId::random(), second, 300)?;
    let tombstone = jid_file(&bed, second)?;
    assert!(tombstone.contains("busy"), "{tombstone}");
    let id = field(&running, "request_id").to_owned();
    assert_eq!(
        publish(&bed, 0, "configure", &["--request-id", &id])?.code,
        0
    );
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}

#[test]
fn a_job_delivered_after_its_not_after_time_is_refused_durably_and_frees_the_target() -> Result<()>
{
    let bed = bed().minions(1).gw("not_after_s", "5").up()?;
    // A good capability is known; then the minion freezes, as a busy or suspended machine does.
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    bed.minion_pause(0)?;
    let sent = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    assert_eq!(field(&sent, "state"), "sent", "{sent:?}");
    std::thread::sleep(Duration::from_secs(7));
    bed.minion_resume(0)?;
    let id = field(&sent, "request_id").to_owned();
    let refused = publish(&bed, 0, "configure", &["--request-id", &id])?;
    assert_eq!(
        (
            refused.code,
            field(&refused, "state"),
            field(&refused, "reason")
        ),
        (5, "refused", "late")
    );
    let tombstone = jid_file(&bed, Jid::parse(field(&refused, "jid"))?)?;
    assert!(tombstone.contains("late"), "{tombstone}");
    assert_eq!(bed.executions(0)?, 1);
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    Ok(())
}

#[test]
fn a_status_call_answers_for_a_running_job_and_changes_nothing() -> Result<()> {
    let bed = bed().minions(1).up()?;
    bed.set_pillar(0, &[("pause_s", 8.into())])?;
    let sent = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    while bed.executions(0)? == 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let id = field(&sent, "request_id").to_owned();
    let polled = bed.gw_json(&["poll", &id])?;
    assert_eq!(
        (polled.code, field(&polled, "state")),
        (4, "sent"),
        "{polled:?}"
    );
    let shown = bed.gw_json(&["show", &id])?;
    let last = shown.body["history"]
        .as_array()
        .and_then(|rows| rows.last())
        .context("a history")?;
    assert_eq!(
        (last["event"].as_str(), last["state"].as_str()),
        (Some("observed"), Some("sent"))
    );
    assert!(
        last["detail"]
            .as_str()
            .is_some_and(|detail| detail.starts_with("running")),
        "{last}"
    );
    assert_eq!(
        publish(&bed, 0, "configure", &["--request-id", &id])?.code,
        0
    );
    Ok(())
}
