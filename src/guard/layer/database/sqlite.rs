//! SQLite, as the guard needs it.

use std::time::Duration;

use sqlx::{Sqlite, SqliteConnection};
use sqlx_core::sql_str::SqlStr;

use super::{
    Answer, Begin, Begun, GuardError, Guardable, Purpose, Request, Session, Trouble, sealed::Differs,
};
use crate::{
    clock::{Clock as _, SystemClock},
    guard::Requests as _,
    store::sqlite::{Stored, stored},
};

impl Guardable for Sqlite {}

impl Differs for Sqlite {
    const ONE_WRITER: bool = true;
    const BEGINS_ALONE: bool = true;

    /// Who writes is never deferred: a transaction that has read and wants to write is refused once somebody else wrote.
    /// Differs from PostgreSQL: a process that vanishes has no transaction left, so there is nothing to bound.
    fn begin(purpose: Purpose, _: Duration) -> Begin {
        let statement = match purpose {
            Purpose::Guard | Purpose::Write => SqlStr::from_static("BEGIN IMMEDIATE"),
            Purpose::Read => SqlStr::from_static("BEGIN"),
        };
        Begin { statement, marks: false }
    }

    async fn patience(connection: &mut SqliteConnection) -> Result<Duration, sqlx::Error> {
        let millis: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(connection).await?;
        Ok(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }

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
            // BUSY, LOCKED, INTERRUPT, PROTOCOL (the race for the locks of the WAL was lost too often).
            Ok(5 | 6 | 9 | 15) => Trouble::Busy,
            // NOMEM, READONLY, IOERR, FULL, CANTOPEN.
            Ok(7 | 8 | 10 | 13 | 14) => Trouble::Away,
            _ => Trouble::Refused,
        }
    }

    /// BUSY, LOCKED, CONSTRAINT (a deferred foreign key): the transaction is still open then.
    fn undoes_commit(code: &str) -> bool {
        matches!(code.parse::<u32>().map(|code| code & 0xff), Ok(5 | 6 | 19))
    }

    /// Both are told by a code that means anything.
    fn has_no_transaction(_: &str, message: &str) -> bool {
        message.contains("no such savepoint") || message.contains("no transaction is active")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_of_sqlite_are_read_by_their_primary_code() {
        for (code, expected) in [
            ("5", Trouble::Busy),
            ("517", Trouble::Busy),
            ("261", Trouble::Busy),
            ("9", Trouble::Busy),
            ("15", Trouble::Busy),
            ("13", Trouble::Away),
            ("778", Trouble::Away),
            ("787", Trouble::Refused),
            ("1811", Trouble::Refused),
            ("", Trouble::Refused),
        ] {
            assert_eq!(sqlx::Sqlite::trouble(code), expected, "{code}");
        }
    }

    #[test]
    fn only_a_transaction_that_is_still_open_proves_that_sqlite_committed_nothing() {
        for (code, undone) in
            [("5", true), ("787", true), ("10", false), ("1034", false), ("13", false), ("1", false)]
        {
            assert_eq!(sqlx::Sqlite::undoes_commit(code), undone, "{code}");
        }
    }
}
