//! What benches are compared with: the same rows by bare SQL on scratch tables of the same database, in the form that a queue
//! of one's own would have.

use std::time::Duration;

use aftercommit::clock::{Clock as _, SystemClock};
use anyhow::Context as _;
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;

use super::{Place, payload, rate};
use crate::cli::open_sqlite;

/// Rows in the scratch table at least: fewer are over before the clock can tell.
const ROWS_MIN: u64 = 20_000;
/// Rows in the scratch table at most: enough for a figure, not for a wait.
const ROWS_MAX: u64 = 200_000;
/// Connections that work on a PostgreSQL scratch table.
const LANES: usize = 2;

/// Takes the next jobs, as queues on PostgreSQL do it: oldest first, skipping what others hold.
const PG_CLAIM: &str = "WITH picked AS MATERIALIZED (
  SELECT ctid AS tid FROM aftercommit.bench_jobs WHERE token IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE aftercommit.bench_jobs SET token = $2 WHERE ctid = ANY (ARRAY(SELECT tid FROM picked)) RETURNING id, payload::text";
const PG_COMPLETE: &str = "DELETE FROM aftercommit.bench_jobs WHERE id = ANY ($1)";

/// Rows per second through a claiming UPDATE and a completing DELETE, two connections on PostgreSQL, one on SQLite, each
/// statement committed.
pub(super) async fn update_delete(
    place: &Place,
    effects: u64,
    batch: u32,
    payload_bytes: usize,
) -> anyhow::Result<f64> {
    let rows = effects.clamp(ROWS_MIN, ROWS_MAX);
    let doing = "measuring the limit on a scratch table";
    let took = if place.is_sqlite() {
        on_sqlite(&place.url, rows, batch, payload_bytes).await.context(doing)?
    } else {
        on_postgres(&place.url, rows, batch, payload_bytes).await.context(doing)?
    };
    Ok(rate(rows, took.as_secs_f64()))
}

async fn on_postgres(url: &str, rows: u64, batch: u32, payload_bytes: usize) -> anyhow::Result<Duration> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in [
        "DROP TABLE IF EXISTS aftercommit.bench_jobs",
        "CREATE TABLE aftercommit.bench_jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, token bigint, \
         payload json NOT NULL) WITH (fillfactor = 70)",
    ] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    sqlx::query("INSERT INTO aftercommit.bench_jobs (payload) SELECT $2::json FROM generate_series(1, $1)")
        .bind(i64::try_from(rows)?)
        .bind(payload(0, payload_bytes))
        .execute(&mut connection)
        .await?;
    sqlx::query("ANALYZE aftercommit.bench_jobs").execute(&mut connection).await?;
    let start = SystemClock.boot();
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        lanes.spawn(postgres_lane(url.to_owned(), i64::try_from(lane)?, i64::from(batch)));
    }
    while let Some(lane) = lanes.join_next().await {
        lane.context("a lane of the limit ended in a panic")??;
    }
    let took = SystemClock.boot() - start;
    sqlx::query("DROP TABLE aftercommit.bench_jobs").execute(&mut connection).await?;
    Ok(took)
}

async fn postgres_lane(url: String, token: i64, batch: i64) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&url).await?;
    loop {
        let claimed: Vec<(i64, String)> =
            sqlx::query_as(PG_CLAIM).bind(batch).bind(token).fetch_all(&mut connection).await?;
        if claimed.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = claimed.into_iter().map(|(id, _)| id).collect();
        sqlx::query(PG_COMPLETE).bind(ids).execute(&mut connection).await?;
    }
}

async fn on_sqlite(url: &str, rows: u64, batch: u32, payload_bytes: usize) -> anyhow::Result<Duration> {
    let mut connection = open_sqlite(url).await?;
    for statement in [
        "DROP TABLE IF EXISTS aftercommit_bench_jobs",
        "CREATE TABLE aftercommit_bench_jobs (id INTEGER PRIMARY KEY, token INTEGER, payload TEXT NOT NULL)",
        "CREATE INDEX aftercommit_bench_jobs_free ON aftercommit_bench_jobs (id) WHERE token IS NULL",
    ] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    sqlx::query(
        "WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?1)
         INSERT INTO aftercommit_bench_jobs (id, payload) SELECT id, ?2 FROM n",
    )
    .bind(i64::try_from(rows)?)
    .bind(payload(0, payload_bytes))
    .execute(&mut connection)
    .await?;
    let start = SystemClock.boot();
    loop {
        let claimed: Vec<(i64, String)> = sqlx::query_as(
            "UPDATE aftercommit_bench_jobs SET token = 1 WHERE id IN (
               SELECT id FROM aftercommit_bench_jobs WHERE token IS NULL ORDER BY id LIMIT ?1) RETURNING id, payload",
        )
        .bind(batch)
        .fetch_all(&mut connection)
        .await?;
        let (Some(first), Some(last)) =
            (claimed.iter().map(|(id, _)| id).min(), claimed.iter().map(|(id, _)| id).max())
        else {
            break;
        };
        sqlx::query("DELETE FROM aftercommit_bench_jobs WHERE id BETWEEN ?1 AND ?2 AND token = 1")
            .bind(first)
            .bind(last)
            .execute(&mut connection)
            .await?;
    }
    let took = SystemClock.boot() - start;
    sqlx::query("DROP TABLE aftercommit_bench_jobs").execute(&mut connection).await?;
    Ok(took)
}

/// A session that keeps a snapshot open for as long as it lives.
#[expect(dead_code, reason = "the connections are held, not used: dropping them ends the snapshot")]
pub(super) enum Snapshot {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Snapshot {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub(super) async fn hold(url: &str) -> anyhow::Result<Self> {
        if url.starts_with("sqlite:") {
            let mut connection = open_sqlite(url).await?;
            sqlx::query("BEGIN").execute(&mut connection).await?;
            sqlx::query("SELECT count(*) FROM aftercommit_effects").fetch_one(&mut connection).await?;
            return Ok(Self::Sqlite(connection));
        }
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut connection).await?;
        sqlx::query("SELECT count(*) FROM aftercommit.effects").fetch_one(&mut connection).await?;
        Ok(Self::Postgres(connection))
    }
}
