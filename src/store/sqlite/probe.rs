//! Probes: which are due, and what they came to.

use std::{sync::Arc, time::Duration};

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    budget::{HELD, REGISTERED_HELD},
    claim::effect,
    row::{Fields, HISTORY, history, json_ids, next_token},
    write::{Ending, Writes},
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    decision::{Decision, Doubt},
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    state::State,
    store::{DueProbe, Next, ProbeSettlement, ProbeWant, Probes, Settled, Token},
};

const CLAIMING: &str = "claiming probes";
const SETTLING: &str = "settling a probe";

/// No worker keeps an answer to itself for so long.
const ABSENCES_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Whether a probe of `?1` is due at `?2`. Served by `aftercommit_queue_probe`.
const IS_DUE: &str =
    "EXISTS (SELECT 1 FROM aftercommit_queue WHERE downstream = ?1 AND lane = 'd' AND due_at <= ?2)";

/// A doubt that began since the last probe (another token, or another time than that probe left) begins anew.
const BEGIN: &str = "INSERT INTO aftercommit_probes (id, token, due_at, probe, travels_until, doubt) \
     SELECT id, token, ?2, ?3, due_at, note FROM aftercommit_queue WHERE id = ?1 \
     ON CONFLICT (id) DO UPDATE SET \
         made = CASE WHEN token = excluded.token AND due_at = excluded.travels_until THEN made ELSE 0 END, \
         absent_at = CASE WHEN token = excluded.token AND due_at = excluded.travels_until THEN absent_at END, \
         travels_until = CASE WHEN token = excluded.token AND due_at = excluded.travels_until THEN travels_until \
             ELSE excluded.travels_until END, \
         doubt = CASE WHEN token = excluded.token AND due_at = excluded.travels_until THEN doubt \
             ELSE excluded.doubt END, \
         token = excluded.token, due_at = excluded.due_at, probe = excluded.probe";

