//! What a guard is told by the application, and how it meets a request: pure, besides what it is made of.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, Uri, header::HeaderValue, request::Parts};
use sqlx::Pool;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{
    counts::{RequestCounts, Tally},
    database::{Guardable, Purpose, Session},
    flow::{Common, Shared},
    problem::Problem,
    transaction::Later,
};
use crate::guard::{Fingerprint, Request, RequestKey, Scope, check_ttl};

/// The header that carries the key.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// More than any pool of connections serves in time, and at most a gigabyte of bodies.
const IN_FLIGHT: usize = 1024;

type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// Guards the requests of an application: one with an `Idempotency-Key` runs once, and every repeat gets its answer.
///
/// ```
/// use aftercommit::{NewEffect, Outbox, guard::{Guard, Guarded, Scope}};
/// use axum::{Router, http::StatusCode, routing::post};
/// use sqlx::{PgPool, Postgres};
///
/// /// Who sends: left in the request by authentication, in front of the guard.
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// fn app(pool: PgPool) -> Router {
///     let guard = Guard::new(pool, |request| Scope::parse(&request.extensions.get::<Tenant>()?.0).ok());
///     Router::new().route("/orders", post(create)).layer(guard.layer())
/// }
///
/// async fn create(mut tx: Guarded<Postgres>, order: String) -> Result<StatusCode, StatusCode> {
///     let failed = |_| StatusCode::INTERNAL_SERVER_ERROR; // rolled back, and the key is free again
///     let insert = sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(&order);
///     insert.execute(&mut *tx).await.map_err(failed)?;
///     let charge = NewEffect::to("payments").operation("charge"); // its key is derived from the request's
///     Outbox.enqueue(&mut *tx, charge).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok(StatusCode::CREATED) // committed before the client is told
/// }
/// ```
///
/// Requests by GET, HEAD, OPTIONS and TRACE pass; what they ask for with [`Guarded`](super::Guarded) is a plain transaction. 2xx and
/// 3xx are stored with the handler's rows and committed before the client is told; any other answer rolls back and frees the key,
/// unless it is a [`Remember`](super::Remember). A client that hangs up changes nothing. Refusals of the guard are problem details
/// (RFC 9457): 400 (key missing or malformed), 401 (nobody known), 409 with Retry-After (in progress), 413, 422 (the key is
/// another request's), 500, and 503 with Retry-After (store away or busy, handler too slow).
///
/// The guard stands inside what knows who sends and inside what changes answers by connection (compression). It keeps an
/// answer in memory as a whole: streams that do not end, and trailers, are not for it. A handler that takes a second connection of
/// the same pool may wait for itself.
pub struct Guard<DB: Guardable> {
    pool: Pool<DB>,
    scope: Arc<ScopeOf>,
    settings: Settings,
    common: Arc<Common>,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) session: Session,
    pub(super) key_optional: bool,
    pub(super) fail_open: bool,
    pub(super) wait: Duration,
    pub(super) ttl: Option<Duration>,
    pub(super) headers: Vec<HeaderName>,
    pub(super) request_limit: usize,
    pub(super) answer_limit: usize,
    pub(super) handler_limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session: Session::Own,
            key_optional: false,
            fail_open: false,
            wait: Duration::ZERO,
            ttl: None,
            headers: Vec::new(),
            request_limit: 1 << 20,
            answer_limit: 1 << 20,
            // Longer than any answer that a client waits for, short enough that a stuck handler gives its connection back.
            handler_limit: Duration::from_secs(60),
        }
    }
}

impl<DB: Guardable> Guard<DB> {
    /// Guards with the database behind `pool`. `scope` says in whose space a request's key is unique: the tenant, the
    /// principal, from what authentication left in the request. Where it says `None`, nobody is known and the answer is 401.
    ///
    /// The pool's `acquire_timeout`, and on SQLite its `busy_timeout`, are how long a request waits before it is told 503.
    pub fn new(pool: Pool<DB>, scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        Self {
            pool,
            scope: Arc::new(scope),
            settings: Settings::default(),
            common: Common::bounded(IN_FLIGHT),
        }
    }

