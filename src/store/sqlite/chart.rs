//! Causes and courses, for people: the newest of what failed or is in doubt, and how much ended when.

use sqlx::SqliteConnection;

use super::{
    candidates::Candidates,
    inspect::DOING,
    list,
    row::{Fields, json_ids},
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    state::State,
    store::{
        CAUSES_WINDOW, CauseRow, Causes, Filter, LATENCY_BARS_MAX, Latency, Resolution, Traffic,
        chart::{LATENCY_EACH, LATENCY_PARTS},
        search::{self, Plan},
    },
};

const CAUSES: &str = "SELECT s.id, CAST(s.downstream AS TEXT) AS downstream, CAST(s.operation AS TEXT) AS operation, \
     s.last_error, s.response_status, s.superseded_by IS NOT NULL AS superseded, coalesce(s.finished_at, ( \
         SELECT l.ended_at FROM aftercommit_attempts AS l WHERE l.effect_id = s.id \
         ORDER BY l.number DESC, l.token DESC, l.late DESC LIMIT 1), CAST(s.created_at AS INTEGER)) AS at \
     FROM json_each(?1) AS w CROSS JOIN aftercommit_status AS s ON s.id = w.value ORDER BY w.key";

/// Served by the primary key.
const TRAFFIC: &str = "SELECT t.at / ?2 * ?2 AS at, t.downstream, t.state, sum(t.n) AS n FROM aftercommit_traffic AS t \
     WHERE t.per IN ('minute', ?3) AND t.at >= ?1 / ?2 * ?2 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";

/// The first few of each part of a minute or hour, by the index that retention reads: of those whose history is kept (3, 2), since the
/// attempt goes with it. A first attempt that succeeded stands in the outcome's own row.
const LATENCIES: &str = "WITH RECURSIVE part (at, n) AS ( \
         SELECT ?1, 1 UNION ALL SELECT at + ?3, n + 1 FROM part WHERE n < ?2) \
     SELECT o.finished_at, coalesce(o.ended_at - o.started_at, ( \
         SELECT l.ended_at - l.started_at FROM aftercommit_attempts AS l WHERE l.effect_id = o.effect_id \
         ORDER BY l.number DESC, l.token DESC, l.late DESC LIMIT 1)) AS took_us \
     FROM part CROSS JOIN json_each('[3,2]') AS k CROSS JOIN aftercommit_outcomes AS o ON o.effect_id IN ( \
         SELECT x.effect_id FROM aftercommit_outcomes AS x \
         WHERE x.kept = k.value AND x.finished_at >= part.at AND x.finished_at < part.at + ?3 \
         ORDER BY x.finished_at LIMIT ?4)";

/// Minutes are kept for a day and an hour, hours for eight days.
const MINUTES_US: i64 = 25 * 3_600_000_000;
const HOURS_US: i64 = 8 * 24 * 3_600_000_000;

pub(super) async fn causes(
    conn: &mut SqliteConnection,
    (state, downstream): (State, Option<&str>),
    now: Timestamp,
) -> Result<Causes, StoreError> {
    search::has_causes(state)?;
    let filter =
        Filter { states: vec![state], downstream: downstream.map(str::to_owned), ..Filter::default() };
    let plan = Plan { candidates: CAUSES_WINDOW + 1, ..Plan::of(&filter, None, None) };
    let knows = Candidates::knows_downstream(&filter, &plan);
    let list = Candidates { filter: &filter, bounds: (None, None), words: Vec::new(), plan, now };
    let (mut ids, floor) = list::candidates(conn, &list).await?;
    let whole = floor.is_none() && ids.len() <= CAUSES_WINDOW as usize;
    ids.truncate(CAUSES_WINDOW as usize);
    let rows = sqlx::query(CAUSES)
        .bind(json_ids(ids.iter().copied()))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    let mut causes = Causes { rows: Vec::with_capacity(rows.len()), searched: ids.len() as u64, whole };
    for (row, id) in rows.iter().zip(ids) {
        let fields = Fields::new(row, "aftercommit_status", id);
        let cause = CauseRow {
            id: EffectId::new(id),
            downstream: fields.shown("downstream")?.unwrap_or_default(),
            operation: fields.shown("operation")?,
            error: fields.opt_text("last_error")?,
            response_status: fields.opt_status("response_status")?,
            superseded: fields.flag("superseded")?,
            at: fields.time("at")?,
        };
        if knows || downstream.is_none_or(|downstream| downstream == cause.downstream) {
            causes.rows.push(cause);
        }
    }
    Ok(causes)
}

