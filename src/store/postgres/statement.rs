//! How statements run: what a statement is called, and what it runs on. With `session`, the one place of this folder
//! that names sqlx's `query`, because behind a transaction pooler every statement must be run in another way.
//!
//! [`Session::Own`]: told once what holds for all its statements, which are named and keep their plans; one that stands alone
//! needs no BEGIN. [`Session::Borrowed`]: the next statement meets another server connection, which knows none of our names and
//! settings, and whose settings are others' too. So statements have no names, and each runs in a transaction that
//! begins by telling what holds in it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::{
    Connection as _, Decode, PgConnection, PgPool, Postgres, Row as _, SqlSafeStr, Type,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
    query::Query,
};
use tokio::time::Instant;

use super::{PgStore, session::Session};
use crate::{error::StoreError, store::Connections};

/// A statement of ours, and what is bound to it.
pub(super) type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// A statement; what is bound to it follows.
pub(super) fn sql<'q>(text: impl SqlSafeStr) -> Statement<'q> {
    sqlx::query(text)
}

/// A statement that a connection runs once: it needs no name, wherever it runs.
pub(super) fn once<'q>(text: impl SqlSafeStr) -> Statement<'q> {
    sqlx::query(text).persistent(false)
}

/// A connection that lay idle for longer is asked whether it is alive before it is used.
const PING_AFTER: Duration = Duration::from_secs(20);
/// How long a free connection is waited for.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the server that said this is of no use any more: read-only (it was demoted), shutting down, or gone.
fn is_lost(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    match code {
        Some(code) => code == "25006" || code.starts_with("08") || code.starts_with("57P0"),
        None => matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_)),
    }
}

/// The store's connections.
#[derive(Debug)]
pub(super) struct Pool {
    pool: PgPool,
    session: Session,
    suspicion: Arc<Suspicion>,
}

/// When the server was last found to be of no use, and why the last connection was refused. Shared by the pool's
/// callbacks, who look, and by whoever ran a statement, who notes.
#[derive(Debug, Default)]
struct Suspicion {
    /// Grows with every connection that is made, and whenever the server is found to be of no use.
    connections: AtomicU64,
    since: Mutex<Option<Instant>>,
    refused: Mutex<Option<(std::io::ErrorKind, String)>>,
}

impl Suspicion {
    fn raise(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age was made before the server was found to be of no use.
    fn falls_on(&self, age: Duration) -> bool {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| age > since.elapsed())
    }

