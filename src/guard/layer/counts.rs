//! How requests came out, for the metric `aftercommit_requests_total`.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many requests came out in which way, since the guard was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// They ran. One that was rolled back and comes again is counted again.
    pub first: u64,
    /// They got the stored answer.
    pub replayed: u64,
    /// They were told that the first is in progress.
    pub in_progress: u64,
    /// They were told that their key is another request's.
    pub mismatch: u64,
}

/// Shared by the guard and its layers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    first: AtomicU64,
    replayed: AtomicU64,
    in_progress: AtomicU64,
    mismatch: AtomicU64,
}

impl Tally {
    pub(super) fn counts(&self) -> RequestCounts {
        RequestCounts {
            first: self.first.load(Ordering::Relaxed),
            replayed: self.replayed.load(Ordering::Relaxed),
            in_progress: self.in_progress.load(Ordering::Relaxed),
            mismatch: self.mismatch.load(Ordering::Relaxed),
        }
    }

    // Each gives the word that the metric and the log have for it.

    pub(super) fn first(&self) -> &'static str {
        self.first.fetch_add(1, Ordering::Relaxed);
        "first"
    }

    pub(super) fn replayed(&self) -> &'static str {
        self.replayed.fetch_add(1, Ordering::Relaxed);
        "replayed"
    }

    pub(super) fn in_progress(&self) -> &'static str {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        "in_progress"
    }

    pub(super) fn mismatch(&self) -> &'static str {
        self.mismatch.fetch_add(1, Ordering::Relaxed);
        "mismatch"
    }
}