    /// One scope for all callers: whoever guesses another's key, and sends the same request, reads the other's answer.
    pub fn shared(pool: Pool<DB>, scope: Scope) -> Self {
        Self::new(pool, move |_| Some(scope.clone()))
    }

    /// A request without a key runs unguarded, still in a transaction. Otherwise it is told 400.
    #[must_use]
    pub fn key_optional(mut self) -> Self {
        self.settings.key_optional = true;
        self
    }

    /// How long a request whose key is in progress waits for the answer before it is told 409; by default not at all. On
    /// SQLite it always waits for the writer, for the connection's `busy_timeout`.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How long answers are kept, besides as long as an effect of the request is unfinished; otherwise as long as the
    /// database was told (24 hours).
    ///
    /// # Panics
    ///
    /// When it is shorter than a microsecond, or longer than [`KEPT_MAX`](crate::guard::KEPT_MAX): an answer that is forgotten at
    /// once would guard nothing.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        if let Err(error) = check_ttl(self.settings.ttl) {
            panic!("{error}, and is {ttl:?}");
        }
        self
    }

    /// Headers that make two requests different ones, besides method, path, query and body.
    ///
    /// # Panics
    ///
    /// When one is no header's name.
    #[must_use]
    pub fn fingerprint_headers<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let parse = |name: N| HeaderName::from_bytes(name.as_ref().as_bytes()).expect("a header's name");
        self.settings.headers = names.into_iter().map(parse).collect();
        self
    }

    /// The longest body of a request (1 MiB); a longer one is told 413.
    #[must_use]
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.settings.request_limit = bytes;
        self
    }

    /// The longest body of an answer (1 MiB); a longer one is rolled back, and the client is told 500.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.settings.answer_limit = bytes;
        self
    }

    /// How long a handler may hold the transaction, its answer's body included (60 s); then it is stopped and rolled back, and the
    /// client is told 503. A statement that the database runs at that moment goes on there until it ends or notices.
    ///
    /// # Panics
    ///
    /// When it is zero.
    #[must_use]
    pub fn handler_limit(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "handler_limit must be longer than 0");
        self.settings.handler_limit = limit;
        self
    }

    /// How many requests with a key may be in flight at once, those whose clients have gone included (1,024); one more is told 503.
    ///
    /// # Panics
    ///
    /// When it is zero.
    #[must_use]
    pub fn in_flight_limit(mut self, requests: usize) -> Self {
        assert!(requests > 0, "in_flight_limit must be at least 1");
        self.common = Common::bounded(requests);
        self
    }

    /// While the store is away, requests run without a transaction and unguarded, instead of being told 503. Handlers take
    /// `Option<Guarded<DB>>`; those that take `Guarded<DB>` still answer 503. A repeat of a request whose COMMIT was not answered, or
    /// that runs elsewhere, runs beside it then: only for what may be done twice. A pool whose connections are all taken is not away.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }

    /// The pool leads to a transaction pooler (pgbouncer): the guard's statements have no names. The application's own need the same
    /// (`.persistent(false)`, [`Pooled`](crate::enqueue::Pooled) for effects).
    #[must_use]
    pub fn pooled(mut self) -> Self {
        self.settings.session = Session::Pooled;
        self
    }

    /// How the requests came out so far, in this process.
    pub fn counts(&self) -> RequestCounts {
        self.common.counts.counts()
    }

    /// Waits until no request is in flight, not even one whose client has gone. For a shutdown that loses nothing: after the
    /// server has stopped to accept, and before the runtime ends.
    pub async fn drain(&self) {
        self.common.tasks.close();
        self.common.tasks.wait().await;
    }
}

