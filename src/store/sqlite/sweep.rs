//! What nobody reported: leases that ended, effects that are overdue, rows that cannot be read.

use std::time::Duration;

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    row::{Fields, HISTORY, history},
    write::count_ended,
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    state::State,
    store::{Expired, Overdue, Token},
};

/// A worker that has not reported for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// What was found, and what could not be read: (id, why).
pub(super) type Found<T> = (Vec<T>, Vec<(i64, StoreError)>);

/// Claims whose lease ended. A claimed row without its claim is one that nobody can renew: it is over, too.
pub(super) async fn expired(
    conn: &mut SqliteConnection,
    limit: u32,
    now: Timestamp,
) -> Result<Found<Expired>, StoreError> {
    let sql = format!(
        "SELECT q.id, q.downstream, q.token, q.number, e.operation, c.worker, c.claimed_at, c.lease_until, {HISTORY} \
         FROM aftercommit_queue AS q \
         LEFT JOIN aftercommit_claims AS c ON c.token = q.token \
         LEFT JOIN aftercommit_effects AS e ON e.id = q.id \
         LEFT JOIN aftercommit_terms AS p ON p.id = q.terms \
         WHERE q.claimed = 1 AND coalesce(c.lease_until, 0) <= ?1 ORDER BY q.token, q.id LIMIT ?2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.micros())
        .bind(i64::from(limit))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during("looking for leases that ended"))?;
    sort_out(&rows, |fields, id| {
        Ok(Expired {
            id: EffectId::new(id),
            downstream: fields.text("downstream")?.into(),
            operation: fields.of("aftercommit_effects").opt_text("operation")?,
            token: Token::new(fields.int("token")?),
            history: history(fields, now)?,
            number: fields.count("number")?,
            worker: fields.opt_text("worker")?.unwrap_or_default().into(),
            claimed_at: fields.opt_time("claimed_at")?.unwrap_or(now),
            lease_until: fields.opt_time("lease_until")?.unwrap_or(now),
        })
    })
}

/// Unclaimed pending effects whose `sweep_at` has passed. Served by `aftercommit_queue_sweep`.
pub(super) async fn overdue(
    conn: &mut SqliteConnection,
    limit: u32,
    now: Timestamp,
) -> Result<Found<Overdue>, StoreError> {
    let sql = format!(
        "SELECT q.id, q.downstream, q.token, e.operation, {HISTORY} \
         FROM aftercommit_queue AS q \
         LEFT JOIN aftercommit_effects AS e ON e.id = q.id \
         LEFT JOIN aftercommit_terms AS p ON p.id = q.terms \
         WHERE q.sweep_at <= ?1 AND q.claimed = 0 AND q.lane <> 'd' ORDER BY q.sweep_at, q.id LIMIT ?2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.micros())
        .bind(i64::from(limit))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during("looking for overdue effects"))?;
    sort_out(&rows, |fields, id| {
        Ok(Overdue {
            id: EffectId::new(id),
            downstream: fields.text("downstream")?.into(),
            operation: fields.of("aftercommit_effects").opt_text("operation")?,
            token: Token::new(fields.int("token")?),
            history: history(fields, now)?,
        })
    })
}

fn sort_out<T>(
    rows: &[SqliteRow],
    read: impl Fn(&Fields<'_>, i64) -> Result<T, StoreError>,
) -> Result<Found<T>, StoreError> {
    let mut found = Vec::with_capacity(rows.len());
    let mut unreadable = Vec::new();
    for row in rows {
        let id = row.try_get("id").map_err(StoreError::during("sweeping"))?;
        match read(&Fields::new(row, "aftercommit_queue", id), id) {
            Ok(value) => found.push(value),
            Err(problem) => unreadable.push((id, problem)),
        }
    }
    Ok((found, unreadable))
}

/// Ends an effect whose row cannot be read, or parks it when an attempt may have reached the downstream. Either is
/// visible, with the reason; a batch that it stood in goes on without it.
pub(super) async fn set_aside(
    conn: &mut SqliteConnection,
    id: i64,
    problem: &StoreError,
    now: Timestamp,
) -> Result<(), StoreError> {
    tracing::error!(effect = id, %problem, "a row cannot be read: its effect is set aside");
    let note = stored_text(&problem.to_string(), REASON_MAX);
    let done = async {
        let failed: Option<String> = sqlx::query_scalar(
            "INSERT INTO aftercommit_outcomes \
                 (effect_id, downstream, state, finished_at, token, note, number, sent_before) \
             SELECT id, downstream, 'failed', ?2, token, ?3, max(number, 0), sent_before \
             FROM aftercommit_queue WHERE id = ?1 AND claimed = 0 AND uncertain = 0 RETURNING downstream",
        )
        .bind(id)
        .bind(now.micros())
        .bind(note.clone())
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(downstream) = failed {
            sqlx::query("DELETE FROM aftercommit_queue WHERE id = ?1").bind(id).execute(&mut *conn).await?;
            return count_ended(conn, (&downstream, State::Failed.as_str()), 1, now).await;
        }
        sqlx::query(
            "UPDATE aftercommit_queue SET lane = 'd', claimed = 0, due_at = NULL, sweep_at = NULL, \
                 uncertain = 1, resend = 0, resend_unconfirmed = 0, note = ?2 WHERE id = ?1",
        )
        .bind(id)
        .bind(note)
        .execute(conn)
        .await?;
        Ok(())
    };
    done.await.map_err(StoreError::during("setting aside a row that cannot be read"))
}

/// Drops claims that none of their effects carries any more: those of `tokens`, and those whose lease ended.
pub(super) async fn drop_claims(
    conn: &mut SqliteConnection,
    tokens: &[Token],
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM aftercommit_claims \
         WHERE (token IN (SELECT value FROM json_each(?1)) OR lease_until <= ?2) AND NOT EXISTS ( \
             SELECT 1 FROM aftercommit_queue AS q WHERE q.token = aftercommit_claims.token AND q.claimed = 1)",
    )
    .bind(super::row::json_ids(tokens.iter().map(|token| token.get())))
    .bind(now.micros())
    .execute(conn)
    .await
    .map_err(StoreError::during("dropping claims"))?;
    Ok(())
}

/// Folds the traffic, forgets workers that have not reported for long, and claims that nobody carries. Counters need no folding
/// here.
pub(super) async fn maintain(conn: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM aftercommit_workers WHERE seen_at < ?1")
        .bind(now.minus(FORGET_AFTER).micros())
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during("maintaining"))?;
    super::chart::fold(conn, now).await.map_err(StoreError::during("maintaining"))?;
    super::budget::forget_origins(conn, now).await?;
    super::probe::forget(conn, now).await?;
    drop_claims(conn, &[], now).await
}
