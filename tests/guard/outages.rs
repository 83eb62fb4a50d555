//! Defends: while the store is away nothing is done behind its back, unless the application said so; and whoever asks again
//! afterwards learns what happened.

use std::{path::PathBuf, time::Duration};

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use tokio::task::JoinSet;

use super::{
    ask::Ask,
    shop::{Call, Gate, Shop, Tune, orders, sell},
};
use crate::{
    e2e::tcp_proxy::TcpProxy,
    support::{Engine, TestDatabase, on_every_database, on_postgres, on_sqlite, within},
};

on_every_database! {
    a_store_that_is_away_is_told_503_and_the_same_key_runs_when_it_is_back,
    a_guard_that_fails_open_runs_without_a_transaction,
    a_pool_without_a_free_connection_is_told_503_and_opens_no_guard,
}

on_postgres! {
    a_lost_answer_to_commit_is_told_503_and_the_retry_learns_the_answer,
    a_connection_that_is_lost_before_commit_frees_the_key,
    transactions_that_conflict_are_told_to_come_again_at_once,
    a_database_that_answers_late_opens_no_guard,
    a_deferred_constraint_at_commit_is_told_as_refused,
}

on_sqlite! { a_busy_writer_is_told_503_and_never_409_while_replays_are_answered }

const SOON: Duration = Duration::from_secs(60);

/// A way to the test's database that can be closed.
struct Way {
    url: String,
    proxy: Option<TcpProxy>,
    file: Option<(PathBuf, PathBuf)>,
}

impl Way {
    async fn to(db: &TestDatabase) -> Self {
        match db.engine {
            Engine::Postgres => {
                let mut url = url::Url::parse(&db.url).expect("a URL");
                let server = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
                let proxy = TcpProxy::start(server).await;
                url.set_ip_host(proxy.address.ip()).expect("a host");
                url.set_port(Some(proxy.address.port())).expect("a port");
                Self { url: url.into(), proxy: Some(proxy), file: None }
            }
            // Another way to the same file, which can be taken away: a link to its folder.
            Engine::Sqlite => {
                let file = PathBuf::from(db.url.strip_prefix("sqlite:").expect("a file"));
                let folder = file.parent().expect("in a folder");
                let (here, away) = (folder.join("here"), folder.join("away"));
                std::os::unix::fs::symlink(folder, &here).expect("a link");
                let name = file.file_name().expect("a name");
                Self {
                    url: format!("sqlite:{}", here.join(name).display()),
                    proxy: None,
                    file: Some((here, away)),
                }
            }
        }
    }

    fn close(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.refuse_all();
            proxy.cut_all();
        }
        if let Some((here, away)) = &self.file {
            std::fs::rename(here, away).expect("the link is taken away");
        }
    }

    fn open(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.accept_again();
        }
        if let Some((here, away)) = &self.file {
            std::fs::rename(away, here).expect("the link is put back");
        }
    }
}

fn through(way: &Way) -> Tune {
    Tune { url: Some(way.url.clone()), acquire: Duration::from_millis(500), ..Tune::default() }
}

async fn a_store_that_is_away_is_told_503_and_the_same_key_runs_when_it_is_back(db: &TestDatabase) {
    let way = Way::to(db).await;
    way.close();
    let shop = Shop::selling(db, through(&way)).await;
    for _ in 0..2 {
        let told = shop.send(Ask::order("k")).await;
        told.is_problem(503, "store-unavailable");
        assert_eq!(told.header("retry-after"), Some("1"));
        for word in ["sqlx", "postgres", "sqlite", "refused", "timed out", "pool"] {
            assert!(!told.body.contains(word), "the database's own words go to nobody: {}", told.body);
        }
    }
    assert_eq!(shop.runs(), 0);
    way.open();
    let told = shop.send(Ask::order("k")).await;
    assert_eq!((told.status, told.is_replay()), (201, false), "{told:?}");
    assert!(shop.send(Ask::order("k")).await.is_replay());
    assert_eq!(orders(db).await, 1);
}

async fn sell_anyway(mut call: Call) -> Response {
    match call.maybe_tx().await {
        Ok(None) => (StatusCode::ACCEPTED, "on paper").into_response(),
        Ok(Some(mut tx)) => {
            tx.order("A").await;
            StatusCode::CREATED.into_response()
        }
        Err(refused) => refused,
    }
}

async fn a_guard_that_fails_open_runs_without_a_transaction(db: &TestDatabase) {
    let way = Way::to(db).await;
    way.close();
    let tune = Tune { fail_open: true, key_optional: true, ..through(&way) };
    let open = Shop::open(db, tune.clone(), sell_anyway).await;
    for ask in [Ask::order("k"), Ask::order("k"), Ask::to("POST", "/orders"), Ask::to("GET", "/orders")] {
        let told = open.send(ask).await;
        assert_eq!((told.status, told.body.as_str(), told.is_replay()), (202, "on paper", false));
    }
    let strict = Shop::selling(db, tune).await;
    strict.send(Ask::order("k")).await.is_problem(503, "store-unavailable");
    assert_eq!(strict.runs(), 1, "its handler asked for a transaction that there was not");
    way.open();
    assert_eq!(open.send(Ask::order("k")).await.status, 201, "nothing was remembered");
    assert_eq!((open.counts().first, orders(db).await), (1, 1));
}

