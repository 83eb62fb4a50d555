//! People's view: look-ups through `aftercommit_status`, counts, downstreams, workers. Lists are in `list`, `chart` and `record`.

use serde_json::value::RawValue;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    candidates::names,
    chart, intent, list, received, record,
    row::{Fields, QUEUE_STATE},
    too_slow,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    contract::Contract,
    effect::EffectId,
    error::StoreError,
    outcome::Verdict,
    state::State,
    store::{
        AuditFilter, Audited, Causes, Count, DownstreamInfo, Filter, Inspect, Intent, Latency, LoggedAttempt,
        Look, Origin, Page, RequestFilter, RequestInfo, Resolution, Status, Traffic, WorkerInfo,
    },
};

/// A worker is live if it reported within this many microseconds.
const LIVE_US: i64 = 30_000_000;
pub(super) const DOING: &str = "reading for people";

/// Columns that applications write are cast: one strange row must not hide the page it stands on.
pub(super) const STATUS: &str = "SELECT s.id, CAST(s.downstream AS TEXT) AS downstream, CAST(s.operation AS TEXT) AS operation, \
     CAST(s.idempotency_key AS TEXT) AS idempotency_key, s.state, s.held_by, s.attempts, \
     CAST(s.due_at AS INTEGER) AS due_at, s.first_sent_at, s.safe_until, s.lease_until, s.worker, s.last_outcome, \
     s.last_error, s.response_status, s.response, CAST(s.metadata AS TEXT) AS metadata, \
     coalesce(o.refusal_stored, 0) AS refusal_stored, s.superseded_by, \
     CAST(s.created_at AS INTEGER) AS created_at, s.finished_at, coalesce(q.token, o.token, 0) AS token, \
     (SELECT e.fingerprint IS NOT NULL FROM aftercommit_effects AS e WHERE e.id = s.id) AS payload_dropped, \
     coalesce(o.kept & 2 = 0, 0) AS log_dropped, q.quiet_at, \
     CASE WHEN q.id IS NOT NULL THEN q.uncertain ELSE o.effect_id IS NULL END AS uncertain \
     FROM aftercommit_status AS s LEFT JOIN aftercommit_queue AS q ON q.id = s.id \
     LEFT JOIN aftercommit_outcomes AS o ON o.effect_id = s.id ";

#[async_trait::async_trait]
impl Inspect for SqliteStore {
    async fn effect(&self, id: EffectId) -> Result<Option<Status>, StoreError> {
        effect(&mut *self.people("reading an effect").await?, id).await.map_err(too_slow)
    }

    async fn intents(&self, ids: &[EffectId], look: Look) -> Result<Vec<(EffectId, Intent)>, StoreError> {
        intent::intents(&mut *self.people("reading an effect").await?, ids, look).await.map_err(too_slow)
    }

    async fn effects(&self, filter: &Filter) -> Result<Page, StoreError> {
        let now = SystemClock.wall();
        list::effects(&mut *self.people("listing effects").await?, filter, now).await.map_err(too_slow)
    }

    async fn causes(&self, state: State, downstream: Option<&str>) -> Result<Causes, StoreError> {
        let mut people = self.people("looking for causes").await?;
        chart::causes(&mut people, (state, downstream), SystemClock.wall()).await.map_err(too_slow)
    }

    async fn traffic(&self, since: Timestamp, per: Resolution) -> Result<Vec<Traffic>, StoreError> {
        chart::traffic(&mut *self.people("reading the traffic").await?, since, per).await.map_err(too_slow)
    }

    async fn latencies(
        &self,
        since: Timestamp,
        bars: u32,
        per: Resolution,
    ) -> Result<Vec<Latency>, StoreError> {
        let mut people = self.people("reading how long attempts took").await?;
        chart::latencies(&mut people, (since, bars), per).await.map_err(too_slow)
    }

    async fn attempts(&self, id: EffectId) -> Result<Vec<LoggedAttempt>, StoreError> {
        attempts(&mut *self.people("reading the log").await?, id).await.map_err(too_slow)
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        counts(&mut *self.people("counting").await?, SystemClock.wall()).await.map_err(too_slow)
    }

    async fn downstreams(&self) -> Result<Vec<DownstreamInfo>, StoreError> {
        let mut people = self.people("listing downstreams").await?;
        downstreams(&mut people, SystemClock.wall()).await.map_err(too_slow)
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, StoreError> {
        workers(&mut *self.people("listing workers").await?, SystemClock.wall()).await.map_err(too_slow)
    }

    async fn requests(&self, filter: &RequestFilter) -> Result<Vec<RequestInfo>, StoreError> {
        let mut people = self.people("listing requests").await?;
        received::requests(&mut people, filter, SystemClock.wall()).await.map_err(too_slow)
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<Audited>, StoreError> {
        record::audit(&mut *self.people("reading the audit").await?, filter).await.map_err(too_slow)
    }
}

pub(super) async fn effect(conn: &mut SqliteConnection, id: EffectId) -> Result<Option<Status>, StoreError> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!("{STATUS} WHERE s.id = ?1")))
        .bind(id.get())
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    row.map(|row| status(&row)).transpose()
}

