//! End-to-end tests on a real Salt 3006.27: what the README promises, by name.
//!
//! The tests themselves are in `tests/`; here is what several of them use. Each test brings up a bed of its
//! own as local processes (no Docker, no root needed); those in `tests/docker.rs` and `tests/survival.rs` need Docker.

pub mod jobs;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bed::{Answer, Bed, Builder, Host};
use gw_wire::id::{Jid, MinionId, now};
use gw_wire::publication::{Call, Metadata, Publication};
use gw_wire::zmtp::Endpoint;
use gw_wire::zmtp::push::{PushEnd, push as push_load};

/// A bed for one test; its progress goes to the test's output.
pub fn bed() -> Builder {
    Bed::builder().progress(bed::Progress::new(|line| println!("bed: {line}")))
}

/// Publishes a profile to minion `number` and follows it to its end, at most two minutes.
///
/// # Errors
/// `gw` could not be run.
pub fn publish(bed: &Bed, number: usize, profile: &str, more: &[&str]) -> Result<Answer> {
    let id = bed::minion_id(number);
    let args = ["publish", &id, "--profile", profile, "--wait=120"];
    bed.gw_json(&[&args, more].concat())
}

/// A field of an answer as text, or nothing.
pub fn field<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.body[name].as_str().unwrap_or_default()
}

/// Whether tests on containers are to run: always in CI, elsewhere where there is a Docker Engine. Says so when
/// they are not.
///
/// # Panics
/// CI has none.
pub fn docker() -> bool {
    let found = std::process::Command::new("docker")
        .arg("version")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        found || std::env::var_os("CI").is_none(),
        "CI must have a Docker Engine"
    );
    if !found {
        println!("skipped: no Docker Engine");
    }
    found
}

/// Every file below a directory of a host whose content holds `needle`, but for those below `exempt`.
///
/// # Errors
/// The host cannot be asked.
pub fn files_with(
    bed: &Bed,
    host: Host,
    root: &str,
    needle: &str,
    exempt: &[&str],
) -> Result<Vec<String>> {
    // grep exits with 1 where it finds nothing.
    let script = r#"grep -rlaF -e "$2" "$1" || [ $? = 1 ]"#;
    let found = bed
        .sh(host, script, &[root, needle])
        .context("cannot search the files")?;
    Ok(found
        .lines()
        .filter(|path| !exempt.iter().any(|part| path.contains(part)))
        .map(str::to_owned)
        .collect())
}

/// Publishes a call to minion 0 around the gateway, as a replaying or hostile publisher would. Nobody listens on
/// the reply port that it names. `not_after_s` is from now.
///
/// # Errors
/// The load could not be pushed.
pub fn push(bed: &Bed, jid: Jid, call: Call, not_after_s: Option<i64>) -> Result<()> {
    let publication = Publication {
        jid,
        minion_id: MinionId::parse(&bed::minion_id(0))?,
        call,
        metadata: Metadata {
            not_after: not_after_s.map(|seconds| now().as_second() + seconds),
            ..Metadata::run(9, 1, 0)
        },
    };
    push_bare(bed, &publication.to_bare_load("root"))
}

/// Pushes a load as it is.
///
/// # Errors
/// It could not be pushed.
pub fn push_bare(bed: &Bed, load: &[u8]) -> Result<()> {
    let endpoint = Endpoint::Unix(bed.publish_pull_path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let end = runtime.block_on(push_load(&endpoint, load, Duration::from_secs(5)));
    ensure!(matches!(end, PushEnd::Sent { .. }), "not pushed: {end:?}");
    Ok(())
}

/// What minion 0's store has for a jid now: its claim or tombstone.
///
/// # Errors
/// The host cannot be asked.
pub fn jid_record(bed: &Bed, jid: Jid) -> Result<Option<String>> {
    let path = bed.minion_store(0).join("jids").join(format!("{jid}.json"));
    let output = bed.exec(Host::Minion(0), r#"cat "$1""#, &[&path.to_string_lossy()])?;
    Ok(output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// The same, once there is one.
///
/// # Errors
/// There was none after 20 s, or the host cannot be asked.
pub fn jid_file(bed: &Bed, jid: Jid) -> Result<String> {
    for _ in 0..100 {
        if let Some(record) = jid_record(bed, jid)? {
            return Ok(record);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    anyhow::bail!("no file for jid {jid} after 20 s")
}
