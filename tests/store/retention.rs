//! Defends: retention drops what has ended and was kept long enough, nothing else, and the key goes on answering until the
//! key itself goes (RETAIN-01, RETAIN-03, trap T15).

mod fingerprints;

use std::time::Duration;

use aftercommit::{
    EffectId, Enqueued, IdempotencyKey, NewEffect,
    error::EnqueueError,
    outcome::{Finding, Outcome, Phase},
    state::State,
    store::{Acted, Late, LateAnswer, Retention, Step},
    verb::{Refusal, Verb},
};

use super::stage::{HOUR, Stage, person};
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_every_database, registered};

on_every_database! {
    a_key_answers_the_same_at_every_stage_until_it_goes,
    what_has_not_ended_keeps_everything,
    what_ended_lately_keeps_everything,
    history_may_go_before_the_payload,
    a_dropped_payload_is_not_sent_again,
    a_redacted_effect_keeps_key_and_outcome,
    what_may_still_be_sent_is_not_redacted,
    a_late_answer_for_a_purged_effect_changes_nothing,
    counts_and_audit_follow_the_effects,
    terms_that_nothing_refers_to_are_forgotten,
}

/// Runs a step to its end, as if everything that has ended were old enough; the effects that it was done with.
pub(super) async fn drop_all(db: &TestDatabase, step: Step) -> u64 {
    let mut effects = 0;
    loop {
        let batch = db.store.drop_batch(step, Duration::ZERO, 7).await.expect("the step runs");
        assert!(!batch.elsewhere, "nobody else purges here");
        effects += batch.effects;
        if !batch.more {
            return effects;
        }
    }
}

pub(super) fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text).expect("a key")
}

