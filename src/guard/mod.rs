//! The guard: a store of inbound `Idempotency-Key`s inside the business transaction, and the consumers' inbox.
//!
//! A request that changes something carries a key. The first one runs, and its answer is stored by the transaction that holds its
//! business rows; a repeat gets the same answer, byte for byte. So there is no state between "not begun" and "answered": a
//! crash or a rollback frees the key, a commit keeps the answer.
//!
//! [`protocol`] is pure: keys, fingerprints, answers. [`Requests`] and [`Inbox`] are the statements, on the caller's
//! connection. The tower layer and the axum extractor, which call them, stand behind the feature `axum`.

#[cfg(feature = "axum")]
mod layer;
pub mod protocol;

use std::{future::Future, time::Duration};

#[cfg(feature = "axum")]
pub use layer::{
    Guard, GuardLayer, GuardService, Guardable, Guarded, IDEMPOTENCY_KEY, Remember, RequestCounts,
};
pub use protocol::{Answer, Fingerprint, RequestKey, Scope};

/// A request as it is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// In whose space the key is unique.
    pub scope: Scope,
    /// The key that the client chose.
    pub key: RequestKey,
    /// What makes two requests the same one.
    pub fingerprint: Fingerprint,
    /// How long its answer is kept, besides as long as its effects are unfinished; `None`: as long as the database was told (24
    /// hours, or `retention.requests`).
    pub ttl: Option<Duration>,
}

/// What the store knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: go on in this transaction, and end it with [`Requests::finish_request`].
    New,
    /// It was answered.
    Replay(Answer),
    /// Another transaction acts on it. Not on SQLite, where it was waited for.
    InProgress,
    /// The key is another request's.
    Mismatch,
}

/// The guard could not do what it was asked. On PostgreSQL the caller's transaction is aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// A request is begun first in its transaction, one in each, and outside of any savepoint: a rollback to it would give the
    /// key away and keep the transaction. What precedes it in the transaction is told on PostgreSQL only.
    #[error(
        "a request is begun before anything is written in its transaction, one in each, and outside of any savepoint"
    )]
    NotFirst,
    /// A request is finished in the transaction that began it, once.
    #[error("this transaction has not begun this request, or has finished it already")]
    NotBegun,
    /// A value that cannot be: nothing was asked of the database.
    #[error("{0}")]
    Invalid(&'static str),
    /// The database refused it, or did not answer.
    #[error("the record of requests could not be used")]
    Database(#[from] sqlx::Error),
}

/// Longest that an answer or a received message is kept, besides as long as a request's effects are unfinished.
pub const KEPT_MAX: Duration = Duration::from_secs(3600 * 86_400);

/// Zero is not "not given": an answer that is forgotten at once would guard nothing.
pub(crate) fn check_ttl(ttl: Option<Duration>) -> Result<(), GuardError> {
    match ttl {
        Some(ttl) if !can_be_kept(ttl) => {
            Err(GuardError::Invalid("ttl must be longer than 0 and at most 3600 days"))
        }
        _ => Ok(()),
    }
}

/// A database's clock counts microseconds.
fn can_be_kept(time: Duration) -> bool {
    (Duration::from_micros(1)..=KEPT_MAX).contains(&time)
}

pub(crate) fn check_message(consumer: &str, key: &str, keep: Duration) -> Result<(), GuardError> {
    let problem = if !(1..=255).contains(&consumer.chars().count()) || consumer.contains('\0') {
        "consumer must be 1 to 255 characters without U+0000: who receives"
    } else if !(1..=1024).contains(&key.len()) || key.contains('\0') {
        "key must be 1 to 1024 bytes without U+0000: what the sender calls the message"
    } else if !can_be_kept(keep) {
        "keep must be longer than 0 and at most 3600 days"
    } else {
        return Ok(());
    };
    Err(GuardError::Invalid(problem))
}

/// A connection that requests are guarded on. Implemented for `sqlx`'s PostgreSQL and SQLite connections; hand in
/// `&mut *transaction`.
pub trait Requests: Send {
    /// Asks for `request`, as the first statement of its transaction. On PostgreSQL it never waits for another request. On
    /// SQLite the transaction must be one of `BEGIN IMMEDIATE`, which has waited.
    fn begin_request(&mut self, request: &Request) -> impl Future<Output = Result<Begun, GuardError>> + Send;

    /// Stores the answer, in the transaction that was told [`Begun::New`]. Its COMMIT is refused without.
    fn finish_request(
        &mut self,
        request: &Request,
        answer: &Answer,
    ) -> impl Future<Output = Result<(), GuardError>> + Send;
}

/// A connection that messages are accepted on. Implemented for `sqlx`'s PostgreSQL and SQLite connections.
pub trait Inbox: Send {
    /// Whether this transaction is the one that acts on the message: true in at most one that commits. Acknowledge the message
    /// after the COMMIT, and also where the answer is false. Kept for `keep`, at least as long as the sender may send it again.
    ///
    /// On PostgreSQL another open transaction that accepted the message is waited for.
    fn accept(
        &mut self,
        consumer: &str,
        key: &str,
        keep: Duration,
    ) -> impl Future<Output = Result<bool, GuardError>> + Send;
}
