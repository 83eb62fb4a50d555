//! What a database can tell of its own health: figures, without a judgement. `doctor` and `/readyz` judge.

use std::time::Duration;

use crate::error::StoreError;

/// Figures of a database.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Product and version.
    pub server: String,
    /// The schema's version.
    pub schema_version: i32,
    /// Which installation and environment it is.
    pub installation: String,
    /// See [`Diagnosis::installation`]; `None` when nobody wrote one.
    pub environment: Option<String>,
    /// How far its clock is ahead of this machine's, in microseconds (negative: behind), and how much the question may be wrong.
    pub clock_ahead_us: i64,
    /// See [`Diagnosis::clock_ahead_us`]: half of the time that the answer took.
    pub clock_error: Duration,
    /// Settings that decide whether what was committed survives, by name: `fsync`, `synchronous_commit`, `full_page_writes`;
    /// `journal_mode`, `synchronous`.
    pub durability: Vec<(String, String)>,
    /// Whether it is a standby. (One is not connected to; it may become one.)
    pub is_in_recovery: bool,
    /// Connections in use and at most, where there is such a limit.
    pub connections: Option<(u64, u64)>,
    /// What keeps dead rows from being removed, where that can be seen.
    pub oldest_snapshot: Option<OldestSnapshot>,
    /// The roles of the schema; empty where there are none.
    pub roles: Vec<RoleFound>,
    /// Triggers that must be there, and whether they are and fire.
    pub triggers: Vec<(String, bool)>,
    /// When a notification, or the listening connection's probe, last came in; `None` while nobody listens.
    pub listened: Option<Duration>,
}

/// The oldest transaction or snapshot.
#[derive(Clone, Debug)]
pub struct OldestSnapshot {
    /// How old it is.
    pub age: Duration,
    /// How many transactions were begun since.
    pub transactions: u64,
    /// Who holds it: a process with its application, a replication slot, a prepared transaction.
    pub holder: String,
    /// Whether other roles' sessions could be seen (`pg_read_all_stats`): else there may be older ones.
    pub complete: bool,
}

/// A role of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleFound {
    /// Its name.
    pub name: String,
    /// Whether it exists in the cluster.
    pub exists: bool,
    /// Whether it may use the schema.
    pub granted: bool,
    /// Whether the present login is a member of it.
    pub ours: bool,
}

/// A database that can be asked for its health.
#[async_trait::async_trait]
pub trait Diagnose: Send + Sync {
    /// The figures, in a few cheap statements.
    async fn diagnose(&self) -> Result<Diagnosis, StoreError>;
}
