//! Endpoints of a downstream that has many by name.

use sqlx::SqliteConnection;

use super::{SqliteStore, row::Fields};
use crate::{
    clock::{Clock as _, SystemClock, Timestamp},
    downstream::endpoint::{Disabled, Endpoint},
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::Endpoints,
    verb::Actor,
};

const DOING: &str = "reading or switching endpoints";

const ALL: &str = "SELECT name, url, secrets, disabled_at, disabled_reason, failing_since \
     FROM aftercommit_endpoints WHERE downstream = ?1";

const FAILS: &str = "INSERT INTO aftercommit_endpoints (downstream, name, failing_since) VALUES (?1, ?2, ?3) \
     ON CONFLICT (downstream, name) DO UPDATE SET failing_since = excluded.failing_since, updated_at = ?3 \
     WHERE failing_since IS NULL";

const WORKS: &str = "UPDATE aftercommit_endpoints SET failing_since = NULL, updated_at = ?3 \
     WHERE downstream = ?1 AND name = ?2 AND failing_since IS NOT NULL";

const DISABLE: &str = "INSERT INTO aftercommit_endpoints (downstream, name, disabled_at, disabled_reason) \
     VALUES (?1, ?2, ?3, ?4) \
     ON CONFLICT (downstream, name) DO UPDATE \
     SET disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason, updated_at = ?3 \
     WHERE disabled_at IS NULL";

const ENABLE: &str = "UPDATE aftercommit_endpoints \
     SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL, updated_at = ?3 \
     WHERE downstream = ?1 AND name = ?2 AND disabled_at IS NOT NULL AND ?4 IS NULL";

#[async_trait::async_trait]
impl Endpoints for SqliteStore {
    async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError> {
        let mut reader = self.reader(DOING).await?;
        let rows = sqlx::query(ALL)
            .bind(downstream.to_owned())
            .fetch_all(&mut *reader)
            .await
            .map_err(StoreError::during(DOING))?;
        let endpoint = |row| {
            let fields = Fields::new(row, "aftercommit_endpoints", 0);
            let reason = fields.opt_text("disabled_reason")?;
            Ok(Endpoint {
                name: fields.text("name")?.into(),
                url: fields.opt_text("url")?,
                secrets: fields.opt_text("secrets")?,
                disabled: fields
                    .opt_time("disabled_at")?
                    .map(|since| Disabled { since, reason: reason.unwrap_or_default() }),
                failing_since: fields.opt_time("failing_since")?,
            })
        };
        let endpoints = rows.iter().map(endpoint).collect::<Result<_, StoreError>>()?;
        Ok((SystemClock.wall(), endpoints))
    }

    async fn note_endpoint(&self, downstream: &str, name: &str, fails: bool) -> Result<(), StoreError> {
        let (downstream, name) = (downstream.to_owned(), name.to_owned());
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                sqlx::query(if fails { FAILS } else { WORKS })
                    .bind(downstream)
                    .bind(name)
                    .bind(now.micros())
                    .execute(&mut *conn)
                    .await
                    .map(drop)
                    .map_err(StoreError::during(DOING))
            })
        })
        .await
    }

    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let (downstream, name) = (downstream.to_owned(), name.to_owned());
        let disable = disable.map(|why| stored_text(why, REASON_MAX));
        let actor = actor.clone();
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                switch(conn, (downstream, name), (disable, actor), now)
                    .await
                    .map_err(StoreError::during(DOING))
            })
        })
        .await
    }
}

async fn switch(
    conn: &mut SqliteConnection,
    (downstream, name): (String, String),
    (disable, actor): (Option<String>, Actor),
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let (verb, sql) =
        if disable.is_some() { ("disable_endpoint", DISABLE) } else { ("enable_endpoint", ENABLE) };
    let changed = sqlx::query(sql)
        .bind(downstream.clone())
        .bind(name.clone())
        .bind(now.micros())
        .bind(disable.clone())
        .execute(&mut *conn)
        .await?;
    if changed.rows_affected() == 0 {
        return Ok(false);
    }
    let why = actor.reason.or(disable).map(|why| format!(": {why}")).unwrap_or_default();
    sqlx::query(
        "INSERT INTO aftercommit_audit (at, who, verb, downstream, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
    )
    .bind(now.micros())
    .bind(stored_text(&actor.who, REASON_MAX))
    .bind(verb)
    .bind(downstream)
    .bind(stored_text(&format!("{name}{why}"), REASON_MAX))
    .execute(conn)
    .await
    .map(|_written| true)
}
