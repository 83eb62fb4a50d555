//! Defends: whoever waits costs little: a client that left before its request began is forgotten, and nobody who waits keeps an
//! answer from others.

use std::time::Duration;

use axum::{http::StatusCode, response::IntoResponse as _};
use tokio::task::JoinSet;

use super::{
    ask::Ask,
    shop::{Gate, Shop, Tune, orders, sell},
};
use crate::support::{TestDatabase, eventually, on_every_database, on_postgres, on_sqlite, within};

on_every_database! {
    a_request_whose_client_left_before_it_began_never_runs,
    more_requests_than_may_be_in_flight_are_told_503,
    a_guard_is_drained_of_requests_whose_clients_have_gone,
}

on_postgres! { a_client_that_leaves_while_it_waits_for_an_answer_is_forgotten }

on_sqlite! { whoever_waits_for_the_writer_keeps_no_replay_from_its_connection }

const SOON: Duration = Duration::from_secs(60);

/// Sells once the gate is open.
async fn gated(db: &TestDatabase, tune: Tune, gate: &Gate) -> Shop {
    let inside = gate.clone();
    Shop::open(db, tune, move |call| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            sell(call).await
        }
    })
    .await
}

async fn a_request_whose_client_left_before_it_began_never_runs(db: &TestDatabase) {
    let gate = Gate::closed();
    let shop = gated(db, Tune { connections: 1, ..Tune::default() }, &gate).await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("first")));
    within(SOON, "the handler runs", gate.arrival()).await;
    for _ in 0..10 {
        let mut gone = shop.send(Ask::order("k").body("gone"));
        assert!(futures_util::poll!(&mut gone).is_pending(), "it waits for the one connection");
    }
    gate.open();
    assert_eq!(clients.join_next().await.expect("a client").expect("no panic").status, 201);
    // Behind whoever else would wait for the connection.
    let told = shop.send(Ask::order("k").body("gone")).await;
    assert_eq!((told.status, told.is_replay(), shop.runs(), orders(db).await), (201, false, 2, 2));
}

async fn a_client_that_leaves_while_it_waits_for_an_answer_is_forgotten(db: &TestDatabase) {
    let gate = Gate::closed();
    let shop = gated(db, Tune { wait: Duration::MAX, ..Tune::default() }, &gate).await;
    let mut first = JoinSet::new();
    first.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    let mut second = JoinSet::new();
    second.spawn(shop.send(Ask::order("k")));
    let looked = "SELECT count(*) FROM pg_stat_activity
                  WHERE application_name = 'guard' AND state = 'idle' AND query = 'ROLLBACK' AND datname = current_database()";
    eventually(SOON, "the second has looked", async || (db.sql.number(looked).await >= 1).then_some(()))
        .await;
    second.shutdown().await;
    first.shutdown().await;
    gate.open();
    within(SOON, "nothing of either is in flight", shop.drain()).await;
    assert_eq!((shop.runs(), shop.counts().replayed, orders(db).await), (1, 0, 1));
}

async fn more_requests_than_may_be_in_flight_are_told_503(db: &TestDatabase) {
    let gate = Gate::closed();
    let shop = gated(db, Tune { in_flight: 1, ..Tune::default() }, &gate).await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    let told = shop.send(Ask::order("l")).await;
    told.is_problem(503, "too-many-in-flight");
    assert_eq!(told.header("retry-after"), Some("1"));
    // Its client leaves, and it is still in flight.
    clients.shutdown().await;
    shop.send(Ask::order("l")).await.is_problem(503, "too-many-in-flight");
    gate.open();
    within(SOON, "it ends", shop.drain()).await;
    assert_eq!(shop.send(Ask::order("l")).await.status, 201);
    assert_eq!(orders(db).await, 2);
}

async fn a_guard_is_drained_of_requests_whose_clients_have_gone(db: &TestDatabase) {
    let gate = Gate::closed();
    let shop = gated(db, Tune::default(), &gate).await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    clients.shutdown().await;
    let mut drained = shop.drain();
    assert!(futures_util::poll!(&mut drained).is_pending(), "one is in flight");
    gate.open();
    within(SOON, "it ends", drained).await;
    assert_eq!(orders(db).await, 1, "and has committed");
}

async fn whoever_waits_for_the_writer_keeps_no_replay_from_its_connection(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let tune = Tune { connections: 2, busy: SOON, acquire: Duration::from_secs(10), ..Tune::default() };
    let shop = Shop::open(db, Tune { key_optional: true, ..tune }, move |mut call| {
        let gate = inside.clone();
        async move {
            if call.text() == "quick" {
                return sell(call).await;
            }
            let tx = call.tx().await;
            gate.pass().await;
            if tx.is_ok() { StatusCode::CREATED } else { StatusCode::BAD_GATEWAY }.into_response()
        }
    })
    .await;
    assert_eq!(shop.send(Ask::order("done").body("quick")).await.status, 201);
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("writes")));
    within(SOON, "the writer writes", gate.arrival()).await;
    for number in 0..20 {
        clients.spawn(shop.send(Ask::order(&format!("waits-{number}"))));
        clients.spawn(shop.send(Ask::to("POST", "/orders")));
    }
    for _ in 0..20 {
        let told = shop.send(Ask::order("done").body("quick")).await;
        assert!(told.is_replay(), "{told:?}");
    }
    gate.open();
    while let Some(told) = clients.join_next().await {
        assert_eq!(told.expect("no panic").status, 201);
    }
}
