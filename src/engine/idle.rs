//! When a worker that is to end when idle ends: once nothing is due, in flight or being probed. What is to be retried or probed
//! later keeps nobody waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Shared, Stop, probe};

/// Between two looks at whether it is idle.
const LOOK_MAX: Duration = Duration::from_millis(200);

/// How many rounds of probes this worker began, and probes in them, and how many of both have ended. Two numbers rather than
/// their difference: where as many were begun after a question as had ended before it, no probe of this worker was under way
/// meanwhile, however briefly.
#[derive(Default)]
pub(super) struct Probing {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Probing {
    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A round of probes, or a probe, that counts as under way until this is dropped.
pub(super) struct UnderWay(Arc<Shared>);

impl UnderWay {
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        shared.probing.begun.fetch_add(1, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.probing.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns, with the drain begun, once the database has nothing left to do for this worker. It is asked only when no attempt is
/// in this worker's hands: the question costs it as much as a claim.
pub(super) async fn wait(shared: &Shared, stop: &Stop) {
    let names: Vec<Arc<str>> = shared.served.keys().cloned().collect();
    let claimed = || shared.counters.report().claimed;
    let mut before = None;
    loop {
        tokio::time::sleep(shared.config.poll.min(LOOK_MAX)).await;
        let now = claimed();
        if before.replace(now) != Some(now) || !shared.leases.is_empty() {
            continue;
        }
        let ended = shared.probing.ended();
        // There are two questions, and a claim is not in hand before its answer: what this worker itself moved meanwhile (a
        // probe that was claimed, is open, or settled into a retry) may be in neither answer.
        if nothing_due(shared, &names).await && shared.probing.begun() == ended && claimed() == now {
            stop.drain.cancel();
            return;
        }
    }
}

/// What the database says. Probes first: one of another worker that settles into a retry in between is due at the second.
async fn nothing_due(shared: &Shared, names: &[Arc<str>]) -> bool {
    !probe::is_due(shared).await.unwrap_or(true) && shared.store.is_idle(names).await.unwrap_or(false)
}
