//! The seam to the database: [`Store`] (the engine's verbs), [`Inspect`], [`Operate`] and [`Examine`] (people's), [`connect`].
//!
//! A folder per database holds statements, nothing else: no loops, no decisions. What differs between databases differs
//! there and nowhere else; the conformance suite in `tests/store` runs every case on each.

mod breaker;
mod budget;
mod bulk;
mod chart;
mod claim;
mod doctor;
mod endpoints;
mod exact;
pub mod identity;
mod page;
#[cfg(feature = "postgres")]
pub mod postgres;
mod probe;
mod record;
mod retain;
mod search;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::{sync::Arc, time::Duration};

pub use breaker::{Breaker, FAILURES_TO_OPEN, Origin, Sign};
pub use budget::{Acted as PauseActed, Budget, Granted, Holds, Pause, PausedBy, Report};
pub use bulk::{
    BULK_MAX, BULK_RATE_MAX, BULK_REFUSALS_MAX, Beside, BulkInfo, BulkItemRow, BulkRefusal, BulkState, Bulks,
    Control, ItemOutcome, NewBulk,
};
pub use chart::{CauseRow, Causes, LATENCY_BARS_MAX, Latency, Resolution, Traffic};
pub use claim::{
    AttemptLog, Claim, Expired, Late, LateAnswer, Next, Overdue, RegisteredTerms, Settled, Settlement, Token,
    Want,
};
pub use doctor::{Connections, EngineFacts, Examine, Examined, PostgresFacts, Session, SqliteFacts};
pub use endpoints::Endpoints;
pub use exact::json_contains;
pub use page::{
    CAUSES_WINDOW, Content, Count, DownstreamInfo, Filter, Intent, LoggedAttempt, Look, PAGE_MAX, Page,
    SEARCH_WINDOW, Status, WorkerInfo,
};
pub use probe::{DueProbe, ProbeSettlement, ProbeWant, Probes};
pub use record::{AuditFilter, Audited, RequestFilter, RequestInfo, RequestPlace, UnknownPlace};
pub use retain::{AHEAD_MAX, Ahead, Batch, Retain, Retention, Step};

use crate::{
    clock::Timestamp,
    contract::KeyRule,
    downstream::Rate,
    effect::{EffectId, NewEffect},
    enqueue::Enqueued,
    error::{EnqueueError, StoreError},
    state::State,
    verb::{Actor, Change, Refusal, Seen, Verb},
};

/// The newest schema this library knows; `migrate` brings a database to it, and a newer one is refused.
pub const SCHEMA_VERSION: i32 = 11;

/// A worker as it registers itself at every (re)connect.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Its name, unique per process start: a restarted process never keeps an old claim alive. `None` where only the names
    /// and contracts are to become known (`migrate`).
    pub worker: Option<Arc<str>>,
    /// Its version.
    pub version: &'static str,
    /// What it serves.
    pub downstreams: Vec<RegisteredDownstream>,
    /// How long the answer of a guarded request is kept that does not say so itself; `None` leaves it as it is.
    pub requests: Option<Duration>,
}

/// A downstream as it is registered: what INSERTs are checked against and what the views show.
#[derive(Clone, Debug)]
pub struct RegisteredDownstream {
    /// Its name.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: &'static str,
    /// Put before every key: counts towards the longest key.
    pub key_prefix: String,
    /// What keys it takes.
    pub key: KeyRule,
    /// Each operation's terms (`None`: the default one), with the hash of its request.
    pub operations: Vec<(Option<String>, RegisteredTerms, [u8; 32])>,
    /// Operations whose terms stay what they are, because whoever registers cannot tell today's: a credential that is part of
    /// them is not at hand.
    pub kept: Vec<Option<String>>,
    /// Calls that the fleet may make.
    pub rate: Option<Rate>,
    /// Where they go.
    pub origin: Option<Arc<str>>,
}

