//! Endpoints of a downstream that has many by name.

use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    record::{Deed, write_down},
    row::Fields,
};
use crate::{
    clock::{Clock as _, SystemClock, Timestamp},
    downstream::endpoint::{Called, Change, Disabled, Endpoint},
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::Endpoints,
    verb::Actor,
};

const DOING: &str = "reading or switching endpoints";

const ALL: &str = "SELECT name, url, secrets, disabled_at, disabled_reason, failing_since \
     FROM aftercommit_endpoints WHERE downstream = ?1";

/// The state of an endpoint of the configuration needs a row; one that an application dropped gets none again.
const CONFIGURED: &str = "INSERT INTO aftercommit_endpoints (downstream, name) \
     SELECT ?1, ?2 WHERE ?3 IS NULL ON CONFLICT (downstream, name) DO NOTHING";

const FAILS: &str = "UPDATE aftercommit_endpoints SET failing_since = ?4, updated_at = ?4 \
     WHERE downstream = ?1 AND name = ?2 AND (?3 IS NULL OR url = ?3) AND failing_since IS NULL AND ?5 IS NULL";

const WORKS: &str = "UPDATE aftercommit_endpoints SET failing_since = NULL, updated_at = ?4 \
     WHERE downstream = ?1 AND name = ?2 AND (?3 IS NULL OR url = ?3) AND failing_since IS NOT NULL AND ?5 IS NULL";

const GIVE_UP: &str = "UPDATE aftercommit_endpoints \
     SET disabled_at = ?4, disabled_reason = ?5, disabled_itself = (?3 IS NOT NULL), updated_at = ?4 \
     WHERE downstream = ?1 AND name = ?2 AND (?3 IS NULL OR url = ?3) AND disabled_at IS NULL";

const DISABLE: &str = "INSERT INTO aftercommit_endpoints (downstream, name, disabled_at, disabled_reason) \
     VALUES (?1, ?2, ?3, ?4) \
     ON CONFLICT (downstream, name) DO UPDATE \
     SET disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason, disabled_itself = 0, updated_at = ?3 \
     WHERE disabled_at IS NULL";

const ENABLE: &str = "UPDATE aftercommit_endpoints \
     SET disabled_at = NULL, disabled_reason = NULL, disabled_itself = 0, failing_since = NULL, updated_at = ?3 \
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

    async fn note_endpoint(
        &self,
        downstream: &str,
        called: &Called,
        change: &Change,
        worker: &str,
    ) -> Result<bool, StoreError> {
        let (downstream, called, change) = (downstream.to_owned(), called.clone(), change.clone());
        let worker = Actor { who: worker.to_owned(), ..Actor::default() };
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                note(conn, (downstream, called), (change, worker), now)
                    .await
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

async fn note(
    conn: &mut SqliteConnection,
    (downstream, called): (String, Called),
    (change, worker): (Change, Actor),
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let name = called.name.to_string();
    let (sql, disable) = match change {
        Change::Fails => (FAILS, None),
        Change::Works => (WORKS, None),
        Change::Disable(reason) => (GIVE_UP, Some(stored_text(&reason, REASON_MAX))),
    };
    if sql != WORKS {
        let row = sqlx::query(CONFIGURED).bind(downstream.clone()).bind(name.clone());
        row.bind(called.url.clone()).execute(&mut *conn).await?;
    }
    let changed = sqlx::query(sql)
        .bind(downstream.clone())
        .bind(name.clone())
        .bind(called.url)
        .bind(now.micros())
        .bind(disable.clone())
        .execute(&mut *conn)
        .await?;
    if changed.rows_affected() > 0 && disable.is_some() {
        audit(conn, ("disable_endpoint", downstream, name), (disable, worker), now).await?;
    }
    Ok(changed.rows_affected() > 0)
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
    audit(conn, (verb, downstream, name), (disable, actor), now).await.map(|()| true)
}

async fn audit(
    conn: &mut SqliteConnection,
    (verb, downstream, name): (&'static str, String, String),
    (disable, actor): (Option<String>, Actor),
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let why = actor.reason.as_ref().or(disable.as_ref()).map(|why| format!(": {why}")).unwrap_or_default();
    let actor = Actor { reason: Some(format!("{name}{why}")), ..actor };
    write_down(conn, &actor, Deed { verb, downstream: Some(&downstream), ..Deed::default() }, now).await
}
