//! Writing effects into the caller's transaction.

use std::future::Future;

use crate::{
    effect::{EffectId, NewEffect},
    error::EnqueueError,
    state::State,
};

#[cfg(feature = "postgres")]
pub use crate::store::postgres::Pooled;

/// Writes effects. It holds nothing: the caller's transaction is the only thing that is written to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outbox;

/// The effect that a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its number.
    pub id: EffectId,
    /// Its key: the given one, or the random one it got.
    pub key: String,
    /// Its state.
    pub state: State,
}

/// What enqueueing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Written: it exists if and only if the caller's transaction commits.
    Inserted(Receipt),
    /// The same effect exists already and has not ended.
    Pending(Receipt),
    /// The same effect exists already and has ended: see its state.
    Ended(Receipt),
}

impl Enqueued {
    /// The effect, whichever way it came to be.
    pub fn receipt(&self) -> &Receipt {
        match self {
            Self::Inserted(receipt) | Self::Pending(receipt) | Self::Ended(receipt) => receipt,
        }
    }
}

/// A connection that effects can be written through. Implemented for `sqlx`'s PostgreSQL and SQLite connections; hand in
/// `&mut *transaction`.
pub trait Enqueue: Send {
    /// Writes one effect.
    fn enqueue_one(
        &mut self,
        effect: NewEffect,
    ) -> impl Future<Output = Result<Enqueued, EnqueueError>> + Send;

    /// Writes many in one statement, sorted by (downstream, key) so that two batches cannot deadlock; a result per effect, in
    /// the order given. The outer error means that the transaction is lost; an inner one concerns one effect only.
    fn enqueue_all(
        &mut self,
        effects: Vec<NewEffect>,
    ) -> impl Future<Output = Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError>> + Send;
}

impl Outbox {
    /// Writes `effect` into the caller's transaction: `outbox.enqueue(&mut *tx, effect)`.
    ///
    /// # Errors
    ///
    /// [`EnqueueError`]. A key that another, uncommitted transaction holds is waited for.
    pub async fn enqueue<C: Enqueue>(
        &self,
        connection: &mut C,
        effect: NewEffect,
    ) -> Result<Enqueued, EnqueueError> {
        connection.enqueue_one(effect).await
    }

    /// Writes many effects into the caller's transaction; a result per effect, in the order given.
    ///
    /// # Errors
    ///
    /// The outer error means that the transaction is lost; an inner one concerns one effect only.
    pub async fn enqueue_many<C: Enqueue>(
        &self,
        connection: &mut C,
        effects: Vec<NewEffect>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        connection.enqueue_all(effects).await
    }
}
