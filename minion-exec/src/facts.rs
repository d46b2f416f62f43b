//! What the Salt module says first: one line of JSON, the facts about this call and its raw arguments.
//!
//! The facts come from Salt's own structures; the arguments and the metadata are a stranger's until
//! [`crate::request`] has parsed them.

use gw_wire::id::MinionIdPattern;
use gw_wire::reply::Problem;
use serde::Deserialize;
use serde_json::Value;

use crate::store::retention::Keep;

/// The longest first line, in bytes: state data at its limit, every byte of it escaped.
pub const MAX_FACTS_BYTES: usize = 1024 * 1024;

/// The Salt that the module's shims were made for.
pub const SALT_VERSION: &str = "3006.27";

/// The first line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The arguments by name, as they came.
    pub args: serde_json::Map<String, Value>,
    /// How many keyword arguments came beside Salt's own: execution options, which nobody may pass.
    pub unexpected: u32,
    /// `__pub_jid`.
    pub jid: Option<String>,
    /// `__pub_metadata`.
    pub metadata: Option<Value>,
    /// The call came from a publication: `__pub_tgt` is not `salt-call` and there is no `__pub_pid`.
    pub published: bool,
    /// `id` of the minion.
    pub minion_id: String,
    /// Salt's version.
    pub salt_version: String,
    /// `multiprocessing` is on: each job has a process of its own.
    pub own_process: bool,
    /// `sudo_user` is set.
    pub sudo_user: bool,
    /// The executors of this call: the load's, else the minion's.
    pub executors: Value,
    /// `state_data`, as Salt's `config.option` finds it.
    pub state_data: Value,
    /// Where Salt keeps `minion.pem`.
    pub pki_dir: String,
    /// The numeric address of the minion's master.
    pub master_ip: Option<String>,
    /// The module's file.
    pub module: String,
    /// `oduflow_job: store` of the minion's configuration.
    pub store: Option<String>,
    /// `oduflow_job: minion_id_pattern` of the minion's configuration.
    pub minion_id_pattern: Option<String>,
    /// `oduflow_job: profiles` of the minion's configuration.
    pub profiles: Option<String>,
    /// `oduflow_job: require_survival` of the minion's configuration.
    pub require_survival: bool,
    /// `oduflow_job: retain_days` of the minion's configuration.
    pub retain_days: Option<u32>,
    /// `oduflow_job: retain_count` of the minion's configuration.
    pub retain_count: Option<u32>,
}

/// The store where the configuration names no other.
pub const DEFAULT_STORE: &str = "/var/lib/oduflow/job-receipts";

impl Facts {
    /// Reads the line.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// What retention must leave.
    pub fn keep(&self) -> Keep {
        Keep {
            days: self.retain_days,
            count: self.retain_count,
        }
    }

    /// Everything that keeps this minion from running a job, but for the store and the executor.
    pub fn problems(&self) -> Vec<Problem> {
        let direct_call = serde_json::json!(["direct_call"]);
        let id = gw_wire::id::MinionId::parse(&self.minion_id);
        let pattern = match &self.minion_id_pattern {
            None => Ok(MinionIdPattern::default()),
            Some(pattern) => MinionIdPattern::parse(pattern),
        };
        let matches = match (id, pattern) {
            (Ok(id), Ok(pattern)) => pattern.check(&id).is_ok(),
            _ => false,
        };
        [
            (self.salt_version != SALT_VERSION, Problem::SaltVersion),
            (!self.own_process, Problem::Threads),
            (self.sudo_user, Problem::SudoUser),
            (self.executors != direct_call, Problem::Executors),
            (self.state_data == "terse", Problem::StateDataTerse),
            (!self.published, Problem::NotPublished),
            (!matches, Problem::MinionIdPattern),
        ]
        .into_iter()
        .filter_map(|(found, problem)| found.then_some(problem))
        .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::profiles::SiteProfiles;
    use proptest::prelude::*;

    /// The facts of a minion that can run everything.
    pub fn good() -> Value {
        serde_json::json!({
            "args": {"request_id": "0b0e4567-e89b-42d3-a456-426614174000", "profile": "configure", "state_data_json": ""},
            "unexpected": 0,
            "jid": "20261130220939633426",
            "metadata": {"gw": {"protocol": 1, "generation": 1, "not_after": 1_800_000_000, "reply_port": 4510, "nonce": null}},
            "published": true,
            "minion_id": "client-123e4567-e89b-42d3-a456-426614174000",
            "salt_version": "3006.27",
            "own_process": true,
            "sudo_user": false,
            "executors": ["direct_call"],
            "state_data": "",
            "pki_dir": "/etc/salt/pki/minion",
            "master_ip": "127.0.0.1",
            "module": "/var/cache/salt/minion/extmods/modules/oduflow_job.py",
            "store": null,
            "minion_id_pattern": null,
            "profiles": null,
            "require_survival": false,
            "retain_days": null,
            "retain_count": null,
        })
    }

    fn problems_with(change: &str, value: Value) -> Vec<Problem> {
        let mut facts = good();
        facts[change] = value;
        Facts::parse(facts.to_string().as_bytes())
            .expect("facts")
            .problems()
    }

    #[test]
    fn each_unsuitable_fact_is_its_own_problem() {
        assert!(problems_with("unexpected", 0.into()).is_empty());
        for (fact, value, problem) in [
            ("salt_version", "3006.26".into(), Problem::SaltVersion),
            ("own_process", false.into(), Problem::Threads),
            ("sudo_user", true.into(), Problem::SudoUser),
            (
                "executors",
                serde_json::json!(["splay", "direct_call"]),
                Problem::Executors,
            ),
            ("executors", "direct_call".into(), Problem::Executors),
            ("state_data", "terse".into(), Problem::StateDataTerse),
            ("published", false.into(), Problem::NotPublished),
            ("minion_id", "web-1".into(), Problem::MinionIdPattern),
            (
                "minion_id_pattern",
                "web-[0-9]+".into(),
                Problem::MinionIdPattern,
            ),
            ("minion_id_pattern", "(".into(), Problem::MinionIdPattern),
        ] {
            assert_eq!(problems_with(fact, value), [problem]);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(Facts::parse(&bytes));
        }

        #[test]
        fn facts_with_one_fact_replaced_by_anything_never_panic(key in 0usize..16, text in "\\PC{0,40}", number in any::<f64>()) {
            let mut facts = good();
            let name = facts.as_object().expect("an object").keys().nth(key % 16).expect("a key").clone();
            for value in [Value::from(text), Value::from(number), Value::Null, serde_json::json!([{}])] {
                facts[&name] = value;
                if let Ok(facts) = Facts::parse(facts.to_string().as_bytes()) {
                    drop(facts.problems());
                    drop(crate::request::Job::parse(&facts, &SiteProfiles::default()));
                    drop(crate::request::parse_question(&facts));
                    drop(crate::request::parse_metadata(&facts));
                }
            }
        }
    }
}
