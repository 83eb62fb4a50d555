//! The worker's engine: claim, attempt, decide, settle, sweep.
//!
//! `intake` claims (committed before the call), `attempt` carries one claim out, `settle` writes what was decided in
//! batches, `budget` and `held_by` keep to rates, pauses and breakers, `endpoints` and `crowd` to the many places of one
//! downstream, `hold` to HOLD, `renew` keeps leases alive from a
//! thread of its own, `sweep` judges leases that ended, `retention` drops what was kept long enough. The loops live here
//! once; what differs per database lives in `store`, what differs per downstream behind
//! [`crate::downstream::Downstream`]. Only [`crate::decision`] decides.

mod attempt;
mod budget;
mod config;
mod crowd;
mod endpoints;
mod figures;
mod held_by;
mod hold;
mod idle;
mod intake;
mod late;
mod lease;
mod memory;
mod outage;
mod probe;
mod renew;
mod report;
mod retention;
mod settle;
mod sweep;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::task::TaskTracker;

pub use config::{Config, LEASE_MARGIN, SETTLE_BATCH_MAX, SETTLE_LINGER, SWEEP_INTERVAL, Stop};
pub use figures::{ATTEMPT_BUCKETS_MS, DownstreamFigures, LAG_BUCKETS_MS, Pulse, Timings};
pub use memory::Journal;
pub use report::Report;
pub use retention::{Manner, Purged, purge};

use self::{
    budget::Sharing, figures::Figures, held_by::Budgets, intake::Intake, lease::Leases, outage::Outages,
    probe::Prober, renew::Renewals, report::Counters, settle::Settling,
};
use crate::{
    clock::{Boot, Clock},
    contract::KeyRule,
    downstream::Served,
    error::StoreError,
    store::{RegisteredDownstream, RegisteredTerms, Registration, Store},
};

/// A served downstream and its free slots. Only the intake takes slots; attempts give them back.
struct Serving {
    served: Served,
    slots: Arc<Semaphore>,
}

/// An operation (`None`: the default one) and the number of its registered terms.
type OperationTerms = (Option<String>, i64);

/// What every part of a running worker shares.
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    config: Config,
    served: BTreeMap<Arc<str>, Serving>,
    /// Attempts over all downstreams.
    slots: Arc<Semaphore>,
    /// Told whenever a slot was given back.
    slot_freed: Notify,
    leases: Leases,
    counters: Counters,
    /// What holds calls back; asked right before every first byte.
    budgets: Arc<Budgets>,
    /// Open calls by endpoint, where a downstream has many.
    crowds: Arc<crowd::Crowds>,
    figures: Figures,
    /// What the prober has under way: whoever waits until this worker is idle asks.
    probing: idle::Probing,
    /// The earliest retry that this worker scheduled, in the database's microseconds: the intake looks again then.
    next_due: AtomicI64,
    /// The numbers of the registered terms; written at every (re)connect.
    terms: Mutex<HashMap<Arc<str>, Vec<OperationTerms>>>,
    /// Which database it is.
    watch: hold::Watch,
    /// No sweep before this: others' leases could not be renewed while the database was away.
    sweep_from: Mutex<Boot>,
}

