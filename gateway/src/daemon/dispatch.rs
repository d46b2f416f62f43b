//! Steps 1 to 4 of a job: request, capability, claim, send.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use gw_poller::questions::{NoAnswer, Question, capability};
use gw_wire::id::{Profile, Sha256Hex, now};
use gw_wire::publication::{Call, MAX_CONFIRMED, Metadata, Publication};
use gw_wire::reply::{Capability, Problem};

use super::{ApiError, Gateway, Known, blocking, journal_failed, lock, log};
use crate::journal::{Acceptance, Claimed, JournalError, Record, Request};
use crate::master::{KeyFileError, Sending};
use crate::record::{Claim, Event};
use crate::words;

/// How far the newest jid may be ahead of the clock. Executors refuse at 5 minutes.
const CLOCK_SLACK: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

impl Gateway {
    /// Takes a request: the record that was there, or a new one that has been dispatched when this returns.
    ///
    /// What can be refused without a record is refused before one is made, so that the caller may come
    /// back with the same request id: a blocked target, a key that is not accepted, no capability.
    pub(super) async fn publish(self: &Arc<Self>, request: Request) -> Result<Record, ApiError> {
        let id = request.request_id;
        let found = blocking(self, move |gateway| gateway.journal.find(id))
            .await
            .map_err(journal_failed)?;
        if let Some(record) = found {
            return same(record, &request);
        }
        self.preconditions(&request).await?;
        // Accepting and dispatching are one task: a caller that goes away in between must not leave an
        // accepted record for a later restart to find and send.
        let gateway = self.clone();
        self.tasks
            .spawn(async move { gateway.accept_and_dispatch(request).await })
            .await
            .map_err(|failed| ApiError::internal(words(&failed)))?
    }

    async fn accept_and_dispatch(self: &Arc<Self>, request: Request) -> Result<Record, ApiError> {
        let acceptance = blocking(self, move |gateway| gateway.journal.accept(&request))
            .await
            .map_err(journal_failed)?;
        match acceptance {
            Acceptance::Created(record) => {
                tracing::info!(
                    event = "accepted",
                    request_id = record.request.request_id.as_str(),
                    minion_id = record.request.minion_id.as_str(),
                    profile = record.request.profile.as_str(),
                );
                self.dispatch(record).await.map_err(journal_failed)
            }
            Acceptance::Existing(record) => Ok(record),
            Acceptance::Conflict(record) => Err(conflict(&record)),
        }
    }

    /// Goes on with a record that an earlier run of the daemon accepted.
    pub(super) async fn dispatch_and_log(self: Arc<Self>, record: Record) {
        if let Err(error) = self.dispatch(record).await {
            journal_failed(error);
        }
    }

    /// **intent-before-send**, **one-send**: claims an accepted record and hands it to the transport, once.
    ///
    /// A crash before the claim leaves `accepted`, which a restart goes on with; one after it leaves
    /// `claimed`, which a restart makes `send_uncertain`; neither ever sends a claim that it did not make.
    async fn dispatch(self: &Arc<Self>, record: Record) -> Result<Record, JournalError> {
        let request = record.request.clone();
        // Left behind by a crash long ago: nobody expects it to run now.
        if age(record.accepted_at) > self.config.not_after {
            let why =
                "the daemon stopped before the claim, and the request is older than not_after_s";
            return self.cancel(record, why.to_owned()).await;
        }
        let minion_key = match self.preconditions(&request).await {
            Ok(key) => key,
            Err(refused) => return self.cancel(record, refused.message).await,
        };
        let master_key = match self.master.fingerprint() {
            Ok(key) => key,
            Err(error) => return self.cancel(record, words(&error)).await,
        };
        let (seconds, claimed_at) = (self.config.not_after.as_secs() as i64, now());
        let claim = Claim {
            jid: self.mint_jid(),
            transport: self.master.transport(),
            not_after: claimed_at + jiff::Span::new().seconds(seconds),
            master_key,
            minion_key,
        };
        let minion_id = request.minion_id.clone();
        let confirmed = blocking(self, move |gateway| {
            gateway.journal.settled(&minion_id, MAX_CONFIRMED)
        })
        .await?;
        let claimed = {
            let (id, claim) = (request.request_id, claim.clone());
            blocking(self, move |gateway| gateway.journal.claim(id, &claim)).await?
        };
        let applied = match claimed {
            Claimed::Now(applied) => *applied,
            Claimed::Blocked(open) => {
                return self.cancel(record, blocked(&open).message).await;
            }
        };
        log(&Event::Claim(claim.clone()), &applied);

        let metadata = Metadata {
            confirmed,
            ..Metadata::run(
                self.reply_port,
                applied.record.generation,
                claim.not_after.as_second(),
            )
        };
        let publication = Publication {
            jid: claim.jid,
            minion_id: request.minion_id.clone(),
            metadata,
            call: Call::Run {
                request_id: request.request_id,
                profile: request.profile,
                state_data: request.state_data,
            },
        };
        let event = match self.master.publish(&publication).await {
            Sending::Done { read_by_publisher } => Event::SendDone { read_by_publisher },
            Sending::NotSent(why) => Event::SendFailed { why },
            Sending::Unclear(why) => Event::SendUnclear { why },
        };
        // If this cannot be written the record stays `claimed`: it may have been sent, which is true.
        let dispatch = applied.record.dispatch();
        blocking(self, move |gateway| gateway.apply(dispatch, &event, None))
            .await
            .map(|applied| applied.record)
    }

