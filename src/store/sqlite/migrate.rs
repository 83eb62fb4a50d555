//! Opening a file, and bringing its schema up to date.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::{Mutex, Notify};
use tokio_util::task::TaskTracker;

use super::{Shared, SqliteStore};
use crate::{
    clock::{Clock, SystemClock},
    error::StoreError,
    store::{Database, Migrated, Options, SCHEMA_VERSION},
};

/// How long a statement waits for somebody else's write lock before it reports that the file is busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The first library without the WAL-reset fault, which needs what we do: several connections and checkpoints.
const LIBRARY_MIN: [u32; 3] = [3, 51, 3];
/// The steps, in order; step N brings the schema to version N.
const STEPS: &[&str] = &[
    include_str!("../../../migrations/sqlite/0001_foundation.sql"),
    include_str!("../../../migrations/sqlite/0002_budgets.sql"),
    include_str!("../../../migrations/sqlite/0003_probes.sql"),
    include_str!("../../../migrations/sqlite/0004_retention.sql"),
    include_str!("../../../migrations/sqlite/0005_identity.sql"),
    include_str!("../../../migrations/sqlite/0006_viewer.sql"),
    include_str!("../../../migrations/sqlite/0007_guard.sql"),
    include_str!("../../../migrations/sqlite/0008_enqueue.sql"),
    include_str!("../../../migrations/sqlite/0009_recipients.sql"),
    include_str!("../../../migrations/sqlite/0010_endpoints.sql"),
<<<<<<< ours
    include_str!("../../../migrations/sqlite/0011_dashboard.sql"),
=======
    include_str!("../../../migrations/sqlite/0011_kept_disabled.sql"),
>>>>>>> theirs
];
const OPENING: &str = "opening the SQLite file";
const MIGRATING: &str = "migrating";

/// Opens a file that `migrate` made, or brought its schema into.
pub(crate) async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Database>, StoreError> {
    let file = file_of(url)?;
    if !file.exists() {
        return Err(StoreError::Unsupported(format!(
            "there is no SQLite file {}: check the path, or make it with `aftercommit migrate`",
            file.display()
        )));
    }
    // First, alone: it turns a file with a rollback journal into one with a write-ahead log.
    let mut writer = open(&file, access(&file)).await?;
    check_library(&mut writer).await?;
    check_journal(&file, &mut writer).await?;
    check_schema(version(&mut writer).await?)?;
    options.environment_fits(environment(&mut writer).await?)?;
    let readers = || {
        SqlitePoolOptions::new()
            .max_connections(options.max_connections.max(1))
            // A local file's connections do not grow old; without limits the pool needs no task that looks after them.
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(access(&file).pragma("query_only", "ON"))
    };
    let shared = Shared {
        renewer: Mutex::new(open(&file, access(&file)).await?),
        watcher: Mutex::new(open(&file, access(&file).pragma("query_only", "ON")).await?),
        writer: Mutex::new(writer),
        readers: readers(),
        people: readers(),
        seen: AtomicI64::new(0),
        acted: Notify::new(),
    };
    Ok(Arc::new(SqliteStore { shared: Arc::new(shared), tasks: TaskTracker::new() }))
}

/// Makes the file if it is not there, and brings the schema to [`SCHEMA_VERSION`].
pub(crate) async fn migrate(url: &str, environment: Option<&str>) -> Result<Migrated, StoreError> {
    let file = file_of(url)?;
    let mut connection = open(&file, access(&file).create_if_missing(true)).await?;
    check_library(&mut connection).await?;
    let mut transaction =
        connection.begin_with("BEGIN IMMEDIATE").await.map_err(StoreError::during(MIGRATING))?;
    let from = version(&mut transaction).await?;
    if from > SCHEMA_VERSION {
        return Err(StoreError::SchemaTooNew { found: from, knows: SCHEMA_VERSION });
    }
    for step in STEPS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        sqlx::raw_sql(*step).execute(&mut *transaction).await.map_err(StoreError::during(MIGRATING))?;
    }
    if let Some(environment) = environment {
        write_environment(&mut transaction, environment).await?;
    }
    transaction.commit().await.map_err(StoreError::during(MIGRATING))?;
    connection.close().await.map_err(StoreError::during(MIGRATING))?;
    Ok(Migrated { from, to: SCHEMA_VERSION, notes: Vec::new() })
}

/// What `migrate` runs on a file without a schema.
pub(crate) fn migration_sql() -> String {
    STEPS.join("\n")
}

