//! SQLite: the embedded default and a real store for one-machine applications.
//!
//! SQLite has no clock of its own: "the database's clock" is this machine's wall clock ([`SystemClock::wall`]), read after
//! the write lock was taken and handed to each statement, so that one transaction has one time. Everybody who shares the
//! file shares the machine, and so the clock.
//!
//! One connection writes, one renews leases, one watches for other processes' commits, a small pool reads. Everything that
//! writes runs `BEGIN IMMEDIATE … COMMIT` in a task of its own, which a caller that goes away does not abort: no connection
//! is left inside a transaction.

mod budget;
mod bulk;
mod candidates;
mod chart;
mod claim;
mod doctor;
mod endpoints;
mod enqueue;
mod guard;
mod identity;
mod inspect;
mod intent;
mod late;
mod list;
mod migrate;
mod operate;
mod outlook;
#[cfg(test)]
mod plans;
mod probe;
mod received;
mod record;
mod register;
mod retain;
mod row;
mod settle;
mod sweep;
mod write;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
#[cfg(feature = "axum")]
pub(crate) use guard::{Stored, stored};
pub(crate) use migrate::{connect, migrate, migration_sql};
use sqlx::{Connection, SqliteConnection, SqlitePool, pool::PoolConnection};
use tokio::sync::{Mutex, Notify};
use tokio_util::task::TaskTracker;

use self::settle::Right;
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::StoreError,
    store::{
        Claim, Expired, Late, LateAnswer, Overdue, RegisteredTerms, Registration, Settled, Settlement, Store,
        TermsIds, Token, Want,
    },
};

/// How long a person's read may take: it must not take from the work what it finds out about it.
const READ_MAX: Duration = Duration::from_secs(5);
/// Steps of a statement between two looks at the clock: about a tenth of a millisecond.
const LOOK_AT_CLOCK: i32 = 10_000;
/// SQLite's code of a statement that was stopped.
const INTERRUPTED: &str = "9";

/// How often the file is asked whether another connection committed: a few microseconds each, and half of it is the
/// median delay of a hint.
const WATCH_EVERY: Duration = Duration::from_millis(25);

/// A file with the schema in it.
pub(crate) struct SqliteStore {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

struct Shared {
    /// The one writer besides `renewer`.
    writer: Mutex<SqliteConnection>,
    /// Only renewals use it: a lease must not wait for a long settle to be prepared.
    renewer: Mutex<SqliteConnection>,
    watcher: Mutex<SqliteConnection>,
    readers: SqlitePool,
    /// What people read: connections of their own, since their statements are stopped when they take too long.
    people: SqlitePool,
    /// The data version that [`Store::work_arrived`] saw last.
    seen: AtomicI64,
    /// A person's verb in this process.
    acted: Notify,
}

/// What a transaction does, once it has the write lock, at the time it got it.
type Work<'c, T> = BoxFuture<'c, Result<T, StoreError>>;

impl SqliteStore {
    async fn write<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, Timestamp) -> Work<'c, T> + Send + 'static,
    {
        let shared = self.shared.clone();
        let task = self.tasks.spawn(async move {
            let mut connection = shared.writer.lock().await;
            in_transaction(&mut connection, doing, work).await
        });
        task.await.unwrap_or_else(|_| Err(gone(doing)))
    }

    async fn reader(&self, doing: &'static str) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        self.shared.readers.acquire().await.map_err(StoreError::during(doing))
    }

    /// A reader for people, whose statements are stopped [`READ_MAX`] from now. Differs because SQLite has no time limit of its own.
    async fn people(&self, doing: &'static str) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        let mut reader = self.shared.people.acquire().await.map_err(StoreError::during(doing))?;
        let until = SystemClock.boot().plus(READ_MAX);
        let mut handle = reader.lock_handle().await.map_err(StoreError::during(doing))?;
        handle.set_progress_handler(LOOK_AT_CLOCK, move || !SystemClock.boot().until(until).is_zero());
        drop(handle);
        Ok(reader)
    }

