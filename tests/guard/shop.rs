//! A shop behind the guard: one handler, which a test writes, and requests that it sends without a network.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    Enqueued, NewEffect, Outbox,
    enqueue::Pooled,
    error::EnqueueError,
    guard::{Guard, Guardable, Guarded, RequestCounts, Scope},
};
use axum::{
    Router,
    body::Bytes,
    extract::{FromRequestParts, OptionalFromRequestParts, Request, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
    routing::any,
};
use futures_util::FutureExt as _;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor, Pool, Postgres, Sqlite,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::sync::Semaphore;
use tower_service::Service as _;

use super::ask::{Ask, Told};
use crate::support::{Engine, TestDatabase};

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Handler = Arc<dyn Fn(Call) -> Boxed<Response> + Send + Sync>;

/// How the shop's guard and its pool are set.
#[derive(Clone)]
pub(super) struct Tune {
    /// Instead of the test database's own.
    pub(super) url: Option<String>,
    pub(super) connections: u32,
    pub(super) acquire: Duration,
    pub(super) busy: Duration,
    pub(super) wait: Duration,
    pub(super) key_optional: bool,
    pub(super) fail_open: bool,
    pub(super) headers: &'static [&'static str],
    pub(super) request_limit: usize,
    pub(super) answer_limit: usize,
    pub(super) handler_limit: Duration,
    pub(super) in_flight: usize,
    /// One bucket for everybody.
    pub(super) shared: bool,
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            url: None,
            connections: 8,
            acquire: Duration::from_secs(30),
            busy: Duration::from_secs(20),
            wait: Duration::ZERO,
            key_optional: false,
            fail_open: false,
            headers: &[],
            request_limit: 1 << 20,
            answer_limit: 1 << 20,
            handler_limit: Duration::from_secs(60),
            in_flight: 1024,
            shared: false,
        }
    }
}

/// A running shop.
pub(super) struct Shop {
    /// For layers around it.
    pub(super) router: Router,
    counts: Counts,
    drain: Drain,
    runs: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Handling {
    engine: Engine,
    pooled: bool,
    runs: Arc<AtomicU64>,
    handler: Handler,
}

impl Shop {
    /// Opens one whose handler is `handler`; the table of orders is made once.
    pub(super) async fn open<F>(
        db: &TestDatabase,
        tune: Tune,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        db.sql.execute("CREATE TABLE IF NOT EXISTS orders (id text NOT NULL)").await;
        let pooler = db.pooler_url();
        let pooled = pooler.is_some();
        let url = tune.url.clone().or(pooler).unwrap_or_else(|| db.url.clone());
        let runs = Arc::new(AtomicU64::new(0));
        let handler: Handler = Arc::new(move |call| Box::pin(handler(call)));
        let handling = Handling { engine: db.engine, pooled, runs: Arc::clone(&runs), handler };
        let routes = Router::new().route("/{*path}", any(handle)).with_state(handling);
        let (router, counts, drain) = match db.engine {
            Engine::Postgres => guarded(guard(postgres(&url, &tune), &tune, pooled), routes),
            Engine::Sqlite => guarded(guard(sqlite(&url, &tune), &tune, false), routes),
        };
        Self { router, counts, drain, runs }
    }

    pub(super) async fn selling(db: &TestDatabase, tune: Tune) -> Self {
        Self::open(db, tune, sell).await
    }

    /// Sends a request. Dropping the future is a client that hangs up.
    pub(super) fn send(&self, ask: Ask) -> Boxed<Told> {
        let mut router = self.router.clone();
        Box::pin(async move {
            let answer: Result<Response, Infallible> = router.call(ask.into_request()).await;
            let Ok(answer) = answer;
            Told::read(answer).await
        })
    }

    /// How often the handler ran.
    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(super) fn counts(&self) -> RequestCounts {
        (self.counts)()
    }

