//! The sweeps: leases that ended, effects that are overdue; and maintenance. The sweep's judgement is read first and written
//! later, so every write checks again what it was based on: token, lane, lease.

use std::sync::{Arc, atomic::Ordering};

use sqlx::postgres::PgRow;

use super::{
    PgStore,
    budget::FORGET_ORIGINS,
    chart::{FOLD_COUNTERS, FOLD_MINUTES, FORGET_HOURS},
    durable,
    row::{self, history_columns},
    settle::{Batch, Held, write_sql},
    statement::sql,
};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{Expired, Overdue, RegisteredTerms, Settled, Settlement, Token},
};

/// Claims are few (one per batch), so they are read through; their effects by the primary key.
const EXPIRED: &str = concat!(
    "SELECT ",
    history_columns!(),
    ", q.downstream, q.operation, c.token, c.worker, c.claimed_at, c.lease_until
FROM aftercommit.claims AS c CROSS JOIN LATERAL unnest(c.ids) AS held (id)
JOIN aftercommit.queue AS q ON q.id = held.id AND q.token = c.token AND q.claimed
LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
WHERE c.lease_until <= (SELECT clock_timestamp())
ORDER BY c.lease_until, q.id LIMIT $1"
);

/// Claimed rows without a claim, which nobody can renew: their lease is over. No index finds them, since a claim must touch
/// no indexed column; so each look reads the next few rows, from where the last one ended. One statement, hence one
/// snapshot: a claim that is being dropped takes its rows with it.
const ORPHANED: &str = concat!(
    "WITH slice AS MATERIALIZED (
  SELECT id, token, claimed FROM aftercommit.queue WHERE id > $1 ORDER BY id LIMIT $2
), looked AS (
  SELECT CASE WHEN count(*) < $2 THEN 0 ELSE max(id) END AS last FROM slice
), orphan AS (
  SELECT s.id FROM slice AS s
  WHERE s.claimed AND NOT EXISTS (SELECT FROM aftercommit.claims AS c WHERE c.token = s.token)
)
SELECT l.last, o.id AS orphan, '' AS worker, m.at AS claimed_at, m.at AS lease_until, q.downstream, q.operation, q.token, ",
    history_columns!(),
    "
FROM looked AS l CROSS JOIN (SELECT clock_timestamp() AS at) AS m LEFT JOIN orphan AS o ON true
LEFT JOIN aftercommit.queue AS q ON q.id = o.id LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms"
);

/// Rows that one look for orphans reads.
const ORPHAN_SLICE: i64 = 10_000;

/// Holds the claims, so that none is renewed meanwhile; those that are being renewed now are left alone. An effect that is
/// parked keeps its token, so that its worker may still say what happened; any other gets a new one.
const SWEEP_EXPIRED: &str = write_sql!(
    with: ", h AS MATERIALIZED (
  SELECT c.token, c.lease_until FROM aftercommit.claims AS c
  WHERE c.token = ANY ($2::int8[]) AND c.lease_until <= (SELECT now_at FROM moment)
  FOR UPDATE SKIP LOCKED
), over (token) AS MATERIALIZED (
  SELECT token FROM h
  UNION
  SELECT token FROM s WHERE NOT EXISTS (SELECT FROM aftercommit.claims AS c WHERE c.token = s.token)
)",
    from: " JOIN over AS h ON h.token = s.token",
    when: "q.claimed",
    ended: "nextval('aftercommit.tokens')",
    kept: "CASE WHEN s.next = 'd' THEN q.token ELSE nextval('aftercommit.tokens') END",
    parked: "true"
);

/// Served by queue_sweep.
const OVERDUE: &str = concat!(
    "SELECT ",
    history_columns!(),
    ", q.downstream, q.operation, q.token
FROM aftercommit.queue AS q LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
WHERE q.sweep_at <= (SELECT clock_timestamp()) AND NOT q.claimed AND q.lane <> 'd'
ORDER BY q.sweep_at LIMIT $1"
);

/// Nobody can still answer under the token of an unclaimed effect: it was settled, or never claimed. One that is given back
/// is only looked at later, so its token stands.
const SWEEP_OVERDUE: &str = write_sql!(
    with: "",
    from: " CROSS JOIN moment AS t",
    when: "NOT q.claimed AND q.lane <> 'd' AND q.sweep_at <= t.now_at",
    ended: "nextval('aftercommit.tokens')",
    kept: "CASE WHEN s.next IN ('d', 'g') THEN q.token ELSE nextval('aftercommit.tokens') END",
    parked: "false"
);

