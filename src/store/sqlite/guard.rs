//! The record of requests and the inbox, on the caller's connection. There is one writer: who has the write lock sees every
//! answer there is.

use std::time::Duration;

use sqlx::{Row as _, SqliteConnection};

use crate::{
    clock::{Clock, SystemClock, duration_micros},
    guard::{Answer, Begun, GuardError, Inbox, Request, Requests, check_message, check_ttl},
};

/// `forgotten`: kept long enough, and no effect that it wrote is unfinished; by a clock that retention believes, since one that
/// jumped would have every repeat act again.
const STORED: &str = "SELECT id, fingerprint, response_status, response_headers, response_body, \
     expires_at <= ?3 \
     AND EXISTS (SELECT 1 FROM aftercommit_retention WHERE step = 'keys' AND looked_at >= ?3 - 86400000000) \
     AND NOT EXISTS (SELECT 1 FROM aftercommit_effects AS e WHERE e.request_id = r.id \
         AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes AS o WHERE o.effect_id = e.id)) AS forgotten \
     FROM aftercommit_requests AS r WHERE scope = ?1 AND key = ?2";
const FORGET: &str = "DELETE FROM aftercommit_requests WHERE id = ?1";
const INSERT: &str = "INSERT INTO aftercommit_requests (scope, key, fingerprint, created_at, expires_at) \
     VALUES (?1, ?2, ?3, ?4, ?4 + coalesce(?5, \
         (SELECT CAST(value AS INTEGER) FROM aftercommit_meta WHERE key = 'requests_kept_us'), 86400000000))";
const FINISH: &str = "UPDATE aftercommit_requests \
     SET response_status = ?3, response_headers = ?4, response_body = ?5, unanswered = NULL \
     WHERE scope = ?1 AND key = ?2 AND unanswered IS NOT NULL";
const ACCEPT: &str = "INSERT INTO aftercommit_inbox (consumer, key, received_at, expires_at) VALUES (?1, ?2, ?3, ?3 + ?4) \
     ON CONFLICT (consumer, key) DO NOTHING";

impl Requests for SqliteConnection {
    async fn begin_request(&mut self, request: &Request) -> Result<Begun, GuardError> {
        check_ttl(request.ttl)?;
        let now = SystemClock.wall().micros();
        match stored(self, request, now).await? {
            Stored::Nothing => {}
            Stored::Forgotten(id) => {
                sqlx::query(FORGET).bind(id).execute(&mut *self).await?;
            }
            Stored::Known(begun) => return Ok(begun),
        }
        sqlx::query(INSERT)
            .bind(request.scope.as_str().to_owned())
            .bind(request.key.as_str().to_owned())
            .bind(request.fingerprint.as_str().to_owned())
            .bind(now)
            .bind(request.ttl.map(duration_micros))
            .execute(self)
            .await
            .map_err(refused)?;
        Ok(Begun::New)
    }

    async fn finish_request(&mut self, request: &Request, answer: &Answer) -> Result<(), GuardError> {
        let finished = sqlx::query(FINISH)
            .bind(request.scope.as_str().to_owned())
            .bind(request.key.as_str().to_owned())
            .bind(i64::from(answer.status))
            .bind(answer.headers.clone())
            .bind(answer.body.clone())
            .execute(self)
            .await?;
        if finished.rows_affected() == 1 { Ok(()) } else { Err(GuardError::NotBegun) }
    }
}

impl Inbox for SqliteConnection {
    async fn accept(&mut self, consumer: &str, key: &str, keep: Duration) -> Result<bool, GuardError> {
        check_message(consumer, key, keep)?;
        let accepted = sqlx::query(ACCEPT)
            .bind(consumer.to_owned())
            .bind(key.to_owned())
            .bind(SystemClock.wall().micros())
            .bind(duration_micros(keep))
            .execute(self)
            .await?;
        Ok(accepted.rows_affected() == 1)
    }
}

/// The trigger's words.
fn refused(error: sqlx::Error) -> GuardError {
    let begun =
        |error: &dyn sqlx::error::DatabaseError| error.message().contains("has begun a request already");
    if error.as_database_error().is_some_and(begun) { GuardError::NotFirst } else { error.into() }
}

/// What is stored of a request.
pub(crate) enum Stored {
    Nothing,
    /// Kept long enough.
    Forgotten(i64),
    Known(Begun),
}

/// Looks without the write lock, too: whoever only repeats a request need not wait for a writer.
pub(crate) async fn stored(
    connection: &mut SqliteConnection,
    request: &Request,
    now: i64,
) -> Result<Stored, GuardError> {
    let row = sqlx::query(STORED)
        .bind(request.scope.as_str().to_owned())
        .bind(request.key.as_str().to_owned())
        .bind(now)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Stored::Nothing) };
    // No other transaction's row is seen before it has its answer.
    let Some(status) = row.try_get::<Option<u16>, _>("response_status")? else {
        return Err(GuardError::NotFirst);
    };
    if row.try_get("forgotten")? {
        return Ok(Stored::Forgotten(row.try_get("id")?));
    }
    if row.try_get::<&str, _>("fingerprint")? != request.fingerprint.as_str() {
        return Ok(Stored::Known(Begun::Mismatch));
    }
    Ok(Stored::Known(Begun::Replay(Answer {
        status,
        headers: row.try_get::<Option<Vec<u8>>, _>("response_headers")?.unwrap_or_default(),
        body: row.try_get::<Option<Vec<u8>>, _>("response_body")?.unwrap_or_default(),
    })))
}
