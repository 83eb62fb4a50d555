//! Where the demo plays: a folder with a database and a configuration, the sinks in this process, the worker in a process
//! of its own that can be killed.

use std::{
    future::IntoFuture as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use aftercommit::store::{Database, Options, connect};
use anyhow::Context as _;
use sqlx::SqliteConnection;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use super::{
    orders,
    sink::{Memory, Sink},
};
use crate::cli::{migrate, open_sqlite};

/// Longer than the demo's timeout: a call with a requested timeout is given up by the worker first.
const SLOW: Duration = Duration::from_secs(2);

/// A fax takes no longer. Longer than the others', so that the worker is still waiting when it is killed.
pub(super) const FAX_TIMEOUT: Duration = Duration::from_secs(3);
/// What the configuration below says of margins.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// For when there is no folder for temporary files, or it cannot be written.
pub(super) const NO_FOLDER: &str =
    "making a temporary file or folder (set TMPDIR to a folder that can be written)";

/// Everything that the story needs.
pub(super) struct Stage {
    /// The folder, kept for the commands that the story prints.
    pub(super) folder: PathBuf,
    /// The database, as a person looks at it.
    pub(super) database: Arc<dyn Database>,
    /// The application's connection.
    pub(super) application: SqliteConnection,
    /// Honours keys.
    pub(super) payments: Arc<Sink>,
    /// Honours keys.
    pub(super) receipts: Arc<Sink>,
    /// Cannot deduplicate.
    pub(super) fax: Arc<Sink>,
    /// The sinks' servers; they end with the stage.
    _servers: JoinSet<std::io::Result<()>>,
}

impl Stage {
    /// Sets it up.
    ///
    /// # Errors
    ///
    /// When the folder, the database or a port cannot be had.
    pub(super) async fn build() -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("aftercommit-demo-").tempdir().context(NO_FOLDER)?.keep();
        let url = url(&folder);
        migrate(&url, Some("demo")).await?;
        let database = connect(&url, &Options::default()).await?;
        let mut application = open_sqlite(&url).await?;
        orders::create(&mut application).await?;
        let payments = Sink::new(Memory::HonoursKeys, "ch", SLOW);
        let receipts = Sink::new(Memory::HonoursKeys, "msg", SLOW);
        let fax = Sink::new(Memory::Forgetful, "fax", SLOW);
        let mut servers = JoinSet::new();
        let mut ports = Vec::new();
        for sink in [&payments, &receipts, &fax] {
            let listener =
                TcpListener::bind("127.0.0.1:0").await.context("listening on the loopback address")?;
            ports.push(listener.local_addr()?.port());
            let app = sink.router();
            servers.spawn(axum::serve(listener, app).into_future());
        }
        let text = configuration(&url, ports[0], ports[1], ports[2]);
        std::fs::write(config_path(&folder), text).context("writing the demo's configuration")?;
        Ok(Self { folder, database, application, payments, receipts, fax, _servers: servers })
    }

    /// The configuration file.
    pub(super) fn config(&self) -> PathBuf {
        config_path(&self.folder)
    }

    /// Starts a worker: this program, in a process of its own.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(super) fn start_worker(&self) -> anyhow::Result<Worker> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("worker.log"))
            .context("opening the worker's log")?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        for (name, _) in std::env::vars_os() {
            // The story must not depend on the settings of whoever watches it.
            if name.to_string_lossy().starts_with("AFTERCOMMIT__") {
                command.env_remove(name);
            }
        }
        command
            .arg("--config")
            .arg(self.config())
            .arg("--database")
            .arg(url(&self.folder))
            .arg("work")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn().context("starting a worker")?;
        Ok(Worker { child })
    }

    /// The last lines of the workers' log, for when something went wrong.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("worker.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

/// A worker's process.
pub(super) struct Worker {
    child: Child,
}

impl Worker {
    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until it ends on its own, which it should not.
    pub(super) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => format!("the worker ended on its own ({status})"),
            Err(problem) => format!("the worker was lost: {problem}"),
        }
    }

    /// kill -9: no handler runs, nothing is written.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("killing the worker")
    }

    /// Asks it to drain, and waits.
    ///
    /// # Errors
    ///
    /// When it does not end in time or not with success.
    pub(super) async fn drain(mut self) -> anyhow::Result<()> {
        let pid =
            self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the worker ended before it was asked to")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("asking the worker to drain")?;
        let status = timeout(Duration::from_secs(10), self.child.wait())
            .await
            .context("the worker did not drain within 10 s")??;
        anyhow::ensure!(status.success(), "the worker drained with {status}");
        Ok(())
    }
}

fn config_path(folder: &Path) -> PathBuf {
    folder.join("aftercommit.toml")
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("demo.db").display())
}

/// Short times, so that the story ends soon; nothing else differs from a real configuration.
fn configuration(url: &str, payments: u16, receipts: u16, fax: u16) -> String {
    format!(
        r#"database = "{url}"
environment = "demo"

[worker]
poll = "100ms"

[downstream.payments]
kind = "http"
base_url = "http://127.0.0.1:{payments}"
timeout = "1s"
lease = "3s"
retry = {{ initial = "200ms", max = "1s" }}
contract = {CONTRACT}

[downstream.receipts]
kind = "http"
base_url = "http://127.0.0.1:{receipts}"
timeout = "1s"
lease = "3s"
retry = {{ initial = "200ms", max = "1s" }}
contract = {CONTRACT}

[downstream.fax]
kind = "http"
base_url = "http://127.0.0.1:{fax}"
timeout = "3s"
lease = "5s"
concurrency = 1
contract = {{ dedupe = "none", on_unknown = "hold", margin = "1s" }}
"#
    )
}

/// What the sinks that honour keys promise.
pub(super) const CONTRACT: &str = r#"{ dedupe = "key", window = "24h", margin = "1s", stores = "any", replay_header = "Idempotent-Replayed", code_at = ["/error/code", "/error/type"], in_progress = ["409:idempotency_key_in_use"], mismatch = ["400:idempotency_error"], stored = ["402"] }"#;

#[cfg(test)]
mod tests {
    use aftercommit_workers::config::{Settings, Sources};

    use super::*;

    #[test]
    fn the_demo_s_configuration_is_one_that_work_takes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), configuration("sqlite:x.db", 1, 2, 3)).unwrap();
        let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
        let served = Settings::load(&sources).unwrap().serve(None).unwrap();
        assert_eq!(served.len(), 3);
        assert!(served.iter().all(|served| served.terms.contract.margin == MARGIN), "{served:?}");
        let fax = served.iter().find(|served| served.name.as_ref() == "fax").unwrap();
        assert_eq!(fax.terms.timeout, FAX_TIMEOUT);
    }
}
