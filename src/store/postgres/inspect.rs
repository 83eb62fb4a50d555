//! People's view: one effect and its attempts, counts, downstreams, workers. Lists are in `list`, `chart` and `record`.

use serde_json::value::RawValue;
use sqlx::{AssertSqlSafe, postgres::PgRow};

use super::{PgStore, Tx, candidates::names, row, statement::sql};
use crate::{
    clock::Timestamp,
    contract::Contract,
    effect::EffectId,
    error::StoreError,
    store::{Count, DownstreamInfo, LoggedAttempt, Origin, Status, WorkerInfo},
};

/// The view's columns as [`status`] reads them.
macro_rules! status_columns {
    () => {
        "v.id, v.downstream, v.operation, v.idempotency_key, v.state, v.held_by, v.attempts, v.due_at, v.first_sent_at, \
         v.safe_until, v.lease_until, v.worker, v.last_outcome, v.last_error, v.response_status, \
         v.response::text AS response, v.metadata::text AS metadata, v.refusal_stored, v.superseded_by, v.created_at, \
         v.finished_at, v.token, v.payload_dropped, v.log_dropped, v.quiet_at, v.uncertain"
    };
}

/// Served by the primary keys.
const ONE: &str =
    concat!("SELECT ", status_columns!(), " FROM aftercommit.status_of_all AS v WHERE v.id = $1");

/// [`status_columns`] for a login that may or may not read what was answered.
pub(super) fn columns(answers: bool) -> String {
    let columns = status_columns!();
    if answers { columns.to_owned() } else { columns.replace("v.response::text", "NULL::text") }
}

/// Grouped by what tells the state, and only then named: by the names themselves the planner expects as many groups as rows, and
/// reads the queue three times as long.
const COUNTS: &str = "SELECT downstream, state, sum(n)::int8 AS effects FROM (
  SELECT q.downstream,
         CASE WHEN q.lane = 'd' THEN 'in_doubt' WHEN q.claimed THEN 'in_flight' WHEN q.lane = 'w' THEN 'waiting'
              WHEN q.lane = 'r' OR q.is_due THEN 'ready' WHEN q.tried THEN 'retrying' ELSE 'scheduled' END AS state, q.n
  FROM (SELECT x.downstream, x.lane, x.claimed, x.due_at <= statement_timestamp() AS is_due, x.tries > 0 AS tried, count(*) AS n
        FROM aftercommit.queue AS x GROUP BY 1, 2, 3, 4, 5) AS q
  UNION ALL
  SELECT downstream, state, n FROM aftercommit.counters) AS c
GROUP BY 1, 2 HAVING sum(n) > 0 ORDER BY 1, 2";

const DOWNSTREAMS: &str = concat!(
    "WITH RECURSIVE ",
    names!(),
    ", waiting AS MATERIALIZED (
  SELECT q.downstream, count(*) FILTER (WHERE NOT q.claimed AND q.lane <> 'd') AS pending,
         count(*) FILTER (WHERE q.claimed) AS in_flight, count(*) FILTER (WHERE q.lane = 'd') AS in_doubt,
         min(q.due_at) FILTER (WHERE NOT q.claimed AND q.lane <> 'd' AND (q.lane = 'r' OR q.due_at <= statement_timestamp()))
           AS oldest_due_at
  FROM aftercommit.queue AS q GROUP BY 1
), failed AS MATERIALIZED (
  SELECT downstream, sum(n)::int8 AS n FROM aftercommit.counters WHERE state = 'failed' GROUP BY 1
)
SELECT n.name, d.kind, t.contract::text AS contract,
       (SELECT count(*) FROM aftercommit.workers AS w
        WHERE w.seen_at > statement_timestamp() - interval '30 seconds' AND n.name = ANY (w.downstreams))::int4 AS workers,
       coalesce(w.pending, 0) AS pending, coalesce(w.in_flight, 0) AS in_flight, coalesce(w.in_doubt, 0) AS in_doubt,
       greatest(coalesce(f.n, 0), 0) AS failed, w.oldest_due_at, d.paused_at, d.paused_by, d.pause_reason, d.origin, r.rate,
       h.open_until, h.paused_until,
       CASE WHEN h.open_until IS NOT NULL OR h.paused_until > statement_timestamp() THEN h.reason END AS reason,
       statement_timestamp() AS now_at
