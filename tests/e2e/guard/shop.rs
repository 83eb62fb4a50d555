//! A shop for a test: its tables, its servers, their journals, and the evidence at the end.

use std::{
    cell::Cell, collections::BTreeMap, fs, net::SocketAddr, path::PathBuf, str::FromStr as _, sync::Arc,
    time::Duration,
};

use aftercommit::store::Database;
use rustix::process::Signal;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, sqlite::SqliteConnectOptions};
use tokio::{net::TcpStream, process::Command};

use super::{
    super::processes::{Process, eventually},
    client::{Ask, Exchange, TENANT, send},
    evidence::{Effect, Evidence, Order},
    gate::Step,
    server::{Kind, LISTENS, NAME, Setting, VARIABLE},
};
use crate::support::{Engine, Sql, TestDatabase, Worker, key_terms, registered};

const SOON: Duration = Duration::from_secs(30);

/// The body limit of the servers: small, so that a test need not send much to pass it.
pub(super) const REQUEST_LIMIT: usize = 4096;

/// The tables that the handlers write. Nothing in them forbids two orders of one key: the guard must.
const TABLES: &str = "
CREATE TABLE orders (id {number}, scope text NOT NULL, request_key text NOT NULL, amount bigint NOT NULL);
CREATE TABLE remembered (scope text NOT NULL, request_key text NOT NULL, answer text NOT NULL, PRIMARY KEY (scope, request_key));";

/// A shop on a database.
pub(super) struct Shop {
    pub(super) url: String,
    pooled: bool,
    pub(super) sql: Sql,
    folder: tempfile::TempDir,
    started: Cell<u32>,
}

/// A server process of the shop.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    process: Process,
    journal: PathBuf,
}

impl Shop {
    /// Opens one on the test's database.
    pub(super) async fn open(db: &TestDatabase) -> Self {
        let shop = Self::on(&db.url, &db.sql, &db.store).await;
        match db.pooler_url() {
            Some(url) => Self { url, pooled: true, ..shop },
            None => shop,
        }
    }

    /// Opens one on a migrated database.
    pub(super) async fn on(url: &str, sql: &Sql, store: &Arc<dyn Database>) -> Self {
        let number = match sql.engine() {
            Engine::Postgres => "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            Engine::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
        };
        sql.execute(&TABLES.replace("{number}", number)).await;
        Worker::start(store, "registrar", vec![registered("payments", key_terms())]).await;
        let folder =
            tempfile::Builder::new().prefix("aftercommit-guard.").tempdir().expect("a scratch folder");
        Self { url: url.to_owned(), pooled: false, sql: sql.clone(), folder, started: Cell::new(0) }
    }

    /// Starts a server, and returns once it listens.
    pub(super) async fn server(&self, change: impl FnOnce(&mut Setting)) -> Server {
        let number = self.started.get() + 1;
        self.started.set(number);
        let journal = self.folder.path().join(format!("server-{number}.journal"));
        let mut setting = Setting {
            url: self.url.clone(),
            pooled: self.pooled,
            journal: journal.clone(),
            kind: Kind::Guarded,
            stop_after: None,
            connections: 8,
            acquire_ms: 20_000,
            busy_ms: 20_000,
            request_limit: REQUEST_LIMIT,
        };
        change(&mut setting);
        fs::write(&journal, "").expect("the folder is writable");
        let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
        command.args([NAME, "--exact", "--ignored", "--nocapture"]);
        command.env(VARIABLE, serde_json::to_string(&setting).expect("JSON"));
        let log = journal.with_extension("log");
        let mut process = Process::spawn(&format!("server {number}"), &mut command, &log);
        let mut address = None;
        eventually("the server says where it listens", SOON, async || {
            let said = process.output();
            let ended = process.has_ended();
            assert!(ended.is_none(), "the server ended: {ended:?}\n{said}");
            let at = said.split_once(LISTENS).and_then(|(_, rest)| rest.split_once(".\n"));
            address = at.and_then(|(address, _)| address.parse().ok());
            address.is_some()
        })
        .await;
        Server { address: address.expect("it was said"), process, journal }
    }

