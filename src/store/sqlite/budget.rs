//! Budgets: holds, rates, breakers, and people's pauses. The rules are in [`crate::store::breaker`].

use std::{sync::Arc, time::Duration};

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    claim::IS_DUE,
    record::{Deed, write_down},
    row::Fields,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    downstream::Rate,
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::{
        Budget, Granted, Holds, Origin, Pause, PausedBy, RegisteredDownstream, Report,
        budget::{Acted, by_origin, told},
    },
    verb::Actor,
};

const DOING: &str = "keeping a downstream's budget";

/// Whether the downstream `?1` whose calls go to the origin `?4` is held at `?2`, or everything on HOLD; `?3` is 1 for the one
/// call that a trial may make.
pub(super) const HELD: &str = "(EXISTS (SELECT 1 FROM aftercommit_hold) \
     OR EXISTS (SELECT 1 FROM aftercommit_downstreams AS d WHERE d.name = ?1 AND d.paused_at IS NOT NULL) \
     OR EXISTS (SELECT 1 FROM aftercommit_origins AS o WHERE o.origin = ?4 \
         AND (o.paused_until > ?2 OR (o.open_until IS NOT NULL AND ?3 = 0))))";

/// The same of a downstream as it is registered, for who does not call it.
pub(super) const REGISTERED_HELD: &str = "(EXISTS (SELECT 1 FROM aftercommit_hold) OR EXISTS (SELECT 1 FROM aftercommit_downstreams AS d \
     LEFT JOIN aftercommit_origins AS o ON o.origin = d.origin WHERE d.name = ?1 \
     AND (d.paused_at IS NOT NULL OR o.paused_until > ?2 OR o.open_until IS NOT NULL)))";

/// A bucket, in whole microseconds: calls are spent up to `spent_us`, and no more than a burst lies unspent. A row that is not
/// there (a worker whose configuration has no rate registered last) is made, with everything spent.
const TAKE: &str = "INSERT INTO aftercommit_rates (downstream, rate, interval_us, spent_us) VALUES (?1, ?6, ?2, ?5) \
     ON CONFLICT (downstream) DO UPDATE SET rate = excluded.rate, interval_us = excluded.interval_us, \
     granted = min(?4, max(?5 - max(spent_us, ?5 - ?3 * ?2), 0) / ?2), \
     spent_us = max(spent_us, ?5 - ?3 * ?2) + min(?4, max(?5 - max(spent_us, ?5 - ?3 * ?2), 0) / ?2) * ?2 \
     RETURNING granted, max(spent_us + ?2 - ?5, 0) AS more_us";

/// The writer's lock is held: the row is made where there is none.
const LOCK: &str = "INSERT INTO aftercommit_origins (origin, changed_at) VALUES (?1, ?2) \
     ON CONFLICT (origin) DO UPDATE SET origin = excluded.origin \
     RETURNING origin, failures, opens, open_until, trial_until, paused_until, reason";

#[async_trait::async_trait]
impl Budget for SqliteStore {
    async fn holds(&self, downstreams: &[Arc<str>]) -> Result<Holds, StoreError> {
        let mut reader = self.reader(DOING).await?;
        let names: Vec<&str> = downstreams.iter().map(AsRef::as_ref).collect();
        let paused: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM aftercommit_downstreams \
             WHERE paused_at IS NOT NULL AND name IN (SELECT value FROM json_each(?1))",
        )
        .bind(serde_json::to_string(&names).expect("names always serialise"))
        .fetch_all(&mut *reader)
        .await
        .map_err(StoreError::during(DOING))?;
        let rows = sqlx::query(
            "SELECT origin, failures, opens, open_until, trial_until, paused_until, reason FROM aftercommit_origins",
        )
        .fetch_all(&mut *reader)
        .await
        .map_err(StoreError::during(DOING))?;
        Ok(Holds {
            now: SystemClock.wall(),
            paused: paused.into_iter().map(Into::into).collect(),
            origins: rows.iter().map(|row| Ok((name(row)?, known(row)?))).collect::<Result<_, _>>()?,
        })
    }

    async fn take(&self, downstream: &str, rate: Rate, wanted: u32) -> Result<Granted, StoreError> {
        // Asked on a reader: an idle worker never takes the one write lock.
        let mut reader = self.reader(DOING).await?;
        let due: bool = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT {IS_DUE}")))
            .bind(downstream.to_owned())
            .bind(SystemClock.wall().micros())
            .fetch_one(&mut *reader)
            .await
            .map_err(StoreError::during(DOING))?;
        if !due {
            return Ok(Granted { calls: 0, more_in: None });
        }
        drop(reader);
        let downstream = downstream.to_owned();
        self.write(DOING, move |conn, now| {
            Box::pin(async move { take(conn, downstream, (rate, wanted), now).await })
        })
        .await
    }

    async fn give_back(&self, downstream: &str, rate: Rate, calls: u32) -> Result<(), StoreError> {
        let downstream = downstream.to_owned();
        self.write(DOING, move |conn, _| {
            Box::pin(async move {
                sqlx::query("UPDATE aftercommit_rates SET spent_us = spent_us - ?2 WHERE downstream = ?1")
                    .bind(downstream)
                    .bind(rate.interval_us().saturating_mul(i64::from(calls)))
                    .execute(conn)
                    .await
                    .map(drop)
                    .map_err(StoreError::during(DOING))
            })
        })
        .await
    }

    async fn begin_trial(&self, origin: &str, length: Duration) -> Result<bool, StoreError> {
        let origin = origin.to_owned();
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                let mut origin_now = lock(conn, &origin, now).await?;
                let may = origin_now.may_try(now);
                if may {
                    origin_now.trial_until = Some(now.plus(length));
                    write(conn, &origin, &origin_now, now).await?;
                }
                Ok(may)
            })
        })
        .await
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<(Arc<str>, Origin)>, StoreError> {
        let reports = reports.to_vec();
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                let mut after = Vec::new();
                for (origin, reports) in by_origin(&reports) {
                    let origin_now = told(lock(conn, &origin, now).await?, &reports, now);
                    write(conn, &origin, &origin_now, now).await?;
                    after.push((origin, origin_now));
                }
                Ok(after)
            })
        })
        .await
    }

    async fn pause_refused(&self, downstream: &str, worker: &str, reason: &str) -> Result<bool, StoreError> {
        let actor =
            Actor { who: format!("worker {worker}"), reason: Some(reason.to_owned()), ..Actor::default() };
        Ok(self.pause(downstream, &actor).await? == Acted::Done)
    }
}