async fn a_pool_without_a_free_connection_is_told_503_and_opens_no_guard(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let acquire = Duration::from_millis(200);
    let tune = Tune { connections: 1, acquire, fail_open: true, ..Tune::default() };
    let shop = Shop::open(db, tune, move |call| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            sell(call).await
        }
    })
    .await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    shop.send(Ask::order("l").body("B")).await.is_problem(503, "store-busy");
    assert_eq!(shop.runs(), 1);
    gate.open();
    assert_eq!(clients.join_next().await.expect("a client").expect("no panic").status, 201);
    assert_eq!(shop.send(Ask::order("l").body("B")).await.status, 201);
    assert_eq!(orders(db).await, 2);
}

async fn a_database_that_answers_late_opens_no_guard(db: &TestDatabase) {
    let way = Way::to(db).await;
    let limit = Duration::from_millis(200);
    let tune = Tune { fail_open: true, handler_limit: limit, acquire: SOON, ..through(&way) };
    let shop = Shop::open(db, tune, sell_anyway).await;
    way.proxy.as_ref().expect("PostgreSQL").delay(Duration::from_secs(1));
    shop.send(Ask::order("k")).await.is_problem(503, "store-busy");
    assert_eq!(shop.runs(), 0);
}

async fn a_deferred_constraint_at_commit_is_told_as_refused(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE orders (id text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    let shop = Shop::selling(db, Tune::default()).await;
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    shop.send(Ask::order("l")).await.is_problem(500, "commit-refused");
}

async fn a_lost_answer_to_commit_is_told_503_and_the_retry_learns_the_answer(db: &TestDatabase) {
    let way = Way::to(db).await;
    let shop = Shop::selling(db, through(&way)).await;
    let proxy = way.proxy.as_ref().expect("PostgreSQL");
    proxy.swallow_answers_of(|statement| statement == "commit", 1);
    let told = shop.send(Ask::order("k")).await;
    told.is_problem(503, "outcome-unknown");
    assert_eq!(proxy.swallowed(), 1, "{:?}", proxy.statements());
    let again = shop.send(Ask::order("k")).await;
    assert_eq!((again.status, again.is_replay(), again.body.as_str()), (201, true, "order A by run 1"));
    assert_eq!((shop.runs(), orders(db).await), (1, 1));
}

async fn a_connection_that_is_lost_before_commit_frees_the_key(db: &TestDatabase) {
    let way = Way::to(db).await;
    let shop = Shop::selling(db, Tune { wait: SOON, ..through(&way) }).await;
    let proxy = way.proxy.as_ref().expect("PostgreSQL");
    proxy.swallow_answers_of(|statement| statement.contains("finish_request"), 1);
    shop.send(Ask::order("k")).await.is_problem(503, "store-unavailable");
    assert_eq!(proxy.swallowed(), 1, "{:?}", proxy.statements());
    let again = shop.send(Ask::order("k")).await;
    assert_eq!((again.status, again.is_replay(), shop.runs(), orders(db).await), (201, false, 2, 1));
}

/// Two requests that each read what the other writes, in transactions that must be as if one came after the other.
async fn transactions_that_conflict_are_told_to_come_again_at_once(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let shop = Shop::open(db, Tune::default(), move |mut call: Call| {
        let gate = inside.clone();
        async move {
            let mut tx = call.tx().await.expect("a transaction");
            tx.execute("INSERT INTO orders (id) SELECT 'B' FROM orders HAVING count(*) >= 0")
                .await
                .expect("it is written");
            gate.pass().await;
            StatusCode::CREATED.into_response()
        }
    })
    .await;
    db.sql.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$").await;
    let mut clients = JoinSet::new();
    for key in ["a", "b"] {
        clients.spawn(shop.send(Ask::order(key)));
    }
    for _ in 0..2 {
        within(SOON, "both handlers run", gate.arrival()).await;
    }
    gate.open();
    let mut told = Vec::new();
    while let Some(client) = clients.join_next().await {
        told.push(client.expect("no panic"));
    }
    told.sort_by_key(|told| told.status);
    assert_eq!(told[0].status, 201, "{told:?}");
    told[1].is_problem(503, "conflict");
    assert_eq!((told[1].header("retry-after"), orders(db).await), (Some("0"), 1));
}

async fn a_busy_writer_is_told_503_and_never_409_while_replays_are_answered(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune { busy: Duration::from_millis(50), ..Tune::default() }).await;
    let first = shop.send(Ask::order("k")).await;
    let writer = db.sql.begin().await;
    for key in ["l", "m"] {
        let told = shop.send(Ask::order(key)).await;
        told.is_problem(503, "store-busy");
        assert_eq!(told.header("retry-after"), Some("1"));
    }
    assert_eq!(shop.send(Ask::order("k")).await.first(), first, "a replay waits for no writer");
    shop.send(Ask::order("k").body("B")).await.is_problem(422, "key-reused");
    writer.rollback().await;
    assert_eq!(shop.send(Ask::order("l")).await.status, 201);
    assert_eq!(shop.runs(), 2);
}
