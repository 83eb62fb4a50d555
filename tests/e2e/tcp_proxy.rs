//! A proxy in front of PostgreSQL that knows enough of its protocol to lose exactly one answer: it follows which statement a
//! connection runs, so that it can carry out a COMMIT and swallow the reply, or silence the one connection that listens.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::JoinSet,
    time::sleep,
};

/// Says whether a statement is the one that is meant. It is given the whole text, in lower case.
pub(crate) type Matches = fn(&str) -> bool;

#[derive(Default)]
struct Control {
    // The next statements that match are carried out, their answers swallowed and their connections reset.
    trap: Mutex<Option<(Matches, u32)>>,
    sprung: AtomicU64,
    // Connections that ran a matching statement are marked; while `silent`, no byte passes those, and nobody gets a FIN.
    mark: Mutex<Option<Matches>>,
    marked: AtomicU64,
    silent: AtomicBool,
    delay_us: AtomicU64,
    // New connections are reset.
    refusing: AtomicBool,
    statements: Mutex<Vec<String>>,
}

/// A running proxy; it stops when dropped.
pub(crate) struct TcpProxy {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    control: Arc<Control>,
    cut: Arc<Notify>,
    _server: JoinSet<()>,
}

impl TcpProxy {
    /// Starts one in front of `upstream`.
    pub(crate) async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let control = Arc::new(Control::default());
        let cut = Arc::new(Notify::new());
        let mut server = JoinSet::new();
        server.spawn(accept(listener, upstream, Arc::clone(&control), Arc::clone(&cut)));
        Self { address, control, cut, _server: server }
    }

    /// Forwards the next `times` statements that match, waits for their answers, swallows these and resets the connections.
    pub(crate) fn swallow_answers_of(&self, matches: Matches, times: u32) {
        *lock(&self.control.trap) = Some((matches, times));
    }

    /// How often an answer was swallowed.
    pub(crate) fn swallowed(&self) -> u64 {
        self.control.sprung.load(Ordering::SeqCst)
    }

    /// Marks every connection that runs a matching statement from now on.
    pub(crate) fn mark(&self, matches: Matches) {
        *lock(&self.control.mark) = Some(matches);
    }

    /// How many connections were marked so far.
    pub(crate) fn marked(&self) -> u64 {
        self.control.marked.load(Ordering::SeqCst)
    }

    /// Drops every byte, both ways, of the connections that are marked now; nobody is told. Later ones are served.
    pub(crate) fn silence_marked(&self) {
        self.control.silent.store(true, Ordering::SeqCst);
        *lock(&self.control.mark) = None;
    }

    /// Holds every piece that a client sends for this long.
    pub(crate) fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("seconds");
        self.control.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Resets every connection that comes from now on.
    pub(crate) fn refuse_all(&self) {
        self.control.refusing.store(true, Ordering::SeqCst);
    }

    /// Serves connections again.
    pub(crate) fn accept_again(&self) {
        self.control.refusing.store(false, Ordering::SeqCst);
    }

    /// Resets every open connection.
    pub(crate) fn cut_all(&self) {
        self.cut.notify_waiters();
    }

    /// The distinct statements that went through, for a message when a trap was never sprung.
    pub(crate) fn statements(&self) -> Vec<String> {
        lock(&self.control.statements).clone()
    }
}

async fn accept(listener: TcpListener, upstream: String, control: Arc<Control>, cut: Arc<Notify>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        let connection = serve(client, upstream.clone(), Arc::clone(&control), Arc::clone(&cut));
        connections.spawn(connection);
        while connections.try_join_next().is_some() {}
    }
}

/// What both directions of a connection know.
#[derive(Default)]
struct Link {
    swallowing: AtomicBool,
    marked: AtomicBool,
    swallowed: Notify,
}

impl Link {
    fn is_silent(&self, control: &Control) -> bool {
        control.silent.load(Ordering::SeqCst) && self.marked.load(Ordering::SeqCst)
    }
}

async fn serve(client: TcpStream, upstream: String, control: Arc<Control>, cut: Arc<Notify>) {
    if control.refusing.load(Ordering::SeqCst) {
        return super::ledger_proxy::reset(client);
    }
    let Ok(server) = TcpStream::connect(&upstream).await else {
        return super::ledger_proxy::reset(client);
    };
    // A reset, so that the caller learns at once that its answer is lost. It fails only on a socket that is gone.
    let _gone = (client.set_zero_linger(), client.set_nodelay(true), server.set_nodelay(true));
    let link = Link::default();
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::select! {
        _ended = upwards(client_read, server_write, &control, &link) => {}
        _ended = downwards(server_read, client_write, &control, &link) => {}
        () = link.swallowed.notified() => {}
        () = cut.notified() => {}
    }
}

