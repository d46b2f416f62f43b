//! End-to-end tests on a real Salt 3006.27: what the README promises, by name.
//!
//! The tests themselves are in `tests/`; here is what several of them use. Each test brings up a bed of its
//! own as local processes (no Docker, no root needed); those in `tests/docker.rs` need Docker.

use anyhow::{Context as _, Result};
use bed::{Answer, Bed, Builder, Host};

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
