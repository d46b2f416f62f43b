//! Retention: what the store may forget. Off by default.
//!
//! Only a job whose end the gateway has in its journal, and said so in a publication, is ever forgotten: its
//! jid's record, its receipt and the reason beside it. A job that ended `unknown` is not, nor the newest
//! record, which the chain goes on from. The running records below `requests/` stay for ever, so that
//! **one-claim** holds for as long as the store does.

use gw_wire::id::Jid;
use gw_wire::receipt::Outcome;
use jiff::Timestamp;

use super::records::{Confirmed, Identity, JidRecord, MAX_RECORD_BYTES, encode};
use super::{IDENTITY, Store, StoreError, jid_of, json_name, read_record};

/// How much is kept: a job is forgotten once none of the limits that are set protects it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// Those claimed or refused in the last so many days.
    pub days: Option<u32>,
    /// The newest so many.
    pub count: Option<u32>,
}

impl Store {
    /// Notes which jobs' ends the gateway has. What is not known, or not ended, or ended `unknown`, is left out.
    pub fn confirm(&self, jids: &[Jid]) -> Result<(), StoreError> {
        for jid in jids {
            let name = json_name(jid.as_str());
            if self.confirmed.peek(&name, MAX_RECORD_BYTES)?.is_some() {
                continue;
            }
            let confirmed = match self.jid(*jid)? {
                Some(JidRecord::Tombstone(tombstone)) => Confirmed {
                    request_id: tombstone.binding.request_id,
                    since: tombstone.refused_at,
                },
                Some(JidRecord::Claim(claimed)) => {
                    let receipt = self.receipt(claimed.binding.request_id)?;
                    let ended = receipt.is_some_and(|receipt| {
                        *receipt.binding() == claimed.binding
                            && receipt.outcome() != Outcome::Unknown
                    });
                    if !ended {
                        continue;
                    }
                    Confirmed {
                        request_id: claimed.binding.request_id,
                        since: claimed.claimed_at,
                    }
                }
                None => continue,
            };
            // Of several executors any may be the first; all write the same.
            self.confirmed.create(&name, &encode(confirmed))?;
        }
        Ok(())
    }

    /// Forgets what need not be kept. Gives how many jobs were forgotten.
    ///
    /// Before anything is deleted the store durably says up to which jid it has forgotten some: from then on a
    /// jid up to there without a record answers `expired`, not `not_started`, and can be neither claimed nor
    /// refused. Then the jid's record goes, durably, before its receipt: no jid is ever seen claimed without
    /// the receipt that it has had. The confirmation goes last, and a crash in between leaves it for the
    /// next run to go on from.
    pub fn retain(&self, keep: Keep, now: Timestamp) -> Result<usize, StoreError> {
        if keep == Keep::default() {
            return Ok(0);
        }
        let _index = self.lock_index()?;
        let identity = self.identity()?;
        if self.distrust(&identity).is_some() {
            return Ok(0);
        }
        let (newest, _) = self.scan(&identity, None)?.newest;
        let mut chain_end = None;
        self.each_record(|linked, _| {
            if linked.sequence == newest {
                chain_end = Some(linked.jid_record.binding().jid);
            }
        })?;
        let mut confirmed = self.all_confirmed()?;
        confirmed.sort_by_key(|(jid, _)| std::cmp::Reverse(*jid));
        let forgotten: Vec<(Jid, Confirmed)> = confirmed
            .into_iter()
            .enumerate()
            .filter(|(rank, (_, confirmed))| !keep.protects(*rank, confirmed.since, now))
            .map(|(_, entry)| entry)
            .filter(|(jid, _)| chain_end != Some(*jid))
            .collect();
        let highest = forgotten.iter().map(|(jid, _)| *jid).max();
        if highest > identity.pruned_below {
            let raised = Identity {
                pruned_below: highest,
                ..identity
            };
            self.root.replace(IDENTITY, &encode(raised))?;
        }
        for (jid, confirmed) in &forgotten {
            let (jid, request) = (
                json_name(jid.as_str()),
                json_name(confirmed.request_id.as_str()),
            );
            // The receipt is the request's, and a tombstone's request may have been claimed under a later jid.
            let claimed = match self.request(confirmed.request_id)? {
                Some(claimed) => json_name(claimed.binding.jid.as_str()) == jid,
                None => false,
            };
            self.jids.remove(&jid)?;
            if claimed {
                self.reasons.remove(&request)?;
                self.receipts.remove(&request)?;
            }
            self.confirmed.remove(&jid)?;
        }
        Ok(forgotten.len())
    }

    fn all_confirmed(&self) -> Result<Vec<(Jid, Confirmed)>, StoreError> {
        let mut all = Vec::new();
        for name in self.confirmed.names()? {
            let Some(jid) = jid_of(&name) else {
                continue;
            };
            if let Some(json) = self.confirmed.read(&name, MAX_RECORD_BYTES)? {
                all.push((jid, read_record(&self.confirmed, &name, &json)?));
            }
        }
        Ok(all)
    }
}

impl Keep {
    fn protects(self, rank: usize, since: Timestamp, now: Timestamp) -> bool {
        let counted = self.count.is_some_and(|count| rank < count as usize);
        let young = self.days.is_some_and(|days| {
            now.duration_since(since) < jiff::SignedDuration::from_hours(24 * i64::from(days))
        });
        counted || young
    }
}