pub(super) fn status(row: &SqliteRow) -> Result<Status, StoreError> {
    let id: i64 = row.try_get("id").map_err(StoreError::during(DOING))?;
    let fields = Fields::new(row, "aftercommit_status", id);
    let last_outcome = match fields.opt_text("last_outcome")? {
        Some(_) => Some(fields.word("last_outcome", verdict)?),
        None => None,
    };
    Ok(Status {
        id: EffectId::new(id),
        downstream: fields.shown("downstream")?.unwrap_or_default(),
        operation: fields.shown("operation")?,
        idempotency_key: fields.shown("idempotency_key")?.unwrap_or_default(),
        state: fields.word("state", |word| word.parse().ok())?,
        held_by: fields.opt_text("held_by")?,
        attempts: fields.count("attempts")?,
        due_at: fields.opt_time("due_at")?,
        first_sent_at: fields.opt_time("first_sent_at")?,
        safe_until: fields.opt_time("safe_until")?,
        lease_until: fields.opt_time("lease_until")?,
        worker: fields.opt_text("worker")?,
        last_outcome,
        last_error: fields.opt_text("last_error")?,
        response_status: fields.opt_status("response_status")?,
        response: fields.opt_text("response")?.map(raw),
        metadata: fields.shown("metadata")?.map(raw),
        refusal_stored: fields.flag("refusal_stored")?,
        payload_dropped: fields.flag("payload_dropped")?,
        log_dropped: fields.flag("log_dropped")?,
        superseded_by: fields.opt_int("superseded_by")?.map(EffectId::new),
        created_at: fields.time("created_at")?,
        finished_at: fields.opt_time("finished_at")?,
        token: fields.int("token")?,
        quiet_at: fields.opt_time("quiet_at")?,
        uncertain: fields.flag("uncertain")?,
    })
}

fn verdict(word: &str) -> Option<Verdict> {
    Verdict::ALL.into_iter().find(|verdict| verdict.as_str() == word)
}

/// JSON text as it was written; text that is no JSON (a row changed by hand) is shown as a JSON string.
fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text.clone()).unwrap_or_else(|_| {
        let quoted = serde_json::to_string(&text).expect("a string always serialises");
        RawValue::from_string(quoted).expect("a serialised string is JSON")
    })
}

pub(super) async fn attempts(
    conn: &mut SqliteConnection,
    id: EffectId,
) -> Result<Vec<LoggedAttempt>, StoreError> {
    let rows = sqlx::query(
        "SELECT number AS attempt, token, worker, started_at, ended_at, phase, outcome, response_status, error, late \
         FROM aftercommit_attempts WHERE effect_id = ?1 \
         UNION ALL \
         SELECT number, token, worker, started_at, ended_at, phase, 'applied', response_status, NULL, 0 \
         FROM aftercommit_outcomes WHERE effect_id = ?1 AND phase IS NOT NULL \
         ORDER BY attempt, token, late",
    )
    .bind(id.get())
    .fetch_all(conn)
    .await
    .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_attempts", id.get());
            Ok(LoggedAttempt {
                effect_id: id,
                attempt: fields.count("attempt")?,
                token: fields.int("token")?,
                worker: fields.opt_text("worker")?,
                started_at: fields.time("started_at")?,
                ended_at: fields.opt_time("ended_at")?,
                phase: fields.text("phase")?,
                outcome: fields.word("outcome", verdict)?,
                response_status: fields.opt_status("response_status")?,
                error: fields.opt_text("error")?,
                late: fields.flag("late")?,
            })
        })
        .collect()
}

pub(super) async fn counts(conn: &mut SqliteConnection, now: Timestamp) -> Result<Vec<Count>, StoreError> {
    let sql = format!(
        "SELECT downstream, state, n FROM aftercommit_counters WHERE n > 0 \
         UNION ALL SELECT q.downstream, {QUEUE_STATE}, count(*) FROM aftercommit_queue AS q GROUP BY 1, 2 \
         ORDER BY 1, 2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.micros())
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_counters", 0);
            Ok(Count {
                downstream: fields.text("downstream")?,
                state: fields.word("state", |word| word.parse().ok())?,
                effects: amount(&fields, "n")?,
            })
        })
        .collect()
}

fn amount(fields: &Fields<'_>, column: &'static str) -> Result<u64, StoreError> {
    let n = fields.int(column)?;
    u64::try_from(n).map_err(|error| fields.corrupt(column, error))
}

