//! Jobs under systemd: what a restart of salt-minion does to them, and what they leave behind.
//!
//! All tests share one bed of containers, each with systemd as process 1 and salt-minion as the unit of Salt's
//! packages (`KillMode=mixed`), but for a shorter time-out of its stop. Each test has a minion to itself.

use std::process::Output;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bed::{Answer, Bed, Host, Kind, minion_id};
use gw_tests::{bed, docker, field, publish};
use serde_json::{Value, json};

/// `TimeoutStopSec=` of salt-minion's unit; the packages leave it at systemd's 90 s. A minion that is told to end
/// goes on for 5 s in any case (`salt/minion.py`, `handle_signal`, 3006.27).
const STOP_S: u64 = 6;
/// How long a state sleeps that is to be cut, or to live on, by the unit's stop.
const LONGER_S: u64 = STOP_S + 5;

/// Applied as the profile `volume_resize`: counts the execution, then runs what the pillar says.
const SCRIPT: &str = "
count:
  cmd.run:
    - name: echo began >> {{ pillar['bed']['counter'] }}
script:
  cmd.run:
    - name: {{ pillar['bed'].get('script', 'true') | json }}
    - require:
      - cmd: count
";

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

/// Makes that package; its installation takes as long as its first argument says.
const MAKE_PACKAGE: &str = r#"
mkdir -p /var/lib/bed/deb/DEBIAN && cd /var/lib/bed
printf 'Package: gw-slow\nVersion: 1\nArchitecture: all\nMaintainer: bed <bed@example>\nDescription: slow\n' > deb/DEBIAN/control
printf '#!/bin/sh\nsleep %s\ntouch /var/lib/bed/installed\n' "$1" > deb/DEBIAN/postinst
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
            .state("roles/client_storage_resize.sls", SCRIPT)
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

