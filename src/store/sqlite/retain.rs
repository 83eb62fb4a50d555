//! Retention: each batch is one short transaction under the write lock, so that nobody can be working on what it drops.
//! Differs from PostgreSQL, where a row per step says whose turn it is: here there is one writer.

use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::time::Instant;

use super::{
    SqliteStore, bulk,
    enqueue::{REQUEST, fingerprint_of_row},
    received,
    row::{json_ids, next_token},
    write::add_to_counter,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::StoreError,
    store::{AHEAD_MAX, Ahead, Batch, Retain, Retention, Step},
};

const DOING: &str = "dropping what was kept long enough";
/// The clock is written down at least this often: each time costs a commit.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Whether the queue still refers to old terms is looked for no more often.
const USED_EVERY: Duration = Duration::from_secs(86_400);
/// What people did is kept for so long in any case.
const AUDIT_MIN: Duration = Duration::from_secs(86_400);

/// What a step finds kept. One that is still queued has not ended. Served by aftercommit_outcomes_retention.
macro_rules! due_sql {
    ($kept:literal) => {
        concat!(
            "SELECT o.effect_id FROM aftercommit_outcomes AS o WHERE o.kept IN (",
            $kept,
            ") AND o.finished_at <= ?1 \
             AND NOT EXISTS (SELECT 1 FROM aftercommit_queue AS q WHERE q.id = o.effect_id) LIMIT ?2"
        )
    };
}

/// Whoever builds flows adds to the last one that an effect stays while an unfinished one names it in `needs`, `undoes` or
/// `bindings`; until then those columns are refused.
const fn due_sql(step: Step) -> &'static str {
    match step {
        Step::Payloads => due_sql!("3, 1"),
        Step::History => due_sql!("3, 2"),
        Step::Keys => due_sql!("0"),
        Step::Requests | Step::Inbox => received::due_sql(step),
    }
}

/// A key falls due with whatever of its effect is left.
const fn count_sql(step: Step) -> &'static str {
    match step {
        Step::Payloads => {
            "SELECT count(*) FROM aftercommit_outcomes WHERE kept IN (3, 1) AND finished_at <= ?1"
        }
        Step::History => {
            "SELECT count(*) FROM aftercommit_outcomes WHERE kept IN (3, 2) AND finished_at <= ?1"
        }
        Step::Keys => {
            "SELECT count(*) FROM aftercommit_outcomes WHERE kept IN (0, 1, 2, 3) AND finished_at <= ?1"
        }
        Step::Requests | Step::Inbox => received::count_sql(step),
    }
}

