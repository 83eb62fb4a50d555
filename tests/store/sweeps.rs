//! Defends: the sweep takes over what a lost worker held, and nothing that was settled, renewed or claimed meanwhile.

use std::time::Duration;

use aftercommit::{
    decision::Decision,
    outcome::{Outcome, Verdict},
    state::State,
    store::{Expired, Settled, Settlement},
    verb::Verb,
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_every_way, registered};

on_every_way! {
    an_ended_lease_is_found_until_it_is_swept,
    a_swept_attempt_is_logged_as_unknown,
    what_was_settled_after_the_look_stays,
    what_was_renewed_after_the_look_stays,
    what_was_claimed_anew_after_the_look_stays,
    a_parked_claim_can_still_be_settled_by_its_owner,
    a_retried_claim_cannot,
    a_swept_batch_leaves_no_claim_behind,
    an_overdue_uncertain_effect_is_parked,
    an_effect_past_its_expiry_ends_expired,
    what_was_claimed_after_the_look_is_not_overdue,
    an_operators_action_after_the_look_stands,
}

async fn look(db: &TestDatabase) -> Expired {
    let mut found = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

async fn sweep(db: &TestDatabase, settlement: Settlement) -> Settled {
    let swept = db.store.sweep_expired(&[settlement]).await.expect("the sweep writes");
    assert_eq!(swept.len(), 1, "one answer per settlement");
    swept[0]
}

async fn an_ended_lease_is_found_until_it_is_swept(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let held = stage.claimed(db, "held").await;
    assert!(db.store.expired(10).await.expect("the sweep reads").is_empty(), "its lease runs");
    db.insert_many("pay", "k", 4).await;
    let claims = stage.worker.claim("pay", 4).await;
    db.end_lease(claims[0].token()).await;
    assert!(db.store.expired(3).await.expect("the sweep reads").len() <= 3, "no more than asked");
    for _ in 0..2 {
        let found = db.store.expired(10).await.expect("the sweep reads");
        assert_eq!(found.len(), 4, "again and again: {found:?}");
        assert!(found.iter().all(|expired| expired.id != held.effect.id));
    }
    let found = db.store.expired(10).await.expect("the sweep reads").remove(0);
    assert_eq!(db.state(found.id).await, State::InFlight, "until it is swept");
    let claim = claims.iter().find(|claim| claim.effect.id == found.id).expect("one of them");
    assert_eq!((&*found.downstream, found.operation.as_deref(), &*found.worker), ("pay", None, "w1"));
    assert_eq!((found.token, found.number, found.claimed_at), (claim.token(), 1, claim.claimed_at));
    assert_eq!((found.history.attempts, found.history.tries), (1, 1), "the lost attempt is counted");
    assert_eq!(found.history.first_sent_at, claim.history.first_sent_at);
    assert!(found.lease_until < db.now().await);
}

async fn a_swept_attempt_is_logged_as_unknown(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    let quiet = in_an_hour(db).await;
    let settling = Settling::of_expired(&expired);
    let settlement = Settlement {
        uncertain: true,
        quiet_at: Some(quiet),
        ..settling.decided(Decision::RetryAt(db.now().await), &Outcome::lease_ended())
    };
    assert_eq!(sweep(db, settlement).await, Settled::Done);
    let log = db.log(claim.effect.id).await;
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].phase.as_str(), log[0].outcome, log[0].late), ("lease", Verdict::Unknown, false));
    assert_eq!((log[0].token, log[0].worker.as_deref()), (claim.token().get(), Some("w1")));
    let status = db.status(claim.effect.id).await;
    assert_eq!(status.first_sent_at, claim.history.first_sent_at, "it may have been received");
    assert!(status.token > claim.token().get(), "a retry draws a new token");
    let again = stage.worker.claim_one("pay").await;
    assert!(again.history.uncertain && again.history.sent_before);
    assert_eq!((again.number, again.history.attempts), (2, 2));
}

