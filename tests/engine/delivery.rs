//! Guarantee: every due effect is attempted with one key and one request, within its downstream's share, and the outcome is
//! what the state says.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    downstream::Terms,
    outcome::{About, Finding, Outcome, Phase, Verdict},
    state::State,
};
use tokio::sync::Barrier;

use super::{PATIENCE, Running, Stop, at_once, engine, reaches, refused_connection, served, unknown};
use crate::support::{Script, Scripted, TestDatabase, answer, eventually, key_terms, on_every_database};

on_every_database!(
    a_due_effect_is_called_once_and_succeeds,
    every_attempt_carries_the_same_key_and_bytes,
    a_refusal_ends_failed_with_the_downstreams_words,
    a_panic_is_an_attempt_with_an_unknown_outcome_and_harms_no_neighbour,
    a_call_without_an_answer_is_cut_and_its_attempts_are_counted,
    one_hanging_downstream_does_not_hold_up_another,
    no_more_calls_are_open_than_the_downstream_allows,
    an_operation_that_nobody_knows_is_tried_again_and_named,
    an_effect_past_its_expiry_is_never_called,
    a_backlog_is_worked_off_as_slots_become_free,
    a_key_that_the_downstream_cannot_take_fails_unsent,
);

async fn a_due_effect_is_called_once_and_succeeds(db: &TestDatabase) {
    let downstream = Scripted::queue([Script::Answer(answer(201, r#"{"id":"ch_1"}"#))]);
    let id = db.insert_with("pay", "order-1", &[("payload", "'{ \"n\": 1.0 }'")]).await;
    let report = engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())])
        .run_once(Stop::default())
        .await;
    assert_eq!(report.expect("a round").settled, 1);
    let status = db.status(id).await;
    assert_eq!((status.state, status.attempts, status.response_status), (State::Succeeded, 1, Some(201)));
    assert_eq!(status.response.expect("a response").get(), r#"{"id":"ch_1"}"#);
    let calls = downstream.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].key.as_str(), calls[0].bytes.as_slice()), ("order-1", &b"{ \"n\": 1.0 }"[..]));
}

/// IDEMP-OUT-02 and trap T12.
async fn every_attempt_carries_the_same_key_and_bytes(db: &TestDatabase) {
    let downstream = Scripted::queue([
        Script::Answer(unknown()),
        Script::Answer(refused_connection()),
        Script::Answer(Outcome::new(Finding::InProgress, Phase::Done, "409 in progress")),
        Script::Answer(answer(200, "{}")),
    ]);
    let id = db.insert_with("pay", "order-2", &[("payload", "'{\"a\":[1,  2]}'")]).await;
    let mut of = served("pay", &downstream, at_once(key_terms()));
    of.key_prefix = "shop-".to_owned();
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 4);
    for (at, call) in calls.iter().enumerate() {
        assert_eq!(call.key, "shop-order-2");
        assert_eq!(call.bytes, br#"{"a":[1,  2]}"#);
        assert_eq!(call.number as usize, at + 1);
    }
    let verdicts: Vec<Verdict> = db.log(id).await.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(verdicts, [Verdict::Unknown, Verdict::NotApplied, Verdict::Unknown, Verdict::Applied]);
}

async fn a_refusal_ends_failed_with_the_downstreams_words(db: &TestDatabase) {
    let refusal = Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "422: no such currency");
    let downstream = Scripted::queue([Script::Answer(refusal)]);
    let id = db.insert("pay", "k").await;
    engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())])
        .run_once(Stop::default())
        .await
        .expect("a round");
    let status = db.status(id).await;
    assert_eq!((status.state, status.last_outcome), (State::Failed, Some(Verdict::Rejected)));
    assert!(status.last_error.expect("a reason").contains("no such currency"));
}

/// Trap T24.
async fn a_panic_is_an_attempt_with_an_unknown_outcome_and_harms_no_neighbour(db: &TestDatabase) {
    let downstream = Scripted::by(|attempt| match attempt.key.as_str() {
        "bad" if attempt.number == 1 => Script::Panic("index out of bounds"),
        _ => Script::Answer(answer(200, "{}")),
    });
    let bad = db.insert("pay", "bad").await;
    let good = db.insert_many("pay", "good", 3).await;
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, at_once(key_terms()))]));
    for id in good.iter().chain([&bad]) {
        reaches(db, *id, State::Succeeded).await;
    }
    assert_eq!(worker.drain().await.panics, 1);
    let log = db.log(bad).await;
    assert_eq!(log[0].outcome, Verdict::Unknown);
    assert!(log[0].error.as_deref().unwrap_or("").contains("index out of bounds"));
}