    async fn cancel(self: &Arc<Self>, record: Record, why: String) -> Result<Record, JournalError> {
        let dispatch = record.dispatch();
        let event = Event::Cancel { why };
        blocking(self, move |gateway| gateway.apply(dispatch, &event, None))
            .await
            .map(|applied| applied.record)
    }

    /// Whether a request could be claimed now. Gives the fingerprint of the minion's accepted key.
    async fn preconditions(self: &Arc<Self>, request: &Request) -> Result<Sha256Hex, ApiError> {
        let minion_id = request.minion_id.clone();
        let open = blocking(self, move |gateway| gateway.journal.blocking(&minion_id))
            .await
            .map_err(journal_failed)?;
        if let Some(open) = open {
            return Err(blocked(&open));
        }
        let key = self
            .master
            .accepted_key(&request.minion_id)
            .map_err(|error| match error {
                KeyFileError::Missing(_) => ApiError::new(
                    StatusCode::PRECONDITION_FAILED,
                    "minion_not_accepted",
                    format!(
                        "the master has no accepted key for minion {}",
                        request.minion_id
                    ),
                )
                .hint(format!(
                    "see salt-key -L; salt-key -a {} accepts a key",
                    request.minion_id
                )),
                other => ApiError::new(
                    StatusCode::PRECONDITION_FAILED,
                    "minion_key_unusable",
                    words(&other),
                ),
            })?;
        self.check_clock()?;
        let fingerprint = key.fingerprint();
        let known = lock(&self.capabilities)
            .get(&request.minion_id)
            .filter(|known| known.at.elapsed() < self.config.capability_max_age)
            .filter(|known| known.key == fingerprint)
            .map(|known| known.capability.clone());
        // Only a good one counts as fresh: what was mended since must not wait.
        if let Some(capability) = known
            && self.judge(request, &capability).is_ok()
        {
            return Ok(fingerprint);
        }
        let capability = self.ask_capability(request).await?;
        self.judge(request, &capability)?;
        // The key may have been replaced while the minion answered; the claim binds what verified.
        let verified = lock(&self.capabilities)
            .get(&request.minion_id)
            .is_some_and(|known| known.key == fingerprint);
        if !verified {
            return Err(ApiError::new(
                StatusCode::PRECONDITION_FAILED,
                "minion_key_changed",
                format!("the accepted key of {} changed just now", request.minion_id),
            )
            .hint("try again"));
        }
        Ok(fingerprint)
    }