#[async_trait::async_trait]
impl Probes for SqliteStore {
    async fn claim_probes(&self, wants: &[ProbeWant]) -> Result<Vec<DueProbe>, StoreError> {
        // Asked on a reader, so that an idle worker never takes the one write lock.
        let mut due = Vec::new();
        {
            let mut reader = self.reader(CLAIMING).await?;
            let now = SystemClock.wall();
            for want in wants.iter().filter(|want| want.slots > 0) {
                if is_wanted(&mut reader, want, now).await? {
                    due.push(want.clone());
                }
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        self.write(CLAIMING, move |conn, now| {
            Box::pin(async move {
                let mut probes = Vec::new();
                for want in &due {
                    probes.extend(claim(conn, want, now).await?);
                }
                Ok(probes)
            })
        })
        .await
    }

    async fn settle_probe(&self, settlement: &ProbeSettlement) -> Result<Settled, StoreError> {
        let settlement = settlement.clone();
        self.write(SETTLING, move |conn, now| Box::pin(async move { settle(conn, &settlement, now).await }))
            .await
    }

    async fn probe_is_due(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        let mut reader = self.reader("looking for probes").await?;
        let now = SystemClock.wall();
        for downstream in downstreams {
            if is_due(&mut reader, downstream, now).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn is_due(conn: &mut SqliteConnection, downstream: &str, now: Timestamp) -> Result<bool, StoreError> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT NOT {REGISTERED_HELD} AND {IS_DUE}")))
        .bind(downstream.to_owned())
        .bind(now.micros())
        .fetch_one(conn)
        .await
        .map_err(StoreError::during("looking for probes"))
}

/// An origin that is left alone is not asked either, but by the one probe that tries it.
async fn is_wanted(
    conn: &mut SqliteConnection,
    want: &ProbeWant,
    now: Timestamp,
) -> Result<bool, StoreError> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT NOT {HELD} AND {IS_DUE}")))
        .bind(want.downstream.to_string())
        .bind(now.micros())
        .bind(i64::from(want.trial))
        .bind(want.origin.as_deref().map(str::to_owned))
        .fetch_one(conn)
        .await
        .map_err(StoreError::during("looking for probes"))
}

async fn claim(
    conn: &mut SqliteConnection,
    want: &ProbeWant,
    now: Timestamp,
) -> Result<Vec<DueProbe>, StoreError> {
    if !is_wanted(conn, want, now).await? {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM aftercommit_queue WHERE downstream = ?1 AND lane = 'd' AND due_at <= ?2 \
         ORDER BY due_at, id LIMIT ?3",
    )
    .bind(want.downstream.to_string())
    .bind(now.micros())
    .bind(i64::from(want.slots))
    .fetch_all(&mut *conn)
    .await
    .map_err(StoreError::during(CLAIMING))?;
    let until = now.plus(want.lease).micros();
    for id in &ids {
        let probe = next_token(conn).await?;
        sqlx::query(BEGIN)
            .bind(id)
            .bind(until)
            .bind(probe.get())
            .execute(&mut *conn)
            .await
            .map_err(StoreError::during(CLAIMING))?;
    }
    sqlx::query("UPDATE aftercommit_queue SET due_at = ?2 WHERE id IN (SELECT value FROM json_each(?1))")
        .bind(json_ids(ids.iter().copied()))
        .bind(until)
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during(CLAIMING))?;
    read(conn, &ids, want, now).await
}

async fn read(
    conn: &mut SqliteConnection,
    ids: &[i64],
    want: &ProbeWant,
    now: Timestamp,
) -> Result<Vec<DueProbe>, StoreError> {
    let sql = format!(
        "SELECT q.id, q.token, q.error_stored, b.probe, b.made, b.absent_at, b.travels_until, b.doubt, e.operation, \
             e.downstream, e.idempotency_key, e.payload, e.body, e.content_type, e.headers, e.target, e.metadata, \
             e.trace_context, e.created_at, p.request_sha256, {HISTORY} \
         FROM json_each(?1) AS wanted CROSS JOIN aftercommit_queue AS q ON q.id = wanted.value \
         JOIN aftercommit_probes AS b ON b.id = q.id \
         LEFT JOIN aftercommit_effects AS e ON e.id = q.id \
         LEFT JOIN aftercommit_terms AS p ON p.id = q.terms"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(json_ids(ids.iter().copied()))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(CLAIMING))?;
    let mut probes = Vec::with_capacity(rows.len());
    for row in &rows {
        match due_probe(row, want, now) {
            Ok(probe) => probes.push(probe),
            // One row that cannot be read must not stop the others; it is met again when its lease ends.
            Err(error) => tracing::error!(%error, "an effect in doubt cannot be read, and is not probed"),
        }
    }
    Ok(probes)
}

fn due_probe(row: &SqliteRow, want: &ProbeWant, now: Timestamp) -> Result<DueProbe, StoreError> {
    let id = row.try_get("id").map_err(StoreError::during(CLAIMING))?;
    let queue = Fields::new(row, "aftercommit_queue", id);
    let probes = queue.of("aftercommit_probes");
    Ok(DueProbe {
        effect: Arc::new(effect(&queue.of("aftercommit_effects"), id, &want.downstream)?),
        token: Token::new(queue.int("token")?),
        probe: Token::new(probes.int("probe")?),
        doubt: Doubt {
            history: history(&queue, now)?,
            made: probes.count("made")?,
            absent_at: probes.opt_time("absent_at")?,
            travels_until: probes.time("travels_until")?,
            error_stored: queue.flag("error_stored")?,
            why: probes.opt_text("doubt")?.unwrap_or_default(),
        },
        pinned: queue.opt_hash("request_sha256")?,
        claimed_at: now,
    })
}

/// An effect in doubt, held by its probe.
struct Held {
    downstream: String,
    number: i64,
    sent_before: bool,
}

async fn settle(
    conn: &mut SqliteConnection,
    settlement: &ProbeSettlement,
    now: Timestamp,
) -> Result<Settled, StoreError> {
    let id = settlement.id.get();
    // The fence: in doubt under the same token, left alone since the probe was begun, and no other one was begun.
    let held: Option<(String, i64, bool, bool)> = sqlx::query_as(
        "SELECT q.downstream, q.number, q.sent_before, EXISTS (SELECT 1 FROM aftercommit_hold) FROM aftercommit_queue AS q \
         JOIN aftercommit_probes AS p ON p.id = q.id \
         WHERE q.id = ?1 AND q.token = ?2 AND q.lane = 'd' AND q.due_at = p.due_at AND p.token = q.token AND p.probe = ?3",
    )
    .bind(id)
    .bind(settlement.token.get())
    .bind(settlement.probe.get())
    .fetch_optional(&mut *conn)
    .await
    .map_err(StoreError::during(SETTLING))?;
    let Some((downstream, number, sent_before, on_hold)) = held else { return Ok(Settled::Lost) };
    if on_hold {
        // What was asked before the database went back says nothing about what it lost.
        put_off(conn, id, (now.micros(), None, 0), settlement).await?;
        return Ok(Settled::Lost);
    }
    let held = Held { downstream, number, sent_before };
    let note = settlement.note.clone();
    match &settlement.decision {
        Next::GiveBack => put_off(conn, id, (now.micros(), None, 0), settlement).await?,
        Next::Decided(Decision::ProbeAt(at, why)) => {
            put_off(conn, id, (at.micros(), Some(why), 1), settlement).await?;
        }
        Next::Decided(Decision::Park(why)) => {
            let sql = "UPDATE aftercommit_queue SET due_at = NULL, note = ?2 WHERE id = ?1";
            let query = sqlx::query(sql).bind(id).bind(stored_text(why, REASON_MAX));
            query.execute(&mut *conn).await.map_err(StoreError::during(SETTLING))?;
            over(conn, id).await?;
        }
        Next::Decided(Decision::RetryAt(at)) => new_history(conn, settlement, *at, now).await?,
        Next::Decided(Decision::Succeed) => {
            end(conn, settlement, held, (State::Succeeded, note), now).await?
        }
        Next::Decided(Decision::Fail(why)) => {
            end(conn, settlement, held, (State::Failed, Some(why.clone())), now).await?;
        }
        Next::Decided(Decision::Cancel) => end(conn, settlement, held, (State::Cancelled, note), now).await?,
        Next::Decided(Decision::Expire) => end(conn, settlement, held, (State::Expired, note), now).await?,
    }
    Ok(Settled::Done)
}

async fn put_off(
    conn: &mut SqliteConnection,
    id: i64,
    (due_at, why, made): (i64, Option<&String>, i64),
    settlement: &ProbeSettlement,
) -> Result<(), StoreError> {
    let done = async {
        sqlx::query("UPDATE aftercommit_queue SET due_at = ?2, note = coalesce(?3, note) WHERE id = ?1")
            .bind(id)
            .bind(due_at)
            .bind(why.map(|why| stored_text(why, REASON_MAX)))
            .execute(&mut *conn)
            .await?;
        sqlx::query(
            "UPDATE aftercommit_probes SET due_at = ?2, made = made + ?3, \
                 absent_at = CASE WHEN ?3 = 0 THEN absent_at ELSE ?4 END WHERE id = ?1",
        )
        .bind(id)
        .bind(due_at)
        .bind(made)
        .bind(settlement.absent_at.map(Timestamp::micros))
        .execute(&mut *conn)
        .await
    };
    done.await.map(drop).map_err(StoreError::during(SETTLING))
}

/// Certain again. `tries` is kept: the schedule goes on where it was. A wish to cancel ends it at the next claim or sweep.
async fn new_history(
    conn: &mut SqliteConnection,
    settlement: &ProbeSettlement,
    at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let token = next_token(conn).await?;
    sqlx::query(
        "UPDATE aftercommit_queue SET lane = 't', due_at = ?2, token = ?3, resend = 0, resend_unconfirmed = 0, uncertain = 0, error_stored = 0, \
             attempts = 0, started_at = NULL, first_sent_at = NULL, quiet_at = NULL, note = ?4, \
             sweep_at = CASE WHEN cancel_requested = 1 THEN ?5 ELSE expires_at END WHERE id = ?1",
    )
    .bind(settlement.id.get())
    .bind(at.micros())
    .bind(token.get())
    .bind(settlement.note.as_deref().map(|note| stored_text(note, REASON_MAX)))
    .bind(now.micros())
    .execute(&mut *conn)
    .await
    .map_err(StoreError::during(SETTLING))?;
    // Kept for a while: an answer to what was sent before may still come, and prove otherwise.
    sqlx::query("INSERT INTO aftercommit_absences (effect_id, token, seen_at) VALUES (?1, ?2, ?3)")
        .bind(settlement.id.get())
        .bind(token.get())
        .bind(now.micros())
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during(SETTLING))?;
    over(conn, settlement.id.get()).await
}

async fn end(
    conn: &mut SqliteConnection,
    settlement: &ProbeSettlement,
    held: Held,
    (state, note): (State, Option<String>),
    now: Timestamp,
) -> Result<(), StoreError> {
    let ending = Ending {
        id: settlement.id.get(),
        downstream: held.downstream,
        state,
        token: next_token(conn).await?.get(),
        note: note.map(|note| stored_text(&note, REASON_MAX)),
        number: held.number,
        sent_before: held.sent_before,
        refusal_stored: false,
        response: settlement.response.clone(),
        first: None,
    };
    Writes::of_ending(ending, now).apply(conn).await?;
    over(conn, settlement.id.get()).await
}

async fn over(conn: &mut SqliteConnection, id: i64) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM aftercommit_probes WHERE id = ?1")
        .bind(id)
        .execute(conn)
        .await
        .map(drop)
        .map_err(StoreError::during(SETTLING))
}

/// Forgets doubts that ended some other way, and absences that no worker's answer can be about any more.
pub(super) async fn forget(conn: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM aftercommit_absences WHERE seen_at < ?1")
        .bind(now.minus(ABSENCES_KEPT).micros())
        .execute(&mut *conn)
        .await
        .map_err(StoreError::during("forgetting probes"))?;
    sqlx::query(
        "DELETE FROM aftercommit_probes WHERE NOT EXISTS (SELECT 1 FROM aftercommit_queue AS q \
             WHERE q.id = aftercommit_probes.id AND q.token = aftercommit_probes.token AND q.lane = 'd')",
    )
    .execute(conn)
    .await
    .map(drop)
    .map_err(StoreError::during("forgetting probes"))
}
