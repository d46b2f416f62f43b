//! What happens to a running job when a part dies or is told to end, without systemd: the table in
//! `docs/durability.md`, row by row. (Killed workers, a gateway that is gone and a network that is cut are in
//! `scenarios.rs`, `sending.rs` and `docker.rs`; jobs under systemd in `survival.rs`.)
//!
//! The tests share one bed, which its janitor ends after the last of them, and have a minion each.

use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail, ensure};
use bed::{Bed, Host, Process, Signal};
use gw_tests::jobs::{
    SCRIPT, SCRIPT_PATH, another, cut, end, held, is_held, polled, release, script, succeeded,
    until,
};
use gw_tests::{bed, field, push};
use gw_wire::id::{Jid, Profile, RequestId};
use gw_wire::publication::Call;

/// Who has which minion. Around the gateway only minion 0 can be pushed to.
const MAIN: usize = 0;
const TOLD: usize = 1;
const EXECUTOR: usize = 2;
const WORKER: usize = 3;
const ALL: usize = 4;
const MINIONS: usize = 5;

fn shared() -> Result<&'static Bed> {
    static BED: OnceLock<Result<Bed, String>> = OnceLock::new();
    let up = || {
        bed()
            .minions(MINIONS)
            .state(SCRIPT_PATH, SCRIPT)
            // Later than any of these jobs ends: what is asked is asked by the tests.
            .gw("poll_first_s", "120")
            .up()
    };
    let shared = BED.get_or_init(|| up().map_err(|error| format!("{error:#}")));
    match shared {
        Ok(bed) => Ok(bed),
        Err(error) => bail!("{error}"),
    }
}

/// The worker of the one job that a minion runs.
fn worker(bed: &Bed, number: usize) -> Result<Process> {
    let all = bed.minion_processes(number)?;
    let worker = all
        .iter()
        .find(|process| process.title.contains("ProcessPayload"));
    worker
        .cloned()
        .with_context(|| format!("no worker among {all:?}"))
}

/// The two processes that are salt-minion itself.
fn main_processes(bed: &Bed, number: usize) -> Result<Vec<u32>> {
    let all = bed.minion_processes(number)?;
    let own = all.iter().filter(|process| {
        process.title.contains("/salt-minion") && !process.title.contains("ProcessPayload")
    });
    Ok(own.map(|process| process.pid).collect())
}

fn executor(bed: &Bed, number: usize) -> Result<u32> {
    let all = bed.executors(number)?;
    ensure!(all.len() == 1, "not one executor: {all:?}");
    Ok(all[0].pid)
}

#[test]
fn a_minion_that_is_killed_or_restarted_leaves_its_job_running_and_does_not_run_it_again()
-> Result<()> {
    let bed = shared()?;
    let sent = held(bed, MAIN, "")?;
    let killed = bed.signal_minion(MAIN, Signal::Kill, &main_processes(bed, MAIN)?)?;
    assert_eq!(killed.len(), 2, "{killed:?}");
    until("the minion does not die", || {
        Ok(main_processes(bed, MAIN)?.is_empty())
    })?;
    bed.minion_start(MAIN)?;
    // The new minion has never seen this jid, and its job still runs.
    let jid = Jid::parse(field(&sent, "jid"))?;
    let call = Call::Run {
        request_id: RequestId::parse(field(&sent, "request_id"))?,
        profile: Profile::VolumeResize,
        state_data: None,
    };
    push(bed, jid, call, Some(300))?;
    let finished = format!("Job {jid} execution finished");
    until("the same publication is not answered", || {
        Ok(bed.minion_log(MAIN)?.contains(&finished))
    })?;
    let delivered = bed.deliveries(MAIN, "oduflow_job.run")?;
    assert_eq!(delivered, [jid.as_str(), jid.as_str()]);
    assert!(is_held(bed, MAIN)?);
    release(bed, MAIN)?;
    succeeded(&end(bed, MAIN, &sent)?);
    assert_eq!(bed.executions(MAIN)?, 1);
    Ok(())
}