#[async_trait::async_trait]
impl Retain for SqliteStore {
    async fn drop_batch(&self, step: Step, age: Duration, limit: u32) -> Result<Batch, StoreError> {
        // Looked for by a reader: most looks find nothing, and must not take the write lock.
        let idle = {
            let mut reader = self.reader(DOING).await?;
            let now = SystemClock.wall();
            !clock_is_due(&mut reader, step, now).await?
                && due(&mut reader, step, (now.minus(age), 1)).await?.is_empty()
                && (step != Step::History
                    || !bulk::is_old(&mut reader, now.minus(age.max(AUDIT_MIN))).await?)
        };
        if idle {
            return Ok(Batch::default());
        }
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                let began = Instant::now();
                if matches!(step, Step::Requests | Step::Inbox) && received::is_too_late(conn, now).await? {
                    return Ok(Batch::default());
                }
                if step == Step::Keys
                    && let Some(ahead) = read_clock(conn, now).await?
                {
                    return Ok(Batch { ahead: Some(ahead), ..Batch::default() });
                }
                let ids = due(conn, step, (now.minus(age), limit)).await?;
                let effects = u64::try_from(ids.len()).unwrap_or(u64::MAX);
                match step {
                    Step::Payloads => drop_payloads(conn, &ids).await,
                    Step::History => drop_history(conn, &ids).await,
                    Step::Keys => drop_keys(conn, &ids).await,
                    Step::Requests | Step::Inbox => received::drop(conn, step, &ids, now).await,
                }
                .map_err(StoreError::during(DOING))?;
                // What bulks did is history too; no effect waits for it.
                let bulks = match step {
                    Step::History => bulk::drop(conn, now.minus(age.max(AUDIT_MIN)), limit).await?,
                    Step::Payloads | Step::Keys | Step::Requests | Step::Inbox => 0,
                };
                Ok(Batch {
                    effects,
                    more: effects.max(bulks) >= u64::from(limit),
                    held: began.elapsed(),
                    ..Batch::default()
                })
            })
        })
        .await
    }

    async fn believe_clock(&self) -> Result<(), StoreError> {
        let doing = "believing the clock";
        self.write(doing, move |conn, now| {
            Box::pin(async move { believe(conn, now).await.map_err(StoreError::during(doing)) })
        })
        .await
    }

    async fn due(&self, step: Step, retention: &Retention) -> Result<u64, StoreError> {
        let doing = "counting what is due";
        let n: i64 = sqlx::query_scalar(count_sql(step))
            .bind(SystemClock.wall().minus(retention.of(step)).micros())
            .fetch_one(&mut *self.reader(doing).await?)
            .await
            .map_err(StoreError::during(doing))?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    async fn forget_unused(&self, keys: Duration) -> Result<u64, StoreError> {
        let doing = "forgetting what nothing refers to";
        let unused = self
            .write(doing, move |conn, now| {
                Box::pin(async move { unused(conn, keys, now).await.map_err(StoreError::during(doing)) })
            })
            .await?;
        // By a reader: nothing serves it, and applications' INSERTs must not wait for it.
        let used: Vec<i64> = if unused.is_empty() {
            Vec::new()
        } else {
            sqlx::query_scalar(USED)
                .bind(json_ids(unused.iter().copied()))
                .fetch_all(&mut *self.reader(doing).await?)
                .await
                .map_err(StoreError::during(doing))?
        };
        self.write(doing, move |conn, now| {
            Box::pin(async move {
                forget(conn, (&unused, &used), keys, now).await.map_err(StoreError::during(doing))
            })
        })
        .await
    }
}

/// Whether the clock was not looked at for so long that it must be now, found or not.
async fn clock_is_due(conn: &mut SqliteConnection, step: Step, now: Timestamp) -> Result<bool, StoreError> {
    if step != Step::Keys {
        return Ok(false);
    }
    let last = looked_at(conn).await?;
    Ok(last > now || now.since(last) > LOOK_EVERY)
}

pub(super) async fn looked_at(conn: &mut SqliteConnection) -> Result<Timestamp, StoreError> {
    sqlx::query_scalar("SELECT looked_at FROM aftercommit_retention WHERE step = 'keys'")
        .fetch_one(conn)
        .await
        .map(Timestamp::from_micros)
        .map_err(StoreError::during(DOING))
}

/// Remembers what the clock says, or that it is too far ahead to be believed.
async fn read_clock(conn: &mut SqliteConnection, now: Timestamp) -> Result<Option<Ahead>, StoreError> {
    let last = looked_at(conn).await?;
    if now.since(last) > AHEAD_MAX {
        return Ok(Some(Ahead { now, last }));
    }
    believe(conn, now).await.map(|()| None).map_err(StoreError::during(DOING))
}

async fn believe(conn: &mut SqliteConnection, now: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE aftercommit_retention SET looked_at = ?1 WHERE step = 'keys'")
        .bind(now.micros())
        .execute(conn)
        .await
        .map(drop)
}

async fn due(
    conn: &mut SqliteConnection,
    step: Step,
    (before, limit): (Timestamp, u32),
) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar(due_sql(step))
        .bind(before.micros())
        .bind(i64::from(limit))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))
}

