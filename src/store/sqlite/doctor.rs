//! What a SQLite file says about itself. Differs because there is no server: no sessions, no roles, no listener.

use std::time::Duration;

use sqlx::SqliteConnection;

use super::SqliteStore;
use crate::{
    clock::{Clock, SystemClock},
    error::StoreError,
    store::{Connections, EngineFacts, Examine, Examined, SqliteFacts},
};

const DOING: &str = "examining the database";

/// The triggers on what applications write that this file should have and does not.
const TRIGGERS: &str =
    "SELECT w.value FROM json_each('[\"aftercommit_effects_check\",\"aftercommit_effects_queue\",
  \"aftercommit_effects_of_request\",\"aftercommit_requests_begin\"]') AS w
WHERE NOT EXISTS (SELECT 1 FROM sqlite_master AS m WHERE m.type = 'trigger' AND m.name = w.value) ORDER BY 1";

const LOOKED: &str = "SELECT count(*) FROM (SELECT id FROM aftercommit_effects ORDER BY id DESC LIMIT 10000)";

/// Of the newest ten thousand effects: to look at all would read the whole table.
const ORPHANS: &str =
    "SELECT count(*) FROM (SELECT id FROM aftercommit_effects ORDER BY id DESC LIMIT 10000) AS e
WHERE NOT EXISTS (SELECT 1 FROM aftercommit_queue AS q WHERE q.id = e.id)
  AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes AS o WHERE o.effect_id = e.id)";

const WRITE_BACKS: &str =
    "SELECT name FROM aftercommit_downstreams WHERE on_outcome IS NOT NULL ORDER BY name";

const PAYLOAD_LIMIT: &str = "SELECT value FROM aftercommit_meta WHERE key = 'payload_limit'";

#[async_trait::async_trait]
impl Examine for SqliteStore {
    async fn examine(&self) -> Result<Examined, StoreError> {
        // The writer's own settings are what a claim is durable by.
        let synchronous = {
            let mut writer = self.shared.writer.lock().await;
            number(&mut writer, "PRAGMA synchronous").await?
        };
        let mut reader = self.reader(DOING).await?;
        let reader = &mut *reader;
        let ended = SystemClock.wall().micros().saturating_sub(60_000_000);
        let unswept: i64 =
            sqlx::query_scalar("SELECT count(*) FROM aftercommit_claims WHERE lease_until < ?1")
                .bind(ended)
                .fetch_one(&mut *reader)
                .await
                .map_err(StoreError::during(DOING))?;
        let limit: Option<String> = sqlx::query_scalar(PAYLOAD_LIMIT)
            .fetch_optional(&mut *reader)
            .await
            .map_err(StoreError::during(DOING))?;
        let amount = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(Examined {
            server: format!("SQLite {}", text(reader, "SELECT sqlite_version()").await?),
            broken_triggers: names(reader, TRIGGERS).await?,
            orphans: amount(number(reader, ORPHANS).await?),
            orphans_among: amount(number(reader, LOOKED).await?),
            unswept_claims: amount(unswept),
            write_backs: names(reader, WRITE_BACKS).await?,
            payload_limit: limit.and_then(|text| text.parse().ok()),
            engine: EngineFacts::Sqlite(SqliteFacts {
                journal_mode: text(reader, "PRAGMA journal_mode").await?,
                synchronous,
            }),
        })
    }

    fn connections(&self) -> Connections {
        let readers = &self.shared.readers;
        let open = readers.size();
        let idle = u32::try_from(readers.num_idle()).unwrap_or(open).min(open);
        Connections { idle, used: open - idle, max: readers.options().get_max_connections() }
    }

    /// A file notifies nobody: its data version is looked at instead.
    fn listener_age(&self) -> Option<Duration> {
        None
    }
}

async fn number(connection: &mut SqliteConnection, sql: &'static str) -> Result<i64, StoreError> {
    sqlx::query_scalar(sql).fetch_one(connection).await.map_err(StoreError::during(DOING))
}

async fn text(connection: &mut SqliteConnection, sql: &'static str) -> Result<String, StoreError> {
    sqlx::query_scalar(sql).fetch_one(connection).await.map_err(StoreError::during(DOING))
}

async fn names(connection: &mut SqliteConnection, sql: &'static str) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar(sql).fetch_all(connection).await.map_err(StoreError::during(DOING))
}
