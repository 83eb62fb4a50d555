//! Retention: one statement per batch, each a short transaction. `outcomes.kept` says what an effect still has; the row is
//! locked before anything is dropped, as a person's verb locks it, and nobody waits for anybody: what is locked is skipped.

use std::time::Duration;

use sqlx::Row as _;
use tokio::time::Instant;

use super::{
    PgStore, row,
    statement::{Tx, sql},
};
use crate::{
    clock::{Timestamp, duration_micros},
    error::StoreError,
    store::{AHEAD_MAX, Ahead, Batch, Retain, Retention, Step},
};

pub(super) const DOING: &str = "dropping what was kept long enough";

/// A step's batch. `$1` the step, `$2` its age, `$3` the rows at most. `turn` locks the step's rows: whoever finds them locked
/// has nothing to do. Each begins where the last batch ended, or from the start once in ten minutes, and more often where the
/// age is shorter than that: rows that were skipped, or that committed late, are found then. `due` are locked; one that is
/// still queued (it may head a lane) has not ended. `at <= now` keeps a clock that was set back from hiding anything; one that
/// jumped ahead is not believed about keys. What is dropped is what the migration's function says: this login may do no more.
/// Served by outcomes_retention.
macro_rules! step_sql {
    ($function:literal) => {
        concat!(
            "WITH moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at
), turn AS MATERIALIZED (
  SELECT r.kept, m.now_at, r.looked_at, f.fresh, f.believed, CASE WHEN f.fresh THEN r.reached ELSE '-infinity' END AS from_at
  FROM aftercommit.retention AS r CROSS JOIN moment AS m CROSS JOIN LATERAL (
    SELECT r.from_start_at BETWEEN m.now_at - greatest(interval '5 seconds', least(interval '10 minutes', $2::int8 * interval '1 microsecond'))
             AND m.now_at AND r.reached <= m.now_at,
           r.step <> 'keys' OR m.now_at <= r.looked_at + $4::int8 * interval '1 microsecond') AS f (fresh, believed)
  WHERE r.step = $1 FOR UPDATE OF r SKIP LOCKED
), due AS MATERIALIZED (
  SELECT t.kept, o.effect_id, o.finished_at FROM turn AS t CROSS JOIN LATERAL (
    SELECT x.effect_id, x.finished_at FROM aftercommit.outcomes AS x
    WHERE x.kept = t.kept AND x.finished_at >= t.from_at AND x.finished_at <= t.now_at - $2::int8 * interval '1 microsecond'
      AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = x.effect_id)
    ORDER BY x.kept, x.finished_at LIMIT $3 FOR UPDATE OF x SKIP LOCKED) AS o
  WHERE t.believed
), moved AS (
  UPDATE aftercommit.retention AS r
  SET reached = coalesce((SELECT max(d.finished_at) FROM due AS d WHERE d.kept = r.kept), t.from_at),
      from_start_at = CASE WHEN t.fresh THEN r.from_start_at ELSE t.now_at END, looked_at = t.now_at
  FROM turn AS t WHERE r.step = $1 AND r.kept = t.kept AND t.believed
    AND (NOT t.fresh OR EXISTS (SELECT FROM due AS d WHERE d.kept = r.kept))
)
SELECT (SELECT count(*) FROM turn) = 0 AS elsewhere, (SELECT count(*) FROM due) AS effects,
  EXISTS (SELECT FROM due GROUP BY kept HAVING count(*) >= $3) AS more,
  (SELECT min(t.now_at) FROM turn AS t WHERE NOT t.believed) AS now_at,
  (SELECT min(t.looked_at) FROM turn AS t WHERE NOT t.believed) AS last_at,
  aftercommit.",
            $function,
            "(ARRAY(SELECT effect_id FROM due))"
        )
    };
}

/// None of what came in: see received.rs.
const fn step_sql(step: Step) -> Option<&'static str> {
    match step {
        Step::Payloads => Some(step_sql!("drop_payloads")),
        Step::History => Some(step_sql!("drop_history")),
        // Whoever builds flows adds that an effect stays while an unfinished one names it in `needs`, `undoes` or `bindings`;
        // until then those columns are refused.
        Step::Keys => Some(step_sql!("drop_keys")),
        Step::Requests | Step::Inbox => None,
    }
}

/// Reads the index alone. A key falls due with whatever of its effect is left.
const DUE: &str = "SELECT count(*) FROM aftercommit.outcomes
WHERE kept = ANY ($1::int2[]) AND finished_at <= (SELECT clock_timestamp()) - $2::int8 * interval '1 microsecond'";

/// The registration's lock: a worker that starts with them makes terms today's again. Held for a look at `terms` alone.
const REGISTRATION: &str = "SELECT pg_advisory_xact_lock(7022364301936348006)";

/// There is a row of `terms` per configuration that ever was: few.
const RETIRE: &str =
    "UPDATE aftercommit.terms AS t SET retired_at = CASE WHEN t.retired_at IS NULL THEN clock_timestamp() END
WHERE (t.retired_at IS NULL) = NOT EXISTS (SELECT FROM aftercommit.operations AS o WHERE o.terms = t.id)";

