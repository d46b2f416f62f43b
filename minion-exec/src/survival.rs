//! Whether a job outlives the service that it came through.

use gw_wire::id::Jid;
use gw_wire::reply::Survival;
use rustix::process::Pid;

/// Moves the worker and this process out of the minion's service.
pub fn enter(_jid: Jid, _worker: Pid) -> Survival {
    Survival::None
}

/// Whether [`enter`] can work here.
pub fn possible() -> Survival {
    Survival::None
}
