//! Open questions: each has a nonce, one minion, and one thing that it asks.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use gw_wire::id::{Jid, MinionId, Token};
use gw_wire::publication::{Call, Metadata, Publication};
use gw_wire::receipt::Binding;
use gw_wire::reply::{Answer, Capability, Reply};
use tokio::sync::oneshot;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Can this minion run a job?
    Capability(MinionId),
    /// What became of this job? With its not-after time in seconds since the epoch: once that has passed, a
    /// job without a record on the minion is refused for ever.
    Status(Binding, Option<i64>),
}

impl Question {
    /// Who is asked.
    pub fn minion_id(&self) -> &MinionId {
        match self {
            Question::Capability(minion_id) => minion_id,
            Question::Status(binding, _) => &binding.minion_id,
        }
    }

    fn call(&self) -> Call {
        match self {
            Question::Capability(_) => Call::Capability,
            Question::Status(binding, _) => Call::Status(binding.clone()),
        }
    }

    fn metadata(&self, reply_port: u16, nonce: Token) -> Metadata {
        let not_after = match self {
            Question::Capability(_) => None,
            Question::Status(_, not_after) => *not_after,
        };
        Metadata {
            not_after,
            ..Metadata::question(reply_port, nonce)
        }
    }

    fn fits(&self, reply: &Reply) -> bool {
        match (self, &reply.answer) {
            (Question::Capability(minion_id), Answer::Capability(_)) => {
                *minion_id == reply.minion_id
            }
            (Question::Status(..), Answer::Capability(_)) => false,
            (Question::Status(binding, _), answer) => answer.binding() == Some(binding),
            (Question::Capability(_), _) => false,
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The question could not be published.
    #[error("cannot publish the call: {0}")]
    NotPublished(String),
    /// Nobody answered. This says nothing about the minion or the job.
    #[error("no signed answer within {} s", .0.as_secs())]
    Silence(Duration),
}

struct Open {
    question: Question,
    answer: oneshot::Sender<Reply>,
}

/// The open questions of one gateway.
#[derive(Default)]
pub struct Questions {
    open: Mutex<HashMap<Token, Open>>,
}

impl Questions {
    /// Asks once and waits for the answer that fits, at most `patience`.
    ///
    /// `publish` hands the publication to a transport; a call that *may* have left counts as asked.
    pub async fn ask<F, P>(
        &self,
        question: Question,
        jid: Jid,
        reply_port: u16,
        patience: Duration,
        publish: P,
    ) -> Result<Reply, NoAnswer>
    where
        P: FnOnce(Publication) -> F,
        F: Future<Output = Result<(), String>>,
    {
        let nonce = Token::random();
        let publication = Publication {
            jid,
            minion_id: question.minion_id().clone(),
            call: question.call(),
            metadata: question.metadata(reply_port, nonce),
        };
        let (answer, waiting) = oneshot::channel();
        self.table().insert(nonce, Open { question, answer });
        // Whatever ends this future, also its caller's going away, closes the question.
        let _close = Close {
            questions: self,
            nonce,
        };
        publish(publication).await.map_err(NoAnswer::NotPublished)?;
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(_) => Err(NoAnswer::Silence(patience)),
        }
    }

    /// Whether a verified reply fits an open question. It stays open until [`Questions::deliver`].
    pub fn expects(&self, reply: &Reply) -> bool {
        let table = self.table();
        reply
            .nonce
            .and_then(|nonce| table.get(&nonce))
            .is_some_and(|open| open.question.fits(reply))
    }

    /// Gives a verified reply to the question that it fits and closes that question.
    pub fn deliver(&self, reply: &Reply) {
        if !self.expects(reply) {
            return;
        }
        let open = reply.nonce.and_then(|nonce| self.table().remove(&nonce));
        // The asker may have given up in this very moment; then nobody misses the answer.
        if let Some(open) = open {
            drop(open.answer.send(reply.clone()));
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<Token, Open>> {
        self.open
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

struct Close<'a> {
    questions: &'a Questions,
    nonce: Token,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.questions.table().remove(&self.nonce);
    }
}

/// The capability in a reply, if it is one.
pub fn capability(reply: &Reply) -> Option<&Capability> {
    match &reply.answer {
        Answer::Capability(capability) => Some(capability),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gw_wire::id::{Profile, RequestId, StateDigest, now};
    use gw_wire::receipt::PROTOCOL;
    use std::sync::Arc;

    fn binding(minion: &str) -> Binding {
        Binding {
            minion_id: MinionId::parse(minion).expect("an id"),
            request_id: RequestId::parse("0b0e4567-e89b-42d3-a456-426614174000").expect("an id"),
            jid: Jid::parse("20261130220939633426").expect("a jid"),
            profile: Profile::Configure,
            state_digest: StateDigest::default(),
        }
    }

    fn not_started(nonce: Option<Token>, binding: Binding) -> Reply {
        Reply {
            protocol: PROTOCOL,
            minion_id: binding.minion_id.clone(),
            signed_at: now(),
            nonce,
            store: None,
            answer: Answer::NotStarted { binding },
        }
    }

    /// Asks about client-1's job and answers with what `answer` makes of the nonce.
    async fn ask(
        patience_ms: u64,
        answer: impl Fn(Token) -> Reply + Send + 'static,
    ) -> Result<Reply, NoAnswer> {
        let questions = Arc::new(Questions::default());
        let jid = Jid::parse("20261130220939633427").expect("a jid");
        let result = questions
            .ask(
                Question::Status(binding("client-1"), None),
                jid,
                4510,
                Duration::from_millis(patience_ms),
                |publication| {
                    let reply = answer(publication.metadata.nonce.expect("a question has a nonce"));
                    questions.deliver(&reply);
                    async { Ok(()) }
                },
            )
            .await;
        assert!(questions.table().is_empty(), "the question is closed");
        result
    }

    #[tokio::test]
    async fn the_answer_that_names_the_nonce_and_the_job_counts() {
        assert!(
            ask(1000, |nonce| not_started(Some(nonce), binding("client-1")))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_stale_nonce_another_job_or_another_minion_is_silence() {
        let other_job = || Binding {
            profile: Profile::Production,
            ..binding("client-1")
        };
        for answer in [
            Box::new(|_| not_started(Some(Token::random()), binding("client-1")))
                as Box<dyn Fn(Token) -> Reply + Send>,
            Box::new(|_| not_started(None, binding("client-1"))),
            Box::new(move |nonce| not_started(Some(nonce), other_job())),
            Box::new(|nonce| not_started(Some(nonce), binding("client-2"))),
        ] {
            assert!(matches!(ask(20, answer).await, Err(NoAnswer::Silence(_))));
        }
    }
}