FROM (SELECT name FROM names WHERE name IS NOT NULL UNION SELECT name FROM aftercommit.downstreams) AS n
LEFT JOIN aftercommit.downstreams AS d ON d.name = n.name
LEFT JOIN aftercommit.operations AS o ON o.downstream = n.name AND o.operation = ''
LEFT JOIN aftercommit.terms AS t ON t.id = o.terms
LEFT JOIN waiting AS w ON w.downstream = n.name
LEFT JOIN failed AS f ON f.downstream = n.name
LEFT JOIN aftercommit.origins AS h ON h.origin = d.origin
LEFT JOIN aftercommit.rates AS r ON r.downstream = n.name
ORDER BY n.name"
);

const WORKERS: &str = "SELECT w.name, w.started_at, w.seen_at, w.version, w.downstreams,
  w.seen_at > statement_timestamp() - interval '30 seconds' AS live, h.in_flight, h.leases, h.lease_until
FROM aftercommit.workers AS w CROSS JOIN LATERAL (
  SELECT count(*) AS in_flight, count(DISTINCT c.token) AS leases, min(c.lease_until) AS lease_until
  FROM aftercommit.claims AS c CROSS JOIN LATERAL unnest(c.ids) AS held (id)
  JOIN aftercommit.queue AS q ON q.id = held.id AND q.token = c.token AND q.claimed WHERE c.worker = w.name) AS h
ORDER BY live DESC, w.seen_at DESC, w.name";

impl PgStore {
    pub(super) async fn one_effect(&self, id: EffectId) -> Result<Option<Status>, StoreError> {
        let text = format!(
            "SELECT {} FROM aftercommit.status_of_all AS v WHERE v.id = $1",
            columns(self.reads_answers().await?)
        );
        let rows = self.read(sql(AssertSqlSafe(text)).bind(id.get()), "looking up an effect").await?;
        rows.first().map(status).transpose()
    }

    pub(super) async fn attempts_of(&self, id: EffectId) -> Result<Vec<LoggedAttempt>, StoreError> {
        let statement = sql(
            "SELECT attempt, token, worker, started_at, ended_at, phase, outcome, response_status, error, late
             FROM aftercommit.attempt_log WHERE effect_id = $1 ORDER BY attempt, token, late",
        )
        .bind(id.get());
        self.read(statement, "reading attempts")
            .await?
            .iter()
            .map(|row| {
                let status: Option<i32> = row::get(row, "response_status")?;
                Ok(LoggedAttempt {
                    effect_id: id,
                    attempt: row::count(row, "attempt")?,
                    token: row::get(row, "token")?,
                    worker: row::get(row, "worker")?,
                    started_at: row::get(row, "started_at")?,
                    ended_at: row::get(row, "ended_at")?,
                    phase: row::get(row, "phase")?,
                    outcome: row::verdict(&row::get::<String>(row, "outcome")?, id.get())?,
                    response_status: status.and_then(|status| u16::try_from(status).ok()),
                    error: row::get(row, "error")?,
                    late: row::get(row, "late")?,
                })
            })
            .collect()
    }

    pub(super) async fn counts_by_state(&self) -> Result<Vec<Count>, StoreError> {
        self.read_through(sql(COUNTS), "counting effects")
            .await?
            .iter()
            .map(|row| {
                Ok(Count {
                    downstream: row::get(row, "downstream")?,
                    state: row::state(&row::get::<String>(row, "state")?, 0)?,
                    effects: row::sum(row, "effects")?,
                })
            })
            .collect()
    }

    pub(super) async fn known_downstreams(&self) -> Result<Vec<DownstreamInfo>, StoreError> {
        self.read_through(sql(DOWNSTREAMS), "listing downstreams").await?.iter().map(downstream).collect()
    }

