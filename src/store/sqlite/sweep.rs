//! What nobody reported: leases that ended, effects that are overdue, answers that came in late, rows that cannot be read.

use std::sync::Arc;

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    row::{Fields, HISTORY, history},
    write::{Ending, Logged, Writes, add_to_counter, log},
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    outcome::{REASON_MAX, Verdict, stored_text},
    state::State,
    store::{Expired, Late, LateAnswer, Overdue, Token},
};

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
            return add_to_counter(conn, &downstream, State::Failed.as_str(), 1).await;
        }
        sqlx::query(
            "UPDATE aftercommit_queue SET lane = 'd', claimed = 0, due_at = NULL, sweep_at = NULL, \
                 uncertain = 1, resend = 0, note = ?2 WHERE id = ?1",
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

/// Logs what a worker found out after it lost its lease, and lets a late *applied* settle.
pub(super) async fn late(
    conn: &mut SqliteConnection,
    answer: &LateAnswer,
    now: Timestamp,
) -> Result<Late, StoreError> {
    let (id, token) = (answer.id.get(), answer.token.get());
    log(conn, &[Logged { id, token, late: true, swept: false, attempt: answer.attempt.clone() }])
        .await
        .map_err(StoreError::during("logging a late answer"))?;
    if answer.attempt.verdict != Verdict::Applied {
        return Ok(Late::Logged);
    }
    let Some(row) = Met::load(conn, id).await? else {
        return ended(conn, id, token).await;
    };
    if row.claimed && (row.uncertain || row.token == token) {
        sqlx::query("UPDATE aftercommit_queue SET applied_late = 1 WHERE id = ?1")
            .bind(id)
            .execute(conn)
            .await
            .map_err(StoreError::during("noting a late answer"))?;
        return Ok(Late::Noted);
    }
    if !row.uncertain {
        // A certain effect that an earlier attempt applied after all: somebody said that it was not.
        return Ok(if row.denied { Late::Contradicts } else { Late::Logged });
    }
    let ending = Ending {
        id,
        downstream: row.downstream.to_string(),
        state: State::Succeeded,
        token,
        note: None,
        number: row.number,
        sent_before: true,
        refusal_stored: false,
        response: answer.response.clone(),
        first: None,
    };
    Writes::of_ending(ending, now).apply(conn).await?;
    Ok(Late::Succeeded)
}

/// A queue row as a late answer meets it.
struct Met {
    downstream: Arc<str>,
    token: i64,
    claimed: bool,
    uncertain: bool,
    number: i64,
    /// A person said *not applied*.
    denied: bool,
}

impl Met {
    async fn load(conn: &mut SqliteConnection, id: i64) -> Result<Option<Self>, StoreError> {
        let row = sqlx::query(
            "SELECT downstream, token, claimed, uncertain, number, EXISTS (SELECT 1 FROM aftercommit_audit \
                 WHERE effect_id = ?1 AND verb = 'resolve not-applied') AS denied \
             FROM aftercommit_queue WHERE id = ?1",
        )
        .bind(id)
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during("reading what a late answer meets"))?;
        let Some(row) = row else { return Ok(None) };
        let fields = Fields::new(&row, "aftercommit_queue", id);
        Ok(Some(Self {
            downstream: fields.text("downstream")?.into(),
            token: fields.int("token")?,
            claimed: fields.flag("claimed")?,
            uncertain: fields.flag("uncertain")?,
            number: fields.int("number")?,
            denied: fields.flag("denied")?,
        }))
    }
}

/// A late *applied* that meets a finished effect: it agrees, or it contradicts what people read there.
async fn ended(conn: &mut SqliteConnection, id: i64, token: i64) -> Result<Late, StoreError> {
    let outcome: Option<(String, i64, Option<i64>)> =
        sqlx::query_as("SELECT state, token, superseded_by FROM aftercommit_outcomes WHERE effect_id = ?1")
            .bind(id)
            .fetch_optional(conn)
            .await
            .map_err(StoreError::during("reading what a late answer meets"))?;
    Ok(match outcome {
        None => Late::Logged,
        Some((_, _, Some(_))) => Late::Contradicts,
        // This very answer, told again.
        Some((state, by, None)) if state == "succeeded" && by == token => Late::Succeeded,
        Some((state, _, None)) if state == "succeeded" => Late::Logged,
        Some(_) => Late::Contradicts,
    })
}

/// Forgets workers that were last seen before `forget`, and claims that nobody carries. Counters need no folding here.
pub(super) async fn maintain(
    conn: &mut SqliteConnection,
    forget: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM aftercommit_workers WHERE seen_at < ?1")
        .bind(forget)
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during("maintaining"))?;
    drop_claims(conn, &[], now).await
}
