//! Budgets: holds, rates, breakers, and people's pauses. The rules are in [`crate::store::breaker`].

use std::{sync::Arc, time::Duration};

use sqlx::postgres::PgRow;

use super::{
    PgStore, Tx,
    row::{self, sentence},
    statement::{Statement, sql},
    wake::CHANNEL,
};
use crate::{
    clock::Timestamp,
    downstream::Rate,
    error::StoreError,
    store::{
        Budget, Granted, Holds, Origin, Pause, PausedBy, RegisteredDownstream, Report,
        budget::{Acted, by_origin, told},
    },
    verb::Actor,
};

/// The last row, without an origin, carries the clock.
const ORIGINS: &str = "SELECT origin, failures, opens, open_until, trial_until, paused_until, reason,
  clock_timestamp() AS now_at FROM aftercommit.origins
UNION ALL SELECT NULL, 0, 0, NULL, NULL, NULL, NULL, clock_timestamp()";

const PAUSED: &str =
    "SELECT name FROM aftercommit.downstreams WHERE name = ANY ($1::text[]) AND paused_at IS NOT NULL";

/// A bucket, in whole microseconds: calls are spent up to `spent_us`, and no more than a burst lies unspent. All is said of the
/// row's own columns, so that an update that waited for another sees what that one left; a clock that was read before the wait
/// only gives fewer. Nothing is taken for nothing: the two looks are served by queue_ready and queue_timed. A row that is not
/// there (a worker whose configuration has no rate registered last) is made, with everything spent: whoever has a rate keeps to
/// it, and is never left without.
const TAKE: &str = "WITH m AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS now_us
)
INSERT INTO aftercommit.rates AS r (downstream, rate, interval_us, spent_us)
SELECT $1, $5, $2, m.now_us FROM m
WHERE EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.downstream = $1 AND q.lane = 'r' AND NOT q.claimed)
  OR EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.downstream = $1 AND q.lane = 't' AND NOT q.claimed
             AND q.due_at <= (SELECT clock_timestamp()))
ON CONFLICT (downstream) DO UPDATE
SET rate = excluded.rate, interval_us = excluded.interval_us,
    granted = least($4, greatest(excluded.spent_us - greatest(r.spent_us, excluded.spent_us - $3 * $2), 0) / $2)::int4,
    spent_us = greatest(r.spent_us, excluded.spent_us - $3 * $2)
               + least($4, greatest(excluded.spent_us - greatest(r.spent_us, excluded.spent_us - $3 * $2), 0) / $2) * $2
RETURNING r.granted, greatest(r.spent_us + $2 - (SELECT now_us FROM m), 0) AS more_us";

/// Locks the row, made where there is none; nothing of it is changed yet.
const LOCK: &str = "INSERT INTO aftercommit.origins AS o (origin) VALUES ($1)
ON CONFLICT (origin) DO UPDATE SET origin = excluded.origin
RETURNING o.origin, o.failures, o.opens, o.open_until, o.trial_until, o.paused_until, o.reason, clock_timestamp() AS now_at";

const WRITE: &str = "UPDATE aftercommit.origins
SET failures = $2, opens = $3, open_until = $4, trial_until = $5, paused_until = $6, reason = $7,
    changed_at = clock_timestamp()
WHERE origin = $1";

const AUDIT: &str = "INSERT INTO aftercommit.audit (at, who, verb, downstream, reason, from_address)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5)";

/// An origin that was in no trouble for an hour is as good as new; nor is one of use that nobody tried for a day, since who has
/// anything for it tries each minute. Not waited for: whoever locks one knows more.
pub(super) const FORGET_ORIGINS: &str = "DELETE FROM aftercommit.origins AS o USING (
  SELECT origin FROM aftercommit.origins
  WHERE changed_at < clock_timestamp() - interval '1 hour'
    AND (open_until IS NULL OR changed_at < clock_timestamp() - interval '1 day')
    AND (paused_until IS NULL OR paused_until < clock_timestamp())
  FOR UPDATE SKIP LOCKED) AS old
WHERE o.origin = old.origin";

