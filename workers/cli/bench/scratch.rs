//! Tables that effects are compared with, in the database that is measured.

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};

use super::Place;
use crate::cli::open_sqlite;

/// The tables of the comparison: a business table, one with the columns and the two indexes of a queue of one's own, and two
/// for the keys of requests and their answers.
pub(super) struct Scratch {
    url: String,
}

impl Scratch {
    pub(super) async fn create(place: &Place) -> anyhow::Result<Self> {
        let scratch = Self { url: place.url.clone() };
        scratch.run("DROP TABLE IF EXISTS").await?;
        let (id, time, dot) = if place.is_sqlite() {
            ("INTEGER PRIMARY KEY", "INTEGER NOT NULL DEFAULT (unixepoch())", "_")
        } else {
            (
                "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
                "timestamptz NOT NULL DEFAULT clock_timestamp()",
                ".",
            )
        };
        let (json, bytes) = if place.is_sqlite() { ("TEXT", "BLOB") } else { ("json", "bytea") };
        scratch
            .execute(&[
                format!("CREATE TABLE aftercommit{dot}bench_orders (id {id}, name text NOT NULL, amount bigint NOT NULL)"),
                format!(
                    "CREATE TABLE aftercommit{dot}bench_bare (id {id}, downstream text NOT NULL, operation text, idempotency_key text NOT NULL, \
                     payload {json}, due_at {time}, created_at {time}, UNIQUE (downstream, idempotency_key))"
                ),
                format!(
                    "CREATE TABLE aftercommit{dot}bench_requests (scope text NOT NULL, key text NOT NULL, fingerprint text NOT NULL, created_at {time}, \
                     PRIMARY KEY (scope, key))"
                ),
                format!(
                    "CREATE TABLE aftercommit{dot}bench_answers (scope text NOT NULL, key text NOT NULL, status integer NOT NULL, headers {bytes}, \
                     body {bytes}, PRIMARY KEY (scope, key))"
                ),
            ])
            .await?;
        Ok(scratch)
    }

    pub(super) async fn drop(self) -> anyhow::Result<()> {
        self.run("DROP TABLE").await
    }

    async fn run(&self, verb: &str) -> anyhow::Result<()> {
        let dot = if self.url.starts_with("sqlite:") { "_" } else { "." };
        let statements = ["bench_orders", "bench_bare", "bench_requests", "bench_answers"]
            .map(|table| format!("{verb} aftercommit{dot}{table}"));
        self.execute(&statements).await
    }

    async fn execute(&self, statements: &[String]) -> anyhow::Result<()> {
        let doing = "making the tables of the comparison";
        for sql in statements {
            let sql = sqlx::AssertSqlSafe(sql.clone());
            if self.url.starts_with("sqlite:") {
                sqlx::query(sql).execute(&mut open_sqlite(&self.url).await?).await.context(doing)?;
            } else {
                let mut connection = PgConnection::connect(&self.url).await?;
                sqlx::query(sql).execute(&mut connection).await.context(doing)?;
            }
        }
        Ok(())
    }
}
