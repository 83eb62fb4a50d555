//! What a worker did since it started, over all downstreams.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a worker did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Effects claimed.
    pub claimed: u64,
    /// Attempts made.
    pub attempted: u64,
    /// Settles written.
    pub settled: u64,
    /// Settles refused because the lease was lost.
    pub fenced: u64,
    /// Leases that ended, and overdue effects, that were swept.
    pub swept: u64,
    /// Of these, the leases that ended without an outcome.
    pub leases_ended: u64,
    /// Probes made.
    pub probed: u64,
    /// Downstream code that panicked; each is recorded as an attempt with an unknown outcome.
    pub panics: u64,
    /// *Applied* answers that contradict what a person resolved, or that came for a superseded effect.
    pub possible_duplicates: u64,
}

/// The report as it grows.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) claimed: AtomicU64,
    pub(super) attempted: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) fenced: AtomicU64,
    pub(super) swept: AtomicU64,
    pub(super) leases_ended: AtomicU64,
    pub(super) probed: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) possible_duplicates: AtomicU64,
}

impl Counters {
    pub(super) fn report(&self) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            claimed: read(&self.claimed),
            attempted: read(&self.attempted),
            settled: read(&self.settled),
            fenced: read(&self.fenced),
            swept: read(&self.swept),
            leases_ended: read(&self.leases_ended),
            probed: read(&self.probed),
            panics: read(&self.panics),
            possible_duplicates: read(&self.possible_duplicates),
        }
    }

    /// Adds to one of them.
    pub(super) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
