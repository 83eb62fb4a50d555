//! Defends: what a worker found out after it lost its lease is always logged, and *applied* is believed where that is safe.

use aftercommit::{
    outcome::{Finding, Outcome, Phase, Verdict},
    state::State,
    store::{AttemptLog, Claim, Late, LateAnswer, Settled},
    verb::Verb,
};

use super::stage::{Stage, in_an_hour, person};
use crate::support::{LEASE, Settling, TestDatabase, Worker, answer, key_terms, on_every_way, registered};

on_every_way! {
    a_late_success_settles_an_uncertain_effect_that_nobody_holds,
    a_late_success_of_an_effect_in_flight_waits_for_that_attempt,
    a_late_success_of_a_parked_effect_settles_it,
    other_late_answers_are_logged_and_change_nothing,
    a_late_success_after_a_persons_not_applied_is_loud,
    a_late_success_contradicts_a_persons_not_applied_also_in_flight,
    a_late_answer_is_logged_once,
    a_late_hand_back_is_logged_beside_the_sweeps_row_and_nowhere_else,
}

/// A claim whose lease ended and that was swept into a retry.
async fn lost(db: &TestDatabase, stage: &Stage, key: &str) -> Claim {
    let claim = stage.claimed(db, key).await;
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let retry = Settling::of_expired(&expired).retry_unknown(in_an_hour(db).await);
    assert_eq!(db.store.sweep_expired(&[retry]).await.expect("the sweep writes"), [Settled::Done]);
    claim
}

fn late(claim: &Claim, outcome: &Outcome) -> LateAnswer {
    LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: Settling::of(claim).attempt(outcome),
        begun: true,
        response: outcome.response.clone(),
    }
}

async fn tell(db: &TestDatabase, claim: &Claim, outcome: &Outcome) -> Late {
    let told = db.store.late(&[late(claim, outcome)]).await.expect("late answers are taken");
    assert_eq!(told.len(), 1, "one answer each");
    told[0]
}

async fn late_rows(db: &TestDatabase, claim: &Claim) -> Vec<Verdict> {
    let log = db.log(claim.effect.id).await;
    log.iter().filter(|row| row.late).map(|row| row.outcome).collect()
}

async fn a_late_success_settles_an_uncertain_effect_that_nobody_holds(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k").await;
    assert_eq!(tell(db, &claim, &answer(200, r#"{"id":"ch_1"}"#)).await, Late::Succeeded);
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.response_status), (State::Succeeded, Some(200)));
    assert_eq!(status.response.as_ref().map(|json| json.get()), Some(r#"{"id":"ch_1"}"#));
    assert_eq!(late_rows(db, &claim).await, [Verdict::Applied]);
    assert!(stage.worker.claim("pay", 5).await.is_empty());
}

async fn a_late_success_of_an_effect_in_flight_waits_for_that_attempt(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k").await;
    db.shift_back("queue", "due_at", claim.effect.id, super::stage::HOUR * 2).await;
    let other = Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    let second = other.claim_one("pay").await;
    assert_eq!(tell(db, &claim, &answer(200, "{}")).await, Late::Noted);
    assert_eq!(db.state(claim.effect.id).await, State::InFlight, "the other one's attempt goes on");
    let settling = Settling::of(&second);
    for settlement in [settling.retry_unknown(db.now().await), settling.fail("refused"), settling.park("?")] {
        let settled = other.settle(settlement).await;
        assert_eq!(settled, Settled::Reconsider { cancel_requested: false, applied_late: true });
    }
    assert_eq!(other.settle(settling.succeed()).await, Settled::Done);
    assert_eq!(db.state(claim.effect.id).await, State::Succeeded);
    assert_eq!(late_rows(db, &claim).await, [Verdict::Applied]);
}

async fn a_late_success_of_a_parked_effect_settles_it(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k").await;
    db.shift_back("queue", "due_at", claim.effect.id, super::stage::HOUR * 2).await;
    let second = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&second).park("no answer")).await;
    assert_eq!(tell(db, &claim, &answer(200, "{}")).await, Late::Succeeded);
    assert_eq!(db.state(claim.effect.id).await, State::Succeeded);
}

async fn other_late_answers_are_logged_and_change_nothing(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k1").await;
    let refused = Outcome::new(
        Finding::Rejected(aftercommit::outcome::About::ThisAttempt),
        Phase::Done,
        "card declined",
    );
    let before = db.status(claim.effect.id).await;
    assert_eq!(tell(db, &claim, &refused).await, Late::Logged);
    let after = db.status(claim.effect.id).await;
    assert_eq!((after.state, after.token, after.due_at), (State::Retrying, before.token, before.due_at));
    assert_eq!(late_rows(db, &claim).await, [Verdict::Rejected]);

    let claim = lost(db, &stage, "k2").await;
    db.shift_back("queue", "due_at", claim.effect.id, super::stage::HOUR * 2).await;
    let second = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&second).succeed()).await;
    let before = db.status(claim.effect.id).await;
    assert_eq!(tell(db, &claim, &answer(201, "{}")).await, Late::Logged, "it had succeeded already");
    let after = db.status(claim.effect.id).await;
    assert_eq!((after.state, after.finished_at), (State::Succeeded, before.finished_at));
    assert_eq!(after.response_status, Some(200), "the answer that settled it stays");
    assert_eq!(late_rows(db, &claim).await, [Verdict::Applied]);
}

