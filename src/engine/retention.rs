//! Retention: drops what was kept long enough, step after step, in batches that never hurt. A batch that took long is
//! followed by a smaller one, and every batch by a rest that is a multiple of what it took, so that purging has a bounded
//! share of one connection however much there is to do. The loop lives here; what a batch drops, in the store.

use std::{ops::AddAssign, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Shared, Stop, outage::Outages};
use crate::{
    error::StoreError,
    store::{Retain, Retention, Step},
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

/// Effects that each step was done with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purged {
    /// Whose payload was dropped.
    pub payloads: u64,
    /// Whose attempt log and response were dropped.
    pub history: u64,
    /// That are gone, with their keys.
    pub keys: u64,
}

impl Purged {
    /// The effects of one step.
    pub fn of(&mut self, step: Step) -> &mut u64 {
        match step {
            Step::Payloads => &mut self.payloads,
            Step::History => &mut self.history,
            Step::Keys => &mut self.keys,
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
        if again.iter().any(|(step, _)| *step != Step::Keys)
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
    let mut looks = 0u32;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.drain.cancelled() => return,
        }
        match look(&shared, &retention, &stop, looks.is_multiple_of(FORGET_EVERY)).await {
            Ok(()) => outages.over(),
            Err(error) => outages.report("retention", &error),
        }
        looks = looks.wrapping_add(1);
    }
}

async fn look(shared: &Shared, retention: &Retention, stop: &Stop, forget: bool) -> Result<(), StoreError> {
    let store = &*shared.store;
    let purged = purge(store, retention, Manner::Background, &stop.drain, |_, _| {}).await?;
    if purged != Purged::default() {
        tracing::debug!(payloads = purged.payloads, history = purged.history, keys = purged.keys, "purged");
    }
    if forget {
        store.forget_unused(retention.keys).await?;
    }
    Ok(())
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
    fn a_short_retention_is_looked_at_often() {
        let of = |seconds| Retention { payloads: Duration::from_secs(seconds), ..Retention::default() };
        assert_eq!(between_looks(&Retention::default()), LOOK_MAX);
        assert_eq!(between_looks(&of(10)), Duration::from_millis(500));
        assert_eq!(between_looks(&of(0)), LOOK_MIN);
    }
}
