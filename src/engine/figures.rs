//! What a worker measured since it started, for metrics and health. Atomics only: an attempt adds to five of them and takes
//! no lock.
//!
//! Labels are bounded: a downstream is measured here only if this worker serves it, never because an effect's row names it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::Boot,
    outcome::{Outcome, Verdict},
};

/// Upper bounds of the buckets of an attempt's duration: from a broker's confirm to the longest timeout in use.
pub const ATTEMPT_BUCKETS_MS: [u64; 14] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000];
/// Upper bounds of the buckets of the delivery lag: from a wake-up's few milliseconds to a day of retries.
pub const LAG_BUCKETS_MS: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 1_800_000, 7_200_000, 86_400_000];

/// One downstream's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct DownstreamFigures {
    /// Its name.
    pub downstream: Arc<str>,
    /// Attempts by what they showed; one whose lease ended is counted, as unknown, by the worker that swept it.
    pub attempts: [(Verdict, u64); 4],
    /// Answers that the downstream marked as replays.
    pub replays: u64,
    /// *Applied* answers that contradict what a person resolved, or that came for a superseded effect.
    pub possible_duplicates: u64,
    /// How long attempts took.
    pub attempt: Timings,
    /// From the effect's row to its success, a wait that the application asked for included.
    pub lag: Timings,
}

/// A histogram as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Timings {
    /// Upper bound in seconds, and how many were at most as long and longer than the bound before; the last bound is
    /// infinity.
    pub buckets: Vec<(f64, u64)>,
    /// All of them together, in seconds.
    pub sum: f64,
    /// How many.
    pub count: u64,
}

/// When the database last let this worker do what keeps it alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Since it claimed, or found nothing to claim. `None`: not yet.
    pub since_claim: Option<Duration>,
    /// Since it renewed its leases or reported. `None`: not yet.
    pub since_renewal: Option<Duration>,
}

impl Pulse {
    /// The younger of the two; `None` when there was neither.
    pub fn age(&self) -> Option<Duration> {
        [self.since_claim, self.since_renewal].into_iter().flatten().min()
    }
}

/// Everything that is measured.
#[derive(Debug)]
pub(super) struct Figures {
    downstreams: BTreeMap<Arc<str>, Measured>,
    /// Written per claim and per renewal, not per attempt.
    pulse: Mutex<[Option<Boot>; 2]>,
}

/// What beats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Claim,
    Renewal,
}

#[derive(Debug)]
struct Measured {
    attempts: [AtomicU64; 4],
    replays: AtomicU64,
    possible_duplicates: AtomicU64,
    attempt: Histogram<14>,
    lag: Histogram<14>,
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    bounds_ms: [u64; N],
    /// One more than the bounds: what is longer than all of them.
    over: AtomicU64,
    within: [AtomicU64; N],
    sum_us: AtomicU64,
}

impl Figures {
    pub(super) fn of(names: impl Iterator<Item = Arc<str>>) -> Self {
        Self { downstreams: names.map(|name| (name, Measured::new())).collect(), pulse: Mutex::default() }
    }

    /// An attempt was made.
    pub(super) fn attempted(&self, downstream: &str, outcome: &Outcome, took: Duration) {
        let Some(measured) = self.downstreams.get(downstream) else { return };
        add(&measured.attempts[position(outcome.verdict())]);
        if outcome.replayed {
            add(&measured.replays);
        }
        measured.attempt.record(took);
    }

    /// An attempt's lease ended without a word.
    pub(super) fn lease_ended(&self, downstream: &str) {
        if let Some(measured) = self.downstreams.get(downstream) {
            add(&measured.attempts[position(Verdict::Unknown)]);
        }
    }

    /// An effect succeeded, this long after it was written.
    pub(super) fn delivered(&self, downstream: &str, lag: Duration) {
        if let Some(measured) = self.downstreams.get(downstream) {
            measured.lag.record(lag);
        }
    }

    /// A late answer contradicts a person.
    pub(super) fn possible_duplicate(&self, downstream: &str) {
        if let Some(measured) = self.downstreams.get(downstream) {
            add(&measured.possible_duplicates);
        }
    }

