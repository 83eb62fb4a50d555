//! Readings that are made once for everybody: by one task, while somebody looks, and never by a request of its own.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aftercommit::{
    clock::{Boot, Clock, Timestamp},
    error::StoreError,
};
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::problem::Problem;

/// What was read for everybody, and how old it is.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<T> {
    /// What was read.
    pub(crate) value: Arc<T>,
    /// When, on the database's clock.
    pub(crate) as_of: Timestamp,
    /// How long ago.
    pub(crate) age: Duration,
}

/// How often something is read for everybody.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// From the beginning of one reading to the next.
    every: Duration,
    /// Older than this it is waited for.
    stale: Duration,
    /// How long it is waited for; then what there is must do.
    wait: Duration,
    /// Nobody looked for so long: no more is read.
    idle: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            stale: Duration::from_secs(2),
            wait: Duration::from_secs(5),
            idle: Duration::from_secs(30),
        }
    }
}

/// What keeps readings fresh.
#[derive(Clone)]
pub(crate) struct Keeper {
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    closing: CancellationToken,
    pace: Pace,
}

impl Keeper {
    pub(crate) fn new(clock: Arc<dyn Clock>, tasks: TaskTracker, closing: CancellationToken) -> Self {
        Self { clock, tasks, closing, pace: Pace::default() }
    }
}

/// The database's clock and what was read, or why not.
pub(crate) type Reading<T> = Pin<Box<dyn Future<Output = Result<(Timestamp, T), StoreError>> + Send>>;

/// A reading that one task keeps fresh while somebody looks.
pub(crate) struct Fresh<T>(Arc<Kept<T>>);

struct Kept<T> {
    keeper: Keeper,
    ask: Box<dyn Fn() -> Reading<T> + Send + Sync>,
    latest: watch::Sender<Latest<T>>,
    // When somebody looked last; who looks while nobody does starts the task. `None`: no task runs.
    looked: Mutex<Option<Boot>>,
    /// When somebody changed something last: what was read before that is not what they expect to see.
    changed: Mutex<Option<Boot>>,
    hurry: Notify,
}

impl<T> Kept<T> {
    fn looked(&self) -> MutexGuard<'_, Option<Boot>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) -> MutexGuard<'_, Option<Boot>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Latest<T> {
    read: Option<Read<T>>,
    /// When the last try began that failed, unless one succeeded since.
    failed: Option<Boot>,
}

struct Read<T> {
    value: Arc<T>,
    as_of: Timestamp,
    began: Boot,
    took: Duration,
}

impl<T> Read<T> {
    /// Whether it need not be waited for another one. Where a reading takes seconds, as beside millions that are pending, whoever
    /// waited for each would see nothing sooner and wait on every page: then it is as old as the next one is on its way.
    fn is_fresh(&self, now: Boot, pace: Pace) -> bool {
        now - self.began <= pace.stale.max(self.took * 2 + pace.every)
    }
}

impl<T: Send + Sync + 'static> Fresh<T> {
    pub(crate) fn new(keeper: Keeper, ask: impl Fn() -> Reading<T> + Send + Sync + 'static) -> Self {
        let (latest, _) = watch::channel(Latest { read: None, failed: None });
        let kept = Kept {
            keeper,
            ask: Box::new(ask),
            latest,
            looked: Mutex::default(),
            changed: Mutex::default(),
            hurry: Notify::new(),
        };
        Self(Arc::new(kept))
    }

    /// Somebody changed something here: whoever looks from now on sees it.
    pub(crate) fn outdate(&self) {
        *self.0.changed() = Some(self.0.keeper.clock.boot());
        self.0.hurry.notify_one();
    }

    /// What was read last; the first one waits for it.
    ///
    /// # Errors
    ///
    /// When nothing was ever read.
    pub(crate) async fn get(&self) -> Result<Snapshot<T>, Problem> {
        let kept = &self.0;
        let now = kept.keeper.clock.boot();
        self.look(now);
        let pace = kept.keeper.pace;
        let changed = *kept.changed();
        let fresh = |latest: &Latest<T>| {
            let read = latest.read.as_ref().is_some_and(|read| {
                read.is_fresh(now, pace) && changed.is_none_or(|changed| read.began >= changed)
            });
            read || latest.failed.is_some_and(|failed| now - failed <= pace.stale)
        };
        let mut latest = kept.latest.subscribe();
        // Not in time, or the task ended with the process: then what there is must do.
        tokio::time::timeout(pace.wait, latest.wait_for(fresh)).await.ok();
        let latest = kept.latest.borrow();
        let Some(read) = &latest.read else { return Err(Problem::unavailable()) };
        let age = kept.keeper.clock.boot() - read.began;
        Ok(Snapshot { value: Arc::clone(&read.value), as_of: read.as_of, age })
    }

    /// Somebody looks.
    fn look(&self, now: Boot) {
        let kept = &self.0;
        let before = kept.looked().replace(now);
        if before.is_none() && !kept.keeper.closing.is_cancelled() {
            kept.keeper.tasks.spawn(keep(Arc::clone(kept)));
        }
    }
}