/// Client to server, frame by frame.
async fn upwards(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: &Control,
    link: &Link,
) -> io::Result<()> {
    let mut pending = Vec::new();
    let mut started = false;
    let mut session = Session::default();
    loop {
        pending.reserve(16 * 1024);
        if from.read_buf(&mut pending).await? == 0 {
            return Ok(());
        }
        let delay = control.delay_us.load(Ordering::SeqCst);
        if delay > 0 {
            sleep(Duration::from_micros(delay)).await;
        }
        let mut whole = 0;
        while let Some((kind, body, end)) = frame(&pending[whole..], started) {
            // The untyped first messages are requests for encryption (8 bytes) and the start-up message.
            started |= kind == 0 && end > 8;
            if let Some(statement) = session.runs(kind, body) {
                judge(&statement, control, link);
            }
            whole += end;
        }
        if link.is_silent(control) {
            pending.drain(..whole);
            continue;
        }
        to.write_all(&pending[..whole]).await?;
        pending.drain(..whole);
    }
}

/// Marks the connection when a statement is one that is meant.
fn judge(statement: &str, control: &Control, link: &Link) {
    {
        let mut statements = lock(&control.statements);
        if statements.len() < 500 && !statements.iter().any(|known| known == statement) {
            statements.push(statement.to_owned());
        }
    }
    if lock(&control.mark).is_some_and(|matches| matches(statement))
        && !link.marked.swap(true, Ordering::SeqCst)
    {
        control.marked.fetch_add(1, Ordering::SeqCst);
    }
    let mut trap = lock(&control.trap);
    if let Some((matches, left)) = *trap
        && left > 0
        && matches(statement)
    {
        *trap = Some((matches, left - 1));
        control.sprung.fetch_add(1, Ordering::SeqCst);
        link.swallowing.store(true, Ordering::SeqCst);
    }
}

/// Server to client. Once an answer is to be swallowed, it waits for the server to be ready again: only then is the statement
/// certainly carried out.
async fn downwards(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: &Control,
    link: &Link,
) -> io::Result<()> {
    let mut answer = Vec::new();
    loop {
        answer.reserve(16 * 1024);
        if from.read_buf(&mut answer).await? == 0 {
            return Ok(());
        }
        if link.is_silent(control) {
            answer.clear();
            continue;
        }
        if !link.swallowing.load(Ordering::SeqCst) {
            to.write_all(&answer).await?;
            answer.clear();
            continue;
        }
        let mut at = 0;
        while let Some((kind, _, end)) = frame(&answer[at..], true) {
            at += end;
            if kind == b'Z' {
                link.swallowed.notify_one();
            }
        }
        answer.drain(..at);
    }
}

/// The first frame of `bytes`: its kind (0 before the session has started), its body, and where it ends.
fn frame(bytes: &[u8], started: bool) -> Option<(u8, &[u8], usize)> {
    let (kind, rest) = if started { (*bytes.first()?, &bytes[1..]) } else { (0, bytes) };
    let length: [u8; 4] = rest.get(..4)?.try_into().ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    let body = rest.get(4..length)?;
    Some((kind, body, length + usize::from(started)))
}

/// Which statements a connection has prepared.
#[derive(Default)]
struct Session {
    prepared: HashMap<Vec<u8>, String>,
}

impl Session {
    /// The statement that this frame runs, in lower case: a simple query, or the binding of a prepared statement.
    fn runs(&mut self, kind: u8, body: &[u8]) -> Option<String> {
        let mut texts = body.split(|byte| *byte == 0);
        match kind {
            b'Q' => Some(lower(texts.next()?)),
            b'P' => {
                let name = texts.next()?.to_vec();
                self.prepared.insert(name, lower(texts.next()?));
                None
            }
            b'B' => {
                let _portal = texts.next()?;
                self.prepared.get(texts.next()?).cloned()
            }
            _ => None,
        }
    }
}

fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_session_knows_which_statement_a_binding_runs() {
    let mut session = Session::default();
    assert_eq!(session.runs(b'P', b"s1\0UPDATE x\0\0\0"), None);
    assert_eq!(session.runs(b'B', b"\0s1\0\0\0").as_deref(), Some("update x"));
    assert_eq!(session.runs(b'Q', b"COMMIT\0").as_deref(), Some("commit"));
    assert_eq!(frame(b"Q\0\0\0\x0bCOMMIT\0rest", true).map(|(kind, _, end)| (kind, end)), Some((b'Q', 12)));
}