/// The numbers that the database gave to registered terms: (downstream, operation, number).
pub type TermsIds = Vec<(Arc<str>, Option<String>, i64)>;

/// The engine's verbs. Every method is one transaction; an error means that nothing is known of its effect, and the caller
/// may repeat it. Dropping a future may leave a connection in a transaction: run these in tasks that are never aborted.
#[async_trait::async_trait]
pub trait Store: Budget + Endpoints + Probes + Retain + identity::Identify {
    /// Makes names, contracts and terms known, and the worker live. Equal terms keep their number. An operation that a
    /// downstream lists neither there nor as kept is no operation of today. Where a window became narrower, or the key promises nothing any
    /// more, `sweep_at` of its uncertain effects moves to the earlier time.
    async fn register(&self, registration: &Registration) -> Result<TermsIds, StoreError>;

    /// Marks the worker live, and renews the leases of `tokens` to `now + lease` each, unless they ended. Returns those
    /// still held; a token that is missing was lost. Uses a connection of its own.
    async fn renew(&self, worker: &str, tokens: &[(Token, Duration)]) -> Result<Vec<Token>, StoreError>;

    /// Forgets a worker that stops, so that its downstreams show as unserved at once.
    async fn leave(&self, worker: &str) -> Result<(), StoreError>;

    /// Claims up to `slots` due effects of each wanted downstream, oldest first; fewer when fewer are due. Never more. The
    /// claim is durable before it returns: attempt, try and number counted, `first_sent_at` set where it was not, the terms
    /// of a certain effect pinned anew. Nothing while the fleet is on HOLD. One round trip.
    async fn claim(&self, worker: &str, wants: &[Want]) -> Result<Vec<Claim>, StoreError>;

    /// Writes each settlement whose token is still its effect's, with its log row, in one transaction; says what became of
    /// each, in order. `finished` are tokens all of whose effects this worker has settled: their claims are dropped.
    ///
    /// Must not fail for what a downstream said. Under a token that still stands the settle is written even when the sweep
    /// parked the effect meanwhile (`hold`), and replaces nothing a person did.
    async fn settle(&self, batch: &[Settlement], finished: &[Token]) -> Result<Vec<Settled>, StoreError>;

    /// Logs what workers found out after they lost their leases, and lets a late *applied* settle: see [`Late`].
    async fn late(&self, answers: &[LateAnswer]) -> Result<Vec<Late>, StoreError>;

    /// Claims whose lease ended, up to `limit` effects. Those it returns again until they are swept. A claimed effect whose
    /// claim is gone is one of them, held by nobody (`worker` is empty); a large queue is looked through for such in slices.
    async fn expired(&self, limit: u32) -> Result<Vec<Expired>, StoreError>;

