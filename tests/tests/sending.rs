//! The three ends of a send, and what becomes of each.

use anyhow::Result;
use bed::{Host, Signal, Transport};
use gw_tests::{bed, field, publish};

#[test]
fn the_masters_rejection_is_not_sent_in_its_own_words() -> Result<()> {
    let bed = bed().minions(1).transport(Transport::Request).up()?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    let key = bed.master_root().join("var/cache/salt/master/.root_key");
    let script = r#"sed -i 's/^.\{8\}/AAAAAAAA/' "$1""#;
    bed.sh(Host::Master, script, &[&key.to_string_lossy()])?;
    let rejected = publish(&bed, 0, "volume_resize", &[])?;
    assert_eq!(
        (rejected.code, field(&rejected, "state")),
        (5, "not_sent"),
        "{rejected:?}"
    );
    assert!(
        field(&rejected, "reason").contains("AuthenticationError: Authentication error occurred.")
    );
    assert_eq!(bed.deliveries(0, "oduflow_job.run")?.len(), 1);
    Ok(())
}

#[test]
fn a_lost_acknowledgement_is_send_uncertain_sent_once_and_ended_by_the_receipt() -> Result<()> {
    let bed = bed()
        .minions(1)
        .transport(Transport::Request)
        .gw("poll_first_s", "5")
        .up()?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    let workers = bed.master_processes()?.request_workers;
    bed.signal_master(Signal::Stop, &workers)?;
    let minion = bed::minion_id(0);
    let uncertain = bed.gw_json(&["publish", &minion, "--profile", "configure"])?;
    assert_eq!(
        (uncertain.code, field(&uncertain, "state")),
        (4, "send_uncertain"),
        "{uncertain:?}"
    );
    // A target whose last dispatch is uncertain takes no other.
    let blocked = bed.gw_json(&["publish", &minion, "--profile", "configure"])?;
    assert_eq!(
        (blocked.code, &blocked.body["error"]["code"]),
        (5, &"target_blocked".into()),
        "{blocked:?}"
    );

    bed.signal_master(Signal::Continue, &workers)?;
    let id = field(&uncertain, "request_id").to_owned();
    let ended = publish(&bed, 0, "configure", &["--request-id", &id])?;
    assert_eq!(
        (ended.code, field(&ended, "state")),
        (0, "succeeded"),
        "{ended:?}"
    );
    assert_eq!(ended.body["jid"], uncertain.body["jid"]);
    // volume_resize counts once, configure once.
    assert_eq!(bed.executions(0)?, 2);
    assert_eq!(bed.deliveries(0, "oduflow_job.run")?.len(), 2);
    Ok(())
}

#[test]
fn a_master_that_is_down_is_not_sent_and_frees_the_target() -> Result<()> {
    let bed = bed().minions(1).up()?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    bed.master_stop()?;
    let not_sent = publish(&bed, 0, "volume_resize", &[])?;
    assert_eq!(
        (not_sent.code, field(&not_sent, "state")),
        (5, "not_sent"),
        "{not_sent:?}"
    );
    bed.master_start()?;
    bed.wait_for_minions(&[0])?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    assert_eq!(bed.executions(0)?, 2);
    Ok(())
}

#[test]
fn a_gateway_killed_in_mid_job_sends_nothing_again_and_takes_the_receipt_when_it_is_back()
-> Result<()> {
    let bed = bed().minions(1).gw("poll_first_s", "5").up()?;
    bed.set_pillar(0, &[("pause_s", 8.into())])?;
    let sent = bed.gw_json(&["publish", &bed::minion_id(0), "--profile", "configure"])?;
    assert_eq!((sent.code, field(&sent, "state")), (4, "sent"), "{sent:?}");
    bed.gateway_kill()?;
    assert_eq!(bed.gw_json(&["list"])?.code, 7);
    bed.gateway_start()?;
    let id = field(&sent, "request_id").to_owned();
    let ended = publish(&bed, 0, "configure", &["--request-id", &id])?;
    assert_eq!(
        (ended.code, field(&ended, "state")),
        (0, "succeeded"),
        "{ended:?}"
    );
    assert_eq!(
        (
            bed.executions(0)?,
            bed.deliveries(0, "oduflow_job.run")?.len()
        ),
        (1, 1)
    );
    Ok(())
}

#[test]
fn ipc_mode_tcp_works_and_warns() -> Result<()> {
    let free = || -> Result<u16> {
        Ok(std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port())
    };
    let mut config = String::from("ipc_mode: tcp\n");
    for key in [
        "tcp_master_pub_port",
        "tcp_master_pull_port",
        "tcp_master_publish_pull",
        "tcp_master_workers",
    ] {
        config.push_str(&format!("{key}: {}\n", free()?));
    }
    let bed = bed().minions(1).master_config(&config).up()?;
    assert_eq!(publish(&bed, 0, "volume_resize", &[])?.code, 0);
    let log = bed.gateway_log()?;
    assert!(
        log.contains("config_warning") && log.contains("any local user"),
        "{log}"
    );
    Ok(())
}
