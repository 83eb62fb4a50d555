//! The server's health, as far as a plain role may see it.

use std::time::Duration;

use super::{PgStore, row, statement::sql};
use crate::{
    clock::{Clock as _, SystemClock, Timestamp},
    error::StoreError,
    store::diagnose::{Diagnose, Diagnosis, OldestSnapshot, RoleFound},
};

const DOING: &str = "asking the server for its health";

const FIGURES: &str = "SELECT clock_timestamp() AS now_at, current_setting('server_version') AS version,
  pg_is_in_recovery() AS is_in_recovery, current_setting('max_connections')::int8 AS max_connections,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
  (SELECT max(version) FROM aftercommit.schema_version) AS schema_version,
  (SELECT value FROM aftercommit.meta WHERE key = 'installation') AS installation,
  (SELECT value FROM aftercommit.meta WHERE key = 'environment') AS environment";

/// What a session of the workers' is told does not hold for others': what the server, the database and the login say.
const DURABILITY: &str = "SELECT name, coalesce(reset_val, setting) AS value FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names') ORDER BY name";

/// Sessions of other roles show neither their snapshot nor their age to a plain role.
const OLDEST: &str = "WITH holders AS (
  SELECT backend_xmin AS xmin, xact_start AS since, 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') AS who
  FROM pg_stat_activity WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
  UNION ALL
  SELECT least(xmin::text::int8, catalog_xmin::text::int8)::text::xid, NULL, 'replication slot ' || slot_name
  FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
  UNION ALL
  SELECT transaction, prepared, 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
)
SELECT (extract(epoch FROM clock_timestamp() - coalesce(since, clock_timestamp())) * 1000000)::int8 AS age_us,
  coalesce(age(xmin), 0)::int8 AS transactions, who,
  pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS complete
FROM holders ORDER BY age(xmin) DESC NULLS LAST, since LIMIT 1";

const ROLES: &str = "SELECT r.name, to_regrole(r.name) IS NOT NULL AS exists,
  coalesce(has_schema_privilege(to_regrole(r.name)::oid, 'aftercommit', 'USAGE'), false) AS granted,
  coalesce(pg_has_role(current_user, to_regrole(r.name)::oid, 'USAGE'), false) AS ours
FROM unnest($1::text[]) AS r (name)";

/// `O` and `A` fire in a session like an application's.
const TRIGGERS: &str = "SELECT t.tgname::text AS name, t.tgenabled IN ('O', 'A') AS fires
FROM pg_trigger AS t WHERE t.tgrelid = 'aftercommit.effects'::regclass AND NOT t.tgisinternal ORDER BY 1";

#[async_trait::async_trait]
impl Diagnose for PgStore {
    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let failed = || StoreError::during(DOING);
        // So that the figure is not the time that a connection takes.
        self.one(sql("SELECT 1")).await.map_err(failed())?;
        let (asked, wall) = (SystemClock.boot(), SystemClock.wall());
        let figures = self.one(sql(FIGURES)).await.map_err(failed())?;
        let took = SystemClock.boot() - asked;
        let there: Timestamp = row::get(&figures, "now_at")?;
        let here = wall.plus(took / 2);
        let durability = self.all(sql(DURABILITY)).await.map_err(failed())?;
        let oldest = self.optional(sql(OLDEST)).await.map_err(failed())?;
        let roles = self.all(sql(ROLES).bind(&super::migrate::ROLES[..])).await.map_err(failed())?;
        let triggers = self.all(sql(TRIGGERS)).await.map_err(failed())?;
        Ok(Diagnosis {
            server: format!("PostgreSQL {}", row::get::<String>(&figures, "version")?),
            schema_version: row::get(&figures, "schema_version")?,
            installation: row::get(&figures, "installation")?,
            environment: row::get(&figures, "environment")?,
            clock_ahead_us: there.micros().saturating_sub(here.micros()),
            clock_error: took / 2,
            durability: pairs(&durability, "value")?,
            is_in_recovery: row::get(&figures, "is_in_recovery")?,
            connections: Some((row::sum(&figures, "connections")?, row::sum(&figures, "max_connections")?)),
            oldest_snapshot: oldest.as_ref().map(oldest_snapshot).transpose()?,
            roles: roles.iter().map(role).collect::<Result<_, _>>()?,
            triggers: triggers
                .iter()
                .map(|row| Ok((row::get(row, "name")?, row::get(row, "fires")?)))
                .collect::<Result<_, StoreError>>()?,
            listened: self.wake.listened(),
        })
    }
}

fn pairs(rows: &[sqlx::postgres::PgRow], value: &'static str) -> Result<Vec<(String, String)>, StoreError> {
    rows.iter().map(|row| Ok((row::get(row, "name")?, row::get(row, value)?))).collect()
}

fn oldest_snapshot(row: &sqlx::postgres::PgRow) -> Result<OldestSnapshot, StoreError> {
    Ok(OldestSnapshot {
        age: Duration::from_micros(row::sum(row, "age_us")?),
        transactions: row::sum(row, "transactions")?,
        holder: row::get(row, "who")?,
        complete: row::get(row, "complete")?,
    })
}

fn role(row: &sqlx::postgres::PgRow) -> Result<RoleFound, StoreError> {
    Ok(RoleFound {
        name: row::get(row, "name")?,
        exists: row::get(row, "exists")?,
        granted: row::get(row, "granted")?,
        ours: row::get(row, "ours")?,
    })
}
