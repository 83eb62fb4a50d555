//! The shop of every test here: a database with orders and the outbox, a configuration, workers.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use super::{
    checker::{Evidence, Kill},
    clock::now_us,
    database::Database,
    ledger::Ledger,
    ledger_proxy::LedgerProxy,
    processes::{Process, aftercommit, ending, eventually, run_ok},
    servers::{Charge, SECRET},
};

/// A shop with its own folder and database.
pub(super) struct Shop {
    /// Configurations, logs, ledgers.
    pub(super) folder: TempDir,
    /// Orders and effects.
    pub(super) database: Database,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.database.drop_from_shared_server();
    }
}

/// Leases and polls short enough for a test.
pub(super) const WORKER: &str = r#"
[worker]
lease = "3s"
poll = "200ms"
shutdown_grace = "5s"
"#;

/// The payments downstream as the main job has it, at `base_url`.
pub(super) fn payments(base_url: &str) -> String {
    payments_with(base_url, "profile = \"stripe-v1\"")
}

/// The same with another contract: `profile = …` or `contract = …`, and whatever else belongs to the downstream.
pub(super) fn payments_with(base_url: &str, contract: &str) -> String {
    format!(
        r#"
[downstream.payments]
kind = "http"
base_url = "{base_url}"
{contract}
auth = {{ bearer = {{ env = "STRIPE_KEY" }} }}
timeout = "1s"
concurrency = 16
retry = {{ initial = "100ms", factor = 2.0, max = "1s", max_attempts = 1000, max_age = "10d" }}

[downstream.payments.operations.charge]
method = "POST"
path = "/v1/charges"
encoding = "form"
"#
    )
}

impl Shop {
    /// On a database of its own on the test run's PostgreSQL.
    pub(super) async fn on_postgres(purpose: &str) -> Self {
        let shop = Self { folder: folder(), database: Database::on_shared_server(purpose).await };
        shop.database.execute("CREATE TABLE orders (id text PRIMARY KEY, amount bigint NOT NULL)").await;
        shop
    }

    /// On a SQLite file.
    pub(super) async fn on_sqlite() -> Self {
        let folder = folder();
        let database = Database::Sqlite(folder.path().join("shop.db"));
        Self { folder, database }
    }

    /// A file in the shop's folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration for the shop's database and returns its file.
    pub(super) fn configure(&self, name: &str, settings: &str) -> PathBuf {
        self.configure_at(name, &self.database.url(), settings)
    }

    /// The same for a database that is reached by another way.
    pub(super) fn configure_at(&self, name: &str, database: &str, settings: &str) -> PathBuf {
        let file = self.path(&format!("{name}.toml"));
        let text = format!("database = \"{database}\"\nenvironment = \"test\"\n{settings}");
        std::fs::write(&file, text).expect("the folder is writable");
        file
    }

    /// Makes the outbox and registers the configuration's downstreams.
    pub(super) async fn migrate(&self, config: &PathBuf) {
        run_ok(self.command(config).arg("migrate"), Duration::from_secs(60)).await;
    }

    /// The binary with this configuration.
    pub(super) fn command(&self, config: &PathBuf) -> Command {
        let mut command = aftercommit();
        command.arg("--config").arg(config).env("STRIPE_KEY", SECRET).current_dir(self.folder.path());
        command
    }

    /// Starts a worker.
    pub(super) fn worker(&self, name: &str, config: &PathBuf) -> Process {
        let mut command = self.command(config);
        Process::spawn(name, command.arg("work"), &self.path(&format!("{name}.log")))
    }

    /// Lets workers work until nothing is due or in flight any more.
    pub(super) async fn work_until_idle(&self, config: &PathBuf) {
        run_ok(self.command(config).args(["work", "--until-idle"]), Duration::from_secs(60)).await;
    }

    /// An order and its charge, as `examples/orders.sql` writes them, by one multi-statement query.
    pub(super) async fn order(&self, order: &str) {
        self.database.execute(&self.order_sql(order, "COMMIT")).await;
    }

