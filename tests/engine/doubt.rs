//! Guarantee: what cannot be known is in doubt; an uncertain effect is never sent past its window, never with another
//! request, and never twice to a downstream that cannot deduplicate.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    outcome::{About, Finding, Outcome, Phase},
    state::State,
    store::Acted,
    verb::{Actor, Refusal, Verb},
};
use tokio::sync::Barrier;

use super::{Running, Stop, at_once, engine, reaches, refused_connection, served, unknown};
use crate::support::{Script, Scripted, TestDatabase, answer, key_terms, none_terms, on_every_database};

on_every_database!(
    an_unknown_outcome_at_a_downstream_that_cannot_deduplicate_is_parked_and_never_resent,
    on_unknown_retry_resends_with_the_same_key,
    a_later_refusal_does_not_make_an_unknown_attempt_failed,
    an_uncertain_effect_is_retried_inside_its_window_and_parked_after_it,
    a_certain_effect_is_retried_long_after_the_window,
    an_uncertain_effect_whose_request_would_change_is_parked_and_a_certain_one_pinned_anew,
    a_cancel_in_flight_cancels_the_certain_and_parks_the_uncertain,
    a_resend_is_one_attempt_with_the_same_key,
    a_resend_that_nobody_confirmed_does_not_outlast_its_safe_time_in_a_pause,
    a_resend_that_nobody_confirmed_is_not_begun_where_it_could_not_end_in_time,
    a_replay_of_a_key_that_we_never_sent_is_in_doubt,
);

const DAY: Duration = Duration::from_secs(24 * 3600);

fn by_hand() -> Actor {
    let reason = Some("looked it up".to_owned());
    Actor { who: "ops".to_owned(), reason, confirmed: true, ..Actor::default() }
}

/// Trap T4.
async fn an_unknown_outcome_at_a_downstream_that_cannot_deduplicate_is_parked_and_never_resent(
    db: &TestDatabase,
) {
    let downstream = Scripted::queue([Script::Answer(unknown())]);
    let id = db.insert("mail", "k").await;
    let of = served("mail", &downstream, at_once(none_terms(OnUnknown::Hold)));
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, id, State::InDoubt).await;
    // Something after it goes through: the worker had every chance to send it again.
    let after = db.insert("mail", "after").await;
    reaches(db, after, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(downstream.calls().iter().filter(|call| call.key == "k").count(), 1);
    assert_eq!(db.state(id).await, State::InDoubt);
}

async fn on_unknown_retry_resends_with_the_same_key(db: &TestDatabase) {
    let downstream = Scripted::queue([Script::Answer(unknown()), Script::Answer(answer(200, "{}"))]);
    let id = db.insert("mail", "k").await;
    let of = served("mail", &downstream, at_once(none_terms(OnUnknown::Retry)));
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(downstream.calls().iter().map(|call| call.key.clone()).collect::<Vec<_>>(), ["k", "k"]);
}

async fn a_later_refusal_does_not_make_an_unknown_attempt_failed(db: &TestDatabase) {
    let refused = Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "400: revoked");
    let downstream = Scripted::queue([Script::Answer(unknown()), Script::Answer(refused)]);
    let id = db.insert("pay", "k").await;
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, at_once(key_terms()))]));
    reaches(db, id, State::InDoubt).await;
    worker.drain().await;
    assert_eq!(downstream.calls().len(), 2);
}

async fn an_uncertain_effect_is_retried_inside_its_window_and_parked_after_it(db: &TestDatabase) {
    let downstream = Scripted::by(|attempt| {
        if attempt.number == 1 { Script::Answer(unknown()) } else { Script::Answer(answer(200, "{}")) }
    });
    let mut terms = key_terms();
    // The first retry waits, so that the stored times can be moved before it.
    (terms.policy.initial, terms.policy.max) = (Duration::from_secs(3600), Duration::from_secs(3600));
    terms.policy.max_age = 10 * DAY;
    let (inside, outside) = (db.insert("pay", "inside").await, db.insert("pay", "outside").await);
    let one = || engine(db.store.clone(), "w", vec![served("pay", &downstream, terms.clone())]);
    one().run_once(Stop::default()).await.expect("a round");
    for (id, age) in [(inside, DAY - Duration::from_secs(600)), (outside, DAY - Duration::from_secs(60))] {
        assert_eq!(db.state(id).await, State::Retrying);
        db.shift_back("queue", "first_sent_at", id, age).await;
        db.shift_back("queue", "due_at", id, 2 * DAY).await;
    }
    one().run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.state(inside).await, State::Succeeded);
    assert_eq!(db.state(outside).await, State::InDoubt, "its window, less the margin, has passed");
    let calls = downstream.calls();
    assert_eq!(calls.iter().filter(|call| call.key == "outside").count(), 1, "{calls:?}");
    assert_eq!(db.log(outside).await.len(), 1, "parking is no attempt");
}

