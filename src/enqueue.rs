//! Writing effects into the caller's transaction.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
};

use crate::{
    effect::{EffectId, IdempotencyKey, InvalidEffect, NewEffect},
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

    /// Writes many effects into the caller's transaction; a result per effect, in the order given. Of several targets' effects
    /// ([`NewEffect::for_each_target`]) the first is written first, since it has the key: where it is refused, so are the others.
    ///
    /// # Errors
    ///
    /// The outer error means that the transaction is lost; an inner one concerns one effect only.
    pub async fn enqueue_many<C: Enqueue>(
        &self,
        connection: &mut C,
        effects: Vec<NewEffect>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        let follows = |effect: &NewEffect| effect.split.as_ref().is_some_and(|split| !split.is_first);
        if !effects.iter().any(follows) {
            return connection.enqueue_all(effects).await;
        }
        let (mut places, mut leads, mut followers) = (Vec::new(), Vec::new(), Vec::new());
        for (place, effect) in effects.into_iter().enumerate() {
            if follows(&effect) {
                followers.push((place, effect));
            } else {
                places.push(place);
                leads.push(effect);
            }
        }
        let splits: Vec<_> = leads.iter().map(|lead| lead.split.clone()).collect();
        let mut results: BTreeMap<usize, Result<Enqueued, EnqueueError>> = BTreeMap::new();
        let mut refused: HashMap<IdempotencyKey, usize> = HashMap::new();
        for ((place, split), result) in
            places.into_iter().zip(splits).zip(connection.enqueue_all(leads).await?)
        {
            if let Some(split) = split.filter(|_split| result.is_err()) {
                refused.insert(split.of, place);
            }
            results.insert(place, result);
        }
        let (mut places, mut rest) = (Vec::new(), Vec::new());
        for (place, effect) in followers {
            let lead = effect.split.as_ref().and_then(|split| refused.get(&split.of));
            match lead.and_then(|lead| results.get(lead)) {
                Some(Err(error)) => {
                    let error = of_the_first(error);
                    results.insert(place, Err(error));
                }
                Some(Ok(_)) | None => {
                    places.push(place);
                    rest.push(effect);
                }
            }
        }
        if !rest.is_empty() {
            results.extend(places.into_iter().zip(connection.enqueue_all(rest).await?));
        }
        Ok(results.into_values().collect())
    }
}

/// Why an effect is not written whose first was refused with `error`.
fn of_the_first(error: &EnqueueError) -> EnqueueError {
    match error {
        EnqueueError::Invalid(invalid) => EnqueueError::Invalid(invalid.clone()),
        EnqueueError::OtherRequest { downstream, key, id } => {
            EnqueueError::OtherRequest { downstream: downstream.clone(), key: key.clone(), id: *id }
        }
        EnqueueError::NeedsName { downstream, key, id } => {
            EnqueueError::NeedsName { downstream: downstream.clone(), key: key.clone(), id: *id }
        }
        EnqueueError::Database(_) => InvalidEffect::column(
            "target",
            "is one of several, and the effect of the first could not be written",
        )
        .into(),
    }
}