/// Reads until nobody looks any more.
async fn keep<T: Send + Sync + 'static>(kept: Arc<Kept<T>>) {
    let Keeper { clock, closing, pace, .. } = &kept.keeper;
    loop {
        let began = clock.boot();
        match (kept.ask)().await {
            Ok((as_of, value)) => {
                let read = Read { value: Arc::new(value), as_of, began, took: clock.boot() - began };
                kept.latest.send_replace(Latest { read: Some(read), failed: None });
            }
            Err(error) => {
                tracing::warn!(%error, "what the dashboard shows to everybody could not be read");
                kept.latest.send_modify(|latest| latest.failed = Some(began));
            }
        }
        let took = clock.boot() - began;
        // A database that answers slowly is not asked without a break.
        let pause = pace.every.saturating_sub(took).max(took.min(pace.every));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = kept.hurry.notified() => {}
            () = closing.cancelled() => {}
        }
        let mut looked = kept.looked();
        let idle = looked.is_none_or(|looked| clock.boot() - looked > pace.idle);
        if idle || closing.is_cancelled() {
            *looked = None;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use aftercommit::clock::ManualClock;

    use super::*;

    struct Stage {
        clock: Arc<ManualClock>,
        tasks: TaskTracker,
        asked: Arc<AtomicU32>,
        away: Arc<AtomicBool>,
        fresh: Fresh<u32>,
    }

    /// A database that counts how often it is asked, with `every` between two readings.
    fn stage(every: Duration) -> Stage {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000)));
        let (tasks, asked, away) =
            (TaskTracker::new(), Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let keeper = Keeper {
            pace: Pace { every, ..Pace::default() },
            ..Keeper::new(Arc::clone(&clock) as _, tasks.clone(), CancellationToken::new())
        };
        let (count, gone) = (Arc::clone(&asked), Arc::clone(&away));
        let fresh = Fresh::new(keeper, move || {
            let (count, gone) = (Arc::clone(&count), Arc::clone(&gone));
            Box::pin(async move {
                let asked = count.fetch_add(1, Ordering::SeqCst) + 1;
                if gone.load(Ordering::SeqCst) {
                    return Err(StoreError::Unsupported("away".to_owned()));
                }
                Ok((Timestamp::from_micros(i64::from(asked)), asked))
            })
        });
        Stage { clock, tasks, asked, away, fresh }
    }

    #[tokio::test]
    async fn a_crowd_costs_one_reading() {
        let stage = stage(Duration::from_secs(3600));
        let looks = (0..100).map(|_| stage.fresh.get());
        for look in futures_util::future::join_all(looks).await {
            assert_eq!(*look.unwrap().value, 1);
        }
        assert_eq!(stage.asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn whoever_changed_something_sees_it_at_once() {
        let stage = stage(Duration::from_secs(3600));
        assert_eq!(*stage.fresh.get().await.unwrap().value, 1);
        stage.clock.advance(Duration::from_millis(1));
        stage.fresh.outdate();
        assert_eq!(*stage.fresh.get().await.unwrap().value, 2);
    }

    #[tokio::test]
    async fn what_is_shown_is_two_seconds_old_at_most_while_the_database_answers() {
        let stage = stage(Duration::from_millis(1));
        stage.fresh.get().await.unwrap();
        for _ in 0..20 {
            stage.clock.advance(Duration::from_millis(2_500));
            let shown = stage.fresh.get().await.unwrap();
            assert!(shown.age <= Duration::from_secs(2), "{shown:?}");
        }
    }

    #[test]
    fn nobody_waits_on_every_page_for_a_reading_that_takes_seconds() {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let began = clock.boot();
        let read = |took| Read { value: Arc::new(()), as_of: Timestamp::from_micros(0), began, took };
        clock.advance(Duration::from_secs(7));
        assert!(read(Duration::from_secs(3)).is_fresh(clock.boot(), Pace::default()));
        assert!(!read(Duration::from_millis(300)).is_fresh(clock.boot(), Pace::default()));
    }

    #[tokio::test]
    async fn once_nobody_looks_nothing_is_read_any_more() {
        let stage = stage(Duration::from_millis(1));
        stage.fresh.get().await.unwrap();
        stage.clock.advance(Duration::from_secs(31));
        stage.tasks.close();
        stage.tasks.wait().await;
        let before = stage.asked.load(Ordering::SeqCst);
        stage.clock.advance(Duration::from_secs(60));
        let shown = stage.fresh.get().await.unwrap();
        assert!(*shown.value > before && shown.age <= Duration::from_secs(2), "{shown:?} after {before}");
    }

    #[tokio::test]
    async fn when_the_database_is_away_what_was_read_is_shown_with_its_age() {
        let stage = stage(Duration::from_millis(1));
        stage.away.store(true, Ordering::SeqCst);
        assert!(stage.fresh.get().await.is_err());
        stage.away.store(false, Ordering::SeqCst);
        // The failure counts as the answer for a moment.
        stage.clock.advance(Duration::from_secs(3));
        stage.fresh.get().await.unwrap();
        stage.away.store(true, Ordering::SeqCst);
        stage.clock.advance(Duration::from_secs(10));
        let shown = stage.fresh.get().await.unwrap();
        assert!(shown.age >= Duration::from_secs(10), "{shown:?}");
    }
}
