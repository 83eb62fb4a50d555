//! What happens in each act of the story: a worker is killed between a call and its record, and another one goes on.

use std::{future::Future, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    state::State,
    store::{Database, Filter, Status},
};
use anyhow::Context as _;
use tokio::time::{sleep, timeout};

use super::{
    figures::count,
    sink::Sink,
    stage::{FAX_TIMEOUT, Stage, Worker},
};
use crate::cli::{Exit, fail};

/// A worker on this machine makes its first call well within this.
const FIRST_CALLS: Duration = Duration::from_secs(20);
/// Lease, retry and sweep of the demo take a few seconds; a machine under load takes longer.
const SETTLED: Duration = Duration::from_secs(60);

/// Starts a worker and waits until `sink` applied application number `nth` and holds its answer back: the worker is now
/// between a call and its record.
pub(super) async fn catch_between(stage: &Stage, sink: &Sink, nth: usize) -> anyhow::Result<Worker> {
    sink.arm(nth);
    let mut worker = stage.start_worker()?;
    let early = tokio::select! {
        sprung = timeout(FIRST_CALLS, sink.sprung()) => match sprung {
            Ok(()) => None,
            Err(_late) => Some(format!("the worker made too few calls within {} s", FIRST_CALLS.as_secs())),
        },
        ended = worker.ended() => Some(ended),
    };
    early.map_or(Ok(worker), |problem| Err(broken(stage, &problem)))
}

/// Waits until `count` effects of a downstream are recorded as succeeded. Outcomes are written in batches, a moment after
/// the answers; a kill in that moment would put the neighbours of the one that the story is about in doubt as well.
pub(super) async fn recorded(stage: &Stage, downstream: &str, count: usize) -> anyhow::Result<()> {
    let clock = SystemClock;
    // Shorter than the timeout, at whose end the worker would give up the call that is held.
    let deadline = clock.boot().plus(FAX_TIMEOUT * 3 / 4);
    while effects(stage.database.as_ref(), downstream, State::Succeeded).await?.len() < count
        && clock.boot() < deadline
    {
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Starts a worker and lets it work until `done` says so; then it drains.
pub(super) async fn work_until<F, T>(stage: &Stage, what: &str, done: F) -> anyhow::Result<()>
where
    F: Fn() -> T,
    T: Future<Output = anyhow::Result<bool>>,
{
    let clock = SystemClock;
    let deadline = clock.boot().plus(SETTLED);
    let mut worker = stage.start_worker()?;
    loop {
        if done().await? {
            return worker.drain().await;
        }
        if clock.boot() >= deadline {
            return Err(broken(stage, &format!("{what} did not happen within {} s", SETTLED.as_secs())));
        }
        tokio::select! {
            ended = worker.ended() => return Err(broken(stage, &ended)),
            () = sleep(Duration::from_millis(100)) => {}
        }
    }
}

/// Whether every effect of a downstream has ended or is parked.
pub(super) async fn settled(database: &dyn Database, downstreams: &[&str]) -> anyhow::Result<bool> {
    let counts = database.counts().await?;
    let moving = [State::Waiting, State::Scheduled, State::Ready, State::InFlight, State::Retrying];
    Ok(downstreams.iter().all(|name| moving.iter().all(|state| count(&counts, name, Some(*state)) == 0)))
}

/// The newest effects of a downstream in a state.
pub(super) async fn effects(
    database: &dyn Database,
    downstream: &str,
    state: State,
) -> anyhow::Result<Vec<Status>> {
    let filter = Filter {
        states: vec![state],
        downstream: Some(downstream.to_owned()),
        limit: 100,
        ..Filter::default()
    };
    Ok(database.effects(&filter).await.context("looking at the effects")?.effects)
}

fn broken(stage: &Stage, problem: &str) -> anyhow::Error {
    let log = stage.log_tail();
    let said = if log.is_empty() { String::new() } else { format!("\nIts last words:\n{log}") };
    fail(Exit::Failure, format!("{problem}; everything is in {}.{said}", stage.folder.display()))
}