    fn note_refusal(&self, error: Option<&sqlx::Error>) {
        let words = error.map(|error| {
            if let sqlx::Error::Io(io) = error {
                return (io.kind(), io.to_string());
            }
            (std::io::ErrorKind::Other, error.to_string())
        });
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// The pool only says that the time was up; this says why.
    fn explain(&self, error: sqlx::Error) -> sqlx::Error {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match (&error, &*refused) {
            (sqlx::Error::PoolTimedOut, Some((kind, why))) => {
                sqlx::Error::Io(std::io::Error::new(*kind, why.clone()))
            }
            _ => error,
        }
    }
}

impl Pool {
    /// A pool that has no connection yet.
    pub(super) fn new(options: &PgConnectOptions, session: Session, max_connections: u32) -> Self {
        let suspicion = Arc::new(Suspicion::default());
        let (greeting, looking) = (Arc::clone(&suspicion), Arc::clone(&suspicion));
        let pool = PgPoolOptions::new()
            .max_connections(max_connections.max(1))
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let suspicion = Arc::clone(&greeting);
                Box::pin(async move {
                    suspicion.connections.fetch_add(1, Ordering::Relaxed);
                    let greeted = session.greet(connection).await;
                    suspicion.note_refusal(greeted.as_ref().err());
                    greeted
                })
            })
            .before_acquire(move |connection, meta| {
                let suspicion = Arc::clone(&looking);
                Box::pin(async move {
                    if suspicion.falls_on(meta.age) {
                        return Ok(false);
                    }
                    if meta.idle_for > PING_AFTER {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(session.fit(options.clone()));
        Self { pool, session, suspicion }
    }

    /// See [`Suspicion::connections`].
    pub(super) fn reconnects(&self) -> u64 {
        self.suspicion.connections.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub(super) fn occupancy(&self) -> Connections {
        let open = self.pool.size();
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(open).min(open);
        Connections { idle, used: open - idle, max: self.pool.options().get_max_connections() }
    }

    async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.pool.acquire().await.map_err(|error| self.suspicion.explain(error))
    }

    /// A connection whose server is of no use is not given out again, nor is any that was made before.
    fn judge<T>(&self, connection: &mut PoolConnection<Postgres>, result: &Result<T, sqlx::Error>) {
        if result.as_ref().is_err_and(is_lost) {
            connection.close_on_drop();
            self.suspicion.raise();
        }
    }
}

/// How long a person's read may take, in seconds: it must not take from the work what it finds out about it.
const READ_SECONDS: u64 = 5;
const READ_LIMIT: &str = "SET LOCAL statement_timeout = '5s'";

/// What people read.
impl PgStore {
    /// All rows of a statement that is stopped when it takes too long.
    pub(super) async fn read(
        &self,
        statement: Statement<'_>,
        doing: &'static str,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.read_with(statement, READ_LIMIT, doing).await
    }

    /// The same for one that reads the whole queue: with the scans that the session's settings keep from the others.
    pub(super) async fn read_through(
        &self,
        statement: Statement<'_>,
        doing: &'static str,
    ) -> Result<Vec<PgRow>, StoreError> {
        let settings = "SET LOCAL statement_timeout = '5s'; SET LOCAL enable_seqscan = on";
        self.read_with(statement, settings, doing).await
    }

    /// The same for one that an index serves which only makes bitmaps: reading the table in the order of another must never look
    /// cheaper.
    pub(super) async fn read_by_bitmap(
        &self,
        statement: Statement<'_>,
        doing: &'static str,
    ) -> Result<Vec<PgRow>, StoreError> {
        let settings = "SET LOCAL statement_timeout = '5s'; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off";
        self.read_with(statement, settings, doing).await
    }

    async fn read_with(
        &self,
        statement: Statement<'_>,
        settings: &'static str,
        doing: &'static str,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        tx.set(settings).await.map_err(StoreError::during(doing))?;
        match tx.all(statement).await {
            Ok(rows) => {
                tx.commit().await.map_err(StoreError::during(doing))?;
                Ok(rows)
            }
            Err(error) => {
                // The connection is closed where even that is refused.
                drop(tx.rollback().await);
                Err(too_slow(error, doing))
            }
        }
    }
}

/// What a read's error is to a person.
fn too_slow(error: sqlx::Error, doing: &'static str) -> StoreError {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    match code.as_deref() {
        Some("57014") => StoreError::TooSlow { doing, seconds: READ_SECONDS },
        _ => StoreError::Database { doing, source: error },
    }
}

/// Statements that stand alone: each is a transaction.
impl PgStore {
    /// All rows.
    pub(super) async fn all(&self, statement: Statement<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        match self.pool.session {
            Session::Own => {
                let mut connection = self.pool.acquire().await?;
                let rows = statement.fetch_all(&mut *connection).await;
                self.pool.judge(&mut connection, &rows);
                rows
            }
            Session::Borrowed => {
                let mut tx = Tx::begin(&self.pool).await?;
                let rows = tx.all(statement).await?;
                tx.commit().await?;
                Ok(rows)
            }
        }
    }

    /// The first row, if there is one.
    pub(super) async fn optional(&self, statement: Statement<'_>) -> Result<Option<PgRow>, sqlx::Error> {
        Ok(self.all(statement).await?.into_iter().next())
    }

    /// The only row.
    pub(super) async fn one(&self, statement: Statement<'_>) -> Result<PgRow, sqlx::Error> {
        self.optional(statement).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// The first value of the only row.
    pub(super) async fn scalar<T>(&self, statement: Statement<'_>) -> Result<T, sqlx::Error>
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        self.one(statement).await?.try_get(0)
    }

    /// How many rows it changed.
    pub(super) async fn execute(&self, statement: Statement<'_>) -> Result<u64, sqlx::Error> {
        match self.pool.session {
            Session::Own => {
                let mut connection = self.pool.acquire().await?;
                let done = statement.execute(&mut *connection).await;
                self.pool.judge(&mut connection, &done);
                done.map(|done| done.rows_affected())
            }
            Session::Borrowed => {
                let mut tx = Tx::begin(&self.pool).await?;
                let changed = tx.execute(statement).await?;
                tx.commit().await?;
                Ok(changed)
            }
        }
    }
}

/// A transaction of our own. sqlx's may hand a connection that is inside a transaction back to the pool when a future is
/// dropped; this one closes the connection unless it was committed or rolled back.
pub(super) struct Tx<'p> {
    pool: &'p Pool,
    connection: PoolConnection<Postgres>,
    open: bool,
}

impl<'p> Tx<'p> {
    pub(super) async fn begin(pool: &'p Pool) -> Result<Self, sqlx::Error> {
        let mut tx = Self { pool, connection: pool.acquire().await?, open: true };
        let begun = pool.session.begin(&mut tx.connection).await;
        tx.judged(begun)?;
        Ok(tx)
    }

    /// All rows.
    pub(super) async fn all(&mut self, statement: Statement<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        let rows = self.pool.session.name(statement).fetch_all(&mut *self.connection).await;
        self.judged(rows)
    }

    /// The first row, if there is one.
    pub(super) async fn optional(&mut self, statement: Statement<'_>) -> Result<Option<PgRow>, sqlx::Error> {
        Ok(self.all(statement).await?.into_iter().next())
    }

    /// The only row.
    pub(super) async fn one(&mut self, statement: Statement<'_>) -> Result<PgRow, sqlx::Error> {
        self.optional(statement).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// The first value of the only row.
    pub(super) async fn scalar<T>(&mut self, statement: Statement<'_>) -> Result<T, sqlx::Error>
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        self.one(statement).await?.try_get(0)
    }

    /// How many rows it changed.
    pub(super) async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, sqlx::Error> {
        let done = self.pool.session.name(statement).execute(&mut *self.connection).await;
        self.judged(done).map(|done| done.rows_affected())
    }

    /// For who runs statements of his own in it.
    pub(super) fn borrow(&mut self) -> (Session, &mut PgConnection) {
        (self.pool.session, &mut self.connection)
    }

    /// Changes a setting for the rest of the transaction.
    pub(super) async fn set(&mut self, text: &'static str) -> Result<(), sqlx::Error> {
        let set = sqlx::raw_sql(text).execute(&mut *self.connection).await;
        self.judged(set).map(drop)
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("COMMIT").await
    }

    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &'static str) -> Result<(), sqlx::Error> {
        let ended = sqlx::raw_sql(how).execute(&mut *self.connection).await;
        self.judged(ended)?;
        self.open = false;
        Ok(())
    }

    fn judged<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.pool.judge(&mut self.connection, &result);
        result
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.close_on_drop();
        }
    }
}
