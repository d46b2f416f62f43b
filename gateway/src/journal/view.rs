//! Reading the journal: rows into types, with the same checks as input from anywhere else.

use gw_wire::id::{Jid, MinionId, Profile, RequestId};
use gw_wire::state_data::StateData;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::{Journal, JournalError, Record, Request, damaged};
use crate::record::{Claim, Event, State};

/// One row of a request's history.
#[derive(Debug, Clone)]
pub struct HistoryRow {
    /// Its place in the whole journal.
    pub seq: i64,
    /// When it was written.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
    /// The state's name after it.
    pub state: String,
    /// What it raised, if it raised anything.
    pub alarm: Option<String>,
    /// SHA-256 of the signed bytes, if there are any.
    pub evidence_sha256: Option<String>,
}

/// Which records [`Journal::list`] gives.
#[derive(Debug, Default, Clone)]
pub struct Filter {
    /// Of this minion only.
    pub minion_id: Option<MinionId>,
    /// In this state only.
    pub state: Option<String>,
    /// At most so many, the newest first.
    pub limit: u32,
}

impl Journal {
    /// Requests with their newest dispatch, the newest first.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Record>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&format!(
            "{SELECT} WHERE (?1 IS NULL OR r.minion_id = ?1) AND (?2 IS NULL OR d.state = ?2)
               AND d.generation = (SELECT max(generation) FROM dispatch x WHERE x.request_id = r.request_id)
             ORDER BY r.rowid DESC LIMIT ?3"
        ))?;
        let minion = filter.minion_id.as_ref().map(MinionId::as_str);
        let mut rows = statement.query(params![minion, filter.state, filter.limit])?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            records.push(record(row)?);
        }
        Ok(records)
    }

    /// Every dispatch that is not ended: `accepted` ones to go on with, the others to ask about.
    pub fn unfinished(&self) -> Result<Vec<Record>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&format!(
            "{SELECT} WHERE d.state IN ('accepted', 'claimed', 'sent', 'send_uncertain') ORDER BY r.rowid"
        ))?;
        let mut rows = statement.query([])?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            records.push(record(row)?);
        }
        Ok(records)
    }

    /// What the poller needs of every dispatch that awaits evidence: no more, since it looks often.
    pub fn awaiting(&self) -> Result<Vec<(RequestId, Jid)>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT request_id, jid FROM dispatch WHERE state IN ('claimed', 'sent', 'send_uncertain')",
        )?;
        let mut rows = statement.query([])?;
        let mut awaiting = Vec::new();
        while let Some(row) = rows.next()? {
            let (request_id, jid): (String, String) = (row.get(0)?, row.get(1)?);
            awaiting.push((RequestId::parse(&request_id)?, Jid::parse(&jid)?));
        }
        Ok(awaiting)
    }

    /// The newest jids of a minion whose end is known and settled, at most `limit`: its executor need keep
    /// their receipts no longer. One that ended `unknown`, or was contradicted, still needs a person.
    pub fn settled(&self, minion: &MinionId, limit: usize) -> Result<Vec<Jid>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT jid FROM dispatch WHERE minion_id = ?1 AND state IN ('succeeded', 'failed', 'refused')
             AND contradicted = 0 ORDER BY jid DESC LIMIT ?2",
        )?;
        let mut rows = statement.query((minion.as_str(), limit as i64))?;
        let mut jids = Vec::new();
        while let Some(row) = rows.next()? {
            jids.push(Jid::parse(&row.get::<_, String>(0)?)?);
        }
        Ok(jids)
    }

    /// The dispatch that was claimed under a jid, whatever its request is.
    pub fn find_jid(&self, jid: Jid) -> Result<Option<Record>, JournalError> {
        one(&self.lock(), "d.jid = ?1", [jid.as_str()])
    }

    /// What happened to a request, from the beginning.
    pub fn history(&self, request_id: RequestId) -> Result<Vec<HistoryRow>, JournalError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT seq, at, event, state, alarm, evidence FROM history WHERE request_id = ?1 ORDER BY seq",
        )?;
        let mut rows = statement.query([request_id.as_str()])?;
        let mut history = Vec::new();
        while let Some(row) = rows.next()? {
            let evidence: Option<Vec<u8>> = row.get("evidence")?;
            history.push(HistoryRow {
                seq: row.get("seq")?,
                at: time(row, "at")?,
                event: from_json(row, "event")?,
                state: row.get("state")?,
                alarm: row.get("alarm")?,
                evidence_sha256: evidence
                    .map(|bytes| gw_wire::id::Sha256Hex::of(&bytes).to_string()),
            });
        }
        Ok(history)
    }
}

const SELECT: &str = "SELECT r.request_id, r.minion_id, r.profile, r.state_digest, r.state_data,
    r.accepted_at, d.generation, d.claim, d.detail, d.contradicted, d.revision
    FROM dispatch d JOIN request r ON r.request_id = d.request_id";

pub(super) fn one(
    connection: &Connection,
    condition: &str,
    values: impl Params,
) -> Result<Option<Record>, JournalError> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE {condition}"))?;
    statement
        .query_row(values, |row| Ok(record(row)))
        .optional()?
        .transpose()
}

fn record(row: &Row<'_>) -> Result<Record, JournalError> {
    let text = |name: &str| row.get::<_, String>(name);
    let state_data: Option<String> = row.get("state_data")?;
    let request = Request {
        request_id: RequestId::parse(&text("request_id")?)?,
        minion_id: MinionId::parse(&text("minion_id")?)?,
        profile: Profile::parse(&text("profile")?)?,
        state_data: state_data
            .map(|data| StateData::parse_canonical(&data))
            .transpose()?,
    };
    if request.state_digest().as_str() != text("state_digest")? {
        return Err(damaged(
            request.request_id.as_str(),
            "state data and digest do not fit",
        ));
    }
    let claim: Option<String> = row.get("claim")?;
    Ok(Record {
        accepted_at: time(row, "accepted_at")?,
        generation: row.get("generation")?,
        claim: claim
            .map(|json| {
                serde_json::from_str::<Claim>(&json).map_err(|error| damaged("claim", error))
            })
            .transpose()?,
        state: from_json::<State>(row, "detail")?,
        contradicted: row.get("contradicted")?,
        revision: row.get("revision")?,
        request,
    })
}

fn from_json<T: serde::de::DeserializeOwned>(row: &Row<'_>, name: &str) -> Result<T, JournalError> {
    serde_json::from_str(&row.get::<_, String>(name)?).map_err(|error| damaged(name, error))
}

fn time(row: &Row<'_>, name: &str) -> Result<Timestamp, JournalError> {
    row.get::<_, String>(name)?
        .parse()
        .map_err(|error| damaged(name, error))
}