#[async_trait::async_trait]
impl Budget for PgStore {
    async fn holds(&self, downstreams: &[Arc<str>]) -> Result<Holds, StoreError> {
        let doing = "looking for pauses";
        let names: Vec<&str> = downstreams.iter().map(AsRef::as_ref).collect();
        let paused = self.all(sql(PAUSED).bind(names)).await.map_err(StoreError::during(doing))?;
        let rows = self.all(sql(ORIGINS)).await.map_err(StoreError::during(doing))?;
        let name = |row| row::get::<String>(row, "name").map(Into::into);
        let paused = paused.iter().map(name).collect::<Result<_, _>>()?;
        let mut holds = Holds { now: Timestamp::MIN, paused, origins: Vec::new() };
        for row in &rows {
            holds.now = holds.now.max(row::get(row, "now_at")?);
            if let Some(origin) = row::get::<Option<String>>(row, "origin")? {
                holds.origins.push((origin.into(), known(row)?));
            }
        }
        Ok(holds)
    }

    async fn take(&self, downstream: &str, rate: Rate, wanted: u32) -> Result<Granted, StoreError> {
        let take = sql(TAKE)
            .bind(downstream)
            .bind(rate.interval_us())
            .bind(i64::from(rate.burst()))
            .bind(i64::from(wanted))
            .bind(rate.to_string());
        let row = self.optional(take).await.map_err(StoreError::during("taking calls from a rate"))?;
        let Some(row) = row else { return Ok(Granted { calls: 0, more_in: None }) };
        let more_us: i64 = row::get(&row, "more_us")?;
        Ok(Granted {
            calls: row::count(&row, "granted")?,
            more_in: Some(Duration::from_micros(u64::try_from(more_us).unwrap_or(0))),
        })
    }

    async fn give_back(&self, downstream: &str, rate: Rate, calls: u32) -> Result<(), StoreError> {
        let back = sql("UPDATE aftercommit.rates SET spent_us = spent_us - $2 WHERE downstream = $1")
            .bind(downstream)
            .bind(rate.interval_us().saturating_mul(i64::from(calls)));
        self.execute(back).await.map(drop).map_err(StoreError::during("giving calls back to a rate"))
    }

    async fn begin_trial(&self, origin: &str, length: Duration) -> Result<bool, StoreError> {
        let doing = "beginning a trial";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let row = tx.one(sql(LOCK).bind(origin)).await.map_err(StoreError::during(doing))?;
        let (mut origin_now, now) = (known(&row)?, row::get::<Timestamp>(&row, "now_at")?);
        let may = origin_now.may_try(now);
        if may {
            origin_now.trial_until = Some(now.plus(length));
            write(&mut tx, origin, &origin_now).await.map_err(StoreError::during(doing))?;
        }
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(may)
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<(Arc<str>, Origin)>, StoreError> {
        let doing = "reporting what calls showed";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let mut after = Vec::new();
        for (origin, reports) in by_origin(reports) {
            let row = tx.one(sql(LOCK).bind(&*origin)).await.map_err(StoreError::during(doing))?;
            let origin_now = told(known(&row)?, &reports, row::get(&row, "now_at")?);
            write(&mut tx, &origin, &origin_now).await.map_err(StoreError::during(doing))?;
            after.push((origin, origin_now));
        }
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(after)
    }

    async fn pause_refused(&self, downstream: &str, worker: &str, reason: &str) -> Result<bool, StoreError> {
        let pause = sql("SELECT aftercommit.pause_refused($1, $2, $3)")
            .bind(downstream)
            .bind(sentence(worker))
            .bind(sentence(reason));
        self.scalar(pause).await.map_err(StoreError::during("pausing a downstream"))
    }
}

#[async_trait::async_trait]
impl Pause for PgStore {
    async fn pause(&self, downstream: &str, actor: &Actor) -> Result<Acted, StoreError> {
        let pause = sql(
            "UPDATE aftercommit.downstreams SET paused_at = clock_timestamp(), paused_by = $2, pause_reason = $3
             WHERE name = $1 AND paused_at IS NULL",
        )
        .bind(downstream)
        .bind(sentence(&actor.who))
        .bind(actor.reason.as_deref().map(sentence));
        self.act_on_downstream(downstream, ("pause", pause), actor).await
    }