/// A worker that has run since before they were retired may still claim under them. Those of a configuration that comes back
/// are not retired any more (register.rs).
macro_rules! unused {
    () => {
        "t.retired_at <= (SELECT clock_timestamp()) - $1::int8 * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM aftercommit.operations AS o WHERE o.terms = t.id)
  AND NOT EXISTS (SELECT FROM aftercommit.workers AS w WHERE w.started_at <= t.retired_at)
  AND EXISTS (SELECT FROM aftercommit.terms AS n WHERE n.downstream = t.downstream
              AND coalesce(n.operation, '') = coalesce(t.operation, '') AND n.id > t.id)"
    };
}

const UNUSED: &str = concat!(
    "SELECT array_agg(t.id) FROM aftercommit.terms AS t WHERE ",
    unused!(),
    " AND (t.used_at IS NULL OR t.used_at NOT BETWEEN clock_timestamp() - interval '1 day' AND clock_timestamp())"
);

/// Reads the queue once: nothing serves it. So what is found is remembered, and nothing is locked meanwhile.
const USED: &str = "UPDATE aftercommit.terms AS t SET used_at = clock_timestamp()
WHERE t.id = ANY (ARRAY(SELECT DISTINCT q.terms FROM aftercommit.queue AS q WHERE q.terms = ANY ($1::int8[])))
RETURNING t.id";

/// Nobody has begun to claim under them since the queue was read: that takes a registration, which this waits for.
const FORGET: &str =
    concat!("DELETE FROM aftercommit.terms AS t WHERE t.id = ANY ($2::int8[]) AND ", unused!());

#[async_trait::async_trait]
impl Retain for PgStore {
    async fn drop_batch(&self, step: Step, age: Duration, limit: u32) -> Result<Batch, StoreError> {
        let Some(text) = step_sql(step) else { return self.drop_received(step, limit).await };
        let statement =
            sql(text).bind(step.as_str()).bind(micros(age)).bind(i64::from(limit)).bind(micros(AHEAD_MAX));
        let began = Instant::now();
        let row = self.one(statement).await.map_err(StoreError::during(DOING))?;
        let held = began.elapsed();
        let now: Option<Timestamp> = row::get(&row, "now_at")?;
        let last: Option<Timestamp> = row::get(&row, "last_at")?;
        // What bulks did is history too; no effect waits for it.
        let bulks = if step == Step::History { self.drop_bulks(micros(age), limit).await? } else { 0 };
        Ok(Batch {
            effects: row::sum(&row, "effects")?,
            more: row::get(&row, "more")? || bulks >= u64::from(limit),
            elsewhere: row::get(&row, "elsewhere")?,
            held,
            ahead: now.zip(last).map(|(now, last)| Ahead { now, last }),
        })
    }

    async fn believe_clock(&self) -> Result<(), StoreError> {
        let statement =
            sql("UPDATE aftercommit.retention SET looked_at = clock_timestamp() WHERE step = 'keys'");
        self.execute(statement).await.map(drop).map_err(StoreError::during("believing the clock"))
    }

    async fn due(&self, step: Step, retention: &Retention) -> Result<u64, StoreError> {
        let kept: &[i16] = match step {
            Step::Payloads => &[3, 1],
            Step::History => &[3, 2],
            Step::Keys => &[0, 1, 2, 3],
            Step::Requests | Step::Inbox => return self.received_due(step).await,
        };
        let statement = sql(DUE).bind(kept).bind(micros(retention.of(step)));
        let n: i64 = self.scalar(statement).await.map_err(StoreError::during("counting what is due"))?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    async fn forget_unused(&self, keys: Duration) -> Result<u64, StoreError> {
        self.forget(micros(keys)).await.map_err(StoreError::during("forgetting what nothing refers to"))
    }
}

impl PgStore {
    async fn forget(&self, keys_us: i64) -> Result<u64, sqlx::Error> {
        let unused = self.unused_terms(keys_us).await?;
        let mut forgotten = 0;
        if !unused.is_empty() {
            let mut tx = Tx::begin(&self.pool).await?;
            tx.execute(sql(REGISTRATION)).await?;
            forgotten = tx.execute(sql(FORGET).bind(keys_us).bind(unused)).await?;
            tx.commit().await?;
        }
        let audit: i64 = self.scalar(sql("SELECT aftercommit.forget_audit($1)").bind(keys_us)).await?;
        Ok(forgotten + u64::try_from(audit).unwrap_or(0))
    }

    /// Terms that no operation and no row of the queue refers to.
    async fn unused_terms(&self, keys_us: i64) -> Result<Vec<i64>, sqlx::Error> {
        self.execute(sql(RETIRE)).await?;
        let unused: Option<Vec<i64>> = self.scalar(sql(UNUSED).bind(keys_us)).await?;
        let Some(unused) = unused else { return Ok(Vec::new()) };
        let mut tx = Tx::begin(&self.pool).await?;
        tx.set("SET LOCAL enable_seqscan = on").await?;
        let rows = tx.all(sql(USED).bind(&unused[..])).await?;
        tx.commit().await?;
        let used: Vec<i64> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        Ok(unused.into_iter().filter(|id| !used.contains(id)).collect())
    }
}

fn micros(age: Duration) -> i64 {
    // Longer is for ever, and would not fit an interval's arithmetic.
    duration_micros(age).min(3_155_760_000_000_000)
}
