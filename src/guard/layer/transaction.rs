//! The transaction of a request, and the place from which its handler takes it.
//!
//! A connection goes back to its pool only after its COMMIT or ROLLBACK was answered. Whatever else happens to it (a future
//! dropped half-way, a panic, a runtime that ends) closes it: the next borrower is never inside a stray transaction.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::{Pool, pool::PoolConnection};
// Not `sqlx::Transaction`: it cannot close its connection, and gives it back to the pool whatever happened to it.
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use super::{
    database::{BACK_TO_MARK, Begin, Guardable, MARK, RELEASE_MARK, Trouble, at_mark},
    turns::{Turn, Turns},
};
use crate::guard::{GuardError, RequestKey, Scope};

/// A ROLLBACK that takes longer is given up, and the connection closed: the server rolls back as it notices.
const ROLLBACK_MAX: Duration = Duration::from_secs(5);

/// A connection of the pool. Where the pool has none at all, waiting for one means that the database cannot be reached.
pub(super) async fn acquire<DB: Guardable>(pool: &Pool<DB>) -> Result<PoolConnection<DB>, sqlx::Error> {
    let acquired = pool.acquire().await;
    if matches!(acquired, Err(sqlx::Error::PoolTimedOut)) && pool.size() == 0 {
        let none = std::io::Error::new(std::io::ErrorKind::NotConnected, "no connection could be opened");
        return Err(sqlx::Error::Io(none));
    }
    acquired
}

/// A connection of the pool, in the transaction of a request.
pub(super) struct Transaction<DB: Guardable> {
    connection: PoolConnection<DB>,
    /// BEGIN was sent, and neither COMMIT nor ROLLBACK was answered.
    open: bool,
    marked: bool,
    /// Held until the end, where writers take turns.
    _turn: Turn,
}

/// How a ROLLBACK ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// Nothing of it is left.
    All,
    /// The transaction had ended before. What was written since then was committed by itself.
    Lost,
    /// It was not answered; the server rolls back as it notices.
    Unanswered,
}

impl<DB: Guardable> Transaction<DB> {
    /// A connection that is not in a transaction yet.
    pub(super) fn on(connection: PoolConnection<DB>, turn: Turn) -> Self {
        Self { connection, open: false, marked: false, _turn: turn }
    }

    /// Begins. A BEGIN that was sent and not answered may still open a transaction: only where the database says that it did not
    /// is the connection as it was.
    pub(super) async fn begin(&mut self, begin: &Begin) -> Result<(), sqlx::Error> {
        self.open = true;
        let begun = DB::TransactionManager::begin(&mut self.connection, Some(begin.statement.clone())).await;
        match &begun {
            Ok(()) => self.marked = begin.marks,
            Err(sqlx::Error::Database(_)) => self.open = !DB::BEGINS_ALONE,
            Err(_) => {}
        }
        begun
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
    pub(super) async fn back_to_mark(&mut self) -> Result<(), GuardError> {
        if self.marked {
            DB::run(&mut self.connection, BACK_TO_MARK).await.map_err(at_mark::<DB>)
        } else {
            Ok(())
        }
    }

    /// Whether it is still the transaction that was begun, and statements still run in it. PostgreSQL would answer the COMMIT of
    /// one that an error has aborted with a ROLLBACK that looks like success, and both answer COMMIT or take it for an error
    /// where there is none.
    pub(super) async fn release_mark(&mut self) -> Result<(), GuardError> {
        DB::run(&mut self.connection, RELEASE_MARK).await.map_err(at_mark::<DB>)
    }

    /// Whether a COMMIT now would end the transaction: nobody left a nested one of sqlx's behind.
    pub(super) fn is_outermost(&self) -> bool {
        self.depth() == 1
    }

    /// Whether sqlx has taken it back or is about to: it does so where the future of a nested `begin` was dropped half-way.
    fn is_lost(&self) -> bool {
        self.open && self.depth() == 0
    }

    fn depth(&self) -> usize {
        DB::TransactionManager::get_transaction_depth(&self.connection)
    }

    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::commit(&mut self.connection).await?;
        self.open = false;
        Ok(())
    }

    /// Rolls back, and gives the connection back to the pool.
    pub(super) async fn rollback(mut self) -> Undone {
        let undone = self.try_rollback().await;
        self.open = undone != Undone::All;
        undone
    }

    /// Rolls back what its handler had. PostgreSQL answers a ROLLBACK outside a transaction like any other: the mark shows whether
    /// the transaction is still the one that was begun.
    pub(super) async fn undo(mut self) -> Undone {
        if self.is_replaced().await {
            self.connection.close_on_drop();
            return Undone::Lost;
        }
        self.rollback().await
    }

    /// Rolls back a transaction whose handler was stopped somewhere: nobody uses the connection again.
    pub(super) async fn discard(mut self) -> Undone {
        if !self.open {
            return Undone::All;
        }
        self.connection.close_on_drop();
        if self.is_replaced().await { Undone::Lost } else { self.try_rollback().await }
    }

    /// Whether the transaction that was marked has ended, with or without another one after it. Inside a nested one the ROLLBACK
    /// itself shows it, by the savepoint that it goes back to; this would end that savepoint.
    async fn is_replaced(&mut self) -> bool {
        if !self.open || !self.marked || !self.is_outermost() {
            return false;
        }
        match timeout(ROLLBACK_MAX, self.back_to_mark()).await {
            Ok(Err(error)) => Trouble::of::<DB>(&error) == Trouble::Lost,
            Ok(Ok(())) | Err(_) => false,
        }
    }