    async fn resume(
        &self,
        downstream: &str,
        actor: &Actor,
        seen: Option<Timestamp>,
    ) -> Result<Acted, StoreError> {
        let resume =
            sql("UPDATE aftercommit.downstreams SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
             WHERE name = $1 AND paused_at IS NOT NULL AND paused_at = coalesce($2::timestamptz, paused_at)")
            .bind(downstream)
            .bind(seen);
        self.act_on_downstream(downstream, ("resume", resume), actor).await
    }
}

impl PgStore {
    async fn act_on_downstream(
        &self,
        downstream: &str,
        (verb, change): (&'static str, Statement<'_>),
        actor: &Actor,
    ) -> Result<Acted, StoreError> {
        let doing = "pausing or resuming a downstream";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        if tx.execute(change).await.map_err(StoreError::during(doing))? == 0 {
            tx.rollback().await.map_err(StoreError::during(doing))?;
            return self.as_it_was(downstream).await;
        }
        let audit = sql(AUDIT)
            .bind(sentence(&actor.who))
            .bind(verb)
            .bind(downstream)
            .bind(actor.reason.as_deref().map(sentence))
            .bind(actor.from.as_deref().map(sentence));
        tx.execute(audit).await.map_err(StoreError::during(doing))?;
        tx.execute(sql("SELECT pg_notify($1, '')").bind(CHANNEL)).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(Acted::Done)
    }

    async fn as_it_was(&self, downstream: &str) -> Result<Acted, StoreError> {
        let asked =
            sql("SELECT paused_at, paused_by, pause_reason FROM aftercommit.downstreams WHERE name = $1")
                .bind(downstream);
        let row = self.optional(asked).await.map_err(StoreError::during("looking for pauses"))?;
        row.map_or(Ok(Acted::NotFound), |row| paused_by(&row).map(Acted::AsItWas))
    }
}

/// The rate and the origin of a downstream, as a worker's start or `migrate` makes them known.
pub(super) async fn register(tx: &mut Tx<'_>, downstream: &RegisteredDownstream) -> Result<(), sqlx::Error> {
    let origin =
        sql("UPDATE aftercommit.downstreams SET origin = $2 WHERE name = $1 AND origin IS DISTINCT FROM $2")
            .bind(&*downstream.name)
            .bind(downstream.origin.as_deref());
    tx.execute(origin).await?;
    let Some(rate) = downstream.rate else {
        let none = sql("DELETE FROM aftercommit.rates WHERE downstream = $1").bind(&*downstream.name);
        return tx.execute(none).await.map(drop);
    };
    // What is spent stays spent.
    let rated = sql("INSERT INTO aftercommit.rates (downstream, rate, interval_us) VALUES ($1, $2, $3)
         ON CONFLICT (downstream) DO UPDATE SET rate = excluded.rate, interval_us = excluded.interval_us")
    .bind(&*downstream.name)
    .bind(rate.to_string())
    .bind(rate.interval_us());
    tx.execute(rated).await.map(drop)
}

async fn write(tx: &mut Tx<'_>, name: &str, origin: &Origin) -> Result<(), sqlx::Error> {
    let written = sql(WRITE)
        .bind(name)
        .bind(i32::try_from(origin.failures).unwrap_or(i32::MAX))
        .bind(i32::try_from(origin.opens).unwrap_or(i32::MAX))
        .bind(origin.open_until)
        .bind(origin.trial_until)
        .bind(origin.paused_until)
        .bind(&origin.reason);
    tx.execute(written).await.map(drop)
}

fn known(row: &PgRow) -> Result<Origin, StoreError> {
    Ok(Origin {
        failures: row::count(row, "failures")?,
        opens: row::count(row, "opens")?,
        open_until: row::get(row, "open_until")?,
        trial_until: row::get(row, "trial_until")?,
        paused_until: row::get(row, "paused_until")?,
        reason: row::get(row, "reason")?,
    })
}

/// Who paused it, from `paused_at`, `paused_by` and `pause_reason`.
pub(super) fn paused_by(row: &PgRow) -> Result<Option<PausedBy>, StoreError> {
    let Some(at) = row::get::<Option<Timestamp>>(row, "paused_at")? else { return Ok(None) };
    let who = row::get::<Option<String>>(row, "paused_by")?.unwrap_or_default();
    Ok(Some(PausedBy { at, who, reason: row::get(row, "pause_reason")? }))
}
