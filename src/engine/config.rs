//! How a worker runs: every knob, with its unit and its limit.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    downstream::{Served, Terms},
    store::Retention,
};

/// A lease must outlast the timeout by at least this, or every timed-out attempt loses the race against the sweep.
pub const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// Settles wait at most this long for company.
pub const SETTLE_LINGER: Duration = Duration::from_millis(3);
/// One settle statement carries at most this many effects.
pub const SETTLE_BATCH_MAX: usize = 1000;
/// How often expired leases and overdue effects are looked for, unless configured.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

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
    /// What it drops of effects that have ended, and when; `None` leaves that to others.
    pub retention: Option<Retention>,
}

impl Config {
    /// Why this worker cannot serve `served`: a sentence that names the setting and its limit.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn validate(&self, served: &[Served]) -> Result<(), String> {
        if self.concurrency == 0 {
            return Err("worker.concurrency must be at least 1".to_owned());
        }
        if self.poll < Duration::from_millis(10) {
            return Err("worker.poll must be at least 10ms: a shorter one only loads the database".to_owned());
        }
        if let Some(Err((setting, problem))) = self.retention.map(|retention| retention.validate()) {
            return Err(format!("retention.{setting} {problem}"));
        }
        let mut names = HashSet::new();
        for downstream in served {
            let name = &downstream.name;
            if !names.insert(name.clone()) {
                return Err(format!("downstream.{name} is served twice"));
            }
            if downstream.concurrency == 0 {
                return Err(format!("downstream.{name}.concurrency must be at least 1"));
            }
            let every = std::iter::once((None, &downstream.terms))
                .chain(downstream.operations.iter().map(|(operation, terms)| (Some(operation), terms)));
            for (operation, terms) in every {
                let place = operation.map_or_else(
                    || format!("downstream.{name}"),
                    |operation| format!("downstream.{name}.operations.{operation}"),
                );
                validate_terms(&place, downstream.lease, terms)?;
            }
        }
        Ok(())
    }
}

fn validate_terms(place: &str, lease: Duration, terms: &Terms) -> Result<(), String> {
    if terms.timeout.is_zero() {
        return Err(format!("{place}.timeout must be more than zero"));
    }
    if lease < terms.timeout + LEASE_MARGIN {
        return Err(format!(
            "{place}: the lease ({lease:?}) must be at least timeout ({:?}) + {LEASE_MARGIN:?}, or every attempt that times out loses its claim first",
            terms.timeout
        ));
    }
    terms.contract.refuses(terms.timeout).map_or(Ok(()), |why| Err(format!("{place}.contract: {why}")))
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