/// Drops claims that nobody's effects carry any more.
const DROP_CLAIMS: &str = "DELETE FROM aftercommit.claims AS c
WHERE c.lease_until <= (SELECT clock_timestamp()) AND NOT EXISTS (
  SELECT FROM unnest(c.ids) AS held (id) JOIN aftercommit.queue AS q ON q.id = held.id AND q.token = c.token AND q.claimed)";

/// A worker that has been silent for an hour has stopped without saying so.
const FORGET_WORKERS: &str =
    "DELETE FROM aftercommit.workers WHERE seen_at < (SELECT clock_timestamp()) - interval '1 hour'";

impl PgStore {
    pub(super) async fn find_expired(&self, limit: u32) -> Result<Vec<Expired>, StoreError> {
        let doing = "looking for leases that ended";
        let rows = self.all(sql(EXPIRED).bind(i64::from(limit))).await.map_err(StoreError::during(doing))?;
        let mut found = rows.iter().map(expired).collect::<Result<Vec<_>, _>>()?;
        let statement = sql(ORPHANED).bind(self.orphans_from.load(Ordering::Relaxed)).bind(ORPHAN_SLICE);
        let orphans = self.all(statement).await.map_err(StoreError::during(doing))?;
        for row in &orphans {
            if row::get::<Option<i64>>(row, "orphan")?.is_some() {
                found.push(expired(row)?);
            }
        }
        let full = found.len() > limit as usize;
        found.truncate(limit as usize);
        // What did not fit is met again by the next look.
        if let (Some(row), false) = (orphans.first(), full) {
            self.orphans_from.store(row::get(row, "last")?, Ordering::Relaxed);
        }
        Ok(found)
    }

    pub(super) async fn write_expired(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let written = Batch::of(batch, Held::Claimed).write(self, SWEEP_EXPIRED, &[]).await?;
        self.execute(sql(DROP_CLAIMS)).await.map_err(StoreError::during("dropping claims"))?;
        self.say(batch, &written).await
    }

    pub(super) async fn find_overdue(&self, limit: u32) -> Result<Vec<Overdue>, StoreError> {
        let rows = self.all(sql(OVERDUE).bind(i64::from(limit))).await;
        rows.map_err(StoreError::during("looking for overdue effects"))?.iter().map(overdue).collect()
    }

    pub(super) async fn write_overdue(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let written = Batch::of(batch, Held::Unclaimed).write(self, SWEEP_OVERDUE, &[]).await?;
        self.say(batch, &written).await
    }

    /// What became of a sweep's batch: a row that was not written is somebody else's now, or was asked about meanwhile.
    async fn say(&self, batch: &[Settlement], written: &[usize]) -> Result<Vec<Settled>, StoreError> {
        let mut said = vec![Settled::Lost; batch.len()];
        for index in written {
            if let Some(settled) = said.get_mut(*index) {
                *settled = Settled::Done;
            }
        }
        let open: Vec<usize> = (0..batch.len()).filter(|index| said[*index] == Settled::Lost).collect();
        if open.is_empty() {
            return Ok(said);
        }
        let statement = sql(
            "SELECT s.ord, q.cancel_requested, q.applied_late FROM unnest($1::int8[], $2::int8[], $3::int8[]) AS s (id, token, ord)
             JOIN aftercommit.queue AS q ON q.id = s.id AND q.token = s.token
             WHERE q.cancel_requested OR q.applied_late",
        )
        .bind(open.iter().map(|index| batch[*index].id.get()).collect::<Vec<_>>())
        .bind(open.iter().map(|index| batch[*index].token.get()).collect::<Vec<_>>())
        .bind(open.iter().map(|index| i64::try_from(*index).unwrap_or(i64::MAX)).collect::<Vec<_>>());
        let rows = self.all(statement).await.map_err(StoreError::during("sweeping"))?;
        for row in &rows {
            let ord: i64 = row::get(row, "ord")?;
            if let Some(settled) = usize::try_from(ord).ok().and_then(|ord| said.get_mut(ord)) {
                *settled = Settled::Reconsider {
                    cancel_requested: row::get(row, "cancel_requested")?,
                    applied_late: row::get(row, "applied_late")?,
                };
            }
        }
        Ok(said)
    }

