//! Probes: which are due, and what they came to. Rare beside the main job, so a settle is one transaction of small statements.

use std::sync::Arc;

use sqlx::postgres::PgRow;

use super::{
    PgStore,
    row::{self, StoredResponse, history_columns, sentence},
    statement::{Tx, sql},
};
use crate::{
    clock::{Timestamp, duration_micros},
    decision::{Decision, Doubt},
    effect::EffectId,
    error::StoreError,
    state::State,
    store::{DueProbe, Next, ProbeSettlement, ProbeWant, Probes, Settled, Token},
};

/// A doubt that began since the last probe (another token, or another time than that probe left) begins anew. Served by
/// queue_probe; whoever else claims at the same time skips what is locked here, and later finds it put off.
const CLAIM: &str = concat!(
    "WITH want AS MATERIALIZED (
  SELECT w.downstream, w.slots, w.lease_us
  FROM unnest($1::text[], $2::int4[], $3::int8[], $4::bool[], $5::text[]) AS w (downstream, slots, lease_us, trial, origin)
  -- An origin that is left alone is not asked either, but by the one probe that tries it.
  WHERE NOT coalesce((SELECT d.paused_at IS NOT NULL FROM aftercommit.downstreams AS d WHERE d.name = w.downstream), false)
    AND NOT coalesce((
      SELECT coalesce(o.paused_until > clock_timestamp(), false) OR (o.open_until IS NOT NULL AND NOT w.trial)
      FROM aftercommit.origins AS o WHERE o.origin = w.origin), false)
    AND NOT EXISTS (SELECT FROM aftercommit.hold)
), moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at
), picked AS MATERIALIZED (
  SELECT p.id, p.due_at, m.now_at + w.lease_us * interval '1 microsecond' AS until
  FROM want AS w CROSS JOIN moment AS m CROSS JOIN LATERAL (
    SELECT q.id, q.due_at FROM aftercommit.queue AS q
    WHERE q.downstream = w.downstream AND q.lane = 'd' AND q.due_at <= (SELECT now_at FROM moment)
    ORDER BY q.due_at, q.id LIMIT w.slots FOR UPDATE SKIP LOCKED) AS p
), q AS (
  UPDATE aftercommit.queue AS q SET due_at = p.until FROM picked AS p WHERE q.id = p.id
  RETURNING q.*, p.due_at AS was_due_at
), begun AS (
  INSERT INTO aftercommit.probes AS b (id, token, due_at, probe, travels_until, doubt)
  SELECT q.id, q.token, q.due_at, nextval('aftercommit.tokens'), q.was_due_at, q.note FROM q
  ON CONFLICT (id) DO UPDATE SET token = excluded.token, due_at = excluded.due_at, probe = excluded.probe,
    (made, absent_at, travels_until, doubt) = (
      -- What stood in the queue row before is excluded.travels_until.
      SELECT CASE WHEN same THEN b.made ELSE 0 END, CASE WHEN same THEN b.absent_at END,
        CASE WHEN same THEN b.travels_until ELSE excluded.travels_until END,
        CASE WHEN same THEN b.doubt ELSE excluded.doubt END
      FROM (SELECT b.token = excluded.token AND b.due_at = excluded.travels_until) AS s (same))
  RETURNING b.id, b.probe, b.made, b.absent_at, b.travels_until, b.doubt
)
SELECT ",
    history_columns!(),
    ", q.token, q.error_stored, b.probe, b.made, b.absent_at, b.travels_until, b.doubt, m.now_at, sent.request_sha256,
  e.downstream, e.operation, e.idempotency_key, e.payload::text AS payload, e.body, e.content_type,
  e.headers::text AS headers, e.target, e.metadata::text AS metadata, e.trace_context, e.created_at
FROM q JOIN begun AS b ON b.id = q.id CROSS JOIN moment AS m JOIN aftercommit.effects AS e ON e.id = q.id
LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms"
);

/// The fence: in doubt under the same token, left alone since the probe was begun, and no other one was begun.
const LOCK: &str = "SELECT EXISTS (SELECT FROM aftercommit.hold) AS on_hold FROM aftercommit.queue AS q JOIN aftercommit.probes AS p ON p.id = q.id
WHERE q.id = $1 AND q.token = $2 AND q.lane = 'd' AND q.due_at = p.due_at AND p.token = q.token AND p.probe = $3
FOR UPDATE OF q, p";

