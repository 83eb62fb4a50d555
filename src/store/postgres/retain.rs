//! Retention: one statement per step, each a short transaction. `outcomes.kept` says what an effect still has; the row is
//! locked before anything is dropped, as a person's verb locks it, and nobody waits for anybody: what is locked is skipped.

use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::time::Instant;

use super::{
    PgStore, row,
    statement::{Tx, sql},
};
use crate::{
    clock::duration_micros,
    error::StoreError,
    store::{Batch, Retain, Retention, Step},
};

const DOING: &str = "dropping what was kept long enough";

/// How a step begins. `$1` the step, `$2` its age, `$3` the rows at most. `turn` locks the step's rows: whoever finds them
/// locked has nothing to do. Each begins where the last batch ended, or from the start once in ten minutes: rows that were
/// skipped, or that committed late, are found then. `due` are locked; one that is still queued (it may head a lane) has not
/// ended. `at <= now` keeps a clock that was set back from hiding anything. Served by outcomes_retention.
macro_rules! step_sql {
    ($steps:literal, $also:literal) => {
        concat!(
            "WITH moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at
), turn AS MATERIALIZED (
  SELECT r.kept, m.now_at, f.fresh, CASE WHEN f.fresh THEN r.reached ELSE '-infinity' END AS from_at
  FROM aftercommit.retention AS r CROSS JOIN moment AS m CROSS JOIN LATERAL (
    SELECT r.from_start_at BETWEEN m.now_at - interval '10 minutes' AND m.now_at AND r.reached <= m.now_at) AS f (fresh)
  WHERE r.step = $1 FOR UPDATE OF r SKIP LOCKED
), due AS MATERIALIZED (
  SELECT t.kept, o.effect_id, o.finished_at FROM turn AS t CROSS JOIN LATERAL (
    SELECT x.effect_id, x.finished_at FROM aftercommit.outcomes AS x
    WHERE x.kept = t.kept AND x.finished_at >= t.from_at AND x.finished_at <= t.now_at - $2::int8 * interval '1 microsecond'
      AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = x.effect_id)
    ORDER BY x.kept, x.finished_at LIMIT $3 FOR UPDATE OF x SKIP LOCKED) AS o
), moved AS (
  UPDATE aftercommit.retention AS r
  SET reached = coalesce((SELECT max(d.finished_at) FROM due AS d WHERE d.kept = r.kept), t.from_at),
      from_start_at = CASE WHEN t.fresh THEN r.from_start_at ELSE t.now_at END
  FROM turn AS t WHERE r.step = $1 AND r.kept = t.kept
    AND (NOT t.fresh OR EXISTS (SELECT FROM due AS d WHERE d.kept = r.kept))
), ", $steps, "
SELECT (SELECT count(*) FROM turn) = 0 AS elsewhere, (SELECT count(*) FROM due) AS effects,
  EXISTS (SELECT FROM due GROUP BY kept HAVING count(*) >= $3) AS more", $also)
    };
}

/// Where there was nothing to drop no fingerprint is needed: the columns still say what the request was.
const PAYLOADS: &str = step_sql!(
    "dropped AS (
  UPDATE aftercommit.effects AS e
  SET payload = NULL, body = NULL, headers = NULL, fingerprint = aftercommit.fingerprint(e.operation, e.payload::text, e.body,
    e.content_type, e.headers::text, e.target, e.ordering_key, array_to_json(e.needs)::text, e.bindings::text,
    e.undoes::text)
  FROM due AS d
  WHERE e.id = d.effect_id AND e.fingerprint IS NULL
    AND (e.payload IS NOT NULL OR e.body IS NOT NULL OR e.headers IS NOT NULL)
), marked AS (
  UPDATE aftercommit.outcomes AS o SET kept = o.kept & 2::int2 FROM due AS d WHERE o.effect_id = d.effect_id
)",
    ""
);

/// The attempt that the outcome's own row shows goes with the others.
const HISTORY: &str = step_sql!(
    "log AS (
  DELETE FROM aftercommit.attempts AS a USING due AS d WHERE a.effect_id = d.effect_id
), marked AS (
  UPDATE aftercommit.outcomes AS o
  SET kept = o.kept & 1::int2, response = NULL, response_raw = NULL, started_at = NULL, ended_at = NULL, worker = NULL, phase = NULL
  FROM due AS d WHERE o.effect_id = d.effect_id
)",
    ""
);

/// Effect and outcome go in one statement, with what late answers may have logged since the history went. Whoever builds
/// flows adds here that an effect stays while an unfinished one names it in `needs`, `undoes` or `bindings`; until then
/// those columns are refused.
const KEYS: &str = step_sql!(
    "log AS (
  DELETE FROM aftercommit.attempts AS a USING due AS d WHERE a.effect_id = d.effect_id
), ended AS (
  DELETE FROM aftercommit.outcomes AS o USING due AS d WHERE o.effect_id = d.effect_id RETURNING o.downstream, o.state
), gone AS (
  DELETE FROM aftercommit.effects AS e USING due AS d WHERE e.id = d.effect_id
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n) SELECT downstream, state, -count(*) FROM ended GROUP BY 1, 2
)",
    ", (SELECT array_agg(effect_id) FROM due) AS ids"
);

/// Of one effect, whose outcome the verb holds. What note and log say may quote the downstream.
pub(super) const REDACT: &str = "WITH ended AS (
  UPDATE aftercommit.outcomes
  SET token = nextval('aftercommit.tokens'), kept = kept & 2::int2, response = NULL, response_raw = NULL,
      note = CASE WHEN note IS NOT NULL THEN 'redacted' END
  WHERE effect_id = $1
), log AS (
  UPDATE aftercommit.attempts SET error = 'redacted' WHERE effect_id = $1 AND error IS NOT NULL
)
UPDATE aftercommit.effects AS e
SET payload = NULL, body = NULL, headers = NULL, fingerprint = aftercommit.fingerprint(e.operation, e.payload::text, e.body,
  e.content_type, e.headers::text, e.target, e.ordering_key, array_to_json(e.needs)::text, e.bindings::text, e.undoes::text)