/// LEASE-01 and trap T8.
async fn what_was_settled_after_the_look_stays(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    stage.done(Settling::of(&claim).succeed()).await;
    let late = Settling::of_expired(&expired).retry_unknown(db.now().await);
    assert_eq!(sweep(db, late).await, Settled::Lost);
    assert_eq!(db.state(claim.effect.id).await, State::Succeeded);
    let log = db.log(claim.effect.id).await;
    assert_eq!(log.len(), 1, "no second row: {log:?}");
    assert_eq!(log[0].outcome, Verdict::Applied);
    assert!(stage.worker.claim("pay", 5).await.is_empty());
}

/// LEASE-01 and trap T8, with a renewal in the gap.
async fn what_was_renewed_after_the_look_stays(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    let later = db.engine.after(db.engine.now(), HOUR);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {later}")).await;
    let late = Settling::of_expired(&expired).park("the lease ended");
    assert_eq!(sweep(db, late).await, Settled::Lost);
    assert_eq!(db.state(claim.effect.id).await, State::InFlight);
    assert_eq!(db.status(claim.effect.id).await.attempts, 1);
    stage.done(Settling::of(&claim).succeed()).await;
}

/// LEASE-01 and trap T8, with a fresh claim in the gap.
async fn what_was_claimed_anew_after_the_look_stays(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    let now = db.now().await;
    assert_eq!(sweep(db, Settling::of_expired(&expired).retry_unknown(now)).await, Settled::Done);
    let other = Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    let fresh = other.claim_one("pay").await;
    for late in
        [Settling::of_expired(&expired).retry_unknown(now), Settling::of_expired(&expired).park("late")]
    {
        // The sweeper that repeats its write finds it written, or finds itself fenced; it changes nothing either way.
        let swept = sweep(db, late).await;
        assert!(matches!(swept, Settled::Lost | Settled::Done), "{swept:?}");
    }
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.token), (State::InFlight, fresh.token().get()));
    assert_eq!(db.log(claim.effect.id).await.len(), 1);
    assert_eq!(other.settle(Settling::of(&fresh).succeed()).await, Settled::Done);
}

/// Trap T5.
async fn a_parked_claim_can_still_be_settled_by_its_owner(db: &TestDatabase) {
    let stage = Stage::hold(db, "mail").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    let parked = Settling::of_expired(&expired)
        .decided(Decision::Park("the worker's lease ended".to_owned()), &Outcome::lease_ended());
    assert_eq!(sweep(db, Settlement { uncertain: true, ..parked }).await, Settled::Done);
    let status = db.status(claim.effect.id).await;
    assert_eq!(
        (status.state, status.token),
        (State::InDoubt, claim.token().get()),
        "parking keeps the token"
    );
    stage.done(Settling::of(&claim).succeed()).await;
    let status = db.status(claim.effect.id).await;
    assert_eq!(status.state, State::Succeeded, "the owner's answer still counts");
    let log = db.log(claim.effect.id).await;
    assert!(log.iter().any(|attempt| attempt.outcome == Verdict::Applied), "and is in the log: {log:?}");
}

async fn a_retried_claim_cannot(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = look(db).await;
    let later = in_an_hour(db).await;
    assert_eq!(sweep(db, Settling::of_expired(&expired).retry_unknown(later)).await, Settled::Done);
    assert_eq!(stage.worker.settle(Settling::of(&claim).succeed()).await, Settled::Lost);
    assert_eq!(db.state(claim.effect.id).await, State::Retrying);
}

async fn a_swept_batch_leaves_no_claim_behind(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    db.insert_many("pay", "k", 5).await;
    let claims = stage.worker.claim("pay", 5).await;
    stage.done(Settling::of(&claims[0]).succeed()).await;
    db.end_lease(claims[0].token()).await;
    let found = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(found.len(), 4, "the settled one is not among them");
    let later = in_an_hour(db).await;
    let batch: Vec<_> = found.iter().map(|one| Settling::of_expired(one).retry_unknown(later)).collect();
    let swept = db.store.sweep_expired(&batch).await.expect("the sweep writes");
    assert!(swept.iter().all(|one| *one == Settled::Done), "{swept:?}");
    assert!(db.store.expired(10).await.expect("the sweep reads").is_empty());
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.claims").await, 0);
}

