//! The guard as a `tower` layer, and the transaction of a guarded request as an `axum` extractor.
//!
//! Around a request that changes something (any method but GET, HEAD, OPTIONS and TRACE): read its body, begin its key, run the
//! handler, read the answer as a whole, store it, commit; then send it. All but the first runs in a task that a client that hangs
//! up ends before BEGIN only. A client is told 2xx and 3xx only after the COMMIT; any other answer rolls back and frees the key,
//! unless the handler asks to [`Remember`] it.
//!
//! [`guard`] is what the application says; [`flow`] and [`plain`] are the ways of a request with and without a key. This is the only
//! file of the library that knows `axum`; what it splits off knows `http`.

mod answer;
mod begin;
mod counts;
mod database;
mod flow;
mod guard;
mod leash;
mod plain;
mod problem;
mod transaction;
mod turns;

use std::{
    convert::Infallible,
    future::Future,
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts, OriginalUri},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use self::{
    answer::Remembered,
    database::Trouble,
    flow::BoxError,
    guard::{Met, Settled},
    leash::{Leash, Watch},
    plain::{begin_later, refusal},
    problem::Problem,
    transaction::{Found, Slot, Transaction},
};
use super::{RequestKey, Scope};
use crate::{IdempotencyKey, key::derive};

pub use counts::RequestCounts;
pub use database::Guardable;
pub use guard::{Guard, IDEMPOTENCY_KEY};

impl<DB: Guardable> Guard<DB> {
    /// The layer. It can be made again and cloned: all count together.
    pub fn layer(&self) -> GuardLayer<DB> {
        GuardLayer(Arc::new(Inner { guard: self.settled() }))
    }
}

struct Inner<DB: Guardable> {
    guard: Settled<DB>,
}

impl<DB: Guardable> Inner<DB> {
    /// The bytes of a request's body, and the body for its handler, trailers and all.
    async fn read(&self, body: Body) -> Result<(Bytes, Body), Problem> {
        let limit = self.guard.shared.settings.request_limit;
        let read = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Problem::request_too_large(limit)
            } else {
                Problem::unreadable()
            }
        })?;
        let trailers = read.trailers().cloned();
        let bytes = read.to_bytes();
        let body = match trailers {
            None => Body::from(bytes.clone()),
            Some(trailers) => {
                let trailers = std::future::ready(Some(Ok(trailers)));
                Body::new(Full::new(bytes.clone()).with_trailers(trailers))
            }
        };
        Ok((bytes, body))
    }

    async fn answer<F>(
        &self,
        request: http::Request<Body>,
        handle: impl FnOnce(http::Request<Body>) -> F + Send + 'static,
    ) -> Result<Response, Problem>
    where
        F: Future<Output = Response> + Send + 'static,
    {
        // A guard around this one has begun the request's key, and would be waited for. One that has begun nothing guards nothing.
        let guarded = request.extensions().get::<Slot<DB>>().is_some_and(|slot| slot.name().is_some());
        if guarded {
            return Ok(handle(request).await);
        }
        let (head, body) = request.into_parts();
        match self.guard.meet(&head)? {
            Met::Unguarded(purpose) => {
                let slot = Slot::later(self.guard.later(purpose));
                self.unguarded(slot, http::Request::from_parts(head, body), handle).await
            }
            Met::Guarded(scope, key) => self.guarded((scope, key), (head, body), handle).await,
        }
    }

    async fn unguarded<F>(
        &self,
        slot: Slot<DB>,
        mut request: http::Request<Body>,
        handle: impl FnOnce(http::Request<Body>) -> F + Send + 'static,
    ) -> Result<Response, Problem>
    where
        F: Future<Output = Response> + Send + 'static,
    {
        request.extensions_mut().insert(slot.clone());
        let handling = handle(request);
        let shared = Arc::clone(&self.guard.shared);
        let tasks = shared.common.tasks.clone();
        let mine = slot.clone();
        let running = async move { shared.unguarded(&mine, handling).await };
        let task = tasks.spawn(running.instrument(tracing::Span::current()));
        let _leash = Leash { task: task.abort_handle(), leaves: || slot.leave() };
        task.await.unwrap_or_else(|ended| match ended.try_into_panic() {
            // As if the guard were not there.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_the_runtime_ends) if slot.leave() => Err(Problem::unavailable()),
            Err(_the_runtime_ends) => Err(Problem::unknown_without_key()),
        })
    }

    async fn guarded<F>(
        &self,
        (scope, key): (Scope, RequestKey),
        (mut head, body): (Parts, Body),
        handle: impl FnOnce(http::Request<Body>) -> F + Send + 'static,
    ) -> Result<Response, Problem>
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let (bytes, body) = self.read(body).await?;
        let shared = Arc::clone(&self.guard.shared);
        // Not before the body is there: who sends slowly keeps nobody out.
        let place = Arc::clone(&shared.common.in_flight).try_acquire_owned();
        let place = place.map_err(|_crowded| Problem::crowded())?;
        // As the client sent it: a nested router has cut its own part off.
        let uri = head.extensions.get::<OriginalUri>().map_or(&head.uri, |original| &original.0);
        let request = self.guard.request(scope, key, (&head, uri, &bytes));
        let handle = move |slot: Slot<DB>| {
            head.extensions.insert(slot);
            handle(http::Request::from_parts(head, body))
        };
        let watch = Arc::new(Watch::default());
        let tasks = shared.common.tasks.clone();
        let mine = Arc::clone(&watch);
        let running = async move {
            let _place = place;
            shared.guarded(&request, &mine, handle).await
        };
        let task = tasks.spawn(running.instrument(tracing::Span::current()));
        let _leash = Leash { task: task.abort_handle(), leaves: || watch.leave() };
        task.await.map(|answer| answer.map(Body::from)).map_err(|_the_runtime_ends| {
            // It may have been at its COMMIT.
            if watch.has_begun() { Problem::unknown() } else { Problem::unavailable() }
        })
    }
}

