//! PostgreSQL, as the guard needs it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, SqlSafeStr as _};

use super::{
    Answer, Begin, Begun, GuardError, Guardable, MARK, Purpose, Request, Session, Trouble, sealed::Differs,
};
use crate::{enqueue::Pooled, guard::Requests as _};

impl Guardable for Postgres {}

/// The guard itself stops a handler at its limit; what outlives it by this much has no guard any more.
const MARGIN: Duration = Duration::from_secs(5);
/// PostgreSQL's own settings of time end here.
const MILLIS_MAX: u128 = i32::MAX as u128;

impl Differs for Postgres {
    const ONE_WRITER: bool = false;
    const BEGINS_ALONE: bool = false;

    /// The server ends the session of a guard that has vanished, and a statement that nobody waits for: otherwise a host
    /// that lost its power would hold its keys for hours, until TCP notices. What the application set shorter stays. All in one
    /// round trip.
    fn begin(purpose: Purpose, limit: Duration) -> Begin {
        let marks = purpose != Purpose::Guard;
        let millis = limit.saturating_add(MARGIN).as_millis().min(MILLIS_MAX);
        let mark = if marks { MARK } else { "" };
        let statement = format!(
            "BEGIN; SELECT pg_catalog.set_config(name, '{millis}', true) \
             FROM (VALUES ('statement_timeout'), ('idle_in_transaction_session_timeout')) AS bound (name) \
             WHERE pg_catalog.current_setting(name)::interval NOT BETWEEN '1 microsecond' AND '{millis} ms'; {mark}"
        );
        Begin { statement: AssertSqlSafe(statement).into_sql_str(), marks }
    }

    /// Writers wait for rows only.
    async fn patience(_: &mut PgConnection) -> Result<Duration, sqlx::Error> {
        Ok(Duration::ZERO)
    }

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
            // lock_timeout; statement_timeout; the session or the transaction was idle or open for too long; others have
            // all the server's connections.
            "55P03" | "57014" | "25P03" | "25P04" | "57P05" | "53300" => Trouble::Busy,
            // Read-only: a standby, or a primary that was demoted.
            "25006" => Trouble::Away,
            // Connections, shut-down, resources.
            _ if ["08", "57P", "53"].iter().any(|class| code.starts_with(class)) => Trouble::Away,
            _ => Trouble::Refused,
        }
    }

    /// Constraints and triggers that were deferred, conflicts, limits of time, and ours. Not 40003, nor 08, 57P, 58 and XX.
    fn undoes_commit(code: &str) -> bool {
        matches!(code, "40001" | "40P01" | "55P03" | "57014")
            || ["23", "25", "P0", "AC"].iter().any(|class| code.starts_with(class))
    }

    fn has_no_transaction(code: &str, _: &str) -> bool {
        matches!(code, "25P01" | "3B001")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_postgres_are_read_by_what_to_do_next() {
        for (code, expected) in [
            ("40001", Trouble::Conflict),
            ("40P01", Trouble::Conflict),
            ("57014", Trouble::Busy),
            ("57P01", Trouble::Away),
            ("08006", Trouble::Away),
            ("53300", Trouble::Busy),
            ("25P03", Trouble::Busy),
            ("25P04", Trouble::Busy),
            ("57P05", Trouble::Busy),
            ("25006", Trouble::Away),
            ("25P02", Trouble::Refused),
            ("AC001", Trouble::Refused),
            ("23505", Trouble::Refused),
        ] {
            assert_eq!(sqlx::Postgres::trouble(code), expected, "{code}");
        }
    }

    #[test]
    fn only_codes_that_a_server_gives_itself_prove_that_nothing_was_committed() {
        for code in ["23505", "23503", "40001", "40P01", "55P03", "57014", "AC001", "25P02", "25P03", "P0001"]
        {
            assert!(sqlx::Postgres::undoes_commit(code), "{code}");
        }
        for code in ["58000", "XX000", "F0000", "08006", "08P01", "57P01", "57P05", "40003", "53300", ""] {
            assert!(!sqlx::Postgres::undoes_commit(code), "{code}");
        }
    }
}
