//! One call of the module: its facts, its worker, and the way back to the gateway.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use gw_wire::id::MinionId;
use gw_wire::publication::Metadata;
use gw_wire::reply::{Answer, Problem};
use serde_json::{Value, json};

use crate::facts::{DEFAULT_STORE, Facts, MAX_FACTS_BYTES};
use crate::profiles::{DEFAULT_PROFILES, SiteProfiles};
use crate::reply::{Delivery, Speaker};
use crate::request::parse_metadata;
use crate::store::machine::Machine;
use crate::store::{Store, StoreError};
use crate::worker::{Order, Worker, WorkerError};

/// How long the worker may take to let go of its locks once it was told what to return.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// One call.
#[derive(Debug)]
pub struct Session {
    /// The facts.
    pub facts: Facts,
    /// The worker.
    pub worker: Worker,
    /// `metadata.gw`, if there is one and it is valid.
    pub metadata: Option<Metadata>,
    /// The way back, if a direct reply was asked for.
    pub speaker: Option<Arc<Speaker>>,
}

impl Session {
    /// Reads the first line and prepares the way back. `None` if the call has been answered already: with
    /// an error, since its facts make no sense or no reply can be signed. Nothing was done then.
    pub fn begin(mut worker: Worker) -> Result<Option<Self>, WorkerError> {
        let line = match worker.first_line(MAX_FACTS_BYTES) {
            Ok(line) => line,
            Err(WorkerError::TooLong(limit)) => {
                let message = format!("the call is over the limit of {limit} bytes");
                fail(&worker, "too_long", &message);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let facts = match Facts::parse(&line) {
            Ok(facts) => facts,
            Err(error) => {
                let message = format!("the module's facts make no sense: {error}");
                fail(&worker, "facts", &message);
                return Ok(None);
            }
        };
        // An invalid one is answered by refusing the job, or not at all: there is nowhere to send to.
        let metadata = parse_metadata(&facts).unwrap_or_default();
        let speaker = match (&metadata, MinionId::parse(&facts.minion_id)) {
            (Some(metadata), Ok(id)) => match Speaker::new(&facts, &id, metadata) {
                Ok(speaker) => Some(Arc::new(speaker)),
                // Without a signature nothing could be proven afterwards: nothing is begun.
                Err(error) => {
                    fail(&worker, "cannot_sign", &chain(&error));
                    return Ok(None);
                }
            },
            _ => None,
        };
        Ok(Some(Session {
            facts,
            worker,
            metadata,
            speaker,
        }))
    }

    /// Opens the store that the minion's configuration names, and compares it with what the gateway has seen
    /// of it. An error has been told on standard error.
    pub fn open_store(&self) -> Option<Store> {
        let path = self.facts.store.as_deref().unwrap_or(DEFAULT_STORE);
        let seen = self.metadata.as_ref().and_then(|gw| gw.store.as_ref());
        let opened = Machine::this().and_then(|machine| {
            let store = Store::open(path.as_ref(), machine)?;
            store.meet(seen)?;
            Ok(store)
        });
        match opened {
            Ok(store) => Some(store),
            Err(error) => {
                tell(&chain(&error));
                None
            }
        }
    }

    /// Reads the site's profiles. An error has been told on standard error.
    pub fn site_profiles(&self) -> Result<SiteProfiles, Problem> {
        let path = self.facts.profiles.as_deref().unwrap_or(DEFAULT_PROFILES);
        SiteProfiles::load(path.as_ref()).map_err(|error| {
            tell(&chain(&error));
            Problem::Profiles
        })
    }

    /// Ends the call with an answer: the worker is released first, then the signed reply is sent for as
    /// long as `patience` lasts. Without a direct reply the answer goes to Salt.
    pub fn answer(mut self, store: Option<&Store>, answer: Answer, patience: Duration) {
        let Some(speaker) = self.speaker.take() else {
            give(&self.worker, plain(&answer));
            return;
        };
        let position = store.and_then(|store| match store.position() {
            Ok(position) => Some(position),
            Err(error) => {
                tell(&chain(&error));
                None
            }
        });
        let kind = answer.kind();
        let reply = speaker.sign(position, answer);
        give(&self.worker, json!({"__no_return__": true}));
        // Whoever hears of this end may publish at once; our locks must not make that job `busy`.
        self.worker.wait_for_end(RELEASE_PATIENCE);
        match speaker.deliver(&reply, patience) {
            Delivery::Recorded => {}
            Delivery::Rejected => tell(&format!("the gateway rejected the {kind} reply")),
            Delivery::GivenUp => tell(&format!("the {kind} reply was not acknowledged in time")),
        }
    }

    /// Which dispatch of its request the job is.
    pub fn generation(&self) -> u32 {
        self.metadata.as_ref().map_or(1, |gw| gw.generation)
    }

    /// Whether the job that the call is about may not start any more.
    pub fn late_job(&self) -> bool {
        let not_after = self.metadata.as_ref().and_then(|gw| gw.not_after);
        not_after.is_some_and(|not_after| gw_wire::id::now().as_second() > not_after)
    }

    /// Ends the call with an error that goes to Salt.
    pub fn fail(self, code: &str, message: &str) {
        fail(&self.worker, code, message);
    }

    /// Ends the call where nothing is certain, since the store cannot be read: no reply is sent.
    pub fn fail_store(self) {
        self.fail("store", "the receipt store cannot be used");
    }

    /// Tells of an error of the store on standard error.
    pub fn report(error: &StoreError) {
        tell(&chain(error));
    }
}

/// The receipt itself, or the answer under its name.
fn plain(answer: &Answer) -> Value {
    match answer {
        Answer::Receipt { receipt, .. } => serde_json::to_value(receipt),
        other => serde_json::to_value(other),
    }
    .expect("an answer is plain data")
}

fn fail(worker: &Worker, code: &str, message: &str) {
    tell(message);
    give(worker, json!({"error": code, "message": message}));
}

fn give(worker: &Worker, value: Value) {
    if let Err(error) = worker.order(&Order::Return { value }, &[]) {
        tell(&format!("cannot give Salt's worker its return: {error}"));
    }
}

/// One line on standard error.
pub fn tell(message: &str) {
    // Standard error may be a file on a full disk. That must not end the process that has a receipt to
    // commit, as the panic of `eprintln!` would.
    let _lost = writeln!(std::io::stderr(), "gw-exec: {message}");
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
