//! Raw SQL on either database, for what an application or an operator would type, and for looking behind the store.
//!
//! Statements are written with the schema's dot (`aftercommit.effects`); on SQLite it becomes an underscore. Every value is
//! read as text: `NULL` is `None`, a boolean is `t` or `1`.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::clock::duration_micros;
use sqlx::{
    AssertSqlSafe, Column, Connection, Postgres, Row as _, Sqlite, ValueRef, pool::PoolConnection,
    postgres::PgRow, sqlite::SqliteRow,
};

use super::Engine;

/// A row: column name to text.
pub(crate) type Row = BTreeMap<String, Option<String>>;

/// Connections of the application's own, which know nothing of the store.
#[derive(Clone, Debug)]
pub(crate) enum Sql {
    /// PostgreSQL, as a superuser.
    Postgres(sqlx::PgPool),
    /// SQLite, in the same file.
    Sqlite(sqlx::SqlitePool),
}

/// An application's open transaction. Dropping it rolls back.
pub(crate) enum Tx {
    /// PostgreSQL.
    Postgres(sqlx::Transaction<'static, Postgres>),
    /// SQLite.
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

impl Sql {
    /// Which database.
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Postgres(_) => Engine::Postgres,
            Self::Sqlite(_) => Engine::Sqlite,
        }
    }

    /// Runs statements and gives the number of rows that they changed, or the database's error.
    pub(crate) async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(self.engine().dialect(sql));
        match self {
            Self::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(|done| done.rows_affected()),
            Self::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await.map(|done| done.rows_affected()),
        }
    }

    /// Runs statements that must succeed.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        self.try_execute(sql).await.unwrap_or_else(|error| panic!("{sql}\nfailed: {error}"))
    }

    /// Runs a script as it is, in one go, as `psql -f` or `sqlite3 <` would.
    pub(crate) async fn execute_as_is(&self, script: &str) {
        let sql = AssertSqlSafe(script.to_owned());
        match self {
            Self::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
        }
        .unwrap_or_else(|error| panic!("the script failed: {error}"));
    }

    /// Runs a statement that must fail, and gives the error.
    pub(crate) async fn refused(&self, sql: &str) -> sqlx::Error {
        match self.try_execute(sql).await {
            Ok(_) => panic!("this must be refused and was not: {sql}"),
            Err(error) => error,
        }
    }

    /// The rows of a query.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Row> {
        let text = self.engine().dialect(sql);
        let failed = |error: sqlx::Error| -> Vec<Row> { panic!("{text}\nfailed: {error}") };
        let sql = AssertSqlSafe(text.clone());
        match self {
            Self::Postgres(pool) => match sqlx::raw_sql(sql).fetch_all(pool).await {
                Ok(rows) => rows.iter().map(postgres_row).collect(),
                Err(error) => failed(error),
            },
            Self::Sqlite(pool) => match sqlx::raw_sql(sql).fetch_all(pool).await {
                Ok(rows) => rows.iter().map(sqlite_row).collect(),
                Err(error) => failed(error),
            },
        }
    }

    /// The only row of a query.
    pub(crate) async fn row(&self, sql: &str) -> Row {
        let mut rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "one row was expected of: {sql}\ngot: {rows:?}");
        rows.remove(0)
    }

    /// The only value of a query, as text.
    pub(crate) async fn scalar(&self, sql: &str) -> Option<String> {
        self.row(sql).await.into_values().next().expect("the query has a column")
    }

    /// The only value of a query, as a number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let value = self.scalar(sql).await;
        value
            .as_deref()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("a number was expected of: {sql}\ngot: {value:?}"))
    }

    /// The names of a relation's columns, in order.
    pub(crate) async fn columns(&self, relation: &str) -> Vec<String> {
        let relation = self.engine().dialect(relation);
        let sql = match self {
            Self::Postgres(_) => format!(
                "SELECT attname AS name FROM pg_attribute WHERE attrelid = '{relation}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            ),
            Self::Sqlite(_) => format!("SELECT name FROM pragma_table_info('{relation}') ORDER BY cid"),
        };
        self.rows(&sql).await.into_iter().filter_map(|mut row| row.remove("name").flatten()).collect()
    }

    /// Opens a transaction; on SQLite it takes the write lock at once, as applications should.
    pub(crate) async fn begin(&self) -> Tx {
        match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await.expect("a transaction begins")),
            Self::Sqlite(pool) => {
                Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await.expect("a transaction begins"))
            }
        }
    }

    /// A connection of PostgreSQL that stays the same between statements: for roles and session settings.
    pub(crate) async fn session(&self) -> PoolConnection<Postgres> {
        match self {
            Self::Postgres(pool) => pool.acquire().await.expect("a connection is free"),
            Self::Sqlite(_) => panic!("only PostgreSQL has sessions worth a test"),
        }
    }
}

