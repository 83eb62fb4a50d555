//! Claiming, renewing, and whether there is anything to claim.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    budget::{HELD, REGISTERED_HELD},
    row::{Fields, HISTORY, history, json_ids, next_token},
    sweep::set_aside,
};
use crate::{
    clock::Timestamp,
    contract::Window,
    effect::{Effect, EffectId},
    error::StoreError,
    store::{Claim, Token, Want},
};

/// Whether anything of `?1` is due at `?2`: asked on a reader, so that an idle worker never takes the one write lock.
pub(super) const IS_DUE: &str = "(EXISTS (SELECT 1 FROM aftercommit_queue WHERE downstream = ?1 AND lane = 'r' AND claimed = 0) \
       OR EXISTS (SELECT 1 FROM aftercommit_queue \
             WHERE downstream = ?1 AND lane = 't' AND claimed = 0 AND due_at <= ?2))";

/// Claims for one downstream: look, count, mark, all in the caller's transaction.
pub(super) async fn claim_one(
    conn: &mut SqliteConnection,
    worker: &Arc<str>,
    want: &Want,
    now: Timestamp,
) -> Result<Vec<Claim>, StoreError> {
    let rows = due(conn, want, now).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let terms = Terms::load(conn, want).await?;
    let mut claims = Vec::with_capacity(rows.len());
    for row in &rows {
        let id: i64 = row.try_get("id").map_err(StoreError::during("claiming"))?;
        match terms.claim(row, id, want, now) {
            Ok(claim) => claims.push(claim),
            // One row that cannot be read must not stop the others: it ends, or is parked, where people see it.
            Err(problem) => set_aside(conn, id, &problem, now).await?,
        }
    }
    if claims.is_empty() {
        return Ok(claims);
    }
    let token = next_token(conn).await?;
    for claim in &mut claims {
        claim.token = token;
    }
    sqlx::query(
        "INSERT INTO aftercommit_claims (token, worker, claimed_at, lease_until) VALUES (?1, ?2, ?3, ?4)",
    )
    .bind(token.get())
    .bind(worker.to_string())
    .bind(now.micros())
    .bind(now.plus(want.lease).micros())
    .execute(&mut *conn)
    .await
    .map_err(StoreError::during("claiming"))?;
    mark(conn, &claims, &terms, now).await?;
    Ok(claims)
}

/// Due effects of one downstream, oldest first. Served by `aftercommit_queue_lane`; each lane is read in its order and cut.
async fn due(conn: &mut SqliteConnection, want: &Want, now: Timestamp) -> Result<Vec<SqliteRow>, StoreError> {
    let held = HELD;
    let sql = format!(
        "SELECT q.id, q.number, e.operation, e.downstream, e.idempotency_key, e.payload, e.body, e.content_type, \
             e.headers, e.target, e.metadata, e.trace_context, e.created_at, p.request_sha256, {HISTORY} \
         FROM ( \
             SELECT * FROM (SELECT id, due_at FROM aftercommit_queue \
                 WHERE downstream = ?1 AND lane = 'r' AND claimed = 0 ORDER BY due_at, id LIMIT ?5) \
             UNION ALL \
             SELECT * FROM (SELECT id, due_at FROM aftercommit_queue \
                 WHERE downstream = ?1 AND lane = 't' AND claimed = 0 AND due_at <= ?2 ORDER BY due_at, id LIMIT ?5) \
             ORDER BY due_at, id LIMIT ?5 \
         ) AS due \
         CROSS JOIN aftercommit_queue AS q ON q.id = due.id \
         LEFT JOIN aftercommit_effects AS e ON e.id = due.id \
         LEFT JOIN aftercommit_terms AS p ON p.id = q.terms \
         WHERE NOT {held} ORDER BY due.due_at, due.id"
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(want.downstream.to_string())
        .bind(now.micros())
        .bind(i64::from(want.trial))
        .bind(want.origin.as_deref().map(str::to_owned))
        .bind(i64::from(want.slots))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during("claiming"))
}

/// Marks what was claimed. A certain effect's terms are pinned anew; an uncertain one keeps those it was sent under.
async fn mark(
    conn: &mut SqliteConnection,
    claims: &[Claim],
    terms: &Terms<'_>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let pins: Vec<(i64, Option<i64>)> = claims
        .iter()
        .map(|claim| (claim.effect.id.get(), terms.id_of(claim.effect.operation.as_deref())))
        .collect();
    let token = claims.first().map_or(0, |claim| claim.token.get());
    sqlx::query(
        "UPDATE aftercommit_queue SET token = ?1, claimed = 1, attempts = attempts + 1, tries = tries + 1, \
             number = number + 1, started_at = coalesce(started_at, ?2), \
             first_sent_at = coalesce(first_sent_at, ?2), \
             terms = CASE WHEN uncertain = 1 THEN terms ELSE pin.to_terms END \
         FROM (SELECT value ->> 0 AS id, value ->> 1 AS to_terms FROM json_each(?3)) AS pin \
         WHERE aftercommit_queue.id = pin.id",
    )
    .bind(token)
    .bind(now.micros())
    .bind(serde_json::to_string(&pins).expect("numbers always serialise"))
    .execute(conn)
    .await
    .map_err(StoreError::during("claiming"))?;
    Ok(())
}

/// Today's terms of one downstream's operations, as a worker registered them.
struct Terms<'w> {
    want: &'w Want,
    known: HashMap<i64, ([u8; 32], Option<Window>)>,
}