    /// A batch that the database refuses is written one by one: what is wrong with one effect never undoes another's
    /// outcome. One that is refused alone is written once more, without what the downstream said.
    async fn settle_all(
        &self,
        batch: &[Settlement],
        finished: &[Token],
        right: Right,
    ) -> Result<Vec<Settled>, StoreError> {
        let whole = self.settle_once(batch.to_vec(), finished.to_vec(), right).await;
        match whole {
            Err(problem) if problem.is_refusal() => {
                tracing::error!(%problem, "a batch of settles was refused: writing them one by one");
            }
            answered => return answered,
        }
        let mut settled = Vec::with_capacity(batch.len());
        let mut failure = None;
        for settlement in batch {
            let alone = self.settle_once(vec![settlement.clone()], Vec::new(), right).await;
            let alone = match alone {
                Err(problem) if problem.is_refusal() => {
                    self.settle_once(vec![settle::without_answer(settlement)], Vec::new(), right).await
                }
                answered => answered,
            };
            match alone {
                Ok(answers) => settled.extend(answers),
                Err(problem) => failure = Some(problem),
            }
        }
        failure.map_or(Ok(settled), Err)
    }

    async fn settle_once(
        &self,
        batch: Vec<Settlement>,
        finished: Vec<Token>,
        right: Right,
    ) -> Result<Vec<Settled>, StoreError> {
        if batch.is_empty() && finished.is_empty() {
            return Ok(Vec::new());
        }
        self.write("settling", move |conn, now| {
            Box::pin(async move {
                let settled = match batch.is_empty() {
                    true => Vec::new(),
                    false => settle::settle(conn, &batch, right, now).await?,
                };
                if !finished.is_empty() || right == Right::LeaseOver {
                    sweep::drop_claims(conn, &finished, now).await?;
                }
                Ok(settled)
            })
        })
        .await
    }

