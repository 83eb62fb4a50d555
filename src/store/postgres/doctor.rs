//! What a PostgreSQL server says about itself.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{PgStore, row, statement::sql};
use crate::{
    error::StoreError,
    store::{Connections, EngineFacts, Examine, Examined, PostgresFacts, Session},
};

const DOING: &str = "examining the database";

const SERVER: &str = "SELECT current_setting('server_version') AS version, current_setting('server_encoding') AS encoding,
  current_setting('fsync') = 'on' AS fsync, current_setting('full_page_writes') = 'on' AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS standby,
  current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4 AS connections_max,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int4 AS connections_used,
  current_user::text AS login, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
  pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_sessions";

/// As `migrate` makes them. A login may be an application's own role: which of them it is in is not asked.
const ROLES: &str =
    "SELECT name FROM unnest(ARRAY['aftercommit_app', 'aftercommit_worker', 'aftercommit_viewer',
  'aftercommit_operator']) AS r (name) WHERE to_regrole(name) IS NULL ORDER BY name";

/// Sessions of this database whose transaction has been open, and idle, for five minutes.
const IDLE: &str =
    "SELECT pid, coalesce(usename, '?') || coalesce(' (' || nullif(application_name, '') || ')', '') AS who,
  (extract(epoch FROM statement_timestamp() - xact_start) * 1000)::int8 AS open_ms
FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
  AND state_change < statement_timestamp() - interval '5 minutes'
ORDER BY xact_start LIMIT 5";

/// Whatever keeps vacuum from removing what is dead: a snapshot, a prepared transaction, a replication slot.
const HORIZON: &str = "SELECT age, holder FROM (
  SELECT age(backend_xmin)::int8 AS age, 'process ' || pid || ' of ' || coalesce(usename, '?')
         || coalesce(' (' || nullif(application_name, '') || ')', '') AS holder
  FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
  UNION ALL
  SELECT age(transaction)::int8, 'the prepared transaction of ' || owner FROM pg_prepared_xacts
  UNION ALL
  SELECT greatest(age(xmin), age(catalog_xmin))::int8, 'the replication slot ' || slot_name FROM pg_replication_slots
  WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL) AS h
ORDER BY age DESC LIMIT 1";

const TRIGGERS: &str = "SELECT w.name FROM unnest(ARRAY['effects_inserted', 'effects_row']) AS w (name)
LEFT JOIN pg_trigger AS t ON t.tgrelid = 'aftercommit.effects'::regclass AND t.tgname = w.name
WHERE t.oid IS NULL OR t.tgenabled NOT IN ('O', 'A') ORDER BY w.name";

/// Of the newest ten thousand effects: to look at all would read the whole table.
const ORPHANS: &str = "SELECT count(*) AS looked,
  count(*) FILTER (WHERE NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = e.id)
                     AND NOT EXISTS (SELECT FROM aftercommit.outcomes AS o WHERE o.effect_id = e.id)) AS orphans
FROM (SELECT id FROM aftercommit.effects ORDER BY id DESC LIMIT 10000) AS e";

const UNSWEPT: &str = "SELECT count(*) FROM aftercommit.claims
WHERE lease_until < statement_timestamp() - interval '1 minute'";

const WRITE_BACKS: &str =
    "SELECT name FROM aftercommit.downstreams WHERE on_outcome IS NOT NULL ORDER BY name";

const PAYLOAD_LIMIT: &str = "SELECT value FROM aftercommit.meta WHERE key = 'payload_limit'";

#[async_trait::async_trait]
impl Examine for PgStore {
    async fn examine(&self) -> Result<Examined, StoreError> {
        let server = self.asked(SERVER).await?;
        let orphans = self.asked(ORPHANS).await?;
        let limit = self.optional(sql(PAYLOAD_LIMIT)).await.map_err(StoreError::during(DOING))?;
        let limit = limit.as_ref().map(|row| row::get::<String>(row, "value")).transpose()?;
        Ok(Examined {
            server: format!("PostgreSQL {}", row::get::<String>(&server, "version")?),
            broken_triggers: self.names(TRIGGERS).await?,
            orphans: row::sum(&orphans, "orphans")?,
            orphans_among: row::sum(&orphans, "looked")?,
            unswept_claims: row::sum(&self.asked(UNSWEPT).await?, "count")?,
            write_backs: self.names(WRITE_BACKS).await?,
            payload_limit: limit.and_then(|text| text.parse().ok()),
            engine: EngineFacts::Postgres(Box::new(self.server_facts(&server).await?)),
        })
    }

    fn connections(&self) -> Connections {
        self.pool.occupancy()
    }

    fn listener_age(&self) -> Option<Duration> {
        self.wake.age()
    }
}

impl PgStore {
    async fn server_facts(&self, server: &PgRow) -> Result<PostgresFacts, StoreError> {
        let idle = self.all(sql(IDLE)).await.map_err(StoreError::during(DOING))?;
        let horizon = self.optional(sql(HORIZON)).await.map_err(StoreError::during(DOING))?;
        let (horizon_age, horizon_holder) = match &horizon {
            Some(row) => (row::get::<i64>(row, "age")?, row::get(row, "holder")?),
            None => (0, String::new()),
        };
        Ok(PostgresFacts {
            encoding: row::get(server, "encoding")?,
            fsync: row::get(server, "fsync")?,
            full_page_writes: row::get(server, "full_page_writes")?,
            synchronous_commit: row::get(server, "synchronous_commit")?,
            standby: row::get(server, "standby")?,
            connections_max: row::count(server, "connections_max")?,
            connections_used: row::count(server, "connections_used")?,
            missing_roles: self.names(ROLES).await?,
            login: row::get(server, "login")?,
            superuser: row::get(server, "superuser")?,
            sees_sessions: row::get(server, "sees_sessions")?,
            idle_in_transaction: idle.iter().map(session).collect::<Result<_, _>>()?,
            horizon_age: u64::try_from(horizon_age).unwrap_or(0),
            horizon_holder,
        })
    }

    async fn asked(&self, text: &'static str) -> Result<PgRow, StoreError> {
        self.one(sql(text)).await.map_err(StoreError::during(DOING))
    }

    /// The column `name` of every row.
    async fn names(&self, text: &'static str) -> Result<Vec<String>, StoreError> {
        let rows = self.all(sql(text)).await.map_err(StoreError::during(DOING))?;
        rows.iter().map(|row| row::get(row, "name")).collect()
    }
}

fn session(row: &PgRow) -> Result<Session, StoreError> {
    let open: i64 = row::get(row, "open_ms")?;
    Ok(Session {
        pid: row::get(row, "pid")?,
        who: row::get(row, "who")?,
        open: Duration::from_millis(u64::try_from(open).unwrap_or(0)),
    })
}
