//! Endpoints: the many places of one downstream, by name, as the configuration and the database have them.
//!
//! A board between two who never touch each other's: the engine reads the rows and puts them here ([`Directory::put`]); the
//! downstream looks here for a name, and notes here what an endpoint showed ([`Directory::note`]), which the engine takes
//! and writes. A downstream also names an effect's origin by it, before there is an attempt: so it is no part of one.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::clock::{Boot, Clock, Timestamp};

/// Rows that were read longer ago are as good as unread: an endpoint that was moved, dropped or disabled since must not be sent
/// anything because the rows cannot be read. Ten readings fail before it comes to that.
const ROWS_VALID: Duration = Duration::from_secs(10);

/// A row of the database: an endpoint, or the state of one that stands in the configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name: what effects have as their target.
    pub name: Arc<str>,
    /// Where it is. `None`: the configuration says so. It may hold tokens: it never prints.
    pub url: Option<String>,
    /// References to its secrets, separated by spaces.
    pub secrets: Option<String>,
    /// Since when and why nothing is sent there.
    pub disabled: Option<Disabled>,
    /// Since when it has shown nothing but failures.
    pub failing_since: Option<Timestamp>,
}

/// Since when and why nothing is sent to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    /// When.
    pub since: Timestamp,
    /// Why.
    pub reason: String,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("disabled", &self.disabled)
            .field("failing_since", &self.failing_since)
            .finish_non_exhaustive()
    }
}

/// An endpoint as it was called: what one place showed says nothing of another that has its name since.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Called {
    /// Its name.
    pub name: Arc<str>,
    /// The URL of its row. `None`: it stands in the configuration. It may hold tokens: it never prints.
    pub url: Option<String>,
}

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Called").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a call to an endpoint showed of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It took what was sent.
    Took,
    /// It did not, or did not answer; with the reason.
    Failed(String),
    /// It says that it is gone for good; with the reason.
    Gone(String),
}

/// What was noted of an endpoint since the engine last took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// It took something meanwhile.
    pub took: bool,
    /// What was seen last; *gone* stays.
    pub last: Sign,
}

impl Noted {
    fn then(self, later: Self) -> Self {
        let gone = matches!(self.last, Sign::Gone(_));
        Self { took: self.took || later.took, last: if gone { self.last } else { later.last } }
    }
}

/// What is to be written of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It fails, from now on.
    Fails,
    /// It does not fail any more.
    Works,
    /// Nothing is sent there any more; with the reason.
    Disable(String),
}

/// What follows from what was noted of an endpoint; nothing for one that is disabled, whatever is still under way, nor for a row
/// that is gone or has another URL than was called.
pub fn change(
    known: Option<&Endpoint>,
    (called, noted): (&Called, &Noted),
    now: Timestamp,
    disable_after: Option<Duration>,
) -> Option<Change> {
    let moved = called.url.is_some() && called.url.as_ref() != known.and_then(|row| row.url.as_ref());
    if moved || known.is_some_and(|endpoint| endpoint.disabled.is_some()) {
        return None;
    }
    let since = known.and_then(|endpoint| endpoint.failing_since);
    match &noted.last {
        Sign::Gone(reason) => Some(Change::Disable(reason.clone())),
        Sign::Took => since.map(|_since| Change::Works),
        // It began to fail a moment ago, whatever was before.
        Sign::Failed(_) if noted.took => Some(if since.is_some() { Change::Works } else { Change::Fails }),
        Sign::Failed(reason) => match (since, disable_after) {
            (None, _) => Some(Change::Fails),
            (Some(since), Some(patience)) if since.plus(patience) <= now => {
                Some(Change::Disable(format!("nothing but failures since {since}; the last one: {reason}")))
            }
            (Some(_), _) => None,
        },
    }
}

