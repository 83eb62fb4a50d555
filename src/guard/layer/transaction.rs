//! The transaction of a request, and the place from which its handler takes it.
//!
//! A connection goes back to its pool only after its COMMIT or ROLLBACK was answered. Whatever else happens to it (a future
//! dropped half-way, a panic, a runtime that ends) closes it: the next borrower is never inside a stray transaction.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::{Pool, SqlSafeStr, pool::PoolConnection};
// Not `sqlx::Transaction`: it cannot close its connection, and gives it back to the pool whatever happened to it.
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use super::database::Guardable;

/// Where a refusal that is remembered goes back to: behind `begin_request`, before the handler's first statement.
const MARK: &str = "SAVEPOINT aftercommit_request";
const BACK_TO_MARK: &str = "ROLLBACK TO SAVEPOINT aftercommit_request";

/// A ROLLBACK that takes longer is given up, and the connection closed: the server rolls back as it notices.
const ROLLBACK_MAX: Duration = Duration::from_secs(5);

/// A connection of the pool, in the transaction of a request.
pub(super) struct Transaction<DB: Guardable> {
    connection: PoolConnection<DB>,
    /// BEGIN was sent, and neither COMMIT nor ROLLBACK was answered.
    open: bool,
    marked: bool,
}

impl<DB: Guardable> Transaction<DB> {
    /// A connection, not in a transaction yet.
    pub(super) async fn acquire(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: pool.acquire().await?, open: false, marked: false })
    }

    /// Begins, by `statement` or by BEGIN.
    pub(super) async fn begin(&mut self, statement: Option<&'static str>) -> Result<(), sqlx::Error> {
        self.open = true;
        let statement = statement.map(SqlSafeStr::into_sql_str);
        DB::TransactionManager::begin(&mut self.connection, statement).await
    }

    pub(super) fn connection(&self) -> &DB::Connection {
        &self.connection
    }

    pub(super) fn connection_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }

    /// Marks where a remembered refusal goes back to; once, before the handler has the connection.
    pub(super) async fn mark(&mut self) -> Result<(), sqlx::Error> {
        if !self.marked {
            // Not one of sqlx's nested transactions: those would have to be released before COMMIT.
            DB::run(&mut self.connection, MARK).await?;
            self.marked = true;
        }
        Ok(())
    }

    /// Takes back what the handler wrote, if it had the connection at all.
    pub(super) async fn back_to_mark(&mut self) -> Result<(), sqlx::Error> {
        if self.marked { DB::run(&mut self.connection, BACK_TO_MARK).await } else { Ok(()) }
    }

    /// Whether a COMMIT now would end the transaction: nobody left a nested one of sqlx's behind.
    pub(super) fn is_outermost(&self) -> bool {
        DB::TransactionManager::get_transaction_depth(&self.connection) == 1
    }

    /// Whether statements still run in it. PostgreSQL would answer the COMMIT of a transaction that an error has aborted
    /// with a ROLLBACK that looks like success.
    pub(super) async fn is_sound(&mut self) -> Result<(), sqlx::Error> {
        DB::run(&mut self.connection, "SELECT 1").await
    }

    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::commit(&mut self.connection).await?;
        self.open = false;
        Ok(())
    }

    /// Rolls back, and gives the connection back to the pool.
    pub(super) async fn rollback(mut self) {
        if self.try_rollback().await {
            self.open = false;
        }
    }

    /// Rolls back a transaction whose handler was stopped somewhere: nobody uses the connection again.
    pub(super) async fn discard(mut self) {
        if self.open {
            self.connection.close_on_drop();
            self.try_rollback().await;
        }
    }

    async fn try_rollback(&mut self) -> bool {
        if !self.open {
            return true;
        }
        match timeout(ROLLBACK_MAX, DB::TransactionManager::rollback(&mut self.connection)).await {
            Ok(Ok(())) => DB::TransactionManager::get_transaction_depth(&self.connection) == 0,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a transaction could not be rolled back: its connection is closed");
                false
            }
            Err(_elapsed) => {
                tracing::warn!(
                    after_ms = ROLLBACK_MAX.as_millis(),
                    "a ROLLBACK was not answered: its connection is closed"
                );
                false
            }
        }
    }
}

impl<DB: Guardable> Drop for Transaction<DB> {
    fn drop(&mut self) {
        if self.open {
            self.connection.close_on_drop();
        }
    }
}

/// Where a request's transaction lies while nobody has it. Shared by whoever runs the request, the request's extensions, and
/// the handler's [`Guarded`](super::Guarded).
pub(super) struct Slot<DB: Guardable>(Arc<Mutex<Place<DB>>>);

enum Place<DB: Guardable> {
    /// It begins when it is asked for.
    Later(Later<DB>),
    Here(Transaction<DB>),
    Taken,
    /// There is none: the store is away, and the guard is told to go on.
    Absent,
    /// The request has ended: what comes back now is rolled back.
    Over,
}

/// How a transaction begins that only some handlers ask for.
pub(super) struct Later<DB: Guardable> {
    pub(super) pool: Pool<DB>,
    pub(super) statement: Option<&'static str>,
    pub(super) fail_open: bool,
}

/// What a handler finds.
pub(super) enum Found<DB: Guardable> {
    Here(Transaction<DB>),
    Later(Later<DB>),
    Taken,
    Absent,
    Over,
}

/// What is left when the request ends.
pub(super) enum Left<DB: Guardable> {
    /// The transaction.
    Here(Transaction<DB>),
    /// Nobody asked for it, or there is none.
    Nothing,
    /// The handler has answered, and still holds it.
    Kept,
}

impl<DB: Guardable> Slot<DB> {
    pub(super) fn with(transaction: Transaction<DB>) -> Self {
        Self::new(Place::Here(transaction))
    }

    pub(super) fn later(later: Later<DB>) -> Self {
        Self::new(Place::Later(later))
    }

    pub(super) fn absent() -> Self {
        Self::new(Place::Absent)
    }

    fn new(place: Place<DB>) -> Self {
        Self(Arc::new(Mutex::new(place)))
    }

    fn lock(&self) -> MutexGuard<'_, Place<DB>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what there is.
    pub(super) fn take(&self) -> Found<DB> {
        let mut place = self.lock();
        match mem::replace(&mut *place, Place::Taken) {
            Place::Here(transaction) => Found::Here(transaction),
            Place::Later(later) => Found::Later(later),
            Place::Taken => Found::Taken,
            Place::Absent => {
                *place = Place::Absent;
                Found::Absent
            }
            Place::Over => {
                *place = Place::Over;
                Found::Over
            }
        }
    }

    /// Puts the transaction back; after the end of the request it is rolled back instead.
    pub(super) fn give_back(&self, transaction: Transaction<DB>) {
        self.put(Place::Here(transaction));
    }

    /// The transaction could not begin: it may be asked for again.
    pub(super) fn not_begun(&self, later: Later<DB>) {
        self.put(Place::Later(later));
    }

    fn put(&self, what: Place<DB>) {
        let mut place = self.lock();
        if !matches!(*place, Place::Over) {
            *place = what;
        }
    }

    /// Whether somebody asked for the transaction and it has not ended.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(*self.lock(), Place::Here(_) | Place::Taken)
    }

    /// Ends the request's use of the slot.
    pub(super) fn close(&self) -> Left<DB> {
        match mem::replace(&mut *self.lock(), Place::Over) {
            Place::Here(transaction) => Left::Here(transaction),
            Place::Taken => Left::Kept,
            Place::Later(_) | Place::Absent | Place::Over => Left::Nothing,
        }
    }
}

impl<DB: Guardable> Clone for Slot<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
