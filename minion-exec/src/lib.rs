//! `gw-exec`: claims, runs once, and keeps the receipt of every job on one minion.
//!
//! Salt's module `oduflow_job` starts it for each call and speaks with it over a socket; it decides, keeps
//! and answers, and the module only calls the one state function that it is told to.
//!
//! | module | what it does |
//! |---|---|
//! | [`session`] | one call: facts in, answer out |
//! | [`facts`], [`request`] | from the module's line to types |
//! | [`run`], [`status`], [`capability`] | the three calls |
//! | [`store`] | what is durable: claims, tombstones, receipts, locks |
//! | [`worker`] | the Salt worker at the other end: socket, descriptors, pidfd |
//! | [`reduce`] | from classes of results to an outcome |
//! | [`reply`] | signing and sending |
//!
//! Where the invariants live: **claim-before-run** and **one-claim** on [`store::Store::claim`],
//! **receipt-before-return** on [`store::Claim::commit`], **one-run** in [`store::lock`],
//! **private-storage** in [`store::dir`], **nothing-raw** in [`reduce`].

pub mod capability;
pub mod facts;
pub mod reduce;
pub mod reply;
pub mod request;
pub mod run;
pub mod session;
pub mod status;
pub mod store;
pub mod worker;

#[cfg(test)]
mod testing;

use gw_wire::reply::Answer;

use reply::ANSWER_PATIENCE;
use session::Session;
use worker::{Worker, WorkerError};

/// Which function of the module was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Apply, at most once.
    Run,
    /// What became of a job.
    Status,
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
        Function::Status => answer_status(session),
        Function::Capability => {
            let store = session.open_store();
            let answer = capability::capability(&session.facts, store.is_some());
            session.answer(store.as_ref(), Answer::Capability(answer), ANSWER_PATIENCE);
        }
    }
    Ok(())
}

fn answer_status(session: Session) {
    let asked = match request::parse_question(&session.facts) {
        Ok(asked) => asked,
        Err(error) => return session.fail("invalid", &error.to_string()),
    };
    let Some(store) = session.open_store() else {
        return session.fail_store();
    };
    let answer = match status::status(&store, &asked) {
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
