//! Guarantee: workers of two configurations side by side, as while one is rolled out, keep each to its own budgets, and neither
//! leaves the other without calls.

use std::time::Duration;

use aftercommit::{downstream::Rate, store::RegisteredDownstream};

use super::budgets::{ORIGIN, at_origin, break_it, info, pause};
use crate::support::{TestDatabase, Worker, key_terms, on_every_database, registered};

on_every_database!(
    a_worker_without_a_rate_takes_it_from_nobody,
    a_claim_is_held_by_the_origin_of_whoever_claims,
);

/// A rolling deployment that adds a rate: an old worker that registers again has none.
async fn a_worker_without_a_rate_takes_it_from_nobody(db: &TestDatabase) {
    let rate = Rate { calls: 1, period: Duration::from_secs(3600) };
    let served = RegisteredDownstream { rate: Some(rate), ..registered("pay", key_terms()) };
    Worker::start(&db.store, "new", vec![served]).await;
    Worker::start(&db.store, "old", vec![registered("pay", key_terms())]).await;
    let take = async || db.store.take("pay", rate, 5).await.expect("taking works");
    assert_eq!((take().await.calls, info(db, "pay").await.rate), (0, None), "nothing is due");
    db.insert("pay", "due").await;
    let granted = take().await;
    let wait = granted.more_in.expect("something is due");
    assert!(
        granted.calls == 0 && wait > Duration::from_secs(3500),
        "what was spent is not known: {granted:?}"
    );
    assert_eq!(info(db, "pay").await.rate.as_deref(), Some("1/h"));
    db.store.give_back("pay", rate, 1).await.expect("giving back works");
    assert_eq!(take().await.calls, 1);
}

/// Another worker may be configured with the one before, or after.
async fn a_claim_is_held_by_the_origin_of_whoever_claims(db: &TestDatabase) {
    let new = Worker::start(&db.store, "new", vec![at_origin("pay", "https://new.example.com")]).await;
    let old = Worker::start(&db.store, "old", vec![at_origin("pay", ORIGIN)]).await;
    db.insert_many("pay", "k", 2).await;
    break_it(db, ORIGIN).await;
    assert!(old.claim("pay", 1).await.is_empty());
    assert_eq!(new.claim("pay", 1).await.len(), 1);
    db.store.report(&[pause("https://new.example.com", 60)]).await.expect("reporting works");
    assert!(new.claim("pay", 1).await.is_empty());
}
