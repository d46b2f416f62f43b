//! Peers written in Python with pyzmq, shared by the tests that need libzmq.
//!
//! pyzmq is looked for in the Python that `GW_TEST_PYTHON` names, else in `python3`. Without it those
//! tests say that they are skipped, unless `CI` is set: then they fail.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A Python that has pyzmq, or `None` once the skip has been announced.
pub fn python() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("GW_TEST_PYTHON").unwrap_or("python3".into()));
    let has_zmq = Command::new(&python)
        .args(["-c", "import zmq"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_zmq {
        assert!(
            std::env::var_os("CI").is_none(),
            "{} has no pyzmq; set GW_TEST_PYTHON",
            python.display()
        );
        // Not `eprintln`, whose lines the test harness keeps to itself.
        let note = format!(
            "skipped: {} has no pyzmq; set GW_TEST_PYTHON\n",
            python.display()
        );
        std::io::stderr().write_all(note.as_bytes()).unwrap();
        return None;
    }
    Some(python)
}

/// A Python script that runs until it ends or this is dropped.
pub struct Script {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// Starts it after an `import`, with `args` as `sys.argv[1:]`.
    pub fn start(python: PathBuf, body: &str, args: &[&str]) -> Self {
        let mut child = Command::new(python)
            .args([
                "-u",
                "-c",
                &format!("import sys, time, zmq\nctx = zmq.Context()\n{body}"),
            ])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("the script ended early").unwrap()
    }

    /// All lines that it still prints; it must then succeed.
    pub fn finish(mut self) -> Vec<String> {
        let rest = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        rest
    }

    /// Stops it, and waits until all its threads stand still.
    pub fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    /// Undoes `stop`.
    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
