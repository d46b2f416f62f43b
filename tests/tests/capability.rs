//! Capability first: without a fresh, signed and sufficient one nothing is claimed and nothing is sent, and
//! the error says what is missing.

use anyhow::Result;
use bed::{Bed, Host};
use gw_tests::{bed, publish};

/// Gives minion `number` more configuration and starts it anew.
fn reconfigure(bed: &Bed, number: usize, yaml: &str) -> Result<()> {
    let path = bed
        .minion_root(number)
        .join("etc/salt/minion.d/zz-test.conf");
    bed.sh(
        Host::Minion(number),
        r#"printf '%s\n' "$2" > "$1""#,
        &[&path.to_string_lossy(), yaml],
    )?;
    bed.minion_restart(number)
}

/// Publishes to a minion that cannot run jobs; the error's code and message.
fn refused(bed: &Bed, number: usize) -> Result<(String, String)> {
    let answer = publish(bed, number, "volume_resize", &[])?;
    assert_eq!(answer.code, 5, "{answer:?}");
    let error = &answer.body["error"];
    Ok((
        error["code"].as_str().unwrap_or_default().into(),
        error.to_string(),
    ))
}

#[test]
fn what_keeps_a_minion_from_running_jobs_is_named_and_nothing_is_recorded() -> Result<()> {
    let bed = bed().minions(4).up()?;
    reconfigure(&bed, 0, "state_data: terse")?;
    reconfigure(&bed, 1, "multiprocessing: False")?;
    reconfigure(
        &bed,
        2,
        "oduflow_job: {executor: /nonexistent/gw-exec, store: /nonexistent}",
    )?;
    let module = bed
        .minion_root(3)
        .join("var/cache/salt/minion/extmods/modules/oduflow_job.py");
    bed.sh(
        Host::Minion(3),
        r#"rm "$1"; rm -rf "$(dirname "$1")/__pycache__""#,
        &[&module.to_string_lossy()],
    )?;
    bed.minion_restart(3)?;

    for (number, code, words) in [
        (0, "minion_incapable", "state_data: terse"),
        (1, "minion_incapable", "multiprocessing: True"),
        (2, "minion_incapable", "gw-exec could not be started"),
        (3, "capability_unanswered", "module oduflow_job is absent"),
    ] {
        let (got, message) = refused(&bed, number)?;
        assert_eq!(got, code, "{message}");
        assert!(message.contains(words), "{message}");
        assert_eq!(bed.executions(number)?, 0);
        assert_eq!(
            bed.deliveries(number, "oduflow_job.run")?,
            Vec::<String>::new()
        );
    }
    assert_eq!(String::from_utf8(bed.gw(&["list", "--json"])?.stdout)?, "");

    // Mended, the same minion is asked again at once: a bad answer is not kept.
    reconfigure(&bed, 0, "state_data: full")?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    Ok(())
}

#[test]
fn an_executor_that_runs_as_another_user_than_the_gateway_expects_is_refused() -> Result<()> {
    let bed = bed().minions(1).gw("executor_euid", "54321").up()?;
    let (code, message) = refused(&bed, 0)?;
    assert_eq!(code, "minion_incapable");
    assert!(message.contains("54321"), "{message}");
    Ok(())
}

#[test]
fn a_minion_that_is_down_is_silence_and_nothing_more() -> Result<()> {
    let bed = bed().minions(1).up()?;
    bed.minion_stop(0)?;
    assert_eq!(refused(&bed, 0)?.0, "capability_unanswered");
    bed.minion_start(0)?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    Ok(())
}