/// Where there was nothing to drop no fingerprint is needed: the columns still say what the request was.
async fn drop_payloads(conn: &mut SqliteConnection, ids: &[i64]) -> Result<(), sqlx::Error> {
    for &id in ids {
        drop_payload(conn, id).await?;
    }
    sqlx::query(
        "UPDATE aftercommit_outcomes SET kept = kept & 2 WHERE effect_id IN (SELECT value FROM json_each(?1))",
    )
    .bind(json_ids(ids.iter().copied()))
    .execute(conn)
    .await
    .map(drop)
}

/// One by one: the hash is made here, since SQLite has no function for it.
async fn drop_payload(conn: &mut SqliteConnection, id: i64) -> Result<(), sqlx::Error> {
    let sql = format!(
        "SELECT {REQUEST} FROM aftercommit_effects AS e WHERE e.id = ?1 AND e.fingerprint IS NULL \
             AND (e.payload IS NOT NULL OR e.body IS NOT NULL OR e.headers IS NOT NULL)"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).fetch_optional(&mut *conn).await?;
    let Some(row) = row else { return Ok(()) };
    let fingerprint = fingerprint_of_row(&row)?;
    sqlx::query(
        "UPDATE aftercommit_effects SET payload = NULL, body = NULL, headers = NULL, fingerprint = ?2 WHERE id = ?1",
    )
    .bind(id)
    .bind(fingerprint)
    .execute(conn)
    .await
    .map(drop)
}

/// The attempt that the outcome's own row shows goes with the others.
async fn drop_history(conn: &mut SqliteConnection, ids: &[i64]) -> Result<(), sqlx::Error> {
    let ids = json_ids(ids.iter().copied());
    sqlx::query("DELETE FROM aftercommit_attempts WHERE effect_id IN (SELECT value FROM json_each(?1))")
        .bind(ids.clone())
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "UPDATE aftercommit_outcomes SET kept = kept & 1, response = NULL, response_raw = NULL, started_at = NULL, \
             ended_at = NULL, worker = NULL, phase = NULL WHERE effect_id IN (SELECT value FROM json_each(?1))",
    )
    .bind(ids)
    .execute(conn)
    .await
    .map(drop)
}

