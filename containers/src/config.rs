//! The files that a bed's hosts get: Salt's configuration, states and pillar, and `gw.toml`. Pure text.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::bed::{Transport, minion_id};
use crate::layout::Layout;

/// Path on the host -> text and octal mode, as `host.py` takes them.
pub(crate) type Files = BTreeMap<String, (String, &'static str)>;

/// Where the daemons meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Net {
    /// What the master and the gateway bind.
    pub(crate) bind: &'static str,
    /// How minions call their master.
    pub(crate) master: &'static str,
    pub(crate) publish_port: u16,
    pub(crate) ret_port: u16,
    pub(crate) reply_port: u16,
}

const STATES: [(&str, &str); 4] = [
    (
        "client_stack",
        include_str!("../states/roles/client_stack.sls"),
    ),
    (
        "client_production",
        include_str!("../states/roles/client_production.sls"),
    ),
    (
        "client_storage_resize",
        include_str!("../states/roles/client_storage_resize.sls"),
    ),
    (
        "client_credentials",
        include_str!("../states/roles/client_credentials.sls"),
    ),
];

/// `root_dir` of a host; Salt wants `/`, not the empty string.
fn root_dir(layout: &Layout) -> &str {
    if layout.root.is_empty() {
        "/"
    } else {
        &layout.root
    }
}

/// JSON is YAML: what Salt reads as YAML is written as JSON, one key a line.
fn yaml(map: Value) -> String {
    let Value::Object(map) = map else {
        unreachable!("only called with objects")
    };
    map.iter()
        .map(|(key, value)| format!("{key}: {value}\n"))
        .collect()
}

/// The configuration of salt-master, its states, and the module if there is one.
pub(crate) fn master(
    layout: &Layout,
    net: &Net,
    user: &str,
    extra: &str,
    module: Option<&str>,
) -> Files {
    let main = json!({
        "root_dir": root_dir(layout),
        "user": user,
        "interface": net.bind,
        "publish_port": net.publish_port,
        "ret_port": net.ret_port,
        "auto_accept": true,
        "worker_threads": 3,
        "file_roots": {"base": [layout.at("srv/salt")]},
        "pillar_roots": {"base": [layout.at("srv/pillar")]},
        "log_level_logfile": "info",
        "enable_fqdns_grains": false,
        "enable_gpu_grains": false,
    });
    let mut files = Files::new();
    files.insert(layout.at("etc/salt/master"), (yaml(main), "0644"));
    files.insert(
        layout.at("etc/salt/master.d/extra.conf"),
        (extra.to_owned(), "0644"),
    );
    for (name, text) in STATES {
        files.insert(
            layout.at(&format!("srv/salt/roles/{name}.sls")),
            (text.to_owned(), "0644"),
        );
    }
    if let Some(module) = module {
        files.insert(
            layout.at("srv/salt/_modules/oduflow_job.py"),
            (module.to_owned(), "0644"),
        );
    }
    files
}

/// The configuration of salt-minion.
pub(crate) fn minion(
    layout: &Layout,
    net: &Net,
    number: usize,
    user: &str,
    executor_config: &Map<String, Value>,
    extra: &str,
) -> Files {
    let mut executor = Map::from_iter([
        ("executor".to_owned(), json!(layout.gw_exec)),
        ("store".to_owned(), json!(layout.store())),
        ("profiles".to_owned(), json!(layout.profiles())),
    ]);
    executor.extend(executor_config.clone());
    let main = json!({
        "root_dir": root_dir(layout),
        "user": user,
        "id": minion_id(number),
        "master": net.master,
        "master_port": net.ret_port,
        "log_level_logfile": "info",
        "mine_enabled": false,
        "acceptance_wait_time": 1,
        "acceptance_wait_time_max": 1,
        "random_reauth_delay": 1,
        "recon_default": 100,
        "recon_max": 500,
        "auth_timeout": 5,
        "auth_tries": 20,
        "loop_interval": 1,
        "enable_fqdns_grains": false,
        "enable_gpu_grains": false,
        "oduflow_job": executor,
    });
    let mut files = Files::new();
    files.insert(layout.at("etc/salt/minion"), (yaml(main), "0644"));
    files.insert(
        layout.at("etc/salt/minion.d/extra.conf"),
        (extra.to_owned(), "0644"),
    );
    files.insert(layout.counter(), (String::new(), "0600"));
    files
}

/// The unit of salt-minion, and in a file of its own what a bed needs changed: where Salt is, and what its processes
/// are known by.
pub(crate) fn unit(layout: &Layout) -> Files {
    let changes = format!(
        "[Service]\nEnvironment=GW_BED={}\nExecStart=\nExecStart={} -c {}\n",
        layout.at("salt-minion"),
        layout.salt("salt-minion"),
        layout.salt_config()
    );
    let path = layout.at("etc/systemd/system/salt-minion.service");
    Files::from([
        (format!("{path}.d/bed.conf"), (changes, "0644")),
        (
            path,
            (include_str!("../salt-minion.service").to_owned(), "0644"),
        ),
    ])
}