#[async_trait::async_trait]
impl Pause for SqliteStore {
    async fn pause(&self, downstream: &str, actor: &Actor) -> Result<Acted, StoreError> {
        let sql = "UPDATE aftercommit_downstreams SET paused_at = ?2, paused_by = ?3, pause_reason = ?4 \
                   WHERE name = ?1 AND paused_at IS NULL";
        self.act_on_downstream(downstream, ("pause", sql), actor, None).await
    }

    async fn resume(
        &self,
        downstream: &str,
        actor: &Actor,
        seen: Option<Timestamp>,
    ) -> Result<Acted, StoreError> {
        let sql = "UPDATE aftercommit_downstreams SET paused_at = NULL, paused_by = NULL, pause_reason = NULL \
                   WHERE name = ?1 AND paused_at IS NOT NULL AND paused_at = coalesce(?5, paused_at)";
        self.act_on_downstream(downstream, ("resume", sql), actor, seen).await
    }
}

impl SqliteStore {
    async fn act_on_downstream(
        &self,
        downstream: &str,
        (verb, sql): (&'static str, &'static str),
        actor: &Actor,
        seen: Option<Timestamp>,
    ) -> Result<Acted, StoreError> {
        let downstream = downstream.to_owned();
        let actor = Actor {
            who: stored_text(&actor.who, REASON_MAX),
            reason: actor.reason.as_deref().map(|reason| stored_text(reason, REASON_MAX)),
            ..actor.clone()
        };
        let acted = self
            .write(DOING, move |conn, now| {
                Box::pin(async move { act(conn, &downstream, (verb, sql, seen), (&actor, now)).await })
            })
            .await;
        self.shared.acted.notify_one();
        acted
    }
}

async fn act(
    conn: &mut SqliteConnection,
    downstream: &str,
    (verb, sql, seen): (&'static str, &'static str, Option<Timestamp>),
    (actor, now): (&Actor, Timestamp),
) -> Result<Acted, StoreError> {
    let done = async {
        let before = sqlx::query(
            "SELECT paused_at, paused_by, pause_reason FROM aftercommit_downstreams WHERE name = ?1",
        )
        .bind(downstream.to_owned())
        .fetch_optional(&mut *conn)
        .await?;
        let Some(before) = before else { return Ok(Err(Acted::NotFound)) };
        let changed = sqlx::query(sql)
            .bind(downstream.to_owned())
            .bind(now.micros())
            .bind(actor.who.clone())
            .bind(actor.reason.clone())
            .bind(seen.map(Timestamp::micros))
            .execute(&mut *conn)
            .await?;
        if changed.rows_affected() == 0 {
            return Ok(Ok(before));
        }
        let deed = Deed { verb, downstream: Some(downstream), ..Deed::default() };
        write_down(conn, actor, deed, now).await?;
        Ok(Err(Acted::Done))
    };
    match done.await.map_err(StoreError::during(DOING))? {
        Err(acted) => Ok(acted),
        Ok(before) => paused_by(&Fields::new(&before, "aftercommit_downstreams", 0)).map(Acted::AsItWas),
    }
}