async fn an_overdue_uncertain_effect_is_parked(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let safe = in_an_hour(db).await;
    let settlement = Settlement { sweep_at: Some(safe), ..Settling::of(&claim).retry_unknown(safe) };
    stage.done(settlement).await;
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
    db.shift_back("queue", "sweep_at", claim.effect.id, HOUR * 2).await;
    let found = db.store.overdue(10).await.expect("the sweep reads");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id, &*found[0].downstream), (claim.effect.id, "pay"));
    assert!(found[0].history.uncertain);
    let parked = Settling::of_overdue(&found[0], Decision::Park("its safe time has passed".to_owned()));
    assert_eq!(db.store.sweep_overdue(&[parked]).await.expect("the sweep writes"), [Settled::Done]);
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.attempts), (State::InDoubt, 1), "nothing was attempted");
    assert!(status.last_error.is_some_and(|why| why.contains("safe time")));
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
}

async fn an_effect_past_its_expiry_ends_expired(db: &TestDatabase) {
    let later = db.engine.after(db.engine.now(), HOUR);
    let id = db.insert_with("pay", "k", &[("expires_at", &later)]).await;
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
    for column in ["sweep_at", "expires_at"] {
        db.shift_back("queue", column, id, HOUR * 2).await;
    }
    let found = db.store.overdue(10).await.expect("the sweep reads");
    assert_eq!(found.len(), 1, "served or not");
    assert!(!found[0].history.uncertain && found[0].history.expires_at.is_some());
    let expire = Settling::of_overdue(&found[0], Decision::Expire);
    assert_eq!(db.store.sweep_overdue(&[expire]).await.expect("the sweep writes"), [Settled::Done]);
    let status = db.status(id).await;
    assert_eq!((status.state, status.attempts), (State::Expired, 0));
    assert!(db.log(id).await.is_empty());
}

async fn what_was_claimed_after_the_look_is_not_overdue(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let later = db.engine.after(db.engine.now(), HOUR);
    let id = db.insert_with("pay", "k", &[("expires_at", &later)]).await;
    db.shift_back("queue", "sweep_at", id, HOUR * 2).await;
    let found = db.store.overdue(10).await.expect("the sweep reads").remove(0);
    let claim = stage.worker.claim_one("pay").await;
    let expire = Settling::of_overdue(&found, Decision::Expire);
    assert_eq!(db.store.sweep_overdue(&[expire]).await.expect("the sweep writes"), [Settled::Lost]);
    assert_eq!(db.state(id).await, State::InFlight);
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty(), "claimed ones are not listed");
    stage.done(Settling::of(&claim).succeed()).await;
}

async fn an_operators_action_after_the_look_stands(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let later = in_an_hour(db).await;
    let settlement = Settlement { sweep_at: Some(later), ..Settling::of(&claim).retry_unknown(later) };
    stage.done(settlement).await;
    db.shift_back("queue", "sweep_at", claim.effect.id, HOUR * 2).await;
    let found = db.store.overdue(10).await.expect("the sweep reads").remove(0);
    db.store.act(claim.effect.id, &Verb::Retry, &person(), None).await.expect("acting works");
    let parked = Settling::of_overdue(&found, Decision::Park("late".to_owned()));
    assert_eq!(db.store.sweep_overdue(&[parked]).await.expect("the sweep writes"), [Settled::Lost]);
    let status = db.status(claim.effect.id).await;
    assert!(status.state.is_pending(), "{:?}", status.state);
    assert!(db.now().await.since(status.due_at.expect("it is due")) < Duration::from_secs(60), "due now");
}
