//! Guarantee: nothing that a lost history knew, or still sends, is taken for proof once the fleet was put on HOLD.

use aftercommit::{
    contract::OnUnknown,
    decision::Decision,
    state::State,
    store::{
        Claim, DueProbe, Late, LateAnswer, Next, ProbeSettlement, ProbeWant, Settled,
        identity::{Lifted, Mismatch},
    },
    verb::Actor,
};

use super::stage::HOUR;
use crate::support::{
    LEASE, Settling, TestDatabase, Worker, answer, key_terms, lookup_terms, none_terms, on_every_database,
    registered,
};

on_every_database! {
    what_is_in_flight_stays_uncertain_whatever_its_worker_finds_out_but_applied,
    a_persons_resend_does_not_outlive_a_hold,
    an_absence_that_was_seen_before_a_hold_proves_nothing,
    a_probe_that_ends_on_hold_is_given_back,
}

async fn enter(db: &TestDatabase) {
    let reason = "the database went back".to_owned();
    let mismatch = Mismatch { reason, went_back: true, token_above: 0, epoch_above: 0 };
    db.store.enter_hold("w1", &mismatch).await.expect("the fleet is put on hold");
}

async fn put_on_hold(db: &TestDatabase) {
    enter(db).await;
    while db.store.mark_uncertain(LEASE).await.expect("effects become uncertain") {}
}

async fn lift(db: &TestDatabase) {
    let actor = Actor { who: "ann".to_owned(), reason: Some("looked".to_owned()), ..Actor::default() };
    let lifted = db.store.lift_hold(&actor).await.expect("lifting works");
    assert!(matches!(lifted, Lifted::Done(_)), "{lifted:?}");
}

fn late(claim: &Claim) -> LateAnswer {
    let outcome = answer(200, "{}");
    LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: Settling::of(claim).attempt(&outcome),
        begun: true,
        response: outcome.response,
    }
}

async fn what_is_in_flight_stays_uncertain_whatever_its_worker_finds_out_but_applied(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    db.insert_many("pay", "k", 4).await;
    let claims = worker.claim("pay", 4).await;
    put_on_hold(db).await;
    let settling: Vec<Settling> = claims.iter().map(Settling::of).collect();
    assert_eq!(worker.settle(settling[0].give_back()).await, Settled::Lost);
    assert_eq!(worker.settle(settling[1].retry_not_applied(db.now().await)).await, Settled::Lost);
    assert_eq!(worker.settle(settling[2].succeed()).await, Settled::Lost);
    let heard = db.store.late(&[late(&claims[2])]).await.expect("late answers are taken");
    assert_eq!(heard, [Late::Succeeded]);
    assert_eq!(db.state(claims[2].effect.id).await, State::Succeeded);
    lift(db).await;
    assert!(worker.claim("pay", 4).await.is_empty(), "their requests may still be travelling");
    for claim in [&claims[0], &claims[1], &claims[3]] {
        db.shift_back("queue", "due_at", claim.effect.id, HOUR).await;
    }
    let again = worker.claim("pay", 4).await;
    assert_eq!(again.len(), 3);
    for claim in &again {
        let before = claims.iter().find(|before| before.effect.id == claim.effect.id).expect("one of them");
        assert!(claim.history.uncertain && claim.token() > before.token(), "{claim:?}");
        assert_eq!(claim.history.first_sent_at, before.history.first_sent_at);
    }
}

/// Trap T3: the one attempt may have been made in the history that is lost.
async fn a_persons_resend_does_not_outlive_a_hold(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", none_terms(OnUnknown::Hold))]).await;
    db.insert("pay", "k").await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).retry_unknown(db.now().await)).await;
    db.sql.execute("UPDATE aftercommit.queue SET resend = true, resend_unconfirmed = true").await;
    put_on_hold(db).await;
    lift(db).await;
    let overdue = db.store.overdue(10).await.expect("the sweep reads");
    assert!(
        overdue.len() == 1 && overdue[0].history.resend.is_none() && overdue[0].history.uncertain,
        "{overdue:?}"
    );
}

async fn in_doubt(db: &TestDatabase) -> DueProbe {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", lookup_terms())]).await;
    db.insert("pay", "k").await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).probe_at(claim.claimed_at, "no answer")).await;
    probes(db).await.remove(0)
}

async fn probes(db: &TestDatabase) -> Vec<DueProbe> {
    let want = ProbeWant { downstream: "pay".into(), slots: 5, lease: LEASE, origin: None, trial: false };
    db.store.claim_probes(&[want]).await.expect("claiming probes works")
}

async fn an_absence_that_was_seen_before_a_hold_proves_nothing(db: &TestDatabase) {
    let probe = in_doubt(db).await;
    let id = probe.effect.id;
    let again = Next::Decided(Decision::ProbeAt(db.now().await, "absent".to_owned()));
    let seen = ProbeSettlement { absent_at: Some(db.now().await), ..probe.settlement(again) };
    assert_eq!(db.store.settle_probe(&seen).await.expect("settling works"), Settled::Done);
    let before = db.now().await;
    put_on_hold(db).await;
    lift(db).await;
    assert!(probes(db).await.is_empty(), "a request of the lost history may still be travelling");
    db.shift_back("queue", "due_at", id, HOUR).await;
    let probe = probes(db).await.remove(0);
    assert_eq!((probe.doubt.made, probe.doubt.absent_at), (0, None));
    assert!(probe.doubt.travels_until.plus(HOUR) >= before.plus(LEASE), "{:?}", probe.doubt);
    assert!(probe.doubt.history.travels_until >= Some(before.plus(LEASE)), "{:?}", probe.doubt);
}

async fn a_probe_that_ends_on_hold_is_given_back(db: &TestDatabase) {
    let probe = in_doubt(db).await;
    let id = probe.effect.id;
    enter(db).await;
    let at = db.now().await;
    let absent = probe.settlement(Next::Decided(Decision::RetryAt(at)));
    assert_eq!(db.store.settle_probe(&absent).await.expect("settling works"), Settled::Lost);
    put_on_hold(db).await;
    assert_eq!(db.store.settle_probe(&absent).await.expect("settling works"), Settled::Lost);
    lift(db).await;
    let status = db.status(id).await;
    assert!(status.state == State::InDoubt && status.first_sent_at.is_some(), "{status:?}");
    db.shift_back("queue", "due_at", id, HOUR).await;
    assert_eq!(probes(db).await.len(), 1, "it is asked again");
}