async fn a_certain_effect_is_retried_long_after_the_window(db: &TestDatabase) {
    let downstream = Scripted::queue([Script::Answer(refused_connection())]);
    let mut terms = key_terms();
    (terms.policy.initial, terms.policy.max) = (Duration::from_secs(3600), Duration::from_secs(3600));
    let id = db.insert("pay", "k").await;
    let one = || engine(db.store.clone(), "w", vec![served("pay", &downstream, terms.clone())]);
    one().run_once(Stop::default()).await.expect("a round");
    let status = db.status(id).await;
    assert_eq!((status.state, status.first_sent_at), (State::Retrying, None), "certainly never sent");
    db.shift_back("queue", "started_at", id, 3 * DAY).await;
    db.shift_back("queue", "due_at", id, 3 * DAY).await;
    one().run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.state(id).await, State::Succeeded);
}

/// IDEMP-OUT-02 and trap T12: a new version is deployed.
async fn an_uncertain_effect_whose_request_would_change_is_parked_and_a_certain_one_pinned_anew(
    db: &TestDatabase,
) {
    let downstream = Scripted::by(|attempt| match (attempt.key.as_str(), attempt.number) {
        ("uncertain", 1) => Script::Answer(unknown()),
        ("certain", 1) => Script::Answer(refused_connection()),
        _ => Script::Answer(answer(200, "{}")),
    });
    let (uncertain, certain) = (db.insert("pay", "uncertain").await, db.insert("pay", "certain").await);
    let before = served("pay", &downstream, at_once(key_terms()));
    let mut after = before.clone();
    after.terms.request_sha256 = [8; 32];
    engine(db.store.clone(), "old", vec![before.clone()]).run_once(Stop::default()).await.expect("a round");
    let worker = Running::start(engine(db.store.clone(), "new", vec![after]));
    reaches(db, uncertain, State::InDoubt).await;
    reaches(db, certain, State::Succeeded).await;
    worker.drain().await;
    assert!(db.status(uncertain).await.last_error.expect("a reason").contains("differ"));
    assert_eq!(downstream.calls().iter().filter(|call| call.key == "uncertain").count(), 1);
}

/// Trap T28.
async fn a_cancel_in_flight_cancels_the_certain_and_parks_the_uncertain(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(3));
    let gate = barrier.clone();
    let downstream = Scripted::by(move |attempt| {
        let outcome = if attempt.key == "certain" { refused_connection() } else { unknown() };
        Script::Meet(gate.clone(), outcome)
    });
    let (certain, uncertain) = (db.insert("pay", "certain").await, db.insert("pay", "uncertain").await);
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, at_once(key_terms()))]));
    barrier.wait().await;
    for id in [certain, uncertain] {
        let acted = db.store.act(id, &Verb::Cancel, &by_hand(), None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
        assert_eq!(db.state(id).await, State::InFlight, "a request only");
    }
    barrier.wait().await;
    reaches(db, certain, State::Cancelled).await;
    reaches(db, uncertain, State::InDoubt).await;
    worker.drain().await;
    assert_eq!(downstream.calls().len(), 2, "neither was called again");
}

async fn a_resend_is_one_attempt_with_the_same_key(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Answer(unknown()));
    let mut terms = at_once(none_terms(OnUnknown::Hold));
    terms.contract.margin = Duration::ZERO;
    terms.timeout = Duration::from_millis(20);
    let id = db.insert("mail", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("mail", &downstream, terms)]));
    for resends in 0..2 {
        reaches(db, id, State::InDoubt).await;
        assert_eq!(downstream.calls().len(), 1 + resends);
        db.shift_back("queue", "quiet_at", id, DAY).await;
        let acted = db.store.act(id, &Verb::Resend, &by_hand(), None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
        downstream.called(2 + resends).await;
    }
    reaches(db, id, State::InDoubt).await;
    worker.drain().await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 3, "each resend is exactly one attempt");
    assert!(calls.iter().all(|call| call.key == "k"));
}

