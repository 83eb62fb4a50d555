//! A server process: the guard around `POST /orders`, which writes an order and the effect that charges it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::PathBuf,
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use aftercommit::{
    NewEffect, Outbox,
    enqueue::Pooled,
    guard::{Guard, Guardable, Guarded, RequestKey, Scope},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use sqlx::{
    Pool, Postgres, Sqlite,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::sync::Semaphore;
use tracing::Instrument as _;
use tracing_subscriber::{Layer as _, filter::LevelFilter, layer::SubscriberExt as _};

use super::{
    broken,
    gate::{Gate, Statements, Step},
};

/// Carries a [`Setting`] to the process.
pub(super) const VARIABLE: &str = "AFTERCOMMIT_TEST_GUARDED_SERVER";
/// The test below, by the name that the test program knows it by.
pub(super) const NAME: &str = "e2e::guard::server::serve";
/// What a server says once it can be asked.
pub(super) const LISTENS: &str = "listens on ";

pub(super) const ORDER: &str =
    "INSERT INTO orders (scope, request_key, amount) VALUES ($1, $2, $3) RETURNING id";

/// What stands around the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The guard.
    Guarded,
    /// What people write instead: look up, run, then store. It shows that the checker can fail.
    LookRunStore,
}

/// What a server is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) url: String,
    /// The URL leads to a transaction pooler.
    pub(super) pooled: bool,
    /// Its journal, and the file that lets it go on after a stop.
    pub(super) journal: PathBuf,
    pub(super) kind: Kind,
    pub(super) stop_after: Option<Step>,
    pub(super) connections: u32,
    pub(super) acquire_ms: u64,
    pub(super) busy_ms: u64,
    pub(super) request_limit: usize,
}

/// Lines that a killed process cannot take back, and that no transaction rolls back: who ran, where it stopped.
pub(super) struct Journal {
    file: File,
    go_on: PathBuf,
}

impl Journal {
    fn open(path: &std::path::Path) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the folder is writable");
        Self { file, go_on: path.with_extension("go") }
    }

    /// One line, in one write.
    pub(super) fn write(&self, words: &[&str]) {
        let line = serde_json::to_string(words).expect("text") + "\n";
        (&self.file).write_all(line.as_bytes()).expect("the journal takes a line");
    }

    pub(super) fn may_go_on(&self) -> bool {
        self.go_on.exists()
    }
}

/// What the handlers share.
pub(super) struct Shop {
    pub(super) gate: Arc<Gate>,
    pub(super) journal: Arc<Journal>,
    /// Requests that ask to be held wait here.
    release: Semaphore,
}

/// An order as a client sends it.
#[derive(Deserialize)]
pub(super) struct Ordered {
    pub(super) amount: i64,
    /// Waits, inside of its transaction, until somebody posts to `/release`.
    #[serde(default)]
    hold: bool,
    /// Ends with this refusal after all was written.
    refuse: Option<u16>,
}

/// A request as the handler understands it.
pub(super) struct Asked {
    pub(super) scope: String,
    pub(super) key: String,
    pub(super) order: Ordered,
}

/// The handler's own errors.
pub(super) enum Refused {
    NotAnOrder,
    Database(String),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::NotAnOrder => (StatusCode::BAD_REQUEST, "not an order").into_response(),
            Self::Database(error) => {
                tracing::warn!(error, "an order could not be written");
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], "try again").into_response()
            }
        }
    }
}

impl<E: std::error::Error> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Database(error.to_string())
    }
}

fn scope_of(head: &HeaderMap) -> Option<Scope> {
    Scope::parse(head.get("x-tenant")?.to_str().ok()?).ok()
}

