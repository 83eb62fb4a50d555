//! `[worker]`: how a worker runs.

use std::{path::PathBuf, time::Duration};

use super::{ConfigError, Section, address};

/// What a lease is unless a timeout asks for more.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// How long a worker sleeps when nothing is due and no hint came.
const POLL: Duration = Duration::from_secs(1);
/// Attempts at one time over all downstreams.
const CONCURRENCY: u32 = 64;
/// Less than the 30 s that container platforms wait before they kill.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(25);
/// `[worker]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// How long a claim holds unless renewed, where a downstream does not say.
    pub lease: Duration,
    /// How long it sleeps when nothing is due and no hint came.
    pub poll: Duration,
    /// Attempts at one time over all downstreams.
    pub concurrency: u32,
    /// How long open calls may go on once it was asked to stop.
    pub shutdown_grace: Duration,
    /// The file in which it remembers its database; `None`: where a service keeps its state, else
    /// beside the configuration.
    pub journal: Option<PathBuf>,
    /// Where it serves health and metrics; nowhere unless it is set.
    pub listen: Option<std::net::SocketAddr>,
}

/// Reads the table.
pub(super) fn read(section: Section<'_>) -> Result<Worker, ConfigError> {
    let worker = Worker {
        lease: section.get_or("lease", LEASE)?,
        poll: section.get_or("poll", POLL)?,
        concurrency: section.get_or("concurrency", CONCURRENCY)?,
        shutdown_grace: section.get_or("shutdown_grace", SHUTDOWN_GRACE)?,
        journal: section.get::<String>("journal")?.filter(|path| !path.is_empty()).map(PathBuf::from),
        listen: section
            .get::<String>("listen")?
            .map(|text| address(&section, &text, "127.0.0.1:7798"))
            .transpose()?,
    };
    if worker.lease < aftercommit::engine::LEASE_MARGIN {
        return Err(section.error("lease", "must be at least 2s, and outlast every timeout by 2s"));
    }
    if worker.poll.is_zero() {
        return Err(section.error("poll", "must be more than zero: 1s is the default"));
    }
    if worker.concurrency == 0 {
        return Err(section.error("concurrency", "must be at least 1"));
    }
    section.finish()?;
    Ok(worker)
}