/// Asks until it is so, for at most a minute.
fn until(complaint: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while !so()? {
        ensure!(Instant::now() < end, "{complaint} after a minute");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Has minion `number`'s next job run a shell script.
fn script(bed: &Bed, number: usize, text: &str) -> Result<()> {
    bed.set_pillar(number, &[("script", text.into())])
}

/// Publishes a profile without waiting, and waits until it has begun to run.
fn begin(bed: &Bed, number: usize, profile: &str) -> Result<Answer> {
    let before = bed.executions(number)?;
    let sent = bed.gw_json(&["publish", &minion_id(number), "--profile", profile])?;
    ensure!(field(&sent, "state") == "sent", "not sent: {sent:?}");
    until("the job has not begun", || {
        Ok(bed.executions(number)? > before)
    })?;
    Ok(sent)
}

/// Follows a job to its end.
fn end(bed: &Bed, number: usize, sent: &Answer) -> Result<Answer> {
    let (profile, id) = (field(sent, "profile"), field(sent, "request_id"));
    publish(bed, number, profile, &["--request-id", id])
}

/// A call of the Salt module by Salt's own client, whose answers come back through Salt.
fn stock(bed: &Bed, number: usize, call: &[&str]) -> Result<Value> {
    let id = minion_id(number);
    let output =
        bed.stock_salt(&[&["--out=json", "--static", "--timeout=30", &id], call].concat())?;
    let answers: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no answer to {call:?}: {output:?}"))?;
    Ok(answers[&id].clone())
}

/// Another job, published around the gateway, which blocks the minion of an `unknown` one.
fn another(bed: &Bed, number: usize) -> Result<Value> {
    let request = gw_wire::id::RequestId::random().to_string();
    stock(
        bed,
        number,
        &["oduflow_job.run", &request, "volume_resize", ""],
    )
}

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

fn run(bed: &Bed, number: usize, line: &str) -> Result<Output> {
    bed.exec(Host::Minion(number), line, &[])
}

fn succeeded(ended: &Answer) {
    assert_eq!(
        (ended.code, field(ended, "state")),
        (0, "succeeded"),
        "{ended:?}"
    );
}

fn cut(ended: &Answer) {
    assert_eq!(
        (ended.code, field(ended, "state"), field(ended, "reason")),
        (4, "unknown", "worker_died"),
        "{ended:?}"
    );
}

#[test]
fn an_operators_restart_of_the_minion_does_not_cut_a_job_in_its_scope() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    assert_eq!(capability(bed, OPERATOR)?["survival"], "scope");
    script(
        bed,
        OPERATOR,
        &format!("sleep {LONGER_S}; touch /var/lib/bed/after"),
    )?;
    let sent = begin(bed, OPERATOR, "volume_resize")?;
    // Ends when systemd has killed the old minion and whatever was in its control group, and the new one is there.
    let restarted = run(
        bed,
        OPERATOR,
        "systemctl restart salt-minion; test ! -e /var/lib/bed/after",
    )?;
    assert!(
        restarted.status.success(),
        "the job was over before the restart was: {restarted:?}"
    );
    let killed = "journalctl --unit salt-minion | grep -q 'Failed with result .timeout.'";
    assert!(
        run(bed, OPERATOR, killed)?.status.success(),
        "nothing was killed"
    );
    succeeded(&end(bed, OPERATOR, &sent)?);
    assert_eq!(bed.executions(OPERATOR)?, 1);
    let reply = last_reply(bed, &sent)?;
    assert_eq!(reply["answer"]["receipt"]["survival"], "scope", "{reply}");
    Ok(())
}

#[test]
fn without_a_bus_a_restart_cuts_the_job_and_every_answer_says_so_beforehand() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    bed.sh(
        Host::Minion(WITHOUT),
        "systemctl mask --now dbus.socket dbus.service 2>&1",
        &[],
    )?;
    let known = capability(bed, WITHOUT)?;
    assert_eq!(
        (&known["survival"], &known["problems"]),
        (&json!("none"), &json!([]))
    );
    let first = publish(bed, WITHOUT, "volume_resize", &[])?;
    succeeded(&first);
    let reply = last_reply(bed, &first)?;
    assert_eq!(reply["answer"]["receipt"]["survival"], "none", "{reply}");

    script(
        bed,
        WITHOUT,
        &format!("sleep {LONGER_S}; touch /var/lib/bed/after"),
    )?;
    let sent = begin(bed, WITHOUT, "volume_resize")?;
    bed.minion_restart(WITHOUT)?;
    let polled = bed.gw_json(&["poll", field(&sent, "request_id")])?;
    assert_eq!(
        (polled.code, field(&polled, "state")),
        (4, "sent"),
        "{polled:?}"
    );
    let shown = bed.gw_json(&["show", field(&sent, "request_id")])?;
    let last = &shown.body["history"]
        .as_array()
        .and_then(|rows| rows.last())
        .context("a history")?["detail"];
    assert_eq!(last, "abandoned", "{shown:?}");
    let left = bed.minion_processes(WITHOUT)?;
    let asleep = format!("sleep {LONGER_S}");
    assert!(
        left.iter().all(|process| process.title != asleep),
        "{left:?}"
    );
    assert!(
        !run(bed, WITHOUT, "test -e /var/lib/bed/after")?
            .status
            .success()
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
    bed.sh(
        Host::Minion(REQUIRED),
        "systemctl mask --now dbus.socket dbus.service 2>&1",
        &[],
    )?;
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
    script(
        bed,
        ITSELF,
        &format!(
            "systemctl restart --no-block salt-minion; sleep {LONGER_S}; systemctl is-active salt-minion"
        ),
    )?;
    succeeded(&publish(bed, ITSELF, "volume_resize", &[])?);
    let killed = "journalctl --unit salt-minion | grep -q 'Failed with result .timeout.'";
    assert!(
        run(bed, ITSELF, killed)?.status.success(),
        "nothing was killed"
    );
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
        "date +%s > /var/lib/bed/from; systemctl restart salt-minion && date +%s > /var/lib/bed/to",
    )?;
    succeeded(&publish(bed, WAITING, "volume_resize", &[])?);
    assert_eq!(bed.executions(WAITING)?, 1);
    let took = bed.sh(
        Host::Minion(WAITING),
        "echo $(($(cat /var/lib/bed/to) - $(cat /var/lib/bed/from)))",
        &[],
    )?;
    assert!(
        took.trim().parse::<u64>()? >= STOP_S,
        "the restart took {took} s"
    );
    Ok(())
}