pub(super) async fn latencies(
    conn: &mut SqliteConnection,
    (since, bars): (Timestamp, u32),
    per: Resolution,
) -> Result<Vec<Latency>, StoreError> {
    let bars = bars.min(LATENCY_BARS_MAX);
    if bars == 0 {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(LATENCIES)
        .bind(since.micros())
        .bind(i64::from(bars * LATENCY_PARTS))
        .bind(per.micros() / i64::from(LATENCY_PARTS))
        .bind(i64::from(LATENCY_EACH))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    let mut attempts = Vec::with_capacity(rows.len());
    for row in &rows {
        let fields = Fields::new(row, "aftercommit_outcomes", 0);
        // One that nobody attempted was called off, or came too late.
        if let Some(took) = fields.opt_int("took_us")? {
            attempts.push((fields.time("finished_at")?, took));
        }
    }
    Ok(Latency::of(per, attempts))
}

pub(super) async fn traffic(
    conn: &mut SqliteConnection,
    since: Timestamp,
    per: Resolution,
) -> Result<Vec<Traffic>, StoreError> {
    let other = match per {
        Resolution::Minute => "minute",
        Resolution::Hour => "hour",
    };
    let rows = sqlx::query(TRAFFIC)
        .bind(since.micros())
        .bind(per.micros())
        .bind(other)
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_traffic", 0);
            let n = fields.int("n")?;
            Ok(Traffic {
                at: fields.time("at")?,
                downstream: fields.text("downstream")?,
                state: fields.word("state", |word| word.parse().ok())?,
                effects: u64::try_from(n).map_err(|error| fields.corrupt("n", error))?,
            })
        })
        .collect()
}

/// Adds what has just ended to the minute that it ended in.
pub(super) async fn pass(
    conn: &mut SqliteConnection,
    (downstream, state): (&str, &str),
    n: i64,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let minute = Resolution::Minute.micros();
    sqlx::query(
        "INSERT INTO aftercommit_traffic (per, at, downstream, state, n) VALUES ('minute', ?1, ?2, ?3, ?4) \
         ON CONFLICT (per, at, downstream, state) DO UPDATE SET n = n + excluded.n",
    )
    .bind(now.micros().div_euclid(minute) * minute)
    .bind(downstream.to_owned())
    .bind(state.to_owned())
    .bind(n)
    .execute(conn)
    .await
    .map(drop)
}

/// Minutes become hours, an hour at a time, so that none is shown twice; old hours go.
pub(super) async fn fold(conn: &mut SqliteConnection, now: Timestamp) -> Result<(), sqlx::Error> {
    let hour = Resolution::Hour.micros();
    let until = now.micros().saturating_sub(MINUTES_US).div_euclid(hour) * hour;
    sqlx::query(
        "INSERT INTO aftercommit_traffic (per, at, downstream, state, n) \
         SELECT 'hour', t.at / ?2 * ?2, t.downstream, t.state, sum(t.n) FROM aftercommit_traffic AS t \
         WHERE t.per = 'minute' AND t.at < ?1 GROUP BY 2, 3, 4 \
         ON CONFLICT (per, at, downstream, state) DO UPDATE SET n = n + excluded.n",
    )
    .bind(until)
    .bind(hour)
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "DELETE FROM aftercommit_traffic WHERE per = 'minute' AND at < ?1 OR per = 'hour' AND at < ?2",
    )
    .bind(until)
    .bind(now.micros().saturating_sub(HOURS_US))
    .execute(conn)
    .await
    .map(drop)
}
