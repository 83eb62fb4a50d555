//! Servers of a test's own: a payment server that nobody here wrote, a scripted one that we did, and a PostgreSQL that may be
//! killed.

use std::{
    collections::BTreeMap,
    io::{Read as _, Seek as _, SeekFrom},
    net::SocketAddr,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
    time::sleep,
};

use super::{
    environment,
    ledger::{Fate, Ledger},
    processes::{Process, eventually, free_port, listening, run_ok},
    wire::{Message, Reader, get},
};

/// stripe-stateful-mock: a payment server with Stripe's idempotency, written by others.
pub(super) struct PaymentServer {
    /// Where it listens.
    pub(super) address: String,
    _process: Process,
    // Given back after the process has ended: fields are dropped in order.
    _lock: Option<std::fs::File>,
}

/// The secret that the workers authenticate with; a canary, too: it must appear in no output.
pub(super) const SECRET: &str = "sk_test_e2eCanary0123456789";

/// A charge, as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// The server's id.
    pub(super) id: String,
    /// `metadata.order`.
    pub(super) order: String,
    /// Whether money moved.
    pub(super) paid: bool,
}

impl PaymentServer {
    /// Starts one with its log in `folder`.
    pub(super) async fn start(folder: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new("node");
        command.arg(environment::stripe_mock()).env("PORT", port.to_string()).env("LOG_LEVEL", "silent");
        let process = Process::spawn("stripe-stateful-mock", &mut command, &folder.join("stripe.log"));
        let address = format!("127.0.0.1:{port}");
        listening(&address, "stripe-stateful-mock listens").await;
        Self { address, _process: process, _lock: None }
    }

    /// localstripe instead: its charges look the same, and it ignores the idempotency key. One per machine, since it writes a
    /// fixed file: it is waited for until another test's has ended.
    pub(super) async fn start_localstripe(folder: &Path) -> Self {
        let lock = std::env::temp_dir().join("aftercommit-localstripe.lock");
        let lock = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::create(lock).expect("the temporary folder is writable");
            file.lock().expect("a file can be locked");
            file
        });
        let lock = lock.await.expect("the lock is waited for");
        let port = free_port();
        let mut command = Command::new(environment::localstripe());
        command.args(["--from-scratch", "--port", &port.to_string()]);
        let process = Process::spawn("localstripe", &mut command, &folder.join("localstripe.log"));
        let address = format!("127.0.0.1:{port}");
        listening(&address, "localstripe listens; see localstripe.log").await;
        Self { address, _process: process, _lock: Some(lock) }
    }

    /// Every charge, page by page, as the server lists them.
    pub(super) async fn charges(&self) -> Vec<Charge> {
        let mut charges: Vec<Charge> = Vec::new();
        loop {
            let after = charges.last().map(|charge| format!("&starting_after={}", charge.id));
            let path = format!("/v1/charges?limit=100{}", after.unwrap_or_default());
            let page = get(&self.address, &path, Some(&format!("Bearer {SECRET}"))).await.expect("a page");
            let page: Value = serde_json::from_slice(&page.body).expect("the list is JSON");
            for charge in page["data"].as_array().expect("a list of charges") {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                charges.push(Charge {
                    id: text(&charge["id"]),
                    order: text(&charge["metadata"]["order"]),
                    paid: charge["paid"] == true,
                });
            }
            if page["has_more"] != true {
                return charges;
            }
        }
    }
}

/// What the scripted server does with one call.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// Whether the call is applied, before anything is answered.
    pub(super) applies: bool,
    /// How long it takes.
    pub(super) after: Duration,
    /// The answer's status.
    pub(super) status: u16,
    /// More headers.
    pub(super) headers: &'static str,
    /// The answer's body.
    pub(super) body: &'static str,
}

impl Reply {
    /// Applied and said so.
    pub(super) const DONE: Self =
        Self { applies: true, after: Duration::ZERO, status: 200, headers: "", body: "{\"id\":\"ch_1\"}" };

    /// The same, `after` so long.
    pub(super) const fn done_after(after: Duration) -> Self {
        Self { after, ..Self::DONE }
    }
}

type Script = dyn Fn(&Message, u32) -> Reply + Send + Sync;

struct Scripted {
    script: Box<Script>,
    ledger: Ledger,
    // Calls and applications by key: connection tasks count, tests read.
    calls: Mutex<BTreeMap<String, (u32, u32)>>,
}

/// A server that answers as a test says, and keeps a ledger. It deduplicates nothing.
pub(super) struct ScriptedServer {
    /// Where it listens.
    pub(super) address: SocketAddr,
    state: Arc<Scripted>,
    _server: JoinSet<()>,
}