impl<'w> Terms<'w> {
    async fn load(conn: &mut SqliteConnection, want: &'w Want) -> Result<Self, StoreError> {
        let rows = sqlx::query(
            "SELECT id, request_sha256, window_us FROM aftercommit_terms \
             WHERE id IN (SELECT value FROM json_each(?1))",
        )
        .bind(json_ids(want.terms.iter().map(|(_, id)| *id)))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during("claiming"))?;
        let mut known = HashMap::new();
        for row in &rows {
            let id = row.try_get("id").map_err(StoreError::during("claiming"))?;
            let fields = Fields::new(row, "aftercommit_terms", id);
            if let Some(hash) = fields.opt_hash("request_sha256")? {
                known.insert(id, (hash, fields.opt_int("window_us")?.map(Window::from_micros)));
            }
        }
        Ok(Self { want, known })
    }

    fn id_of(&self, operation: Option<&str>) -> Option<i64> {
        self.want.terms.iter().find(|(name, _)| name.as_deref() == operation).map(|(_, id)| *id)
    }

    /// The claim of one row as it will be once it is marked.
    fn claim(&self, row: &SqliteRow, id: i64, want: &Want, now: Timestamp) -> Result<Claim, StoreError> {
        let queue = Fields::new(row, "aftercommit_queue", id);
        let effect = effect(&queue.of("aftercommit_effects"), id, &want.downstream)?;
        let mut history = history(&queue, now)?;
        history.attempts = history.attempts.saturating_add(1);
        history.tries = history.tries.saturating_add(1);
        history.first_sent_at.get_or_insert(now);
        let mut pinned = queue.opt_hash("request_sha256")?;
        if !history.uncertain {
            let today = self.id_of(effect.operation.as_deref()).and_then(|id| self.known.get(&id));
            pinned = today.map(|(hash, _)| *hash);
            history.window_at_claim = today.and_then(|(_, window)| *window);
        }
        Ok(Claim {
            effect: Arc::new(effect),
            token: Token::new(0),
            history,
            number: queue.count("number")?.saturating_add(1),
            pinned,
            claimed_at: now,
        })
    }
}

pub(super) fn effect(fields: &Fields<'_>, id: i64, downstream: &Arc<str>) -> Result<Effect, StoreError> {
    if fields.text("downstream")? != **downstream {
        return Err(fields.corrupt("downstream", "the queue names another downstream"));
    }
    Ok(Effect {
        id: EffectId::new(id),
        downstream: downstream.clone(),
        operation: fields.opt_text("operation")?,
        key: fields.text("idempotency_key")?,
        payload: fields.opt_text("payload")?,
        body: fields.opt_bytes("body")?,
        content_type: fields.opt_text("content_type")?,
        headers: fields.opt_text("headers")?,
        target: fields.opt_text("target")?,
        metadata: fields.opt_text("metadata")?,
        trace_context: fields.opt_text("trace_context")?,
        created_at: fields.time("created_at")?,
    })
}

/// Renews the leases of `tokens`, unless they ended; says which stand.
pub(super) async fn renew(
    conn: &mut SqliteConnection,
    worker: &str,
    tokens: &[(Token, Duration)],
    now: Timestamp,
) -> Result<Vec<Token>, StoreError> {
    let doing = "renewing leases";
    sqlx::query("UPDATE aftercommit_workers SET seen_at = ?2 WHERE name = ?1")
        .bind(worker.to_owned())
        .bind(now.micros())
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during(doing))?;
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let until: Vec<(i64, i64)> =
        tokens.iter().map(|(token, lease)| (token.get(), now.plus(*lease).micros())).collect();
    let held: Vec<i64> = sqlx::query_scalar(
        "UPDATE aftercommit_claims SET lease_until = max(lease_until, renewal.until) \
         FROM (SELECT value ->> 0 AS token, value ->> 1 AS until FROM json_each(?1)) AS renewal \
         WHERE aftercommit_claims.token = renewal.token AND worker = ?2 AND lease_until > ?3 \
         RETURNING aftercommit_claims.token",
    )
    .bind(serde_json::to_string(&until).expect("numbers always serialise"))
    .bind(worker.to_owned())
    .bind(now.micros())
    .fetch_all(conn)
    .await
    .map_err(StoreError::during(doing))?;
    Ok(held.into_iter().map(Token::new).collect())
}

/// Whether anything that `want` asks for is due, and not held; a trial is not held by a breaker.
pub(super) async fn is_wanted(
    conn: &mut SqliteConnection,
    want: &Want,
    now: Timestamp,
) -> Result<bool, StoreError> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT NOT {HELD} AND {IS_DUE}")))
        .bind(want.downstream.to_string())
        .bind(now.micros())
        .bind(i64::from(want.trial))
        .bind(want.origin.as_deref().map(str::to_owned))
        .fetch_one(conn)
        .await
        .map_err(StoreError::during("looking for work"))
}

/// Whether nothing of `downstreams` is due or in flight; what is paused or held is not due. One statement for each: an
/// effect that is claimed between two would be in neither.
pub(super) async fn is_idle(
    conn: &mut SqliteConnection,
    downstreams: &[Arc<str>],
    now: Timestamp,
) -> Result<bool, StoreError> {
    for downstream in downstreams {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM aftercommit_queue WHERE claimed = 1 AND downstream = ?1) \
                 OR (NOT {REGISTERED_HELD} AND {IS_DUE})"
        );
        let busy: bool = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(downstream.to_string())
            .bind(now.micros())
            .fetch_one(&mut *conn)
            .await
            .map_err(StoreError::during("looking for work"))?;
        if busy {
            return Ok(false);
        }
    }
    Ok(true)
}
