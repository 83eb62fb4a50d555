//! A fresh database per test on either engine, its store, and raw SQL beside it.

use std::{str::FromStr, sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::Timestamp,
    state::State,
    store::{self, AuditFilter, Audited, Database, LoggedAttempt, Options, Pooler, Status, Token},
};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

use super::Sql;

/// A database that the store supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// A migrated database of one test.
pub(crate) struct TestDatabase {
    /// Which database.
    pub(crate) engine: Engine,
    /// What a worker connects to.
    pub(crate) url: String,
    /// Connected.
    pub(crate) store: Arc<dyn Database>,
    /// The application's own connections.
    pub(crate) sql: Sql,
    way: Way,
    place: Place,
}

/// How the store gets to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By itself.
    Direct,
    /// Through pgbouncer in transaction mode.
    Pooled,
}

/// What is to be removed.
enum Place {
    Postgres(String),
    Sqlite(tempfile::TempDir),
}

/// Held while the template is made: tests run in processes of their own.
const TEMPLATE_LOCK: i64 = 5_417_923;

impl TestDatabase {
    /// Makes a database with the newest schema.
    pub(crate) async fn fresh(engine: Engine, way: Way) -> Self {
        let (url, place) = match engine {
            Engine::Postgres => {
                let template = template().await;
                create_postgres(Some(&template)).await
            }
            Engine::Sqlite => {
                let (url, place) = create_sqlite();
                store::migrate(&url, Some("test")).await.expect("migrate makes the schema");
                (url, place)
            }
        };
        let store = connect(&url, way).await;
        let sql = sql(&url).await;
        Self { engine, url, store, sql, way, place }
    }

    /// Connects once more, as another process would.
    pub(crate) async fn another_store(&self) -> Arc<dyn Database> {
        connect(&self.url, self.way).await
    }

    /// The same database through the pooler, where the case runs behind one.
    pub(crate) fn pooler_url(&self) -> Option<String> {
        (self.way == Way::Pooled).then(|| pooled(&self.url))
    }

    /// The application's connections from another process.
    pub(crate) async fn another_sql(&self) -> Sql {
        sql(&self.url).await
    }

    /// The same database through the pgbouncer of the test run.
    pub(crate) fn pooled_url(&self) -> String {
        pooled(&self.url)
    }

    /// Removes the database, whoever is still connected.
    pub(crate) async fn remove(self) {
        drop(self.store);
        match self.sql {
            Sql::Postgres(pool) => pool.close().await,
            Sql::Sqlite(pool) => pool.close().await,
        }
        match self.place {
            Place::Postgres(name) => drop_postgres(&name).await,
            Place::Sqlite(folder) => folder.close().expect("the scratch folder can be removed"),
        }
    }

    /// Writes an effect with a plain INSERT.
    pub(crate) async fn insert(&self, downstream: &str, key: &str) -> EffectId {
        self.insert_with(downstream, key, &[]).await
    }

    /// Writes an effect with a plain INSERT; `columns` are names and SQL expressions.
    pub(crate) async fn insert_with(
        &self,
        downstream: &str,
        key: &str,
        columns: &[(&str, &str)],
    ) -> EffectId {
        let sql = insert_sql(downstream, key, columns);
        EffectId::new(self.sql.number(&sql).await)
    }

    /// Writes `n` effects with the keys `PREFIX-0` and so on, oldest first.
    pub(crate) async fn insert_many(&self, downstream: &str, prefix: &str, n: usize) -> Vec<EffectId> {
        let mut ids = Vec::with_capacity(n);
        for number in 0..n {
            ids.push(self.insert(downstream, &format!("{prefix}-{number}")).await);
        }
        ids
    }

    /// The effect as people see it.
    pub(crate) async fn status(&self, id: EffectId) -> Status {
        let found = self.store.effect(id).await.expect("status is readable");
        found.unwrap_or_else(|| panic!("effect {id} is not there"))
    }

