//! The recording proxy in front of a payment server: it writes a request to disk before it forwards it, holds it, and loses
//! requests and answers by a printed seed. Everything is counted, because a fault that never fired proves nothing.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::Chance;

use super::{
    ledger::{Fate, Ledger},
    wire::{Message, Reader},
};

/// What the proxy does to calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Every call is held at least and at most this long.
    pub(super) hold: (Duration, Duration),
    /// One request in so many is never forwarded; 0: none.
    pub(super) requests_one_in: u64,
    /// One answer in so many is thrown away after the server gave it; 0: none.
    pub(super) answers_one_in: u64,
    /// How calls are lost: one of these.
    pub(super) losses: &'static [Loss],
}

impl Faults {
    /// The faults of the main run.
    pub(super) const MAIN: Self = Self {
        hold: (Duration::from_millis(50), Duration::from_millis(400)),
        requests_one_in: 10,
        answers_one_in: 5,
        losses: &[Loss::Reset, Loss::Close, Loss::Silence],
    };
    /// Records, holds and forwards, nothing more.
    pub(super) const NONE: Self = Self { requests_one_in: 0, answers_one_in: 0, ..Self::MAIN };
}

/// How a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Loss {
    /// A reset.
    Reset,
    /// An orderly close without an answer.
    Close,
    /// Nothing, past every timeout.
    Silence,
}

/// Longer than any caller's timeout here; then the connection is closed.
const SILENCE: Duration = Duration::from_secs(15);

struct Shared {
    upstream: String,
    ledger: Ledger,
    faults: Faults,
    chance: Mutex<Chance>,
    // Local ports of callers whose call is being held or answered: connection tasks write, kills read.
    open: Mutex<HashSet<u16>>,
    losses: Mutex<BTreeMap<(Fate, Loss), u64>>,
    replays: Mutex<u64>,
}

/// A running proxy; it stops when dropped.
pub(super) struct LedgerProxy {
    /// Where it listens.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

impl LedgerProxy {
    /// Starts one in front of `upstream` (`host:port`), with its ledger in `folder`.
    pub(super) async fn start(upstream: &str, folder: &Path, faults: Faults, chance: Chance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            ledger: Ledger::create(&folder.join(format!("ledger-{}.ndjson", address.port()))),
            faults,
            chance: Mutex::new(chance),
            open: Mutex::default(),
            losses: Mutex::default(),
            replays: Mutex::default(),
        });
        let mut server = JoinSet::new();
        server.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _server: server }
    }

    /// `http://127.0.0.1:port`.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was seen.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Whether the caller at one of these local ports has a call open now.
    pub(super) fn has_open_call(&self, ports: &HashSet<u16>) -> bool {
        !lock(&self.shared.open).is_disjoint(ports)
    }

    /// How many calls are open now.
    pub(super) fn open_calls(&self) -> usize {
        lock(&self.shared.open).len()
    }

    /// Answers that the server marked as replays, whether or not they reached the caller.
    pub(super) fn replays(&self) -> u64 {
        *lock(&self.shared.replays)
    }

    /// How many calls were lost, and how.
    pub(super) fn losses(&self) -> BTreeMap<(Fate, Loss), u64> {
        lock(&self.shared.losses).clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else { return };
        connections.spawn(serve(stream, peer.port(), Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, port: u16, shared: Arc<Shared>) {
    loop {
        // A keep-alive connection: the reader is made per call, since a caller sends nothing before it has its answer.
        let request = Reader::new(&mut stream).message().await;
        let Ok(Some(request)) = request else { return };
        let seq = shared.ledger.seen(&request).await;
        lock(&shared.open).insert(port);
        let result = call(&mut stream, &request, &shared).await;
        lock(&shared.open).remove(&port);
        let (fate, loss) = match result {
            Ok(()) => (Fate::Answered, None),
            Err((fate, loss)) => (fate, loss),
        };
        shared.ledger.ended(seq, fate);
        if let Some(loss) = loss {
            *lock(&shared.losses).entry((fate, loss)).or_default() += 1;
            return lose(stream, loss).await;
        }
        if fate != Fate::Answered {
            return;
        }
    }
}

/// Carries out one call as the seed says; an error is its fate, and how the caller is to learn of it.
async fn call(
    stream: &mut TcpStream,
    request: &Message,
    shared: &Shared,
) -> Result<(), (Fate, Option<Loss>)> {
    let faults = shared.faults;
    let (hold, drop_request, drop_answer, loss) = {
        let mut chance = lock(&shared.chance);
        let spread = u64::try_from((faults.hold.1 - faults.hold.0).as_micros()).expect("less than minutes");
        let hold = faults.hold.0 + Duration::from_micros(chance.below(spread + 1));
        // Drawn whether or not they are wanted, so that the plan of a seed does not depend on the faults.
        let (request, answer) = (chance.next(), chance.next());
        let loss = chance.below(u64::try_from(faults.losses.len()).expect("a few"));
        let one_in = |draw: u64, n: u64| n != 0 && draw.is_multiple_of(n);
        let loss = faults.losses[usize::try_from(loss).expect("a few")];
        (hold, one_in(request, faults.requests_one_in), one_in(answer, faults.answers_one_in), loss)
    };
    if drop_request {
        return Err((Fate::RequestDropped, Some(loss)));
    }
    sleep(hold).await;
    let answer =
        forward(request, &shared.upstream).await.map_err(|_lost| (Fate::Broken, Some(Loss::Close)))?;
    if answer.header("idempotent-replayed") == Some("true") {
        *lock(&shared.replays) += 1;
    }
    if drop_answer {
        return Err((Fate::AnswerDropped, Some(loss)));
    }
    stream.write_all(&answer.raw).await.map_err(|_gone| (Fate::Broken, None))
}

async fn forward(request: &Message, upstream: &str) -> std::io::Result<Message> {
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(&request.raw).await?;
    let answer = Reader::new(&mut server).message().await?;
    answer.ok_or_else(|| std::io::Error::other("the server closed without an answer"))
}

async fn lose(mut stream: TcpStream, loss: Loss) {
    match loss {
        Loss::Reset => reset(stream),
        Loss::Close => drop(stream),
        Loss::Silence => {
            // An error is the time limit: the caller is let go.
            let _closed = timeout(SILENCE, Reader::new(&mut stream).closed()).await;
        }
    }
}

/// Closes with a reset.
pub(super) fn reset(stream: TcpStream) {
    // Fails only on a socket that is gone already, which is what is wanted.
    let _gone = stream.set_zero_linger();
    drop(stream);
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