impl Common {
    fn bounded(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            counts: Tally::default(),
            turns: Arc::default(),
            in_flight: Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS))),
            tasks: TaskTracker::new(),
        })
    }
}

/// What a request is to the guard.
pub(super) enum Met {
    /// Passes; its transaction, if a handler asks for one, is for this.
    Unguarded(Purpose),
    Guarded(Scope, RequestKey),
}

/// A guard as its layers have it.
pub(super) struct Settled<DB: Guardable> {
    scope: Arc<ScopeOf>,
    pub(super) shared: Arc<Shared<DB>>,
}

impl<DB: Guardable> Guard<DB> {
    pub(super) fn settled(&self) -> Settled<DB> {
        Settled {
            scope: Arc::clone(&self.scope),
            shared: Arc::new(Shared {
                pool: self.pool.clone(),
                settings: self.settings.clone(),
                begin: DB::begin(Purpose::Guard, self.settings.handler_limit),
                common: Arc::clone(&self.common),
            }),
        }
    }
}

impl<DB: Guardable> Settled<DB> {
    /// The transaction of a request without a key.
    pub(super) fn later(&self, purpose: Purpose) -> Later<DB> {
        let Shared { pool, settings, common, .. } = &*self.shared;
        let turns = (purpose == Purpose::Write).then(|| Arc::clone(&common.turns));
        let begin = DB::begin(purpose, settings.handler_limit);
        Later { pool: pool.clone(), begin, turns, fail_open: settings.fail_open }
    }

    pub(super) fn meet(&self, head: &Parts) -> Result<Met, Problem> {
        if head.method.is_safe() {
            return Ok(Met::Unguarded(Purpose::Read));
        }
        let mut lines = head.headers.get_all(IDEMPOTENCY_KEY).iter();
        let (line, another) = (lines.next(), lines.next());
        if line.is_none() && self.shared.settings.key_optional {
            return Ok(Met::Unguarded(Purpose::Write));
        }
        let scope = (self.scope)(head).ok_or_else(Problem::nobody)?;
        let line = line.ok_or_else(Problem::missing)?;
        if another.is_some() {
            return Err(Problem::twice());
        }
        let key = RequestKey::from_header(line.as_bytes()).map_err(Problem::malformed)?;
        Ok(Met::Guarded(scope, key))
    }

    /// `sent`: the head, where the client sent it to, and the body.
    pub(super) fn request(&self, scope: Scope, key: RequestKey, sent: (&Parts, &Uri, &[u8])) -> Request {
        let (head, uri, body) = sent;
        let path = uri.path_and_query().map_or_else(|| uri.path(), |path| path.as_str());
        let settings = &self.shared.settings;
        let headers = settings.headers.iter().map(|name| {
            (name.as_str(), head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect())
        });
        let fingerprint = Fingerprint::of(head.method.as_str(), path, headers, body);
        Request { scope, key, fingerprint, ttl: settings.ttl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IDEMP-IN-05.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn zero_is_not_the_same_as_not_given() {
        let guard = || {
            let pool = Pool::<sqlx::Postgres>::connect_lazy("postgres://127.0.0.1/none").unwrap();
            Guard::shared(pool, Scope::parse("public").unwrap())
        };
        assert_eq!(guard().settings.ttl, None);
        assert_eq!(guard().ttl(Duration::from_millis(1)).settings.ttl, Some(Duration::from_millis(1)));
        assert_eq!(guard().wait(Duration::ZERO).settings.wait, Duration::ZERO);
        let refused = |make: &dyn Fn() -> Guard<sqlx::Postgres>| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_err()
        };
        assert!(refused(&|| guard().ttl(Duration::ZERO)));
        assert!(refused(&|| guard().ttl(Duration::MAX)));
        assert!(refused(&|| guard().handler_limit(Duration::ZERO)));
        assert!(refused(&|| guard().in_flight_limit(0)));
        assert!(refused(&|| guard().fingerprint_headers(["no name"])));
    }
}