/// A worker.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// A worker that serves `served` from `store`.
    ///
    /// # Errors
    ///
    /// A sentence that names the setting and its limit when `config` and `served` do not fit together.
    pub fn new(
        store: Arc<dyn Store>,
        served: Vec<Served>,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        config.validate(&served)?;
        let sweep_from = Mutex::new(clock.boot());
        let figures = Figures::of(served.iter().map(|served| served.name.clone()));
        let served = served
            .into_iter()
            .map(|served| {
                let slots = Arc::new(Semaphore::new(served.concurrency as usize));
                (served.name.clone(), Serving { served, slots })
            })
            .collect();
        let shared = Shared {
            store,
            clock,
            served,
            slots: Arc::new(Semaphore::new(config.concurrency as usize)),
            slot_freed: Notify::new(),
            leases: Leases::default(),
            counters: Counters::default(),
            budgets: Arc::default(),
            crowds: Arc::default(),
            figures,
            probing: idle::Probing::default(),
            next_due: AtomicI64::new(i64::MAX),
            terms: Mutex::default(),
            watch: hold::Watch::default(),
            sweep_from,
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Remembers the database in `journal` too, and not only as long as it runs.
    #[must_use]
    pub fn with_journal(mut self, journal: Arc<dyn Journal>) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("nothing shares an engine that was not started");
        shared.watch.journal = Some(journal);
        self
    }

    /// What it did so far.
    pub fn report(&self) -> Report {
        self.shared.counters.report()
    }

    /// Connections that a worker opens at most with a pool of this size: the one that renews leases and the one that listens
    /// stand beside it.
    pub const fn connections(pool: u32) -> u32 {
        pool.saturating_add(2)
    }

    /// What it measured so far, per downstream that it serves.
    pub fn figures(&self) -> Vec<DownstreamFigures> {
        self.shared.figures.read()
    }

    /// When the database last let it work.
    pub fn pulse(&self) -> Pulse {
        self.shared.figures.pulse(self.shared.clock.boot())
    }

    /// Works until told to stop. A database outage, however long, is waited out.
    ///
    /// # Errors
    ///
    /// [`StoreError`] only for what waiting cannot mend, such as a schema that is too new.
    pub async fn run(&self, stop: Stop) -> Result<Report, StoreError> {
        let session = Session::start(&self.shared, &stop).await?;
        let sweeping = session.tracker.spawn(sweep::run(self.shared.clone(), stop.clone()));
        let retaining = session.tracker.spawn(retention::run(self.shared.clone(), stop.clone()));
        if let Some(prober) = Prober::of(&self.shared, &session.tracker, &stop) {
            session.tracker.spawn(prober.run());
        }
        let worked = session.intake(&stop).run().await;
        stop.drain.cancel();
        session.finish(&stop, tokio::time::sleep(self.shared.config.shutdown_grace)).await;
        log_panic("sweep", sweeping.await);
        log_panic("retention", retaining.await);
        worked.map(|()| self.report())
    }

    /// One claim round: sweeps once, claims what is due (up to the free slots), attempts and settles it, and makes one round of
    /// due probes; stopped as [`Self::run`] is. Of leases that ended it sweeps those that ended a whole lease ago: it cannot wait to see whether
    /// younger ones only could not be renewed.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database fails.
    pub async fn run_once(&self, stop: Stop) -> Result<Report, StoreError> {
        let session = Session::start(&self.shared, &stop).await?;
        let swept = sweep::once(&self.shared, self.shared.longest_lease()).await;
        let claimed = if stop.drain.is_cancelled() { Ok(0) } else { session.intake(&stop).round().await };
        let probed = match Prober::of(&self.shared, &session.tracker, &stop) {
            Some(prober) if !stop.drain.is_cancelled() => prober.round().await,
            Some(_) | None => Ok(0),
        };
        let over = async {
            stop.drain.cancelled().await;
            tokio::time::sleep(self.shared.config.shutdown_grace).await;
        };
        session.finish(&stop, over).await;
        swept.and(claimed).and(probed).map(|_| self.report())
    }

    /// Works until nothing is due or in flight, and no probe is due or open. What is to be retried later is left for later; what
    /// is to be probed later is in doubt until then, as it would be for a person.
    ///
    /// # Errors
    ///
    /// [`StoreError`] only for what waiting cannot mend.
    pub async fn run_until_idle(&self, stop: Stop) -> Result<Report, StoreError> {
        let watch = idle::wait(&self.shared, &stop);
        let run = self.run(stop.clone());
        tokio::pin!(run);
        tokio::select! {
            report = &mut run => report,
            () = watch => run.await,
        }
    }
}

/// The tasks of one run: attempts, the settler, the renewal thread.
struct Session {
    shared: Arc<Shared>,
    /// Attempts and maintenance: waited for before the settler is told that nothing more comes.
    tracker: TaskTracker,
    outcomes: mpsc::Sender<Settling>,
    settler: tokio::task::JoinHandle<()>,
    budgets: Sharing,
    endpoints: endpoints::Reading,
    renewals: Renewals,
}

impl Session {
    async fn start(shared: &Arc<Shared>, stop: &Stop) -> Result<Self, StoreError> {
        shared.register(stop).await?;
        let budgets = Sharing::start(shared).await?;
        let endpoints = endpoints::Reading::start(shared).await?;
        let tracker = TaskTracker::new();
        let (outcomes, inbox) = mpsc::channel(shared.config.concurrency as usize + SETTLE_BATCH_MAX);
        let settler = TaskTracker::new().spawn(settle::run(shared.clone(), inbox, stop.abort.clone()));
        let renewals = Renewals::start(shared.clone())
            .map_err(|error| StoreError::Unsupported(format!("no thread for lease renewals: {error}")))?;
        Ok(Self { shared: shared.clone(), tracker, outcomes, settler, budgets, endpoints, renewals })
    }