async fn take(
    conn: &mut SqliteConnection,
    downstream: String,
    (rate, wanted): (Rate, u32),
    now: Timestamp,
) -> Result<Granted, StoreError> {
    let row = sqlx::query(TAKE)
        .bind(downstream)
        .bind(rate.interval_us())
        .bind(i64::from(rate.burst()))
        .bind(i64::from(wanted))
        .bind(now.micros())
        .bind(rate.to_string())
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    let fields = Fields::new(&row, "aftercommit_rates", 0);
    let more = Duration::from_micros(u64::try_from(fields.int("more_us")?).unwrap_or(0));
    Ok(Granted { calls: fields.count("granted")?, more_in: Some(more) })
}

/// The rate and the origin of a downstream, as a worker's start or `migrate` makes them known.
pub(super) async fn register(
    conn: &mut SqliteConnection,
    downstream: &RegisteredDownstream,
) -> Result<(), StoreError> {
    let name = downstream.name.to_string();
    let known = async {
        sqlx::query("UPDATE aftercommit_downstreams SET origin = ?2 WHERE name = ?1 AND origin IS NOT ?2")
            .bind(name.clone())
            .bind(downstream.origin.as_deref().map(str::to_owned))
            .execute(&mut *conn)
            .await?;
        let Some(rate) = downstream.rate else {
            return sqlx::query("DELETE FROM aftercommit_rates WHERE downstream = ?1")
                .bind(name)
                .execute(conn)
                .await;
        };
        // What is spent stays spent.
        sqlx::query(
            "INSERT INTO aftercommit_rates (downstream, rate, interval_us) VALUES (?1, ?2, ?3) \
             ON CONFLICT (downstream) DO UPDATE SET rate = excluded.rate, interval_us = excluded.interval_us",
        )
        .bind(name)
        .bind(rate.to_string())
        .bind(rate.interval_us())
        .execute(conn)
        .await
    };
    known.await.map(drop).map_err(StoreError::during("registering a downstream"))
}

/// An origin that was in no trouble for an hour is as good as new; nor is one of use that nobody tried for a day, since who has
/// anything for it tries each minute.
pub(super) async fn forget_origins(conn: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM aftercommit_origins \
         WHERE changed_at < ?2 AND (open_until IS NULL OR changed_at < ?3) AND coalesce(paused_until, 0) < ?1",
    )
    .bind(now.micros())
    .bind(now.minus(Duration::from_secs(3600)).micros())
    .bind(now.minus(Duration::from_secs(24 * 3600)).micros())
    .execute(conn)
    .await
    .map(drop)
    .map_err(StoreError::during("maintaining"))
}

async fn lock(conn: &mut SqliteConnection, origin: &str, now: Timestamp) -> Result<Origin, StoreError> {
    let row = sqlx::query(LOCK)
        .bind(origin.to_owned())
        .bind(now.micros())
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    known(&row)
}

async fn write(
    conn: &mut SqliteConnection,
    name: &str,
    origin: &Origin,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE aftercommit_origins SET failures = ?2, opens = ?3, open_until = ?4, trial_until = ?5, \
             paused_until = ?6, reason = ?7, changed_at = ?8 WHERE origin = ?1",
    )
    .bind(name.to_owned())
    .bind(i64::from(origin.failures))
    .bind(i64::from(origin.opens))
    .bind(origin.open_until.map(Timestamp::micros))
    .bind(origin.trial_until.map(Timestamp::micros))
    .bind(origin.paused_until.map(Timestamp::micros))
    .bind(origin.reason.clone())
    .bind(now.micros())
    .execute(conn)
    .await
    .map(drop)
    .map_err(StoreError::during(DOING))
}

fn name(row: &SqliteRow) -> Result<Arc<str>, StoreError> {
    row.try_get::<String, _>("origin").map(Into::into).map_err(StoreError::during(DOING))
}

fn known(row: &SqliteRow) -> Result<Origin, StoreError> {
    let fields = Fields::new(row, "aftercommit_origins", 0);
    Ok(Origin {
        failures: fields.count("failures")?,
        opens: fields.count("opens")?,
        open_until: fields.opt_time("open_until")?,
        trial_until: fields.opt_time("trial_until")?,
        paused_until: fields.opt_time("paused_until")?,
        reason: fields.opt_text("reason")?,
    })
}

/// Who paused it, from `paused_at`, `paused_by` and `pause_reason`.
pub(super) fn paused_by(fields: &Fields<'_>) -> Result<Option<PausedBy>, StoreError> {
    let Some(at) = fields.opt_time("paused_at")? else { return Ok(None) };
    let who = fields.opt_text("paused_by")?.unwrap_or_default();
    Ok(Some(PausedBy { at, who, reason: fields.opt_text("pause_reason")? }))
}