    pub(super) async fn fold_and_forget(&self) -> Result<(), StoreError> {
        let traffic = [FOLD_COUNTERS, FOLD_MINUTES, FORGET_HOURS];
        let probes = [super::probe::FORGET, super::probe::FORGET_ABSENCES];
        let others = [FORGET_WORKERS, DROP_CLAIMS, FORGET_ORIGINS];
        for text in traffic.into_iter().chain(others).chain(probes) {
            self.execute(sql(text)).await.map_err(StoreError::during("tidying up"))?;
        }
        Ok(())
    }

    pub(super) async fn registered_terms(
        &self,
        downstream: &str,
        operation: Option<&str>,
    ) -> Result<Option<RegisteredTerms>, StoreError> {
        let statement =
            sql("SELECT t.id, t.contract::text AS contract, t.policy::text AS policy, t.timeout_us
             FROM aftercommit.terms AS t LEFT JOIN aftercommit.operations AS o ON o.terms = t.id
             WHERE t.downstream = $1 AND coalesce(t.operation, '') IN ($2, '')
             ORDER BY coalesce(t.operation, '') <> $2, o.terms IS NULL, t.id DESC LIMIT 1")
            .bind(downstream)
            .bind(operation.unwrap_or(""));
        let row = self.optional(statement).await.map_err(StoreError::during("reading terms"))?;
        row.as_ref().map(terms).transpose()
    }

    /// Nothing due now, nothing in flight. What is due later, and what is in doubt, keeps no worker waiting here.
    pub(super) async fn nothing_to_do(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        let names: Vec<&str> = downstreams.iter().map(AsRef::as_ref).collect();
        let busy: bool = self
            .scalar(sql(IS_BUSY).bind(names))
            .await
            .map_err(StoreError::during("asking whether anything is to do"))?;
        Ok(!busy)
    }
}

/// Served by queue_ready and queue_timed; an effect in flight stands in one of them too.
const IS_BUSY: &str = "SELECT EXISTS (
  SELECT FROM unnest($1::text[]) AS d (name)
  WHERE NOT EXISTS (SELECT FROM aftercommit.downstreams AS p LEFT JOIN aftercommit.origins AS o ON o.origin = p.origin
                    WHERE p.name = d.name AND (p.paused_at IS NOT NULL OR o.paused_until > (SELECT clock_timestamp())
                                               OR o.open_until IS NOT NULL))
    AND NOT EXISTS (SELECT FROM aftercommit.hold)
    AND EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.downstream = d.name AND q.lane = 'r' AND NOT q.claimed
                UNION ALL
                SELECT FROM aftercommit.queue AS q WHERE q.downstream = d.name AND q.lane = 't' AND NOT q.claimed
                AND q.due_at <= (SELECT clock_timestamp()))
     OR EXISTS (SELECT FROM aftercommit.claims AS c CROSS JOIN LATERAL unnest(c.ids) AS held (id)
                JOIN aftercommit.queue AS q ON q.id = held.id AND q.token = c.token AND q.claimed
                WHERE q.downstream = d.name))";

fn expired(row: &PgRow) -> Result<Expired, StoreError> {
    Ok(Expired {
        id: EffectId::new(row::get(row, "id")?),
        downstream: row::get::<String>(row, "downstream")?.into(),
        operation: row::get(row, "operation")?,
        token: Token::new(row::get(row, "token")?),
        history: row::history(row)?,
        number: row::count(row, "number")?,
        worker: row::get::<String>(row, "worker")?.into(),
        claimed_at: row::get(row, "claimed_at")?,
        lease_until: row::get(row, "lease_until")?,
    })
}

fn overdue(row: &PgRow) -> Result<Overdue, StoreError> {
    Ok(Overdue {
        id: EffectId::new(row::get(row, "id")?),
        downstream: row::get::<String>(row, "downstream")?.into(),
        operation: row::get(row, "operation")?,
        token: Token::new(row::get(row, "token")?),
        history: row::history(row)?,
    })
}

/// Registered terms, from `contract`, `policy` and `timeout_us`.
pub(super) fn terms(row: &PgRow) -> Result<RegisteredTerms, StoreError> {
    let id = row::get(row, "id")?;
    let timeout: i64 = row::get(row, "timeout_us")?;
    Ok(RegisteredTerms {
        contract: row::parsed(&row::get::<String>(row, "contract")?, ("terms", "contract", id))?,
        policy: row::parsed(&row::get::<String>(row, "policy")?, ("terms", "policy", id))?,
        timeout: std::time::Duration::from_micros(u64::try_from(timeout).unwrap_or(0)),
    })
}
