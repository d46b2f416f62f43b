//! Freeing a target without guessing: jobs that never ran are refused for ever on the minion's own word.

use std::time::{Duration, Instant};

use anyhow::Result;
use gw_tests::{bed, field, jid_file, jid_record, publish, push};
use gw_wire::id::{Jid, MinionId, Profile, RequestId, StateDigest, now};
use gw_wire::publication::Call;
use gw_wire::receipt::Binding;

#[test]
fn a_publication_that_was_lost_ends_refused_once_its_time_is_over() -> Result<()> {
    let bed = bed().minions(1).gw("not_after_s", "5").up()?;
    // A good capability is known; then the minion goes, and the publication with it.
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    bed.minion_stop(0)?;
    let sent = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    assert_eq!(field(&sent, "state"), "sent", "{sent:?}");
    bed.minion_start(0)?;
    std::thread::sleep(Duration::from_secs(6));
    let id = field(&sent, "request_id").to_owned();
    let polled = bed.gw_json(&["poll", &id])?;
    assert_eq!(
        (field(&polled, "state"), field(&polled, "reason")),
        ("refused", "late"),
        "{polled:?}"
    );
    assert_eq!(bed.executions(0)?, 1);
    assert_eq!(publish(&bed, 0, "configure", &[])?.code, 0);
    Ok(())
}

#[test]
fn a_revoked_job_never_runs_and_retention_forgets_what_the_gateway_confirmed() -> Result<()> {
    let bed = bed()
        .minions(1)
        .executor_config("retain_count", 1.into())
        .up()?;
    let job = Binding {
        minion_id: MinionId::parse(&bed::minion_id(0))?,
        request_id: RequestId::random(),
        jid: Jid::at(now()),
        profile: Profile::Configure,
        state_digest: StateDigest::default(),
    };
    push(&bed, Jid::at(now()), Call::Revoke(job.clone()), None)?;
    let tombstone = jid_file(&bed, job.jid)?;
    assert!(tombstone.contains("revoked"), "{tombstone}");
    let call = Call::Run {
        request_id: job.request_id,
        profile: job.profile,
        state_data: None,
    };
    push(&bed, job.jid, call, Some(300))?;

    let mut jids = Vec::new();
    for _ in 0..4 {
        let done = publish(&bed, 0, "configure", &[])?;
        assert_eq!(done.code, 0, "{done:?}");
        jids.push(Jid::parse(field(&done, "jid"))?);
    }
    // Each job confirms those before it: of the first three, confirmed, the newest one stays.
    let deadline = Instant::now() + Duration::from_secs(20);
    let kept = loop {
        let kept: Vec<bool> = jids
            .iter()
            .map(|jid| Ok(jid_record(&bed, *jid)?.is_some()))
            .collect::<Result<_>>()?;
        if kept == [false, false, true, true] || Instant::now() > deadline {
            break kept;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(kept, [false, false, true, true]);
    let revoked = jid_record(&bed, job.jid)?;
    assert!(
        revoked.is_some(),
        "a revocation that nobody confirmed stays"
    );
    assert_eq!(bed.executions(0)?, 4);
    Ok(())
}
