//! `gw-exec finish`: the receipt of a job whose executor died while its worker lived.
//!
//! The worker holds the locks and has the result. It starts this, passes the descriptors of both locks, and
//! names the claim; whoever holds the request's lock may write the receipt. (Nothing in Salt calls this: only
//! the module does, from inside a job.)

use gw_wire::id::Token;
use gw_wire::reply::Answer;

use crate::reduce::{Report, reduce};
use crate::reply::EVIDENCE_PATIENCE;
use crate::request::{RequestError, parse_job};
use crate::run::commit;
use crate::session::Session;

/// Serves the call.
pub fn finish(mut session: Session) {
    let parsed = parse_job(&session.facts)
        .and_then(|binding| Ok((binding, argument::<Token>(&session, "claim_id")?)))
        .and_then(|(binding, id)| Ok((binding, id, argument::<Report>(&session, "result")?)));
    let (binding, claim_id, report) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return session.fail("invalid", &error.to_string()),
    };
    let Some(locks) = session.worker.take_locks() else {
        return session.fail("locks", "the locks of the job did not arrive");
    };
    let Some(store) = session.open_store() else {
        return session.fail_store();
    };
    match store.adopt(&binding, claim_id, locks) {
        Ok(Some(claim)) => {
            let answer: Answer = commit(&store, &claim, &reduce(&report));
            drop(claim);
            session.answer(Some(&store), answer, EVIDENCE_PATIENCE);
        }
        Ok(None) => session.fail("not_claimed", "this worker does not hold the job's claim"),
        Err(error) => {
            Session::report(&error);
            session.fail_store();
        }
    }
}

fn argument<T: serde::de::DeserializeOwned>(
    session: &Session,
    name: &'static str,
) -> Result<T, RequestError> {
    let value = session.facts.args.get(name).cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|_| RequestError::Malformed(name))
}
