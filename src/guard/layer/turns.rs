//! Where a database has one writer, whose turn it is: in the order of asking, and without a connection. A connection that waits in
//! `BEGIN IMMEDIATE` is one that no repeat can be answered on.

use std::{sync::Arc, time::Duration};

use sqlx::Pool;
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    database::{Guardable, out_of_patience},
    transaction::acquire,
};
use crate::guard::GuardError;

/// The turns of a guard's writers.
pub(super) struct Turns {
    writer: Arc<Semaphore>,
    /// How long a connection waits for a writer of another process; so long is waited here, too.
    patience: OnceCell<Duration>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { writer: Arc::new(Semaphore::new(1)), patience: OnceCell::new() }
    }
}

/// A writer's turn; `None` where writers do not wait for each other.
pub(super) type Turn = Option<OwnedSemaphorePermit>;

impl Turns {
    /// The turn, where nobody has it or waits for it.
    pub(super) fn now<DB: Guardable>(&self) -> Option<Turn> {
        if !DB::ONE_WRITER {
            return Some(None);
        }
        Arc::clone(&self.writer).try_acquire_owned().ok().map(Some)
    }

    /// Waits for a turn to write.
    pub(super) async fn wait<DB: Guardable>(&self, pool: &Pool<DB>) -> Result<Turn, GuardError> {
        if !DB::ONE_WRITER {
            return Ok(None);
        }
        let patience = self.patience.get_or_try_init(async || {
            let mut connection = acquire(pool).await?;
            DB::patience(&mut connection).await
        });
        let patience = *patience.await?;
        match timeout(patience, Arc::clone(&self.writer).acquire_owned()).await {
            Ok(turn) => Ok(turn.ok()),
            Err(_elapsed) => Err(out_of_patience("another request writes for longer than busy_timeout")),
        }
    }
}
