//! What the client's tasks tell us, and which publish a refusal of the server's was meant for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_nats::{Event, ServerError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How a server begins to refuse a publish. It names the subject, and nothing else.
const DENIED: &str = "Permissions Violation for Publish to ";

/// What became of a connection, and of what was published on it.
pub(super) struct Signals {
    /// The connection is gone.
    pub(super) gone: CancellationToken,
    /// It takes no more attempts.
    retired: AtomicBool,
    tallies: Mutex<HashMap<String, Tally>>,
    /// Tells those who wait that a tally changed.
    changed: watch::Sender<()>,
}

/// The publishes to one subject. A server says one thing of each: an answer, or a refusal that names only the subject.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// Those that were not answered yet; also those that nobody waits for any more.
    open: u64,
    /// Refusals that were heard.
    refused: u64,
}

impl Signals {
    pub(super) fn new() -> Self {
        Self {
            gone: CancellationToken::new(),
            retired: AtomicBool::new(false),
            tallies: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Later attempts go to another connection; those that are under way end on this one.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.gone.is_cancelled() && !self.retired.load(Ordering::SeqCst)
    }

    pub(super) fn hear(&self, event: &Event) {
        match event {
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(subject) = text.strip_prefix(DENIED) {
                    self.deny(subject.trim_matches('"'));
                }
            }
            // The server goes away soon: later attempts go to another, or to its successor.
            Event::LameDuckMode => self.retire(),
            Event::Disconnected | Event::Closed => self.gone.cancel(),
            Event::ServerError(ServerError::AuthorizationViolation | ServerError::SlowConsumer(_))
            | Event::Connected
            | Event::Draining
            | Event::SlowConsumer(_)
            | Event::ClientError(_) => {}
        }
    }

    /// A right may be granted without the connection ending: whoever comes later asks anew, on another one.
    fn deny(&self, subject: &str) {
        self.retire();
        self.tallies().entry(subject.to_owned()).or_default().refused += 1;
        self.changed.send_replace(());
    }

    /// Notes that a publish begins; `false` where a refusal of its subject was heard already: it must not begin.
    pub(super) fn begins(&self, subject: &str) -> bool {
        let mut tallies = self.tallies();
        let tally = tallies.entry(subject.to_owned()).or_default();
        let begins = tally.refused == 0;
        tally.open += u64::from(begins);
        begins
    }

    /// Notes that a publish was answered, or never left.
    pub(super) fn answered(&self, subject: &str) {
        let mut tallies = self.tallies();
        if let Some(tally) = tallies.get_mut(subject) {
            tally.open = tally.open.saturating_sub(1);
            if tally.open == 0 && tally.refused == 0 {
                tallies.remove(subject);
            }
        }
        drop(tallies);
        self.changed.send_replace(());
    }

    /// Ready when every publish to `subject` that was not answered was refused: then each was. With fewer refusals nobody knows
    /// which were meant, and another may have been stored, its acknowledgement still on its way.
    pub(super) async fn all_refused(&self, subject: &str) {
        let mut changed = self.changed.subscribe();
        while !self.tally(subject).is_some_and(|tally| tally.refused > 0 && tally.refused >= tally.open) {
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether a refusal of `subject` was heard.
    pub(super) fn refused(&self, subject: &str) -> bool {
        self.tally(subject).is_some_and(|tally| tally.refused > 0)
    }

    fn tally(&self, subject: &str) -> Option<Tally> {
        self.tallies().get(subject).copied()
    }

    fn tallies(&self) -> MutexGuard<'_, HashMap<String, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held by what the client's tasks hold: when it is dropped they have ended, if only by a panic, of which no event tells.
pub(super) struct Ends(pub(super) Arc<Signals>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.gone.cancel();
    }
}