/// LEASE-09: the lease outlives the timeout, so each timed-out attempt is recorded once.
async fn a_call_without_an_answer_is_cut_and_its_attempts_are_counted(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Hang);
    let mut terms = at_once(key_terms());
    (terms.timeout, terms.policy.max_attempts) = (Duration::from_millis(50), 3);
    let id = db.insert("pay", "k").await;
    let workers = ["w1", "w2"].map(|name| {
        Running::start(engine(db.store.clone(), name, vec![served("pay", &downstream, terms.clone())]))
    });
    reaches(db, id, State::InDoubt).await;
    for worker in workers {
        worker.drain().await;
    }
    let log = db.log(id).await;
    let numbers: Vec<u32> = log.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers, [1, 2, 3], "one row per attempt");
    assert!(log.iter().all(|attempt| attempt.outcome == Verdict::Unknown && !attempt.late));
    assert_eq!(downstream.calls().len(), 3);
}

/// HTTP-09: a slow endpoint with a backlog keeps its own share, no more.
async fn one_hanging_downstream_does_not_hold_up_another(db: &TestDatabase) {
    let slow = Scripted::by(|_| Script::Hang);
    let quick = Scripted::applying();
    db.insert_many("slow", "s", 100).await;
    let ids = db.insert_many("quick", "q", 40).await;
    let both = vec![served("slow", &slow, key_terms()), served("quick", &quick, key_terms())];
    let worker = Running::start(engine(db.store.clone(), "w", both));
    for id in ids {
        reaches(db, id, State::Succeeded).await;
    }
    assert_eq!(slow.most_open(), 16, "its own concurrency");
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
}

async fn no_more_calls_are_open_than_the_downstream_allows(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::AnswerAfter(Duration::from_millis(5), answer(200, "{}")));
    let ids = db.insert_many("pay", "k", 60).await;
    let mut of = served("pay", &downstream, key_terms());
    of.concurrency = 3;
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    for id in ids {
        reaches(db, id, State::Succeeded).await;
    }
    worker.drain().await;
    assert_eq!(downstream.most_open(), 3);
    assert_eq!(downstream.calls().len(), 60);
}

async fn an_operation_that_nobody_knows_is_tried_again_and_named(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let id = db.insert_with("pay", "k", &[("operation", "'refund'")]).await;
    engine(db.store.clone(), "old", vec![served("pay", &downstream, at_once(key_terms()))])
        .run_once(Stop::default())
        .await
        .expect("a round");
    let status = db.status(id).await;
    assert!(status.state.is_pending(), "{:?}", status.state);
    assert!(status.last_error.expect("a reason").contains("refund"));
    // A deploy later the worker knows it.
    let mut of = served("pay", &downstream, at_once(key_terms()));
    of.operations =
        BTreeMap::from([("refund".to_owned(), Terms { request_sha256: [9; 32], ..of.terms.clone() })]);
    let worker = Running::start(engine(db.store.clone(), "new", vec![of]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(downstream.calls().len(), 1);
}

async fn an_effect_past_its_expiry_is_never_called(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let expires = db.engine.before(db.engine.now(), Duration::from_secs(5));
    let id = db.insert_with("pay", "k", &[("expires_at", expires.as_str())]).await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    reaches(db, id, State::Expired).await;
    worker.drain().await;
    assert!(downstream.calls().is_empty());
    assert_eq!(db.log(id).await.len(), 0, "nothing was attempted");
}

async fn a_backlog_is_worked_off_as_slots_become_free(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let downstream = Scripted::by(move |attempt| match attempt.key.as_str() {
        "slow" => Script::Meet(gate.clone(), answer(200, "{}")),
        _ => Script::Answer(answer(200, "{}")),
    });
    let slow = db.insert("pay", "slow").await;
    let ids = db.insert_many("pay", "k", 30).await;
    let mut of = served("pay", &downstream, key_terms());
    of.concurrency = 2;
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    barrier.wait().await;
    // One slot is taken for long; the other must not wait for a poll after each call.
    let done = async || {
        let mut states = Vec::new();
        for id in &ids {
            states.push(db.state(*id).await);
        }
        states.iter().all(|state| *state == State::Succeeded).then_some(())
    };
    eventually(PATIENCE, "the rest succeeds through the free slot", done).await;
    barrier.wait().await;
    reaches(db, slow, State::Succeeded).await;
    worker.drain().await;
}

async fn a_key_that_the_downstream_cannot_take_fails_unsent(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let id = db.insert("pay", "much-too-long-for-it").await;
    let mut terms = key_terms();
    terms.contract.key.max_len = 10;
    engine(db.store.clone(), "w", vec![served("pay", &downstream, terms)])
        .run_once(Stop::default())
        .await
        .expect("a round");
    let status = db.status(id).await;
    assert_eq!(status.state, State::Failed);
    assert!(status.last_error.expect("a reason").contains("20 characters"));
    assert!(downstream.calls().is_empty());
}