/// Requests that differ in one part each.
fn requests(key_text: &str) -> Vec<NewEffect> {
    let new = || NewEffect::to("pay").key(key(key_text));
    let json = |effect: NewEffect, text: &str| effect.json_text(text).expect("JSON");
    vec![
        json(new(), r#"{"order": 17, "name": "Zoë"}"#),
        json(new(), r#"{"order":17, "name": "Zoë"}"#),
        json(new().operation("charge"), r#"{"order": 17, "name": "Zoë"}"#),
        json(new().target("charge"), r#"{"order": 17, "name": "Zoë"}"#),
        json(new(), r#"{"order": 17, "name": "Zoë"}"#)
            .headers(&serde_json::json!({"X-Tenant": "blue"}))
            .expect("an object"),
        new().body("application/json", r#"{"order": 17, "name": "Zoë"}"#),
        new().body("application/octet-stream", *b"\x00\xff\x80"),
        new(),
    ]
}

/// Each request under its own key finds its own effect, and nobody else's request does.
async fn answers_as_before(db: &TestDatabase, ids: &[EffectId], stage: &str) {
    for (at, id) in ids.iter().enumerate() {
        for (other, request) in requests(&format!("k{at}")).into_iter().enumerate() {
            let found = db.sql.enqueue(request.clone()).await;
            let case = format!("{stage}: request {other} under the key of request {at}");
            match found {
                Ok(Enqueued::Ended(receipt)) if other == at => {
                    assert_eq!((receipt.id, receipt.state), (*id, State::Succeeded), "{case}");
                }
                Err(EnqueueError::OtherRequest { id: holds, .. }) if other != at => {
                    assert_eq!(holds, id.get(), "{case}");
                }
                found => panic!("{case}: {found:?}"),
            }
        }
    }
    let mut tx = db.sql.begin().await;
    let many = tx.enqueue_many(requests("k0")).await.expect("a bulk asks too");
    assert!(matches!(many[0], Ok(Enqueued::Ended(_))), "{stage}: {:?}", many[0]);
    assert!(many[1..].iter().all(|found| matches!(found, Err(EnqueueError::OtherRequest { .. }))), "{stage}");
    tx.rollback().await;
    let error = db
        .sql
        .refused("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k0')")
        .await;
    let unique = error.as_database_error().is_some_and(|error| {
        error.code().as_deref() == Some("23505") || error.message().contains("UNIQUE constraint")
    });
    assert!(unique, "{stage}: a plain INSERT of a key that is taken: {error}");
}

async fn a_key_answers_the_same_at_every_stage_until_it_goes(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut ids = Vec::new();
    for at in 0..8 {
        let request = requests(&format!("k{at}")).swap_remove(at);
        ids.push(db.sql.enqueue(request).await.expect("it is written").receipt().id);
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).succeed()).await;
    }
    answers_as_before(db, &ids, "whole").await;
    assert_eq!(drop_all(db, Step::Payloads).await, 8);
    let held = "SELECT count(*) FROM aftercommit.effects WHERE payload IS NOT NULL OR body IS NOT NULL OR headers IS NOT NULL";
    assert_eq!(db.sql.number(held).await, 0);
    answers_as_before(db, &ids, "without payloads").await;
    assert!(db.status(ids[0]).await.response.is_some(), "the answer is history");
    assert_eq!(db.log(ids[0]).await.len(), 1);
    assert_eq!(drop_all(db, Step::History).await, 8);
    answers_as_before(db, &ids, "without history").await;
    let status = db.status(ids[0]).await;
    assert!(
        status.response.is_none() && status.worker.is_none() && status.finished_at.is_some(),
        "{status:?}"
    );
    assert_eq!((status.state, status.attempts, status.response_status), (State::Succeeded, 1, Some(200)));
    assert!(db.log(ids[0]).await.is_empty());
    assert_eq!(drop_all(db, Step::Keys).await, 8);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.outcomes").await, 0);
    for request in requests("k0").into_iter().take(1) {
        let again = db.sql.enqueue(request).await.expect("the key is free");
        assert!(matches!(again, Enqueued::Inserted(_)), "a new effect, as documented: {again:?}");
    }
}

const UNFINISHED: [State; 5] =
    [State::Scheduled, State::Ready, State::InFlight, State::Retrying, State::InDoubt];
pub(super) const ENDED: [State; 4] = [State::Succeeded, State::Failed, State::Cancelled, State::Expired];

/// An effect in `state` with a payload, at a downstream of its own.
pub(super) async fn in_state(db: &TestDatabase, name: &str, state: State) -> EffectId {
    let stage = Stage::by_key(db, name).await;
    let id = stage.reach(db, "k", state).await;
    let payload = r#"UPDATE aftercommit.effects SET payload = '{"card": "4242"}' WHERE id = "#;
    db.sql.execute(&format!("{payload}{id}")).await;
    id
}

async fn what_has_not_ended_keeps_everything(db: &TestDatabase) {
    for state in UNFINISHED {
        in_state(db, state.as_str(), state).await;
    }
    for state in ENDED {
        in_state(db, state.as_str(), state).await;
    }
    let log = db.sql.number("SELECT count(*) FROM aftercommit.attempts").await;
    for step in Step::OF_EFFECTS {
        assert_eq!(drop_all(db, step).await, 4, "{step:?} takes what has ended");
    }
    let kept = db.sql.number("SELECT count(*) FROM aftercommit.effects WHERE payload IS NOT NULL").await;
    assert_eq!(kept, 5);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 5);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.queue").await, 5);
    // Of the failed and the expired one; the other attempts are of effects that have not ended.
    let left = db.sql.number("SELECT count(*) FROM aftercommit.attempts").await;
    assert!(left >= 2 && left < log, "{left} of {log}");
}

async fn what_ended_lately_keeps_everything(db: &TestDatabase) {
    let (old, young) = (in_state(db, "a", State::Succeeded).await, in_state(db, "b", State::Succeeded).await);
    db.shift_back("outcomes", "finished_at", old, HOUR * 2).await;
    let retention = Retention { payloads: HOUR, history: HOUR, keys: HOUR, ..Retention::default() };
    for step in Step::OF_EFFECTS {
        assert_eq!(db.store.due(step, &retention).await.expect("due is counted"), 1, "{step:?}");
    }
    for step in Step::OF_EFFECTS {
        let batch = db.store.drop_batch(step, HOUR, 100).await.expect("the step runs");
        assert_eq!((batch.effects, batch.more), (1, false), "{step:?}");
        assert_eq!(db.store.due(step, &retention).await.expect("due is counted"), 0, "{step:?}");
    }
    assert!(db.store.effect(old).await.expect("readable").is_none());
    let status = db.status(young).await;
    assert!(status.response.is_some() && !status.payload_dropped, "{status:?}");
}

async fn history_may_go_before_the_payload(db: &TestDatabase) {
    let id = in_state(db, "pay", State::Failed).await;
    assert_eq!(drop_all(db, Step::History).await, 1);
    let status = db.status(id).await;
    assert!(db.log(id).await.is_empty() && status.log_dropped && !status.payload_dropped, "{status:?}");
    // The log of what may still be sent holds every call that the downstream saw.
    let refused = db.store.act(id, &Verb::Retry, &person(), None).await.expect("acting works");
    let Acted::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal, Refusal::LogDropped);
    assert!(refusal.to_string().contains("new key"), "it says what to do: {refusal}");
    assert_eq!(drop_all(db, Step::Keys).await, 0, "a key goes after everything else");
    assert_eq!(drop_all(db, Step::Payloads).await, 1);
    assert!(db.status(id).await.payload_dropped);
    assert_eq!(drop_all(db, Step::Payloads).await + drop_all(db, Step::History).await, 0);
    assert_eq!(drop_all(db, Step::Keys).await, 1);
}

async fn a_dropped_payload_is_not_sent_again(db: &TestDatabase) {
    let id = in_state(db, "pay", State::Failed).await;
    let bare = Stage::by_key(db, "bare").await;
    let without = bare.failed(db, "k").await;
    drop_all(db, Step::Payloads).await;
    let refused = db.store.act(id, &Verb::Retry, &person(), None).await.expect("acting works");
    let Acted::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal, Refusal::PayloadDropped);
    assert!(refusal.to_string().contains("new key"), "it says what to do: {refusal}");
    assert_eq!(db.state(id).await, State::Failed);
    // Where nothing was dropped, the request is what it was.
    let retried = db.store.act(without, &Verb::Retry, &person(), None).await.expect("acting works");
    assert!(matches!(retried, Acted::Done(..)), "{retried:?}");
    assert_eq!(bare.worker.claim_one("bare").await.effect.id, without);
}

async fn a_redacted_effect_keeps_key_and_outcome(db: &TestDatabase) {
    for state in ENDED {
        let id = in_state(db, state.as_str(), state).await;
        let before = db.status(id).await;
        let done = db.store.act(id, &Verb::Redact, &person(), None).await.expect("acting works");
        let Acted::Done(_, after) = done else { panic!("{state}: {done:?}") };
        assert_eq!(
            (after.state, after.finished_at, after.attempts),
            (state, before.finished_at, before.attempts)
        );
        assert!(after.payload_dropped && after.response.is_none(), "{after:?}");
        let words = db.log(id).await.into_iter().filter_map(|row| row.error);
        assert!(words.chain(after.last_error.clone()).all(|word| word == "redacted"), "{state}");
        let audit = db.audit(Some(id), 1).await;
        assert_eq!((audit[0].verb.as_str(), audit[0].reason.is_some()), ("redact", true));
        let same =
            NewEffect::to(state.as_str()).key(key("k")).json_text(r#"{"card": "4242"}"#).expect("JSON");
        assert!(matches!(db.sql.enqueue(same).await, Ok(Enqueued::Ended(_))), "{state}: the same request");
        let other =
            NewEffect::to(state.as_str()).key(key("k")).json_text(r#"{"card": "4243"}"#).expect("JSON");
        assert!(matches!(db.sql.enqueue(other).await, Err(EnqueueError::OtherRequest { .. })), "{state}");
    }
    let left = "SELECT count(*) FROM aftercommit.effects WHERE payload IS NOT NULL";
    assert_eq!(db.sql.number(left).await, 0);
    assert_eq!(drop_all(db, Step::Payloads).await, 0, "nothing is left to drop");
    assert_eq!(drop_all(db, Step::History).await, 4);
    assert_eq!(drop_all(db, Step::Keys).await, 4);
}

async fn what_may_still_be_sent_is_not_redacted(db: &TestDatabase) {
    for state in UNFINISHED {
        let id = in_state(db, state.as_str(), state).await;
        let refused = db.store.act(id, &Verb::Redact, &person(), None).await.expect("acting works");
        assert!(matches!(&refused, Acted::Refused(Refusal::State { .. })), "{state}: {refused:?}");
        assert!(!db.status(id).await.payload_dropped, "{state}");
    }
}

async fn a_late_answer_for_a_purged_effect_changes_nothing(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    stage.done(Settling::of(&claim).fail("card declined")).await;
    let outcome = Outcome::new(Finding::Applied, Phase::Done, "");
    let answer = LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: Settling::of(&claim).attempt(&outcome),
        begun: true,
        response: None,
    };
    drop_all(db, Step::Payloads).await;
    drop_all(db, Step::History).await;
    let late = db.store.late(std::slice::from_ref(&answer)).await.expect("it is heard");
    assert_eq!(late, [Late::Contradicts], "while there is an outcome it is compared with it");
    assert_eq!(db.log(claim.effect.id).await.len(), 1);
    drop_all(db, Step::Keys).await;
    let late = db.store.late(&[answer]).await.expect("it is heard");
    assert_eq!(late, [Late::Logged]);
    for table in ["effects", "queue", "outcomes", "attempts"] {
        assert_eq!(db.sql.number(&format!("SELECT count(*) FROM aftercommit.{table}")).await, 0, "{table}");
    }
    // Nor does a settle that comes years late.
    assert_eq!(stage.worker.settle(Settling::of(&claim).succeed()).await, aftercommit::store::Settled::Lost);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.attempts").await, 0);
}

async fn counts_and_audit_follow_the_effects(db: &TestDatabase) {
    for state in ENDED {
        in_state(db, "pay", state).await;
        db.sql.execute("UPDATE aftercommit.effects SET idempotency_key = 'x' || id").await;
    }
    let kept = in_state(db, "doubt", State::InDoubt).await;
    db.store.act(kept, &Verb::Redact, &person(), None).await.expect("acting works");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.audit").await, 1, "the cancel");
    for step in Step::OF_EFFECTS {
        drop_all(db, step).await;
    }
    db.store.maintain().await.expect("counters are folded");
    let counts = db.store.counts().await.expect("counts are readable");
    let counted: Vec<_> = counts.iter().filter(|count| count.effects > 0).map(|count| count.state).collect();
    assert_eq!(counted, [State::InDoubt], "{counts:?}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.audit").await, 0, "it went with its effect");
    db.sql
        .execute(&format!(
            "INSERT INTO aftercommit.audit (at, who, verb) VALUES ({}, 'ann', 'pause')",
            db.engine.before(db.engine.now(), HOUR * 25)
        ))
        .await;
    let young = format!(
        "INSERT INTO aftercommit.audit (at, who, verb) VALUES ({}, 'ann', 'resume')",
        db.engine.now()
    );
    db.sql.execute(&young).await;
    assert_eq!(db.store.forget_unused(HOUR * 26).await.expect("it runs"), 0);
    assert_eq!(
        db.store.forget_unused(HOUR / 2).await.expect("it runs"),
        1,
        "what was done to no effect goes by age, but not what was done today"
    );
}

async fn terms_that_nothing_refers_to_are_forgotten(db: &TestDatabase) {
    let deploy = async |worker: &str, request: u8| {
        let mut downstream = registered("pay", key_terms());
        downstream.operations[0].2 = [request; 32];
        Worker::start(&db.store, worker, vec![downstream]).await
    };
    let numbers = async || db.sql.number("SELECT count(*) FROM aftercommit.terms").await;
    let old = deploy("w1", 1).await;
    db.insert("pay", "doubt").await;
    let claim = old.claim_one("pay").await;
    old.settle(Settling::of(&claim).park("no answer")).await;
    for request in 2..6 {
        deploy("w1", request).await;
    }
    assert_eq!(numbers().await, 5);
    db.store.forget_unused(Duration::ZERO).await.expect("it runs");
    assert_eq!(numbers().await, 5, "a worker that started under them is still there");
    db.store.leave("w1").await.expect("it leaves");
    db.store.forget_unused(HOUR).await.expect("it runs");
    assert_eq!(numbers().await, 5, "they were retired a moment ago");
    assert_eq!(db.store.forget_unused(Duration::ZERO).await.expect("it runs"), 3);
    let left = "SELECT count(*) FROM aftercommit.queue q JOIN aftercommit.terms t ON t.id = q.terms";
    assert_eq!((numbers().await, db.sql.number(left).await), (2, 1), "today's, and what the doubt is about");
    let found = "SELECT count(*) FROM aftercommit.terms WHERE used_at IS NOT NULL";
    assert_eq!(db.sql.number(found).await, 1, "the queue was looked through for it, and is not again today");
    db.sql.execute("UPDATE aftercommit.queue SET terms = NULL").await;
    assert_eq!(db.store.forget_unused(Duration::ZERO).await.expect("it runs"), 0);
    db.sql
        .execute(&format!(
            "UPDATE aftercommit.terms SET used_at = {}",
            db.engine.before("used_at", HOUR * 25)
        ))
        .await;
    assert_eq!(db.store.forget_unused(Duration::ZERO).await.expect("it runs"), 1);
    // A configuration that comes back is registered as if it were new.
    deploy("w2", 3).await;
    assert_eq!(numbers().await, 2);
}
