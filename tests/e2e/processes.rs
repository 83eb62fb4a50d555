//! Real processes: started with their own files, killed by their own pids, waited for within bounds, gone when a test ends.

use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    process::{Child, ChildStdin, Command},
    time::{sleep, timeout},
};

/// A child with a log. It is killed when dropped.
pub(crate) struct Process {
    /// For messages.
    pub(super) name: String,
    /// Standard output and standard error.
    pub(super) log: PathBuf,
    child: Child,
    pid: Pid,
}

impl Process {
    /// Starts `command`, its output appended to `log`.
    pub(crate) fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).expect("the log's folder is writable");
        let err = out.try_clone().expect("a second handle");
        command.stdin(Stdio::piped()).stdout(out).stderr(err).kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Self { name: name.to_owned(), log: log.to_owned(), child, pid: pid.expect("it was just started") }
    }

    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its standard input; once.
    pub(super) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("asked for once")
    }

    /// Sends a signal. A process that has ended already is no error: the caller learns of it when it waits.
    pub(crate) fn signal(&self, signal: Signal) {
        let _gone = kill_process(self.pid, signal);
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended(Duration::from_secs(10)).await;
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self, within: Duration) -> ExitStatus {
        match timeout(within, self.child.wait()).await {
            Ok(status) => status.expect("our own child can be waited for"),
            Err(_late) => {
                panic!("{} is still running after {within:?}; its log:\n{}", self.name, self.output())
            }
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child can be asked")
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("its log exists")).into_owned()
    }

    /// Local ports of its TCP connections, as the kernel knows them: which of a proxy's callers is this process.
    pub(super) fn ports(&self) -> HashSet<u16> {
        let sockets: HashSet<String> = fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .into_iter()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
            .collect();
        let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        table
            .lines()
            .skip(1)
            .map(fields)
            .filter(|field| field.get(9).is_some_and(|inode| sockets.contains(inode)))
            .filter_map(|field| u16::from_str_radix(field[1].split(':').nth(1)?, 16).ok())
            .collect()
    }
}

/// The binary under test.
pub(crate) fn aftercommit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aftercommit"));
    for variable in ["DATABASE_URL", "AFTERCOMMIT_CONFIG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command to its end and returns what it printed to standard output and to standard error.
pub(crate) async fn run(command: &mut Command, within: Duration) -> (ExitStatus, String, String) {
    let shown = format!("{:?}", command.as_std());
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(within, output)
        .await
        .unwrap_or_else(|_late| panic!("still running after {within:?}: {shown}"))
        .unwrap_or_else(|error| panic!("{shown} does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status, text(&output.stdout), text(&output.stderr))
}

/// [`run`], and the command must succeed.
pub(crate) async fn run_ok(command: &mut Command, within: Duration) -> String {
    let (status, out, err) = run(command, within).await;
    assert!(status.success(), "{:?} ended with {status}\n{out}\n{err}", command.as_std());
    out
}

/// How a process ended, in a word.
pub(super) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {signal:?}"),
    }
}

/// Waits until `condition` holds; the message says what to look at when it never does.
pub(super) async fn eventually<F>(what: &str, within: Duration, mut condition: F)
where
    F: AsyncFnMut() -> bool,
{
    let deadline = Instant::now() + within;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        // Nothing tells us when a process or a database gets there: looking is the only event.
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until something listens at `address`.
pub(super) async fn listening(address: &str, what: &str) {
    eventually(what, Duration::from_secs(30), async || TcpStream::connect(address).await.is_ok()).await;
}

/// A port that was free a moment ago.
pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// One psql for a whole run: the application, as far as the database can tell.
pub(super) struct Psql {
    process: Process,
    stdin: ChildStdin,
}

impl Psql {
    /// Connects.
    pub(super) fn open(url: &str, log: &Path) -> Self {
        let mut command = Command::new(super::environment::postgres_program("psql"));
        command
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url])
            .env("PGOPTIONS", "-c client_min_messages=warning");
        let mut process = Process::spawn("psql", &mut command, log);
        let stdin = process.stdin();
        Self { process, stdin }
    }

    /// Has it run `sql`; nobody waits for the answer.
    pub(super) async fn feed(&mut self, sql: &str) {
        let fed = self.stdin.write_all(format!("{sql}\n").as_bytes()).await;
        assert!(fed.is_ok(), "psql has stopped: {}", self.process.output());
    }

    /// Waits until everything that was fed is committed.
    pub(super) async fn close(self) {
        let Self { mut process, stdin } = self;
        drop(stdin);
        let status = process.ended(Duration::from_secs(60)).await;
        assert!(status.success(), "psql: {}\n{}", ending(status), process.output());
    }
}
