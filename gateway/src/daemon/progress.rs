//! The executors' last words while they run: `37/60`. Progress is no evidence, is not journaled, and is
//! gone after a restart.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use gw_wire::id::Jid;

use super::lock;
use crate::api::Progress;

/// The most jobs whose progress is kept; above it the newest are left out.
const MAX_JOBS: usize = 100_000;

#[derive(Default)]
pub struct ProgressBoard {
    jobs: Mutex<HashMap<Jid, Progress>>,
}

impl ProgressBoard {
    /// Takes a word of progress; says whether it was news. Counts never go back: words can overtake.
    pub fn put(&self, jid: Jid, progress: Progress) -> bool {
        let mut jobs = lock(&self.jobs);
        if jobs.len() >= MAX_JOBS && !jobs.contains_key(&jid) {
            return false;
        }
        let last = jobs.entry(jid).or_insert(Progress { done: 0, total: 0 });
        if progress.done <= last.done && last.total != 0 {
            return false;
        }
        *last = progress;
        true
    }

    pub fn get(&self, jid: Jid) -> Option<Progress> {
        lock(&self.jobs).get(&jid).copied()
    }

    /// The job has ended.
    pub fn forget(&self, jid: Jid) {
        lock(&self.jobs).remove(&jid);
    }

    /// Forgets every job that is not open: a late word can come after the end.
    pub fn keep_only(&self, open: &HashSet<Jid>) {
        lock(&self.jobs).retain(|jid, _| open.contains(jid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_goes_back() {
        let board = ProgressBoard::default();
        let jid = Jid::at(gw_wire::id::now());
        assert!(board.put(jid, Progress { done: 0, total: 60 }));
        assert!(board.put(jid, Progress { done: 7, total: 60 }));
        assert!(!board.put(jid, Progress { done: 3, total: 60 }));
        assert_eq!(board.get(jid), Some(Progress { done: 7, total: 60 }));
        board.forget(jid);
        assert_eq!(board.get(jid), None);
    }
}
