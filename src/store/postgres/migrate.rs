//! Bringing a database to this library's schema, on a connection of its own; and the checks of every connect, which a pooler
//! may carry: nothing here is named. Our own migrator: sqlx's would put its table into the application's schema.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row};

use crate::{
    error::StoreError,
    store::{
        Migrated, SCHEMA_VERSION,
        postgres::{connect_one, statement::once},
    },
};

/// The steps, in order; step N brings the schema to version N.
const STEPS: &[&str] = &[
    include_str!("../../../migrations/postgres/0001_foundation.sql"),
    include_str!("../../../migrations/postgres/0002_budgets.sql"),
    include_str!("../../../migrations/postgres/0003_probes.sql"),
    include_str!("../../../migrations/postgres/0004_retention.sql"),
    include_str!("../../../migrations/postgres/0005_identity.sql"),
    include_str!("../../../migrations/postgres/0006_viewer.sql"),
    include_str!("../../../migrations/postgres/0007_guard.sql"),
    include_str!("../../../migrations/postgres/0008_enqueue.sql"),
    include_str!("../../../migrations/postgres/0009_recipients.sql"),
    include_str!("../../../migrations/postgres/0010_endpoints.sql"),
<<<<<<< ours
    include_str!("../../../migrations/postgres/0011_dashboard.sql"),
=======
    include_str!("../../../migrations/postgres/0011_kept_disabled.sql"),
>>>>>>> theirs
];

/// Serialises migrators: the number is the name's first bytes, as no other program would choose it.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7022364301936348005)";

pub(super) const ROLES: [&str; 4] =
    ["aftercommit_app", "aftercommit_worker", "aftercommit_viewer", "aftercommit_operator"];

/// See [`crate::store::migrate`].
pub(crate) async fn migrate(url: &str, environment: Option<&str>) -> Result<Migrated, StoreError> {
    let mut connection = connect_one(url).await?;
    server_fits(&mut connection).await?;
    let migrated = insist(&mut connection, environment).await;
    // Closed in any case: the server rolls back what was not committed.
    let closed = connection.close().await;
    let migrated = migrated?;
    closed.map_err(StoreError::during("closing the migrator's connection"))?;
    Ok(migrated)
}

/// See [`crate::store::migration_sql`].
pub(crate) fn migration_sql() -> String {
    format!("BEGIN;\n{LOCK};\n\n{}\nCOMMIT;\n", STEPS.join("\n"))
}

/// How long a table that somebody holds is waited for, in seconds. Everybody else waits behind us meanwhile, so then we let
/// them pass, and try again.
const LOCK_SECONDS: u32 = 5;
const LOCK_TIMES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_secs(2);

async fn insist(connection: &mut PgConnection, environment: Option<&str>) -> Result<Migrated, StoreError> {
    let mut times = 1;
    loop {
        match apply(connection, environment).await {
            Err(StoreError::Database { source, .. }) if is_locked(&source) => {
                if times == LOCK_TIMES {
                    return Err(StoreError::Locked { times, seconds: LOCK_SECONDS, source });
                }
            }
            done => return done,
        }
        run(connection, "ROLLBACK").await?;
        tokio::time::sleep(LOCK_PAUSE).await;
        times += 1;
    }
}

fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("55P03")
}

async fn apply(connection: &mut PgConnection, environment: Option<&str>) -> Result<Migrated, StoreError> {
    let doing = "migrating";
    // Another migrator may take its time; a table that somebody holds may not keep everybody else waiting behind us.
    run(connection, "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
    run(connection, LOCK).await?;
    run(connection, &format!("SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")).await?;
    // Only under the lock: another migrator may have been faster.
    let from = version(connection).await?;
    if from > SCHEMA_VERSION {
        return Err(StoreError::SchemaTooNew { found: from, knows: SCHEMA_VERSION });
    }
    for step in STEPS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        run(connection, step).await?;
    }
    if let Some(environment) = environment {
        once("INSERT INTO aftercommit.meta (key, value) VALUES ('environment', $1) ON CONFLICT (key) DO NOTHING")
            .bind(environment)
            .execute(&mut *connection)
            .await
            .map_err(StoreError::during(doing))?;
        let stands: String =
            sqlx::query_scalar("SELECT value FROM aftercommit.meta WHERE key = 'environment'")
                .persistent(false)
                .fetch_one(&mut *connection)
                .await
                .map_err(StoreError::during(doing))?;
        if stands != environment {
            return Err(StoreError::OtherEnvironment { found: stands, configured: environment.to_owned() });
        }
    }
    let notes = roles(connection).await?;
    run(connection, "COMMIT").await?;
    Ok(Migrated { from, to: SCHEMA_VERSION, notes })
}

