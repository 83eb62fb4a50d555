//! Causes and courses, for people: the newest of what failed or is in doubt, and how much ended when.

use sqlx::AssertSqlSafe;

use super::{PgStore, candidates::Candidates, row, statement::sql};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    state::State,
    store::{
        CAUSES_WINDOW, CauseRow, Causes, Filter, LATENCY_BARS_MAX, Latency, Resolution, Traffic,
        chart::{LATENCY_EACH, LATENCY_PARTS},
    },
};

/// The view's joins that these columns do not need are left out by the planner. LATERAL, with OFFSET 0: see list.rs.
const CAUSES: &str = "
SELECT s.id, v.* FROM (SELECT c.id FROM c ORDER BY c.id DESC) AS s CROSS JOIN LATERAL (
  SELECT v.downstream, v.operation, v.last_error, v.response_status, v.superseded_by IS NOT NULL AS superseded,
         coalesce(v.finished_at, v.attempted_at, v.created_at) AS at
  FROM aftercommit.status_of_all AS v WHERE v.id = s.id OFFSET 0) AS v
ORDER BY s.id DESC";

/// Deltas that were not folded yet count as well. Served by the primary key of `traffic`; the deltas are few.
const TRAFFIC: &str = "SELECT t.at, t.downstream, t.state, sum(t.n)::int8 AS n FROM (
  SELECT date_trunc($2, x.at, 'UTC') AS at, x.downstream, x.state, x.n FROM aftercommit.traffic AS x
  WHERE x.per = ANY ($3) AND x.at >= date_trunc($2, $1, 'UTC')
  UNION ALL
  SELECT date_trunc($2, c.at, 'UTC'), c.downstream, c.state, c.n FROM aftercommit.counters AS c
  WHERE c.n > 0 AND c.at >= date_trunc($2, $1, 'UTC')) AS t
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";

/// The first few of each part of a minute or hour, by the index that retention reads: of those whose history is kept (3, 2), since the
/// attempt goes with it. A first attempt that succeeded stands in the outcome's own row.
const LATENCIES: &str = "SELECT o.finished_at,
  (extract(epoch FROM coalesce(o.ended_at - o.started_at, l.ended_at - l.started_at)) * 1000000)::int8 AS took_us
FROM generate_series(0::int8, $2::int8 - 1) AS part (n) CROSS JOIN unnest('{3,2}'::int2[]) AS k (kept)
CROSS JOIN LATERAL (
  SELECT x.effect_id, x.finished_at, x.started_at, x.ended_at FROM aftercommit.outcomes AS x
  WHERE x.kept = k.kept AND x.finished_at >= $1::timestamptz + part.n * $3::int8 * interval '1 microsecond'
    AND x.finished_at < $1::timestamptz + (part.n + 1) * $3::int8 * interval '1 microsecond'
  ORDER BY x.finished_at LIMIT $4::int8) AS o
LEFT JOIN LATERAL (
  SELECT a.started_at, a.ended_at FROM aftercommit.attempts AS a WHERE o.ended_at IS NULL AND a.effect_id = o.effect_id
  ORDER BY a.number DESC, a.token DESC, a.late DESC LIMIT 1) AS l ON true
WHERE coalesce(o.ended_at - o.started_at, l.ended_at - l.started_at) IS NOT NULL";

/// Deltas become sums, and what is new of them traffic; what others are folding at this moment is left to them. In the order of the
/// keys, so that two that fold do not wait for each other in a circle. What is taken back (a retry, a purge) is no traffic.
pub(super) const FOLD_COUNTERS: &str = "WITH few AS MATERIALIZED (
  SELECT ctid AS tid FROM aftercommit.counters LIMIT 10000 FOR UPDATE SKIP LOCKED
), taken AS (
  DELETE FROM aftercommit.counters AS c WHERE c.ctid = ANY (ARRAY(SELECT tid FROM few))
  RETURNING c.downstream, c.state, c.n, c.at
), passed AS (
  INSERT INTO aftercommit.traffic AS t (per, at, downstream, state, n)
  SELECT 'minute', date_trunc('minute', at, 'UTC'), downstream, state, sum(n)::int8 FROM taken WHERE at IS NOT NULL AND n > 0
  GROUP BY 2, 3, 4 ORDER BY 2, 3, 4
  ON CONFLICT ON CONSTRAINT traffic_pkey DO UPDATE SET n = t.n + excluded.n
)
INSERT INTO aftercommit.counters (downstream, state, n)
SELECT downstream, state, sum(n)::int8 FROM taken GROUP BY 1, 2 HAVING sum(n) <> 0";

