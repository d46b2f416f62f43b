//! The crash matrix against executors that are broken on purpose: each must be found out.
//!
//! An executor is built from a copy of the sources in which one rule is taken out, and tried where that rule
//! matters. The same places must be sound with the sources as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use bed::Progress;
use bed::crash::{Kind, Plan, Report, Scenario, run};

/// A text that stands in a file exactly once, and what is to stand there instead.
type Edit = (&'static str, &'static str, &'static str);

struct Mutation {
    /// The rule that is taken out.
    name: &'static str,
    edits: &'static [Edit],
    kind: Kind,
    /// The invariant whose violation must be found.
    finds: &'static str,
}

const MUTATIONS: [Mutation; 3] = [
    Mutation {
        name: "fsync of the directory left out",
        edits: &[(
            "minion-exec/src/store/dir.rs",
            "fs::fsync(&self.fd).map_err(|source| StoreError::io(\"sync\", &self.path, source))",
            "Ok(())",
        )],
        kind: Kind::Power,
        finds: "claim-before-run",
    },
    Mutation {
        name: "claim after run",
        edits: &[
            (
                "minion-exec/src/store/claims.rs",
                "if let Some(settled) = self.link(scan, JidRecord::Claim(claimed.clone()))? {\n            \
                 return Ok(ClaimOutcome::Settled(settled));\n        }",
                "",
            ),
            (
                "minion-exec/src/store/claims.rs",
                "let name = json_name(self.claimed.binding.request_id.as_str());\n        if let Some(reason)",
                "let scan = store.scan(&store.identity()?, None)?;\n        \
                 store.link(scan, JidRecord::Claim(self.claimed.clone()))?;\n        \
                 let name = json_name(self.claimed.binding.request_id.as_str());\n        if let Some(reason)",
            ),
        ],
        kind: Kind::Kill,
        finds: "claim-before-run",
    },
    Mutation {
        name: "lock in the worker only",
        edits: &[
            (
                "minion-exec/src/run.rs",
                "fn execute(mut session: Session, store: &Store, claim: Claim,",
                "fn execute(mut session: Session, store: &Store, mut claim: Claim,",
            ),
            (
                "minion-exec/src/run.rs",
                "Ok(()) => follow(&mut session.worker, progress.as_ref()),",
                "Ok(()) => {\n            claim.let_go();\n            \
                 follow(&mut session.worker, progress.as_ref())\n        }",
            ),
            (
                "minion-exec/src/store/claims.rs",
                "    /// The execution lock and the request lock, to be passed to the worker.",
                "    /// Lets go.\n    pub fn let_go(&mut self) {\n        \
                 self.locks.iter_mut().for_each(Lock::let_go);\n    }\n\n    \
                 /// The execution lock and the request lock, to be passed to the worker.",
            ),
            (
                "minion-exec/src/store/lock.rs",
                "    /// The descriptor, to be passed to the worker.",
                "    /// Lets go.\n    pub fn let_go(&mut self) {\n        \
                 self.fd = std::fs::File::open(\"/dev/null\").expect(\"there\").into();\n    }\n\n    \
                 /// The descriptor, to be passed to the worker.",
            ),
        ],
        kind: Kind::Kill,
        finds: "one-run",
    },
];

#[test]
fn each_rule_that_is_taken_out_is_missed() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    for mutation in MUTATIONS {
        copy_sources(root)?;
        for (file, from, to) in mutation.edits {
            let path = root.join(file);
            let text = fs::read_to_string(&path)?;
            let found = text.matches(from).count();
            ensure!(
                found == 1,
                "{}: found {found} times in {file}: {from}",
                mutation.name
            );
            fs::write(path, text.replace(from, to))?;
        }
        let broken = try_out(mutation.kind, Some(build(root)?))?;
        let found = broken
            .violations
            .iter()
            .filter(|violation| violation.what.contains(mutation.finds))
            .count();
        println!(
            "{}: {} points, {found} violations",
            mutation.name,
            broken.points()
        );
        ensure!(
            found > 0,
            "{}: not found out: {:?}",
            mutation.name,
            broken.violations
        );
    }
    for kind in [Kind::Kill, Kind::Power] {
        let sound = try_out(kind, None)?;
        ensure!(sound.points() > 20, "only {} points", sound.points());
        ensure!(sound.violations.is_empty(), "{:?}", sound.violations);
    }
    Ok(())
}

fn try_out(kind: Kind, executor: Option<PathBuf>) -> Result<Report> {
    let plan = Plan {
        scenarios: vec![Scenario::FirstRun],
        kinds: vec![kind],
        at_most: Some(40),
        seed: 1,
        executor,
    };
    run(&plan, &Progress::default())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What git would give of the workspace, with what was changed since.
fn copy_sources(root: &Path) -> Result<()> {
    for part in [
        "Cargo.toml",
        "Cargo.lock",
        "wire",
        "gateway",
        "master-poller",
        "minion-exec",
        "containers",
        "tests",
    ] {
        let copied = Command::new("cp")
            .args(["-rT"])
            .args([workspace().join(part), root.join(part)])
            .status()
            .context("cannot run cp")?;
        ensure!(copied.success(), "cannot copy {part}");
    }
    Ok(())
}

/// Builds `gw-exec` of the sources below `root`.
fn build(root: &Path) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from)
        .join("mutations");
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "-p", "gw-exec"])
        .env("CARGO_TARGET_DIR", &target)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the mutated executor does not build");
    Ok(target.join("debug/gw-exec"))
}