    pub(super) async fn known_workers(&self) -> Result<Vec<WorkerInfo>, StoreError> {
        self.read(sql(WORKERS), "listing workers")
            .await?
            .iter()
            .map(|row| {
                Ok(WorkerInfo {
                    name: row::get(row, "name")?,
                    started_at: row::get(row, "started_at")?,
                    seen_at: row::get(row, "seen_at")?,
                    live: row::get(row, "live")?,
                    downstreams: row::get(row, "downstreams")?,
                    in_flight: row::sum(row, "in_flight")?,
                    leases: row::sum(row, "leases")?,
                    lease_until: row::get(row, "lease_until")?,
                    version: row::get(row, "version")?,
                })
            })
            .collect()
    }
}

/// One effect as the view shows it in this transaction.
pub(super) async fn status_of(tx: &mut Tx<'_>, id: EffectId) -> Result<Option<Status>, StoreError> {
    let row = tx.optional(sql(ONE).bind(id.get())).await;
    row.map_err(StoreError::during("looking up an effect"))?.as_ref().map(status).transpose()
}

pub(super) fn status(row: &PgRow) -> Result<Status, StoreError> {
    let id: i64 = row::get(row, "id")?;
    let response_status: Option<i32> = row::get(row, "response_status")?;
    let outcome: Option<String> = row::get(row, "last_outcome")?;
    Ok(Status {
        id: EffectId::new(id),
        downstream: row::get(row, "downstream")?,
        operation: row::get(row, "operation")?,
        idempotency_key: row::get(row, "idempotency_key")?,
        state: row::state(&row::get::<String>(row, "state")?, id)?,
        held_by: row::get(row, "held_by")?,
        attempts: row::count(row, "attempts")?,
        due_at: row::get(row, "due_at")?,
        first_sent_at: row::get(row, "first_sent_at")?,
        safe_until: row::get(row, "safe_until")?,
        lease_until: row::get(row, "lease_until")?,
        worker: row::get(row, "worker")?,
        last_outcome: outcome.map(|outcome| row::verdict(&outcome, id)).transpose()?,
        last_error: row::get(row, "last_error")?,
        response_status: response_status.and_then(|status| u16::try_from(status).ok()),
        response: raw(row::get(row, "response")?),
        metadata: raw(row::get(row, "metadata")?),
        refusal_stored: row::get(row, "refusal_stored")?,
        payload_dropped: row::get(row, "payload_dropped")?,
        log_dropped: row::get(row, "log_dropped")?,
        superseded_by: row::get::<Option<i64>>(row, "superseded_by")?.map(EffectId::new),
        created_at: row::get::<Timestamp>(row, "created_at")?,
        finished_at: row::get(row, "finished_at")?,
        token: row::get(row, "token")?,
        quiet_at: row::get(row, "quiet_at")?,
        uncertain: row::get(row, "uncertain")?,
    })
}

/// JSON text as it stands; what the database's parser takes and ours does not is left out rather than an error.
fn raw(text: Option<String>) -> Option<Box<RawValue>> {
    text.and_then(|text| RawValue::from_string(text).ok())
}

fn downstream(row: &PgRow) -> Result<DownstreamInfo, StoreError> {
    let contract: Option<String> = row::get(row, "contract")?;
    let contract = contract
        .map(|text| row::parsed::<Contract>(&text, ("terms", "contract", 0)))
        .transpose()?
        .map(|contract| contract.in_words());
    let now: Timestamp = row::get(row, "now_at")?;
    let open_until = row::get(row, "open_until")?;
    let breaker = Origin { open_until, ..Origin::default() }.breaker(now);
    Ok(DownstreamInfo {
        name: row::get(row, "name")?,
        kind: row::get(row, "kind")?,
        contract,
        workers: row::count(row, "workers")?,
        pending: row::sum(row, "pending")?,
        in_flight: row::sum(row, "in_flight")?,
        in_doubt: row::sum(row, "in_doubt")?,
        failed: row::sum(row, "failed")?,
        oldest_due_at: row::get(row, "oldest_due_at")?,
        paused: super::budget::paused_by(row)?,
        origin: row::get(row, "origin")?,
        paused_until: row::get::<Option<Timestamp>>(row, "paused_until")?.filter(|until| *until > now),
        breaker,
        hold_reason: row::get(row, "reason")?,
        rate: row::get(row, "rate")?,
    })
}
