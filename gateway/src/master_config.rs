//! Salt's own master configuration: the few options that the gateway needs, read as Salt reads them.
//!
//! `salt/config/__init__.py`, 3006.27: the main file, then the files that `default_include` matches, then
//! those of `include`, each over the one before (`master_config`, `include_config`); paths are put below
//! `root_dir` (`prepend_root_dir`). Salt goes on when an included file is broken; the gateway does not,
//! since it would then talk to another master than the one that the operator described.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The largest configuration file that is read, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// The most files that all includes together may match.
const MAX_FILES: usize = 256;
/// How deep includes may nest.
const MAX_DEPTH: usize = 8;

/// A master configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MasterConfigError {
    /// A file cannot be read.
    #[error("cannot read Salt master configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not the YAML mapping that Salt needs.
    #[error("Salt master configuration {path} is not valid: {why}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// An option's value cannot be used.
    #[error("Salt master configuration: {key} must be {rule}, got {got}")]
    Value {
        /// The option.
        key: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it is.
        got: String,
    },
    /// Includes without end.
    #[error(
        "Salt master configuration: includes are over the limit of {MAX_FILES} files or {MAX_DEPTH} levels"
    )]
    TooManyIncludes,
}

/// How the master's processes talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpcMode {
    /// Unix sockets below `sock_dir`.
    Ipc,
    /// Loopback ports, which any local user can reach.
    Tcp,
}

/// What the gateway takes from Salt's master configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterConfig {
    /// Directory of `publish_pull.ipc`.
    pub sock_dir: PathBuf,
    /// Directory of `master.pub` and `minions/`.
    pub pki_dir: PathBuf,
    /// Directory of the root key.
    pub cachedir: PathBuf,
    /// The user that the master runs as.
    pub user: String,
    /// The request port, as a client on the master reaches it.
    pub request_addr: SocketAddr,
    /// Unix sockets or loopback ports.
    pub ipc_mode: IpcMode,
    /// The publisher's port if `ipc_mode` is `tcp`.
    pub tcp_master_publish_pull: u16,
}

impl MasterConfig {
    /// Reads the configuration, includes too.
    pub fn load(path: &Path) -> Result<Self, MasterConfigError> {
        let mut options = read_file(path)?;
        let mut reader = Includes { files: 0 };
        let default = options
            .get("default_include")
            .cloned()
            .unwrap_or_else(|| "master.d/*.conf".into());
        let include = options.get("include").cloned().unwrap_or(Value::Null);
        for patterns in [default, include] {
            let included = reader.read(&patterns, path, 0)?;
            options.extend(included);
        }
        Self::from_options(&options)
    }

    fn from_options(options: &Map<String, Value>) -> Result<Self, MasterConfigError> {
        let root_dir = PathBuf::from(text(options, "root_dir", "/")?);
        // Defaults of salt/syspaths.py and DEFAULT_MASTER_OPTS, 3006.27.
        let below_root = |key, default| -> Result<PathBuf, MasterConfigError> {
            let path = PathBuf::from(text(options, key, default)?);
            let path = path
                .strip_prefix(&root_dir)
                .map(Path::to_owned)
                .unwrap_or(path);
            Ok(root_dir.join(path.strip_prefix("/").unwrap_or(&path)))
        };
        Ok(MasterConfig {
            sock_dir: below_root("sock_dir", "/var/run/salt/master")?,
            pki_dir: below_root("pki_dir", "/etc/salt/pki/master")?,
            cachedir: below_root("cachedir", "/var/cache/salt/master")?,
            user: text(options, "user", "root")?,
            request_addr: SocketAddr::new(interface(options)?, port(options, "ret_port", 4506)?),
            ipc_mode: match text(options, "ipc_mode", "ipc")?.as_str() {
                "ipc" => IpcMode::Ipc,
                "tcp" => IpcMode::Tcp,
                other => {
                    return Err(MasterConfigError::Value {
                        key: "ipc_mode",
                        rule: "ipc or tcp",
                        got: shown(&Value::from(other)),
                    });
                }
            },
            tcp_master_publish_pull: port(options, "tcp_master_publish_pull", 4514)?,
        })
    }
}

struct Includes {
    files: usize,
}

impl Includes {
    fn read(
        &mut self,
        patterns: &Value,
        from: &Path,
        depth: usize,
    ) -> Result<Map<String, Value>, MasterConfigError> {
        if depth == MAX_DEPTH {
            return Err(MasterConfigError::TooManyIncludes);
        }
        let patterns: Vec<&str> = match patterns {
            Value::Null => Vec::new(),
            Value::String(pattern) => vec![pattern],
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            other => {
                return Err(MasterConfigError::Value {
                    key: "include",
                    rule: "a path or a list of paths",
                    got: shown(other),
                });
            }
        };
        let mut options = Map::new();
        for pattern in patterns.into_iter().filter(|pattern| !pattern.is_empty()) {
            let full = from.parent().unwrap_or(Path::new("/")).join(pattern);
            let matches =
                glob::glob(&full.to_string_lossy()).map_err(|error| MasterConfigError::Yaml {
                    path: from.to_owned(),
                    why: format!("include {pattern:?} is not a path or glob: {error}"),
                })?;
            // glob gives its matches in alphabetical order, as Salt's sorted() does.
            for file in matches {
                let file = file.map_err(|error| MasterConfigError::Read {
                    path: error.path().to_owned(),
                    source: error.into(),
                })?;
                self.files += 1;
                if self.files > MAX_FILES {
                    return Err(MasterConfigError::TooManyIncludes);
                }
                let mut read = read_file(&file)?;
                if let Some(include) = read.get("include").cloned() {
                    read.extend(self.read(&include, &file, depth + 1)?);
                }
                options.extend(read);
            }
        }
        Ok(options)
    }
}

