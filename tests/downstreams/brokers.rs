//! Brokers of a test's own, a proxy that loses one reply, and attempts at them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    EffectId,
    clock::Timestamp,
    downstream::{Attempt, Closed, Downstream, Gate, Served},
    effect::Effect,
    outcome::Outcome,
};
use aftercommit_workers::config::{Settings, Sources};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinSet,
};

use super::certificates::Certificates;
use crate::support::eventually;

/// Longer than an exchange takes on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// A variable that tests/services.sh exports.
pub(super) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with ./tests/run"))
}

/// A name that no other test has.
pub(super) fn own_name(word: &str) -> String {
    format!("{word}-{}", uuid::Uuid::new_v4().simple())
}

/// The downstream `shop`, whose table is `toml`; `SECRET` is in its environment.
pub(super) fn served(toml: &str, secret: &str) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!("database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\n{toml}");
    std::fs::write(&file, text).expect("the folder is ours");
    let env = vec![("SECRET".to_owned(), secret.to_owned())];
    let settings = Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
        .unwrap_or_else(|error| panic!("the test's configuration: {error}"));
    settings.serve(None).expect("the secrets are there").remove(0)
}

/// An effect with a small payload.
pub(super) fn effect(key: &str) -> Effect {
    Effect {
        payload: Some(r#"{"amount":1500}"#.to_owned()),
        ..Effect::new(EffectId::new(1), "shop", key, Timestamp::from_micros(0))
    }
}

struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}

/// One attempt.
pub(super) async fn deliver(downstream: &dyn Downstream, effect: Effect, timeout: Duration) -> Outcome {
    let key = effect.key.clone();
    let attempt = Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Open) };
    downstream.deliver(&attempt).await
}

/// A server of the test's own, in a folder of its own, that may be killed and started again. It dies with the test.
pub(super) struct Server {
    pub(super) port: u16,
    /// Where it speaks TLS, if it speaks it on a port of its own.
    pub(super) tls_port: u16,
    pub(super) folder: TempDir,
    command: fn(&Self) -> Command,
    more: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// A NATS server with JetStream; `config` is more of its configuration file.
    pub(super) async fn nats(config: &str) -> Self {
        let mut server = Self::new(|server| {
            let mut command = Command::new(variable("AFTERCOMMIT_TEST_NATS_SERVER"));
            command.arg("-c").arg(server.folder.path().join("conf")).args(["-a", "127.0.0.1"]);
            command.args(["-p", &server.port.to_string()]);
            command
        });
        let store = server.folder.path().join("store");
        let text = format!("jetstream {{ store_dir: {:?} }}\n{config}\n", store.display().to_string());
        std::fs::write(server.folder.path().join("conf"), text).expect("the folder is ours");
        server.start().await;
        server
    }

    /// A Redis; `more` are its options.
    pub(super) async fn redis(more: &[&str]) -> Self {
        let mut server = Self::new(|server| {
            let mut command = Command::new("redis-server");
            command.args(["--port", &server.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
            command.arg(server.folder.path()).args(&server.more);
            command
        });
        server.more = more.iter().map(|word| (*word).to_owned()).collect();
        server.start().await;
        server
    }

    /// A Redis that speaks TLS on a port of its own, at 127.0.0.1 and 127.0.0.2.
    pub(super) async fn redis_with_tls(certificates: &Certificates) -> Self {
        let mut server = Self::new(|server| {
            let mut command = Command::new("redis-server");
            let (port, tls_port) = (server.port.to_string(), server.tls_port.to_string());
            command.args(["--port", &port, "--tls-port", &tls_port, "--bind", "127.0.0.1", "127.0.0.2"]);
            command.args(["--tls-auth-clients", "no", "--save", "", "--dir"]);
            command.arg(server.folder.path()).args(&server.more);
            command
        });
        let [certificate, key] = certificates.server().map(|path| path.display().to_string());
        server.more = ["--tls-cert-file", &certificate, "--tls-key-file", &key].map(str::to_owned).into();
        server.start().await;
        server
    }

    fn new(command: fn(&Self) -> Command) -> Self {
        let free = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [port, tls_port] = free.map(|listener| listener.local_addr().expect("it is bound").port());
        let folder = tempfile::Builder::new().prefix("aftercommit-broker-").tempdir().expect("a folder");
        Self { port, tls_port, folder, command, more: Vec::new(), child: None }
    }

    pub(super) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it, and waits until somebody listens.
    pub(super) async fn start(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("the folder is ours");
        let mut command = (self.command)(self);
        command.stdout(log.try_clone().expect("a second handle")).stderr(log).stdin(Stdio::null());
        self.child = Some(command.kill_on_drop(true).spawn().expect("the broker's program is there"));
        let what = format!("the broker listens; see {}", self.folder.path().join("log").display());
        eventually(LONG, &what, async || TcpStream::connect(self.place()).await.ok().map(drop)).await;
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it was started");
        child.kill().await.expect("it is ours");
    }
}

/// A proxy in front of a server, that can lose one reply: the server carried the request out, and nobody hears of it.
pub(super) struct Proxy {
    pub(super) place: SocketAddr,
    needle: Arc<Mutex<Option<&'static [u8]>>>,
    swallowed: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(super) async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let place = listener.local_addr().expect("it is bound");
        let needle = Arc::new(Mutex::new(None));
        let swallowed = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let (trap, count) = (Arc::clone(&needle), Arc::clone(&swallowed));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, trap, count) = (upstream.clone(), Arc::clone(&trap), Arc::clone(&count));
                connections.spawn(async move {
                    let server = TcpStream::connect(upstream).await.expect("the server is there");
                    forward(client, server, &trap, &count).await;
                });
            }
        });
        Self { place, needle, swallowed, _tasks: tasks }
    }

    /// The next reply that holds `needle` is swallowed, and its connection reset.
    pub(super) fn swallow(&self, needle: &'static [u8]) {
        *self.needle.lock().expect("nobody panics with it") = Some(needle);
    }

    pub(super) fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::SeqCst)
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    trap: &Mutex<Option<&'static [u8]>>,
    swallowed: &AtomicU64,
) {
    client.set_zero_linger().expect("it is open");
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let upwards = tokio::io::copy(&mut from_client, &mut to_server);
    let downwards = async {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let read = from_server.read(&mut piece).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            let reply = &piece[..read];
            {
                let mut trap = trap.lock().expect("nobody panics with it");
                let caught = |needle: &[u8]| reply.windows(needle.len()).any(|window| window == needle);
                if trap.is_some_and(caught) {
                    *trap = None;
                    swallowed.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
            if to_client.write_all(reply).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ended = upwards => {}
        () = downwards => {}
    }
}
