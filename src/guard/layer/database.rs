//! What differs between the databases that requests are guarded on.

use std::future::Future;

use crate::guard::{Answer, Begun, GuardError, Request};

/// A database that requests are guarded on: `sqlx::Postgres` or `sqlx::Sqlite`. Nobody else can implement it.
pub trait Guardable: sealed::Differs {}

/// How statements are told to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// By names that the connection keeps.
    Own,
    /// Without names: behind a transaction pooler the next one meets another connection.
    Pooled,
}

/// What the trouble with a database comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It would have to wait for somebody else for too long.
    Busy,
    /// Transactions got in each other's way, and this one is undone.
    Conflict,
    /// It cannot be reached or used, has no connection left, or its answer is lost.
    Away,
    /// It refused: this transaction is undone, and the same would be refused again.
    Refused,
}

impl Trouble {
    /// What `error` comes to on the database `DB`.
    pub(super) fn of<DB: Guardable>(error: &GuardError) -> Self {
        match error {
            GuardError::NotFirst | GuardError::NotBegun | GuardError::Invalid(_) => Self::Refused,
            GuardError::Database(sqlx::Error::Database(said)) => {
                said.code().map_or(Self::Refused, |code| DB::trouble(&code))
            }
            GuardError::Database(error) => {
                let away = matches!(
                    error,
                    sqlx::Error::Io(_)
                        | sqlx::Error::Tls(_)
                        | sqlx::Error::Protocol(_)
                        | sqlx::Error::PoolTimedOut
                        | sqlx::Error::PoolClosed
                        | sqlx::Error::WorkerCrashed
                        | sqlx::Error::BeginFailed
                );
                if away { Self::Away } else { Self::Refused }
            }
        }
    }
}

pub(super) mod sealed {
    use super::{Answer, Begun, Future, GuardError, Request, Session, Trouble};

    /// Implemented here only.
    pub trait Differs: sqlx::Database {
        /// How a transaction begins that is going to write; `None`: by BEGIN.
        const BEGIN_TO_WRITE: Option<&'static str>;

        /// What is known of a request without beginning to act on it, where that costs less; [`Begun::New`]: nothing yet.
        fn look(
            connection: &mut Self::Connection,
            request: &Request,
        ) -> impl Future<Output = Result<Begun, GuardError>> + Send;

        /// See [`Requests::begin_request`](crate::guard::Requests::begin_request).
        fn begin_request(
            connection: &mut Self::Connection,
            session: Session,
            request: &Request,
        ) -> impl Future<Output = Result<Begun, GuardError>> + Send;

        /// See [`Requests::finish_request`](crate::guard::Requests::finish_request).
        fn finish_request(
            connection: &mut Self::Connection,
            session: Session,
            request: &Request,
            answer: &Answer,
        ) -> impl Future<Output = Result<(), GuardError>> + Send;

