//! The downstream in this process that applies everything at once, and the engine that serves it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    clock::{Boot, Clock as _, SystemClock},
    contract::{Contract, Window},
    downstream::{Attempt, Downstream, Served, Terms},
    engine::{Config, Engine, SWEEP_INTERVAL, Stop, registered},
    outcome::{Finding, Outcome, Phase, Response},
    schedule::Policy,
    store::{Database, Registration, TermsIds},
};
use anyhow::Context as _;

use super::{NAME, rate};
use crate::cli::{Exit, fail, plural, worker_name};

/// A downstream in this process that applies everything at once.
pub(super) struct Sink {
    delivered: AtomicU64,
    tenth: u64,
    marks: Mutex<Vec<Boot>>,
}

impl Sink {
    fn new(tenth: u64, start: Boot) -> Self {
        Self { delivered: AtomicU64::new(0), tenth, marks: Mutex::new(vec![start]) }
    }

    fn tenths(&self) -> Vec<f64> {
        let marks = self.marks.lock().expect("nobody panics while holding the marks");
        marks
            .windows(2)
            .map(|pair| rate(self.tenth, (pair[1] - pair[0]).as_secs_f64()))
            .map(f64::round)
            .collect()
    }
}

#[async_trait::async_trait]
impl Downstream for Sink {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Render, closed.to_string());
        }
        let count = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(self.tenth) {
            let mut marks = self.marks.lock().expect("nobody panics while holding the marks");
            marks.push(SystemClock.boot());
        }
        applied()
    }
}

/// What a downstream that applied it says.
pub(super) fn applied() -> Outcome {
    let mut outcome = Outcome::new(Finding::Applied, Phase::Done, "");
    outcome.response =
        Some(Response { status: Some(200), body: br#"{"ok":true}"#.to_vec(), truncated: false });
    outcome
}

/// The bench's downstream, carried out by `downstream`.
pub(super) fn served(downstream: Arc<dyn Downstream>, concurrency: u32) -> Served {
    Served {
        name: NAME.into(),
        kind: "bench",
        downstream,
        key_prefix: String::new(),
        concurrency,
        terms: Terms {
            contract: Contract::key(Some(Window::Forever)),
            policy: Policy::default(),
            timeout: Duration::from_secs(10),
            request_sha256: [0; 32],
        },
        operations: BTreeMap::new(),
        lease: Duration::from_secs(30),
        rate: None,
        origin: None,
    }
}

/// Makes the bench's downstream known to the database, as `migrate` or a worker does with those of a configuration before any effect
/// is written: a name that nobody registered takes the INSERT's long way.
pub(super) async fn register(store: &dyn Database, worker: Option<Arc<str>>) -> anyhow::Result<TermsIds> {
    let registration = Registration {
        worker,
        version: env!("CARGO_PKG_VERSION"),
        downstreams: vec![registered(&served(Arc::new(Nobody), 1))],
        requests: None,
    };
    store.register(&registration).await.context("making the bench's downstream known")
}

/// Stands for the downstream where nothing is delivered.
struct Nobody;

#[async_trait::async_trait]
impl Downstream for Nobody {
    async fn deliver(&self, _attempt: &Attempt) -> Outcome {
        applied()
    }
}

/// An engine with nothing but `served`.
pub(super) fn engine(
    store: Arc<dyn Database>,
    served: Served,
    concurrency: u32,
    poll: Duration,
) -> anyhow::Result<Engine> {
    let config = Config {
        worker: worker_name(),
        version: env!("CARGO_PKG_VERSION"),
        poll,
        concurrency,
        shutdown_grace: Duration::from_secs(10),
        sweep_interval: SWEEP_INTERVAL,
        // What is measured is the work; nothing gets old enough here.
        retention: None,
    };
    Engine::new(store, vec![served], config, Arc::new(SystemClock))
        .map_err(|problem| fail(Exit::Usage, problem))
}

/// How a drain went.
pub(super) struct Drained {
    pub(super) seconds: f64,
    pub(super) delivered: u64,
    /// Effects per second in each tenth of the run.
    pub(super) tenths: Vec<f64>,
}

impl Drained {
    pub(super) fn rate(&self) -> f64 {
        rate(self.delivered, self.seconds)
    }
}

/// Drains a backlog of `effects` with the engine.
pub(super) async fn drain(
    store: Arc<dyn Database>,
    effects: u64,
    concurrency: u32,
) -> anyhow::Result<Drained> {
    let clock = SystemClock;
    let start = clock.boot();
    let sink = Arc::new(Sink::new((effects / 10).max(1), start));
    let engine = engine(store, served(sink.clone(), concurrency), concurrency, Duration::from_millis(20))?;
    engine.run_until_idle(Stop::default()).await.context("draining")?;
    let seconds = (clock.boot() - start).as_secs_f64();
    let delivered = sink.delivered.load(Ordering::Relaxed);
    whole(delivered, effects)?;
    Ok(Drained { seconds, delivered, tenths: sink.tenths() })
}

/// A figure of a drain that left something behind would be a lie.
pub(super) fn whole(delivered: u64, effects: u64) -> anyhow::Result<()> {
    if delivered < effects {
        let what = plural(effects, "effect");
        let problem = format!("only {delivered} of {what} were carried out; `effects list` shows the rest");
        return Err(fail(Exit::Failure, problem));
    }
    Ok(())
}