/// All that is left, with what people did and with what late answers may have logged since the history went.
async fn drop_keys(conn: &mut SqliteConnection, ids: &[i64]) -> Result<(), sqlx::Error> {
    let ids = json_ids(ids.iter().copied());
    let ended: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT downstream, state, count(*) FROM aftercommit_outcomes \
         WHERE effect_id IN (SELECT value FROM json_each(?1)) GROUP BY 1, 2",
    )
    .bind(ids.clone())
    .fetch_all(&mut *conn)
    .await?;
    for (downstream, state, n) in ended {
        add_to_counter(conn, &downstream, &state, -n).await?;
    }
    for sql in [
        "DELETE FROM aftercommit_attempts WHERE effect_id IN (SELECT value FROM json_each(?1))",
        "DELETE FROM aftercommit_outcomes WHERE effect_id IN (SELECT value FROM json_each(?1))",
        "DELETE FROM aftercommit_effects WHERE id IN (SELECT value FROM json_each(?1))",
        "DELETE FROM aftercommit_audit WHERE effect_id IN (SELECT value FROM json_each(?1))",
    ] {
        sqlx::query(sql).bind(ids.clone()).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Of one effect, under the write lock in which the verb was judged. What note and log say may quote the downstream.
pub(super) async fn redact(conn: &mut SqliteConnection, id: i64) -> Result<(), StoreError> {
    let token = next_token(conn).await?;
    let redacted = async {
        drop_payload(conn, id).await?;
        sqlx::query(
            "UPDATE aftercommit_attempts SET error = 'redacted' WHERE effect_id = ?1 AND error IS NOT NULL",
        )
        .bind(id)
        .execute(&mut *conn)
        .await?;
        sqlx::query(
            "UPDATE aftercommit_outcomes SET token = ?2, kept = kept & 2, response = NULL, response_raw = NULL, \
                 note = CASE WHEN note IS NOT NULL THEN 'redacted' END WHERE effect_id = ?1",
        )
        .bind(id)
        .bind(token.get())
        .execute(&mut *conn)
        .await
    };
    redacted.await.map(drop).map_err(StoreError::during("redacting an effect"))
}

/// A worker that has run since before terms were retired may still claim under them. Those of a configuration that comes back
/// are not retired any more (register.rs).
macro_rules! unused_sql {
    () => {
        "t.retired_at <= ?1 \
         AND NOT EXISTS (SELECT 1 FROM aftercommit_operations AS o WHERE o.terms = t.id) \
         AND NOT EXISTS (SELECT 1 FROM aftercommit_workers AS w WHERE w.started_at <= t.retired_at) \
         AND EXISTS (SELECT 1 FROM aftercommit_terms AS n WHERE n.downstream = t.downstream \
             AND n.operation = t.operation AND n.id > t.id)"
    };
}

/// Reads the queue once.
const USED: &str = "SELECT DISTINCT q.terms FROM aftercommit_queue AS q \
     WHERE q.terms IN (SELECT value FROM json_each(?1))";

/// Terms that no operation has had for `keys`; those that the queue was found to refer to today are left out.
async fn unused(
    conn: &mut SqliteConnection,
    keys: Duration,
    now: Timestamp,
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query(
        "UPDATE aftercommit_terms SET retired_at = CASE WHEN retired_at IS NULL THEN ?1 END \
         WHERE (retired_at IS NULL) = NOT EXISTS ( \
             SELECT 1 FROM aftercommit_operations AS o WHERE o.terms = aftercommit_terms.id)",
    )
    .bind(now.micros())
    .execute(&mut *conn)
    .await?;
    sqlx::query_scalar(concat!(
        "SELECT t.id FROM aftercommit_terms AS t WHERE ",
        unused_sql!(),
        " AND (t.used_at IS NULL OR t.used_at NOT BETWEEN ?2 AND ?3)"
    ))
    .bind(now.minus(keys).micros())
    .bind(now.minus(USED_EVERY).micros())
    .bind(now.micros())
    .fetch_all(conn)
    .await
}

/// Nobody has begun to claim under them since the queue was read: that takes a registration, which is seen here.
async fn forget(
    conn: &mut SqliteConnection,
    (unused, used): (&[i64], &[i64]),
    keys: Duration,
    now: Timestamp,
) -> Result<u64, sqlx::Error> {
    sqlx::query("UPDATE aftercommit_terms SET used_at = ?1 WHERE id IN (SELECT value FROM json_each(?2))")
        .bind(now.micros())
        .bind(json_ids(used.iter().copied()))
        .execute(&mut *conn)
        .await?;
    let terms = sqlx::query(concat!(
        "DELETE FROM aftercommit_terms AS t WHERE t.id IN (SELECT value FROM json_each(?2)) AND ",
        unused_sql!()
    ))
    .bind(now.minus(keys).micros())
    .bind(json_ids(unused.iter().copied().filter(|id| !used.contains(id))))
    .execute(&mut *conn)
    .await?;
    let audit = sqlx::query(
        "DELETE FROM aftercommit_audit WHERE id IN ( \
             SELECT id FROM aftercommit_audit WHERE effect_id IS NULL AND at <= ?1 ORDER BY at LIMIT 1000) \
             AND EXISTS (SELECT 1 FROM aftercommit_retention WHERE looked_at >= ?2)",
    )
    .bind(now.minus(keys.max(AUDIT_MIN)).micros())
    .bind(now.minus(AHEAD_MAX).micros())
    .execute(conn)
    .await?;
    Ok(terms.rows_affected() + audit.rows_affected())
}