    pub(super) fn drain(&self) -> Boxed<()> {
        (self.drain)()
    }
}

fn postgres(url: &str, tune: &Tune) -> Pool<Postgres> {
    // As behind a pooler, which follows no other parameter; without one it changes nothing here.
    let options = PgConnectOptions::from_str(url).expect("a URL").extra_float_digits(None);
    PgPoolOptions::new()
        .max_connections(tune.connections)
        .acquire_timeout(tune.acquire)
        .connect_lazy_with(options.application_name("guard"))
}

fn sqlite(url: &str, tune: &Tune) -> Pool<Sqlite> {
    let options = SqliteConnectOptions::from_str(url).expect("a URL").busy_timeout(tune.busy);
    SqlitePoolOptions::new()
        .max_connections(tune.connections)
        .acquire_timeout(tune.acquire)
        .connect_lazy_with(options)
}

fn guard<DB: Guardable>(pool: Pool<DB>, tune: &Tune, pooled: bool) -> Guard<DB> {
    let tenant = |head: &Parts| {
        let tenant = head.headers.get("x-tenant")?.to_str().ok()?;
        Scope::parse(tenant).ok()
    };
    let mut guard = if tune.shared {
        Guard::shared(pool, Scope::parse("public").expect("a scope"))
    } else {
        Guard::new(pool, tenant)
    };
    guard = guard
        .wait(tune.wait)
        .fingerprint_headers(tune.headers)
        .request_limit(tune.request_limit)
        .answer_limit(tune.answer_limit)
        .handler_limit(tune.handler_limit)
        .in_flight_limit(tune.in_flight);
    if tune.key_optional {
        guard = guard.key_optional();
    }
    if tune.fail_open {
        guard = guard.fail_open();
    }
    if pooled { guard.pooled() } else { guard }
}

type Counts = Box<dyn Fn() -> RequestCounts + Send + Sync>;

type Drain = Box<dyn Fn() -> Boxed<()> + Send + Sync>;
fn guarded<DB: Guardable>(guard: Guard<DB>, routes: Router) -> (Router, Counts, Drain) {
    let guard = Arc::new(guard);
    let counted = Arc::clone(&guard);
    let counts = Box::new(move || counted.counts());
    // Twice: the inner one lets pass what the outer one has begun.
    let routes = routes.route_layer(guard.layer()).layer(guard.layer());
    let drain = move || -> Boxed<()> {
        let guard = Arc::clone(&guard);
        Box::pin(async move { guard.drain().await })
    };
    (routes, counts, Box::new(drain))
}

async fn handle(State(handling): State<Handling>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.expect("the guard hands on a whole body");
    let number = handling.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let (engine, pooled) = (handling.engine, handling.pooled);
    (handling.handler)(Call { number, head, body, engine, pooled }).await
}

/// One run of the handler.
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    engine: Engine,
    pooled: bool,
}

impl Call {
    /// The request's transaction.
    pub(super) async fn tx(&mut self) -> Result<Tx, Response> {
        let head = &mut self.head;
        let place = match self.engine {
            Engine::Postgres => Place::Postgres(
                <Guarded<Postgres> as FromRequestParts<()>>::from_request_parts(head, &()).await?,
            ),
            Engine::Sqlite => {
                Place::Sqlite(<Guarded<Sqlite> as FromRequestParts<()>>::from_request_parts(head, &()).await?)
            }
        };
        Ok(Tx { place, pooled: self.pooled })
    }

