//! What `doctor` and health ask a database about itself: facts, not judgements. Who reads them says what they mean.

use std::time::Duration;

use crate::error::StoreError;

/// The operator's look at the database itself.
#[async_trait::async_trait]
pub trait Examine: Send + Sync {
    /// Looks at the server, its settings, its sessions, and whether our schema is whole. Takes milliseconds, also at ten
    /// million rows.
    async fn examine(&self) -> Result<Examined, StoreError>;

    /// The pool of this process.
    fn connections(&self) -> Connections;

    /// Since when the connection that hears of new work was last known to be alive; `None` where it is not, or where this
    /// database has none.
    fn listener_age(&self) -> Option<Duration>;
}

/// Connections of this process's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Open and unused.
    pub idle: u32,
    /// In use.
    pub used: u32,
    /// At most this many are opened.
    pub max: u32,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The product and its version, as it calls itself.
    pub server: String,
    /// Triggers on `effects` that are missing or switched off: INSERTs are then not checked, not queued, or nobody is woken.
    pub broken_triggers: Vec<String>,
    /// Of the newest effects that were looked at, those with neither a queue row nor an outcome.
    pub orphans: u64,
    /// How many of the newest effects were looked at.
    pub orphans_among: u64,
    /// Claims whose lease ended more than a minute ago: nobody sweeps.
    pub unswept_claims: u64,
    /// Downstreams for which a write-back (`on_outcome`) is registered.
    pub write_backs: Vec<String>,
    /// The largest payload in bytes that an INSERT may have, where it is set.
    pub payload_limit: Option<u64>,
    /// What only this kind of database has.
    pub engine: EngineFacts,
}

/// What only one kind of database has.
#[derive(Clone, Debug)]
pub enum EngineFacts {
    /// PostgreSQL.
    Postgres(Box<PostgresFacts>),
    /// SQLite.
    Sqlite(SqliteFacts),
}

/// A PostgreSQL server.
#[derive(Clone, Debug, Default)]
pub struct PostgresFacts {
    /// `server_encoding`.
    pub encoding: String,
    /// Whether `fsync` is on.
    pub fsync: bool,
    /// Whether `full_page_writes` is on.
    pub full_page_writes: bool,
    /// `synchronous_commit` as it holds for this login.
    pub synchronous_commit: String,
    /// Whether it is a standby.
    pub standby: bool,
    /// Connections that logins other than superusers may open.
    pub connections_max: u32,
    /// Connections that clients hold now, of all databases.
    pub connections_used: u32,
    /// Our roles that nobody made.
    pub missing_roles: Vec<String>,
    /// The login.
    pub login: String,
    /// Whether the login is a superuser.
    pub superuser: bool,
    /// Whether the login sees what others' sessions do.
    pub sees_sessions: bool,
    /// Sessions that hold a transaction open without doing anything, longest first.
    pub idle_in_transaction: Vec<Session>,
    /// How many transactions ago the oldest snapshot, prepared transaction or replication slot began.
    pub horizon_age: u64,
    /// Who holds that horizon.
    pub horizon_holder: String,
}

/// Somebody's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its process at the server.
    pub pid: i32,
    /// Its login and what it calls itself.
    pub who: String,
    /// How long its transaction has been open.
    pub open: Duration,
}

/// A SQLite file.
#[derive(Clone, Debug, Default)]
pub struct SqliteFacts {
    /// `journal_mode`.
    pub journal_mode: String,
    /// `synchronous` of the connection that claims and settles: 2 is FULL.
    pub synchronous: i64,
}