const END: &str = "WITH q AS (
  DELETE FROM aftercommit.queue WHERE id = $1 RETURNING downstream, number, sent_before
), p AS (
  DELETE FROM aftercommit.probes WHERE id = $1
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n, at) SELECT downstream, $2, 1, clock_timestamp() FROM q
)
INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, sent_before, state, downstream, note,
  response_status, response_truncated, response, response_raw)
SELECT $1, nextval('aftercommit.tokens'), clock_timestamp(), number, sent_before, $2, downstream, $3, $4, $5, $6::json, $7
FROM q";

/// Certain again. `tries` is kept: the schedule goes on where it was. A wish to cancel ends it at the next claim or sweep.
/// That it was seen absent is kept for a while: an answer to what was sent before may still come, and prove otherwise.
const NEW_HISTORY: &str = "WITH p AS (
  DELETE FROM aftercommit.probes WHERE id = $1
), q AS (
UPDATE aftercommit.queue
SET lane = 't', due_at = $2, xid = pg_current_xact_id(), token = nextval('aftercommit.tokens'), swept = false, resend = false,
    resend_unconfirmed = false,
    uncertain = false, error_stored = false, attempts = 0, started_at = NULL, first_sent_at = NULL, quiet_at = NULL,
    sweep_at = CASE WHEN cancel_requested THEN clock_timestamp() ELSE expires_at END, note = $3
WHERE id = $1 RETURNING id, token
)
INSERT INTO aftercommit.absences (effect_id, token) SELECT id, token FROM q";

const AGAIN: &str = "WITH p AS (
  UPDATE aftercommit.probes SET due_at = $2, made = made + 1, absent_at = $4 WHERE id = $1
)
UPDATE aftercommit.queue SET due_at = $2, note = $3 WHERE id = $1";

const PARK: &str = "WITH p AS (
  DELETE FROM aftercommit.probes WHERE id = $1
)
UPDATE aftercommit.queue SET due_at = NULL, note = $2 WHERE id = $1";

const GIVE_BACK: &str = "WITH m AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at
), p AS (
  UPDATE aftercommit.probes SET due_at = m.now_at FROM m WHERE id = $1
)
UPDATE aftercommit.queue SET due_at = m.now_at FROM m WHERE id = $1";

/// Rows of doubts that ended some other way. The table holds effects that are being probed, and few others.
pub(super) const FORGET: &str = "DELETE FROM aftercommit.probes AS p WHERE NOT EXISTS (
  SELECT FROM aftercommit.queue AS q WHERE q.id = p.id AND q.token = p.token AND q.lane = 'd')";

/// No worker keeps an answer to itself for so long.
pub(super) const FORGET_ABSENCES: &str =
    "DELETE FROM aftercommit.absences WHERE seen_at < clock_timestamp() - interval '30 days'";

/// Served by queue_probe.
const IS_DUE: &str = "SELECT EXISTS (SELECT FROM unnest($1::text[]) AS d (name) WHERE NOT EXISTS (
  SELECT FROM aftercommit.downstreams AS p LEFT JOIN aftercommit.origins AS o ON o.origin = p.origin
  WHERE p.name = d.name AND (p.paused_at IS NOT NULL OR o.paused_until > (SELECT clock_timestamp()) OR o.open_until IS NOT NULL))
AND NOT EXISTS (SELECT FROM aftercommit.hold)
AND EXISTS (SELECT FROM aftercommit.queue AS q
            WHERE q.downstream = d.name AND q.lane = 'd' AND q.due_at <= (SELECT clock_timestamp())))";

#[async_trait::async_trait]
impl Probes for PgStore {
    async fn claim_probes(&self, wants: &[ProbeWant]) -> Result<Vec<DueProbe>, StoreError> {
        let downstreams: Vec<&str> = wants.iter().map(|want| &*want.downstream).collect();
        let slots: Vec<i32> =
            wants.iter().map(|want| i32::try_from(want.slots).unwrap_or(i32::MAX)).collect();
        // Longer leases would not fit an interval's arithmetic.
        let leases: Vec<i64> =
            wants.iter().map(|want| duration_micros(want.lease).min(315_360_000_000_000)).collect();
        let trials: Vec<bool> = wants.iter().map(|want| want.trial).collect();
        let origins: Vec<Option<&str>> = wants.iter().map(|want| want.origin.as_deref()).collect();
        let claim = sql(CLAIM).bind(&downstreams).bind(&slots).bind(&leases).bind(&trials).bind(&origins);
        let rows = self.all(claim).await.map_err(StoreError::during("claiming probes"))?;
        let mut due = Vec::with_capacity(rows.len());
        for row in &rows {
            match due_probe(row) {
                Ok(probe) => due.push(probe),
                // One row that cannot be read must not stop the others; it is met again when its lease ends.
                Err(error) => tracing::error!(%error, "an effect in doubt cannot be read, and is not probed"),
            }
        }
        Ok(due)
    }