    /// Writes what was decided about expired claims, each only while its lease is still over and its token and lane stand.
    /// Draws a new token, except for an effect that is parked. Drops claims none of whose effects carry them any more.
    async fn sweep_expired(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError>;

    /// Unclaimed pending effects whose `sweep_at` has passed, up to `limit`.
    async fn overdue(&self, limit: u32) -> Result<Vec<Overdue>, StoreError>;

    /// Writes what was decided about overdue effects, each only while it is unclaimed and its token stands. An effect that
    /// may still be sent (a window was widened again) is given back with its next `sweep_at`, and nothing else of it changes,
    /// its token included: else it would stand at the head of every sweep.
    async fn sweep_overdue(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError>;

    /// Folds counters, forgets workers that have not reported for long. Idempotent; any worker may run it at any time.
    async fn maintain(&self) -> Result<(), StoreError>;

    /// Registered terms of an operation, for the sweep of a downstream that this worker does not serve: today's; of one that
    /// the configuration lost, the last; of one that it never had, the default operation's.
    async fn terms(
        &self,
        downstream: &str,
        operation: Option<&str>,
    ) -> Result<Option<RegisteredTerms>, StoreError>;

    /// Whether nothing of `downstreams` is due now or in flight: what `--until-idle` asks. What is paused or held is not due.
    async fn is_idle(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError>;

    /// Waits until work may have arrived, at most `at_most`. A hint only: polling is the truth.
    async fn work_arrived(&self, at_most: Duration);

    /// The database's clock.
    async fn now(&self) -> Result<Timestamp, StoreError>;
}

/// People's view. Nothing takes longer than five seconds: [`StoreError::TooSlow`].
#[async_trait::async_trait]
pub trait Inspect: Send + Sync {
    /// One effect. What was answered is left out for a login that may only view.
    async fn effect(&self, id: EffectId) -> Result<Option<Status>, StoreError>;
    /// What the application asked for with each of these effects, in one statement and in no order; of one that is not there there
    /// is nothing. At most [`PAGE_MAX`]. [`StoreError::is_forbidden`] for a login that may only view.
    async fn intents(&self, ids: &[EffectId], look: Look) -> Result<Vec<(EffectId, Intent)>, StoreError>;
    /// [`Self::intents`] of one.
    async fn intent(&self, id: EffectId, look: Look) -> Result<Option<Intent>, StoreError> {
        Ok(self.intents(&[id], look).await?.pop().map(|(_, intent)| intent))
    }
    /// A page of effects, newest first. [`StoreError::Invalid`] for a filter that cannot be meant.
    async fn effects(&self, filter: &Filter) -> Result<Page, StoreError>;
    /// Why the newest effects failed, or are in doubt. [`StoreError::Invalid`] for any other state.
    async fn causes(&self, state: State, downstream: Option<&str>) -> Result<Causes, StoreError>;
    /// How many effects ended since `since`, by time, downstream and state, oldest first; exact at rest. It may lag by what workers of
    /// an older version count during a deployment.
    async fn traffic(&self, since: Timestamp, per: Resolution) -> Result<Vec<Traffic>, StoreError>;
    /// How long the attempts took that ended effects, in so many minutes or hours from `since` on ([`LATENCY_BARS_MAX`] at most), of a
    /// sample; only where some did, and their history is still kept. [`StoreError::is_forbidden`] for a login that may only view.
    async fn latencies(
        &self,
        since: Timestamp,
        bars: u32,
        per: Resolution,
    ) -> Result<Vec<Latency>, StoreError>;
    /// The attempts of an effect, oldest first.
    async fn attempts(&self, id: EffectId) -> Result<Vec<LoggedAttempt>, StoreError>;
    /// Effects by downstream and state; exact at rest.
    async fn counts(&self) -> Result<Vec<Count>, StoreError>;
    /// Registered downstreams, and names that only effects use.
    async fn downstreams(&self) -> Result<Vec<DownstreamInfo>, StoreError>;
    /// Workers, live ones first.
    async fn workers(&self) -> Result<Vec<WorkerInfo>, StoreError>;
    /// Guarded requests that were answered, those first that are kept longest: where all are kept equally long, the newest.
    async fn requests(&self, filter: &RequestFilter) -> Result<Vec<RequestInfo>, StoreError>;
    /// Audit rows, newest first.
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<Audited>, StoreError>;
}

/// What an action did.
#[derive(Clone, Debug)]
pub enum Acted {
    /// Done, in the same transaction as its audit row; the effect as it is now.
    Done(Change, Box<Status>),
    /// Nothing was changed.
    Refused(Refusal),
    /// There is no such effect.
    NotFound,
}

/// People's verbs.
#[async_trait::async_trait]
pub trait Operate: Send + Sync {
    /// Judges `verb` by [`crate::verb::judge`] on the effect as it is, applies the change, draws a new token, and writes the
    /// audit row: one transaction.
    async fn act(
        &self,
        id: EffectId,
        verb: &Verb,
        actor: &Actor,
        seen: Option<Seen>,
    ) -> Result<Acted, StoreError>;

    /// Writes an effect in a transaction of its own; a mail to several people becomes one effect each, as `enqueue()` in SQL makes
    /// of it. What is written has its audit row, in the same transaction; what was found there already has none. On PostgreSQL the
    /// login needs the right to INSERT effects, beside an operator's.
    async fn enqueue(&self, effect: &NewEffect, actor: &Actor) -> Result<Vec<Enqueued>, EnqueueError>;
}

/// A database, whichever it is.
pub trait Database: Store + Inspect + Operate + Bulks + Pause + Examine {}

impl<T: Store + Inspect + Operate + Bulks + Pause + Examine> Database for T {}

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at most, besides the one that renews leases and the one that listens.
    pub max_connections: u32,
    /// How the connections call themselves at the database.
    pub application_name: String,
    /// The environment that the database must belong to; `None` does not ask. A copy of production's database, opened by
    /// staging, must not pay people.
    pub environment: Option<String>,
    /// What stands between us and PostgreSQL. SQLite has nothing of the kind.
    pub pooler: Pooler,
}

/// What stands between a program and its PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or what gives a whole session to each connection.
    #[default]
    None,
    /// A pooler that gives away the server's connection after every transaction (pgbouncer's `pool_mode = transaction`).
    Transaction {
        /// A URL that goes around it, for what is a session's: LISTEN, and migrations.
        direct: String,
    },
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 8,
            application_name: "aftercommit".to_owned(),
            environment: None,
            pooler: Pooler::None,
        }
    }
}

