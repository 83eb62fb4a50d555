//! A RabbitMQ as a test needs it: the one of the test run, or one of the test's own that may be killed.

use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{FieldTable, ShortString},
};
use rustix::process::{Pid, Signal, getuid, kill_process};
use tokio::process::{Child, Command};

use crate::support::eventually;

/// Longer than it takes to start on a busy machine.
const STARTED: Duration = Duration::from_secs(90);

fn required(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests through ./tests/run"))
}

/// The RabbitMQ of the test run. Many tests use it: names are unique, and what was made is removed.
pub(crate) fn shared_url() -> String {
    required("AFTERCOMMIT_TEST_AMQP")
}

/// A name that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// A connection of the test's own.
pub(crate) struct Rabbit {
    connection: Connection,
    channel: Channel,
}

impl Rabbit {
    pub(crate) async fn at(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await;
        let connection = connection.expect("the test's RabbitMQ answers");
        let channel = connection.create_channel().await.expect("a channel");
        Self { connection, channel }
    }

    pub(crate) async fn queue(&self, name: &str) {
        self.queue_with(name, FieldTable::default()).await;
    }

    pub(crate) async fn queue_with(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(short(name), options, arguments).await.expect("a queue");
    }

    pub(crate) async fn exchange(&self, name: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = self.channel.exchange_declare(short(name), kind, options, FieldTable::default());
        declared.await.expect("an exchange");
    }

    pub(crate) async fn bind(&self, exchange: &str, queue: &str, key: &str) {
        let options = QueueBindOptions::default();
        let bound = self.channel.queue_bind(
            short(queue),
            short(exchange),
            short(key),
            options,
            FieldTable::default(),
        );
        bound.await.expect("a binding");
    }

    pub(crate) async fn delete_queue(&self, name: &str) {
        let deleted = self.channel.queue_delete(short(name), QueueDeleteOptions::default()).await;
        deleted.expect("a queue can be deleted");
    }

    pub(crate) async fn delete_exchange(&self, name: &str) {
        let deleted = self.channel.exchange_delete(short(name), ExchangeDeleteOptions::default()).await;
        deleted.expect("an exchange can be deleted");
    }

    /// Takes every message: their ids.
    pub(crate) async fn take_ids(&self, queue: &str) -> Vec<String> {
        let mut ids = Vec::new();
        loop {
            let options = BasicGetOptions { no_ack: true };
            let got = self.channel.basic_get(short(queue), options).await.expect("messages can be read");
            let Some(message) = got else { return ids };
            let id = message.delivery.properties.message_id().as_ref().map(ToString::to_string);
            ids.push(id.expect("each message has an id"));
        }
    }

    pub(crate) async fn leave(self) {
        self.connection.close(200, "done".into()).await.ok();
    }
}

fn short(text: &str) -> ShortString {
    ShortString::try_new(text).expect("a short name")
}

/// A server of the test's own.
pub(crate) struct OwnRabbit {
    folder: tempfile::TempDir,
    port: u16,
    distribution: u16,
    names: u16,
    name_server: Child,
    server: Option<Child>,
}

impl OwnRabbit {
    pub(crate) async fn start() -> Self {
        let mut own = Self::prepared().await;
        own.restart().await;
        own
    }

    /// One that also speaks TLS, with this certificate and key; and on which port.
    pub(crate) async fn start_with_tls([certificate, key]: [PathBuf; 2]) -> (Self, u16) {
        let (mut own, port) = (Self::prepared().await, free_port());
        let mut settings = format!("listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.verify = verify_none\n");
        for (name, from) in [("certfile", certificate), ("keyfile", key)] {
            let to = own.folder.path().join(name);
            // Another user's server reads it, in a folder that nobody else may enter.
            std::fs::copy(from, &to).expect("the folder is writable");
            std::fs::set_permissions(&to, Permissions::from_mode(0o644)).expect("the file is ours");
            settings += &format!("ssl_options.{name} = {}\n", to.display());
        }
        std::fs::write(own.folder.path().join("settings.conf"), settings).expect("the folder is writable");
        own.restart().await;
        (own, port)
    }

    async fn prepared() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        if let Some((user, group)) = server_user().await {
            chown(folder.path(), Some(user), Some(group)).expect("root gives a folder away");
        }
        std::fs::write(folder.path().join("plugins"), "[].").expect("the folder is writable");
        let (port, distribution, names) = (free_port(), free_port(), free_port());
        let name_server = as_server(Path::new("epmd"), folder.path(), &[])
            .env("ERL_EPMD_PORT", names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("epmd starts");
        Self { folder, port, distribution, names, name_server, server: None }
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Starts it, and waits until it lets somebody in.
    pub(crate) async fn restart(&mut self) {
        self.launch();
        self.answers().await;
    }

    pub(crate) fn launch(&mut self) {
        let program = PathBuf::from(required("AFTERCOMMIT_TEST_RABBITMQ"));
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("the folder is writable");
        let mut command = self.environment(&program, &[]);
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        self.server = Some(command.kill_on_drop(true).spawn().expect("RabbitMQ's program starts"));
    }

    pub(crate) async fn answers(&self) {
        let url = self.url();
        eventually(STARTED, "RabbitMQ lets somebody in", async || {
            let connection = Connection::connect(&url, ConnectionProperties::default()).await.ok()?;
            connection.close(200, "done".into()).await.ok()
        })
        .await;
    }

    /// SIGKILL, the server and the script that started it.
    pub(crate) async fn kill(&mut self) {
        let mut script = self.server.take().expect("it runs");
        for pid in tree(&script) {
            kill_process(pid, Signal::KILL).ok();
        }
        script.wait().await.expect("it ends");
    }

    /// `rabbitmqctl ARGUMENTS…`
    pub(crate) async fn ctl(&self, arguments: &[&str]) {
        let program = PathBuf::from(required("AFTERCOMMIT_TEST_RABBITMQ")).with_file_name("rabbitmqctl");
        let said = self.environment(&program, arguments).output().await.expect("rabbitmqctl starts");
        assert!(said.status.success(), "rabbitmqctl {arguments:?}: {said:?}");
    }

    fn environment(&self, program: &Path, arguments: &[&str]) -> Command {
        let folder = self.folder.path();
        let mut command = as_server(program, folder, arguments);
        command
            .env("HOME", folder)
            .env("RABBITMQ_NODENAME", format!("t{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("ERL_EPMD_PORT", self.names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", folder.join("db"))
            .env("RABBITMQ_LOG_BASE", folder.join("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", folder.join("settings"));
        command
    }
}

impl Drop for OwnRabbit {
    fn drop(&mut self) {
        let children = self.server.iter().chain([&self.name_server]);
        for pid in children.flat_map(tree).collect::<Vec<_>>() {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// The process and its children: the server's program is a script.
fn tree(child: &Child) -> Vec<Pid> {
    let Some(script) = child.id() else { return Vec::new() };
    let children =
        std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap_or_default();
    let pids =
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain(i32::try_from(script).ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// The user and group that a root's servers run as.
async fn server_user() -> Option<(u32, u32)> {
    if !getuid().is_root() {
        return None;
    }
    let number = async |option: &str| {
        let said = Command::new("id").args([option, "rabbitmq"]).output().await.expect("id starts");
        String::from_utf8_lossy(&said.stdout).trim().parse().expect("there is a user rabbitmq")
    };
    Some((number("-u").await, number("-g").await))
}

fn as_server(program: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = if getuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "rabbitmq", "--regid", "rabbitmq", "--init-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
