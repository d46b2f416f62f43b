//! Jobs under systemd: what a restart of salt-minion does to them, and what they leave behind.
//!
//! All tests share one bed of containers, each with systemd as process 1 and salt-minion as the unit of Salt's
//! packages (`KillMode=mixed`), but for a shorter time-out of its stop. Each test has a minion to itself.

use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use bed::{Answer, Bed, Host, Kind};
use gw_tests::jobs::{
    SCRIPT, SCRIPT_PATH, another, begin, cut, end, held, is_held, polled, release, release_path,
    script, stock, succeeded, until,
};
use gw_tests::{bed, docker, field, publish};
use serde_json::{Value, json};

/// `TimeoutStopSec=` of salt-minion's unit; the packages leave it at systemd's 90 s. A minion that is told to end
/// goes on for 5 s in any case (`salt/minion.py`, `handle_signal`, 3006.27).
const STOP_S: u64 = 6;

/// Applied as the profile `credentials`: Salt's own package states, with apt and dpkg.
const PACKAGE: &str = "
count:
  cmd.run:
    - name: echo began >> {{ pillar['bed']['counter'] }}
gw-slow:
  pkg.installed:
    - sources:
      - gw-slow: /var/lib/bed/gw-slow.deb
    - require:
      - cmd: count
";

/// Makes that package, whose installation waits for a file.
const MAKE_PACKAGE: &str = r#"
mkdir -p /var/lib/bed/deb/DEBIAN && cd /var/lib/bed
printf 'Package: gw-slow\nVersion: 1\nArchitecture: all\nMaintainer: bed <bed@example>\nDescription: slow\n' > deb/DEBIAN/control
printf '#!/bin/sh\nuntil test -e %s; do sleep 0.2; done\n' "$1" > deb/DEBIAN/postinst
chmod 755 deb/DEBIAN/postinst && dpkg-deb --build deb gw-slow.deb
"#;

/// The one bed of these tests; its janitor ends it after the last of them. Nothing if there is no Docker.
fn shared() -> Result<Option<&'static Bed>> {
    static BED: OnceLock<Result<Bed, String>> = OnceLock::new();
    if !docker() {
        return Ok(None);
    }
    let up = || {
        let bed = bed()
            .backend(Kind::Docker)
            .systemd(true)
            .minions(MINIONS)
            .state(SCRIPT_PATH, SCRIPT)
            .state("roles/client_credentials.sls", PACKAGE)
            .gw("poll_first_s", "5")
            .up()?;
        for n in 0..MINIONS {
            let shorten = r#"printf '[Service]\nTimeoutStopSec=%s\n' "$1" \
                > /etc/systemd/system/salt-minion.service.d/stop.conf && systemctl daemon-reload"#;
            bed.sh(Host::Minion(n), shorten, &[&STOP_S.to_string()])?;
        }
        Ok(bed)
    };
    let shared = BED.get_or_init(|| up().map_err(|error: anyhow::Error| format!("{error:#}")));
    match shared {
        Ok(bed) => Ok(Some(bed)),
        Err(error) => bail!("{error}"),
    }
}

/// Who has which minion.
const OPERATOR: usize = 0;
const WITHOUT: usize = 1;
const REQUIRED: usize = 2;
const ITSELF: usize = 3;
const WAITING: usize = 4;
const DAEMON: usize = 5;
const APT: usize = 6;
const STOPPED: usize = 7;
const MINIONS: usize = 8;

fn capability(bed: &Bed, number: usize) -> Result<Value> {
    Ok(stock(bed, number, &["oduflow_job.capability"])?["capability"].clone())
}

/// The last signed reply about a job that is in the journal.
fn last_reply(bed: &Bed, sent: &Answer) -> Result<Value> {
    let read = r#"/opt/salt/bin/python -c '
import sqlite3, sys
rows = sqlite3.connect("/var/lib/gw/journal.sqlite").execute(
    "SELECT evidence FROM history WHERE request_id = ? AND evidence IS NOT NULL ORDER BY seq", sys.argv[1:])
print(rows.fetchall()[-1][0].decode())' "$1""#;
    let text = bed.sh(Host::Master, read, &[field(sent, "request_id")])?;
    Ok(serde_json::from_str(&text)?)
}

/// The processes in the scope of a job: pid and command line.
fn in_scope(bed: &Bed, number: usize, sent: &Answer) -> Result<Vec<(String, String)>> {
    let list = r#"procs=$(find /sys/fs/cgroup -path "*/gw-job-$1.scope/cgroup.procs" | head -1)
        for pid in $(cat ${procs:+"$procs"} </dev/null); do echo "$pid $(tr '\0' ' ' < /proc/$pid/cmdline)"; done"#;
    let text = bed.sh(Host::Minion(number), list, &[field(sent, "jid")])?;
    let split = text.lines().filter_map(|line| line.split_once(' '));
    Ok(split
        .map(|(pid, title)| (pid.to_owned(), title.trim().to_owned()))
        .collect())
}

