//! The record of requests and the inbox, on the caller's connection. The functions of the migration decide; this file calls
//! them.

use std::time::Duration;

use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    Pooled,
    session::Session,
    statement::{Statement, sql},
};
use crate::{
    clock::duration_micros,
    guard::{Answer, Begun, GuardError, Inbox, Request, Requests, check_message, check_ttl},
};

const BEGIN: &str = "SELECT status, response_status, response_headers, response_body
FROM aftercommit.begin_request($1::text, $2::text, $3::text, $4::int8 * interval '1 microsecond')";
const FINISH: &str = "SELECT aftercommit.finish_request($1::text, $2::text, $3::int4, $4::bytea, $5::bytea)";
const ACCEPT: &str =
    "SELECT aftercommit.inbox_accept($1::text, $2::text, $3::int8 * interval '1 microsecond') AS accepted";

/// What `begin_request` raises where something precedes it.
const NOT_FIRST: &str = "25001";
/// What `finish_request` raises where nothing was begun.
const NOT_BEGUN: &str = "55000";

impl Requests for PgConnection {
    async fn begin_request(&mut self, request: &Request) -> Result<Begun, GuardError> {
        begin(self, Session::Own, request).await
    }

    async fn finish_request(&mut self, request: &Request, answer: &Answer) -> Result<(), GuardError> {
        finish(self, Session::Own, request, answer).await
    }
}

impl Requests for Pooled<'_> {
    async fn begin_request(&mut self, request: &Request) -> Result<Begun, GuardError> {
        begin(self.0, Session::Borrowed, request).await
    }

    async fn finish_request(&mut self, request: &Request, answer: &Answer) -> Result<(), GuardError> {
        finish(self.0, Session::Borrowed, request, answer).await
    }
}

impl Inbox for PgConnection {
    async fn accept(&mut self, consumer: &str, key: &str, keep: Duration) -> Result<bool, GuardError> {
        accept(self, Session::Own, consumer, key, keep).await
    }
}

impl Inbox for Pooled<'_> {
    async fn accept(&mut self, consumer: &str, key: &str, keep: Duration) -> Result<bool, GuardError> {
        accept(self.0, Session::Borrowed, consumer, key, keep).await
    }
}

async fn one(
    connection: &mut PgConnection,
    session: Session,
    statement: Statement<'_>,
) -> Result<PgRow, sqlx::Error> {
    session.name(statement).fetch_one(connection).await
}

async fn begin(
    connection: &mut PgConnection,
    session: Session,
    request: &Request,
) -> Result<Begun, GuardError> {
    check_ttl(request.ttl)?;
    let statement = sql(BEGIN)
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(request.fingerprint.as_str())
        .bind(request.ttl.map(duration_micros));
    let row = one(connection, session, statement).await.map_err(refused)?;
    Ok(match row.try_get::<&str, _>("status")? {
        "new" => Begun::New,
        "in_progress" => Begun::InProgress,
        "mismatch" => Begun::Mismatch,
        "replay" => Begun::Replay(Answer {
            status: u16::try_from(row.try_get::<i32, _>("response_status")?)
                .map_err(|error| sqlx::Error::Decode(error.into()))?,
            headers: row.try_get("response_headers")?,
            body: row.try_get("response_body")?,
        }),
        other => return Err(sqlx::Error::Protocol(format!("begin_request said {other:?}")).into()),
    })
}

async fn finish(
    connection: &mut PgConnection,
    session: Session,
    request: &Request,
    answer: &Answer,
) -> Result<(), GuardError> {
    let statement = sql(FINISH)
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(i32::from(answer.status))
        .bind(answer.headers.as_slice())
        .bind(answer.body.as_slice());
    one(connection, session, statement).await.map(drop).map_err(refused)
}

fn refused(error: sqlx::Error) -> GuardError {
    match error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() {
        Some(NOT_FIRST) => GuardError::NotFirst,
        Some(NOT_BEGUN) => GuardError::NotBegun,
        _ => error.into(),
    }
}

async fn accept(
    connection: &mut PgConnection,
    session: Session,
    consumer: &str,
    key: &str,
    keep: Duration,
) -> Result<bool, GuardError> {
    check_message(consumer, key, keep)?;
    let statement = sql(ACCEPT).bind(consumer).bind(key).bind(duration_micros(keep));
    Ok(one(connection, session, statement).await?.try_get("accepted")?)
}