/// The endpoints of one downstream, as far as this process knows them.
pub struct Directory {
    rows: Mutex<Rows>,
    /// How often somebody asked for rows that are read after that.
    asked: AtomicU64,
    /// The askers that the present rows are fresh enough for.
    answered: watch::Sender<u64>,
    wanted: Notify,
    clock: Arc<dyn Clock>,
    /// Nothing but failures for so long disables an endpoint; `None`: nothing but a person or itself does.
    pub disable_after: Option<Duration>,
}

#[derive(Default)]
struct Rows {
    /// `None`: they were not read yet.
    known: Option<HashMap<Arc<str>, Arc<Endpoint>>>,
    read_at: Boot,
    noted: BTreeMap<Called, Noted>,
}

/// A reading of the rows, as it begins.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Whom its rows will be fresh enough for.
    pub asked: u64,
    /// When it began.
    pub at: Boot,
}

impl Directory {
    /// One that knows nothing yet.
    pub fn new(disable_after: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        Self {
            rows: Mutex::default(),
            asked: AtomicU64::new(0),
            answered: watch::Sender::new(0),
            wanted: Notify::new(),
            clock,
            disable_after,
        }
    }

    /// The row of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Endpoint>> {
        self.lock().known.as_ref()?.get(name).cloned()
    }

    /// Every row, by name.
    pub fn all(&self) -> Vec<Arc<Endpoint>> {
        let mut all: Vec<_> = self.lock().known.iter().flat_map(HashMap::values).cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether the rows were read, and not too long ago to act on them.
    pub fn is_read(&self) -> bool {
        let rows = self.lock();
        rows.known.is_some() && self.clock.boot() - rows.read_at <= ROWS_VALID
    }

    /// Waits for rows that are read from now on: what was written before this was called is among them.
    pub async fn fresh(&self) {
        let mut answered = self.answered.subscribe();
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wanted.notify_one();
        // The sender is ours: it outlives the wait.
        let _waited = answered.wait_for(|answered| *answered >= mine).await.is_ok();
    }

    /// For who reads: waits until somebody wants fresh rows.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// For who reads, before it does.
    pub fn begin_reading(&self) -> Reading {
        Reading { asked: self.asked.load(Ordering::SeqCst), at: self.clock.boot() }
    }

    /// Puts what `reading` brought.
    pub fn put(&self, reading: Reading, endpoints: Vec<Endpoint>) {
        let known = endpoints.into_iter().map(|row| (Arc::clone(&row.name), Arc::new(row))).collect();
        let mut rows = self.lock();
        (rows.known, rows.read_at) = (Some(known), reading.at);
        drop(rows);
        self.answered.send_modify(|answered| *answered = reading.asked.max(*answered));
    }

    /// Puts what was read just now, where nobody will read again: it is fresh enough for whoever asks, and never grows old.
    pub fn put_once(&self, endpoints: Vec<Endpoint>) {
        self.put(Reading { asked: u64::MAX, at: self.clock.boot().plus(Duration::MAX) }, endpoints);
    }

    /// Notes what a call showed. It is looked at with the next reading; at once only where nothing more may be sent.
    pub fn note(&self, called: Called, sign: Sign) {
        let gone = matches!(sign, Sign::Gone(_));
        let noted = Noted { took: sign == Sign::Took, last: sign };
        let mut rows = self.lock();
        let noted = match rows.noted.remove(&called) {
            Some(earlier) => earlier.then(noted),
            None => noted,
        };
        rows.noted.insert(called, noted);
        drop(rows);
        if gone {
            self.wanted.notify_one();
        }
    }

    /// Takes what was noted.
    pub fn take(&self) -> BTreeMap<Called, Noted> {
        std::mem::take(&mut self.lock().noted)
    }

    /// Notes again, whole, what was taken and could not be written: it was before whatever was noted since.
    pub fn put_back(&self, called: Called, noted: Noted) {
        let mut rows = self.lock();
        let noted = match rows.noted.remove(&called) {
            Some(later) => noted.then(later),
            None => noted,
        };
        rows.noted.insert(called, noted);
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests;
