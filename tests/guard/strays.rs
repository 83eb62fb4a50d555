//! Defends: whoever borrows a connection after the guard is never inside a transaction that somebody else left behind.

use std::{str::FromStr as _, time::Duration};

use aftercommit::{
    NewEffect, Outbox,
    guard::{Guard, Guarded, Scope},
};
use axum::{Router, body::Body, extract::Request, http::StatusCode, routing::post};
use sqlx::{
    PgPool, Postgres, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{task::JoinSet, time::timeout};
use tower_service::Service as _;

use crate::{
    e2e::tcp_proxy::TcpProxy,
    support::{Chance, TestDatabase, Worker, eventually, key_terms, on_postgres, registered, within},
};

on_postgres! {
    requests_whose_clients_hang_up_leave_no_transaction_to_the_next_borrower,
    a_begin_that_is_answered_too_late_leaves_no_transaction_to_the_next_borrower,
}

const SOON: Duration = Duration::from_secs(60);
const CLIENTS: usize = 200;

async fn create(mut tx: Guarded<Postgres>, order: String) -> Result<StatusCode, StatusCode> {
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    let insert = sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order);
    insert.execute(&mut *tx).await.map_err(failed)?;
    Ok(StatusCode::CREATED)
}

async fn pool(db: &TestDatabase, proxy: &TcpProxy) -> PgPool {
    let options = PgConnectOptions::from_str(&db.url).expect("a URL");
    let options = options.host(&proxy.address.ip().to_string()).port(proxy.address.port());
    PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(SOON)
        .connect_lazy_with(options.application_name("two connections"))
}

/// RUNTIME-01: two connections behind a line of 300 ms, 200 requests with a key, without one and by GET, whose clients hang up
/// after 100 ms and at other moments, and tasks that give up waiting for a connection.
async fn requests_whose_clients_hang_up_leave_no_transaction_to_the_next_borrower(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE orders (id text NOT NULL)").await;
    let mut chance = Chance::seeded();
    let url = url::Url::parse(&db.url).expect("a URL");
    let server = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
    let proxy = TcpProxy::start(server).await;
    let pool = pool(db, &proxy).await;
    let guard = Guard::shared(pool.clone(), Scope::parse("public").expect("a scope")).key_optional();
    let app: Router = Router::new().route("/orders", post(create).get(create)).layer(guard.layer());

    proxy.delay(Duration::from_millis(300));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut app = app.clone();
        let patience = if number % 2 == 0 { Duration::from_millis(100) } else { chance.millis(1500) };
        let request = match number % 4 {
            0 | 1 => Request::post("/orders").header("idempotency-key", format!("k-{number}")),
            2 => Request::post("/orders"),
            _ => Request::get("/orders"),
        };
        let request = request.body(Body::from(format!("order-{number}"))).expect("a request");
        clients.spawn(async move { timeout(patience, app.call(request)).await.is_err() });
    }
    // Others of the same pool lose their patience, too.
    for _ in 0..20 {
        let (pool, patience) = (pool.clone(), chance.millis(1500));
        clients.spawn(async move { timeout(patience, pool.acquire()).await.is_err() });
    }
    let mut left = 0;
    while let Some(hung_up) = clients.join_next().await {
        left += usize::from(hung_up.expect("no client panics"));
    }
    assert!(left >= CLIENTS / 2, "only {left} clients hung up");
    proxy.delay(Duration::ZERO);
    // Whoever went before BEGIN is forgotten; each of the others is carried out once.
    within(SOON, "nothing is in flight", guard.drain()).await;
    let kept = "SELECT count(*) FROM aftercommit.requests AS r WHERE r.response_status = 201
                AND (SELECT count(*) FROM orders AS o WHERE o.id = replace(r.key, 'k-', 'order-')) = 1";
    let written = "SELECT count(*) FROM orders WHERE split_part(id, '-', 2)::int % 4 < 2";
    assert_eq!(db.sql.number(kept).await, db.sql.number(written).await);

    let stray = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'two connections'
                 AND datname = current_database() AND (state LIKE 'idle in transaction%' OR state = 'active')";
    eventually(SOON, "no connection of the guard's pool stays inside a transaction", async || {
        (db.sql.number(stray).await == 0).then_some(())
    })
    .await;
    the_next_borrowers_are_free(db, &pool).await;
}

/// The guard's own limit passes while BEGIN is on its way: sqlx knows of no transaction then.
async fn a_begin_that_is_answered_too_late_leaves_no_transaction_to_the_next_borrower(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE orders (id text NOT NULL)").await;
    let url = url::Url::parse(&db.url).expect("a URL");
    let server = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
    let proxy = TcpProxy::start(server).await;
    let pool = pool(db, &proxy).await;
    let guard = Guard::shared(pool.clone(), Scope::parse("public").expect("a scope"));
    let guard = guard.handler_limit(Duration::from_millis(200));
    let mut app: Router = Router::new().route("/orders", post(create).get(create)).layer(guard.layer());
    for _ in 0..3 {
        // Both are open and idle; the piece after that of the pool's own is BEGIN.
        let (first, second) = (pool.acquire().await, pool.acquire().await);
        drop((first.expect("a connection"), second.expect("another connection")));
        eventually(SOON, "both are idle", async || (pool.num_idle() == 2).then_some(())).await;
        proxy.delay(Duration::from_secs(1));
        let request = Request::post("/orders").header("idempotency-key", "k").body(Body::from("late"));
        let Ok(answer) = app.call(request.expect("a request")).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        proxy.delay(Duration::ZERO);
    }
    the_next_borrowers_are_free(db, &pool).await;
    assert_eq!(db.sql.number("SELECT count(*) FROM orders WHERE id = 'late'").await, 0);
}

/// Both connections at once: each is outside of a transaction, what it writes alone is there for everybody, and an effect that it
/// enqueues is claimed.
async fn the_next_borrowers_are_free(db: &TestDatabase, pool: &PgPool) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let mut first = pool.acquire().await.expect("a connection");
    let mut second = pool.acquire().await.expect("another connection");
    for connection in [&mut first, &mut second] {
        // By a simple query: only there both times are of the same message.
        let look =
            "SELECT pg_current_xact_id_if_assigned()::text AS xid, now() = statement_timestamp() AS alone";
        let row = sqlx::raw_sql(look).fetch_one(&mut **connection).await.expect("the connection works");
        assert_eq!(row.get::<Option<String>, _>("xid"), None, "nothing was written in its transaction");
        assert!(row.get::<bool, _>("alone"), "its transaction begins with this statement");
    }
    let before = db.sql.number("SELECT count(*) FROM orders").await;
    sqlx::query("INSERT INTO orders (id) VALUES ('mine')").execute(&mut *first).await.expect("it is written");
    sqlx::raw_sql("ROLLBACK").execute(&mut *second).await.expect("others may roll back");
    assert_eq!(db.sql.number("SELECT count(*) FROM orders").await, before + 1);
    drop((first, second));
    let mut tx = pool.begin().await.expect("a transaction begins");
    Outbox.enqueue(&mut *tx, NewEffect::to("pay")).await.expect("an effect");
    tx.commit().await.expect("it commits");
    assert_eq!(worker.claim("pay", 5).await.len(), 1);
}
