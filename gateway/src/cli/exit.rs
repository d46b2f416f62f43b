//! The exit codes, one place for all of them.

use std::process::ExitCode;

use crate::api::RecordView;

/// What `gw` exits with. The numbers are an interface and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The job succeeded; or the command did what it was asked, where no job is meant.
    Succeeded = 0,
    /// An error of gw itself.
    Error = 1,
    /// Bad usage or input. clap exits with the same.
    Usage = 2,
    /// The job failed.
    Failed = 3,
    /// Not known how the job ended, or not yet.
    Unresolved = 4,
    /// The job did not run: not sent, or refused.
    NotRun = 5,
    /// The request id is bound to other values.
    Conflict = 6,
    /// Nobody answers on the socket.
    NoDaemon = 7,
}

impl Exit {
    /// Where a record stands.
    pub fn of(record: &RecordView) -> Self {
        match record.state.as_str() {
            "succeeded" => Exit::Succeeded,
            "failed" => Exit::Failed,
            "not_sent" | "refused" => Exit::NotRun,
            // accepted, claimed, sent, send_uncertain, unknown, and whatever a newer daemon may say.
            _ => Exit::Unresolved,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}