    /// Its state.
    pub(crate) async fn state(&self, id: EffectId) -> State {
        self.status(id).await.state
    }

    /// Its attempts, oldest first.
    pub(crate) async fn log(&self, id: EffectId) -> Vec<LoggedAttempt> {
        self.store.attempts(id).await.expect("the log is readable")
    }

    /// The newest audit rows, of an effect or of everything.
    pub(crate) async fn audit(&self, effect: Option<EffectId>, limit: u32) -> Vec<Audited> {
        let filter = AuditFilter { effect, limit, ..AuditFilter::default() };
        self.store.audit(&filter).await.expect("the audit is readable")
    }

    /// The database's clock.
    pub(crate) async fn now(&self) -> Timestamp {
        self.store.now().await.expect("the clock is readable")
    }

    /// Moves a stored time of one effect's row in `table` back by `by`.
    pub(crate) async fn shift_back(&self, table: &str, column: &str, id: EffectId, by: Duration) {
        let key = if matches!(table, "queue" | "effects" | "probes") { "id" } else { "effect_id" };
        let moved = self.engine.before(column, by);
        let changed = self
            .sql
            .execute(&format!("UPDATE aftercommit.{table} SET {column} = {moved} WHERE {key} = {id}"))
            .await;
        assert_eq!(changed, 1, "effect {id} has no row in {table}");
    }

    /// Makes the lease of a claim end a second ago.
    pub(crate) async fn end_lease(&self, token: Token) {
        let ended = self.engine.before(self.engine.now(), Duration::from_secs(1));
        let changed = self
            .sql
            .execute(&format!(
                "UPDATE aftercommit.claims SET lease_until = {ended} WHERE token = {}",
                token.get()
            ))
            .await;
        assert_eq!(changed, 1, "no claim has the token {}", token.get());
    }
}

/// The INSERT of [`TestDatabase::insert_with`], with RETURNING id.
pub(crate) fn insert_sql(downstream: &str, key: &str, columns: &[(&str, &str)]) -> String {
    let names: String = columns.iter().map(|(name, _)| format!(", {name}")).collect();
    let values: String = columns.iter().map(|(_, value)| format!(", {value}")).collect();
    format!(
        "INSERT INTO aftercommit.effects (downstream, idempotency_key{names}) VALUES ('{downstream}', '{key}'{values}) RETURNING id"
    )
}

/// A database without a schema, for tests of `migrate`: its URL, and what removes it.
pub(crate) struct Unmigrated {
    /// Its URL.
    pub(crate) url: String,
    /// Raw SQL.
    pub(crate) sql: Sql,
    place: Place,
}

impl Unmigrated {
    /// Makes one.
    pub(crate) async fn fresh(engine: Engine) -> Self {
        let (url, place) = match engine {
            Engine::Postgres => create_postgres(None).await,
            Engine::Sqlite => create_sqlite(),
        };
        let sql = sql(&url).await;
        Self { url, sql, place }
    }

    /// Removes it.
    pub(crate) async fn remove(self) {
        match self.sql {
            Sql::Postgres(pool) => pool.close().await,
            Sql::Sqlite(pool) => pool.close().await,
        }
        match self.place {
            Place::Postgres(name) => drop_postgres(&name).await,
            Place::Sqlite(folder) => folder.close().expect("the scratch folder can be removed"),
        }
    }
}

async fn connect(url: &str, way: Way) -> Arc<dyn Database> {
    let name = "aftercommit-test".to_owned();
    let mut options = Options { max_connections: 4, application_name: name, ..Options::default() };
    let url = match way {
        Way::Direct => url.to_owned(),
        Way::Pooled => {
            options.pooler = Pooler::Transaction { direct: url.to_owned() };
            pooled(url)
        }
    };
    store::connect(&url, &options).await.expect("the store connects")
}

