//! Defends: a key is one request of one sender: nobody is told what another asked for, and nothing is taken for what it is not.

use std::time::Duration;

use axum::{Router, http::StatusCode, response::IntoResponse as _};
use tokio::task::JoinSet;

use super::{
    ask::Ask,
    shop::{Call, Gate, Shop, Tune, orders, sell},
};
use crate::support::{Engine, TestDatabase, on_every_database, on_every_way, on_postgres, within};

on_every_way! {
    tenants_with_the_same_key_do_not_see_each_other,
    another_body_under_the_same_key_is_told_422_afterwards,
}

on_every_database! {
    a_caller_whom_nobody_knows_is_told_401_and_nothing_runs,
    one_bucket_for_all_is_asked_for_by_name,
    another_path_or_query_is_another_request,
    the_path_is_the_one_that_the_client_sent,
    chosen_headers_make_another_request,
    malformed_keys_are_told_400,
    the_request_is_handed_on_as_it_came,
}

on_postgres! { another_body_is_told_422_at_once_while_the_first_is_open }

const SOON: Duration = Duration::from_secs(60);

/// IDEMP-IN-09.
async fn tenants_with_the_same_key_do_not_see_each_other(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    let key = "telegram:42:7";
    let a = shop.send(Ask::order(key).tenant(Some("a"))).await;
    let b = shop.send(Ask::order(key).tenant(Some("b"))).await;
    assert_eq!((a.body.as_str(), b.body.as_str()), ("order A by run 1", "order A by run 2"));
    assert!(!b.is_replay());
    assert_eq!(shop.send(Ask::order(key).tenant(Some("b"))).await.first(), b);
    assert_eq!(orders(db).await, 2);
}

async fn a_caller_whom_nobody_knows_is_told_401_and_nothing_runs(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    shop.send(Ask::order("k").tenant(None)).await.is_problem(401, "sender-unknown");
    shop.send(Ask::to("POST", "/orders").tenant(None)).await.is_problem(401, "sender-unknown");
    assert_eq!((shop.runs(), orders(db).await), (0, 0));
}

async fn one_bucket_for_all_is_asked_for_by_name(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune { shared: true, ..Tune::default() }).await;
    let first = shop.send(Ask::order("k").tenant(None)).await;
    let other = shop.send(Ask::order("k").tenant(None)).await;
    assert!(other.is_replay());
    assert_eq!(other.first(), first);
}

/// IDEMP-IN-11.
async fn another_path_or_query_is_another_request(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    let cancel = |path| Ask::to("POST", path).key("k").body("{}");
    assert_eq!(shop.send(cancel("/orders/1/cancel")).await.status, 201);
    for path in ["/orders/2/cancel", "/orders/1/cancel?dry_run=1", "/orders/1/cancel?", "/orders/1/cancel/"] {
        shop.send(cancel(path)).await.is_problem(422, "key-reused");
    }
    let put = Ask::to("PUT", "/orders/1/cancel").key("k").body("{}");
    shop.send(put).await.is_problem(422, "key-reused");
    assert!(shop.send(cancel("/orders/1/cancel")).await.is_replay());
    assert_eq!((shop.runs(), shop.counts().mismatch), (1, 5));
}

async fn the_path_is_the_one_that_the_client_sent(db: &TestDatabase) {
    // A nested router takes its own part of the path away before the guard sees it.
    let mut shop = Shop::selling(db, Tune::default()).await;
    let inside = shop.router;
    shop.router = Router::new().nest("/1", inside.clone()).nest("/2", inside);
    let cancel = |path| Ask::to("POST", path).key("k");
    assert_eq!(shop.send(cancel("/1/cancel")).await.status, 201);
    shop.send(cancel("/2/cancel")).await.is_problem(422, "key-reused");
}

async fn chosen_headers_make_another_request(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune { headers: &["content-type"], ..Tune::default() }).await;
    let typed = |text: &str| Ask::order("k").header("content-type", text);
    assert_eq!(shop.send(typed("text/plain")).await.status, 201);
    assert!(shop.send(typed("text/plain").header("x-trace", "2")).await.is_replay());
    shop.send(typed("text/csv")).await.is_problem(422, "key-reused");
    shop.send(Ask::order("k")).await.is_problem(422, "key-reused");
}

async fn another_body_under_the_same_key_is_told_422_afterwards(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    shop.send(Ask::order("k").body("B")).await.is_problem(422, "key-reused");
    assert_eq!((shop.runs(), orders(db).await), (1, 1));
}

/// IDEMP-IN-13.
async fn another_body_is_told_422_at_once_while_the_first_is_open(db: &TestDatabase) {
    assert_eq!(db.engine, Engine::Postgres);
    let gate = Gate::closed();
    let inside = gate.clone();
    let shop = Shop::open(db, Tune::default(), move |call| {
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
    shop.send(Ask::order("k").body("B")).await.is_problem(422, "key-reused");
    let same = shop.send(Ask::order("k")).await;
    same.is_problem(409, "in-progress");
    assert_eq!(same.header("retry-after"), Some("1"));
    gate.open();
    assert_eq!(clients.join_next().await.expect("a client").expect("no panic").status, 201);
    assert_eq!((shop.runs(), shop.counts().in_progress, shop.counts().mismatch), (1, 1, 1));
}

async fn malformed_keys_are_told_400(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    let long = "x".repeat(256);
    let bad: [&[u8]; 12] = [
        b"",
        b"\"\"",
        b"\"a",
        b"a\"",
        b"\"a\";x=1",
        b"\"a\", \"b\"",
        b"a, b",
        b"a b",
        b"\xe9",
        b"\"a\tb\"",
        b"\"a\\b\"",
        long.as_bytes(),
    ];
    for key in bad {
        let told = shop.send(Ask::to("POST", "/orders").header("idempotency-key", key)).await;
        told.is_problem(400, "key-malformed");
    }
    shop.send(Ask::to("POST", "/orders")).await.is_problem(400, "key-missing");
    shop.send(Ask::order("a").key("b")).await.is_problem(400, "key-malformed");
    shop.send(Ask::order("a").key("a")).await.is_problem(400, "key-malformed");
    assert_eq!((shop.runs(), orders(db).await), (0, 0));
    let longest = "~".repeat(255);
    assert_eq!(shop.send(Ask::order(&longest)).await.status, 201);
}

async fn the_request_is_handed_on_as_it_came(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |call: Call| async move {
        let head = call.head;
        let seen = format!("{} {} {:?} {:?}", head.method, head.uri, head.headers["x-a"], call.body);
        (StatusCode::OK, seen).into_response()
    })
    .await;
    let ask = Ask::to("PATCH", "/orders/1?b=c%20d").key("k").header("x-a", "e").body(vec![0, 0xe9]);
    let told = shop.send(ask).await;
    assert_eq!(told.body, r#"PATCH /orders/1?b=c%20d "e" b"\0\xe9""#);
}
