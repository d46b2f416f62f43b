//! Requests to `host.py`, the small Python program that acts for `bed` on each host.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::backend::{Backend, Host};

/// The program itself.
pub(crate) const HOST_PY: &str = include_str!("host.py");

/// A process that was found on a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Process {
    /// Its id, in the host's own numbering.
    pub pid: u32,
    /// Its parent's id.
    pub ppid: u32,
    /// The kernel's letter for its state: `R`, `S`, `T` (stopped) ...
    pub state: String,
    /// Its command line or the title that it gave itself.
    pub title: String,
}

/// The signals that a bed sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM`
    Terminate,
    /// `SIGKILL`
    Kill,
    /// `SIGSTOP`
    Stop,
    /// `SIGCONT`
    Continue,
}

impl Signal {
    fn number(self) -> i32 {
        use rustix::process::Signal as Number;
        match self {
            Self::Terminate => Number::TERM,
            Self::Kill => Number::KILL,
            Self::Stop => Number::STOP,
            Self::Continue => Number::CONT,
        }
        .as_raw()
    }
}

/// Sends one request to `host` and reads the answer.
pub(crate) fn call<T: DeserializeOwned>(
    backend: &(impl Backend + ?Sized),
    host: Host,
    op: &str,
    mut request: Value,
) -> Result<T> {
    let layout = backend.layout(host);
    request["op"] = json!(op);
    let stdin = serde_json::to_vec(&request).context("cannot write JSON")?;
    let output = backend.run(
        host,
        r#"exec "$1" "$2""#,
        &[&layout.salt("python"), &layout.host_py],
        &stdin,
    )?;
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        anyhow!(
            "no answer to {op} from {host:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        )
    })?;
    if let Some(error) = answer["error"].as_str() {
        bail!("cannot do {op} on {host:?}: {error}");
    }
    serde_json::from_value(answer["ok"].clone()).with_context(|| format!("strange answer to {op}"))
}

/// Signals every process that matches, or those of `pids` that do; returns whom.
pub(crate) fn signal(
    backend: &(impl Backend + ?Sized),
    host: Host,
    tag: &str,
    command: &[String],
    signal: Signal,
    pids: Option<&[u32]>,
) -> Result<Vec<u32>> {
    let request = json!({"tag": tag, "command": command, "number": signal.number(), "pids": pids});
    call(backend, host, "signal", request)
}

/// Kills whatever matches until nothing does.
pub(crate) fn end_all(
    backend: &(impl Backend + ?Sized),
    host: Host,
    tag: &str,
    command: &[String],
) -> Result<()> {
    let request = json!({"tag": tag, "command": command, "patience": 10});
    let left: Vec<Process> = call(backend, host, "end_all", request)?;
    if !left.is_empty() {
        bail!("{} processes of {host:?} survive SIGKILL", left.len());
    }
    Ok(())
}

/// Runs a command with `stdin` as its standard input and collects what it prints.
pub(crate) fn output(command: &mut Command, stdin: &[u8]) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let mut pipe = child.stdin.take().context("no standard input")?;
    thread::scope(|scope| {
        // a command that does not read its input closes the pipe: no error of ours
        scope.spawn(move || pipe.write_all(stdin).ok());
        child
            .wait_with_output()
            .with_context(|| format!("cannot wait for {name}"))
    })
}

/// Runs a command without input; each line of its standard error also goes to `line` at once.
pub(crate) fn follow(command: &mut Command, mut line: impl FnMut(&str)) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let errors = child.stderr.take().context("no standard error")?;
    thread::scope(|scope| {
        let waiting = scope.spawn(move || child.wait_with_output());
        let mut stderr = Vec::new();
        for text in BufReader::new(errors).lines() {
            let text = text.with_context(|| format!("cannot read what {name} prints"))?;
            line(&text);
            stderr.extend_from_slice(text.as_bytes());
            stderr.push(b'\n');
        }
        let output = waiting
            .join()
            .map_err(|_| anyhow!("waiting for {name} panicked"))?;
        let output = output.with_context(|| format!("cannot wait for {name}"))?;
        Ok(Output { stderr, ..output })
    })
}
