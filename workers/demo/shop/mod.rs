//! The order service of `dev`: what an application behind the guard looks like. `POST /orders` writes an order, its charge and
//! its receipt in the transaction that keeps its answer too; whoever asks again with the same key is answered the same.

mod order;
mod problem;

use std::{str::FromStr as _, time::Duration};

use aftercommit::{
    Outbox,
    guard::{Guard, Guarded, RequestCounts, Scope},
};
use anyhow::Context as _;
use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use sha2::{Digest as _, Sha256};
use sqlx::{Sqlite, SqlitePool, sqlite::SqliteConnectOptions};

use order::Order;
use problem::Problem;

/// What the service is, exactly; held by tests that nobody here wrote.
const OPENAPI: &str = include_str!("openapi.json");
/// The scope of everybody who brings no credentials.
const ANYBODY: &str = "anybody";
/// A second writer waits this long; then it is told to come back.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service, on the playground's own database.
pub(super) struct Shop {
    pool: SqlitePool,
    guard: Guard<Sqlite>,
    /// Whether each order is also told to the downstream `orders`.
    announces: Announces,
}

#[derive(Clone, Copy, Debug)]
struct Announces(bool);

impl Shop {
    /// Opens it on a SQLite database that is migrated.
    ///
    /// # Errors
    ///
    /// When the database cannot be opened or written.
    pub(super) async fn open(url: &str, announces: bool) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::from_str(url)?
            .busy_timeout(PATIENCE)
            .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
        let pool =
            SqlitePool::connect_with(options).await.context("opening the database for the order service")?;
        order::create_table(&pool).await.context("making the order service's table")?;
        let guard = Guard::new(pool.clone(), caller);
        Ok(Self { pool, guard, announces: Announces(announces) })
    }

    /// Its routes. The guard stands around the one handler that changes something: a wrong method is told so, whether or not it
    /// brings a key.
    pub(super) fn router(&self) -> Router {
        Router::new()
            .route("/orders", post(create).route_layer(self.guard.layer()))
            .route("/orders/{id}", get(show))
            .route("/openapi.json", get(describe))
            .layer(Extension(self.announces))
            .with_state(self.pool.clone())
    }

    /// How guarded requests ended.
    pub(super) fn counts(&self) -> RequestCounts {
        self.guard.counts()
    }
}

/// Who asks: keys of different callers never meet. Credentials are stored nowhere, only what they hash to.
fn caller(parts: &Parts) -> Option<Scope> {
    let Some(credentials) = parts.headers.get(header::AUTHORIZATION) else {
        // One bucket for everybody, by name: this is a playground. A service that knows its callers says `None` here.
        return Scope::parse(ANYBODY).ok();
    };
    let (scheme, secret) = credentials.to_str().ok()?.split_once(' ')?;
    let known = ["bearer", "basic"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let digest = hex::encode(Sha256::digest(secret.trim()));
    if known && !secret.trim().is_empty() { Scope::parse(format!("caller-{digest}")).ok() } else { None }
}

/// The caller, for handlers.
struct Caller(Scope);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        caller(parts).map(Self).ok_or_else(Problem::stranger)
    }
}

/// The business. It knows nothing of repeats, but that its own id is derived from the request's key, as those of its effects
/// are: should the request run again after its answer was forgotten, it finds what it has written.
async fn create(
    Caller(owner): Caller,
    Extension(Announces(announces)): Extension<Announces>,
    mut tx: Guarded<Sqlite>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let order = Order::read(headers.get(header::CONTENT_TYPE), &body)?;
    let id = format!("ord_{}", tx.derive("order").ok_or_else(Problem::keyless)?);
    let charge = Outbox.enqueue(&mut *tx, order.charge(&id)?).await?;
    let receipt = Outbox.enqueue(&mut *tx, order.receipt(&id)?).await?;
    if announces {
        Outbox.enqueue(&mut *tx, order.message(&id)?).await?;
    }
    let effects = [charge.receipt().id.get(), receipt.receipt().id.get()];
    order.write(&mut tx, &id, owner.as_str(), effects).await?;
    let shown = order::shown(&mut tx, &id, owner.as_str()).await?.ok_or_else(|| Problem::missing(&id))?;
    let location = [(header::LOCATION, format!("/orders/{id}"))];
    Ok((StatusCode::CREATED, location, Json(shown)).into_response())
}

async fn show(
    Caller(owner): Caller,
    State(pool): State<SqlitePool>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Ok(Path(id)) = id else { return Err(Problem::missing("…")) };
    let mut connection = pool.acquire().await?;
    let shown = order::shown(&mut connection, &id, owner.as_str()).await?;
    let shown = shown.ok_or_else(|| Problem::missing(&id))?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(authorization: Option<&str>) -> Option<String> {
        let mut request = axum::http::Request::builder();
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        caller(&parts).map(|scope| scope.as_str().to_owned())
    }

    #[test]
    fn callers_do_not_share_keys_and_credentials_are_not_stored() {
        let (a, b) = (scope(Some("Bearer a")).unwrap(), scope(Some("Bearer b")).unwrap());
        assert!(a != b && a.starts_with("caller-") && a.len() == 71, "{a}");
        assert_eq!(scope(None).as_deref(), Some(ANYBODY));
        for unknown in ["Bearer", "Bearer ", "Digest x", ""] {
            assert_eq!(scope(Some(unknown)), None, "{unknown:?}");
        }
    }

    #[test]
    fn the_description_is_json_and_names_every_route() {
        let described: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        assert_eq!(described["openapi"], "3.1.0");
        let paths: Vec<_> = described["paths"].as_object().unwrap().keys().collect();
        assert_eq!(paths, ["/orders", "/orders/{id}"]);
    }
}