    /// A jid ahead of the clock by more than minions allow would be refused by each of them, and the record
    /// would be spent for nothing.
    fn check_clock(&self) -> Result<(), ApiError> {
        let last = *lock(&self.last_jid);
        let Some(ahead) = last.map(|last| last.time().duration_since(now())) else {
            return Ok(());
        };
        if ahead < CLOCK_SLACK {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "clock_behind",
            format!(
                "this machine's clock is {} s behind the newest jid of the journal",
                ahead.as_secs()
            ),
        )
        .hint("set the clock; jids only rise, and minions refuse those of the future"))
    }

    /// Asks the minion for its capability.
    async fn ask_capability(self: &Arc<Self>, request: &Request) -> Result<Capability, ApiError> {
        let question = Question::Capability(request.minion_id.clone());
        let reply = self.ask(question).await.map_err(|error| match error {
            NoAnswer::NotPublished(why) => ApiError::new(
                StatusCode::BAD_GATEWAY,
                "master_unreachable",
                format!("cannot publish the capability call to {}: {why}", request.minion_id),
            )
            .hint("is salt-master running, and may gw use its socket and keys?"),
            NoAnswer::Silence(patience) => ApiError::new(
                StatusCode::PRECONDITION_FAILED,
                "capability_unanswered",
                format!(
                    "no signed capability from {} within {} s; nothing was claimed and nothing was sent",
                    request.minion_id,
                    patience.as_secs()
                ),
            )
            .hint(format!(
                "the minion is down, or the module oduflow_job is absent on it, or it cannot reach reply port {} \
                 of its master; on the minion try: salt-call --local sys.list_functions oduflow_job",
                self.reply_port
            )),
        })?;
        match capability(&reply) {
            Some(capability) => Ok(capability.clone()),
            None => Err(ApiError::internal(
                "a capability question was answered by something else",
            )),
        }
    }

    /// Publishes a question, once, and waits for its answer.
    pub(super) async fn ask(
        self: &Arc<Self>,
        question: Question,
    ) -> Result<gw_wire::reply::Reply, NoAnswer> {
        let (jid, patience) = (self.mint_jid(), self.config.capability_timeout);
        self.questions
            .ask(
                question,
                jid,
                self.reply_port,
                patience,
                |publication| async move {
                    match self.master.publish(&publication).await {
                        Sending::NotSent(why) => Err(why),
                        // A question that may have left is worth waiting for.
                        Sending::Done { .. } | Sending::Unclear(_) => Ok(()),
                    }
                },
            )
            .await
    }

    /// Whether a capability is enough for a request; every problem is named.
    fn judge(&self, request: &Request, capability: &Capability) -> Result<(), ApiError> {
        let mut problems: Vec<String> = capability
            .problems
            .iter()
            .map(|problem| match problem {
                Problem::SaltVersion => {
                    format!(
                        "{} (it is {})",
                        problem.explain(),
                        capability.salt_version.as_str()
                    )
                }
                other => other.explain().to_owned(),
            })
            .collect();
        if capability.euid != self.config.executor_euid {
            problems.push(format!(
                "the executor runs as euid {}, and executor_euid is {}",
                capability.euid, self.config.executor_euid
            ));
        }
        if problems.is_empty() {
            return self.judge_profile(request, capability);
        }
        Err(ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "minion_incapable",
            format!(
                "minion {} cannot run jobs: {}; nothing was claimed and nothing was sent",
                request.minion_id,
                problems.join("; ")
            ),
        ))
    }

    /// Whether the minion knows the profile; only it knows the role of a site's own.
    fn judge_profile(&self, request: &Request, capability: &Capability) -> Result<(), ApiError> {
        if capability.profiles.contains(&request.profile) {
            return Ok(());
        }
        let names: Vec<&str> = capability.profiles.iter().map(Profile::as_str).collect();
        Err(ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "profile_absent",
            format!(
                "minion {} has no profile {} (it has {}); nothing was claimed and nothing was sent",
                request.minion_id,
                request.profile,
                names.join(", ")
            ),
        )
        .hint(
            "a site's own profiles are in a file on the minion: /etc/oduflow/job-profiles.json, or what \
             oduflow_job: profiles names in the minion's configuration",
        ))
    }

    /// Remembers a verified capability.
    pub(super) fn learn(&self, reply: &gw_wire::reply::Reply, key: Sha256Hex) {
        let Some(capability) = capability(reply) else {
            return;
        };
        let words: Vec<&str> = capability
            .problems
            .iter()
            .map(|problem| problem.as_str())
            .collect();
        tracing::info!(
            event = "capability",
            minion_id = reply.minion_id.as_str(),
            salt_version = capability.salt_version.as_str(),
            problems = words.join(","),
        );
        let known = Known {
            at: Instant::now(),
            key,
            capability: capability.clone(),
        };
        lock(&self.capabilities).insert(reply.minion_id.clone(), known);
    }
}

/// How long ago a moment was; nothing for one in the future.
fn age(moment: jiff::Timestamp) -> std::time::Duration {
    std::time::Duration::try_from(now().duration_since(moment)).unwrap_or_default()
}

fn same(record: Record, request: &Request) -> Result<Record, ApiError> {
    if record.request == *request {
        Ok(record)
    } else {
        Err(conflict(&record))
    }
}

fn conflict(record: &Record) -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        "request_conflict",
        format!(
            "request {} is recorded for minion {} and profile {} with other values",
            record.request.request_id, record.request.minion_id, record.request.profile
        ),
    )
    .hint("a request id is bound for ever; use a new one for a new request")
}

fn blocked(open: &Record) -> ApiError {
    let id = open.request.request_id;
    ApiError::new(
        StatusCode::LOCKED,
        "target_blocked",
        format!(
            "minion {} is blocked by request {id}, which is {}; nothing was claimed and nothing was sent",
            open.request.minion_id,
            open.state.name()
        ),
    )
    .hint(format!("gw show {id}"))
}

/// The profiles of requests that carry state data.
pub(super) fn takes_state_data(profile: Profile) -> bool {
    profile == Profile::Custom
}