    /// The transaction of an order, with its last word.
    pub(super) fn order_sql(&self, order: &str, last_word: &str) -> String {
        let (effects, begin) = match self.database {
            Database::Postgres(_) => ("aftercommit.effects", "BEGIN"),
            Database::Sqlite(_) => ("aftercommit_effects", "BEGIN IMMEDIATE"),
        };
        let payload = format!(
            r#"{{"amount":1500,"currency":"jpy","source":"tok_visa","metadata":{{"order":"{order}"}}}}"#
        );
        format!(
            "{begin}; INSERT INTO orders (id, amount) VALUES ('{order}', 1500);
             INSERT INTO {effects} (downstream, operation, idempotency_key, payload)
             VALUES ('payments', 'charge', 'order-{order}/charge', '{payload}'); {last_word};"
        )
    }

    /// Waits until the effect of this key is in one of `states`, and returns its state.
    pub(super) async fn settled(&self, key: &str, states: &[&str], within: Duration) -> String {
        let what = format!("{key} is {states:?}; logs are in the message below when a worker ended");
        let mut state = String::new();
        eventually(&what, within, async || {
            state = self.database.effect(key).await.state;
            states.contains(&state.as_str())
        })
        .await;
        state
    }

    /// How many effects are in none of `states`.
    pub(super) async fn outside(&self, states: &[&str]) -> usize {
        self.database.effects().await.iter().filter(|effect| !states.contains(&effect.state.as_str())).count()
    }

    /// Everything the checker may know.
    pub(super) async fn evidence(&self, ledger: &Ledger, charges: Vec<Charge>) -> Evidence {
        Evidence {
            orders: self.database.orders().await,
            rolled_back: Vec::new(),
            effects: self.database.effects().await,
            attempts: self.database.attempts().await,
            calls: ledger.calls(),
            charges,
            kills: Vec::new(),
        }
    }
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("the temporary folder is writable")
}

/// Workers that are killed and started again.
pub(super) struct Fleet<'a> {
    shop: &'a Shop,
    config: PathBuf,
    workers: Vec<Process>,
    /// Which workers were killed, and when.
    pub(super) kills: Vec<Kill>,
    /// Kills that hit a worker while a call of its was open at the proxy.
    pub(super) kills_with_open_call: usize,
}

impl<'a> Fleet<'a> {
    /// Starts `size` workers.
    pub(super) fn start(shop: &'a Shop, config: &PathBuf, size: usize) -> Self {
        let workers = (0..size).map(|n| shop.worker(&format!("worker-{n}"), config)).collect();
        Self { shop, config: config.clone(), workers, kills: Vec::new(), kills_with_open_call: 0 }
    }

    /// Kills worker `n` and starts another in its place. The kernel says which of the proxy's open calls were its own; it is
    /// stopped first, so that it cannot finish them meanwhile.
    pub(super) async fn kill(&mut self, n: usize, proxy: Option<&LedgerProxy>) {
        let n = n % self.workers.len();
        let worker = &mut self.workers[n];
        worker.signal(Signal::STOP);
        let open = proxy.is_some_and(|proxy| proxy.has_open_call(&worker.ports()));
        self.kills_with_open_call += usize::from(open);
        if let Some(status) = worker.has_ended() {
            panic!("{} ended by itself: {}\n{}", worker.name, ending(status), worker.output());
        }
        self.kills.push(Kill { at: now_us(), pid: worker.pid() });
        worker.kill().await;
        self.workers[n] = self.shop.worker(&format!("worker-{n}"), &self.config);
    }

    /// Drains all workers; each must end well.
    pub(super) async fn stop(mut self) {
        for worker in &self.workers {
            worker.signal(Signal::TERM);
        }
        for worker in &mut self.workers {
            let status = worker.ended(Duration::from_secs(20)).await;
            assert!(status.success(), "{}: {}\n{}", worker.name, ending(status), worker.output());
        }
    }

    /// What the workers wrote, for a message.
    pub(super) fn output(&self) -> String {
        self.workers.iter().map(|worker| format!("== {}\n{}\n", worker.name, worker.output())).collect()
    }
}
