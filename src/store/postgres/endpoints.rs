//! Endpoints of a downstream that has many by name. What a worker may write of them goes through functions.

use super::{
    PgStore,
    row::{self, sentence},
    statement::sql,
};
use crate::{
    clock::Timestamp,
    downstream::endpoint::{Called, Change, Disabled, Endpoint},
    error::StoreError,
    store::Endpoints,
    verb::Actor,
};

/// The last row, without a name, carries the clock. Served by the primary key.
const ALL: &str =
    "SELECT name, url, secrets, disabled_at, disabled_reason, failing_since, clock_timestamp() AS now_at
FROM aftercommit.endpoints WHERE downstream = $1
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, clock_timestamp()";

#[async_trait::async_trait]
impl Endpoints for PgStore {
    async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError> {
        let read = self.all(sql(ALL).bind(downstream)).await;
        let rows = read.map_err(StoreError::during("reading endpoints"))?;
        let (mut now, mut endpoints) = (Timestamp::MIN, Vec::new());
        for row in &rows {
            now = now.max(row::get(row, "now_at")?);
            let Some(name) = row::get::<Option<String>>(row, "name")? else { continue };
            let since: Option<Timestamp> = row::get(row, "disabled_at")?;
            let reason: Option<String> = row::get(row, "disabled_reason")?;
            endpoints.push(Endpoint {
                name: name.into(),
                url: row::get(row, "url")?,
                secrets: row::get(row, "secrets")?,
                disabled: since.map(|since| Disabled { since, reason: reason.unwrap_or_default() }),
                failing_since: row::get(row, "failing_since")?,
            });
        }
        Ok((now, endpoints))
    }

    async fn note_endpoint(
        &self,
        downstream: &str,
        called: &Called,
        change: &Change,
        worker: &str,
    ) -> Result<bool, StoreError> {
        let (fails, disable) = match change {
            Change::Fails => (true, None),
            Change::Works => (false, None),
            Change::Disable(reason) => (true, Some(sentence(reason))),
        };
        let note = sql("SELECT aftercommit.note_endpoint($1, $2, $3, $4, $5, $6)")
            .bind(downstream)
            .bind(&*called.name)
            .bind(called.url.as_deref())
            .bind(fails)
            .bind(disable)
            .bind(sentence(worker));
        self.scalar(note).await.map_err(StoreError::during("noting how an endpoint fares"))
    }

    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let switch = sql("SELECT aftercommit.switch_endpoint($1, $2, $3, $4, $5, $6)")
            .bind(downstream)
            .bind(name)
            .bind(disable.map(sentence))
            .bind(sentence(&actor.who))
            .bind(actor.reason.as_deref().map(sentence))
            .bind(actor.from.as_deref().map(sentence));
        self.scalar(switch).await.map_err(StoreError::during("switching an endpoint"))
    }
}
