//! One job, the whole way, over both transports.

use anyhow::Result;
use bed::{Host, Transport};
use gw_tests::{bed, field, files_with, publish};

/// The event bus of the master, heard by Salt's own code for as long as the script runs: prints each tag
/// and its data.
const LISTEN: &str = r#"
exec "$1" - "$2" <<'PY'
import sys, salt.config, salt.utils.event
opts = salt.config.master_config(sys.argv[1])
with salt.utils.event.get_event("master", opts=opts, listen=True) as bus:
    bus.connect_pub()
    print("LISTENING", flush=True)
    for event in bus.iter_events(full=True, auto_reconnect=True):
        print(event["tag"], event["data"], flush=True)
PY
"#;

#[test]
fn a_job_over_ipc_leaves_nothing_on_the_master_and_one_receipt_in_the_journal() -> Result<()> {
    // At `info` Salt's own logger of states writes their changes; the minion's own stays, to count by.
    let bed = bed()
        .minions(1)
        .minion_config(
            "log_level_logfile: info\nlog_granular_levels: {salt: warning, salt.minion: info}\n",
        )
        .up()?;
    let python = bed::salt::environment(&bed::Progress::default())?.join("python");
    let config = bed.master_root().join("etc/salt/master");
    let log = bed.master_root().join("events.log");
    // A returner would be stock Salt's way to keep a return; the job must not reach one.
    let listener = bed.sh(
        Host::Master,
        &format!(r#"({LISTEN}) > "$3" 2>&1 & echo $!"#),
        &[
            &python.to_string_lossy(),
            &config.to_string_lossy(),
            &log.to_string_lossy(),
        ],
    )?;
    let heard = || std::fs::read_to_string(&log).unwrap_or_default();
    for _ in 0..150 {
        if heard().contains("LISTENING") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(heard().contains("LISTENING"), "{}", heard());

    let answer = publish(&bed, 0, "configure", &[])?;
    assert_eq!(
        (answer.code, field(&answer, "state")),
        (0, "succeeded"),
        "{answer:?}"
    );
    assert_eq!(
        (&answer.body["passed"], &answer.body["total"]),
        (&60.into(), &60.into())
    );
    assert_eq!(field(&answer, "transport"), "ipc");
    let jid = field(&answer, "jid").to_owned();

    // Exactly one execution, by what it did and by what the minion logged.
    assert_eq!(bed.executions(0)?, 1);
    assert_eq!(
        bed.deliveries(0, "oduflow_job.run")?,
        std::slice::from_ref(&jid)
    );

    // Stock Salt's own call is heard, so the listener hears; our job is not.
    bed.stock_salt(&[&bed::minion_id(0), "test.ping"])?;
    for _ in 0..50 {
        if heard().contains("test.ping") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    bed.sh(Host::Master, r#"kill "$1""#, &[listener.trim()])?;
    assert!(heard().contains("test.ping"), "{}", heard());
    assert!(
        !heard().contains(&jid),
        "the event bus had the job: {}",
        heard()
    );

    // The job cache has stock Salt's jobs and none of ours. The journal is ours; master logs are not a cache.
    let cache = bed.master_root().join("var/cache");
    let cache = cache.to_string_lossy();
    assert_eq!(
        files_with(&bed, Host::Master, &cache, &jid, &[])?,
        Vec::<String>::new()
    );
    assert!(
        !bed.sh(Host::Master, r#"find "$1" -name return.p"#, &[&cache])?
            .is_empty()
    );
    assert!(
        !bed.minion_log(0)?.contains("returner"),
        "{}",
        bed.minion_log(0)?
    );

    // nothing-raw: no file on the minion holds what pillar brought into states and command output, but for
    // the state's own result and what the roles are told to write.
    let root = bed.minion_root(0);
    let found = files_with(
        &bed,
        Host::Minion(0),
        &root.to_string_lossy(),
        &bed.canary(0),
        &["/target/", "executions"],
    )?;
    assert_eq!(found, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_request_is_published_once_and_its_id_is_bound_for_ever() -> Result<()> {
    let bed = bed().minions(1).up()?;
    let id = "0b0e4567-e89b-42d3-a456-426614174000";
    let first = publish(&bed, 0, "volume_resize", &["--request-id", id])?;
    assert_eq!(first.code, 0, "{first:?}");
    let again = publish(&bed, 0, "volume_resize", &["--request-id", id])?;
    assert_eq!((again.code, &again.body["jid"]), (0, &first.body["jid"]));
    let other = publish(&bed, 0, "credentials", &["--request-id", id])?;
    assert_eq!(
        (other.code, &other.body["error"]["code"]),
        (6, &"request_conflict".into())
    );
    assert_eq!(bed.deliveries(0, "oduflow_job.run")?.len(), 1);

    // The record says how it came about, and the evidence is named.
    let shown = bed.gw_json(&["show", id])?;
    let events: Vec<&str> = shown.body["history"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| row["event"].as_str())
        .collect();
    assert_eq!(events, ["claim", "send_done", "receipt"], "{shown:?}");
    assert!(shown.body["history"][2]["evidence_sha256"].is_string());
    assert_eq!(
        shown.body["receipt"].as_object().map(|fields| fields.len()),
        Some(9)
    );

    // The log has one line per transition, each of them JSON.
    let log = bed.gateway_log()?;
    let moves: Vec<(String, String)> = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("every line is JSON"))
        .filter(|line| line["event"] == "transition")
        .map(|line| (line["from"].to_string(), line["to"].to_string()))
        .collect();
    let expected = [
        ("accepted", "claimed"),
        ("claimed", "sent"),
        ("sent", "succeeded"),
    ];
    assert_eq!(
        moves,
        expected.map(|(a, b)| (format!("{a:?}"), format!("{b:?}")))
    );
    Ok(())
}

#[test]
fn a_state_that_fails_makes_failed_and_frees_the_target() -> Result<()> {
    let bed = bed().minions(1).up()?;
    let failed = publish(&bed, 0, "production", &[])?;
    assert_eq!(
        (failed.code, field(&failed, "state")),
        (3, "failed"),
        "{failed:?}"
    );
    assert!(failed.body["passed"].as_u64() < failed.body["total"].as_u64());
    let next = publish(&bed, 0, "volume_resize", &[])?;
    assert_eq!(next.code, 0, "{next:?}");
    Ok(())
}

#[test]
fn custom_high_data_runs_and_is_bound_by_its_digest() -> Result<()> {
    let bed = bed().minions(1).up()?;
    let file = bed.master_root().join("high.json");
    bed.sh(
        Host::Master,
        r#"printf '%s' "$2" > "$1""#,
        &[
            &file.to_string_lossy(),
            r#"{"b": {"test": ["nop"]}, "a": {"test": ["succeed_with_changes", {"name": "x=y"}]}}"#,
        ],
    )?;
    let answer = publish(
        &bed,
        0,
        "custom",
        &["--state-data", &file.to_string_lossy()],
    )?;
    assert_eq!(
        (answer.code, &answer.body["total"]),
        (0, &2.into()),
        "{answer:?}"
    );
    assert_eq!(field(&answer, "state_digest").len(), 64);
    assert_eq!(
        answer.body["receipt"]["state_digest"],
        answer.body["state_digest"]
    );
    Ok(())
}

#[test]
fn a_job_over_the_request_port_is_acknowledged_and_ends_with_the_receipt() -> Result<()> {
    let bed = bed().minions(1).transport(Transport::Request).up()?;
    let answer = publish(&bed, 0, "configure", &[])?;
    assert_eq!(
        (answer.code, field(&answer, "transport")),
        (0, "request"),
        "{answer:?}"
    );
    assert_eq!(bed.executions(0)?, 1);
    Ok(())
}