    /// What all servers wrote into their journals.
    pub(super) fn journal(&self) -> Vec<Vec<String>> {
        let files = fs::read_dir(self.folder.path()).expect("our own folder");
        let journals = files
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|e| e == "journal"));
        journals.flat_map(|path| lines(&path)).collect()
    }

    /// How often the handler ran for this key, committed or not.
    pub(super) fn runs(&self, key: &str) -> usize {
        self.journal()
            .iter()
            .filter(|words| words[0] == "ran" && words[1] == TENANT && words[2] == key)
            .count()
    }

    /// How often the handler ran, by (scope, key).
    pub(super) fn all_runs(&self) -> BTreeMap<(String, String), usize> {
        let mut runs = BTreeMap::new();
        for words in self.journal().into_iter().filter(|words| words[0] == "ran") {
            *runs.entry((words[1].clone(), words[2].clone())).or_default() += 1;
        }
        runs
    }

    /// Committed orders of this key.
    pub(super) async fn orders(&self, key: &str) -> i64 {
        self.sql.number(&format!("SELECT count(*) FROM orders WHERE request_key = '{key}'")).await
    }

    /// Transactions of servers that are open now.
    pub(super) async fn open_transactions(&self) -> usize {
        match self.sql.engine() {
            Engine::Postgres => {
                // Neither the test's own sessions nor the store's; a pooler need not name the application.
                let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                            AND application_name NOT IN ('application', 'aftercommit-test') AND xact_start IS NOT NULL";
                usize::try_from(self.sql.number(open).await).expect("a count")
            }
            Engine::Sqlite => {
                // The one writer: whether there is one.
                let options =
                    SqliteConnectOptions::from_str(&self.url).expect("a URL").busy_timeout(Duration::ZERO);
                let mut connection = options.connect().await.expect("the file opens");
                let taken = connection.execute("BEGIN IMMEDIATE").await.is_err();
                connection.close().await.expect("it closes, and rolls back");
                usize::from(taken)
            }
        }
    }

    /// The evidence, once the servers are idle.
    pub(super) async fn evidence(&self, exchanges: Vec<Exchange>) -> Evidence {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut strays = self.open_transactions().await;
        while strays > 0 && std::time::Instant::now() < deadline {
            // A request that was given up may still be ending: nothing tells when it has.
            tokio::time::sleep(Duration::from_millis(20)).await;
            strays = self.open_transactions().await;
        }
        let text = |row: &BTreeMap<String, Option<String>>, column: &str| {
            row.get(column).cloned().flatten().unwrap_or_else(|| panic!("{column} is null in {row:?}"))
        };
        let number = |row: &_, column| text(row, column).parse().expect("a number");
        let orders = self.sql.rows("SELECT id, scope, request_key FROM orders").await;
        let order =
            |row| Order { id: number(row, "id"), scope: text(row, "scope"), key: text(row, "request_key") };
        let of = match self.sql.engine() {
            Engine::Postgres => "metadata->>'order'",
            Engine::Sqlite => "json_extract(metadata, '$.order')",
        };
        let effects =
            self.sql.rows(&format!("SELECT idempotency_key, {of} AS number FROM aftercommit.effects")).await;
        let effect = |row| Effect { key: text(row, "idempotency_key"), order: number(row, "number") };
        Evidence {
            exchanges,
            orders: orders.iter().map(order).collect(),
            effects: effects.iter().map(effect).collect(),
            strays,
        }
    }

    /// Waits until the handler holds the request of this key open.
    pub(super) async fn holds(&self, key: &str) {
        eventually("the handler holds the request", SOON, async || {
            self.journal().iter().any(|words| words[0] == "held" && words[2] == key)
        })
        .await;
    }
}

impl Server {
    /// Waits until it has stopped itself after `step`.
    pub(super) async fn stopped_after(&mut self, step: Step) {
        let wanted = vec!["stopped".to_owned(), format!("{step:?}")];
        let what = format!("the server stops after {step:?}; see {}", self.process.log.display());
        eventually(&what, SOON, async || lines(&self.journal).contains(&wanted) && self.is_stopped()).await;
    }

    /// State `T` in the kernel's own words: every thread of it stands still.
    fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.pid()));
        tasks.into_iter().flatten().flatten().all(|task| {
            let said = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            said.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    pub(super) async fn kill_when_stopped(&mut self) {
        eventually("the server stops somewhere", SOON, async || {
            lines(&self.journal).iter().any(|words| words[0] == "stopped") && self.is_stopped()
        })
        .await;
        self.kill().await;
    }

    /// SIGKILL.
    pub(super) async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Lets a stopped server go on.
    pub(super) fn go_on(&self) {
        fs::write(self.journal.with_extension("go"), "").expect("the folder is writable");
        self.process.signal(Signal::CONT);
    }

    /// Lets one held request go on.
    pub(super) async fn release(&self) {
        let mut line = super::client::Line::open(self.address).await.expect("the server listens");
        line.say("POST /release HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n")
            .await
            .expect("it reads");
        assert_eq!(line.hear().await.map(|answer| answer.status), Some(200));
    }

    /// Fails if the process has ended: a server must survive whatever it is sent.
    pub(super) async fn is_alive(&mut self) {
        let ended = self.process.has_ended();
        assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.process.output());
        assert!(TcpStream::connect(self.address).await.is_ok(), "the server does not listen any more");
        let said = self.process.output();
        assert!(!said.contains("panicked"), "a server panicked:\n{said}");
    }
}

fn lines(journal: &std::path::Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(journal).expect("it was made with the server");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Sends all requests at the same time, in turn to each server.
pub(super) async fn together(servers: &[Server], asks: Vec<Ask>) -> Vec<Exchange> {
    let sending = asks.iter().enumerate().map(|(n, ask)| send(servers[n % servers.len()].address, ask));
    futures_util::future::join_all(sending).await
}