/// Puts a [`Guard`] around a service, or around a router: `router.layer(guard.layer())`.
pub struct GuardLayer<DB: Guardable>(Arc<Inner<DB>>);

impl<DB: Guardable> Clone for GuardLayer<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, DB: Guardable> Layer<S> for GuardLayer<DB> {
    type Service = GuardService<S, DB>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardService { inner, guard: Arc::clone(&self.0) }
    }
}

/// A guarded service.
pub struct GuardService<S, DB: Guardable> {
    inner: S,
    guard: Arc<Inner<DB>>,
}

impl<S: Clone, DB: Guardable> Clone for GuardService<S, DB> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), guard: Arc::clone(&self.guard) }
    }
}

impl<S, B, DB> Service<http::Request<B>> for GuardService<S, DB>
where
    DB: Guardable,
    S: Service<http::Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse,
    S::Error: Into<Infallible>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        // The clone is not ready yet; what was polled is.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let handle = move |request: http::Request<Body>| async move {
            match inner.call(request).await {
                Ok(answer) => answer.into_response(),
                Err(never) => match Into::<Infallible>::into(never) {},
            }
        };
        let guard = Arc::clone(&self.guard);
        Box::pin(async move {
            let answered = guard.answer(request.map(Body::new), handle).await;
            Ok(answered.unwrap_or_else(|problem| problem.response().map(Body::from)))
        })
    }
}

/// The transaction of a request behind a [`Guard`]. It is the guard's own: it commits when the answer is 2xx or 3xx, and rolls
/// back otherwise. Dereferences to the connection: `sqlx::query("…").execute(&mut *tx)`,
/// `Outbox.enqueue(&mut *tx, effect)`; a nested transaction (`tx.begin()`) is a savepoint.
///
/// To be dropped before the answer ends; one that is kept longer is rolled back, and the client is told 500. One handler can have it at
/// a time.
pub struct Guarded<DB: Guardable> {
    transaction: Option<Transaction<DB>>,
    slot: Slot<DB>,
}

