//! Defends: a lease is kept by who holds it, as long as it has not ended, and by nobody else.

use std::time::Duration;

use aftercommit::store::Settled;

use super::stage::Stage;
use crate::support::{LEASE, Settling, TestDatabase, Worker, key_terms, on_every_database, registered};

on_every_database! {
    a_renewal_extends_each_lease_that_is_held,
    an_ended_lease_is_not_renewed,
    a_worker_keeps_no_others_lease_alive,
    a_swept_claim_is_lost_to_its_renewal,
    a_finished_claim_is_dropped,
}

async fn a_renewal_extends_each_lease_that_is_held(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claims = [stage.claimed(db, "k1").await, stage.claimed(db, "k2").await];
    let wanted = [(claims[0].token(), LEASE * 10), (claims[1].token(), LEASE * 20)];
    let mut held = db.store.renew("w1", &wanted).await.expect("renewing works");
    held.sort();
    assert_eq!(held, [claims[0].token(), claims[1].token()]);
    let now = db.now().await;
    for (claim, factor) in claims.iter().zip([10, 20]) {
        let until = db.status(claim.effect.id).await.lease_until.expect("a claim has a lease");
        assert!(until.since(now).abs_diff(LEASE * factor) < Duration::from_secs(5), "{until} at {now}");
    }
    assert!(db.store.renew("w1", &[]).await.expect("nothing to renew is fine").is_empty());
}

async fn an_ended_lease_is_not_renewed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (kept, lost) = (stage.claimed(db, "k1").await, stage.claimed(db, "k2").await);
    db.end_lease(lost.token()).await;
    let held = db.store.renew("w1", &[(kept.token(), LEASE), (lost.token(), LEASE)]).await;
    assert_eq!(held.expect("renewing works"), [kept.token()]);
    let expired = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].id, lost.effect.id);
}

async fn a_worker_keeps_no_others_lease_alive(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let before = db.status(claim.effect.id).await.lease_until;
    Worker::start(&db.store, "w1-restarted", vec![registered("pay", key_terms())]).await;
    let held = db.store.renew("w1-restarted", &[(claim.token(), LEASE * 100)]).await.expect("renewing works");
    assert!(held.is_empty(), "it is not that worker's");
    assert_eq!(db.status(claim.effect.id).await.lease_until, before);
}

async fn a_swept_claim_is_lost_to_its_renewal(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let swept = Settling::of_expired(&expired).retry_unknown(db.now().await);
    assert_eq!(db.store.sweep_expired(&[swept]).await.expect("the sweep writes"), [Settled::Done]);
    let held = db.store.renew("w1", &[(claim.token(), LEASE)]).await.expect("renewing works");
    assert!(held.is_empty());
}

async fn a_finished_claim_is_dropped(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    db.insert_many("pay", "k", 3).await;
    let claims = stage.worker.claim("pay", 3).await;
    let batch: Vec<_> = claims.iter().map(|claim| Settling::of(claim).succeed()).collect();
    db.store.settle(&batch, &[claims[0].token()]).await.expect("settling works");
    let held = db.store.renew("w1", &[(claims[0].token(), LEASE)]).await.expect("renewing works");
    assert!(held.is_empty(), "there is nothing left to hold");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.claims").await, 0, "no claim is left behind");
}
