//! The worker's engine: claim, attempt, decide, settle, sweep.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, downstream::Served, error::StoreError, store::Store};

/// A lease must outlast the timeout by at least this, or every timed-out attempt loses the race against the sweep.
pub const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name: unique per process start (host, process id, epoch).
    pub worker: Arc<str>,
    /// Its version.
    pub version: &'static str,
    /// How long it sleeps when nothing is due and no hint came.
    pub poll: Duration,
    /// Attempts at one time over all downstreams.
    pub concurrency: u32,
    /// How long calls that are open may go on once it was asked to stop.
    pub shutdown_grace: Duration,
    /// How often it looks for leases that ended and effects that are overdue.
    pub sweep_interval: Duration,
}

/// How a worker is stopped. Cancel `drain` first: nothing more is claimed, open calls go on until `shutdown_grace`. Cancel
/// `abort` to stop at once: open calls are left to the sweep.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// No more claims.
    pub drain: CancellationToken,
    /// Nothing more at all.
    pub abort: CancellationToken,
}

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
    /// Leases of others, or of former selves, that ended and were swept.
    pub swept: u64,
    /// Downstream code that panicked; each is recorded as an attempt with an unknown outcome.
    pub panics: u64,
}

/// A worker.
pub struct Engine {
    _store: Arc<dyn Store>,
}

impl Engine {
    /// A worker that serves `served` from `store`.
    ///
    /// # Errors
    ///
    /// A sentence that names the setting and its limit when `config` and `served` do not fit together.
    pub fn new(
        store: Arc<dyn Store>,
        _served: Vec<Served>,
        _config: Config,
        _clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        Ok(Self { _store: store })
    }

    /// Works until told to stop. A database outage, however long, is waited out.
    ///
    /// # Errors
    ///
    /// [`StoreError`] only for what waiting cannot mend, such as a schema that is too new.
    pub async fn run(&self, stop: Stop) -> Result<Report, StoreError> {
        stop.drain.cancelled().await;
        Ok(Report::default())
    }

    /// One claim round: claims what is due (up to the free slots), attempts and settles it, sweeps once.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database fails.
    pub async fn run_once(&self) -> Result<Report, StoreError> {
        Ok(Report::default())
    }

    /// Rounds until nothing is due or in flight, and no retry is scheduled before the next poll.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database fails.
    pub async fn run_until_idle(&self, _stop: Stop) -> Result<Report, StoreError> {
        Ok(Report::default())
    }
}
