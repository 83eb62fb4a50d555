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

use crate::clock::Timestamp;

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

/// What follows from what was noted of an endpoint; nothing for one that is disabled, whatever is still under way.
pub fn change(
    known: Option<&Endpoint>,
    noted: &Noted,
    now: Timestamp,
    disable_after: Option<Duration>,
) -> Option<Change> {
    if known.is_some_and(|endpoint| endpoint.disabled.is_some()) {
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
    /// Nothing but failures for so long disables an endpoint; `None`: nothing but a person or itself does.
    pub disable_after: Option<Duration>,
}

#[derive(Default)]
struct Rows {
    /// `None`: they were not read yet.
    known: Option<HashMap<Arc<str>, Arc<Endpoint>>>,
    noted: BTreeMap<Arc<str>, Noted>,
}

impl Directory {
    /// One that knows nothing yet.
    pub fn new(disable_after: Option<Duration>) -> Self {
        Self {
            rows: Mutex::default(),
            asked: AtomicU64::new(0),
            answered: watch::Sender::new(0),
            wanted: Notify::new(),
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

    /// Whether the rows were ever read.
    pub fn is_read(&self) -> bool {
        self.lock().known.is_some()
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

    /// For who reads, before it does: whom the rows will be fresh enough for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Puts what was read. `asked` is what [`Self::asked`] said before, or `u64::MAX` where nobody will read again.
    pub fn put(&self, asked: u64, rows: Vec<Endpoint>) {
        let rows = rows.into_iter().map(|row| (Arc::clone(&row.name), Arc::new(row))).collect();
        self.lock().known = Some(rows);
        self.answered.send_modify(|answered| *answered = asked.max(*answered));
    }

    /// Notes what a call showed.
    pub fn note(&self, name: &str, sign: Sign) {
        let mut rows = self.lock();
        let took = sign == Sign::Took;
        match rows.noted.get_mut(name) {
            Some(Noted { last: Sign::Gone(_), .. }) => {}
            Some(noted) => (noted.took, noted.last) = (noted.took || took, sign),
            None => drop(rows.noted.insert(name.into(), Noted { took, last: sign })),
        }
        drop(rows);
        if !took {
            self.wanted.notify_one();
        }
    }

    /// Takes what was noted.
    pub fn take(&self) -> BTreeMap<Arc<str>, Noted> {
        std::mem::take(&mut self.lock().noted)
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn endpoint(failing_since: Option<i64>, disabled: bool) -> Endpoint {
        let disabled = disabled.then(|| Disabled { since: Timestamp::from_micros(0), reason: String::new() });
        let failing_since = failing_since.map(Timestamp::from_micros);
        Endpoint { name: "acme".into(), url: None, secrets: None, disabled, failing_since }
    }

    fn noted(took: bool, last: Sign) -> Noted {
        Noted { took, last }
    }

    #[test]
    fn only_nothing_but_failures_for_long_or_the_endpoint_itself_disables_it() {
        let failed = || noted(false, Sign::Failed("HTTP 500".to_owned()));
        let at = |days: u32| Timestamp::from_micros(0).plus(DAY * days);
        let of = |since, noted: &Noted, now| change(Some(&endpoint(since, false)), noted, now, Some(5 * DAY));
        assert_eq!(change(None, &failed(), at(0), Some(5 * DAY)), Some(Change::Fails));
        assert_eq!(of(Some(0), &failed(), at(4)), None);
        assert!(
            matches!(of(Some(0), &failed(), at(5)), Some(Change::Disable(why)) if why.contains("HTTP 500"))
        );
        assert_eq!(change(Some(&endpoint(Some(0), false)), &failed(), at(500), None), None);
        // One success in between, and all begins anew.
        let mixed = noted(true, Sign::Failed(String::new()));
        assert_eq!(of(Some(0), &mixed, at(5)), Some(Change::Works));
        assert_eq!(of(Some(0), &noted(true, Sign::Took), at(5)), Some(Change::Works));
        assert_eq!(of(None, &noted(true, Sign::Took), at(5)), None);
        let gone = noted(true, Sign::Gone("HTTP 410".to_owned()));
        assert_eq!(of(None, &gone, at(0)), Some(Change::Disable("HTTP 410".to_owned())));
        assert_eq!(change(Some(&endpoint(None, true)), &gone, at(0), None), None, "it is disabled already");
    }

    #[test]
    fn a_success_after_it_said_gone_does_not_hide_that_it_said_so() {
        let directory = Directory::new(None);
        directory.note("acme", Sign::Gone("HTTP 410".to_owned()));
        directory.note("acme", Sign::Took);
        assert_eq!(directory.take()["acme"].last, Sign::Gone("HTTP 410".to_owned()));
        assert!(directory.take().is_empty(), "taken once");
    }

    #[tokio::test]
    async fn who_wants_fresh_rows_gets_none_whose_reading_had_begun_before() {
        let directory = Arc::new(Directory::new(None));
        let before = directory.asked();
        let asking = tokio::task::LocalSet::new();
        let shared = Arc::clone(&directory);
        let waiter = asking.spawn_local(async move { shared.fresh().await });
        asking
            .run_until(async {
                directory.wanted().await;
                directory.put(before, vec![]);
                assert!(!waiter.is_finished(), "these rows are older than the question");
                directory.put(directory.asked(), vec![endpoint(None, false)]);
                waiter.await.unwrap();
            })
            .await;
        assert!(directory.find("acme").is_some() && directory.find("other").is_none());
    }
}
