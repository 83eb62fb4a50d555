//! The file's health.

use std::time::Duration;

use sqlx::SqliteConnection;

use super::SqliteStore;
use crate::{
    error::StoreError,
    store::diagnose::{Diagnose, Diagnosis},
};

const DOING: &str = "asking the file for its health";

#[async_trait::async_trait]
impl Diagnose for SqliteStore {
    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let mut reader = self.reader(DOING).await?;
        figures(&mut reader).await.map_err(StoreError::during(DOING))
    }
}

async fn figures(conn: &mut SqliteConnection) -> Result<Diagnosis, sqlx::Error> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await?;
    let journal_mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await?;
    let schema_version: i32 = sqlx::query_scalar("SELECT max(version) FROM aftercommit_schema_version")
        .fetch_one(&mut *conn)
        .await?;
    let installation: String =
        sqlx::query_scalar("SELECT value FROM aftercommit_meta WHERE key = 'installation'")
            .fetch_one(&mut *conn)
            .await?;
    let environment: Option<String> =
        sqlx::query_scalar("SELECT value FROM aftercommit_meta WHERE key = 'environment'")
            .fetch_optional(&mut *conn)
            .await?;
    let triggers: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'aftercommit_effects' ORDER BY name",
    )
    .fetch_all(conn)
    .await?;
    let level = ["OFF", "NORMAL", "FULL", "EXTRA"];
    let synchronous = usize::try_from(synchronous).ok().and_then(|n| level.get(n)).unwrap_or(&"unknown");
    Ok(Diagnosis {
        server: format!("SQLite {version}"),
        schema_version,
        installation,
        environment,
        // Everybody who shares the file shares the machine, and so the clock.
        clock_ahead_us: 0,
        clock_error: Duration::ZERO,
        durability: vec![
            ("journal_mode".to_owned(), journal_mode),
            ("synchronous".to_owned(), (*synchronous).to_owned()),
        ],
        is_in_recovery: false,
        connections: None,
        oldest_snapshot: None,
        roles: Vec::new(),
        triggers: triggers.into_iter().map(|name| (name, true)).collect(),
        listened: None,
    })
}
