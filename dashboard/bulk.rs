//! The runner: works through the bulks of its database, a few effects at a time, at the rate that was asked for.
//!
//! Every process with a dashboard has one, whoever serves its router, unless it may change nothing. A bulk is held by one of them, by a
//! lease; when that process dies, another one goes on where it stopped. Each effect is acted on by the statement that any person's action is, with the state and the token that were frozen, and
//! its item is marked in the same transaction: so none is acted on twice, whoever holds the lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use aftercommit::store::BULK_RATE_MAX as RATE_MAX;
use aftercommit::{
    clock::Boot,
    error::StoreError,
    store::{Acted, BulkInfo, BulkItemRow, BulkState, Database, ItemOutcome},
    verb::{Actor, BulkItem, Refusal, Verb},
};
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::shared::{Shared, WeakShared};

/// How long a bulk stands still when the process that works on it dies.
const LEASE: Duration = Duration::from_secs(15);
/// A lease is renewed this often, and a wish to pause or to cancel is seen this soon.
const RENEW: Duration = Duration::from_secs(1);
/// Without a word from our own process we look for bulks this often.
const LOOK: Duration = Duration::from_secs(3);
/// Bulks at one time: one that goes slowly on purpose must not keep the others waiting.
const BULKS_AT_ONCE: usize = 4;
/// Effects of a bulk at one time: each waits for its own commit, and a server flushes several together.
const AT_ONCE: usize = 8;
/// Items that are read at once.
const BATCH: u32 = 200;
/// A database that does not answer is asked again after this long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Wakes the runner: there is something to do.
#[derive(Default)]
pub(crate) struct Bell {
    runs: AtomicBool,
    rung: Notify,
}

impl Bell {
    /// Rings: there is something to do.
    pub(crate) fn notify_one(&self) {
        self.rung.notify_one();
    }
}

/// Taken away with the runner's task, however that ends: the next request begins another.
struct Runs(Arc<Bell>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.runs.store(false, Ordering::Release);
    }
}

/// The runner begins, unless it runs already: called where a dashboard is made, and with each request, so that it runs whoever serves
/// the router. A dashboard that may change nothing has none; where there is no runtime yet, the first request finds one.
pub(crate) fn begin(shared: &Shared) {
    let bell = shared.bell();
    if bell.runs.load(Ordering::Acquire) || shared.settings().read_only || Handle::try_current().is_err() {
        return;
    }
    if !bell.runs.swap(true, Ordering::AcqRel) {
        let runs = Runs(Arc::clone(bell));
        shared.tasks().spawn(run(shared.weak(), runs, shared.closing().clone()));
    }
}

/// There is something to do: the runner looks at once.
pub(crate) fn ring(shared: &Shared) {
    begin(shared);
    shared.bell().notify_one();
}

/// Works until the dashboard ends: it closes, or nothing is left that could be asked.
async fn run(dashboard: WeakShared, runs: Runs, closing: CancellationToken) {
    let runner: Arc<str> = format!("dashboard {}", uuid::Uuid::new_v4()).into();
    let mut open = JoinSet::new();
    while !closing.is_cancelled() {
        let Some(shared) = dashboard.upgrade() else { break };
        if open.len() < BULKS_AT_ONCE {
            match shared.database().take_bulk(&runner, LEASE).await {
                Ok(Some(bulk)) => {
                    open.spawn(work(shared, Arc::clone(&runner), bulk));
                    continue;
                }
                Ok(None) => {}
                // A database that is away is told by everything else that asks it.
                Err(error) => tracing::debug!(%error, "whether there are bulks is not known"),
            }
        }
        drop(shared);
        tokio::select! {
            () = runs.0.rung.notified() => {}
            _ = open.join_next(), if !open.is_empty() => {}
            () = tokio::time::sleep(LOOK) => {}
            () = closing.cancelled() => {}
        }
    }
    // What was begun is finished: a database call that is dropped may leave its connection in a transaction.
    while open.join_next().await.is_some() {}
}