/// SIGKILL to the worker of a job in its scope.
fn kill_worker(bed: &Bed, number: usize, sent: &Answer) -> Result<()> {
    let processes = in_scope(bed, number, sent)?;
    let worker = processes
        .iter()
        .find(|(_, title)| title.contains("ProcessPayload"));
    let (pid, _) = worker.with_context(|| format!("no worker among {processes:?}"))?;
    bed.sh(Host::Minion(number), r#"kill -KILL "$1""#, &[pid])
        .map(drop)
}

fn run(bed: &Bed, number: usize, line: &str) -> Result<bool> {
    Ok(bed.exec(Host::Minion(number), line, &[])?.status.success())
}

/// Whether systemd has had to kill what was left in the unit of salt-minion at the time-out of its stop.
fn stop_timed_out(bed: &Bed, number: usize) -> Result<bool> {
    run(
        bed,
        number,
        "journalctl --unit salt-minion | grep -q 'Failed with result .timeout.'",
    )
}

fn alone(bed: &Bed, number: usize, sent: &Answer) -> Result<()> {
    until("something is still in the scope", || {
        Ok(in_scope(bed, number, sent)?.is_empty())
    })
}

fn without_bus(bed: &Bed, number: usize) -> Result<()> {
    let mask = "systemctl mask --now dbus.socket dbus.service 2>&1";
    bed.sh(Host::Minion(number), mask, &[]).map(drop)
}

#[test]
fn an_operators_restart_of_the_minion_does_not_cut_a_job_in_its_scope() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    assert_eq!(capability(bed, OPERATOR)?["survival"], "scope");
    let sent = held(bed, OPERATOR, "")?;
    bed.minion_restart(OPERATOR)?;
    assert!(stop_timed_out(bed, OPERATOR)? && is_held(bed, OPERATOR)?);
    release(bed, OPERATOR)?;
    succeeded(&end(bed, OPERATOR, &sent)?);
    assert_eq!(bed.executions(OPERATOR)?, 1);
    let reply = last_reply(bed, &sent)?;
    assert_eq!(reply["answer"]["receipt"]["survival"], "scope", "{reply}");
    Ok(())
}

#[test]
fn without_a_bus_a_restart_cuts_the_job_and_every_answer_says_so_beforehand() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    without_bus(bed, WITHOUT)?;
    let known = capability(bed, WITHOUT)?;
    assert_eq!(
        (&known["survival"], &known["problems"]),
        (&json!("none"), &json!([]))
    );
    let first = publish(bed, WITHOUT, "volume_resize", &[])?;
    succeeded(&first);
    let reply = last_reply(bed, &first)?;
    assert_eq!(reply["answer"]["receipt"]["survival"], "none", "{reply}");

    let sent = held(bed, WITHOUT, "")?;
    bed.minion_restart(WITHOUT)?;
    assert!(!is_held(bed, WITHOUT)? && bed.executors(WITHOUT)?.is_empty());
    let (code, state, said) = polled(bed, &sent)?;
    assert_eq!(
        (code, state.as_str(), said.as_str()),
        (4, "sent", "abandoned")
    );
    assert_eq!(bed.executions(WITHOUT)?, 2);
    Ok(())
}

#[test]
fn where_survival_is_required_a_job_without_it_is_refused_for_ever() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    let require = r#"/opt/salt/bin/python -c '
import yaml
config = yaml.safe_load(open("/etc/salt/minion"))["oduflow_job"]
config["require_survival"] = True
yaml.safe_dump({"oduflow_job": config}, open("/etc/salt/minion.d/survival.conf", "w"))'"#;
    bed.sh(Host::Minion(REQUIRED), require, &[])?;
    bed.minion_restart(REQUIRED)?;
    succeeded(&publish(bed, REQUIRED, "volume_resize", &[])?);
    // The gateway still knows the capability from before.
    without_bus(bed, REQUIRED)?;
    let refused = publish(bed, REQUIRED, "volume_resize", &[])?;
    assert_eq!(
        (
            refused.code,
            field(&refused, "state"),
            field(&refused, "reason")
        ),
        (5, "refused", "incapable"),
        "{refused:?}"
    );
    let known = capability(bed, REQUIRED)?;
    assert_eq!(
        (&known["survival"], &known["problems"]),
        (&json!("none"), &json!(["survival"]))
    );
    assert_eq!(bed.executions(REQUIRED)?, 1);
    Ok(())
}

#[test]
fn a_job_that_restarts_or_kills_its_own_minion_ends_as_it_should() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    let sent = held(bed, ITSELF, "systemctl restart --no-block salt-minion;")?;
    until("the old minion does not end", || {
        stop_timed_out(bed, ITSELF)
    })?;
    bed.wait_for_minions(&[ITSELF])?;
    assert!(is_held(bed, ITSELF)?);
    release(bed, ITSELF)?;
    succeeded(&end(bed, ITSELF, &sent)?);
    // At the death of the main process systemd kills the rest of the unit at once.
    let kill = "kill -KILL $(systemctl show --property MainPID --value salt-minion); sleep 2; \
        systemctl is-failed salt-minion && systemctl start salt-minion";
    script(bed, ITSELF, kill)?;
    succeeded(&publish(bed, ITSELF, "volume_resize", &[])?);
    assert_eq!(bed.executions(ITSELF)?, 2);
    Ok(())
}