async fn a_late_success_after_a_persons_not_applied_is_loud(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k").await;
    db.shift_back("queue", "due_at", claim.effect.id, super::stage::HOUR * 2).await;
    let second = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&second).park("no answer")).await;
    // The sweep may have noted until when the first request could travel; that time has passed.
    db.sql.execute("UPDATE aftercommit.queue SET quiet_at = NULL").await;
    let acted = db.store.act(claim.effect.id, &Verb::ResolveNotApplied, &person(), None).await;
    assert!(matches!(acted, Ok(aftercommit::store::Acted::Done(..))), "{acted:?}");
    assert_eq!(tell(db, &claim, &answer(200, "{}")).await, Late::Contradicts);
    assert_eq!(db.state(claim.effect.id).await, State::Failed, "a person's word stands");
    assert_eq!(late_rows(db, &claim).await, [Verdict::Applied], "and both are in the log");
}

async fn a_late_success_contradicts_a_persons_not_applied_also_in_flight(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let lost = lost(db, &stage, "k").await;
    let id = lost.effect.id;
    db.shift_back("queue", "due_at", id, super::stage::HOUR * 2).await;
    let second = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&second).park("no answer")).await;
    db.sql.execute("UPDATE aftercommit.queue SET quiet_at = NULL").await;
    for verb in [Verb::ResolveNotApplied, Verb::Retry] {
        let acted = db.store.act(id, &verb, &person(), None).await;
        assert!(matches!(acted, Ok(aftercommit::store::Acted::Done(..))), "{acted:?}");
    }
    let third = stage.worker.claim_one("pay").await;
    assert!(!third.history.uncertain, "a new history");
    assert_eq!(tell(db, &lost, &answer(200, "{}")).await, Late::Contradicts);
    let settled = stage.worker.settle(Settling::of(&third).fail("declined")).await;
    assert_eq!(settled, Settled::Done, "the present attempt is decided by its own answer");
    // Under the present token it is the attempt's own answer.
    let own = stage.claimed(db, "own").await;
    assert_eq!(tell(db, &own, &answer(200, "{}")).await, Late::Noted);
}

async fn a_late_answer_is_logged_once(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = lost(db, &stage, "k").await;
    let outcome = Outcome::new(Finding::NotApplied, Phase::Connect, "refused");
    for _ in 0..2 {
        assert_eq!(
            tell(db, &claim, &outcome).await,
            Late::Logged,
            "repeating it after a lost COMMIT is fine"
        );
    }
    assert_eq!(late_rows(db, &claim).await, [Verdict::NotApplied]);
}

/// It would read as if something had been sent; without a sweep's row there is nothing to set right.
async fn a_late_hand_back_is_logged_beside_the_sweeps_row_and_nowhere_else(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let handed_back = |claim: &Claim| LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: AttemptLog::not_begun(
            claim.number,
            "w1".into(),
            claim.claimed_at,
            claim.claimed_at.plus(LEASE),
        ),
        begun: false,
        response: None,
    };
    let swept = lost(db, &stage, "swept").await;
    let kept = stage.claimed(db, "kept").await;
    for _ in 0..2 {
        let told = db.store.late(&[handed_back(&swept), handed_back(&kept)]).await;
        assert_eq!(told.expect("late answers are taken"), [Late::Logged, Late::Logged]);
    }
    let log = db.log(swept.effect.id).await;
    let rows: Vec<_> = log.iter().map(|row| (row.attempt, row.outcome, row.late)).collect();
    assert_eq!(rows, [(1, Verdict::Unknown, false), (1, Verdict::NotApplied, true)]);
    let said = log[1].error.as_deref();
    assert_eq!(said, Some("not begun: handed back after its lease had ended"));
    assert_eq!(db.state(swept.effect.id).await, State::Retrying, "it changed nothing");
    assert!(db.log(kept.effect.id).await.is_empty());
}
