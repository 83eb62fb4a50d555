//! Defends: a transaction that ends under its handler is never told as "nothing was done"; nor is one bounded by nothing.

use std::time::Duration;

use aftercommit::guard::Remember;
use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};

use super::{
    ask::{Ask, Told},
    shop::{Call, Shop, Tune, orders, sell},
};
use crate::support::{TestDatabase, on_every_database, on_every_way, on_postgres, on_sqlite};

on_every_way! {
    a_transaction_that_its_handler_ended_is_told_apart_from_one_that_was_undone,
    a_transaction_that_its_handler_ended_is_told_whatever_becomes_of_the_handler,
}

on_every_database! { what_a_request_determines_is_there_for_its_handler }

on_postgres! {
    a_nested_begin_that_is_dropped_half_way_loses_the_transaction_and_says_so,
    the_server_ends_what_outlives_the_handlers_limit,
}

on_sqlite! { a_statement_that_rolls_everything_back_loses_the_transaction_and_says_so }

/// With a key, without one, and by GET.
async fn told(shop: &Shop, key: &str) -> Vec<Told> {
    let mut told = Vec::new();
    for ask in [Ask::order(key), Ask::to("POST", "/orders"), Ask::to("GET", "/orders")] {
        told.push(shop.send(ask).await);
    }
    told
}

fn is_lost(told: &Told) {
    told.is_problem(500, "transaction-lost");
    assert!(told.body.contains("may be kept") && !told.body.contains("nothing was done"), "{told:?}");
}

async fn a_transaction_that_its_handler_ended_is_told_apart_from_one_that_was_undone(db: &TestDatabase) {
    for status in [StatusCode::CREATED, StatusCode::GONE] {
        let tune = Tune { key_optional: true, connections: 1, ..Tune::default() };
        let shop = Shop::open(db, tune, move |mut call: Call| async move {
            let mut tx = call.tx().await.expect("a transaction");
            tx.execute("ROLLBACK").await.expect("it rolls back");
            tx.order("by itself").await;
            Remember(status).into_response()
        })
        .await;
        if status == StatusCode::CREATED {
            told(&shop, "k").await.iter().for_each(is_lost);
            // A client that asks again all the same is not let act again.
            let again = shop.send(Ask::order("k")).await;
            is_lost(&again);
            assert!(again.is_replay(), "{again:?}");
        } else {
            is_lost(&shop.send(Ask::order("other")).await);
        }
    }
    assert_eq!(orders(db).await, 4, "each was kept indeed, once");
}

/// Whatever the handler answers, and whether it answers at all.
async fn a_transaction_that_its_handler_ended_is_told_whatever_becomes_of_the_handler(db: &TestDatabase) {
    for again in ["", "BEGIN"] {
        for panics in [false, true] {
            let tune = Tune { key_optional: true, connections: 1, ..Tune::default() };
            let shop = Shop::open(db, tune, move |mut call: Call| async move {
                let mut tx = call.tx().await.expect("a transaction");
                tx.execute("ROLLBACK").await.expect("it rolls back");
                tx.order("by itself").await;
                if !again.is_empty() {
                    tx.execute(again).await.expect("it begins");
                }
                assert!(!panics, "as if the handler had a fault");
                StatusCode::BAD_GATEWAY.into_response()
            })
            .await;
            is_lost(&shop.send(Ask::order(&format!("k{again}{panics}"))).await);
        }
    }
    assert_eq!(orders(db).await, 4, "each was kept indeed");
}

async fn a_nested_begin_that_is_dropped_half_way_loses_the_transaction_and_says_so(db: &TestDatabase) {
    let tune = Tune { key_optional: true, connections: 1, ..Tune::default() };
    let shop = Shop::open(db, tune, |mut call: Call| async move {
        if call.number > 3 {
            return sell(call).await;
        }
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("never").await;
        tx.begin_and_drop();
        tx.order("by itself").await;
        drop(tx);
        let again = call.tx().await.err().expect("it is not handed out again");
        assert_eq!(again.status(), 500);
        StatusCode::CREATED.into_response()
    })
    .await;
    told(&shop, "k").await.iter().for_each(is_lost);
    let kept = db.sql.scalar("SELECT string_agg(id, ',') FROM orders").await;
    assert_eq!(kept.as_deref(), Some("by itself,by itself,by itself"));
    assert_eq!(shop.send(Ask::order("l")).await.status, 201, "the next borrower is free");
}

async fn a_statement_that_rolls_everything_back_loses_the_transaction_and_says_so(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE orders (id text NOT NULL PRIMARY KEY)").await;
    db.sql.execute("INSERT INTO orders VALUES ('A')").await;
    for (round, status) in [StatusCode::CREATED, StatusCode::BAD_GATEWAY].into_iter().enumerate() {
        let tune = Tune { key_optional: true, ..Tune::default() };
        let shop = Shop::open(db, tune, move |mut call: Call| async move {
            let mut tx = call.tx().await.expect("a transaction");
            tx.execute("INSERT OR ROLLBACK INTO orders VALUES ('A')").await.expect_err("it is there");
            tx.order(&format!("{round} by itself {}", call.number)).await;
            status.into_response()
        })
        .await;
        told(&shop, &format!("k{round}")).await.iter().for_each(is_lost);
    }
    assert_eq!(orders(db).await, 7);
}

async fn limits(mut call: Call) -> Response {
    let mut tx = call.tx().await.expect("a transaction");
    let look = "INSERT INTO orders (id) SELECT current_setting('statement_timeout') || ' ' \
                || current_setting('idle_in_transaction_session_timeout')";
    tx.execute(look).await.expect("it is written");
    StatusCode::CREATED.into_response()
}

/// A host that vanishes inside a transaction, and a statement that waits for a lock, hold their key for so long at most.
async fn the_server_ends_what_outlives_the_handlers_limit(db: &TestDatabase) {
    let tune = || Tune { handler_limit: Duration::from_secs(20), key_optional: true, ..Tune::default() };
    for (session, told) in [("0", "25s"), ("3s", "3s"), ("2min", "25s"), ("250ms", "250ms"), ("1h", "25s")] {
        for name in ["statement_timeout", "idle_in_transaction_session_timeout"] {
            let alter = format!("'ALTER DATABASE %I SET {name} = %L', current_database(), '{session}'");
            db.sql.execute(&format!("DO $$ BEGIN EXECUTE format({alter}); END $$")).await;
        }
        let shop = Shop::open(db, tune(), limits).await;
        for ask in [Ask::order(session), Ask::to("POST", "/orders"), Ask::to("GET", "/orders")] {
            db.sql.execute("DELETE FROM orders").await;
            assert_eq!(shop.send(ask).await.status, 201);
            let expected = format!("{told} {told}");
            assert_eq!(db.sql.scalar("SELECT id FROM orders").await, Some(expected), "of {session}");
        }
    }
}

async fn what_a_request_determines_is_there_for_its_handler(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { key_optional: true, ..Tune::default() }, |mut call: Call| async move {
        let tx = call.tx().await.expect("a transaction");
        format!("{:?}", tx.derived("order")).into_response()
    })
    .await;
    let id = aftercommit::key::derive("shop", "k", "order");
    let expected = format!("{:?}", [Some("shop"), Some("k"), Some(id.as_str())]);
    assert_eq!(shop.send(Ask::order("k")).await.body, expected);
    assert_eq!(shop.send(Ask::to("POST", "/orders")).await.body, "[None, None, None]");
}