#[test]
fn a_minion_that_is_told_to_end_waits_for_its_job() -> Result<()> {
    let bed = shared()?;
    let sent = held(bed, TOLD, "")?;
    let main = main_processes(bed, TOLD)?;
    let first = main.iter().min().context("no minion")?;
    bed.signal_minion(TOLD, Signal::Terminate, &[*first])?;
    // It ends 5 s later if it has no job (`salt/minion.py`, `handle_signal`, 3006.27).
    until("the minion has not heard the signal", || {
        Ok(bed.minion_log(TOLD)?.contains("Minion received a SIGTERM"))
    })?;
    assert_eq!(main_processes(bed, TOLD)?, main);
    assert!(is_held(bed, TOLD)?);
    release(bed, TOLD)?;
    succeeded(&end(bed, TOLD, &sent)?);
    assert_eq!(bed.executions(TOLD)?, 1);
    until("the minion does not end", || {
        Ok(bed.minion_processes(TOLD)?.is_empty())
    })
}

#[test]
fn signals_that_can_be_blocked_do_not_end_an_executor_and_sigkill_leaves_the_rest_to_the_worker()
-> Result<()> {
    let bed = shared()?;
    let sent = held(bed, EXECUTOR, "")?;
    let executor = executor(bed, EXECUTOR)?;
    let signals = r#"for signal in TERM INT HUP; do kill -$signal "$1"; done"#;
    bed.sh(Host::Minion(EXECUTOR), signals, &[&executor.to_string()])?;
    assert_eq!(self::executor(bed, EXECUTOR)?, executor);
    release(bed, EXECUTOR)?;
    succeeded(&end(bed, EXECUTOR, &sent)?);

    let sent = held(bed, EXECUTOR, "")?;
    let pids: Vec<u32> = bed
        .executors(EXECUTOR)?
        .iter()
        .map(|process| process.pid)
        .collect();
    let killed = bed.signal_executor(EXECUTOR, Signal::Kill, &pids)?;
    assert_eq!(killed, pids);
    let busy = another(bed, EXECUTOR)?;
    assert_eq!(busy["refused"]["reason"], "busy", "{busy}");
    let (code, state, said) = polled(bed, &sent)?;
    assert_eq!((code, state.as_str()), (4, "sent"));
    assert!(said.starts_with("running"), "{said}");
    release(bed, EXECUTOR)?;
    // From `gw-exec finish`, long before anybody asks.
    succeeded(&end(bed, EXECUTOR, &sent)?);
    assert_eq!(bed.executions(EXECUTOR)?, 2);
    Ok(())
}

#[test]
fn a_worker_that_is_told_to_end_takes_what_its_state_started_with_it_and_the_job_is_unknown()
-> Result<()> {
    let bed = shared()?;
    let sent = held(bed, WORKER, "")?;
    let worker = worker(bed, WORKER)?.pid;
    assert_eq!(
        bed.signal_minion(WORKER, Signal::Terminate, &[worker])?,
        [worker]
    );
    cut(&end(bed, WORKER, &sent)?);
    until("the state's command still runs", || {
        Ok(!is_held(bed, WORKER)?)
    })?;
    // The executor has been acknowledged and keeps the next job out no more; the gateway does.
    until("the executor does not end", || {
        Ok(bed.executors(WORKER)?.is_empty())
    })?;
    script(bed, WORKER, "true")?;
    let next = another(bed, WORKER)?;
    assert_eq!(next["status"], "succeeded", "{next}");
    let blocked = [
        "publish",
        &bed::minion_id(WORKER),
        "--profile",
        "volume_resize",
    ];
    assert_eq!(bed.gw_json(&blocked)?.code, 5);
    Ok(())
}

#[test]
fn a_job_whose_every_process_is_killed_is_abandoned_and_stays_unresolved() -> Result<()> {
    let bed = shared()?;
    let sent = held(bed, ALL, "")?;
    bed.minion_kill(ALL)?;
    assert!(bed.executors(ALL)?.is_empty());
    bed.minion_start(ALL)?;
    let (code, state, said) = polled(bed, &sent)?;
    assert_eq!(
        (code, state.as_str(), said.as_str()),
        (4, "sent", "abandoned")
    );
    assert_eq!(bed.executions(ALL)?, 1);
    Ok(())
}

#[test]
fn a_master_that_is_gone_in_mid_job_is_not_missed() -> Result<()> {
    // Of its own: the others need their master.
    let bed = bed()
        .state(SCRIPT_PATH, SCRIPT)
        .gw("poll_first_s", "120")
        .up()?;
    let sent = held(&bed, 0, "")?;
    bed.master_kill()?;
    release(&bed, 0)?;
    succeeded(&end(&bed, 0, &sent)?);
    bed.master_start()?;
    bed.wait_for_minions(&[0])?;
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}
