//! The gateway of a bed: its daemon and its command line.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Bed;
use crate::backend::{Daemon, Host};
use crate::rpc::{self, Signal};

/// What `gw ... --json` answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The exit code; -1 if a signal ended it.
    pub code: i32,
    /// The object on standard output; without one, the error object on standard error; without either, null.
    pub body: Value,
    /// All of standard error.
    pub stderr: String,
}

impl Bed {
    /// Runs `gw` on the master's host with the bed's configuration.
    ///
    /// # Errors
    /// It could not be started. How it ended is in the output.
    pub fn gw(&self, args: &[&str]) -> Result<Output> {
        rpc::output(&mut self.gw_command(args), b"")
    }

    /// Runs `gw ... --json` and reads the one object that it prints.
    ///
    /// # Errors
    /// It could not be started.
    pub fn gw_json(&self, args: &[&str]) -> Result<Answer> {
        Ok(Answer::read(&self.gw(&[args, &["--json"]].concat())?))
    }

    /// Like [`Bed::gw_json`]; each line of standard error goes to `line` as soon as it is there.
    ///
    /// # Errors
    /// It could not be started.
    pub fn gw_follow(&self, args: &[&str], line: impl FnMut(&str)) -> Result<Answer> {
        let mut command = self.gw_command(&[args, &["--json"]].concat());
        Ok(Answer::read(&rpc::follow(&mut command, line)?))
    }

    fn gw_command(&self, args: &[&str]) -> Command {
        let layout = self.layout(Host::Master);
        let config = layout.gw_toml();
        let head = [layout.gw.as_str(), config.as_str()];
        let script = r#"gw=$1 config=$2; shift 2; exec "$gw" --config "$config" "$@""#;
        self.backend
            .command(Host::Master, script, &[&head, args].concat(), false)
    }

    /// Whether the gateway's socket answers `GET /v1/health` with 200.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub fn gateway_answers(&self) -> Result<bool> {
        let request = json!({"path": self.layout(Host::Master).gw_socket()});
        Ok(self.call::<u32>(Host::Master, "health", request)? == 200)
    }

    /// Starts the gateway and waits until its socket answers.
    ///
    /// # Errors
    /// It has not after 30 s.
    pub fn gateway_start(&self) -> Result<()> {
        self.spawn(Daemon::Gateway)?;
        let patience = Duration::from_secs(30);
        self.wait(
            "the gateway does not answer",
            patience,
            Daemon::Gateway,
            || self.gateway_answers(),
        )
    }

    /// An interactive shell on the master's host in which `gw` and `salt` find their configuration. Returns
    /// whether it ended with 0.
    ///
    /// # Errors
    /// It could not be started.
    pub fn shell(&self) -> Result<bool> {
        let layout = self.layout(Host::Master);
        // the two need to be told where their configuration is, unless it is where it always is
        let script = r#"
            mkdir -p "$1" && PATH="$1:$4:$PATH" && export PATH
            printf '#!/bin/sh\nexec "%s" --config "%s" "$@"\n' "$2" "$3" >"$1/gw"
            printf '#!/bin/sh\nexec "%s/salt" -c "%s" "$@"\n' "$4" "$5" >"$1/salt"
            chmod 700 "$1/gw" "$1/salt"
            exec "${SHELL:-/bin/bash}""#;
        let (bin, gw_toml, config) = (
            layout.at("var/lib/bed/bin"),
            layout.gw_toml(),
            layout.salt_config(),
        );
        let args = [
            bin.as_str(),
            &layout.gw,
            &gw_toml,
            &layout.salt_bin,
            &config,
        ];
        let status = self
            .backend
            .command(Host::Master, script, &args, true)
            .status();
        Ok(status.context("cannot start a shell")?.success())
    }

    /// SIGTERM, then patience.
    ///
    /// # Errors
    /// It still runs after 90 s.
    pub fn gateway_stop(&self) -> Result<()> {
        self.stop(Daemon::Gateway)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// It survived.
    pub fn gateway_kill(&self) -> Result<()> {
        self.kill(Daemon::Gateway)
    }

    /// [`Bed::gateway_stop`], then [`Bed::gateway_start`].
    ///
    /// # Errors
    /// As these.
    pub fn gateway_restart(&self) -> Result<()> {
        self.gateway_stop()?;
        self.gateway_start()
    }

    /// SIGSTOP or SIGCONT to the gateway.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub fn signal_gateway(&self, signal: Signal) -> Result<Vec<u32>> {
        self.signal(Daemon::Gateway, signal, None)
    }
}

impl Answer {
    fn read(output: &Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let object = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines()
                .rev()
                .find_map(|line| serde_json::from_str::<Value>(line).ok())
                .or_else(|| {
                    serde_json::from_str(&text).ok() // an object over several lines
                })
        };
        let body = object(&output.stdout)
            .or_else(|| object(&output.stderr))
            .unwrap_or(Value::Null);
        Self {
            code: output.status.code().unwrap_or(-1),
            body,
            stderr,
        }
    }

    /// A text field of the body, such as `state`.
    ///
    /// # Errors
    /// It is not there; the message shows what is.
    pub fn text(&self, field: &str) -> Result<&str> {
        self.body[field].as_str().with_context(|| {
            format!(
                "gw's answer has no {field}: exit {}, {} {}",
                self.code, self.body, self.stderr
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }
    }

    #[test]
    fn the_object_on_standard_output_is_the_answer() {
        let answer = Answer::read(&output(0, "{\"state\":\"succeeded\"}\n", "37/60\n"));
        assert_eq!(
            (answer.code, answer.text("state").expect("a state")),
            (0, "succeeded")
        );
    }

    #[test]
    fn without_one_the_error_object_is() {
        let answer = Answer::read(&output(
            5,
            "",
            "{\"error\":{\"code\":\"target_blocked\"}}\n",
        ));
        assert_eq!(answer.body["error"]["code"], "target_blocked");
        assert!(answer.text("state").is_err());
    }
}
