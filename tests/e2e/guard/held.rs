//! While the first request is still open: what another one with its key is told, and how soon. IDEMP-IN-13.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    client::{Ask, send},
    shop::Shop,
};
use crate::support::{Engine, TestDatabase, on_every_database};

/// Longer than any look at a lock table, shorter than the first request, which ends when this test says so.
const AT_ONCE: Duration = Duration::from_secs(2);

on_every_database!(
    another_request_with_the_key_of_an_open_one_is_told_what_it_is,
    held_requests_that_use_up_the_pool_harm_nobody_for_good
);

/// Must show: 422 for another body while the first is held open, without waiting. SQLite has one writer: there it is 503 until
/// the first has committed.
async fn another_request_with_the_key_of_an_open_one_is_told_what_it_is(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let first = shop.server(|_| {}).await;
    let second = shop.server(|setting| setting.busy_ms = 100).await;
    let (same, other) = (Ask::held("k", 1), Ask::order("k", 2));
    let meanwhile = async {
        shop.holds("k").await;
        let mut told = Vec::new();
        for ask in [&same, &other, &other, &same] {
            let asked = Instant::now();
            told.push(send(second.address, ask).await);
            assert!(asked.elapsed() < AT_ONCE, "{ask:?} waited for {:?}", asked.elapsed());
        }
        assert_eq!(shop.orders("k").await, 0, "the first is still open");
        first.release().await;
        told
    };
    let (first_told, told) = tokio::join!(send(first.address, &same), meanwhile);
    let statuses: Vec<u16> = told.iter().map(|exchange| exchange.answer().status).collect();
    match db.engine {
        Engine::Postgres => assert_eq!(statuses, [409, 422, 422, 409]),
        Engine::Sqlite => assert_eq!(statuses, [503; 4]),
    }
    assert_eq!(first_told.answer().status, 201);
    let replay = send(second.address, &same).await;
    assert!(replay.answer().is_replay());
    let refused = send(second.address, &other).await;
    assert_eq!(refused.answer().status, 422, "{}", refused.answer().shown());
    assert_eq!(shop.runs("k"), 1);
    let mut exchanges = vec![first_told, replay, refused];
    exchanges.extend(told);
    shop.evidence(exchanges).await.assert_kept();
}

/// Every connection of the pool is in a handler that waits; whoever comes then is told 503, and nothing is left of it.
async fn held_requests_that_use_up_the_pool_harm_nobody_for_good(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    // SQLite's one writer holds up the others long before the pool is empty.
    let held = if db.engine == Engine::Postgres { 2 } else { 1 };
    let server = shop
        .server(|setting| {
            setting.connections = held;
            setting.acquire_ms = 100;
        })
        .await;
    let holding: Vec<Ask> = (0..held).map(|n| Ask::held(format!("held-{n}"), 1)).collect();
    let sending = futures_util::future::join_all(holding.iter().map(|ask| send(server.address, ask)));
    let meanwhile = async {
        for ask in &holding {
            shop.holds(&ask.key).await;
        }
        let late = Ask::order("late", 1);
        let told = send(server.address, &late).await;
        assert_eq!(told.answer().status, 503, "{}", told.answer().shown());
        for _ in &holding {
            server.release().await;
        }
        told
    };
    let (mut exchanges, told) = tokio::join!(sending, meanwhile);
    exchanges.push(told);
    let late = send(server.address, &Ask::order("late", 1)).await;
    assert_eq!((late.answer().status, late.answer().is_replay()), (201, false));
    exchanges.push(late);
    shop.evidence(exchanges).await.assert_kept();
}