WHERE e.id = $1 AND e.fingerprint IS NULL AND (e.payload IS NOT NULL OR e.body IS NOT NULL OR e.headers IS NOT NULL)";

/// Reads the index alone. A key falls due with whatever of its effect is left.
const DUE: &str = "SELECT count(*) FROM aftercommit.outcomes
WHERE kept = ANY ($1::int2[]) AND finished_at <= (SELECT clock_timestamp()) - $2::int8 * interval '1 microsecond'";

/// The registration's lock: a worker that starts with them makes terms today's again.
const REGISTRATION: &str = "SELECT pg_advisory_xact_lock(7022364301936348006)";

/// There is a row of `terms` per configuration that ever was: few.
const RETIRE: &str =
    "UPDATE aftercommit.terms AS t SET retired_at = CASE WHEN t.retired_at IS NULL THEN clock_timestamp() END
WHERE (t.retired_at IS NULL) = NOT EXISTS (SELECT FROM aftercommit.operations AS o WHERE o.terms = t.id)";

/// A worker that has run since before they were retired may still claim under them.
const UNUSED: &str = "SELECT array_agg(t.id) FROM aftercommit.terms AS t
WHERE t.retired_at <= (SELECT clock_timestamp()) - $1::int8 * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM aftercommit.workers AS w WHERE w.started_at <= t.retired_at)
  AND EXISTS (SELECT FROM aftercommit.terms AS n WHERE n.downstream = t.downstream
              AND coalesce(n.operation, '') = coalesce(t.operation, '') AND n.id > t.id)";

/// Reads the queue once, and only where there is something to forget.
const FORGET: &str = "DELETE FROM aftercommit.terms AS t
WHERE t.id = ANY ($1::int8[]) AND t.id <> ALL (ARRAY(SELECT DISTINCT q.terms FROM aftercommit.queue AS q WHERE q.terms IS NOT NULL))";

#[async_trait::async_trait]
impl Retain for PgStore {
    async fn drop_batch(&self, step: Step, age: Duration, limit: u32) -> Result<Batch, StoreError> {
        let text = match step {
            Step::Payloads => PAYLOADS,
            Step::History => HISTORY,
            Step::Keys => return self.drop_keys(age, limit).await,
        };
        let statement = sql(text).bind(step.as_str()).bind(micros(age)).bind(i64::from(limit));
        let began = Instant::now();
        let row = self.one(statement).await.map_err(StoreError::during(DOING))?;
        batch(&row, began.elapsed())
    }

    async fn due(&self, step: Step, retention: &Retention) -> Result<u64, StoreError> {
        let kept: &[i16] = match step {
            Step::Payloads => &[3, 1],
            Step::History => &[3, 2],
            Step::Keys => &[0, 1, 2, 3],
        };
        let statement = sql(DUE).bind(kept).bind(micros(retention.of(step)));
        let n: i64 = self.scalar(statement).await.map_err(StoreError::during("counting what is due"))?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    async fn forget_unused(&self, keys: Duration) -> Result<u64, StoreError> {
        let doing = "forgetting what nothing refers to";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let forgotten = forget(&mut tx, micros(keys)).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(forgotten)
    }
}

impl PgStore {
    /// A statement more than the others: what people did may go only once its effect is gone.
    async fn drop_keys(&self, age: Duration, limit: u32) -> Result<Batch, StoreError> {
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(DOING))?;
        let statement = sql(KEYS).bind(Step::Keys.as_str()).bind(micros(age)).bind(i64::from(limit));
        let began = Instant::now();
        let row = tx.one(statement).await.map_err(StoreError::during(DOING))?;
        let ids: Option<Vec<i64>> = row::get(&row, "ids")?;
        if let Some(ids) = ids {
            forget_audit(&mut tx, &ids, micros(age)).await.map_err(StoreError::during(DOING))?;
        }
        let held = began.elapsed();
        tx.commit().await.map_err(StoreError::during(DOING))?;
        batch(&row, held)
    }
}

fn micros(age: Duration) -> i64 {
    // Longer is for ever, and would not fit an interval's arithmetic.
    duration_micros(age).min(3_155_760_000_000_000)
}

fn batch(row: &PgRow, held: Duration) -> Result<Batch, StoreError> {
    Ok(Batch {
        effects: row::sum(row, "effects")?,
        more: row::get(row, "more")?,
        elsewhere: row::get(row, "elsewhere")?,
        held,
    })
}

async fn forget_audit(tx: &mut Tx<'_>, ids: &[i64], keys_us: i64) -> Result<i64, sqlx::Error> {
    tx.scalar(sql("SELECT aftercommit.forget_audit($1, $2)").bind(ids).bind(keys_us)).await
}

async fn forget(tx: &mut Tx<'_>, keys_us: i64) -> Result<u64, sqlx::Error> {
    tx.execute(sql(REGISTRATION)).await?;
    tx.execute(sql(RETIRE)).await?;
    let unused: Option<Vec<i64>> = tx.scalar(sql(UNUSED).bind(keys_us)).await?;
    let mut forgotten = 0;
    if let Some(unused) = unused {
        tx.set("SET LOCAL enable_seqscan = on").await?;
        forgotten = tx.execute(sql(FORGET).bind(unused)).await?;
    }
    let audit = forget_audit(tx, &[], keys_us).await?;
    Ok(forgotten + u64::try_from(audit).unwrap_or(0))
}