impl Tx {
    /// Runs statements, or gives the database's error.
    pub(crate) async fn try_execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        match self {
            Self::Postgres(tx) => sqlx::raw_sql(AssertSqlSafe(Engine::Postgres.dialect(sql)))
                .execute(&mut **tx)
                .await
                .map(|done| done.rows_affected()),
            Self::Sqlite(tx) => sqlx::raw_sql(AssertSqlSafe(Engine::Sqlite.dialect(sql)))
                .execute(&mut **tx)
                .await
                .map(|done| done.rows_affected()),
        }
    }

    /// Runs statements that must succeed.
    pub(crate) async fn execute(&mut self, sql: &str) -> u64 {
        self.try_execute(sql).await.unwrap_or_else(|error| panic!("{sql}\nfailed: {error}"))
    }

    /// Commits.
    pub(crate) async fn commit(self) {
        self.try_commit().await.expect("the transaction commits");
    }

    /// Commits, or gives the database's error.
    pub(crate) async fn try_commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(tx) => tx.commit().await,
            Self::Sqlite(tx) => tx.commit().await,
        }
    }

    /// Rolls back.
    pub(crate) async fn rollback(self) {
        match self {
            Self::Postgres(tx) => tx.rollback().await,
            Self::Sqlite(tx) => tx.rollback().await,
        }
        .expect("the transaction rolls back");
    }
}

/// Runs statements on one PostgreSQL session.
pub(crate) async fn on_session(
    session: &mut PoolConnection<Postgres>,
    sql: &str,
) -> Result<Vec<Row>, sqlx::Error> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut **session).await?;
    Ok(rows.iter().map(postgres_row).collect())
}

/// Closes a session, so that its role and settings reach no other test statement.
pub(crate) async fn close_session(session: PoolConnection<Postgres>) {
    session.detach().close().await.expect("a session closes");
}

impl Engine {
    /// `sql` in this database's dialect.
    pub(crate) fn dialect(self, sql: &str) -> String {
        match self {
            Self::Postgres => sql.to_owned(),
            Self::Sqlite => sql.replace("aftercommit.", "aftercommit_"),
        }
    }

    /// An expression for the database's clock, in the form in which times are stored.
    pub(crate) fn now(self) -> &'static str {
        match self {
            Self::Postgres => "clock_timestamp()",
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        }
    }

    /// An expression for `time` moved by `by`, backwards if `back`.
    fn moved(self, time: &str, by: Duration, sign: char) -> String {
        let micros = duration_micros(by);
        match self {
            Self::Postgres => format!("({time} {sign} {micros} * interval '1 microsecond')"),
            Self::Sqlite => format!("({time} {sign} {micros})"),
        }
    }

    /// An expression for a time `by` after `time`.
    pub(crate) fn after(self, time: &str, by: Duration) -> String {
        self.moved(time, by, '+')
    }

    /// An expression for a time `by` before `time`.
    pub(crate) fn before(self, time: &str, by: Duration) -> String {
        self.moved(time, by, '-')
    }

    /// An expression for a stored time as microseconds since 1970.
    pub(crate) fn micros(self, time: &str) -> String {
        match self {
            Self::Postgres => format!("(extract(epoch FROM {time}) * 1000000)::bigint"),
            Self::Sqlite => time.to_owned(),
        }
    }
}

fn postgres_row(row: &PgRow) -> Row {
    row.columns()
        .iter()
        .map(|column| {
            let raw = row.try_get_raw(column.ordinal()).expect("the column is there");
            let text = (!raw.is_null()).then(|| raw.as_str().expect("text format").to_owned());
            (column.name().to_owned(), text)
        })
        .collect()
}

fn sqlite_row(row: &SqliteRow) -> Row {
    row.columns()
        .iter()
        .map(|column| {
            let text: Option<String> = row.try_get_unchecked(column.ordinal()).expect("readable as text");
            (column.name().to_owned(), text)
        })
        .collect()
}