/// Written once; another one later means that somebody migrates the wrong file.
async fn write_environment(conn: &mut SqliteConnection, environment: &str) -> Result<(), StoreError> {
    let stands: String = sqlx::query_scalar(
        "INSERT INTO aftercommit_meta (key, value) VALUES ('environment', ?1) \
         ON CONFLICT (key) DO UPDATE SET value = value RETURNING value",
    )
    .bind(environment.to_owned())
    .fetch_one(conn)
    .await
    .map_err(StoreError::during(MIGRATING))?;
    if stands == environment {
        return Ok(());
    }
    Err(StoreError::OtherEnvironment { found: stands, configured: environment.to_owned() })
}

/// The environment that the file belongs to, if anybody wrote one.
async fn environment(conn: &mut SqliteConnection) -> Result<Option<String>, StoreError> {
    sqlx::query_scalar("SELECT value FROM aftercommit_meta WHERE key = 'environment'")
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during("reading the environment"))
}

/// The file that a URL names: `sqlite:FILE`, `sqlite://FILE`.
fn file_of(url: &str) -> Result<PathBuf, StoreError> {
    let refuse = |why: &str| {
        Err(StoreError::Unsupported(format!(
            "{url:?} {why}: give a file, such as sqlite:shop.db or sqlite:///var/lib/shop/shop.db"
        )))
    };
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if !matches!(parameters, "" | "mode=rw" | "mode=rwc") {
        return refuse("has parameters that are not known");
    }
    if path.is_empty() {
        return refuse("names no file");
    }
    if path.contains(":memory:") {
        return refuse("names a database in memory, which would not outlive this process");
    }
    if path.contains('\0') {
        return refuse("has a NUL in it");
    }
    let file = PathBuf::from(path);
    if file.is_dir() {
        return refuse("names a directory");
    }
    Ok(file)
}

fn access(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // A claim must be on disk before the downstream hears of it; NORMAL would lose it with the power.
        .synchronous(SqliteSynchronous::Full)
        // Statements are not logged: their values are payloads.
        .disable_statement_logging()
}

/// Opens one connection. Turning a file over to a write-ahead log fails at once while somebody writes, whatever the busy
/// timeout: hence the loop.
async fn open(file: &Path, options: SqliteConnectOptions) -> Result<SqliteConnection, StoreError> {
    let deadline = SystemClock.boot().plus(BUSY_TIMEOUT);
    loop {
        let error = match options.connect().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let code = primary_code(&error);
        let waits = matches!(code, Some(5 | 6)) && !SystemClock.boot().until(deadline).is_zero();
        if !waits {
            return Err(explain(file, code, error));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn explain(file: &Path, code: Option<i32>, error: sqlx::Error) -> StoreError {
    let file = file.display();
    let why = match code {
        Some(8) => format!(
            "{file} is read-only: aftercommit writes it and, in the same directory, {file}-wal and {file}-shm"
        ),
        Some(14) => format!(
            "{file} cannot be opened: its directory must exist, and be writable for {file}-wal and {file}-shm ({error})"
        ),
        Some(26) => format!("{file} is not a SQLite database"),
        _ => return StoreError::Database { doing: OPENING, source: error },
    };
    StoreError::Unsupported(why)
}

/// SQLite's primary result code; what the driver gives is the extended one.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

async fn check_library(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(OPENING))?;
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found: [u32; 3] = std::array::from_fn(|_| parts.next().unwrap_or(0));
    if found < LIBRARY_MIN {
        return Err(StoreError::Unsupported(format!(
            "the SQLite library is {version}; 3.51.3 or newer is needed (older ones can corrupt a write-ahead log)"
        )));
    }
    Ok(())
}

/// SQLite answers with the mode that it could set, not with an error: a file on a network share keeps its rollback journal.
async fn check_journal(file: &Path, conn: &mut SqliteConnection) -> Result<(), StoreError> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(OPENING))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(StoreError::Unsupported(format!(
        "{} has journal_mode={mode} and cannot be turned to WAL: keep it on a local disk",
        file.display()
    )))
}

/// The version of the schema in the file; 0 when there is none.
async fn version(conn: &mut SqliteConnection) -> Result<i32, StoreError> {
    let there: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'aftercommit_schema_version')",
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(StoreError::during(OPENING))?;
    if !there {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM aftercommit_schema_version")
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(OPENING))
}

fn check_schema(found: i32) -> Result<(), StoreError> {
    match found.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Less => Err(StoreError::SchemaTooOld { found, needs: SCHEMA_VERSION }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(StoreError::SchemaTooNew { found, knows: SCHEMA_VERSION }),
    }
}