/// Resends it, confirmed or not; it must be accepted.
async fn resend(db: &TestDatabase, id: EffectId, confirmed: bool) {
    let actor = Actor { confirmed, ..by_hand() };
    let acted = db.store.act(id, &Verb::Resend, &actor, None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(db.state(id).await, State::Ready);
}

/// One attempt, without an answer, whose request cannot be travelling any more: in doubt.
async fn once_unanswered(db: &TestDatabase, engine: &aftercommit::engine::Engine) -> EffectId {
    let id = db.insert("pay", "k").await;
    engine.run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.state(id).await, State::InDoubt);
    db.shift_back("queue", "quiet_at", id, DAY).await;
    id
}

/// Money would move twice: the pause is lifted when the downstream has long forgotten the key.
async fn a_resend_that_nobody_confirmed_does_not_outlast_its_safe_time_in_a_pause(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Answer(unknown()));
    let mut terms = at_once(key_terms());
    terms.policy.max_attempts = 1;
    let worker = engine(db.store.clone(), "w", vec![served("pay", &downstream, terms)]);
    let round = async || worker.run_once(Stop::default()).await.expect("a round");
    let id = once_unanswered(db, &worker).await;
    db.store.pause("pay", &by_hand()).await.expect("pausing works");
    resend(db, id, false).await;
    round().await;
    assert_eq!(db.state(id).await, State::Ready, "it waits for the end of the pause");
    // A day goes by.
    for column in ["first_sent_at", "sweep_at"] {
        db.shift_back("queue", column, id, DAY).await;
    }
    round().await;
    let status = db.status(id).await;
    assert_eq!(status.state, State::InDoubt);
    assert!(status.last_error.is_some_and(|why| why.contains("certainly recognises the key")));
    db.store.resume("pay", &by_hand(), None).await.expect("resuming works");
    round().await;
    assert_eq!((downstream.calls().len(), db.state(id).await), (1, State::InDoubt), "it was not sent again");
    // Whoever confirms that it may be applied twice has it sent, however late.
    resend(db, id, true).await;
    round().await;
    assert_eq!(downstream.calls().len(), 2);
}

/// It is accepted a moment before the safe time ends, and a call may take longer than that.
async fn a_resend_that_nobody_confirmed_is_not_begun_where_it_could_not_end_in_time(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Answer(unknown()));
    let mut terms = at_once(key_terms());
    terms.policy.max_attempts = 1;
    terms.timeout = Duration::from_secs(3600);
    let margin = terms.contract.margin;
    let mut of = served("pay", &downstream, terms);
    of.lease = Duration::from_secs(2 * 3600);
    let worker = engine(db.store.clone(), "w", vec![of]);
    let id = once_unanswered(db, &worker).await;
    db.shift_back("queue", "first_sent_at", id, DAY - margin - Duration::from_secs(1800)).await;
    resend(db, id, false).await;
    worker.run_once(Stop::default()).await.expect("a round");
    let status = db.status(id).await;
    assert_eq!((status.state, downstream.calls().len()), (State::InDoubt, 1));
    assert!(status.last_error.is_some_and(|why| why.contains("certainly recognises the key")));
    resend(db, id, true).await;
    worker.run_once(Stop::default()).await.expect("a round");
    assert_eq!(downstream.calls().len(), 2, "a person said that it may be later");
}

async fn a_replay_of_a_key_that_we_never_sent_is_in_doubt(db: &TestDatabase) {
    let replay = || Outcome { replayed: true, ..answer(200, r#"{"id":"ch_old"}"#) };
    let downstream = Scripted::by(move |attempt| match (attempt.key.as_str(), attempt.number) {
        ("known", 1) => Script::Answer(unknown()),
        _ => Script::Answer(replay()),
    });
    let (foreign, known) = (db.insert("pay", "foreign").await, db.insert("pay", "known").await);
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, at_once(key_terms()))]));
    reaches(db, foreign, State::InDoubt).await;
    reaches(db, known, State::Succeeded).await;
    worker.drain().await;
    assert!(db.status(foreign).await.last_error.expect("a reason").contains("used before"));
    // Whoever has it sent again and calls that off changes the words, not what is known of the key.
    db.shift_back("queue", "quiet_at", foreign, DAY).await;
    resend(db, foreign, true).await;
    let acted = db.store.act(foreign, &Verb::Cancel, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert!(!db.status(foreign).await.last_error.expect("a reason").contains("used before"));
    // A retry would be answered with what is stored under the key, and count as applied though nothing of ours was.
    let acted =
        db.store.act(foreign, &Verb::ResolveNotApplied, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let acted = db.store.act(foreign, &Verb::Retry, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Refused(Refusal::RefusalStored)), "{acted:?}");
    let reissue = Verb::Reissue { resolve: None };
    let acted = db.store.act(foreign, &reissue, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
}