#[test]
fn a_daemon_keeps_the_next_job_out_if_its_job_was_cut_and_not_if_it_ended() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    let fork = "setsid sleep 1000 </dev/null >/dev/null 2>&1 &";
    script(bed, DAEMON, fork)?;
    let first = publish(bed, DAEMON, "volume_resize", &[])?;
    succeeded(&first);
    until("the executor is still in the scope", || {
        Ok(in_scope(bed, DAEMON, &first)?.len() == 1)
    })?;

    script(bed, DAEMON, &format!("{fork} sleep 1001"))?;
    let sent = begin(bed, DAEMON, "volume_resize")?;
    until("the state has not begun to sleep", || {
        Ok(in_scope(bed, DAEMON, &sent)?
            .iter()
            .any(|(_, title)| title == "sleep 1001"))
    })?;
    kill_worker(bed, DAEMON, &sent)?;
    cut(&end(bed, DAEMON, &sent)?);
    script(bed, DAEMON, "true")?;
    let busy = another(bed, DAEMON)?;
    assert_eq!(busy["refused"]["reason"], "busy", "{busy}");

    let left = in_scope(bed, DAEMON, &sent)?;
    let asleep = left.iter().filter(|(_, title)| title.starts_with("sleep"));
    let pids: Vec<&str> = asleep.map(|(pid, _)| pid.as_str()).collect();
    assert_eq!(pids.len(), 2, "{left:?}");
    bed.sh(Host::Minion(DAEMON), r#"kill "$@""#, &pids)?;
    until("the executor is still in the scope", || {
        Ok(in_scope(bed, DAEMON, &sent)?.is_empty())
    })?;
    let next = another(bed, DAEMON)?;
    assert_eq!(next["status"], "succeeded", "{next}");
    // The first job's daemon lives all the time, in a scope that is not the others'.
    assert_eq!(in_scope(bed, DAEMON, &first)?.len(), 1);
    Ok(())
}

#[test]
fn apt_outlives_a_restart_of_the_minion_and_keeps_the_next_job_out_when_its_worker_dies()
-> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    bed.sh(Host::Minion(APT), MAKE_PACKAGE, &[&LONGER_S.to_string()])?;
    let postinst = |sent: &Answer| {
        until("dpkg does not configure the package", || {
            Ok(in_scope(bed, APT, sent)?
                .iter()
                .any(|(_, title)| title.contains("gw-slow.postinst")))
        })
    };
    let sent = begin(bed, APT, "credentials")?;
    postinst(&sent)?;
    bed.minion_restart(APT)?;
    succeeded(&end(bed, APT, &sent)?);
    bed.sh(
        Host::Minion(APT),
        "dpkg --purge gw-slow && rm /var/lib/bed/installed",
        &[],
    )?;

    let sent = begin(bed, APT, "credentials")?;
    postinst(&sent)?;
    kill_worker(bed, APT, &sent)?;
    cut(&end(bed, APT, &sent)?);
    let busy = another(bed, APT)?;
    assert_eq!(busy["refused"]["reason"], "busy", "{busy}");
    until("the executor is still in the scope", || {
        Ok(in_scope(bed, APT, &sent)?.is_empty())
    })?;
    // apt was not disturbed, and everything was over before the next job could begin.
    assert!(
        run(bed, APT, "test -e /var/lib/bed/installed && dpkg --audit")?
            .status
            .success()
    );
    let next = another(bed, APT)?;
    assert_eq!(next["status"], "succeeded", "{next}");
    Ok(())
}

#[test]
fn stopping_a_jobs_scope_ends_it_unknown_and_waits_for_no_gateway() -> Result<()> {
    let Some(bed) = shared()? else { return Ok(()) };
    script(bed, STOPPED, "sleep 1000")?;
    let sent = begin(bed, STOPPED, "volume_resize")?;
    bed.partition(STOPPED)?;
    // Waits for the end of every process in the scope, the executor too; after 90 s systemd would kill it.
    let stop =
        r#"systemctl stop "gw-job-$1.scope" && cat /var/lib/oduflow/job-receipts/receipts/*"#;
    let receipt = bed.sh(Host::Minion(STOPPED), stop, &[field(&sent, "jid")])?;
    assert!(receipt.contains("unknown"), "{receipt}");
    let killed = "journalctl | grep 'gw-job-.*.scope: Stopping timed out'";
    assert!(
        !run(bed, STOPPED, killed)?.status.success(),
        "systemd killed the executor"
    );
    bed.heal(STOPPED)?;
    bed.wait_for_minions(&[STOPPED])?;
    cut(&end(bed, STOPPED, &sent)?);
    assert_eq!(bed.executions(STOPPED)?, 1);
    Ok(())
}
