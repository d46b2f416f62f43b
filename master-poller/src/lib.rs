//! Questions to minions: whom to ask, when, and what counts as an answer.
//!
//! A question is a publication of `oduflow_job.status` or `oduflow_job.capability` to one minion, with a
//! fresh nonce. Questions may be repeated without harm; publications of jobs never are, and this crate
//! cannot make one. An answer counts if it is signed (the gateway has verified that before it comes here),
//! names an open question's nonce, and is about what that question asked.
//!
//! **Invariant:** nothing here changes a record. Silence is reported as silence.
//!
//! | module | what it holds |
//! |---|---|
//! | [`questions`] | open questions and the answers that fit them |
//! | [`schedule`] | when a job's status is asked for |

pub mod questions;
pub mod schedule;