impl Options {
    /// Compares the environment that the database belongs to (`None`: nobody wrote one) with the one asked for.
    fn environment_fits(&self, found: Option<String>) -> Result<(), StoreError> {
        match (found, &self.environment) {
            (Some(found), Some(configured)) if found != *configured => {
                Err(StoreError::OtherEnvironment { found, configured: configured.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// What `migrate` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before; 0 when there was no schema.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// What could not be done and how to do it by hand (roles that may not be made here).
    pub notes: Vec<String>,
}

/// Opens the database that `url` names (`postgres://…`, `postgresql://…`, `sqlite:FILE`) and checks its schema.
///
/// # Errors
///
/// [`StoreError`] when it cannot be reached, is too old a server, has another schema version than this library's, or
/// belongs to another environment.
pub async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Database>, StoreError> {
    match Engine::of(url)? {
        #[cfg(feature = "postgres")]
        Engine::Postgres => postgres::connect(url, options).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => sqlite::connect(url, options).await,
    }
}

/// Brings the schema to [`SCHEMA_VERSION`]; a no-op when it is there. `environment` is written once and compared later.
///
/// # Errors
///
/// [`StoreError`]; then nothing was changed.
pub async fn migrate(url: &str, environment: Option<&str>) -> Result<Migrated, StoreError> {
    match Engine::of(url)? {
        #[cfg(feature = "postgres")]
        Engine::Postgres => postgres::migrate(url, environment).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => sqlite::migrate(url, environment).await,
    }
}

/// The SQL that `migrate` would run on a database without a schema, as an operator can read and run it.
///
/// # Errors
///
/// [`StoreError::Unsupported`] when the URL names no known database.
pub fn migration_sql(url: &str) -> Result<String, StoreError> {
    match Engine::of(url)? {
        #[cfg(feature = "postgres")]
        Engine::Postgres => Ok(postgres::migration_sql()),
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => Ok(sqlite::migration_sql()),
    }
}

/// Which database a URL names.
enum Engine {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl Engine {
    fn of(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            #[cfg(feature = "postgres")]
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            #[cfg(feature = "sqlite")]
            Some("sqlite") => Ok(Self::Sqlite),
            _ => Err(StoreError::Unsupported(
                "the database URL must begin with postgres:// or sqlite: (for example sqlite:shop.db)"
                    .to_owned(),
            )),
        }
    }
}
