//! Defends: one transaction holds the request's answer, its rows and its effects; and what has no key has a transaction, too.

use aftercommit::{NewEffect, key};
use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};

use super::{
    ask::Ask,
    shop::{Call, Shop, Tune, orders, sell},
};
use crate::support::{Sql, TestDatabase, Worker, key_terms, on_every_database, on_every_way, registered};

on_every_way! {
    effects_of_a_request_have_its_keys_and_are_written_once,
    get_has_a_plain_transaction_that_ends_as_its_answer_does,
    without_a_key_the_transaction_ends_as_the_answer_does,
}

on_every_database! {
    requests_that_ask_for_no_transaction_take_no_connection,
    success_after_a_failed_statement_is_not_told_without_a_key_either,
    a_transaction_that_is_kept_without_a_key_is_rolled_back,
}

async fn effects_of_a_request_have_its_keys_and_are_written_once(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("A").await;
        tx.enqueue(NewEffect::to("pay")).await.expect("an effect");
        if call.number == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::CREATED }.into_response()
    })
    .await;
    assert_eq!(shop.send(Ask::order("k")).await.status, 502);
    assert!(worker.claim("pay", 5).await.is_empty(), "a refused request leaves no effect");
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    assert!(shop.send(Ask::order("k")).await.is_replay());
    let claims = worker.claim("pay", 5).await;
    assert_eq!(claims.len(), 1, "one effect of one request");
    assert_eq!(claims[0].effect.key, key::derive("shop", "k", "pay/").as_str());
}

async fn by_path(mut call: Call) -> Response {
    let status = if call.head.uri.path() == "/refused" { StatusCode::CONFLICT } else { StatusCode::CREATED };
    call.tx().await.expect("a transaction").order("A").await;
    status.into_response()
}

async fn get_has_a_plain_transaction_that_ends_as_its_answer_does(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), by_path).await;
    assert_eq!(shop.send(Ask::to("GET", "/refused").tenant(None)).await.status, 409);
    assert_eq!(orders(db).await, 0);
    // A key on a request that needs none changes nothing.
    for count in [1, 2] {
        assert_eq!(shop.send(Ask::to("GET", "/sold").key("k")).await.status, 201);
        assert_eq!(orders(db).await, count);
    }
    assert_eq!(shop.counts(), Default::default());
}

async fn without_a_key_the_transaction_ends_as_the_answer_does(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { key_optional: true, ..Tune::default() }, by_path).await;
    assert_eq!(shop.send(Ask::to("POST", "/refused").tenant(None)).await.status, 409);
    assert_eq!(orders(db).await, 0);
    for count in [1, 2] {
        assert_eq!(shop.send(Ask::to("POST", "/sold")).await.status, 201);
        assert_eq!(orders(db).await, count);
    }
    // With one it is guarded, as ever.
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    assert!(shop.send(Ask::order("k")).await.is_replay());
    shop.send(Ask::order("k").key("l")).await.is_problem(400, "key-malformed");
    assert_eq!(orders(db).await, 3);
}

async fn requests_that_ask_for_no_transaction_take_no_connection(db: &TestDatabase) {
    // A database that is not there.
    let url = match db.sql {
        Sql::Postgres(_) => "postgres://postgres@127.0.0.1:1/none".to_owned(),
        Sql::Sqlite(_) => format!("{}-none", db.url),
    };
    let tune = Tune { url: Some(url), key_optional: true, ..Tune::default() };
    let shop = Shop::open(db, tune, |_| async { StatusCode::OK.into_response() }).await;
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "POST"] {
        assert_eq!(shop.send(Ask::to(method, "/x").tenant(None)).await.status, 200, "{method}");
    }
}

async fn success_after_a_failed_statement_is_not_told_without_a_key_either(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { key_optional: true, ..Tune::default() }, |mut call: Call| async move {
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("A").await;
        tx.execute("INSERT INTO nowhere VALUES (1)").await.expect_err("there is no such table");
        StatusCode::CREATED.into_response()
    })
    .await;
    let told = shop.send(Ask::to("POST", "/orders")).await;
    match db.sql {
        Sql::Postgres(_) => {
            told.is_problem(500, "commit-refused");
            assert_eq!(orders(db).await, 0);
        }
        Sql::Sqlite(_) => assert_eq!((told.status, orders(db).await), (201, 1)),
    }
}

async fn a_transaction_that_is_kept_without_a_key_is_rolled_back(db: &TestDatabase) {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let keeper = std::sync::Arc::clone(&kept);
    let shop = Shop::open(db, Tune { key_optional: true, ..Tune::default() }, move |mut call: Call| {
        let keeper = std::sync::Arc::clone(&keeper);
        async move {
            if call.number > 1 {
                return sell(call).await;
            }
            let mut tx = call.tx().await.expect("a transaction");
            tx.order("never").await;
            keeper.lock().expect("no test panicked").push(tx);
            StatusCode::CREATED.into_response()
        }
    })
    .await;
    shop.send(Ask::to("POST", "/orders")).await.is_problem(500, "transaction-kept");
    kept.lock().expect("no test panicked").clear();
    assert_eq!(shop.send(Ask::to("POST", "/orders")).await.status, 201);
    assert_eq!(orders(db).await, 1);
}
