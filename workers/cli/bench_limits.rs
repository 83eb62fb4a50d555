//! What a bench is compared with: the same rows claimed by a bare UPDATE and settled by a bare DELETE, in batches of the
//! same size, on a scratch table of the same database, each statement committed. No queue can be faster and stay a table.

use aftercommit::clock::{Clock as _, SystemClock};
use anyhow::Context as _;
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;

use super::{
    bench::{rate, whole},
    connect::sqlite,
};

/// Rows in the scratch table at least: fewer are over before the clock can tell.
const ROWS_MIN: u64 = 20_000;
/// Rows in the scratch table at most: enough for a figure, not for a wait.
const ROWS_MAX: u64 = 200_000;
/// Connections that work on a PostgreSQL scratch table, each on its own range.
const LANES: i64 = 2;

/// Rows per second through UPDATE and DELETE.
///
/// # Errors
///
/// When the database fails; the scratch table may then be left behind.
pub(super) async fn update_delete(url: &str, effects: u64, batch: u32) -> anyhow::Result<f64> {
    let count = effects.clamp(ROWS_MIN, ROWS_MAX);
    let rows = i64::try_from(count).unwrap_or(i64::MAX);
    let seconds = if url.starts_with("sqlite:") {
        on_sqlite(url, rows, i64::from(batch)).await
    } else {
        on_postgres(url, rows, i64::from(batch)).await
    };
    let seconds = seconds.context("measuring the limit on a scratch table")?;
    Ok(rate(whole(count), seconds))
}

async fn on_postgres(url: &str, rows: i64, batch: i64) -> anyhow::Result<f64> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in [
        "DROP TABLE IF EXISTS aftercommit.bench_scratch",
        "CREATE TABLE aftercommit.bench_scratch (id bigint PRIMARY KEY, token bigint NOT NULL DEFAULT 0, \
         claimed bool NOT NULL DEFAULT false, due_at timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 50)",
    ] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    sqlx::query("INSERT INTO aftercommit.bench_scratch (id) SELECT generate_series(1, $1)")
        .bind(rows)
        .execute(&mut connection)
        .await?;
    sqlx::query("ANALYZE aftercommit.bench_scratch").execute(&mut connection).await?;
    let clock = SystemClock;
    let start = clock.boot();
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let (from, to) = (rows * lane / LANES, rows * (lane + 1) / LANES);
        lanes.spawn(postgres_lane(url.to_owned(), from, to, batch));
    }
    while let Some(lane) = lanes.join_next().await {
        lane.context("a lane of the limit ended in a panic")??;
    }
    let seconds = (clock.boot() - start).as_secs_f64();
    sqlx::query("DROP TABLE aftercommit.bench_scratch").execute(&mut connection).await?;
    Ok(seconds)
}

async fn postgres_lane(url: String, from: i64, to: i64, batch: i64) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&url).await?;
    let mut at = from;
    while at < to {
        let end = to.min(at + batch);
        sqlx::query(
            "UPDATE aftercommit.bench_scratch SET token = $1, claimed = true WHERE id > $2 AND id <= $3 RETURNING id",
        )
        .bind(at)
        .bind(at)
        .bind(end)
        .fetch_all(&mut connection)
        .await?;
        sqlx::query("DELETE FROM aftercommit.bench_scratch WHERE id > $1 AND id <= $2")
            .bind(at)
            .bind(end)
            .execute(&mut connection)
            .await?;
        at = end;
    }
    Ok(())
}

async fn on_sqlite(url: &str, rows: i64, batch: i64) -> anyhow::Result<f64> {
    let mut connection = sqlite(url).await?;
    for statement in [
        "DROP TABLE IF EXISTS aftercommit_bench_scratch",
        "CREATE TABLE aftercommit_bench_scratch (id INTEGER PRIMARY KEY, token INTEGER NOT NULL DEFAULT 0, \
         claimed INTEGER NOT NULL DEFAULT 0, due_at INTEGER NOT NULL DEFAULT 0)",
    ] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    sqlx::query(
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < $1) \
         INSERT INTO aftercommit_bench_scratch (id) SELECT id FROM n",
    )
    .bind(rows)
    .execute(&mut connection)
    .await?;
    let clock = SystemClock;
    let start = clock.boot();
    let mut at = 0;
    while at < rows {
        let end = rows.min(at + batch);
        sqlx::query(
            "UPDATE aftercommit_bench_scratch SET token = $1, claimed = 1 WHERE id > $2 AND id <= $3 RETURNING id",
        )
        .bind(at)
        .bind(at)
        .bind(end)
        .fetch_all(&mut connection)
        .await?;
        sqlx::query("DELETE FROM aftercommit_bench_scratch WHERE id > $1 AND id <= $2")
            .bind(at)
            .bind(end)
            .execute(&mut connection)
            .await?;
        at = end;
    }
    let seconds = (clock.boot() - start).as_secs_f64();
    sqlx::query("DROP TABLE aftercommit_bench_scratch").execute(&mut connection).await?;
    Ok(seconds)
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
            let mut connection = sqlite(url).await?;
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
