//! Where the workspace's own `gw` and `gw-exec` are: built once per process, by cargo itself.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};

/// The two executables under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The gateway, `gw`.
    pub gw: PathBuf,
    /// The minion's executor, `gw-exec`.
    pub gw_exec: PathBuf,
}

/// Builds `gw` and `gw-exec` of this workspace in the profile of the running executable and returns
/// their paths. Works inside `cargo test` and `cargo run`, honours `CARGO_TARGET_DIR`, and builds at
/// most once per process.
///
/// # Errors
/// cargo is missing or the build failed; cargo's own words have then gone to standard error.
pub fn binaries() -> Result<Binaries> {
    static BUILT: OnceLock<Result<Binaries, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(|message| anyhow!(message))
}

fn build() -> Result<Binaries> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args([
            "build",
            "--message-format=json-render-diagnostics",
            "--quiet",
        ])
        .args(["-p", "gw", "-p", "gw-exec", "--bins"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command
        .output()
        .context("cannot run cargo to build gw and gw-exec")?;
    if !output.status.success() {
        bail!(
            "cannot build gw and gw-exec: cargo ended with {}",
            output.status
        );
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let find = |name: &str| {
        executable(&messages, name)
            .with_context(|| format!("cargo built no executable named {name}"))
    };
    Ok(Binaries {
        gw: find("gw")?,
        gw_exec: find("gw-exec")?,
    })
}

/// The path of the binary target `name` among cargo's JSON messages, one a line.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"gw"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"gw"},"executable":"/t/debug/gw"}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(
            executable(messages, "gw"),
            Some(PathBuf::from("/t/debug/gw"))
        );
        assert_eq!(executable(messages, "gw-exec"), None);
    }
}