impl Shop {
    /// Reads the request, and says that it runs.
    pub(super) fn asked(&self, head: &HeaderMap, body: &[u8]) -> Result<Asked, Refused> {
        let scope = scope_of(head).ok_or(Refused::NotAnOrder)?.to_string();
        let key = head.get("idempotency-key").and_then(|line| RequestKey::from_header(line.as_bytes()).ok());
        let key = key.ok_or(Refused::NotAnOrder)?.to_string();
        let Ok(order) = serde_json::from_slice(body) else { return Err(Refused::NotAnOrder) };
        self.journal.write(&["ran", &scope, &key]);
        Ok(Asked { scope, key, order })
    }

    pub(super) async fn hold(&self, asked: &Asked) {
        if asked.order.hold {
            self.journal.write(&["held", &asked.scope, &asked.key]);
            self.release.acquire().await.expect("it is never closed").forget();
        }
    }

    /// The answer. No two runs give the same bytes.
    pub(super) fn answer(&self, asked: &Asked, id: i64) -> Response {
        let nonce = uuid::Uuid::new_v4();
        let text = format!("{{\"order\":{id},\"amount\":{},\"nonce\":\"{nonce}\"}}", asked.order.amount);
        self.journal.write(&["answered", &asked.scope, &asked.key, &text]);
        let status = asked.order.refuse.and_then(|status| StatusCode::from_u16(status).ok());
        let gate = Arc::clone(&self.gate);
        let body = stream::once(async move {
            gate.reached(Step::InAnswerBody);
            Ok::<_, std::io::Error>(Bytes::from(text))
        });
        let mut answer = Response::new(Body::from_stream(body));
        *answer.status_mut() = status.unwrap_or(StatusCode::CREATED);
        let headers = answer.headers_mut();
        let place = HeaderValue::from_str(&format!("/orders/{id}")).expect("printable");
        headers.append(header::LOCATION, place);
        headers.append(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.append(header::LINK, HeaderValue::from_static("<a>; rel=x, <b>; rel=y"));
        headers.append(header::LINK, HeaderValue::from_static("<c>; rel=z"));
        let file =
            HeaderValue::from_bytes(b"attachment; filename=\"a,b\xe9.txt\"").expect("opaque bytes are legal");
        headers.append(header::CONTENT_DISPOSITION, file);
        answer
    }
}

/// The effect of an order; its key is derived from the request's where a guard began one.
pub(super) fn charge(asked: &Asked, id: i64) -> Result<NewEffect, Refused> {
    let charge = NewEffect::to("payments").json(&serde_json::json!({ "amount": asked.order.amount }))?;
    Ok(charge.metadata(&serde_json::json!({ "order": id }))?)
}

macro_rules! guarded_handler {
    ($name:ident, $database:ty, $persistent:literal, |$tx:ident| $connection:expr) => {
        async fn $name(
            State(shop): State<Arc<Shop>>,
            mut $tx: Guarded<$database>,
            head: HeaderMap,
            body: Bytes,
        ) -> Result<Response, Refused> {
            let asked = shop.asked(&head, &body)?;
            let insert =
                sqlx::query_scalar(ORDER).bind(&asked.scope).bind(&asked.key).bind(asked.order.amount);
            let id: i64 = insert.persistent($persistent).fetch_one(&mut *$tx).await?;
            Outbox.enqueue($connection, charge(&asked, id)?).await?;
            shop.hold(&asked).await;
            Ok(shop.answer(&asked, id))
        }
    };
}
guarded_handler!(order_on_postgres, Postgres, true, |tx| &mut *tx);
guarded_handler!(order_through_a_pooler, Postgres, false, |tx| &mut Pooled(&mut tx));
guarded_handler!(order_on_sqlite, Sqlite, true, |tx| &mut *tx);

fn guard<DB: Guardable>(pool: Pool<DB>, shop: &Arc<Shop>, setting: &Setting) -> Guard<DB> {
    let gate = Arc::clone(&shop.gate);
    let scope = move |head: &Parts| {
        gate.reached(Step::BeforeBegin);
        scope_of(&head.headers)
    };
    Guard::new(pool, scope).request_limit(setting.request_limit)
}

fn routes(shop: &Arc<Shop>, setting: &Setting) -> Router<Arc<Shop>> {
    let after_handler = from_fn_with_state(
        Arc::clone(shop),
        async |State(shop): State<Arc<Shop>>, request: Request, next: Next| {
            let answer = next.run(request).await;
            shop.gate.reached(Step::AfterHandler);
            answer
        },
    );
    if setting.url.starts_with("sqlite:") {
        let options = SqliteConnectOptions::from_str(&setting.url).expect("a URL");
        let pool = SqlitePoolOptions::new()
            .max_connections(setting.connections)
            .acquire_timeout(Duration::from_millis(setting.acquire_ms))
            .connect_lazy_with(options.busy_timeout(Duration::from_millis(setting.busy_ms)));
        if setting.kind == Kind::LookRunStore {
            return Router::new()
                .route("/orders", post(broken::order_on_sqlite))
                .layer(axum::Extension(pool));
        }
        let orders = Router::new().route("/orders", post(order_on_sqlite)).layer(after_handler);
        orders.layer(guard(pool, shop, setting).layer())
    } else {
        let options = PgConnectOptions::from_str(&setting.url).expect("a URL").application_name("guarded");
        let options = if setting.pooled { options.extra_float_digits(None) } else { options };
        let pool = PgPoolOptions::new()
            .max_connections(setting.connections)
            .acquire_timeout(Duration::from_millis(setting.acquire_ms))
            .connect_lazy_with(options);
        if setting.kind == Kind::LookRunStore {
            return Router::new()
                .route("/orders", post(broken::order_on_postgres))
                .layer(axum::Extension(pool));
        }
        let guard = guard(pool, shop, setting);
        let (handler, guard) = if setting.pooled {
            (post(order_through_a_pooler), guard.pooled())
        } else {
            (post(order_on_postgres), guard)
        };
        Router::new().route("/orders", handler).layer(after_handler).layer(guard.layer())
    }
}

/// The whole application; outermost what knows that an answer is about to leave.
fn application(setting: &Setting, journal: Arc<Journal>, gate: Arc<Gate>) -> Router {
    let shop = Arc::new(Shop { gate, journal, release: Semaphore::new(0) });
    let before_first_byte = async |State(shop): State<Arc<Shop>>, request: Request, next: Next| {
        // SQLite's thread enters the span of the request that it works for: the gate counts its commands by it.
        let answer = next.run(request).instrument(tracing::info_span!("request")).await;
        shop.gate.reached(Step::BeforeFirstByte);
        answer
    };
    let release = async |State(shop): State<Arc<Shop>>| shop.release.add_permits(1);
    Router::new()
        .merge(routes(&shop, setting).layer(from_fn_with_state(Arc::clone(&shop), before_first_byte)))
        .route("/release", post(release))
        .route("/idle", get(async || "idle"))
        .with_state(shop)
}

#[test]
#[ignore = "a server, which the other tests of this folder start"]
fn serve() {
    let told = std::env::var(VARIABLE)
        .unwrap_or_else(|_| panic!("{VARIABLE} is not set: this is no test by itself"));
    let setting: Setting = serde_json::from_str(&told).expect("what the tests wrote");
    let journal = Arc::new(Journal::open(&setting.journal));
    let gate = Arc::new(Gate::new(setting.stop_after, Arc::clone(&journal)));
    let log = tracing_subscriber::fmt::layer().with_ansi(false).with_filter(LevelFilter::WARN);
    let statements = setting.stop_after.is_some().then(|| Statements(Arc::clone(&gate)));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log).with(statements))
        .expect("the process is new");
    // Whoever started it holds the other end: a server does not outlive its test, however that ended.
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        println!("{LISTENS}{address}.");
        axum::serve(listener, application(&setting, journal, gate))
            .await
            .expect("it serves until it is killed");
    });
}