    /// Sets aside what a sweep could not read, so that the next one does not meet it again.
    async fn set_aside(&self, unreadable: Vec<(i64, StoreError)>) -> Result<(), StoreError> {
        if unreadable.is_empty() {
            return Ok(());
        }
        self.write("setting aside rows that cannot be read", move |conn, now| {
            Box::pin(async move {
                for (id, problem) in &unreadable {
                    sweep::set_aside(conn, *id, problem, now).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Whether another connection committed since the last look; an error is worth a look, too.
    async fn changed(&self) -> bool {
        let mut watcher = self.shared.watcher.lock().await;
        let version: Result<i64, _> =
            sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut *watcher).await;
        match version {
            Ok(version) => self.shared.seen.swap(version, Ordering::Relaxed) != version,
            Err(_) => false,
        }
    }
}

/// What a read's error is to a person.
fn too_slow(error: StoreError) -> StoreError {
    let interrupted = |source: &sqlx::Error| {
        source.as_database_error().and_then(|error| error.code()).as_deref() == Some(INTERRUPTED)
    };
    if let StoreError::Database { doing, source } = &error
        && interrupted(source)
    {
        return StoreError::TooSlow { doing, seconds: READ_MAX.as_secs() };
    }
    error
}

fn gone(doing: &'static str) -> StoreError {
    StoreError::Database { doing, source: sqlx::Error::WorkerCrashed }
}

/// `BEGIN IMMEDIATE`, never deferred: a transaction that reads first could not be upgraded once somebody else wrote,
/// whatever the busy timeout says.
async fn in_transaction<T, F>(
    connection: &mut SqliteConnection,
    doing: &'static str,
    work: F,
) -> Result<T, StoreError>
where
    F: for<'c> FnOnce(&'c mut SqliteConnection, Timestamp) -> Work<'c, T> + Send,
{
    let mut transaction =
        connection.begin_with("BEGIN IMMEDIATE").await.map_err(StoreError::during(doing))?;
    let now = SystemClock.wall();
    match work(&mut transaction, now).await {
        Ok(value) => {
            transaction.commit().await.map_err(StoreError::during(doing))?;
            Ok(value)
        }
        Err(problem) => {
            if let Err(error) = transaction.rollback().await {
                tracing::warn!(%error, doing, "the transaction could not be rolled back");
            }
            Err(problem)
        }
    }
}

#[async_trait::async_trait]
impl Store for SqliteStore {
    async fn register(&self, registration: &Registration) -> Result<TermsIds, StoreError> {
        let registration = registration.clone();
        self.write("registering", move |conn, now| {
            Box::pin(async move { register::register(conn, &registration, now).await })
        })
        .await
    }

    async fn renew(&self, worker: &str, tokens: &[(Token, Duration)]) -> Result<Vec<Token>, StoreError> {
        let (shared, worker, tokens) = (self.shared.clone(), worker.to_owned(), tokens.to_vec());
        let doing = "renewing leases";
        let task = self.tasks.spawn(async move {
            let mut connection = shared.renewer.lock().await;
            in_transaction(&mut connection, doing, move |conn, now| {
                Box::pin(async move { claim::renew(conn, &worker, &tokens, now).await })
            })
            .await
        });
        task.await.unwrap_or_else(|_| Err(gone(doing)))
    }

    async fn leave(&self, worker: &str) -> Result<(), StoreError> {
        let worker = worker.to_owned();
        self.write("leaving", move |conn, _| Box::pin(async move { register::leave(conn, worker).await }))
            .await
    }

    async fn claim(&self, worker: &str, wants: &[Want]) -> Result<Vec<Claim>, StoreError> {
        let mut due = Vec::new();
        {
            let mut reader = self.reader("looking for work").await?;
            let now = SystemClock.wall();
            for want in wants.iter().filter(|want| want.slots > 0) {
                if claim::is_wanted(&mut reader, want, now).await? {
                    due.push(want.clone());
                }
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let worker: Arc<str> = worker.into();
        self.write("claiming", move |conn, now| {
            Box::pin(async move {
                let mut claims = Vec::new();
                for want in &due {
                    claims.extend(claim::claim_one(conn, &worker, want, now).await?);
                }
                Ok(claims)
            })
        })
        .await
    }

    async fn settle(&self, batch: &[Settlement], finished: &[Token]) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(batch, finished, Right::Claim).await
    }

    async fn late(&self, answers: &[LateAnswer]) -> Result<Vec<Late>, StoreError> {
        let answers = answers.to_vec();
        self.write("taking late answers", move |conn, now| {
            Box::pin(async move {
                let mut late = Vec::with_capacity(answers.len());
                for answer in &answers {
                    late.push(late::late(conn, answer, now).await?);
                }
                Ok(late)
            })
        })
        .await
    }

    async fn expired(&self, limit: u32) -> Result<Vec<Expired>, StoreError> {
        let mut reader = self.reader("looking for leases that ended").await?;
        let (found, unreadable) = sweep::expired(&mut reader, limit, SystemClock.wall()).await?;
        drop(reader);
        self.set_aside(unreadable).await?;
        Ok(found)
    }

    async fn sweep_expired(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(batch, &[], Right::LeaseOver).await
    }

    async fn overdue(&self, limit: u32) -> Result<Vec<Overdue>, StoreError> {
        let mut reader = self.reader("looking for overdue effects").await?;
        let (found, unreadable) = sweep::overdue(&mut reader, limit, SystemClock.wall()).await?;
        drop(reader);
        self.set_aside(unreadable).await?;
        Ok(found)
    }

    async fn sweep_overdue(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(batch, &[], Right::Unclaimed).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.write("maintaining", |conn, now| Box::pin(async move { sweep::maintain(conn, now).await })).await
    }

    async fn terms(
        &self,
        downstream: &str,
        operation: Option<&str>,
    ) -> Result<Option<RegisteredTerms>, StoreError> {
        let mut reader = self.reader("reading terms").await?;
        register::terms(&mut reader, downstream, operation).await
    }

    async fn is_idle(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        let mut reader = self.reader("looking for work").await?;
        claim::is_idle(&mut reader, downstreams, SystemClock.wall()).await
    }

    async fn work_arrived(&self, at_most: Duration) {
        let deadline = SystemClock.boot().plus(at_most);
        loop {
            if self.changed().await {
                return;
            }
            let left = SystemClock.boot().until(deadline);
            if left.is_zero() {
                return;
            }
            let acted = self.shared.acted.notified();
            if tokio::time::timeout(WATCH_EVERY.min(left), acted).await.is_ok() {
                return;
            }
        }
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(SystemClock.wall())
    }
}