/// Works on one bulk until it is through, or not ours any more.
async fn work(shared: Shared, runner: Arc<str>, bulk: BulkInfo) {
    let Some(verb) = Verb::of_word(&bulk.verb) else {
        tracing::warn!(
            bulk = bulk.id,
            verb = bulk.verb,
            "this version does not know that verb: another one may"
        );
        // It is not looked at again before its lease is over.
        return;
    };
    // Not the dashboard itself: a bulk that goes slowly on purpose is none that anybody asks.
    let mut worker = Worker {
        database: Arc::clone(shared.database()),
        closing: shared.closing().clone(),
        clock: Arc::clone(&shared.settings().clock),
        pace: pace(bulk.rate),
        kept: None,
        runner,
        verb,
        bulk,
    };
    drop(shared);
    while !worker.closing.is_cancelled() {
        match worker.batch().await {
            Ok(Next::Batch) => {}
            Ok(Next::Nothing) => return,
            Err(error) => {
                tracing::warn!(%error, bulk = worker.bulk.id, "a bulk cannot go on for now");
                worker.kept = None;
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

/// What is done after a batch.
enum Next {
    /// Another one.
    Batch,
    /// Nothing: it is through, stands still, or is somebody else's.
    Nothing,
}

struct Worker {
    database: Arc<dyn Database>,
    closing: CancellationToken,
    clock: Arc<dyn aftercommit::clock::Clock>,
    pace: Option<Interval>,
    /// When the lease was renewed last.
    kept: Option<Boot>,
    runner: Arc<str>,
    verb: Verb,
    bulk: BulkInfo,
}

impl Worker {
    /// Acts on the next few, or ends the bulk when none is left.
    async fn batch(&mut self) -> Result<Next, StoreError> {
        self.kept = None;
        if !self.may_go_on().await? {
            return Ok(Next::Nothing);
        }
        let items = self.database.bulk_items(self.bulk.id, BATCH).await?;
        if items.is_empty() {
            self.database.end_bulk(self.bulk.id).await?;
            return Ok(Next::Nothing);
        }
        let mut open = JoinSet::new();
        let mut ended = Ok(Next::Batch);
        for item in items {
            // The failed one is asked for again with the next batch; whether it was done is known then.
            if ended.is_err() || self.closing.is_cancelled() {
                break;
            }
            self.wait().await;
            match self.may_go_on().await {
                Ok(true) => {}
                Ok(false) => {
                    ended = Ok(Next::Nothing);
                    break;
                }
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
            open.spawn(one(
                Arc::clone(&self.database),
                self.verb.clone(),
                self.actor(item.n),
                (self.bulk.id, item),
            ));
            if open.len() >= AT_ONCE {
                keep_first(&mut ended, open.join_next().await);
            }
        }
        while let Some(done) = open.join_next().await {
            keep_first(&mut ended, Some(done));
        }
        ended
    }

    /// Waits for the rate.
    async fn wait(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.tick().await;
        }
    }

    /// Whether the bulk is still ours and to go on: asked once a second.
    async fn may_go_on(&mut self) -> Result<bool, StoreError> {
        let now = self.clock.boot();
        if self.kept.is_some_and(|kept| now - kept < RENEW) {
            return Ok(true);
        }
        let state = self.database.keep_bulk(self.bulk.id, &self.runner, LEASE).await?;
        self.kept = Some(now);
        Ok(state == Some(BulkState::Running))
    }

    /// Who acts: whoever started it.
    fn actor(&self, n: u32) -> Actor {
        Actor {
            who: self.bulk.who.clone(),
            reason: self.bulk.reason.clone(),
            from: self.bulk.from.clone(),
            bulk: Some(BulkItem { bulk: self.bulk.id, n }),
            // No bulk of what may be applied twice is started before that is confirmed.
            confirmed: true,
        }
    }
}

fn keep_first(
    ended: &mut Result<Next, StoreError>,
    done: Option<Result<Result<(), StoreError>, tokio::task::JoinError>>,
) {
    match done {
        Some(Ok(Err(error))) if ended.is_ok() => *ended = Err(error),
        // A panic has told itself. The bulk is looked at again when its lease is over, and not at once.
        Some(Err(_)) if ended.is_ok() => *ended = Ok(Next::Nothing),
        Some(Ok(_) | Err(_)) | None => {}
    }
}

/// Acts on one. Refusals are written down; a failure of the database is not: the item is looked at again.
async fn one(
    database: Arc<dyn Database>,
    verb: Verb,
    actor: Actor,
    (bulk, item): (i64, BulkItemRow),
) -> Result<(), StoreError> {
    let (outcome, words) = match database.act(item.effect, &verb, &actor, Some(item.seen)).await {
        Ok(Acted::Done(..)) => return Ok(()),
        // It was paused or cancelled a moment ago, or another runner was here before: neither is said of the effect.
        Ok(Acted::Refused(Refusal::NotInBulk { .. })) => return Ok(()),
        Ok(Acted::NotFound) => (ItemOutcome::NotFound, format!("there is no effect {}", item.effect)),
        Ok(Acted::Refused(refusal)) => {
            let outcome = if matches!(refusal, Refusal::Stale { .. }) {
                ItemOutcome::Stale
            } else {
                ItemOutcome::Refused
            };
            (outcome, format!("effect {}: {refusal}", item.effect))
        }
        // The next time may go better; and what this login may do somebody can change.
        Err(error) if error.is_outage() || error.is_forbidden() => return Err(error),
        // It would fail again and again, and hold up the others: a row that cannot be read, a trigger that refuses.
        Err(error) => {
            tracing::warn!(%error, effect = item.effect.get(), bulk, "an effect of a bulk cannot be acted on");
            (ItemOutcome::Refused, format!("effect {}: {error}", item.effect))
        }
    };
    database.bulk_refused(bulk, item.n, outcome, &words).await
}

/// One tick per effect.
fn pace(rate: u32) -> Option<Interval> {
    (1..=RATE_MAX).contains(&rate).then(|| {
        let mut pace = interval(Duration::from_secs(1) / rate);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pace
    })
}
