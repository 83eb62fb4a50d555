//! Retention: drops what was kept long enough, step after step, in batches that never hurt. A batch that took long is
//! followed by a smaller one, and every batch by a rest that is a multiple of what it took, so that purging has a bounded
//! share of one connection however much there is to do. The loop lives here; what a batch drops, in the store.

use std::{ops::AddAssign, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Shared, Stop, outage::Outages};
use crate::{
    clock::{Boot, Timestamp},
    error::StoreError,
    store::{AHEAD_MAX, Ahead, Retain, Retention, Step},
};

/// Effects of the first batch of a look and at least, and at most: payloads may be large, which only the first batch shows;
/// and a database that is slow for another reason must not be given less and less to do.
const BATCH: (u32, u32) = (50, 1000);
/// A batch that took longer is followed by one of half its size; one that took less than a quarter, by one of twice.
const BATCH_LONG: Duration = Duration::from_millis(100);
/// No rest is shorter.
const REST_MIN: Duration = Duration::from_millis(2);
/// Between two looks at most: what is due a little longer costs nobody anything.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Between two looks at least, however short the retention.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// Unused terms are looked for at every n-th look.
const FORGET_EVERY: u32 = 20;
/// How far two clocks may part while one is held against the other, and how long ago it must have been met at most.
const APART_MAX: Duration = Duration::from_secs(3600);

/// How a purge goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// With at most a third of one connection's time; where another worker is at it, it is left to it.
    Background,
    /// With half of it, since somebody waits for the end; others at work are waited for.
    AtOnce,
}

impl Manner {
    /// The rest after a batch, in multiples of what it took.
    const fn rest(self) -> u32 {
        match self {
            Self::Background => 2,
            Self::AtOnce => 1,
        }
    }
}

/// Effects that each step was done with, and rows of what came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purged {
    /// Whose payload was dropped.
    pub payloads: u64,
    /// Whose attempt log and response were dropped.
    pub history: u64,
    /// That are gone, with their keys.
    pub keys: u64,
    /// Answers of guarded requests that are gone.
    pub requests: u64,
    /// Received messages that are forgotten.
    pub inbox: u64,
    /// Why no keys were dropped: the database's clock may have jumped.
    #[serde(skip)]
    pub ahead: Option<Ahead>,
}

impl Purged {
    /// The count of one step.
    pub fn of(&mut self, step: Step) -> &mut u64 {
        match step {
            Step::Payloads => &mut self.payloads,
            Step::History => &mut self.history,
            Step::Keys => &mut self.keys,
            Step::Requests => &mut self.requests,
            Step::Inbox => &mut self.inbox,
        }
    }
}

/// Drops everything that is due now, until `stop`; `seen` hears of every batch. What somebody is working on at this moment is
/// left for a later purge.
///
/// # Errors
///
/// [`StoreError`]; what was dropped before is dropped.
pub async fn purge(
    store: &(impl Retain + ?Sized),
    retention: &Retention,
    manner: Manner,
    stop: &CancellationToken,
    mut seen: impl FnMut(Step, u64),
) -> Result<Purged, StoreError> {
    let mut purged = Purged::default();
    // In turns: a step that has much to do, or cannot keep up, must not keep the others from theirs.
    let mut open: Vec<(Step, u32)> = Step::ALL.into_iter().map(|step| (step, BATCH.0)).collect();
    while !open.is_empty() && !stop.is_cancelled() {
        let mut again = Vec::with_capacity(open.len());
        for (step, limit) in open {
            let batch = store.drop_batch(step, retention.of(step), limit).await?;
            purged.of(step).add_assign(batch.effects);
            purged.ahead = purged.ahead.or(batch.ahead);
            seen(step, batch.effects);
            if batch.more || (batch.elsewhere && manner == Manner::AtOnce) {
                again.push((step, next_limit(limit, batch.held)));
                tokio::select! {
                    () = tokio::time::sleep((batch.held * manner.rest()).max(REST_MIN)) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
        // A key falls due when the steps before are through with its effect.
        if purged.ahead.is_none()
            && again.iter().any(|(step, _)| matches!(step, Step::Payloads | Step::History))
            && !again.iter().any(|(step, _)| *step == Step::Keys)
        {
            again.push((Step::Keys, BATCH.0));
        }
        open = again;
    }
    Ok(purged)
}

fn next_limit(limit: u32, took: Duration) -> u32 {
    if took > BATCH_LONG {
        (limit / 2).max(BATCH.0)
    } else if took < BATCH_LONG / 4 {
        (limit * 2).min(BATCH.1)
    } else {
        limit
    }
}

/// Looks again and again until told to drain.
pub(super) async fn run(shared: Arc<Shared>, stop: Stop) {
    let Some(retention) = shared.config.retention else { return };
    let pause = between_looks(&retention);
    let mut outages = Outages::default();
    let mut watch = Watch::default();
    let mut looks = 0u32;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.drain.cancelled() => return,
        }
        match look(&shared, &retention, &stop, (&mut watch, looks)).await {
            Ok(()) => outages.over(),
            Err(error) => outages.report("retention", &error),
        }
        looks = looks.wrapping_add(1);
    }
}

async fn look(
    shared: &Shared,
    retention: &Retention,
    stop: &Stop,
    (watch, looks): (&mut Watch, u32),
) -> Result<(), StoreError> {
    let store = &*shared.store;
    let purged = purge(store, retention, Manner::Background, &stop.drain, |_, _| {}).await?;
    if purged != Purged::default() {
        tracing::debug!(
            payloads = purged.payloads,
            history = purged.history,
            keys = purged.keys,
            requests = purged.requests,
            inbox = purged.inbox,
            "purged"
        );
    }
    if let Some(ahead) = purged.ahead {
        return doubt(store, ahead, watch.meets(ahead.now, shared.clock.boot())).await;
    }
    if looks.is_multiple_of(FORGET_EVERY) {
        store.forget_unused(retention.keys).await?;
    }
    Ok(())
}

/// A key that is dropped too early lets a payment be made twice; one that is kept a day longer costs nothing.
async fn doubt(store: &(impl Retain + ?Sized), ahead: Ahead, met: Met) -> Result<(), StoreError> {
    match met {
        Met::First => tracing::error!(
            now = %ahead.now,
            last_look = %ahead.last,
            "the database's clock is more than a day ahead of retention's last look: no key is dropped until it has run \
             in step with this machine's for a day. If nobody looked for so long and the clock is right, \
             `aftercommit purge --trust-clock` says so"
        ),
        Met::Again => {}
        Met::LongEnough => {
            tracing::warn!(now = %ahead.now, "the database's clock ran in step for a day: keys are dropped again");
            store.believe_clock().await?;
        }
    }
    Ok(())
}

/// A clock that nobody believes, held against this machine's own, which runs on through suspend and is set by nobody.
#[derive(Debug, Default)]
struct Watch(Option<Held>);

#[derive(Clone, Copy, Debug)]
struct Held {
    /// What both said at first.
    first: (Timestamp, Boot),
    /// When it was last met.
    met: Boot,
}

/// What holding the clocks against each other shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// The watch begins, or begins anew: the clock was set meanwhile, or was not looked at for too long.
    First,
    /// They run in step.
    Again,
    /// They have for [`AHEAD_MAX`].
    LongEnough,
}

