//! A plain connection of the application's side: what writes effects in its own transaction, as any application does.

use std::{str::FromStr, time::Duration};

use aftercommit::{Enqueued, NewEffect, Outbox, enqueue::Pooled, error::EnqueueError, store::Pooler};
use anyhow::Context as _;
use sqlx::{
    ConnectOptions, Connection, PgConnection, SqliteConnection, postgres::PgConnectOptions,
    sqlite::SqliteConnectOptions,
};

use super::context::{usable_file, without_password};

/// A connection that writes effects.
pub(crate) enum Writer {
    /// To PostgreSQL.
    Postgres(PgConnection),
    /// To PostgreSQL through a transaction pooler.
    Pooled(PgConnection),
    /// To a SQLite file.
    Sqlite(SqliteConnection),
}

/// What enqueueing a batch gives: a result per effect.
type Written = Vec<Result<Enqueued, EnqueueError>>;

impl Writer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached.
    pub(crate) async fn connect(url: &str, pooler: &Pooler) -> anyhow::Result<Self> {
        let place = || format!("the database {}", without_password(url));
        if url.starts_with("sqlite:") {
            usable_file(url)?;
            return Ok(Self::Sqlite(sqlite(url).await.with_context(place)?));
        }
        match pooler {
            Pooler::None => Ok(Self::Postgres(PgConnection::connect(url).await.with_context(place)?)),
            Pooler::Transaction { direct: _ } => {
                let options = PgConnectOptions::from_str(url).with_context(place)?.extra_float_digits(None);
                Ok(Self::Pooled(options.connect().await.with_context(place)?))
            }
        }
    }

    /// Writes these in a transaction of their own: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`EnqueueError`] of the first that is refused; then nothing was written.
    pub(crate) async fn enqueue(&mut self, effects: Vec<NewEffect>) -> Result<Vec<Enqueued>, EnqueueError> {
        let all = |written: Written| written.into_iter().collect::<Result<Vec<_>, _>>();
        match self {
            Self::Postgres(connection) => {
                let mut tx = connection.begin().await?;
                let written = all(Outbox.enqueue_many(&mut *tx, effects).await?)?;
                tx.commit().await?;
                Ok(written)
            }
            Self::Pooled(connection) => {
                let mut tx = connection.begin().await?;
                let written = all(Outbox.enqueue_many(&mut Pooled(&mut tx), effects).await?)?;
                tx.commit().await?;
                Ok(written)
            }
            Self::Sqlite(connection) => {
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
                let written = all(Outbox.enqueue_many(&mut *tx, effects).await?)?;
                tx.commit().await?;
                Ok(written)
            }
        }
    }

    /// Writes many effects in one transaction.
    ///
    /// # Errors
    ///
    /// [`EnqueueError`]; then nothing was written.
    pub(crate) async fn enqueue_many(&mut self, effects: Vec<NewEffect>) -> Result<Written, EnqueueError> {
        match self {
            Self::Postgres(connection) => {
                let mut tx = connection.begin().await?;
                let written = Outbox.enqueue_many(&mut *tx, effects).await?;
                tx.commit().await?;
                Ok(written)
            }
            Self::Pooled(connection) => {
                let mut tx = connection.begin().await?;
                let written = Outbox.enqueue_many(&mut Pooled(&mut tx), effects).await?;
                tx.commit().await?;
                Ok(written)
            }
            Self::Sqlite(connection) => {
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
                let written = Outbox.enqueue_many(&mut *tx, effects).await?;
                tx.commit().await?;
                Ok(written)
            }
        }
    }
}

/// A SQLite connection as applications should open it: WAL, full durability, patience with other writers.
pub(crate) async fn sqlite(url: &str) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .busy_timeout(Duration::from_secs(10))
        .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
    options.connect().await
}