    fn intake(&self, stop: &Stop) -> Intake {
        Intake::new(self.shared.clone(), self.tracker.clone(), self.outcomes.clone(), stop.clone())
    }

    /// Waits for open calls and for their outcomes to be written, until `over`; then leaves them to the sweep and signs off.
    async fn finish(self, stop: &Stop, over: impl Future<Output = ()>) {
        let mut settler = self.settler;
        tokio::pin!(over);
        self.tracker.close();
        tokio::select! {
            () = self.tracker.wait() => {}
            () = stop.abort.cancelled() => {}
            () = &mut over => stop.abort.cancel(),
        }
        self.tracker.wait().await;
        drop(self.outcomes);
        let settled = tokio::select! {
            settled = &mut settler => settled,
            () = &mut over, if !stop.abort.is_cancelled() => {
                stop.abort.cancel();
                settler.await
            }
        };
        log_panic("settle", settled);
        log_panic("budget", self.budgets.stop().await);
        self.endpoints.stop().await;
        self.shared.close_journal().await;
        self.renewals.stop().await;
        if let Err(error) = self.shared.store.leave(&self.shared.config.worker).await {
            tracing::debug!(%error, "could not sign off; the worker's row ends by itself");
        }
    }
}

impl Shared {
    /// Makes this worker and its downstreams known; waits out an outage.
    async fn register(&self, stop: &Stop) -> Result<(), StoreError> {
        let registration = Registration {
            worker: Some(self.config.worker.clone()),
            version: self.config.version,
            downstreams: self.served.values().map(|serving| registered(&serving.served)).collect(),
            requests: self.config.retention.map(|retention| retention.requests),
        };
        let mut outages = Outages::default();
        loop {
            match self.store.register(&registration).await {
                Ok(ids) => {
                    outages.over();
                    self.enter_terms(ids);
                    let lease =
                        self.served.values().map(|serving| serving.served.lease).max().unwrap_or_default();
                    *self.sweep_from.lock().expect("no holder of this lock panics") =
                        self.clock.boot().plus(lease);
                    return Ok(());
                }
                Err(error) if !error.is_outage() => return Err(error),
                Err(error) if stop.drain.is_cancelled() => return Err(error),
                Err(error) => {
                    outages.report("registering the worker", &error);
                    tokio::select! {
                        () = outages.wait() => {}
                        () = stop.drain.cancelled() => {}
                    }
                }
            }
        }
    }

    fn longest_lease(&self) -> Duration {
        self.served.values().map(|serving| serving.served.lease).max().unwrap_or_default()
    }

    /// The database was away, or is new to us: nobody's lease is judged before everybody had a lease's time to renew.
    fn sweep_later(&self) {
        let from = self.clock.boot().plus(self.longest_lease());
        *self.sweep_from.lock().expect("no holder of this lock panics") = from;
    }

    fn enter_terms(&self, ids: crate::store::TermsIds) {
        let mut terms = self.terms.lock().expect("no holder of this lock panics");
        terms.clear();
        for (downstream, operation, id) in ids {
            terms.entry(downstream).or_default().push((operation, id));
        }
    }

    /// A retry is due at this time: look again then.
    fn look_again_at(&self, due: crate::clock::Timestamp) {
        self.next_due.fetch_min(due.micros(), Ordering::Relaxed);
    }
}

/// A downstream as the database is told of it.
pub fn registered(served: &Served) -> RegisteredDownstream {
    let terms = |operation: Option<String>, terms: &crate::downstream::Terms| {
        let registered = RegisteredTerms {
            contract: terms.contract.clone(),
            policy: terms.policy.clone(),
            timeout: terms.timeout,
        };
        (operation, registered, terms.request_sha256)
    };
    RegisteredDownstream {
        name: served.name.clone(),
        kind: served.kind,
        key_prefix: served.key_prefix.clone(),
        key: widest_key_rule(served),
        operations: std::iter::once(terms(None, &served.terms))
            .chain(served.operations.iter().map(|(name, of)| terms(Some(name.clone()), of)))
            .collect(),
        kept: Vec::new(),
        rate: served.rate,
        origin: served.origin.clone(),
    }
}

/// An INSERT is checked against the downstream, not the operation: what some operation takes is taken.
fn widest_key_rule(served: &Served) -> KeyRule {
    let rules = served.operations.values().map(|terms| terms.contract.key);
    rules.fold(served.terms.contract.key, KeyRule::widest)
}

fn log_panic(part: &str, joined: Result<(), tokio::task::JoinError>) {
    if let Err(error) = joined {
        tracing::error!(%error, "the {part} task ended badly");
    }
}
