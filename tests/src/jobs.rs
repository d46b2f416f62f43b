//! Jobs that a test cuts, watches, or outlives: begun, in the middle, at their end.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bed::{Answer, Bed, Host, minion_id};
use serde_json::Value;

use crate::{field, publish};

/// To be applied as the profile `volume_resize`: counts the execution, then runs what the pillar says.
pub const SCRIPT: &str = "
count:
  cmd.run:
    - name: echo began >> {{ pillar['bed']['counter'] }}
script:
  cmd.run:
    - name: {{ pillar['bed'].get('script', 'true') | json }}
    - require:
      - cmd: count
";

/// Where [`SCRIPT`] goes.
pub const SCRIPT_PATH: &str = "roles/client_storage_resize.sls";

/// Asks until it is so, for at most a minute.
///
/// # Errors
/// It was not so then, or could not be asked.
pub fn until(complaint: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while !so()? {
        ensure!(Instant::now() < end, "{complaint} after a minute");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Has minion `number`'s next job of [`SCRIPT`] run a shell script.
///
/// # Errors
/// The pillar could not be written.
pub fn script(bed: &Bed, number: usize, text: &str) -> Result<()> {
    bed.set_pillar(number, &[("script", text.into())])
}

/// Publishes a profile without waiting, and waits until it has begun to run.
///
/// # Errors
/// It was not sent, or did not begin.
pub fn begin(bed: &Bed, number: usize, profile: &str) -> Result<Answer> {
    let before = bed.executions(number)?;
    let sent = bed.gw_json(&["publish", &minion_id(number), "--profile", profile])?;
    ensure!(field(&sent, "state") == "sent", "not sent: {sent:?}");
    until("the job has not begun", || {
        Ok(bed.executions(number)? > before)
    })?;
    Ok(sent)
}

/// What a job that is [`held`] waits for: a file on its minion's host.
pub fn release_path(bed: &Bed, number: usize) -> String {
    let path = bed.minion_root(number).join("var/lib/bed/release");
    path.to_string_lossy().into_owned()
}

/// A job of [`SCRIPT`] in the middle of a state that ends when it is [`release`]d, and not before; `first` is what
/// that state does first, in shell.
///
/// # Errors
/// As [`begin`].
pub fn held(bed: &Bed, number: usize, first: &str) -> Result<Answer> {
    let path = release_path(bed, number);
    bed.sh(Host::Minion(number), r#"rm -f "$1""#, &[&path])?;
    script(
        bed,
        number,
        &format!("{first} until test -e {path}; do sleep 0.2; done"),
    )?;
    let sent = begin(bed, number, "volume_resize")?;
    until("the job is not in its state", || is_held(bed, number))?;
    Ok(sent)
}

/// Whether a [`held`] job's state runs.
///
/// # Errors
/// The host cannot be asked.
pub fn is_held(bed: &Bed, number: usize) -> Result<bool> {
    let path = release_path(bed, number);
    let processes = bed.minion_processes(number)?;
    Ok(processes
        .iter()
        .any(|process| process.title.contains(&path)))
}

/// Lets a [`held`] job go on to its end.
///
/// # Errors
/// The host cannot be asked.
pub fn release(bed: &Bed, number: usize) -> Result<()> {
    let path = release_path(bed, number);
    bed.sh(Host::Minion(number), r#"touch "$1""#, &[&path])
        .map(drop)
}

/// Follows a job to its end.
///
/// # Errors
/// `gw` could not be run.
pub fn end(bed: &Bed, number: usize, sent: &Answer) -> Result<Answer> {
    let (profile, id) = (field(sent, "profile"), field(sent, "request_id"));
    publish(bed, number, profile, &["--request-id", id])
}

/// Asserts that a job ended well.
pub fn succeeded(ended: &Answer) {
    assert_eq!(
        (ended.code, field(ended, "state")),
        (0, "succeeded"),
        "{ended:?}"
    );
}

/// Asserts that a job ended with its worker.
pub fn cut(ended: &Answer) {
    assert_eq!(
        (ended.code, field(ended, "state"), field(ended, "reason")),
        (4, "unknown", "worker_died"),
        "{ended:?}"
    );
}

/// Asks the minion what became of a job: how `gw` ends, the record's state, and what the minion said.
///
/// # Errors
/// `gw` could not be run, or there is no such job.
pub fn polled(bed: &Bed, sent: &Answer) -> Result<(i32, String, String)> {
    let id = field(sent, "request_id");
    let polled = bed.gw_json(&["poll", id])?;
    let shown = bed.gw_json(&["show", id])?;
    let history = shown.body["history"].as_array().context("a history")?;
    let said = history.last().and_then(|row| row["detail"].as_str());
    Ok((
        polled.code,
        field(&polled, "state").to_owned(),
        said.unwrap_or_default().to_owned(),
    ))
}

/// A call of the Salt module by Salt's own client, whose answer comes back through Salt.
///
/// # Errors
/// The client's answer makes no sense.
pub fn stock(bed: &Bed, number: usize, call: &[&str]) -> Result<Value> {
    let id = minion_id(number);
    let head = ["--out=json", "--static", "--timeout=30", &id];
    let output = bed.stock_salt(&[&head, call].concat())?;
    let answers: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no answer to {call:?}: {output:?}"))?;
    Ok(answers[&id].clone())
}

/// Another job of [`SCRIPT`], published around the gateway, which blocks the minion of a job that has not ended, or
/// ended `unknown`: its receipt, or why it did not run.
///
/// # Errors
/// As [`stock`].
pub fn another(bed: &Bed, number: usize) -> Result<Value> {
    let request = gw_wire::id::RequestId::random().to_string();
    let call = ["oduflow_job.run", &request, "volume_resize", ""];
    stock(bed, number, &call)
}