const HELD: &str = "it is given back on drop only";

impl<DB: Guardable> Deref for Guarded<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.transaction.as_ref().expect(HELD).connection()
    }
}

impl<DB: Guardable> DerefMut for Guarded<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.transaction.as_mut().expect(HELD).connection_mut()
    }
}

impl<DB: Guardable> Drop for Guarded<DB> {
    fn drop(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.slot.give_back(transaction);
        }
    }
}

impl<DB: Guardable> Guarded<DB> {
    /// Whose key the request has; `None`: it has none.
    pub fn scope(&self) -> Option<&Scope> {
        self.slot.name().map(|(scope, _)| scope)
    }

    /// The request's key; `None`: it has none.
    pub fn key(&self) -> Option<&RequestKey> {
        self.slot.name().map(|(_, key)| key)
    }

    /// An id that the request determines by its scope, its key and `name`, as it does those of its effects: should it run again after its
    /// answer was forgotten, it meets its own row. `None`: it has no key.
    pub fn derive(&self, name: &str) -> Option<IdempotencyKey> {
        self.slot.name().map(|(scope, key)| derive(scope.as_str(), key.as_str(), name))
    }

    /// `None`: there is no transaction, and the guard is told to go on without.
    async fn take(head: &Parts) -> Result<Option<Self>, Problem> {
        let slot = head.extensions.get::<Slot<DB>>().cloned();
        let slot = slot.ok_or_else(|| {
            Problem::no_transaction("This route has no guard for this database. Tell whoever runs this service: a handler that takes \
                                     Guarded needs .layer(guard.layer()).")
        })?;
        match slot.take() {
            Found::Here(transaction) => {
                // Held from here on: whatever happens to this future, the transaction goes back.
                let mut guarded = Self { transaction: Some(transaction), slot };
                let marked = guarded.transaction.as_mut().expect(HELD).mark().await;
                marked.map_err(|error| refusal::<DB>(&error.into()))?;
                Ok(Some(guarded))
            }
            Found::Later(later) => match begin_later(&slot, &later).await {
                Ok(transaction) => Ok(Some(Self { transaction: Some(transaction), slot })),
                Err(error) => {
                    let go_on = later.fail_open && Trouble::of::<DB>(&error) == Trouble::Away;
                    slot.not_begun(later);
                    if go_on { Ok(None) } else { Err(refusal::<DB>(&error)) }
                }
            },
            Found::Absent => Ok(None),
            Found::Taken => Err(Problem::no_transaction(
                "The request's transaction is in use by another part of its handler. Tell whoever runs this service: one Guarded at a time.",
            )),
            Found::Lost => Err(Problem::lost()),
            Found::Over => Err(Problem::kept()),
        }
    }
}

impl<S: Sync, DB: Guardable> FromRequestParts<S> for Guarded<DB> {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Response> {
        let taken = Self::take(head).await.and_then(|taken| taken.ok_or_else(Problem::unavailable));
        taken.map_err(|problem| problem.response().map(Body::from))
    }
}

/// `None` while the store is away, behind a guard that was told to [`Guard::fail_open`].
impl<S: Sync, DB: Guardable> OptionalFromRequestParts<S> for Guarded<DB> {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Option<Self>, Response> {
        Self::take(head).await.map_err(|problem| problem.response().map(Body::from))
    }
}

/// A refusal (4xx, 5xx) that is the request's final answer: it is stored and replayed, and what the handler wrote is rolled
/// back. Around 2xx and 3xx, and without a key, it changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Remember<R>(pub R);

impl<R: IntoResponse> IntoResponse for Remember<R> {
    fn into_response(self) -> Response {
        let mut response = self.0.into_response();
        response.extensions_mut().insert(Remembered);
        response
    }
}
