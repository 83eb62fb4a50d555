//! What a session, or a transaction in somebody else's session, is told before our statements run in it.

use std::time::Duration;

use sqlx::{
    ConnectOptions as _, PgConnection, Row as _,
    postgres::{PgConnectOptions, PgRow},
};
use tokio::time::timeout;

use super::statement::Statement;

/// An expression that makes the commit of its transaction durable where the database was told not to wait: raised, never
/// lowered. It must stand in every statement that a downstream, or a person, will act on.
macro_rules! durable {
    () => {
        "pg_catalog.set_config('synchronous_commit', CASE pg_catalog.current_setting('synchronous_commit') \
         WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE pg_catalog.current_setting('synchronous_commit') END, true)"
    };
}
pub(super) use durable;

/// What holds for our statements, whatever the role or the database says: for the session, or for the transaction.
///
/// A short `statement_timeout` goes first: it could end the rest. The planner's settings, because a plan made while the
/// tables were empty is kept, and must still be the right one at ten million rows: small sets joined through indexes, and no
/// compilation. No name is looked up where others may create things; nor are those of this statement, which runs first.
macro_rules! settings {
    ($local:literal) => {
        concat!(
            "SELECT pg_catalog.set_config('statement_timeout', '60s', ",
            $local,
            "), pg_catalog.set_config('lock_timeout', '10s', ",
            $local,
            "), pg_catalog.set_config('idle_in_transaction_session_timeout', '30s', ",
            $local,
            "), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', ",
            $local,
            "), pg_catalog.set_config('row_security', 'on', ",
            $local,
            "), pg_catalog.set_config('client_min_messages', 'error', ",
            $local,
            "), pg_catalog.set_config('jit', 'off', ",
            $local,
            "), pg_catalog.set_config('enable_hashjoin', 'off', ",
            $local,
            "), pg_catalog.set_config('enable_mergejoin', 'off', ",
            $local,
            "), pg_catalog.set_config('enable_seqscan', 'off', ",
            $local,
            ")"
        )
    };
}

/// Not by `options=-c …`, which a pooler that nobody declared would refuse. READ COMMITTED, because each statement must see
/// what was committed before it.
const TELL_SESSION: &str = concat!(
    settings!("false"),
    ", pg_catalog.set_config('default_transaction_isolation', 'read committed', false)
    , pg_catalog.set_config('default_transaction_read_only', 'off', false), pg_catalog.set_config('default_transaction_deferrable', 'off', false)
    , pg_catalog.set_config('tcp_keepalives_idle', '30', false), pg_catalog.set_config('tcp_keepalives_interval', '10', false)
    , pg_catalog.set_config('tcp_keepalives_count', '3', false)"
);
const BEGIN_OWN: &str = concat!("BEGIN; SELECT ", durable!());
/// In one round trip. Two statements: the operators of the second are looked up where the first says.
const BEGIN_BORROWED: &str = concat!(
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE; ",
    settings!("true"),
    "; SELECT ",
    durable!()
);

/// Where the role's `statement_timeout` is next to nothing, telling it otherwise may take several tries.
const TELL_TRIES: usize = 50;
/// How long a server may take to accept a connection and to answer on it.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Whose session a statement runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// Ours as long as the connection lives.
    Own,
    /// A transaction pooler's: anybody's, and ours for one transaction.
    Borrowed,
}

impl Session {
    /// Connects, outside any pool.
    pub(super) async fn connect(self, options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
        let options = self.fit(options.clone());
        let connect = async {
            let mut connection = options.connect().await?;
            self.greet(&mut connection).await?;
            Ok(connection)
        };
        timeout(CONNECT_MAX, connect).await.unwrap_or_else(|_elapsed| {
            let words = format!("the server did not answer within {} s", CONNECT_MAX.as_secs());
            Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words)))
        })
    }

    /// Poolers refuse start parameters that they do not follow.
    pub(super) fn fit(self, options: PgConnectOptions) -> PgConnectOptions {
        match self {
            Self::Own => options,
            Self::Borrowed => options.extra_float_digits(None),
        }
    }

    /// Tells a new connection what holds for its statements; refuses one to a server that cannot be written to.
    pub(super) async fn greet(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self == Self::Own {
            told(connection, TELL_SESSION).await?;
        }
        // By a simple query: outside of a transaction, not even a statement without a name is on the same server connection
        // when it is prepared and when it runs.
        let row = sqlx::raw_sql("SELECT pg_catalog.pg_is_in_recovery()").fetch_one(connection).await?;
        if row.try_get(0)? { Err(standby_error()) } else { Ok(()) }
    }

    pub(super) async fn begin(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        match self {
            Self::Own => sqlx::raw_sql(BEGIN_OWN).execute(connection).await.map(drop),
            Self::Borrowed => told(connection, BEGIN_BORROWED).await,
        }
    }

    pub(super) async fn commit(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("COMMIT").execute(connection).await.map(drop)
    }

    /// A named statement is kept by the server connection that it was prepared on.
    pub(super) fn name(self, statement: Statement<'_>) -> Statement<'_> {
        match self {
            Self::Own => statement,
            Self::Borrowed => statement.persistent(false),
        }
    }

    /// All rows of a statement that stands alone on a connection of its own. The connection is of no use after an error.
    pub(super) async fn all_on(
        self,
        connection: &mut PgConnection,
        statement: Statement<'_>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        match self {
            Self::Own => statement.fetch_all(connection).await,
            Self::Borrowed => {
                self.begin(connection).await?;
                let rows = self.name(statement).fetch_all(&mut *connection).await?;
                self.commit(connection).await?;
                Ok(rows)
            }
        }
    }
}

/// Runs `text` although the role's `statement_timeout` may end it before it is told otherwise.
async fn told(connection: &mut PgConnection, text: &'static str) -> Result<(), sqlx::Error> {
    for _ in 1..TELL_TRIES {
        match sqlx::raw_sql(text).execute(&mut *connection).await {
            Err(error) if is(&error, "57014") => {
                sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await.map(drop)?;
            }
            // READ WRITE is no feature of a server in recovery.
            Err(error) if is(&error, "0A000") => return Err(standby_error()),
            told => return told.map(drop),
        }
    }
    sqlx::raw_sql(text).execute(connection).await.map(drop)
}

/// Whether the server refused a connection because it has no more.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    is(error, "53300")
}

fn is(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|found| found == code)
}

/// An outage, as far as anybody waits for it to end.
fn standby_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::ReadOnlyFilesystem,
        "this server is a standby (in recovery) and cannot be written to: connect to the primary, \
         or let the address that the URL names follow the failover",
    ))
}
