//! The image of the Docker backend: Salt 3006.27 from PyPI on Debian 12, built by us.
//!
//! The base image is taken as it is here, else pulled, else (no registry may be reachable) made with
//! debootstrap. The classic command line is enough: no buildx.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{Progress, rpc, salt};

const BASE: &str = "debian:bookworm-slim";
const DOCKERFILE: &str = include_str!("../../Dockerfile");
const PULL_PATIENCE: Duration = Duration::from_secs(60);

/// Runs `docker` and returns what it printed, without the line end.
pub(crate) fn docker(args: &[&str]) -> Result<String> {
    let output = rpc::output(Command::new("docker").args(args), b"")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!(
            "cannot run docker {}: {}",
            args.first().unwrap_or(&""),
            words.trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// The image's name; builds it first where it is missing. The Dockerfile's text is part of the name, so a
/// changed one gives another image.
///
/// # Errors
/// No Docker Engine, no base image, or a failed build.
pub(crate) fn ensure(ca_bundle: Option<&Path>, progress: &Progress) -> Result<String> {
    docker(&["version", "--format", "{{.Server.Version}}"])
        .context("no Docker Engine answers\nhint: start it, or use --backend local")?;
    let name = format!(
        "gw-bed:{}-{:016x}",
        salt::VERSION,
        fnv(DOCKERFILE.as_bytes())
    );
    let cache = salt::cache_dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock =
        fs::File::create(cache.join("image.lock")).context("cannot create the image lock file")?;
    lock.lock().context("cannot lock the image lock file")?;
    if docker(&["image", "inspect", "--format", "{{.Id}}", &name]).is_ok() {
        return Ok(name);
    }
    ensure_base(progress)?;
    let context = tempfile::tempdir().context("cannot create a build context")?;
    fs::write(context.path().join("Dockerfile"), DOCKERFILE)
        .context("cannot write the Dockerfile")?;
    if let Some(bundle) = ca_bundle.map(Path::to_owned).or_else(hosts_ca_bundle) {
        fs::copy(&bundle, context.path().join("ca-bundle.pem"))
            .with_context(|| format!("cannot copy the CA bundle {}", bundle.display()))?;
    }
    progress.say(&format!(
        "building the image {name} (about two minutes, once)"
    ));
    docker(&[
        "build",
        "--quiet",
        "--tag",
        &name,
        &context.path().to_string_lossy(),
    ])
    .context(
        "cannot build the bed's image\nhint: if this network re-signs TLS, give --ca-bundle FILE",
    )?;
    Ok(name)
}

/// What this machine was told to trust besides the public authorities.
fn hosts_ca_bundle() -> Option<PathBuf> {
    [
        "GW_BED_CA_BUNDLE",
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "PIP_CERT",
    ]
    .iter()
    .filter_map(std::env::var_os)
    .map(PathBuf::from)
    .find(|path| path.is_file())
}

fn ensure_base(progress: &Progress) -> Result<()> {
    if docker(&["image", "inspect", "--format", "{{.Id}}", BASE]).is_ok() {
        return Ok(());
    }
    progress.say(&format!(
        "pulling {BASE} (at most {} s)",
        PULL_PATIENCE.as_secs()
    ));
    if pull()? {
        return Ok(());
    }
    progress.say(&format!(
        "no registry gave {BASE}: making it with debootstrap (about a minute, once)"
    ));
    debootstrap()
}

fn pull() -> Result<bool> {
    let mut child = Command::new("docker")
        .args(["pull", "--quiet", BASE])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run docker pull")?;
    let end = Instant::now() + PULL_PATIENCE;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for docker pull")? {
            return Ok(status.success());
        }
        if Instant::now() > end {
            child.kill().context("cannot end docker pull")?;
            child.wait().context("cannot wait for docker pull")?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn debootstrap() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "cannot make {BASE} with debootstrap, which needs root\nhint: docker pull {BASE}, or run as root once"
        );
    }
    let work = tempfile::tempdir().context("cannot create a directory for debootstrap")?;
    let tree = work.path().join("root");
    let output = Command::new("debootstrap")
        .args([
            "--variant=minbase",
            "--include=ca-certificates,python3,python3-venv,systemd,systemd-sysv,dbus",
            "bookworm",
        ])
        .arg(&tree)
        .stdin(Stdio::null())
        .output()
        .context("cannot run debootstrap\nhint: apt-get install debootstrap")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stdout);
        let last: Vec<&str> = words.lines().rev().take(5).collect();
        bail!(
            "debootstrap ended with {}: {}",
            output.status,
            last.join(" | ")
        );
    }
    let mut tar = Command::new("tar")
        .args(["--exclude=./var/cache/apt/archives/*.deb", "-c", "."])
        .current_dir(&tree)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run tar")?;
    let archive = tar.stdout.take().context("tar has no standard output")?;
    let imported = Command::new("docker")
        .args(["import", "-", BASE])
        .stdin(archive)
        .stdout(Stdio::null())
        .status()
        .context("cannot run docker import")?;
    if !tar.wait().context("cannot wait for tar")?.success() || !imported.success() {
        bail!("cannot import the tree made by debootstrap as {BASE}");
    }
    Ok(())
}

/// FNV-1a: tells texts apart, nothing more.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_installs_the_version_that_the_local_backend_installs() {
        assert!(DOCKERFILE.contains(&format!("salt=={}", salt::VERSION)));
    }

    #[test]
    fn another_dockerfile_gives_another_image() {
        assert_ne!(fnv(b"FROM a"), fnv(b"FROM b"));
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
    }
}
