//! PostgreSQL: the store for production.
//!
//! The shape was measured before it was written: a thin `queue` scanned from a watermark, a lease per batch in `claims`,
//! append-only `attempts` and `outcomes`. One statement per verb where one is enough, and then without BEGIN; what needs
//! more runs in a `Tx`, which closes its connection when it is dropped in the middle. `statement` and `session` know how a
//! statement runs, here and behind a transaction pooler; no other file asks.
//!
//! One file per concern: `migrate` · `enqueue` (the caller's transaction) · `budget` · `claim` and `scan` (its watermarks) · `settle` · `sweep` (leases
//! that ended, overdue effects) · `late` · `register` (workers and terms) · `inspect` · `list` and `candidates` (pages of effects) ·
//! `chart` (causes, traffic) · `record` (audit) · `operate` · `bulk` · `outlook` (what is told of one) · `doctor` · `retain` · `guard` (the caller's transaction) · `received` (what came in, for retention and people) · `wake` (LISTEN) · `row`.

mod budget;
mod bulk;
mod candidates;
mod chart;
mod claim;
mod doctor;
mod endpoints;
mod enqueue;
mod guard;
mod identity;
mod inspect;
mod intent;
mod late;
mod list;
mod migrate;
mod operate;
mod outlook;
mod probe;
mod received;
mod record;
mod register;
mod retain;
mod row;
mod scan;
mod session;
mod settle;
mod statement;
mod sweep;
mod wake;

use std::{str::FromStr, sync::Arc, time::Duration};

use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::sync::Mutex;

pub use enqueue::Pooled;
pub(crate) use migrate::{migrate, migration_sql};
use session::{Session, durable};
use statement::{Pool, Tx, sql};

use crate::{
    clock::Timestamp,
    effect::{EffectId, NewEffect},
    enqueue::Enqueued,
    error::{EnqueueError, StoreError},
    state::State,
    store::{
        Acted, AuditFilter, Audited, Causes, Claim, Count, Database, DownstreamInfo, Expired, Filter,
        Inspect, Intent, Late, LateAnswer, Latency, LoggedAttempt, Look, Operate, Options, Overdue, Page,
        Pooler, RegisteredTerms, Registration, RequestFilter, RequestInfo, Resolution, Settled, Settlement,
        Status, Store, TermsIds, Token, Traffic, Want, WorkerInfo, search,
    },
    verb::{Actor, Seen, Verb},
};

/// How long a server that has no connection left is waited for, and how often it is asked.
const FULL_MAX: Duration = Duration::from_secs(30);
const FULL_AGAIN: Duration = Duration::from_millis(500);

/// The store on PostgreSQL.
#[derive(Debug)]
pub struct PgStore {
    pool: Pool,
    session: Session,
    options: PgConnectOptions,
    claims: claim::Watermarks,
    /// The connection of `renew`, made where it is first used: that is another thread's runtime, which must go on when this
    /// one is busy. Taken out while in use, so that a future dropped in the middle does not leave a broken one behind.
    renewing: Mutex<Option<PgConnection>>,
    wake: wake::Wake,
    /// How often `renewing` was made.
    renewed: std::sync::atomic::AtomicU64,
    /// Whether this login may read what was answered; asked once.
    answers: tokio::sync::OnceCell<bool>,
    /// Where the next look for claimed rows without a claim begins.
    orphans_from: std::sync::atomic::AtomicI64,
}

/// See [`crate::store::connect`].
pub(crate) async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Database>, StoreError> {
    let named = |url: &str| Ok(connect_options(url)?.application_name(&options.application_name));
    let (session, direct) = match &options.pooler {
        Pooler::None => (Session::Own, named(url)?),
        Pooler::Transaction { direct } => (Session::Borrowed, named(direct)?),
    };
    let connect_options = named(url)?;
    let mut connection = first_connection(session, &connect_options).await?;
    session.begin(&mut connection).await.map_err(StoreError::during("connecting"))?;
    migrate::server_fits(&mut connection).await?;
    migrate::schema_fits(&mut connection).await?;
    options.environment_fits(migrate::environment(&mut connection).await?)?;
    let installation = migrate::installation(&mut connection).await?;
    session.commit(&mut connection).await.map_err(StoreError::during("connecting"))?;
    if session == Session::Borrowed {
        leads_to(&direct, &installation).await?;
    }
    // What a server that is leaving cannot be told is no loss.
    drop(connection.close().await);
    Ok(Arc::new(PgStore {
        pool: Pool::new(&connect_options, session, options.max_connections),
        wake: wake::Wake::start(direct),
        answers: tokio::sync::OnceCell::new(),
        orphans_from: std::sync::atomic::AtomicI64::new(0),
        options: connect_options,
        session,
        claims: claim::Watermarks::default(),
        renewing: Mutex::new(None),
        renewed: std::sync::atomic::AtomicU64::new(0),
    }))
}

/// The way around a pooler must lead to the same database: `migrate` goes there.
async fn leads_to(direct: &PgConnectOptions, installation: &str) -> Result<(), StoreError> {
    let mut connection = match Session::Own.connect(direct).await {
        Ok(connection) => connection,
        // Only hints come this way: polling does without them.
        Err(error) => {
            tracing::warn!(%error, "the way around the pooler (direct) does not work: new effects are found by polling only");
            return Ok(());
        }
    };
    let found = migrate::installation(&mut connection).await?;
    drop(connection.close().await);
    if found == installation {
        return Ok(());
    }
    Err(StoreError::Unsupported(format!(
        "the database URL and `direct` lead to two databases (installations {installation} and {found}): correct one of them"
    )))
}

