//! The database as a bystander sees it: the checker reads the public views through its own connection, as JSON, so that both
//! databases are read by the same code.

use std::{path::PathBuf, time::Duration};

use serde::de::DeserializeOwned;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection,
    sqlite::SqliteConnectOptions,
};
use tokio::time::timeout;

use super::{
    checker::{Attempt, EffectRow},
    environment,
};

/// A database with the business tables and the outbox.
#[derive(Clone, Debug)]
pub(super) enum Database {
    /// Its URL.
    Postgres(String),
    /// Its file.
    Sqlite(PathBuf),
}

/// Whether a PostgreSQL server takes connections and answers.
pub(super) async fn accepts(url: &str) -> bool {
    let ask = async {
        let mut connection = PgConnection::connect(url).await?;
        connection.execute("SELECT 1").await
    };
    matches!(timeout(Duration::from_secs(5), ask).await, Ok(Ok(_)))
}

impl Database {
    /// A new, empty database on the server of the test run.
    pub(super) async fn on_shared_server(purpose: &str) -> Self {
        Self::on_server(&environment::postgres_url(), purpose).await
    }

    /// A new, empty database on the server that `url` leads to.
    pub(super) async fn on_server(url: &str, purpose: &str) -> Self {
        let name = format!("e2e_{purpose}_{}", uuid::Uuid::new_v4().simple());
        let server = Self::Postgres(url.to_owned());
        server.execute(&format!("CREATE DATABASE {name}")).await;
        let mut url = url::Url::parse(url).expect("the server's URL");
        url.set_path(&name);
        Self::Postgres(url.into())
    }

    /// Drops it, if it is on the server of the test run; a test's own server goes with its folder.
    pub(super) fn drop_from_shared_server(&self) {
        let Self::Postgres(url) = self else { return };
        let server = environment::postgres_url();
        let url = url::Url::parse(url).expect("the database's URL");
        if url::Url::parse(&server).is_ok_and(|server| server.port() == url.port()) {
            let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", url.path().trim_start_matches('/'));
            let mut psql = std::process::Command::new(environment::postgres_program("psql"));
            // Best effort: a test that already failed must not fail again here.
            let _dropped = psql.args(["-X", "-q", &server, "-c", &drop]).output();
        }
    }

    /// As `database = …` names it.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Postgres(url) => url.clone(),
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
        }
    }

    /// The same database through a proxy.
    pub(super) fn url_through(&self, proxy: std::net::SocketAddr) -> String {
        let mut url = url::Url::parse(&self.url()).expect("a PostgreSQL URL");
        url.set_port(Some(proxy.port())).expect("it has a host");
        url.set_host(Some("127.0.0.1")).expect("an address");
        url.into()
    }

    /// `host:port` of the server.
    pub(super) fn server(&self) -> String {
        let url = url::Url::parse(&self.url()).expect("a PostgreSQL URL");
        format!("{}:{}", url.host_str().unwrap_or("127.0.0.1"), url.port().unwrap_or(5432))
    }

    /// Runs statements. They must succeed.
    pub(super) async fn execute(&self, sql: &str) {
        let done = self.try_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    }

    /// Runs statements.
    pub(super) async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        match self {
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await?;
                Ok(connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await?.rows_affected())
            }
            Self::Sqlite(file) => {
                let mut connection = open(file).await?;
                Ok(connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await?.rows_affected())
            }
        }
    }

    /// One text value.
    pub(super) async fn text(&self, sql: &str) -> String {
        let sql = AssertSqlSafe(sql.to_owned());
        let shown = sql.0.clone();
        let text: Result<Option<String>, sqlx::Error> = match self {
            Self::Postgres(url) => match PgConnection::connect(url).await {
                Ok(mut connection) => sqlx::query_scalar(sql).fetch_one(&mut connection).await,
                Err(error) => Err(error),
            },
            Self::Sqlite(file) => match open(file).await {
                Ok(mut connection) => sqlx::query_scalar(sql).fetch_one(&mut connection).await,
                Err(error) => Err(error),
            },
        };
        text.unwrap_or_else(|error| panic!("{shown}\n{error}")).unwrap_or_default()
    }

    /// `columns` (name, expression) of every row of `from`.
    async fn rows<T: DeserializeOwned>(&self, columns: &[(&str, &str)], from: &str) -> Vec<T> {
        let pairs: Vec<String> = columns.iter().map(|(name, value)| format!("'{name}', {value}")).collect();
        let pairs = pairs.join(", ");
        let sql = match self {
            Self::Postgres(_) => {
                format!(
                    "SELECT coalesce(json_agg(json_build_object({pairs})), '[]')::text FROM aftercommit.{from}"
                )
            }
            Self::Sqlite(_) => {
                format!("SELECT json_group_array(json_object({pairs})) FROM aftercommit_{from}")
            }
        };
        serde_json::from_str(&self.text(&sql).await).expect("the columns are as interface.md says")
    }

    /// Every effect, from the public view.
    pub(super) async fn effects(&self) -> Vec<EffectRow> {
        let columns = [
            ("id", "id"),
            ("key", "idempotency_key"),
            ("state", "state"),
            ("attempts", "attempts"),
            ("last_outcome", "last_outcome"),
            ("last_error", "last_error"),
        ];
        self.rows(&columns, "status").await
    }

    /// Every attempt, from the public view.
    pub(super) async fn attempts(&self) -> Vec<Attempt> {
        let (started, ended) = match self {
            Self::Postgres(_) => (
                "(extract(epoch from started_at) * 1000000)::bigint",
                "(extract(epoch from ended_at) * 1000000)::bigint",
            ),
            Self::Sqlite(_) => ("started_at", "ended_at"),
        };
        let columns = [
            ("effect_id", "effect_id"),
            ("attempt", "attempt"),
            ("worker", "worker"),
            ("started", started),
            ("ended", ended),
            ("phase", "phase"),
            ("outcome", "outcome"),
        ];
        self.rows(&columns, "attempt_log").await
    }

    /// The effect of this key; it must exist.
    pub(super) async fn effect(&self, key: &str) -> EffectRow {
        let found = self.effects().await.into_iter().find(|effect| effect.key == key);
        found.unwrap_or_else(|| panic!("no effect has the key {key}"))
    }

    /// The attempts of the effect of this key, oldest first.
    pub(super) async fn attempts_of(&self, key: &str) -> Vec<Attempt> {
        let id = self.effect(key).await.id;
        let mut attempts = self.attempts().await;
        attempts.retain(|attempt| attempt.effect_id == id);
        attempts.sort_by_key(|attempt| attempt.attempt);
        attempts
    }

    /// The numbers of all committed orders.
    pub(super) async fn orders(&self) -> Vec<String> {
        let sql = match self {
            Self::Postgres(_) => "SELECT coalesce(json_agg(id), '[]')::text FROM orders",
            Self::Sqlite(_) => "SELECT json_group_array(id) FROM orders",
        };
        serde_json::from_str(&self.text(sql).await).expect("order numbers are text")
    }
}

async fn open(file: &std::path::Path) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(30));
    SqliteConnection::connect_with(&options).await
}