    async fn try_rollback(&mut self) -> Undone {
        if !self.open {
            return Undone::All;
        }
        // sqlx would say that it has rolled back, and send nothing: a BEGIN may still be on its way.
        if self.is_lost() {
            return Undone::Lost;
        }
        match timeout(ROLLBACK_MAX, DB::TransactionManager::rollback(&mut self.connection)).await {
            Ok(Ok(())) if self.depth() == 0 => Undone::All,
            Ok(Ok(())) => Undone::Unanswered,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a transaction could not be rolled back: its connection is closed");
                match Trouble::of::<DB>(&at_mark::<DB>(error)) {
                    Trouble::Lost => Undone::Lost,
                    Trouble::Busy | Trouble::Conflict | Trouble::Away | Trouble::Refused => {
                        Undone::Unanswered
                    }
                }
            }
            Err(_elapsed) => {
                tracing::warn!(
                    after_ms = ROLLBACK_MAX.as_millis(),
                    "a ROLLBACK was not answered: its connection is closed"
                );
                Undone::Unanswered
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
pub(super) struct Slot<DB: Guardable>(Arc<Shelf<DB>>);

struct Shelf<DB: Guardable> {
    place: Mutex<Place<DB>>,
    /// Of a request with a key.
    name: Option<(Scope, RequestKey)>,
}

enum Place<DB: Guardable> {
    /// It begins when it is asked for.
    Later(Later<DB>),
    /// It was asked for, and there is no connection for it yet.
    Waiting,
    Here(Transaction<DB>),
    Taken,
    /// There is none: the store is away, and the guard is told to go on.
    Absent,
    /// It came back, and had ended under its handler.
    Lost,
    /// The request has ended: what comes back now is rolled back.
    Over,
}

/// How a transaction begins that only some handlers ask for.
pub(super) struct Later<DB: Guardable> {
    pub(super) pool: Pool<DB>,
    pub(super) begin: Begin,
    /// Whose turn it is to write, for a transaction that may.
    pub(super) turns: Option<Arc<Turns>>,
    pub(super) fail_open: bool,
}

/// What a handler finds.
pub(super) enum Found<DB: Guardable> {
    Here(Transaction<DB>),
    Later(Later<DB>),
    Taken,
    Absent,
    Lost,
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
    /// It ended under the handler.
    Lost,
}

impl<DB: Guardable> Slot<DB> {
    /// Of a request with a key: with its transaction, or without where the store is away.
    pub(super) fn named(name: (Scope, RequestKey), transaction: Option<Transaction<DB>>) -> Self {
        Self::new(Some(name), transaction.map_or(Place::Absent, Place::Here))
    }

    pub(super) fn later(later: Later<DB>) -> Self {
        Self::new(None, Place::Later(later))
    }

    fn new(name: Option<(Scope, RequestKey)>, place: Place<DB>) -> Self {
        Self(Arc::new(Shelf { place: Mutex::new(place), name }))
    }

    fn lock(&self) -> MutexGuard<'_, Place<DB>> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> Option<&(Scope, RequestKey)> {
        self.0.name.as_ref()
    }

    /// Takes what there is.
    pub(super) fn take(&self) -> Found<DB> {
        let mut place = self.lock();
        match mem::replace(&mut *place, Place::Taken) {
            Place::Here(transaction) => Found::Here(transaction),
            Place::Later(later) => {
                *place = Place::Waiting;
                Found::Later(later)
            }
            Place::Waiting => {
                *place = Place::Waiting;
                Found::Taken
            }
            Place::Taken => Found::Taken,
            Place::Absent => {
                *place = Place::Absent;
                Found::Absent
            }
            Place::Lost => {
                *place = Place::Lost;
                Found::Lost
            }
            Place::Over => {
                *place = Place::Over;
                Found::Over
            }
        }
    }

    /// Whoever waited has a connection, and is going to begin; false: the request has ended meanwhile.
    pub(super) fn begins(&self) -> bool {
        let mut place = self.lock();
        let waits = matches!(*place, Place::Waiting);
        if waits {
            *place = Place::Taken;
        }
        waits
    }

    /// Puts the transaction back; after the end of the request it is rolled back instead. One that has ended under its handler is
    /// not handed out again: what is written on its connection would be committed by itself.
    pub(super) fn give_back(&self, transaction: Transaction<DB>) {
        if transaction.is_lost() {
            tracing::error!(
                "the transaction ended under its handler, as where the future of a nested begin is dropped: what it wrote afterwards may be kept"
            );
            self.put(Place::Lost);
        } else {
            self.put(Place::Here(transaction));
        }
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

    /// Whether somebody has begun the transaction and it has not ended.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(*self.lock(), Place::Here(_) | Place::Taken)
    }

    /// The client leaves. True: nothing was begun, and nothing will be.
    pub(super) fn leave(&self) -> bool {
        let mut place = self.lock();
        let waits = matches!(*place, Place::Later(_) | Place::Waiting | Place::Absent);
        if waits {
            *place = Place::Over;
        }
        waits
    }

    /// Ends the handler's use of the slot.
    pub(super) fn close(&self) -> Left<DB> {
        match mem::replace(&mut *self.lock(), Place::Over) {
            Place::Here(transaction) => Left::Here(transaction),
            Place::Taken => Left::Kept,
            Place::Lost => Left::Lost,
            Place::Later(_) | Place::Waiting | Place::Absent | Place::Over => Left::Nothing,
        }
    }
}

impl<DB: Guardable> Clone for Slot<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
