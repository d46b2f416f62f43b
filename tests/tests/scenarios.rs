//! The scenarios of the demonstration, each as a test: the same code plays them in `bed demo`.

use anyhow::Result;
use bed::demo::{self, Report};
use bed::{Bed, Progress, Transport};

fn play(
    transport: Transport,
    scenario: fn(&Bed, usize, &Progress) -> Result<Report>,
) -> Result<()> {
    let bed = demo::prepared(gw_tests::bed())
        .minions(1)
        .transport(transport)
        .up()?;
    let report = scenario(&bed, 0, &Progress::new(|line| println!("{line}")))?;
    println!("{report:?}");
    assert_eq!(report.complaints, Vec::<String>::new(), "{report:?}");
    Ok(())
}

#[test]
fn a_receipt_arrives_though_the_return_path_is_cut() -> Result<()> {
    play(Transport::Ipc, demo::return_path_cut)
}

#[test]
fn a_killed_worker_is_unknown_blocks_its_target_and_nothing_is_sent_again() -> Result<()> {
    play(Transport::Ipc, demo::worker_killed)
}

#[test]
fn a_publication_delivered_again_after_a_minion_restart_does_not_run_again() -> Result<()> {
    play(Transport::Ipc, demo::delivered_again)
}

/// Measured, not promised by us: why this project exists.
#[test]
fn the_stock_client_runs_a_job_more_than_once_when_acknowledgements_are_lost() -> Result<()> {
    play(Transport::Ipc, demo::stock_client_ack_lost)
}

#[test]
fn a_killed_worker_is_unknown_over_the_request_port_too() -> Result<()> {
    play(Transport::Request, demo::worker_killed)
}
