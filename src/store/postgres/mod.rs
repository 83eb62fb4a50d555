//! PostgreSQL: the store for production.
//!
//! The shape was measured before it was written: a thin `queue` scanned from a watermark, a lease per batch in `claims`,
//! append-only `attempts` and `outcomes`. One statement per verb where one is enough, and then without BEGIN; what needs
//! more runs in a `Tx`, which closes its connection when it is dropped in the middle.
//!
//! One file per concern: `migrate` · `enqueue` (the caller's transaction) · `claim` and `scan` (its watermarks) · `settle` · `sweep` (leases
//! that ended, overdue effects) · `late` · `register` (workers and terms) · `inspect` · `operate` · `wake`
//! (LISTEN) · `row`.

mod claim;
mod enqueue;
mod inspect;
mod late;
mod migrate;
mod operate;
mod probe;
mod register;
mod row;
mod scan;
mod settle;
mod sweep;
mod wake;

use std::{ops::DerefMut, str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    ConnectOptions, Connection, PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::Mutex;

pub(crate) use migrate::{migrate, migration_sql};

use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    store::{
        Acted, Audited, Claim, Count, Database, DownstreamInfo, Expired, Filter, Inspect, Late, LateAnswer,
        LoggedAttempt, Operate, Options, Overdue, RegisteredTerms, Registration, Settled, Settlement, Status,
        Store, TermsIds, Token, Want, WorkerInfo,
    },
    verb::{Actor, Seen, Verb},
};

/// What every connection is told. Not by `options=-c …`, which poolers refuse. READ COMMITTED, because each statement must
/// see what was committed before it. The planner's settings, because a plan made while the tables were empty is kept, and
/// must still be the right one at ten million rows: small sets joined through indexes, and no compilation.
const SESSION: &str = "SELECT set_config('default_transaction_isolation', 'read committed', false), \
     set_config('lock_timeout', '10s', false), \
     set_config('idle_in_transaction_session_timeout', '30s', false), \
     set_config('client_min_messages', 'error', false), \
     set_config('tcp_keepalives_idle', '30', false), \
     set_config('tcp_keepalives_interval', '10', false), \
     set_config('tcp_keepalives_count', '3', false), \
     set_config('jit', 'off', false), \
     set_config('enable_hashjoin', 'off', false), \
     set_config('enable_mergejoin', 'off', false), \
     set_config('enable_seqscan', 'off', false)";

/// An expression that makes the commit of its transaction durable where the database was told not to wait: raised, never
/// lowered. It must stand in every statement that a downstream, or a person, will act on.
macro_rules! durable {
    () => {
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') \
         WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
    };
}
use durable;

/// A connection that lay idle for longer is asked whether it is alive before it is used.
const PING_AFTER: Duration = Duration::from_secs(20);

/// The store on PostgreSQL.
#[derive(Debug)]
pub struct PgStore {
    pool: PgPool,
    options: PgConnectOptions,
    claims: claim::Watermarks,
    /// The connection of `renew`, made where it is first used: that is another thread's runtime, which must go on when this
    /// one is busy. Taken out while in use, so that a future dropped in the middle does not leave a broken one behind.
    renewing: Mutex<Option<PgConnection>>,
    wake: wake::Wake,
    /// Where the next look for claimed rows without a claim begins.
    orphans_from: std::sync::atomic::AtomicI64,
}

/// See [`crate::store::connect`].
pub(crate) async fn connect(url: &str, options: &Options) -> Result<Arc<dyn Database>, StoreError> {
    let connect_options = connect_options(url)?.application_name(&options.application_name);
    let pool = PgPoolOptions::new()
        .max_connections(options.max_connections.max(1))
        .acquire_timeout(Duration::from_secs(10))
        .test_before_acquire(false)
        .after_connect(|connection, _| Box::pin(async move { tell_session(connection).await }))
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > PING_AFTER {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_with(connect_options.clone())
        .await
        .map_err(StoreError::during("connecting"))?;
    let mut connection = pool.acquire().await.map_err(StoreError::during("connecting"))?;
    migrate::server_fits(&mut connection).await?;
    migrate::schema_fits(&mut connection).await?;
    options.environment_fits(migrate::environment(&mut connection).await?)?;
    drop(connection);
    Ok(Arc::new(PgStore {
        pool,
        wake: wake::Wake::start(connect_options.clone()),
        orphans_from: std::sync::atomic::AtomicI64::new(0),
        options: connect_options,
        claims: claim::Watermarks::default(),
        renewing: Mutex::new(None),
    }))
}

fn connect_options(url: &str) -> Result<PgConnectOptions, StoreError> {
    // Statements are the engine's business, not the log's: they would be written at every poll.
    PgConnectOptions::from_str(url)
        .map(PgConnectOptions::disable_statement_logging)
        .map_err(StoreError::during("reading the database URL"))
}

async fn tell_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query(SESSION).execute(connection).await.map(drop)
}

/// One connection outside any pool.
async fn connect_one(url: &str) -> Result<PgConnection, StoreError> {
    let options = connect_options(url)?;
    let mut connection = options.connect().await.map_err(StoreError::during("connecting"))?;
    sqlx::query("SELECT set_config('client_min_messages', 'error', false)")
        .execute(&mut connection)
        .await
        .map_err(StoreError::during("connecting"))?;
    Ok(connection)
}

/// A transaction of our own. sqlx's may hand a connection that is inside a transaction back to the pool when a future is
/// dropped; this one closes the connection unless it was committed or rolled back.
struct Tx {
    connection: PoolConnection<Postgres>,
    open: bool,
}

impl Tx {
    async fn begin(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut tx = Self { connection: pool.acquire().await?, open: true };
        sqlx::raw_sql(concat!("BEGIN; SELECT ", durable!())).execute(&mut **tx).await?;
        Ok(tx)
    }

    async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("COMMIT").await
    }

    async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(how).execute(&mut **self).await?;
        self.open = false;
        Ok(())
    }
}

impl std::ops::Deref for Tx {
    type Target = PoolConnection<Postgres>;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.open {
            self.connection.close_on_drop();
        }
    }
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
        sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(&self.pool)
            .await
            .map_err(StoreError::during("asking for the time"))
    }
}

#[async_trait::async_trait]
impl Inspect for PgStore {
    async fn effect(&self, id: EffectId) -> Result<Option<Status>, StoreError> {
        self.one_effect(id).await
    }

    async fn effects(&self, filter: &Filter) -> Result<Vec<Status>, StoreError> {
        self.page_of_effects(filter).await
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

    async fn audit(&self, effect: Option<EffectId>, limit: u32) -> Result<Vec<Audited>, StoreError> {
        self.audit_rows(effect, limit).await
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
}