    /// The request's transaction, where there is one.
    pub(super) async fn maybe_tx(&mut self) -> Result<Option<Tx>, Response> {
        let head = &mut self.head;
        let place = match self.engine {
            Engine::Postgres => {
                <Guarded<Postgres> as OptionalFromRequestParts<()>>::from_request_parts(head, &())
                    .await?
                    .map(Place::Postgres)
            }
            Engine::Sqlite => {
                <Guarded<Sqlite> as OptionalFromRequestParts<()>>::from_request_parts(head, &())
                    .await?
                    .map(Place::Sqlite)
            }
        };
        Ok(place.map(|place| Tx { place, pooled: self.pooled }))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The guard's transaction, in a handler.
pub(super) struct Tx {
    place: Place,
    pooled: bool,
}

enum Place {
    Postgres(Guarded<Postgres>),
    Sqlite(Guarded<Sqlite>),
}

impl Tx {
    pub(super) async fn execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        match &mut self.place {
            Place::Postgres(tx) => {
                sqlx::raw_sql(sql).execute(&mut **tx).await.map(|done| done.rows_affected())
            }
            Place::Sqlite(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(|done| done.rows_affected()),
        }
    }

    pub(super) async fn order(&mut self, id: &str) {
        self.execute(&format!("INSERT INTO orders (id) VALUES ('{id}')")).await.expect("an order is written");
    }

    pub(super) async fn enqueue(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        match &mut self.place {
            Place::Postgres(tx) if self.pooled => Outbox.enqueue(&mut Pooled(tx), effect).await,
            Place::Postgres(tx) => Outbox.enqueue(&mut **tx, effect).await,
            Place::Sqlite(tx) => Outbox.enqueue(&mut **tx, effect).await,
        }
    }

    /// A nested transaction of sqlx's that writes an order and is dropped.
    pub(super) async fn order_and_drop(&mut self, id: &str) {
        match &mut self.place {
            Place::Postgres(tx) => drop(nested(tx, id).await),
            Place::Sqlite(tx) => drop(nested(tx, id).await),
        }
    }

    /// The future of a nested `begin` is dropped half-way, as by `timeout` and `select!`.
    pub(super) fn begin_and_drop(&mut self) {
        match &mut self.place {
            Place::Postgres(tx) => half_way(tx),
            Place::Sqlite(tx) => half_way(tx),
        }
    }

    pub(super) fn derived(&self, name: &str) -> [Option<String>; 3] {
        match &self.place {
            Place::Postgres(tx) => derived(tx, name),
            Place::Sqlite(tx) => derived(tx, name),
        }
    }

    /// A nested transaction that writes an order, left as it is.
    pub(super) async fn order_and_forget(&mut self, id: &str) {
        match &mut self.place {
            Place::Postgres(tx) => std::mem::forget(nested(tx, id).await),
            Place::Sqlite(tx) => std::mem::forget(nested(tx, id).await),
        }
    }
}

async fn nested<'c, DB: Guardable>(tx: &'c mut Guarded<DB>, id: &str) -> sqlx::Transaction<'c, DB>
where
    for<'q> &'q mut DB::Connection: Executor<'q, Database = DB>,
{
    let mut nested = tx.begin().await.expect("a savepoint");
    let sql = AssertSqlSafe(format!("INSERT INTO orders (id) VALUES ('{id}')"));
    sqlx::raw_sql(sql).execute(&mut *nested).await.expect("an order is written");
    nested
}

fn half_way<DB: Guardable>(tx: &mut Guarded<DB>) {
    // One that is answered at once is taken back, and another is tried.
    while tx.begin().now_or_never().is_some() {}
}

fn derived<DB: Guardable>(tx: &Guarded<DB>, name: &str) -> [Option<String>; 3] {
    let id = tx.derive(name).map(|id| id.as_str().to_owned());
    [tx.scope().map(ToString::to_string), tx.key().map(ToString::to_string), id]
}

/// Writes the order that the body names, and says which run it was.
pub(super) async fn sell(mut call: Call) -> Response {
    let mut tx = match call.tx().await {
        Ok(tx) => tx,
        Err(refused) => return refused,
    };
    let order = call.text();
    tx.order(&order).await;
    let location = [(header::LOCATION, format!("/orders/{order}"))];
    (StatusCode::CREATED, location, format!("order {order} by run {}", call.number)).into_response()
}

/// How many orders there are.
pub(super) async fn orders(db: &TestDatabase) -> i64 {
    db.sql.number("SELECT count(*) FROM orders").await
}

/// Where handlers stop until the test lets them go on.
#[derive(Clone)]
pub(super) struct Gate(Arc<(Semaphore, Semaphore)>);

impl Gate {
    pub(super) fn closed() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// In the handler: arrives, and waits.
    pub(super) async fn pass(&self) {
        self.arrive();
        self.0.1.acquire().await.expect("never closed").forget();
    }

    pub(super) fn arrive(&self) {
        self.0.0.add_permits(1);
    }

    /// In the test: waits for a handler to arrive.
    pub(super) async fn arrival(&self) {
        self.0.0.acquire().await.expect("never closed").forget();
    }

    /// Lets everybody through.
    pub(super) fn open(&self) {
        self.0.1.add_permits(1000);
    }
}