fn read_file(path: &Path) -> Result<Map<String, Value>, MasterConfigError> {
    let read = |source| MasterConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let yaml = |why: String| MasterConfigError::Yaml {
        path: path.to_owned(),
        why,
    };
    if std::fs::metadata(path).map_err(read)?.len() > MAX_BYTES {
        return Err(yaml(format!("it is over the limit of {MAX_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(read)?;
    // A file of comments alone is an empty document.
    let value: Option<Value> = serde_saphyr::from_str(&text).map_err(|error| {
        // The first line says where and what; the rest is a drawing.
        let words = error.to_string();
        yaml(words.lines().next().unwrap_or_default().to_owned())
    })?;
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(options)) => Ok(options),
        Some(_) => Err(yaml("it is not a mapping of options".to_owned())),
    }
}

fn text(
    options: &Map<String, Value>,
    key: &'static str,
    default: &str,
) -> Result<String, MasterConfigError> {
    match options.get(key) {
        None | Some(Value::Null) => Ok(default.to_owned()),
        Some(Value::String(text)) if !text.is_empty() && !text.contains('\0') => Ok(text.clone()),
        Some(other) => Err(MasterConfigError::Value {
            key,
            rule: "text",
            got: shown(other),
        }),
    }
}

/// The address that the master listens on; for "all", the loopback address of that family.
fn interface(options: &Map<String, Value>) -> Result<IpAddr, MasterConfigError> {
    let key = "interface";
    let given = text(options, key, "0.0.0.0")?;
    match given.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ok(Ipv4Addr::LOCALHOST.into()),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ok(Ipv6Addr::LOCALHOST.into()),
        Ok(address) => Ok(address),
        Err(_) => Err(MasterConfigError::Value {
            key,
            rule: "an IP address",
            got: shown(&given.into()),
        }),
    }
}

fn port(
    options: &Map<String, Value>,
    key: &'static str,
    default: u16,
) -> Result<u16, MasterConfigError> {
    let rule = "a port, 1 to 65535";
    match options.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
            .and_then(|number| u16::try_from(number).ok())
            .filter(|number| *number > 0)
            .ok_or_else(|| MasterConfigError::Value {
                key,
                rule,
                got: shown(value),
            }),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        directory
    }

    fn load(files: &[(&str, &str)]) -> Result<MasterConfig, MasterConfigError> {
        MasterConfig::load(&directory(files).path().join("master"))
    }

    #[test]
    fn a_file_of_comments_gives_salts_defaults() {
        let config = load(&[("master", "# nothing\n")]).expect("defaults");
        assert_eq!(config.sock_dir, Path::new("/var/run/salt/master"));
        assert_eq!(config.pki_dir, Path::new("/etc/salt/pki/master"));
        assert_eq!(
            config.request_addr,
            "127.0.0.1:4506".parse().expect("an address")
        );
        assert_eq!(config.ipc_mode, IpcMode::Ipc);
    }

    #[test]
    fn includes_go_over_the_main_file_and_include_over_default_include() {
        let config = load(&[
            (
                "master",
                "ret_port: 1\nuser: a\ninclude: extra/*.conf\ncachedir: /c\n",
            ),
            ("master.d/10.conf", "ret_port: 2\nuser: b\n"),
            ("master.d/20.conf", "ret_port: 3\n"),
            ("master.d/30.txt", "ret_port: 9\n"),
            ("extra/x.conf", "user: c\ninclude: deeper.conf\n"),
            (
                "extra/deeper.conf",
                "ipc_mode: tcp\ntcp_master_publish_pull: 5\n",
            ),
        ])
        .expect("a configuration");
        assert_eq!((config.request_addr.port(), config.user.as_str()), (3, "c"));
        assert_eq!(
            (config.ipc_mode, config.tcp_master_publish_pull),
            (IpcMode::Tcp, 5)
        );
        assert_eq!(config.cachedir, Path::new("/c"));
    }

    #[test]
    fn paths_are_put_below_root_dir_as_salt_does() {
        let config = load(&[(
            "master",
            "root_dir: /r/\nsock_dir: /r/s\npki_dir: /p\ncachedir: c\n",
        )])
        .expect("a configuration");
        assert_eq!(config.sock_dir, Path::new("/r/s"));
        assert_eq!(config.pki_dir, Path::new("/r/p"));
        assert_eq!(config.cachedir, Path::new("/r/c"));
    }

    #[test]
    fn broken_files_get_one_error_that_names_the_file() {
        let words = |files: &[(&str, &str)]| load(files).expect_err("refused").to_string();
        assert!(words(&[("master", "a: [1\n")]).contains("master is not valid"));
        assert!(words(&[("master", "- a\n")]).contains("not a mapping"));
        assert!(words(&[("master", "ret_port: 70000\n")]).contains("1 to 65535"));
        assert!(words(&[("master", "ipc_mode: udp\n")]).contains("ipc or tcp"));
        assert!(words(&[("master", "a: 1\n"), ("master.d/b.conf", "{{ x\n")]).contains("b.conf"));
        assert!(words(&[("master", "include: master\n")]).contains("limit"));
        assert!(words(&[]).contains("cannot read"));
    }
}
