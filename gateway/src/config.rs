//! `gw.toml`: what the gateway itself needs to know. What Salt's own configuration says is read from
//! there ([`crate::master_config`]), never repeated here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gw_wire::id::MinionIdPattern;
use serde::{Deserialize, Serialize};

/// Where the configuration is looked for when no `--config` is given; it need not exist.
pub const DEFAULT_PATH: &str = "/etc/gw/gw.toml";
/// Where the daemon listens for `gw` and for other programs on the master.
pub const DEFAULT_SOCKET: &str = "/run/gw/gw.sock";
/// The largest configuration file, in bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is over the limit.
    #[error("configuration {0} is over the limit of {MAX_BYTES} bytes")]
    TooLong(PathBuf),
    /// Not TOML, an unknown key, or a value of another type.
    #[error("configuration {path} is not valid")]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value outside its bounds.
    #[error("configuration {path}: {what}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, its bounds and the value.
        what: String,
    },
}

/// How a publication reaches the minions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// PUSH into the master's `publish_pull.ipc`: no answer, no event, no request worker.
    Ipc,
    /// The clear `publish` command on the master's request port, with the root key.
    Request,
}

impl Transport {
    /// The word in configuration, records and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Ipc => "ipc",
            Transport::Request => "request",
        }
    }
}

/// `gw.toml` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    master_config: PathBuf,
    state_dir: PathBuf,
    socket: PathBuf,
    reply_listen: SocketAddr,
    publish: Transport,
    minion_id_pattern: String,
    executor_euid: u32,
    not_after_s: u32,
    capability_timeout_s: u32,
    capability_max_age_s: u32,
    poll_first_s: u32,
    poll_max_s: u32,
}

impl Default for File {
    fn default() -> Self {
        File {
            master_config: "/etc/salt/master".into(),
            state_dir: "/var/lib/gw".into(),
            socket: DEFAULT_SOCKET.into(),
            reply_listen: SocketAddr::from(([0, 0, 0, 0], 4510)),
            publish: Transport::Ipc,
            minion_id_pattern: MinionIdPattern::DEFAULT.to_owned(),
            executor_euid: 0,
            not_after_s: 300,
            capability_timeout_s: 10,
            capability_max_age_s: 300,
            poll_first_s: 30,
            poll_max_s: 300,
        }
    }
}

/// The gateway's configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Salt's own master configuration.
    pub master_config: PathBuf,
    /// Directory of the journal, 0700.
    pub state_dir: PathBuf,
    /// The API's Unix socket, 0600.
    pub socket: PathBuf,
    /// Address and port of the reply port. The port's number travels in every load.
    pub reply_listen: SocketAddr,
    /// How publications leave.
    pub publish: Transport,
    /// Which minion ids this site uses.
    pub minion_id_pattern: MinionIdPattern,
    /// The euid that a capability must report: 0, unless the site runs its minions as another user.
    pub executor_euid: u32,
    /// How long after the claim an executor may still start.
    pub not_after: Duration,
    /// How long a capability or status call waits for its answer.
    pub capability_timeout: Duration,
    /// How long a capability counts as fresh.
    pub capability_max_age: Duration,
    /// The first status call comes this long after the send, the next after twice as long, and so on.
    pub poll_first: Duration,
    /// The longest pause between two status calls for one job.
    pub poll_max: Duration,
}

impl Config {
    /// Reads the configuration. With no path, [`DEFAULT_PATH`] if it exists, else the defaults.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let (path, required) = match path {
            Some(path) => (path, true),
            None => (Path::new(DEFAULT_PATH), false),
        };
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let file = match std::fs::metadata(path) {
            Ok(meta) if meta.len() > MAX_BYTES => {
                return Err(ConfigError::TooLong(path.to_owned()));
            }
            Ok(_) => {
                let text = std::fs::read_to_string(path).map_err(read)?;
                toml::from_str(&text).map_err(|source| ConfigError::Toml {
                    path: path.to_owned(),
                    source: Box::new(source),
                })?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                File::default()
            }
            Err(error) => return Err(read(error)),
        };
        Self::check(file).map_err(|what| ConfigError::Value {
            path: path.to_owned(),
            what,
        })
    }

    fn check(file: File) -> Result<Self, String> {
        let seconds = |key: &str, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(Duration::from_secs(value.into()));
            }
            Err(format!(
                "{key} must be {low} to {high} seconds, got {value}"
            ))
        };
        for (key, path) in [
            ("master_config", &file.master_config),
            ("state_dir", &file.state_dir),
            ("socket", &file.socket),
        ] {
            if !path.is_absolute() {
                return Err(format!("{key} must be an absolute path, got {path:?}"));
            }
        }
        let config = Config {
            minion_id_pattern: MinionIdPattern::parse(&file.minion_id_pattern)
                .map_err(|error| error.to_string())?,
            not_after: seconds("not_after_s", file.not_after_s, 5, 86_400)?,
            capability_timeout: seconds("capability_timeout_s", file.capability_timeout_s, 1, 120)?,
            capability_max_age: seconds(
                "capability_max_age_s",
                file.capability_max_age_s,
                1,
                86_400,
            )?,
            poll_first: seconds("poll_first_s", file.poll_first_s, 1, 3600)?,
            poll_max: seconds("poll_max_s", file.poll_max_s, 1, 86_400)?,
            master_config: file.master_config,
            state_dir: file.state_dir,
            socket: file.socket,
            reply_listen: file.reply_listen,
            publish: file.publish,
            executor_euid: file.executor_euid,
        };
        if config.poll_max < config.poll_first {
            return Err("poll_max_s must not be under poll_first_s".to_owned());
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Config::load(Some(file.path()))
    }

    #[test]
    fn an_empty_file_gives_the_documented_defaults() {
        let config = load("").expect("defaults");
        assert_eq!(config.reply_listen.port(), 4510);
        assert_eq!(config.publish, Transport::Ipc);
        assert_eq!(config.executor_euid, 0);
    }

    #[test]
    fn unknown_keys_and_values_out_of_bounds_are_refused_by_name() {
        let words = |text: &str| {
            let error = anyhow::Error::from(load(text).expect_err("refused"));
            format!("{error:#}")
        };
        assert!(words("publsh = \"ipc\"").contains("publsh"));
        assert!(words("publish = \"amqp\"").contains("amqp"));
        assert!(words("not_after_s = 1").contains("5 to 86400"));
        assert!(words("socket = \"gw.sock\"").contains("absolute"));
        assert!(words("minion_id_pattern = \"(\"").contains("regular expression"));
        assert!(words("poll_first_s = 60\npoll_max_s = 30").contains("poll_max_s"));
        assert!(words("= broken").contains("not valid"));
    }

    #[test]
    fn a_named_file_must_exist() {
        assert!(matches!(
            Config::load(Some(Path::new("/nonexistent/gw.toml"))),
            Err(ConfigError::Read { .. })
        ));
    }
}