    /// The database let us work.
    pub(super) fn beat(&self, what: Beat, at: Boot) {
        let place = match what {
            Beat::Claim => 0,
            Beat::Renewal => 1,
        };
        self.pulse.lock().expect("no holder of this lock panics")[place] = Some(at);
    }

    pub(super) fn pulse(&self, now: Boot) -> Pulse {
        let [claim, renewal] = *self.pulse.lock().expect("no holder of this lock panics");
        Pulse { since_claim: claim.map(|at| now - at), since_renewal: renewal.map(|at| now - at) }
    }

    pub(super) fn read(&self) -> Vec<DownstreamFigures> {
        let read = |(name, measured): (&Arc<str>, &Measured)| DownstreamFigures {
            downstream: name.clone(),
            attempts: Verdict::ALL
                .map(|verdict| (verdict, measured.attempts[position(verdict)].load(Ordering::Relaxed))),
            replays: measured.replays.load(Ordering::Relaxed),
            possible_duplicates: measured.possible_duplicates.load(Ordering::Relaxed),
            attempt: measured.attempt.read(),
            lag: measured.lag.read(),
        };
        self.downstreams.iter().map(read).collect()
    }
}

impl Measured {
    fn new() -> Self {
        Self {
            attempts: Default::default(),
            replays: AtomicU64::default(),
            possible_duplicates: AtomicU64::default(),
            attempt: Histogram::new(ATTEMPT_BUCKETS_MS),
            lag: Histogram::new(LAG_BUCKETS_MS),
        }
    }
}

impl<const N: usize> Histogram<N> {
    fn new(bounds_ms: [u64; N]) -> Self {
        let within = std::array::from_fn(|_| AtomicU64::default());
        Self { bounds_ms, over: AtomicU64::default(), within, sum_us: AtomicU64::default() }
    }

    fn record(&self, length: Duration) {
        let us = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let place = self.bounds_ms.partition_point(|bound| bound.saturating_mul(1_000) < us);
        add(self.within.get(place).unwrap_or(&self.over));
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn read(&self) -> Timings {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut buckets: Vec<(f64, u64)> = self
            .bounds_ms
            .iter()
            .zip(&self.within)
            .map(|(bound, counter)| (Duration::from_millis(*bound).as_secs_f64(), read(counter)))
            .collect();
        buckets.push((f64::INFINITY, read(&self.over)));
        // Of the same reading as the buckets, or a scrape between two writes would contradict itself.
        let count = buckets.iter().map(|(_, n)| n).sum();
        Timings { buckets, sum: Duration::from_micros(read(&self.sum_us)).as_secs_f64(), count }
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn position(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Applied => 0,
        Verdict::Rejected => 1,
        Verdict::NotApplied => 2,
        Verdict::Unknown => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Finding, Phase};

    fn figures() -> Figures {
        Figures::of(["mail", "payments"].into_iter().map(Arc::from))
    }

    #[test]
    fn an_attempt_is_counted_once_in_the_bucket_that_holds_it() {
        let figures = figures();
        let outcome = Outcome::new(Finding::Applied, Phase::Done, String::new());
        figures.attempted("payments", &outcome, Duration::from_millis(2));
        figures.attempted("payments", &outcome, Duration::from_micros(2_001));
        figures.attempted("payments", &outcome, Duration::from_secs(3_600));
        let read = figures.read();
        let payments = &read[1];
        assert_eq!(payments.attempts[0], (Verdict::Applied, 3));
        assert_eq!(payments.attempt.count, 3);
        assert_eq!(payments.attempt.buckets[1], (0.002, 1));
        assert_eq!(payments.attempt.buckets[2], (0.005, 1));
        assert_eq!(payments.attempt.buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!((payments.attempt.sum - 3_600.004).abs() < 0.01, "{}", payments.attempt.sum);
        assert_eq!(read[0].attempt.count, 0);
    }

    #[test]
    fn a_name_that_only_an_effect_uses_becomes_no_label() {
        let figures = figures();
        let outcome = Outcome::new(Finding::Applied, Phase::Done, String::new());
        figures.attempted("x'; DROP", &outcome, Duration::ZERO);
        figures.lease_ended("x'; DROP");
        figures.delivered("x'; DROP", Duration::ZERO);
        assert_eq!(figures.read().len(), 2);
    }
}
