//! The processes of salt-master, told apart by the titles that they give themselves.

use serde::Serialize;

use crate::rpc::Process;

/// Process ids of a running salt-master, on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MasterProcesses {
    /// `MWorker-N`: they answer requests, take returns, and hold the job cache.
    pub request_workers: Vec<u32>,
    /// Hands requests to the workers.
    pub request_queue: Vec<u32>,
    /// The event bus.
    pub event_publisher: Vec<u32>,
    /// Owns `publish_pull.ipc`; signs and sends publications.
    pub publisher: Vec<u32>,
    /// The rest: the first process, maintenance, file server ...
    pub others: Vec<u32>,
}

impl MasterProcesses {
    pub(crate) fn from_titles(processes: &[Process]) -> Self {
        let mut found = Self::default();
        for process in processes {
            let title = process.title.as_str();
            let list = if title.contains("MWorker-") {
                &mut found.request_workers
            } else if title.contains("MWorkerQueue") {
                &mut found.request_queue
            } else if title.contains("EventPublisher") {
                &mut found.event_publisher
            } else if title.contains("_publish_daemon") {
                &mut found.publisher
            } else {
                &mut found.others
            };
            list.push(process.pid);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_known_by_its_title() {
        let titles = [
            "salt-master -c /c MainProcess",
            "salt-master -c /c PubServerChannel._publish_daemon",
            "salt-master -c /c EventPublisher",
            "salt-master -c /c ReqServer_ProcessManager MWorkerQueue",
            "salt-master -c /c ReqServer_ProcessManager MWorker-0",
        ];
        let process = |(pid, title): (u32, &&str)| Process {
            pid,
            ppid: 1,
            state: "S".into(),
            title: (*title).into(),
        };
        let all: Vec<Process> = (10..).zip(&titles).map(process).collect();
        let found = MasterProcesses::from_titles(&all);
        assert_eq!((found.others, found.publisher), (vec![10], vec![11]));
        assert_eq!(
            (found.event_publisher, found.request_queue),
            (vec![12], vec![13])
        );
        assert_eq!(found.request_workers, vec![14]);
    }
}
