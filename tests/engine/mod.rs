//! The engine over a real store and a scripted downstream: what a worker does with outcomes, outages, leases and signals.

mod asked_origins;
mod budgets;
mod clocks;
mod crashes;
mod delivery;
mod doubt;
mod faulty;
mod figures;
mod hold;
mod leases;
mod outages;
mod probes;
mod profiles;
mod retention;
mod shutdown;
mod spared;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::SystemClock,
    downstream::Served,
    engine::{Config, Engine, Report, Stop},
    outcome::{Finding, Outcome, Phase},
    state::State,
    store::{RegisteredTerms, Store},
};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::support::{Scripted, TestDatabase, eventually};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn config(worker: &str) -> Config {
    Config {
        worker: worker.into(),
        version: "0.0.0-test",
        poll: Duration::from_millis(50),
        concurrency: 32,
        shutdown_grace: Duration::from_secs(20),
        sweep_interval: Duration::from_millis(50),
        retention: None,
    }
}

pub(super) fn engine(store: Arc<dyn Store>, worker: &str, served: Vec<Served>) -> Engine {
    Engine::new(store, served, config(worker), Arc::new(SystemClock)).expect("the worker's settings fit")
}

/// An engine that runs in the background.
pub(crate) struct Running {
    pub(super) engine: Arc<Engine>,
    pub(super) stop: Stop,
    task: JoinHandle<Report>,
}

impl Running {
    pub(crate) fn start(engine: Engine) -> Self {
        let (engine, stop) = (Arc::new(engine), Stop::default());
        let task = TaskTracker::new().spawn({
            let (engine, stop) = (engine.clone(), stop.clone());
            async move { engine.run(stop).await.expect("the worker runs") }
        });
        Self { engine, stop, task }
    }

    /// Drains and waits for the end.
    pub(crate) async fn drain(self) -> Report {
        self.stop.drain.cancel();
        self.ended().await
    }

    pub(crate) async fn ended(self) -> Report {
        crate::support::within(PATIENCE, "the worker's end", self.task)
            .await
            .expect("the worker does not panic")
    }
}

/// Waits until the effect is in `state`.
pub(crate) async fn reaches(db: &TestDatabase, id: EffectId, state: State) {
    let what = format!("effect {id} becomes {state}");
    eventually(PATIENCE, &what, async || (db.state(id).await == state).then_some(())).await;
}

/// Retries at once, so that tests need not wait for a schedule.
pub(super) fn at_once(mut terms: RegisteredTerms) -> RegisteredTerms {
    terms.policy.initial = Duration::from_millis(1);
    terms.policy.max = Duration::from_millis(2);
    terms
}

pub(super) fn served(name: &str, downstream: &Arc<Scripted>, terms: RegisteredTerms) -> Served {
    crate::support::served(name, downstream.clone(), terms)
}

pub(super) fn unknown() -> Outcome {
    Outcome::new(Finding::Unknown, Phase::Send, "the connection was reset after the request was sent")
}

pub(super) fn refused_connection() -> Outcome {
    Outcome::new(Finding::NotApplied, Phase::Connect, "connection refused")
}
