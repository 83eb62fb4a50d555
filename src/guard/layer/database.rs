//! What differs between the databases that requests are guarded on.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{fmt, future::Future, time::Duration};

use sqlx_core::sql_str::SqlStr;

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

/// What a transaction is begun for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A request with a key.
    Guard,
    /// One without, that may write.
    Write,
    /// One that is not going to.
    Read,
}

/// How a transaction begins.
#[derive(Clone, Debug)]
pub struct Begin {
    pub(super) statement: SqlStr,
    /// It sets the mark, too.
    pub(super) marks: bool,
}

/// Where a refusal that is remembered goes back to: behind `begin_request`, before the handler's first statement. While it is
/// there, so is the transaction.
pub(super) const MARK: &str = "SAVEPOINT aftercommit_request";
pub(super) const BACK_TO_MARK: &str = "ROLLBACK TO SAVEPOINT aftercommit_request";
pub(super) const RELEASE_MARK: &str = "RELEASE SAVEPOINT aftercommit_request";

/// The database was given up.
#[derive(Debug)]
struct OutOfPatience(&'static str);

impl fmt::Display for OutOfPatience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for OutOfPatience {}

/// It is there, and takes too long.
pub(super) fn out_of_patience(why: &'static str) -> GuardError {
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, OutOfPatience(why));
    GuardError::Database(sqlx::Error::Io(error))
}

/// What the trouble with a database comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It would have to wait for somebody else for too long.
    Busy,
    /// Transactions got in each other's way, and this one is undone.
    Conflict,
    /// It cannot be reached or used, or its answer is lost.
    Away,
    /// The transaction had ended before; what was written since then was committed by itself.
    Lost,
    /// It refused: this transaction is undone, and the same would be refused again.
    Refused,
}

impl Trouble {
    /// What `error` comes to on the database `DB`.
    pub(super) fn of<DB: Guardable>(error: &GuardError) -> Self {
        match error {
            GuardError::NotBegun => Self::Lost,
            GuardError::NotFirst | GuardError::Invalid(_) => Self::Refused,
            GuardError::Database(sqlx::Error::Database(said)) => {
                said.code().map_or(Self::Refused, |code| DB::trouble(&code))
            }
            // A pool that others have emptied says nothing about the database.
            GuardError::Database(sqlx::Error::PoolTimedOut) => Self::Busy,
            GuardError::Database(sqlx::Error::Io(error))
                if error.get_ref().is_some_and(|inner| inner.is::<OutOfPatience>()) =>
            {
                Self::Busy
            }
            GuardError::Database(error) => {
                let away = matches!(
                    error,
                    sqlx::Error::Io(_)
                        | sqlx::Error::Tls(_)
                        | sqlx::Error::Protocol(_)
                        | sqlx::Error::PoolClosed
                        | sqlx::Error::WorkerCrashed
                        | sqlx::Error::BeginFailed
                );
                if away { Self::Away } else { Self::Refused }
            }
        }
    }

    /// The same of an error that COMMIT ended with. `None`: whether it was committed is not known. Poolers and proxies answer for
    /// a server that they have lost with codes of their own, so only codes that a server itself gives prove that it was not.
    pub(super) fn of_commit<DB: Guardable>(error: &GuardError) -> Option<Self> {
        let GuardError::Database(sqlx::Error::Database(said)) = error else { return None };
        let undone = said.code().is_some_and(|code| DB::undoes_commit(&code));
        undone.then(|| Self::of::<DB>(error))
    }
}

/// What a statement about the mark ended with: without a mark the transaction is another one, or none.
pub(super) fn at_mark<DB: Guardable>(error: sqlx::Error) -> GuardError {
    let lost = error
        .as_database_error()
        .is_some_and(|said| said.code().is_some_and(|code| DB::has_no_transaction(&code, said.message())));
    if lost { GuardError::NotBegun } else { error.into() }
}

pub(super) mod sealed {
    use super::{Answer, Begin, Begun, Duration, Future, GuardError, Purpose, Request, Session, Trouble};

    /// Implemented here only.
    pub trait Differs: sqlx::Database {
        /// Whether whoever writes waits for whoever writes, connection by connection.
        const ONE_WRITER: bool;

        /// Whether BEGIN stands alone in its statement: then an error is its own, and no transaction is open.
        const BEGINS_ALONE: bool;

        /// How a transaction begins. Nothing in it takes longer than `limit`, and a margin.
        fn begin(purpose: Purpose, limit: Duration) -> Begin;

        /// How long a connection waits for the one writer.
        fn patience(
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<Duration, sqlx::Error>> + Send;

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

        /// Whether a COMMIT that ends with this code has certainly committed nothing.
        fn undoes_commit(code: &str) -> bool;

        /// Whether an error means that there is no transaction, or another one than ours.
        fn has_no_transaction(code: &str, message: &str) -> bool;
    }
}
