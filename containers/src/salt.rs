//! Salt 3006.27 in a virtual environment, made once and kept in the user's cache directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::Progress;

/// The one Salt version that the product supports and the bed runs.
pub const VERSION: &str = "3006.27";

/// Written last; a directory without it is the rest of an interrupted build.
const MARKER: &str = ".gw-bed-complete";

/// The virtual environment's `bin` directory. Makes the environment first where it is missing, which
/// takes about a minute and needs a package index. Safe among concurrent makers: an exclusive lock
/// beside the directory is held while it is built, and the marker file is written last.
///
/// # Errors
/// No suitable Python, no package index, or a file system error; the message says which.
pub fn environment(progress: &Progress) -> Result<PathBuf> {
    let python = find_python()?;
    let cache = cache_dir()?;
    let home = cache.join(format!("salt-{VERSION}-py{}", python.version));
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock_path = cache.join(format!("salt-{VERSION}-py{}.lock", python.version));
    let lock = File::create(&lock_path)
        .with_context(|| format!("cannot create the lock file {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        progress.say("waiting for another process that uses the cache of Salt environments");
        lock.lock()
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    }
    if !home.join(MARKER).exists() {
        make(&home, &python, progress)
            .with_context(|| format!("cannot make the virtual environment {}", home.display()))?;
    }
    Ok(home.join("bin"))
}

/// Where beds keep what outlives them: `$XDG_CACHE_HOME/gw-bed` or `~/.cache/gw-bed`.
///
/// # Errors
/// Neither variable is set.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(
            std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?,
        )
        .join(".cache"),
    };
    Ok(base.join("gw-bed"))
}

struct Python {
    command: &'static str,
    /// "3.11"
    version: String,
}

fn find_python() -> Result<Python> {
    const ASK: &str = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])";
    for command in ["python3.11", "python3.10", "python3"] {
        let Ok(output) = Command::new(command)
            .args(["-c", ASK])
            .stdin(Stdio::null())
            .output()
        else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && supported(&version) {
            return Ok(Python { command, version });
        }
    }
    bail!(
        "found no python 3.8 to 3.11 with the venv and ensurepip modules, which Salt {VERSION} needs\n\
         hint: apt-get install python3-venv on Debian 12; elsewhere put python3.11 or python3.10 on PATH"
    )
}

fn supported(version: &str) -> bool {
    matches!(version, "3.8" | "3.9" | "3.10" | "3.11")
}

fn make(home: &Path, python: &Python, progress: &Progress) -> Result<()> {
    if home.exists() {
        progress.say("removing an unfinished virtual environment");
        fs::remove_dir_all(home).context("cannot remove what an interrupted build left")?;
    }
    progress.say(&format!(
        "making a virtual environment with {}",
        python.command
    ));
    checked(Command::new(python.command).args(["-m", "venv"]).arg(home))?;
    progress.say(&format!(
        "installing Salt {VERSION} from the package index (about a minute, once)"
    ));
    checked(
        Command::new(home.join("bin/python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .arg(format!("salt=={VERSION}")),
    )?;
    File::create(home.join(MARKER))
        .and_then(|marker| marker.sync_all())
        .context("cannot write the marker")
}

fn checked(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    bail!("{name} ended with {}:\n{}", output.status, words.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_that_salt_cannot_run_on_are_passed_over() {
        assert!(supported("3.11") && supported("3.10"));
        assert!(!supported("3.12") && !supported("3.7") && !supported(""));
    }
}