/// Minutes become hours, an hour at a time, so that none is shown twice.
pub(super) const FOLD_MINUTES: &str = "WITH old AS MATERIALIZED (
  SELECT t.at, t.downstream, t.state FROM aftercommit.traffic AS t
  WHERE t.per = 'minute' AND t.at < date_trunc('hour', (SELECT clock_timestamp()) - interval '25 hours', 'UTC')
  ORDER BY t.at, t.downstream, t.state LIMIT 10000 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM aftercommit.traffic AS t USING old AS o
  WHERE t.per = 'minute' AND t.at = o.at AND t.downstream = o.downstream AND t.state = o.state
  RETURNING t.at, t.downstream, t.state, t.n
)
INSERT INTO aftercommit.traffic AS t (per, at, downstream, state, n)
SELECT 'hour', date_trunc('hour', at, 'UTC'), downstream, state, sum(n)::int8 FROM gone GROUP BY 2, 3, 4 ORDER BY 2, 3, 4
ON CONFLICT ON CONSTRAINT traffic_pkey DO UPDATE SET n = t.n + excluded.n";

pub(super) const FORGET_HOURS: &str = "DELETE FROM aftercommit.traffic AS t
WHERE t.per = 'hour' AND t.at < (SELECT clock_timestamp()) - interval '8 days'";

impl PgStore {
    pub(super) async fn causes_of(
        &self,
        state: State,
        downstream: Option<&str>,
    ) -> Result<Causes, StoreError> {
        let filter =
            Filter { states: vec![state], downstream: downstream.map(str::to_owned), ..Filter::default() };
        let list = Candidates::of_state(&filter, CAUSES_WINDOW + 1);
        let text = format!("{}{CAUSES}", list.with());
        let rows = self.read(list.bind(sql(AssertSqlSafe(text))), "looking for causes").await?;
        let whole = rows.len() <= CAUSES_WINDOW as usize;
        let rows = rows
            .iter()
            .take(CAUSES_WINDOW as usize)
            .map(|row| {
                let status: Option<i32> = row::get(row, "response_status")?;
                Ok(CauseRow {
                    id: EffectId::new(row::get(row, "id")?),
                    downstream: row::get(row, "downstream")?,
                    operation: row::get(row, "operation")?,
                    error: row::get(row, "last_error")?,
                    response_status: status.and_then(|status| u16::try_from(status).ok()),
                    superseded: row::get(row, "superseded")?,
                    at: row::get(row, "at")?,
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Causes { searched: rows.len() as u64, rows, whole })
    }

    pub(super) async fn latencies_since(
        &self,
        since: Timestamp,
        bars: u32,
        per: Resolution,
    ) -> Result<Vec<Latency>, StoreError> {
        let statement = sql(LATENCIES)
            .bind(since)
            .bind(i64::from(bars.min(LATENCY_BARS_MAX) * LATENCY_PARTS))
            .bind(per.micros() / i64::from(LATENCY_PARTS))
            .bind(i64::from(LATENCY_EACH));
        let rows = self.read(statement, "reading how long attempts took").await?;
        let attempts = rows
            .iter()
            .map(|row| Ok((row::get(row, "finished_at")?, row::get(row, "took_us")?)))
            .collect::<Result<Vec<(Timestamp, i64)>, StoreError>>()?;
        Ok(Latency::of(per, attempts))
    }

    pub(super) async fn traffic_since(
        &self,
        since: Timestamp,
        per: Resolution,
    ) -> Result<Vec<Traffic>, StoreError> {
        let (word, of): (&str, &[&str]) = match per {
            Resolution::Minute => ("minute", &["minute"]),
            Resolution::Hour => ("hour", &["minute", "hour"]),
        };
        let statement = sql(TRAFFIC).bind(since).bind(word).bind(of);
        self.read(statement, "reading the traffic")
            .await?
            .iter()
            .map(|row| {
                Ok(Traffic {
                    at: row::get(row, "at")?,
                    downstream: row::get(row, "downstream")?,
                    state: row::state(&row::get::<String>(row, "state")?, 0)?,
                    effects: row::sum(row, "n")?,
                })
            })
            .collect()
    }
}