impl ScriptedServer {
    /// Starts one; `script` is given a call and which call of its key it is, from 1.
    pub(super) async fn start(
        folder: &Path,
        script: impl Fn(&Message, u32) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let ledger = Ledger::create(&folder.join(format!("scripted-{}.ndjson", address.port())));
        let state = Arc::new(Scripted { script: Box::new(script), ledger, calls: Mutex::default() });
        let mut server = JoinSet::new();
        let shared = Arc::clone(&state);
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer(stream, Arc::clone(&shared)));
            }
        });
        Self { address, state, _server: server }
    }

    /// `http://127.0.0.1:port`.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }

    /// How often `key` was asked for, and how often it was applied.
    pub(super) fn counts(&self, key: &str) -> (u32, u32) {
        self.all_counts().get(key).copied().unwrap_or_default()
    }

    /// [`Self::counts`] of every key.
    pub(super) fn all_counts(&self) -> BTreeMap<String, (u32, u32)> {
        self.state.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(mut stream: TcpStream, state: Arc<Scripted>) {
    while let Ok(Some(request)) = Reader::new(&mut stream).message().await {
        let seq = state.ledger.seen(&request).await;
        let reply = {
            let key = request.header("idempotency-key").unwrap_or_default().to_owned();
            let mut calls = state.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let count = calls.entry(key).or_default();
            count.0 += 1;
            let reply = (state.script)(&request, count.0);
            count.1 += u32::from(reply.applies);
            reply
        };
        sleep(reply.after).await;
        let head = format!(
            "HTTP/1.1 {} Scripted\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n",
            reply.status,
            reply.body.len(),
            reply.headers
        );
        let written = stream.write_all(format!("{head}{}", reply.body).as_bytes()).await;
        state.ledger.ended(seq, if written.is_ok() { Fate::Answered } else { Fate::Broken });
        if written.is_err() {
            return;
        }
    }
}

/// A PostgreSQL of the test's own, with durable commits, that may be killed and started again.
pub(crate) struct PostgresServer {
    /// Where it listens.
    pub(super) port: u16,
    folder: PathBuf,
    settings: &'static [&'static str],
    process: Option<Process>,
}

impl PostgresServer {
    /// Makes a cluster in `folder` and starts it.
    pub(super) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// The same, with settings of its own: `shared_buffers=4GB`.
    pub(crate) async fn start_with(folder: &Path, settings: &'static [&'static str]) -> Self {
        let folder = folder.join("postgres");
        std::fs::create_dir(&folder).expect("the folder is new");
        give_away(&folder).await;
        let mut initdb = as_server_user("initdb");
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-D"]);
        run_ok(initdb.arg(folder.join("data")), Duration::from_secs(60)).await;
        let mut server = Self { port: free_port(), folder, settings, process: None };
        server.restart().await;
        server
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// What it has logged since it was asked for it last, at `place`.
    pub(crate) fn logged_since(&self, place: &mut u64) -> String {
        let mut log = std::fs::File::open(self.folder.with_extension("log")).expect("it was started");
        log.seek(SeekFrom::Start(*place)).expect("a file can be read from anywhere");
        let mut text = Vec::new();
        log.read_to_end(&mut text).expect("its log can be read");
        *place += u64::try_from(text.len()).expect("a file's length");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Kills the server, as a power cut would.
    pub(super) async fn kill(&mut self) {
        let pid_file =
            std::fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("it is running");
        let pid = pid_file.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), Signal::KILL).expect("it is ours");
        self.process.take().expect("it was started").ended(Duration::from_secs(10)).await;
    }

    /// Starts the server and returns once it accepts connections. A killed server's last children may still hold its memory:
    /// then it is started again.
    pub(super) async fn restart(&mut self) {
        let mut process = self.spawn();
        let url = self.url("postgres");
        let what = format!("PostgreSQL accepts connections; see {}", process.log.display());
        eventually(&what, Duration::from_secs(60), async || {
            if process.has_ended().is_some() {
                process = self.spawn();
            }
            super::database::accepts(&url).await
        })
        .await;
        self.process = Some(process);
    }

    fn spawn(&self) -> Process {
        let mut command = as_server_user("postgres");
        let sockets = format!("unix_socket_directories={}", self.folder.display());
        command.arg("-D").arg(self.folder.join("data")).args(["-p", &self.port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", &sockets, "-c", "max_connections=200"]);
        self.settings.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        Process::spawn("postgres", &mut command, &self.folder.with_extension("log"))
    }
}

/// PostgreSQL refuses to run as root: then it runs as `postgres`. `setpriv` becomes the server, so its pid is the server's.
fn as_server_user(program: &str) -> Command {
    let program = environment::postgres_program(program);
    if !getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"]).arg(program);
    command
}

/// Lets the server's user into a test's folder, which was made for the test's user alone.
async fn give_away(folder: &Path) {
    if !getuid().is_root() {
        return;
    }
    let id = async |flag: &str| {
        let out = run_ok(Command::new("id").args([flag, "postgres"]), Duration::from_secs(10)).await;
        out.trim().parse::<u32>().expect("a number")
    };
    let parent = folder.parent().expect("inside the test's folder");
    std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    chown(folder, Some(id("-u").await), Some(id("-g").await)).expect("root may give it away");
}
