//! Enqueueing through the library on either database.

use aftercommit::{Enqueued, NewEffect, Outbox, error::EnqueueError};

use super::{Sql, Tx};

impl Sql {
    /// Writes an effect through the library, in a transaction of its own.
    pub(crate) async fn enqueue(&self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        let mut tx = self.begin().await;
        let enqueued = tx.enqueue(effect).await;
        if enqueued.is_ok() {
            tx.commit().await;
        }
        enqueued
    }
}

impl Tx {
    /// Writes an effect through the library.
    pub(crate) async fn enqueue(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        match self {
            Self::Postgres(tx) => Outbox.enqueue(&mut **tx, effect).await,
            Self::Sqlite(tx) => Outbox.enqueue(&mut **tx, effect).await,
        }
    }

    /// Writes many effects through the library.
    pub(crate) async fn enqueue_many(
        &mut self,
        effects: Vec<NewEffect>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        match self {
            Self::Postgres(tx) => Outbox.enqueue_many(&mut **tx, effects).await,
            Self::Sqlite(tx) => Outbox.enqueue_many(&mut **tx, effects).await,
        }
    }
}