        /// Runs a statement without parameters.
        fn run(
            connection: &mut Self::Connection,
            statement: &'static str,
        ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

        /// What an error code means.
        fn trouble(code: &str) -> Trouble;
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::{PgConnection, Postgres};

    use super::{Answer, Begun, GuardError, Guardable, Request, Session, Trouble, sealed::Differs};
    use crate::{enqueue::Pooled, guard::Requests as _};

    impl Guardable for Postgres {}

    impl Differs for Postgres {
        const BEGIN_TO_WRITE: Option<&'static str> = None;

        /// Differs from SQLite: the one call that begins a request never waits, and costs one round trip.
        async fn look(_: &mut PgConnection, _: &Request) -> Result<Begun, GuardError> {
            Ok(Begun::New)
        }

        async fn begin_request(
            connection: &mut PgConnection,
            session: Session,
            request: &Request,
        ) -> Result<Begun, GuardError> {
            match session {
                Session::Own => connection.begin_request(request).await,
                Session::Pooled => Pooled(connection).begin_request(request).await,
            }
        }

        async fn finish_request(
            connection: &mut PgConnection,
            session: Session,
            request: &Request,
            answer: &Answer,
        ) -> Result<(), GuardError> {
            match session {
                Session::Own => connection.finish_request(request, answer).await,
                Session::Pooled => Pooled(connection).finish_request(request, answer).await,
            }
        }

        async fn run(connection: &mut PgConnection, statement: &'static str) -> Result<(), sqlx::Error> {
            sqlx::raw_sql(statement).execute(connection).await.map(drop)
        }

        fn trouble(code: &str) -> Trouble {
            match code {
                "40001" | "40P01" => Trouble::Conflict,
                // lock_timeout; statement_timeout.
                "55P03" | "57014" => Trouble::Busy,
                // Read-only: a standby, or a primary that was demoted.
                "25006" => Trouble::Away,
                // Connections, shut-down, resources.
                _ if ["08", "57P", "53"].iter().any(|class| code.starts_with(class)) => Trouble::Away,
                _ => Trouble::Refused,
            }
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use sqlx::{Sqlite, SqliteConnection};

    use super::{Answer, Begun, GuardError, Guardable, Request, Session, Trouble, sealed::Differs};
    use crate::{
        clock::{Clock as _, SystemClock},
        guard::Requests as _,
        store::sqlite::{Stored, stored},
    };

    impl Guardable for Sqlite {}

    impl Differs for Sqlite {
        /// Never deferred: a transaction that has read and wants to write is refused once somebody else wrote.
        const BEGIN_TO_WRITE: Option<&'static str> = Some("BEGIN IMMEDIATE");

        /// Differs from PostgreSQL: whoever begins waits for the one writer, and a repeat need not.
        async fn look(connection: &mut SqliteConnection, request: &Request) -> Result<Begun, GuardError> {
            Ok(match stored(connection, request, SystemClock.wall().micros()).await? {
                Stored::Known(begun) => begun,
                Stored::Nothing | Stored::Forgotten(_) => Begun::New,
            })
        }

        async fn begin_request(
            connection: &mut SqliteConnection,
            _: Session,
            request: &Request,
        ) -> Result<Begun, GuardError> {
            connection.begin_request(request).await
        }

        async fn finish_request(
            connection: &mut SqliteConnection,
            _: Session,
            request: &Request,
            answer: &Answer,
        ) -> Result<(), GuardError> {
            connection.finish_request(request, answer).await
        }

        async fn run(connection: &mut SqliteConnection, statement: &'static str) -> Result<(), sqlx::Error> {
            sqlx::raw_sql(statement).execute(connection).await.map(drop)
        }

        fn trouble(code: &str) -> Trouble {
            // The low byte is the primary code of an extended one.
            match code.parse::<u32>().map(|code| code & 0xff) {
                // BUSY, LOCKED.
                Ok(5 | 6) => Trouble::Busy,
                // NOMEM, READONLY, IOERR, FULL, CANTOPEN.
                Ok(7 | 8 | 10 | 13 | 14) => Trouble::Away,
                _ => Trouble::Refused,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Trouble, sealed::Differs as _};

    #[cfg(feature = "postgres")]
    #[test]
    fn codes_of_postgres_are_read_by_what_to_do_next() {
        for (code, expected) in [
            ("40001", Trouble::Conflict),
            ("40P01", Trouble::Conflict),
            ("57014", Trouble::Busy),
            ("57P01", Trouble::Away),
            ("08006", Trouble::Away),
            ("53300", Trouble::Away),
            ("25006", Trouble::Away),
            ("25P02", Trouble::Refused),
            ("AC001", Trouble::Refused),
            ("23505", Trouble::Refused),
        ] {
            assert_eq!(sqlx::Postgres::trouble(code), expected, "{code}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn extended_codes_of_sqlite_are_read_by_their_primary_code() {
        for (code, expected) in [
            ("5", Trouble::Busy),
            ("517", Trouble::Busy),
            ("261", Trouble::Busy),
            ("13", Trouble::Away),
            ("778", Trouble::Away),
            ("787", Trouble::Refused),
            ("1811", Trouble::Refused),
            ("", Trouble::Refused),
        ] {
            assert_eq!(sqlx::Sqlite::trouble(code), expected, "{code}");
        }
    }
}