/// The pillar's top file: each minion has one file of its own, and all have `extra`.
pub(crate) fn pillar_top(layout: &Layout, minions: usize, extra: &str) -> Files {
    let top: Map<String, Value> = (0..minions)
        .map(|n| (minion_id(n), json!([format!("bed-{n}"), "bed-extra"])))
        .collect();
    let extra = if extra.trim().is_empty() {
        "{}\n"
    } else {
        extra
    };
    Files::from([
        (
            layout.at("srv/pillar/top.sls"),
            (yaml(json!({ "base": top })), "0644"),
        ),
        (
            layout.at("srv/pillar/bed-extra.sls"),
            (extra.to_owned(), "0644"),
        ),
    ])
}

/// The pillar of one minion: its canary, where the roles write, and `more` of the key `bed`.
pub(crate) fn pillar(
    master: &Layout,
    host: &Layout,
    number: usize,
    more: &Map<String, Value>,
) -> Files {
    let mut bed = Map::new();
    bed.insert("canary".to_owned(), json!(canary(number)));
    bed.insert("counter".to_owned(), json!(host.counter()));
    bed.insert("target".to_owned(), json!(host.target()));
    bed.extend(more.clone());
    let path = master.at(&format!("srv/pillar/bed-{number}.sls"));
    Files::from([(path, (yaml(json!({ "bed": bed })), "0600"))])
}

/// The value that one minion's pillar brings into states and command output, and that must be nowhere else.
pub(crate) fn canary(number: usize) -> String {
    format!("canary-7f3a9c-{number}-e41d")
}

/// The gateway's configuration; `more` replaces or adds keys, its values being TOML.
pub(crate) fn gateway(
    layout: &Layout,
    net: &Net,
    transport: Transport,
    euid: u32,
    more: &BTreeMap<String, String>,
) -> Files {
    let text = |value: String| json!(value).to_string(); // a JSON string of ours is a TOML string
    let mut keys = BTreeMap::from([
        (
            "master_config".to_owned(),
            text(layout.at("etc/salt/master")),
        ),
        ("state_dir".to_owned(), text(layout.at("var/lib/gw"))),
        ("socket".to_owned(), text(layout.gw_socket())),
        (
            "reply_listen".to_owned(),
            text(format!("{}:{}", net.bind, net.reply_port)),
        ),
        ("publish".to_owned(), text(transport.name().to_owned())),
        ("executor_euid".to_owned(), euid.to_string()),
    ]);
    keys.extend(more.clone());
    let toml = keys
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    Files::from([(layout.gw_toml(), (toml, "0600"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            root: "/tmp/gwbed-x/master".into(),
            salt_bin: "/v/bin".into(),
            host_py: "/tmp/gwbed-x/host.py".into(),
            gw: "/t/gw".into(),
            gw_exec: "/t/gw-exec".into(),
        }
    }

    const NET: Net = Net {
        bind: "127.0.0.1",
        master: "127.0.0.1",
        publish_port: 1,
        ret_port: 2,
        reply_port: 3,
    };

    fn lines(files: &Files, path: &str) -> Vec<String> {
        files[path].0.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_key_given_for_gw_toml_replaces_the_beds_own() {
        let more = BTreeMap::from([
            ("executor_euid".into(), "7".into()),
            ("poll_first_s".into(), "1".into()),
        ]);
        let files = gateway(&layout(), &NET, Transport::Request, 0, &more);
        let lines = lines(&files, "/tmp/gwbed-x/master/etc/gw/gw.toml");
        assert!(lines.contains(&"executor_euid = 7".to_owned()));
        assert!(lines.contains(&"poll_first_s = 1".to_owned()));
        assert!(lines.contains(&"publish = \"request\"".to_owned()));
        assert!(lines.contains(&"reply_listen = \"127.0.0.1:3\"".to_owned()));
        assert!(!lines.contains(&"executor_euid = 0".to_owned()));
    }

    #[test]
    fn every_minion_has_a_canary_of_its_own() {
        let more = Map::from_iter([("pause_s".to_owned(), json!(5))]);
        let files = pillar(&layout(), &layout(), 1, &more);
        let text = &files["/tmp/gwbed-x/master/srv/pillar/bed-1.sls"].0;
        assert!(text.contains(&canary(1)) && text.contains(r#""pause_s":5"#));
        assert_ne!(canary(0), canary(1));
    }

    #[test]
    fn a_container_has_the_root_directory_as_salts_root() {
        let mut layout = layout();
        layout.root.clear();
        let files = minion(&layout, &NET, 0, "root", &Map::new(), "");
        assert!(lines(&files, "/etc/salt/minion").contains(&"root_dir: \"/\"".to_owned()));
        assert_eq!(
            layout.publish_pull(),
            "/var/run/salt/master/publish_pull.ipc"
        );
    }

    #[test]
    fn ipc_paths_of_a_local_bed_fit() {
        assert!(layout().publish_pull().len() < 107);
    }
}