    async fn settle_probe(&self, settlement: &ProbeSettlement) -> Result<Settled, StoreError> {
        let doing = "settling a probe";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let lock =
            sql(LOCK).bind(settlement.id.get()).bind(settlement.token.get()).bind(settlement.probe.get());
        let held = tx.optional(lock).await.map_err(StoreError::during(doing))?;
        let Some(held) = held else {
            tx.rollback().await.map_err(StoreError::during(doing))?;
            return Ok(Settled::Lost);
        };
        // What was asked before the database went back says nothing about what it lost. A hold that begins at this very moment
        // waits for the row, and marks what is written here.
        let on_hold = row::get(&held, "on_hold")?;
        let given_back = ProbeSettlement { decision: Next::GiveBack, ..settlement.clone() };
        let settlement = if on_hold { &given_back } else { settlement };
        write(&mut tx, settlement).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(if on_hold { Settled::Lost } else { Settled::Done })
    }

    async fn probe_is_due(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        let names: Vec<&str> = downstreams.iter().map(AsRef::as_ref).collect();
        self.scalar(sql(IS_DUE).bind(names)).await.map_err(StoreError::during("looking for probes"))
    }
}

async fn write(tx: &mut Tx<'_>, settlement: &ProbeSettlement) -> Result<(), sqlx::Error> {
    let id = settlement.id.get();
    let word = settlement.note.as_deref().map(sentence);
    let query = match &settlement.decision {
        Next::GiveBack => sql(GIVE_BACK).bind(id),
        Next::Decided(Decision::ProbeAt(at, why)) => {
            sql(AGAIN).bind(id).bind(*at).bind(sentence(why)).bind(settlement.absent_at)
        }
        Next::Decided(Decision::Park(why)) => sql(PARK).bind(id).bind(sentence(why)),
        Next::Decided(Decision::RetryAt(at)) => sql(NEW_HISTORY).bind(id).bind(*at).bind(word),
        Next::Decided(Decision::Succeed) => return end(tx, settlement, State::Succeeded, word).await,
        Next::Decided(Decision::Fail(why)) => {
            return end(tx, settlement, State::Failed, Some(sentence(why))).await;
        }
        Next::Decided(Decision::Cancel) => return end(tx, settlement, State::Cancelled, word).await,
        Next::Decided(Decision::Expire) => return end(tx, settlement, State::Expired, word).await,
    };
    tx.execute(query).await.map(drop)
}

async fn end(
    tx: &mut Tx<'_>,
    settlement: &ProbeSettlement,
    state: State,
    note: Option<String>,
) -> Result<(), sqlx::Error> {
    let response = StoredResponse::of(settlement.response.as_ref());
    let ended = sql(END)
        .bind(settlement.id.get())
        .bind(state.as_str())
        .bind(note)
        .bind(response.status)
        .bind(response.truncated)
        .bind(response.json)
        .bind(response.raw);
    tx.execute(ended).await.map(drop)
}

fn due_probe(row: &PgRow) -> Result<DueProbe, StoreError> {
    let hash: Option<Vec<u8>> = row::get(row, "request_sha256")?;
    let downstream = row::get::<String>(row, "downstream")?.into();
    let effect = row::effect(row, EffectId::new(row::get(row, "id")?), downstream)?;
    Ok(DueProbe {
        effect: Arc::new(effect),
        token: Token::new(row::get(row, "token")?),
        probe: Token::new(row::get(row, "probe")?),
        doubt: Doubt {
            history: row::history(row)?,
            made: row::count(row, "made")?,
            absent_at: row::get(row, "absent_at")?,
            travels_until: row::get(row, "travels_until")?,
            error_stored: row::get(row, "error_stored")?,
            why: row::get::<Option<String>>(row, "doubt")?.unwrap_or_default(),
        },
        pinned: hash.and_then(|hash| hash.try_into().ok()),
        claimed_at: row::get::<Timestamp>(row, "now_at")?,
    })
}