/// The same database through the pgbouncer of the test run.
fn pooled(url: &str) -> String {
    let pooler = std::env::var("AFTERCOMMIT_TEST_PGBOUNCER")
        .expect("AFTERCOMMIT_TEST_PGBOUNCER names no pooler: use ./tests/run, which starts one");
    let mut pooled = url::Url::parse(&pooler).expect("AFTERCOMMIT_TEST_PGBOUNCER is a URL");
    pooled.set_path(url::Url::parse(url).expect("a URL").path());
    pooled.to_string()
}

async fn sql(url: &str) -> Sql {
    if url.starts_with("sqlite:") {
        let options = SqliteConnectOptions::from_str(url)
            .expect("a URL")
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        Sql::Sqlite(SqlitePoolOptions::new().max_connections(8).connect_lazy_with(options))
    } else {
        let options = PgConnectOptions::from_str(url).expect("a URL").application_name("application");
        Sql::Postgres(PgPoolOptions::new().max_connections(16).connect_lazy_with(options))
    }
}

fn create_sqlite() -> (String, Place) {
    let folder = tempfile::Builder::new().prefix("aftercommit-test.").tempdir().expect("a scratch folder");
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    (url, Place::Sqlite(folder))
}

/// The server that tests use; without one they fail, they never skip.
fn server() -> url::Url {
    let url = std::env::var("AFTERCOMMIT_TEST_POSTGRES")
        .expect("AFTERCOMMIT_TEST_POSTGRES names no server: use ./tests/run, which starts one");
    url::Url::parse(&url).expect("AFTERCOMMIT_TEST_POSTGRES is a URL")
}

/// The URL of another database of the server.
fn url_of(database: &str) -> String {
    let mut url = server();
    url.set_path(database);
    url.to_string()
}

async fn administer() -> PgConnection {
    PgConnection::connect(server().as_str()).await.expect("the server of AFTERCOMMIT_TEST_POSTGRES answers")
}

async fn run(connection: &mut PgConnection, sql: String) {
    let text = sql.clone();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{text}\nfailed: {error}"));
}

async fn create_postgres(template: Option<&str>) -> (String, Place) {
    let name = format!("test_{}", uuid::Uuid::new_v4().simple());
    let mut admin = administer().await;
    let template = template.map(|template| format!(" TEMPLATE {template}")).unwrap_or_default();
    run(&mut admin, format!("CREATE DATABASE {name}{template}")).await;
    admin.close().await.expect("the connection closes");
    (url_of(&name), Place::Postgres(name))
}

async fn drop_postgres(name: &str) {
    let mut admin = administer().await;
    run(&mut admin, format!("DROP DATABASE {name} WITH (FORCE)")).await;
    admin.close().await.expect("the connection closes");
}

/// The name of a migrated database that nobody is connected to; made by whoever comes first.
async fn template() -> String {
    let schema = store::migration_sql(server().as_str()).expect("PostgreSQL is known");
    let digest = <sha2::Sha256 as sha2::Digest>::digest(schema.as_bytes());
    let name = format!("aftercommit_template_{}", hex::encode(&digest[..8]));
    let mut admin = administer().await;
    run(&mut admin, format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await;
    let found: Option<i32> = sqlx::query_scalar("SELECT 1 FROM pg_database WHERE datname = $1")
        .bind(&name)
        .fetch_optional(&mut admin)
        .await
        .expect("the databases can be listed");
    if found.is_none() {
        let making = format!("{name}_making");
        run(&mut admin, format!("DROP DATABASE IF EXISTS {making} WITH (FORCE)")).await;
        run(&mut admin, format!("CREATE DATABASE {making}")).await;
        store::migrate(&url_of(&making), Some("test")).await.expect("migrate makes the schema");
        run(&mut admin, format!("ALTER DATABASE {making} RENAME TO {name}")).await;
    }
    // The lock goes with the session.
    admin.close().await.expect("the connection closes");
    name
}
