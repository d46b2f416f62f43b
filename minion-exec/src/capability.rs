//! Whether and how this minion can run a job.

use std::io::Read;

use gw_wire::id::{Profile, Sha256Hex};
use gw_wire::reply::{Capability, NotClaimedReason, Problem, ShortText, Survival};
use sha2::{Digest, Sha256};

use crate::session::Session;
use crate::store::Store;
use crate::survival;

/// The capability as the facts, the store and the site's profiles say it. The euid is the executor's own; the worker has the
/// same, having started it.
pub fn capability(session: &Session, store: Option<&Store>) -> Capability {
    let facts = &session.facts;
    let mut problems = facts.problems();
    let mut profiles = Profile::BUILT_IN.to_vec();
    match session.site_profiles() {
        Ok(site) => profiles.extend(site.profiles()),
        Err(problem) => problems.push(problem),
    }
    problems.extend(store_problem(store));
    let survival = survival::possible();
    if facts.require_survival && survival == Survival::None {
        problems.push(Problem::Survival);
    }
    Capability {
        salt_version: short(&facts.salt_version),
        module_sha256: sha256_of(&facts.module),
        // Of the executable that runs, also if its file was replaced meanwhile.
        executor_sha256: sha256_of("/proc/self/exe"),
        euid: rustix::process::geteuid().as_raw(),
        profiles,
        survival,
        problems,
    }
}

fn store_problem(store: Option<&Store>) -> Option<Problem> {
    let identity = store.map(Store::identity);
    let (Some(store), Some(Ok(identity))) = (store, identity) else {
        return Some(Problem::Store);
    };
    store.distrust(&identity).map(|reason| match reason {
        NotClaimedReason::Machine => Problem::Machine,
        NotClaimedReason::StoreChanged => Problem::StoreChanged,
        NotClaimedReason::Store => Problem::Store,
    })
}

/// A version of Salt, or a word that says that it is none.
fn short(version: &str) -> ShortText {
    let fallback = || ShortText::try_from("unprintable".to_owned()).expect("short and printable");
    ShortText::try_from(version.to_owned()).unwrap_or_else(|_| fallback())
}

/// SHA-256 of a file, if it can be read.
fn sha256_of(path: &str) -> Option<Sha256Hex> {
    let mut file = std::fs::File::open(path).ok()?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match file.read(&mut chunk).ok()? {
            0 => break,
            read => hash.update(&chunk[..read]),
        }
    }
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Sha256Hex::parse(&hex).ok()
}
