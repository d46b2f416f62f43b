//! `gw-exec`: claims, runs once, and keeps the receipt of every job on one minion.
//!
//! Salt's module `oduflow_job` starts it for each call and speaks with it over a socket; it decides, keeps
//! and answers, and the module only calls the one state function that it is told to.
//!
//! | module | what it does |
//! |---|---|
//! | [`session`] | one call: facts in, answer out |
//! | [`facts`], [`request`] | from the module's line to types |
//! | [`profiles`] | the site's own profiles and their roles |
//! | [`run`], [`finish`], [`status`], [`capability`] | the calls |
//! | [`store`] | what is durable: claims, tombstones, receipts, locks |
//! | [`survival`] | out of the minion's service, into a scope of our own |
//! | [`worker`] | the Salt worker at the other end: socket, descriptors, pidfd |
//! | [`reduce`] | from classes of results to an outcome |
//! | [`reply`] | signing and sending |
//! | [`receipts`] | the store for a person on the minion |
//!
//! Where the invariants live: **claim-before-run** and **one-claim** on [`store::Store::claim`],
//! **receipt-before-return** on [`store::Claim::commit`], **one-run** in [`store::lock`],
//! **private-storage** in [`store::dir`], **nothing-raw** in [`reduce`].

pub mod capability;
pub mod facts;
pub mod finish;
pub mod profiles;
pub mod receipts;
pub mod reduce;
pub mod reply;
pub mod request;
pub mod run;
pub mod session;
pub mod status;
pub mod store;
pub mod survival;
pub mod worker;

#[cfg(test)]
mod testing;

use gw_wire::receipt::Binding;
use gw_wire::reply::{Answer, RefusalReason};

use reply::ANSWER_PATIENCE;
use session::Session;
use store::{Store, StoreError};
use worker::{Worker, WorkerError};

/// Which function of the module was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Apply, at most once.
    Run,
    /// What became of a job.
    Status,
    /// That a job never run, unless it has been claimed.
    Revoke,
    /// The receipt of a job whose executor died.
    Finish,
    /// Whether this minion can run a job.
    Capability,
}

/// Serves one call of the module, whose worker is at the other end of standard input.
///
/// Returns once the call is answered and its reply acknowledged or given up, which may be minutes after
/// the worker has got its return. An error means that there is no worker to answer to.
pub fn serve(function: Function) -> Result<(), WorkerError> {
    let Some(session) = Session::begin(Worker::on_stdin()?)? else {
        return Ok(());
    };
    match function {
        Function::Run => run::run(session),
        Function::Status => answer_question(session, |store, session, asked| {
            match (status::status(store, asked)?, session.late_job()) {
                // It never ran, and its time is over: now it never will.
                (Answer::NotStarted { .. }, true) => {
                    status::fence(store, asked, session.generation(), RefusalReason::Late)
                }
                (answer, _) => Ok(answer),
            }
        }),
        Function::Revoke => answer_question(session, |store, session, asked| {
            status::fence(store, asked, session.generation(), RefusalReason::Revoked)
        }),
        Function::Finish => finish::finish(session),
        Function::Capability => {
            let store = session.open_store();
            let answer = capability::capability(&session, store.as_ref());
            session.answer(store.as_ref(), Answer::Capability(answer), ANSWER_PATIENCE);
        }
    }
    Ok(())
}

fn answer_question(
    session: Session,
    answer: impl FnOnce(&Store, &Session, &Binding) -> Result<Answer, StoreError>,
) {
    let asked = match request::parse_question(&session.facts) {
        Ok(asked) => asked,
        Err(error) => return session.fail("invalid", &error.to_string()),
    };
    let Some(store) = session.open_store() else {
        return session.fail_store();
    };
    let answer = match answer(&store, &session, &asked) {
        Ok(answer) => Some(answer),
        Err(error) => {
            Session::report(&error);
            status::despite_error(&store, &asked)
        }
    };
    match answer {
        Some(answer) => session.answer(Some(&store), answer, ANSWER_PATIENCE),
        None => session.fail_store(),
    }
}
