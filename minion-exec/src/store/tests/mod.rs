//! The store against racing writers, crashes, and files that are not as they must be.

mod chain;
mod claims;
mod interleaving;
mod making;
mod private;
mod retention;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Barrier;

use gw_wire::receipt::{Binding, Outcome};
use gw_wire::reply::{RefusalReason, Survival};

use super::dir::Created;
use super::*;
use crate::testing::{binding, other_request};

/// A machine that is nobody's.
fn machine() -> Machine {
    Machine::at("/no/machine-id".as_ref(), "/no/product_uuid".as_ref()).expect("none")
}

fn open(path: &Path) -> Result<Store, StoreError> {
    Store::open(path, machine())
}

fn record(settled: Settled) -> JidRecord {
    match settled {
        Settled::Known(record) => record,
        other => panic!("{other:?}"),
    }
}

struct Scratch {
    directory: tempfile::TempDir,
    store: Store,
}

fn scratch() -> Scratch {
    scratch_in(tempfile::tempdir().expect("a directory"))
}

fn scratch_in(directory: tempfile::TempDir) -> Scratch {
    let store = open(&directory.path().join("oduflow/job-receipts")).expect("a store");
    Scratch { directory, store }
}

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.directory
            .path()
            .join("oduflow/job-receipts")
            .join(name)
    }

    fn claim(&self, binding: &Binding, generation: u32) -> ClaimOutcome {
        claim(&self.store, binding, generation)
    }
}

fn claim(store: &Store, binding: &Binding, generation: u32) -> ClaimOutcome {
    let execution = store.lock_execution().expect("lockable").expect("free");
    let request = store
        .lock_request(binding.request_id)
        .expect("lockable")
        .expect("free");
    store
        .claim(
            binding,
            generation,
            Survival::None,
            |_| None,
            [execution, request],
        )
        .expect("the store works")
}

fn claimed(outcome: ClaimOutcome) -> Claim {
    match outcome {
        ClaimOutcome::Claimed(claim) => claim,
        other => panic!("not claimed: {other:?}"),
    }
}
