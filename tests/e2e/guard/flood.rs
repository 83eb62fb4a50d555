//! Bodies that come a byte at a time, on many connections: they hold no connection of the database, and nobody up.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    client::{Ask, Exchange, Line, send},
    shop::Shop,
};
use crate::support::{TestDatabase, on_every_database};

/// Many times the connections of the pool.
const SLOW: usize = 40;
/// What a request takes at most beside them; alone it takes milliseconds.
const BESIDE_MAX: Duration = Duration::from_secs(5);

on_every_database!(slow_bodies_hold_up_nobody_and_are_served_in_the_end);

async fn slow_bodies_hold_up_nobody_and_are_served_in_the_end(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut server = shop
        .server(|setting| {
            setting.connections = 2;
            setting.acquire_ms = 5_000;
        })
        .await;
    let slow: Vec<Ask> = (0..SLOW).map(|n| Ask::order(format!("slow-{n}"), 1500)).collect();
    let mut lines = Vec::new();
    for ask in &slow {
        let mut line = Line::open(server.address).await.expect("the server listens");
        let whole = ask.bytes();
        let head = whole.len() - ask.body.len();
        line.say(&whole[..head]).await.expect("the server reads");
        lines.push((line, ask.body.clone().into_bytes()));
    }
    let mut exchanges = Vec::new();
    let bytes = slow[0].body.len();
    // A byte of each, then a whole request beside them, until one byte is missing.
    for at in 0..bytes - 1 {
        for (line, body) in &mut lines {
            line.say([body[at]]).await.expect("the server reads");
        }
        assert_eq!(shop.open_transactions().await, 0, "a body that is still coming holds a transaction");
        let asked = Instant::now();
        let beside = send(server.address, &Ask::order(format!("beside-{at}"), 1)).await;
        assert_eq!(beside.answer().status, 201, "{}", beside.answer().shown());
        assert!(asked.elapsed() < BESIDE_MAX, "beside slow bodies a request took {:?}", asked.elapsed());
        exchanges.push(beside);
    }
    // A quarter of them never send it.
    for (n, (mut line, body)) in lines.into_iter().enumerate() {
        if n % 4 == 0 {
            line.reset();
            exchanges.push(Exchange { ask: slow[n].clone(), heard: None });
        } else {
            line.say([body[bytes - 1]]).await.expect("the server reads");
            exchanges.push(Exchange { ask: slow[n].clone(), heard: line.hear().await });
        }
    }
    let evidence = shop.evidence(exchanges).await;
    evidence.assert_kept();
    assert_eq!(evidence.orders.len(), bytes - 1 + SLOW * 3 / 4, "{}", evidence.summary());
    server.is_alive().await;
}
