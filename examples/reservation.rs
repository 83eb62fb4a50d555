//! Deduct stock if there is enough, record the reservation, answer: once, however often a client asks. In Rust:
//!
//! ```text
//! DATABASE_URL=sqlite:shop.db cargo run --features axum --example reservation -- 8080
//! DATABASE_URL=postgres://localhost/shop cargo run --features axum --example reservation -- 8080
//!
//! curl -i localhost:8080/reservations -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "8e03978e"' \
//!      -H 'Content-Type: application/json' -d '{"item":"ticket","quantity":1}'
//! ```
//!
//! The handlers know nothing of keys: the guard's layer begins their transaction, stores their answer in it and commits.

use std::{num::NonZeroU32, time::Duration};

use aftercommit::{
    NewEffect, Outbox,
    error::EnqueueError,
    guard::{Guard, Guardable, Guarded, Remember, Scope},
};
use axum::{
    Json, Router,
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use sqlx::{PgPool, Postgres, Sqlite, SqlitePool, sqlite::SqliteConnectOptions};

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, available bigint NOT NULL CHECK (available >= 0))",
    "CREATE TABLE IF NOT EXISTS reservations (id text PRIMARY KEY, item text NOT NULL, quantity bigint NOT NULL)",
];
const DEDUCT: &str = "UPDATE stock SET available = available - $1 WHERE item = $2 AND available >= $1";
const LOOK: &str = "SELECT item, quantity FROM reservations WHERE id = $1";
const RECORD: &str = "INSERT INTO reservations (id, item, quantity) VALUES ($1, $2, $3)";

#[derive(Deserialize)]
struct Order {
    item: String,
    quantity: NonZeroU32,
}

async fn on_postgres(mut tx: Guarded<Postgres>, Json(order): Json<Order>) -> Result<Response, Failure> {
    let id = id(&tx);
    let made: Option<(String, i64)> = sqlx::query_as(LOOK).bind(&id).fetch_optional(&mut *tx).await?;
    if let Some(made) = made {
        return Ok(order.found(id, made));
    }
    let (item, quantity) = (&order.item, i64::from(order.quantity.get()));
    let deducted = sqlx::query(DEDUCT).bind(quantity).bind(item).execute(&mut *tx).await?;
    if deducted.rows_affected() == 0 {
        // The refusal is remembered, and what the handler wrote is not: a later repeat is told the same.
        return Ok(Remember(order.sold_out()).into_response());
    }
    sqlx::query(RECORD).bind(&id).bind(item).bind(quantity).execute(&mut *tx).await?;
    // Without a key: it is derived from the request's.
    Outbox.enqueue(&mut *tx, NewEffect::to("mail").json(&json!({ "reservation": id }))?).await?;
    Ok(order.reserved(id))
}

/// The same on SQLite, where types differ.
async fn on_sqlite(mut tx: Guarded<Sqlite>, Json(order): Json<Order>) -> Result<Response, Failure> {
    let id = id(&tx);
    let made: Option<(String, i64)> = sqlx::query_as(LOOK).bind(&id).fetch_optional(&mut *tx).await?;
    if let Some(made) = made {
        return Ok(order.found(id, made));
    }
    let (item, quantity) = (&order.item, i64::from(order.quantity.get()));
    let deducted = sqlx::query(DEDUCT).bind(quantity).bind(item).execute(&mut *tx).await?;
    if deducted.rows_affected() == 0 {
        return Ok(Remember(order.sold_out()).into_response());
    }
    sqlx::query(RECORD).bind(&id).bind(item).bind(quantity).execute(&mut *tx).await?;
    Outbox.enqueue(&mut *tx, NewEffect::to("mail").json(&json!({ "reservation": id }))?).await?;
    Ok(order.reserved(id))
}

/// The reservation's id is derived from the request's key too: should the request run again, long after its answer was forgotten,
/// it meets its own row.
fn id<DB: Guardable>(tx: &Guarded<DB>) -> String {
    tx.derive("reservation").expect("the guard lets nothing pass without a key").to_string()
}

impl Order {
    fn reserved(&self, id: String) -> Response {
        let location = [(header::LOCATION, format!("/reservations/{id}"))];
        let body = json!({ "reservation": id, "item": self.item, "quantity": self.quantity });
        (StatusCode::CREATED, location, Json(body)).into_response()
    }

    /// The answer where the reservation was made long ago.
    fn found(&self, id: String, (item, quantity): (String, i64)) -> Response {
        if (&item, quantity) == (&self.item, i64::from(self.quantity.get())) {
            return self.reserved(id);
        }
        let body = json!({ "title": "this key was used with another request, long ago" });
        (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
    }

    fn sold_out(&self) -> Response {
        let detail = format!("There are not {} of {} left.", self.quantity, self.item);
        (StatusCode::GONE, Json(json!({ "title": "sold out", "detail": detail }))).into_response()
    }
}

/// Whatever goes wrong is rolled back, and frees the key.
struct Failure(EnqueueError);

impl<E: Into<EnqueueError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], self.0.to_string()).into_response()
    }
}

/// Whose key it is: keys of different callers never meet. `None` is answered by 401.
fn tenant(parts: &Parts) -> Option<Scope> {
    match parts.headers.get(header::AUTHORIZATION)?.to_str().ok()? {
        "Bearer demo" => Scope::parse("tenant-1").ok(),
        "Bearer demo-2" => Scope::parse("tenant-2").ok(),
        _ => None,
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "port 0 takes any, and whoever asked for it wants to know which")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let port: u16 = std::env::args().nth(1).ok_or("usage: reservation PORT")?.parse()?;
    let app = if url.starts_with("sqlite:") {
        let options = url.parse::<SqliteConnectOptions>()?.busy_timeout(Duration::from_secs(30));
        let pool = SqlitePool::connect_with(options).await?;
        for table in TABLES {
            sqlx::query(table).execute(&pool).await?;
        }
        let guard = Guard::new(pool, tenant);
        Router::new().route("/reservations", post(on_sqlite)).layer(guard.layer())
    } else {
        let pool = PgPool::connect(&url).await?;
        for table in TABLES {
            sqlx::query(table).execute(&pool).await?;
        }
        let guard = Guard::new(pool, tenant);
        Router::new().route("/reservations", post(on_postgres)).layer(guard.layer())
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