/// The first connection says why there is none; the pool only says that the time was up. A server without a free one is
/// waited for.
async fn first_connection(session: Session, options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let mut waited = Duration::ZERO;
    loop {
        match session.connect(options).await {
            Err(error) if waited < FULL_MAX && session::is_full(&error) => {
                tracing::warn!(
                    "the server has no connection left (max_connections, or the role's or database's CONNECTION LIMIT): waiting for one"
                );
                tokio::time::sleep(FULL_AGAIN).await;
                waited += FULL_AGAIN;
            }
            connected => return connected.map_err(StoreError::during("connecting")),
        }
    }
}

fn connect_options(url: &str) -> Result<PgConnectOptions, StoreError> {
    // Statements are the engine's business, not the log's: they would be written at every poll.
    PgConnectOptions::from_str(url)
        .map(PgConnectOptions::disable_statement_logging)
        .map_err(StoreError::during("reading the database URL"))
}

/// One connection outside any pool, for what must not go through a pooler.
async fn connect_one(url: &str) -> Result<PgConnection, StoreError> {
    first_connection(Session::Own, &connect_options(url)?).await
}

#[async_trait::async_trait]
impl Store for PgStore {
    async fn register(&self, registration: &Registration) -> Result<TermsIds, StoreError> {
        self.register_terms(registration).await
    }

    async fn renew(&self, worker: &str, tokens: &[(Token, Duration)]) -> Result<Vec<Token>, StoreError> {
        self.renew_leases(worker, tokens).await
    }

    async fn leave(&self, worker: &str) -> Result<(), StoreError> {
        self.forget_worker(worker).await
    }

    async fn claim(&self, worker: &str, wants: &[Want]) -> Result<Vec<Claim>, StoreError> {
        self.claim_due(worker, wants).await
    }

    async fn settle(&self, batch: &[Settlement], finished: &[Token]) -> Result<Vec<Settled>, StoreError> {
        self.settle_batch(batch, finished).await
    }

    async fn late(&self, answers: &[LateAnswer]) -> Result<Vec<Late>, StoreError> {
        self.hear_late(answers).await
    }

    async fn expired(&self, limit: u32) -> Result<Vec<Expired>, StoreError> {
        self.find_expired(limit).await
    }

    async fn sweep_expired(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.write_expired(batch).await
    }

    async fn overdue(&self, limit: u32) -> Result<Vec<Overdue>, StoreError> {
        self.find_overdue(limit).await
    }

    async fn sweep_overdue(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.write_overdue(batch).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.fold_and_forget().await
    }

    async fn terms(
        &self,
        downstream: &str,
        operation: Option<&str>,
    ) -> Result<Option<RegisteredTerms>, StoreError> {
        self.registered_terms(downstream, operation).await
    }

    async fn is_idle(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        self.nothing_to_do(downstreams).await
    }

    async fn work_arrived(&self, at_most: Duration) {
        self.wake.wait(at_most).await;
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.scalar(sql("SELECT clock_timestamp()")).await.map_err(StoreError::during("asking for the time"))
    }
}

#[async_trait::async_trait]
impl Inspect for PgStore {
    async fn effect(&self, id: EffectId) -> Result<Option<Status>, StoreError> {
        self.one_effect(id).await
    }

    async fn intents(&self, ids: &[EffectId], look: Look) -> Result<Vec<(EffectId, Intent)>, StoreError> {
        self.intents_of(ids, look).await
    }

    async fn effects(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.page_of_effects(filter).await
    }

    async fn causes(&self, state: State, downstream: Option<&str>) -> Result<Causes, StoreError> {
        search::has_causes(state)?;
        self.causes_of(state, downstream).await
    }

    async fn traffic(&self, since: Timestamp, per: Resolution) -> Result<Vec<Traffic>, StoreError> {
        self.traffic_since(since, per).await
    }

    async fn latencies(
        &self,
        since: Timestamp,
        bars: u32,
        per: Resolution,
    ) -> Result<Vec<Latency>, StoreError> {
        self.latencies_since(since, bars, per).await
    }

    async fn attempts(&self, id: EffectId) -> Result<Vec<LoggedAttempt>, StoreError> {
        self.attempts_of(id).await
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        self.counts_by_state().await
    }

    async fn downstreams(&self) -> Result<Vec<DownstreamInfo>, StoreError> {
        self.known_downstreams().await
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, StoreError> {
        self.known_workers().await
    }

    async fn requests(&self, filter: &RequestFilter) -> Result<Vec<RequestInfo>, StoreError> {
        self.page_of_requests(filter).await
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<Audited>, StoreError> {
        self.audit_rows(filter).await
    }
}

#[async_trait::async_trait]
impl Operate for PgStore {
    async fn act(
        &self,
        id: EffectId,
        verb: &Verb,
        actor: &Actor,
        seen: Option<Seen>,
    ) -> Result<Acted, StoreError> {
        self.judge_and_apply(id, verb, actor, seen).await
    }

    async fn enqueue(&self, effect: &NewEffect, actor: &Actor) -> Result<Vec<Enqueued>, EnqueueError> {
        self.enqueue_alone(effect, actor).await
    }
}