impl Watch {
    fn meets(&mut self, now: Timestamp, boot: Boot) -> Met {
        let held = self.0.filter(|held| {
            let ran = boot - held.first.1;
            now >= held.first.0
                && now.since(held.first.0).abs_diff(ran) <= APART_MAX
                && boot - held.met <= APART_MAX
        });
        let first = held.map_or((now, boot), |held| held.first);
        self.0 = Some(Held { first, met: boot });
        if held.is_none() {
            Met::First
        } else if boot - first.1 < AHEAD_MAX {
            Met::Again
        } else {
            self.0 = None;
            Met::LongEnough
        }
    }
}

/// A short retention is looked at often enough that what it keeps stays near it.
fn between_looks(retention: &Retention) -> Duration {
    let shortest = retention.payloads.min(retention.history).min(retention.keys);
    (shortest / 20).clamp(LOOK_MIN, LOOK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_when_they_take_long_and_grow_when_they_do_not() {
        let ms = Duration::from_millis;
        assert_eq!(next_limit(400, ms(101)), 200);
        assert_eq!(next_limit(400, ms(60)), 400);
        assert_eq!(next_limit(400, ms(5)), 800);
        assert_eq!(next_limit(800, ms(5)), BATCH.1);
        assert_eq!(next_limit(BATCH.0, ms(5000)), BATCH.0, "what is due must get done");
    }

    #[test]
    fn a_clock_is_believed_once_it_has_run_in_step_for_a_day() {
        let (start, boot) = (Timestamp::from_micros(0), Boot::default());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let mut watch = Watch::default();
        assert_eq!(watch.meets(start, boot), Met::First);
        for at in (30..1440).step_by(30) {
            assert_eq!(watch.meets(start.plus(minutes(at)), boot.plus(minutes(at))), Met::Again);
        }
        assert_eq!(watch.meets(start.plus(minutes(1440)), boot.plus(minutes(1440))), Met::LongEnough);
        assert_eq!(watch.meets(start, boot), Met::First, "a doubt that comes later begins anew");
    }

    #[test]
    fn a_clock_that_is_set_again_or_was_not_watched_is_watched_anew() {
        let (start, boot) = (Timestamp::from_micros(0), Boot::default());
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let mut watch = Watch::default();
        assert_eq!(watch.meets(start, boot), Met::First);
        assert_eq!(watch.meets(start.plus(hours(30)), boot.plus(hours(1))), Met::First, "set forward");
        assert_eq!(watch.meets(start, boot.plus(hours(2))), Met::First, "set back");
        assert_eq!(watch.meets(start.plus(hours(1)), boot.plus(hours(3))), Met::Again);
        assert_eq!(
            watch.meets(start.plus(hours(23)), boot.plus(hours(25))),
            Met::First,
            "met again only now"
        );
    }

    #[test]
    fn a_short_retention_is_looked_at_often() {
        let of = |seconds| Retention { payloads: Duration::from_secs(seconds), ..Retention::default() };
        assert_eq!(between_looks(&Retention::default()), LOOK_MAX);
        assert_eq!(between_looks(&of(10)), Duration::from_millis(500));
        assert_eq!(between_looks(&of(0)), LOOK_MIN);
    }
}