/// The state waits for the stop of the minion, whose main process waits for the worker, which waits for the state;
/// the time-out of the unit's stop ends it.
#[test]
fn a_job_that_waits_for_the_restart_of_its_own_minion_waits_for_the_stops_time_out() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    script(
        bed,
        WAITING,
        "systemctl restart salt-minion && systemctl is-active salt-minion",
    )?;
    succeeded(&publish(bed, WAITING, "volume_resize", &[])?);
    assert!(stop_timed_out(bed, WAITING)?);
    assert_eq!(bed.executions(WAITING)?, 1);
    Ok(())
}

#[test]
fn a_daemon_keeps_the_next_job_out_if_its_job_was_cut_and_not_if_it_ended() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    let fork = |seconds: u32| format!("setsid sleep {seconds} </dev/null >/dev/null 2>&1 &");
    let daemon = |sent: &Answer, seconds: u32| -> Result<Option<String>> {
        let title = format!("sleep {seconds}");
        let all = in_scope(bed, DAEMON, sent)?;
        Ok(all
            .into_iter()
            .find(|process| process.1 == title)
            .map(|process| process.0))
    };
    script(bed, DAEMON, &fork(1001))?;
    let first = publish(bed, DAEMON, "volume_resize", &[])?;
    succeeded(&first);

    let sent = held(bed, DAEMON, &fork(1002))?;
    kill_worker(bed, DAEMON, &sent)?;
    cut(&end(bed, DAEMON, &sent)?);
    release(bed, DAEMON)?;
    script(bed, DAEMON, "true")?;
    until("the state's shell does not end", || {
        Ok(!is_held(bed, DAEMON)?)
    })?;
    let busy = another(bed, DAEMON)?;
    assert_eq!(busy["refused"]["reason"], "busy", "{busy}");

    let left = daemon(&sent, 1002)?.context("the daemon is gone")?;
    bed.sh(Host::Minion(DAEMON), r#"kill "$1""#, &[&left])?;
    alone(bed, DAEMON, &sent)?;
    let next = another(bed, DAEMON)?;
    assert_eq!(next["status"], "succeeded", "{next}");
    // The first job's daemon has lived all the time, in a scope that is not the others'.
    assert!(daemon(&first, 1001)?.is_some());
    Ok(())
}

#[test]
fn apt_outlives_a_restart_of_the_minion_and_keeps_the_next_job_out_when_its_worker_dies()
-> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    bed.sh(Host::Minion(APT), MAKE_PACKAGE, &[&release_path(bed, APT)])?;
    let postinst = |sent: &Answer| -> Result<bool> {
        let all = in_scope(bed, APT, sent)?;
        Ok(all
            .iter()
            .any(|(_, title)| title.contains("gw-slow.postinst")))
    };
    let sent = begin(bed, APT, "credentials")?;
    until("dpkg does not configure the package", || postinst(&sent))?;
    bed.minion_restart(APT)?;
    assert!(stop_timed_out(bed, APT)? && postinst(&sent)?);
    release(bed, APT)?;
    succeeded(&end(bed, APT, &sent)?);
    let undo = r#"dpkg --purge gw-slow && rm "$1""#;
    bed.sh(Host::Minion(APT), undo, &[&release_path(bed, APT)])?;

    let sent = begin(bed, APT, "credentials")?;
    until("dpkg does not configure the package", || postinst(&sent))?;
    kill_worker(bed, APT, &sent)?;
    cut(&end(bed, APT, &sent)?);
    let busy = another(bed, APT)?;
    assert_eq!(busy["refused"]["reason"], "busy", "{busy}");
    release(bed, APT)?;
    alone(bed, APT, &sent)?;
    let installed =
        "test \"$(dpkg-query --show --showformat '${Status}' gw-slow)\" = 'install ok installed'";
    assert!(run(bed, APT, installed)?);
    let next = another(bed, APT)?;
    assert_eq!(next["status"], "succeeded", "{next}");
    Ok(())
}

#[test]
fn stopping_a_jobs_scope_ends_it_unknown_and_waits_for_no_gateway() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    let sent = held(bed, STOPPED, "")?;
    bed.partition(STOPPED)?;
    // Waits for the end of every process in the scope, the executor too; after 90 s systemd would kill it.
    let stop =
        r#"systemctl stop "gw-job-$1.scope" && cat /var/lib/oduflow/job-receipts/receipts/*"#;
    let receipt = bed.sh(Host::Minion(STOPPED), stop, &[field(&sent, "jid")])?;
    assert!(receipt.contains("unknown"), "{receipt}");
    assert!(
        !run(
            bed,
            STOPPED,
            "journalctl | grep 'gw-job-.*.scope: Stopping timed out'"
        )?,
        "systemd killed the executor"
    );
    bed.heal(STOPPED)?;
    bed.wait_for_minions(&[STOPPED])?;
    cut(&end(bed, STOPPED, &sent)?);
    assert_eq!(bed.executions(STOPPED)?, 1);
    Ok(())
}
