//! The local backend: each host is a directory, each daemon a process of this machine on loopback ports.
//!
//! A short path below `/tmp` holds everything, because an IPC path may have 107 bytes at most. Processes are
//! known by the bed's directory, which is in their environment (`GW_BED`), in the command line of Salt's
//! daemons, or the beginning of an executor's; nothing else is ever signalled. A janitor process waits for the owner's death and then ends
//! and removes what is left, so that an interrupted test or demo leaves nothing behind.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Backend, Host, Kind};
use crate::binaries::Binaries;
use crate::layout::Layout;
use crate::rpc;

/// Where a local bed is and which ports it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub(crate) base: PathBuf,
    pub(crate) salt_bin: PathBuf,
    pub(crate) gw: Option<PathBuf>,
    pub(crate) gw_exec: Option<PathBuf>,
    pub(crate) minions: usize,
}

#[derive(Debug)]
pub(crate) struct Local {
    handle: Handle,
    janitor: Option<Child>,
}

impl Local {
    /// Makes the directories and starts the janitor; no daemon yet.
    pub(crate) fn new(
        salt_bin: PathBuf,
        binaries: Option<&Binaries>,
        minions: usize,
    ) -> Result<Self> {
        let base = tempfile::Builder::new()
            .prefix("gwbed-")
            .tempdir_in("/tmp")
            .context("cannot create the bed's directory in /tmp")?
            .keep();
        let mut local = Self::attach(Handle {
            base,
            salt_bin,
            gw: binaries.map(|built| built.gw.clone()),
            gw_exec: binaries.map(|built| built.gw_exec.clone()),
            minions,
        });
        let base = &local.handle.base;
        fs::write(base.join("host.py"), rpc::HOST_PY).context("cannot write host.py")?;
        for host in local.hosts() {
            let root = local.layout(host).root;
            fs::create_dir_all(Path::new(&root).join("var/log/bed"))
                .with_context(|| format!("cannot create {root}"))?;
            if let Some(gw_exec) = &local.handle.gw_exec {
                std::os::unix::fs::symlink(gw_exec, format!("{root}/gw-exec"))
                    .with_context(|| format!("cannot link {root}/gw-exec"))?;
            }
        }
        local.janitor = Some(local.start_janitor()?);
        Ok(local)
    }

    /// A bed that another process started and left running.
    pub(crate) fn attach(handle: Handle) -> Self {
        Self {
            handle,
            janitor: None,
        }
    }

    fn hosts(&self) -> impl Iterator<Item = Host> + use<> {
        std::iter::once(Host::Master).chain((0..self.handle.minions).map(Host::Minion))
    }

    fn base(&self) -> String {
        self.handle.base.to_string_lossy().into_owned()
    }

    /// What a title of one of Salt's programs holds if it belongs to this bed.
    fn command(&self) -> [String; 2] {
        ["/bin/salt".to_owned(), format!(" -c {}/", self.base())]
    }

    fn start_janitor(&self) -> Result<Child> {
        let mut child = Command::new(self.handle.salt_bin.join("python"))
            .arg(self.handle.base.join("host.py"))
            .arg("janitor")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the janitor")?;
        let line =
            serde_json::to_string(&(self.base(), self.command())).context("cannot write JSON")?;
        let stdin = child
            .stdin
            .as_mut()
            .context("the janitor has no standard input")?;
        writeln!(stdin, "{line}").context("cannot talk to the janitor")?;
        Ok(child)
    }
}

impl Backend for Local {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn layout(&self, host: Host) -> Layout {
        let name = match host {
            Host::Master => "master".to_owned(),
            Host::Minion(n) => format!("m{n}"),
        };
        let text = |path: Option<&PathBuf>| {
            path.map_or(String::new(), |path| path.to_string_lossy().into())
        };
        let root = format!("{}/{name}", self.base());
        // By a name of this bed's own, for executors have an environment of their own to be known by no more.
        let gw_exec = match &self.handle.gw_exec {
            Some(_) => format!("{root}/gw-exec"),
            None => String::new(),
        };
        Layout {
            root,
            salt_bin: text(Some(&self.handle.salt_bin)),
            host_py: format!("{}/host.py", self.base()),
            gw: text(self.handle.gw.as_ref()),
            gw_exec,
        }
    }

    fn command(&self, host: Host, script: &str, args: &[&str], terminal: bool) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script, "sh"])
            .args(args)
            .current_dir("/")
            .env("GW_BED", format!("{}/run", self.layout(host).root));
        if !terminal {
            command.process_group(0);
        }
        command
    }

    fn reboot(&self, host: Host) -> Result<()> {
        let layout = self.layout(host);
        let command = ["/bin/salt".to_owned(), format!(" -c {}/", layout.root)];
        rpc::end_all(self, host, &format!("{}/", layout.root), &command)
    }

    fn freeze(&self, minion: usize, frozen: bool) -> Result<()> {
        let host = Host::Minion(minion);
        let layout = self.layout(host);
        let command = ["/bin/salt".to_owned(), format!(" -c {}/", layout.root)];
        let signal = if frozen {
            rpc::Signal::Stop
        } else {
            rpc::Signal::Continue
        };
        // once more for what was started while the first round was on its way
        for _ in 0..2 {
            rpc::signal(
                self,
                host,
                &format!("{}/", layout.root),
                &command,
                signal,
                None,
            )?;
        }
        Ok(())
    }

    fn cut(&self, _minion: usize, _cut: bool) -> Result<()> {
        bail!(
            "cannot partition a minion of the local backend, whose hosts share one network\nhint: use the docker backend"
        )
    }

    fn record(&self) -> super::Handle {
        super::Handle::Local(self.handle.clone())
    }

    fn detach(&mut self) -> Result<()> {
        super::dismiss_janitor(&mut self.janitor)
    }

    fn destroy(&mut self) -> Result<()> {
        if self.handle.base.exists() {
            rpc::end_all(
                self,
                Host::Master,
                &format!("{}/", self.base()),
                &self.command(),
            )?;
            remove(&self.handle.base)?;
        }
        super::dismiss_janitor(&mut self.janitor)
    }
}

/// Removes the directory; a process on its way out may still write to it for a moment.
fn remove(base: &Path) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = fs::remove_dir_all(base) {
        tries += 1;
        if tries == 20 {
            return Err(error).with_context(|| format!("cannot remove {}", base.display()));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// `N` different loopback ports that were free just now, from below the range that the kernel hands out by
/// itself, so that they are still free when the daemons bind them.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let mut at = now.wrapping_add(std::process::id().wrapping_mul(7919)) % COUNT;
    let mut ports = [0; N];
    let mut found = 0;
    for _ in 0..COUNT {
        if found == N {
            return Ok(ports);
        }
        let port = u16::try_from(FIRST + at).context("port out of range")?;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            ports[found] = port;
            found += 1;
        }
        at = (at + 1) % COUNT;
    }
    bail!("found no free port between {FIRST} and {}", FIRST + COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different_and_can_be_bound() {
        let ports: [u16; 3] = free_ports().expect("three free ports");
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
        for port in ports {
            TcpListener::bind(("127.0.0.1", port)).expect("still free");
        }
    }
}
