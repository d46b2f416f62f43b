//! The command `gw-exec`, started by Salt's module `oduflow_job`, or by hand to look at its store.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gw_exec::receipts::{Receipts, receipts};
use gw_exec::session::{chain, tell};
use gw_exec::worker::WorkerError;
use gw_exec::{Function, serve};
use nix::sys::signal::{SigSet, Signal};

/// Claims a job on this minion, has Salt run it at most once, keeps its receipt, and answers the gateway.
///
/// Salt's execution module oduflow_job starts this program for every call and speaks with it over a socket
/// on standard input; by hand only `receipts` is of use. It reads and writes only the receipt store that the minion's
/// configuration names (oduflow_job: store, by default /var/lib/oduflow/job-receipts), and reads the
/// minion's Salt key to sign its answers. It lives as long as its job does, and then until the gateway has
/// acknowledged the answer: about eleven minutes, if nobody does and the disk takes nothing at first.
/// SIGTERM, SIGINT and SIGHUP do not end it sooner.
#[derive(Parser)]
#[command(name = "gw-exec", version, about, long_about)]
struct Command {
    #[command(subcommand)]
    function: Call,
}

#[derive(Subcommand)]
enum Call {
    /// Serves oduflow_job.run: claim, have the state applied once, commit and send the receipt
    Run,
    /// Serves oduflow_job.status: say what became of a job
    Status,
    /// Serves oduflow_job.revoke: refuse a job for ever, unless it has been claimed
    Revoke,
    /// Commits and sends the receipt of a job whose executor died, for the worker that has its result
    Finish,
    /// Serves oduflow_job.capability: say whether this minion can run a job
    Capability,
    /// Look at the receipt store of this machine: list, show, verify
    Receipts(Receipts),
}

/// 0: the call was served, whether or not its answer arrived. 1: Salt's worker was gone or could not be spoken
/// with. 2: not started by it, or with other arguments. For `receipts`: 0 done, 1 nothing found or findings, 2 the
/// store cannot be looked at.
fn main() -> ExitCode {
    let function = match Command::parse().function {
        Call::Receipts(command) => {
            return match receipts(&command) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => {
                    tell(&format!("{error:#}"));
                    ExitCode::from(2)
                }
            };
        }
        Call::Run => Function::Run,
        Call::Status => Function::Status,
        Call::Revoke => Function::Revoke,
        Call::Finish => Function::Finish,
        Call::Capability => Function::Capability,
    };
    // Salt's worker, told to end, sends SIGTERM to its descendants first (`salt/utils/process.py`,
    // `SignalHandlingProcess`, 3006.27): just when its job needs somebody to say that it was cut. Before this
    // line it ends us, and nothing has been claimed.
    let mut polite = SigSet::empty();
    polite.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    if let Err(errno) = polite.thread_block() {
        tell(&format!("cannot block signals: {errno}"));
    }
    match serve(function) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ WorkerError::NotAWorker(_)) => {
            tell(&format!(
                "{error}\nhint: Salt's module oduflow_job starts this program; see gw-exec --help"
            ));
            ExitCode::from(2)
        }
        Err(error) => {
            tell(&chain(&error));
            ExitCode::FAILURE
        }
    }
}