/// Grants what an earlier migration could not, now that somebody made the roles; says what is still missing.
async fn roles(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    let granted: bool = sqlx::query_scalar(
        "SELECT coalesce(bool_and(to_regrole(name) IS NOT NULL
           AND has_schema_privilege(to_regrole(name)::oid, 'aftercommit', 'USAGE')), false)
         FROM unnest($1::text[]) AS r (name)",
    )
    .persistent(false)
    .bind(&ROLES[..])
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::during("looking at the roles"))?;
    if granted {
        return Ok(Vec::new());
    }
    run(connection, &roles_sql()).await?;
    let missing: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM unnest($1::text[]) AS r (name) WHERE to_regrole(name) IS NULL ORDER BY name",
    )
    .persistent(false)
    .bind(&ROLES[..])
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::during("looking at the roles"))?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let create: String = missing.iter().map(|role| format!("CREATE ROLE {role} NOLOGIN;\n")).collect();
    Ok(vec![format!(
        "The roles {} are missing and may not be made with this login. Let somebody who may run this, then `aftercommit migrate` again (it grants the rights):\n{create}",
        missing.join(", ")
    )])
}

/// The parts of the steps that make roles and grant rights; they may be run again.
fn roles_sql() -> String {
    let parts = STEPS.iter().filter_map(|sql| {
        let (_, after) = sql.split_once("-- BEGIN roles")?;
        let (part, _) = after
            .split_once("-- END roles")
            .expect("a step that marks where the roles begin marks their end");
        Some(format!("-- BEGIN roles{part}"))
    });
    parts.collect()
}

/// The schema's version; 0 when there is none.
pub(super) async fn version(connection: &mut PgConnection) -> Result<i32, StoreError> {
    let doing = "reading the schema version";
    let there: bool = sqlx::query_scalar("SELECT to_regclass('aftercommit.schema_version') IS NOT NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::during(doing))?;
    if !there {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM aftercommit.schema_version")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::during(doing))
}

/// The environment that the database belongs to, if anybody wrote one.
pub(super) async fn environment(connection: &mut PgConnection) -> Result<Option<String>, StoreError> {
    sqlx::query_scalar("SELECT value FROM aftercommit.meta WHERE key = 'environment'")
        .persistent(false)
        .fetch_optional(connection)
        .await
        .map_err(StoreError::during("reading the environment"))
}

/// Which installation this is.
pub(super) async fn installation(connection: &mut PgConnection) -> Result<String, StoreError> {
    sqlx::query_scalar("SELECT value FROM aftercommit.meta WHERE key = 'installation'")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(StoreError::during("asking which installation this is"))
}

/// Refuses a schema that is not this library's.
pub(super) async fn schema_fits(connection: &mut PgConnection) -> Result<(), StoreError> {
    match version(connection).await? {
        SCHEMA_VERSION => Ok(()),
        found if found < SCHEMA_VERSION => Err(StoreError::SchemaTooOld { found, needs: SCHEMA_VERSION }),
        found => Err(StoreError::SchemaTooNew { found, knows: SCHEMA_VERSION }),
    }
}

/// Refuses a server that is too old, or a database that cannot hold every text.
pub(super) async fn server_fits(connection: &mut PgConnection) -> Result<(), StoreError> {
    let row = once(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding')",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::during("asking the server what it is"))?;
    let get = |source| StoreError::Database { doing: "asking the server what it is", source };
    let number: i32 = row.try_get(0).map_err(get)?;
    let version: String = row.try_get(1).map_err(get)?;
    let encoding: String = row.try_get(2).map_err(get)?;
    fits(number, &version, &encoding)
}

fn fits(number: i32, version: &str, encoding: &str) -> Result<(), StoreError> {
    if number < 130_000 {
        return Err(StoreError::Unsupported(format!(
            "aftercommit needs PostgreSQL 13 or newer, and this server is {version}"
        )));
    }
    if encoding != "UTF8" {
        return Err(StoreError::Unsupported(format!(
            "aftercommit needs a database whose encoding is UTF8, and this one's is {encoding}: create it with ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    Ok(())
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(StoreError::during("migrating"))
}

#[cfg(test)]
mod tests {
    use super::fits;

    /// DB-06: no server so old is at hand.
    #[test]
    fn a_server_that_is_too_old_is_refused_in_words() {
        assert!(fits(130_000, "13.0", "UTF8").is_ok());
        let old = fits(120_022, "12.22", "UTF8").expect_err("it is too old").to_string();
        assert!(old.contains("PostgreSQL 13 or newer") && old.contains("12.22"), "{old}");
        let latin = fits(150_018, "15.18", "LATIN1").expect_err("it cannot hold every text").to_string();
        assert!(latin.contains("LATIN1") && latin.contains("ENCODING 'UTF8'"), "{latin}");
    }
}