pub(super) async fn downstreams(
    conn: &mut SqliteConnection,
    now: Timestamp,
) -> Result<Vec<DownstreamInfo>, StoreError> {
    let sql = format!(
        "WITH RECURSIVE {}, known (name) AS (SELECT name FROM aftercommit_downstreams \
             UNION SELECT name FROM names WHERE name IS NOT NULL) \
         SELECT CAST(n.name AS TEXT) AS name, d.kind, \
             (SELECT t.contract FROM aftercommit_operations AS op JOIN aftercommit_terms AS t ON t.id = op.terms \
                 WHERE op.downstream = n.name ORDER BY op.operation LIMIT 1) AS contract, \
             (SELECT count(*) FROM aftercommit_workers AS w, json_each(w.downstreams) AS served \
                 WHERE served.value = n.name AND w.seen_at > ?2) AS workers, \
             (SELECT count(*) FROM aftercommit_queue AS q WHERE q.downstream = n.name AND q.claimed = 0 \
                 AND q.lane IN ('r', 't', 'w')) AS pending, \
             (SELECT count(*) FROM aftercommit_queue AS q WHERE q.downstream = n.name AND q.claimed = 1) AS in_flight, \
             (SELECT count(*) FROM aftercommit_queue AS q WHERE q.downstream = n.name AND q.claimed = 0 \
                 AND q.lane = 'd') AS in_doubt, \
             coalesce((SELECT c.n FROM aftercommit_counters AS c \
                 WHERE c.downstream = n.name AND c.state = 'failed'), 0) AS failed, \
             (SELECT min(q.due_at) FROM aftercommit_queue AS q WHERE q.downstream = n.name AND q.claimed = 0 \
                 AND q.lane IN ('r', 't') AND (q.lane = 'r' OR q.due_at <= ?1)) AS oldest_due_at, \
             d.paused_at, d.paused_by, d.pause_reason, d.origin, h.open_until, h.paused_until, r.rate, \
             CASE WHEN h.open_until IS NOT NULL OR h.paused_until > ?1 THEN h.reason END AS reason \
         FROM known AS n LEFT JOIN aftercommit_downstreams AS d ON d.name = n.name \
         LEFT JOIN aftercommit_origins AS h ON h.origin = d.origin \
         LEFT JOIN aftercommit_rates AS r ON r.downstream = n.name ORDER BY n.name",
        names!()
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.micros())
        .bind(now.micros().saturating_sub(LIVE_US))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_downstreams", 0);
            let contract = fields.opt_text("contract")?;
            let contract = contract.map(|_| fields.json::<Contract>("contract")).transpose()?;
            Ok(DownstreamInfo {
                name: fields.text("name")?,
                kind: fields.opt_text("kind")?,
                contract: contract.as_ref().map(Contract::in_words),
                workers: fields.count("workers")?,
                pending: amount(&fields, "pending")?,
                in_flight: amount(&fields, "in_flight")?,
                in_doubt: amount(&fields, "in_doubt")?,
                failed: amount(&fields, "failed")?,
                oldest_due_at: fields.opt_time("oldest_due_at")?,
                paused: super::budget::paused_by(&fields)?,
                origin: fields.opt_text("origin")?,
                paused_until: fields.opt_time("paused_until")?.filter(|until| *until > now),
                breaker: Origin { open_until: fields.opt_time("open_until")?, ..Origin::default() }
                    .breaker(now),
                hold_reason: fields.opt_text("reason")?,
                rate: fields.opt_text("rate")?,
            })
        })
        .collect()
}

pub(super) async fn workers(
    conn: &mut SqliteConnection,
    now: Timestamp,
) -> Result<Vec<WorkerInfo>, StoreError> {
    let rows = sqlx::query(
        "SELECT w.name, w.version, w.started_at, w.seen_at, w.downstreams, w.seen_at > ?1 AS live, \
             coalesce(h.in_flight, 0) AS in_flight, coalesce(h.leases, 0) AS leases, h.lease_until \
         FROM aftercommit_workers AS w LEFT JOIN ( \
             SELECT c.worker, count(*) AS in_flight, count(DISTINCT c.token) AS leases, min(c.lease_until) AS lease_until \
             FROM aftercommit_claims AS c JOIN aftercommit_queue AS q ON q.token = c.token AND q.claimed = 1 \
             GROUP BY c.worker) AS h ON h.worker = w.name \
         ORDER BY live DESC, w.name",
    )
    .bind(now.micros().saturating_sub(LIVE_US))
    .fetch_all(conn)
    .await
    .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_workers", 0);
            Ok(WorkerInfo {
                name: fields.text("name")?,
                started_at: fields.time("started_at")?,
                seen_at: fields.time("seen_at")?,
                live: fields.flag("live")?,
                downstreams: fields.json("downstreams")?,
                in_flight: amount(&fields, "in_flight")?,
                leases: amount(&fields, "leases")?,
                lease_until: fields.opt_time("lease_until")?,
                version: fields.text("version")?,
            })
        })
        .collect()
}
