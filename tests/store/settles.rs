//! Defends: a settle is written whole, once, and only by who holds the claim.

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    contract::DEFAULT_MARGIN,
    decision::Decision,
    outcome::Verdict,
    state::State,
    store::{Acted, Settled},
    verb::Verb,
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, WINDOW, Worker, key_terms, on_every_way, registered};

on_every_way! {
    a_first_success_ends_the_effect_with_its_answer_and_log,
    a_refusal_ends_the_effect_as_failed,
    a_retry_of_a_certain_effect_forgets_when_it_was_sent,
    a_retry_of_an_uncertain_effect_keeps_its_safe_time,
    what_is_parked_is_never_claimed,
    an_unsent_effect_may_end_cancelled_or_expired,
    a_claim_given_back_leaves_no_trace,
    a_batch_answers_in_order_and_one_lost_claim_spoils_no_other,
    a_repeated_settle_is_done_and_changes_nothing,
    a_lost_lease_cannot_settle,
    a_cancel_request_sends_a_retry_back_to_the_decision,
    numbers_and_tries_go_on_where_they_were,
    a_bulk_that_gives_back_moves_only_what_is_still_claimed,
}

async fn queue_rows(db: &TestDatabase) -> i64 {
    db.sql.number("SELECT count(*) FROM aftercommit.queue").await
}

async fn a_first_success_ends_the_effect_with_its_answer_and_log(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let settled = db.store.settle(&[Settling::of(&claim).succeed()], &[claim.token()]).await;
    assert_eq!(settled.expect("settling works"), [Settled::Done]);
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.attempts), (State::Succeeded, 1));
    assert_eq!(status.response_status, Some(200));
    assert_eq!(status.response.as_ref().map(|json| json.get()), Some(r#"{"ok":true}"#));
    assert_eq!(status.last_outcome, Some(Verdict::Applied));
    assert_eq!(status.worker.as_deref(), Some("w1"));
    assert!(status.finished_at.is_some() && status.lease_until.is_none(), "{status:?}");
    let log = db.log(claim.effect.id).await;
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!((log[0].attempt, log[0].token, log[0].outcome), (1, claim.token().get(), Verdict::Applied));
    assert_eq!((log[0].phase.as_str(), log[0].response_status, log[0].late), ("done", Some(200), false));
    assert_eq!(log[0].worker.as_deref(), Some("w1"));
    assert_eq!(log[0].started_at, claim.claimed_at);
    assert_eq!(log[0].ended_at, Some(claim.claimed_at.plus(Duration::from_millis(1))));
    assert_eq!(queue_rows(db).await, 0);
    assert!(db.store.expired(10).await.expect("the sweep reads").is_empty());
}

async fn a_refusal_ends_the_effect_as_failed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    let status = db.status(id).await;
    assert_eq!((status.state, status.last_outcome), (State::Failed, Some(Verdict::Rejected)));
    assert!(status.last_error.as_deref().is_some_and(|error| error.contains("card declined")), "{status:?}");
    assert!(status.finished_at.is_some());
    assert_eq!(db.log(id).await.len(), 1);
    assert_eq!(queue_rows(db).await, 0);
}

async fn a_retry_of_a_certain_effect_forgets_when_it_was_sent(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let due = in_an_hour(db).await;
    stage.done(Settling::of(&claim).retry_not_applied(due)).await;
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.due_at), (State::Retrying, Some(due)), "due exactly when decided");
    assert_eq!((status.first_sent_at, status.safe_until), (None, None));
    assert_eq!((status.lease_until, status.last_outcome), (None, Some(Verdict::NotApplied)));
    assert_eq!(status.last_error.as_deref(), Some("connection refused"));
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "not before its time");
    db.shift_back("queue", "due_at", claim.effect.id, HOUR * 2).await;
    let again = stage.worker.claim_one("pay").await;
    assert!(again.token() > claim.token());
    assert!(!again.history.uncertain && !again.history.sent_before, "it never left this process");
    assert!(again.history.first_sent_at.is_some_and(|at| at > claim.claimed_at), "sent anew");
    assert_eq!(again.history.started_at, claim.history.started_at, "age runs from the first claim");
}

async fn a_retry_of_an_uncertain_effect_keeps_its_safe_time(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let sent = claim.history.first_sent_at;
    stage.done(Settling::of(&claim).retry_unknown(in_an_hour(db).await)).await;
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.last_outcome), (State::Retrying, Some(Verdict::Unknown)));
    assert_eq!(status.first_sent_at, sent);
    let safe = sent.map(|sent| sent.plus(WINDOW).minus(DEFAULT_MARGIN));
    assert_eq!(status.safe_until, safe, "first sent + window - margin");
    db.shift_back("queue", "due_at", claim.effect.id, HOUR * 2).await;
    let again = stage.worker.claim_one("pay").await;
    assert!(again.history.uncertain && again.history.sent_before, "{:?}", again.history);
    assert_eq!(again.history.first_sent_at, sent, "a later attempt does not move it");
}

async fn what_is_parked_is_never_claimed(db: &TestDatabase) {
    let stage = Stage::hold(db, "mail").await;
    let parked = stage.parked(db, "k1").await;
    let probed = stage.claimed(db, "k2").await;
    let probe = db.now().await.plus(Duration::from_secs(600));
    stage.done(Settling::of(&probed).probe_at(probe, "asking the vendor")).await;
    let probed = probed.effect.id;
    let status = db.status(parked).await;
    assert_eq!(status.state, State::InDoubt);
    assert!(status.last_error.is_some_and(|why| why.contains("no answer")), "it says why");
    let status = db.status(probed).await;
    assert_eq!((status.state, status.due_at), (State::InDoubt, Some(probe)), "due at its probe");
    for id in [parked, probed] {
        db.shift_back("queue", "due_at", id, HOUR).await;
        assert_eq!(db.state(id).await, State::InDoubt, "the clock resolves nothing");
    }
    assert!(stage.worker.claim("mail", 10).await.is_empty());
}

async fn an_unsent_effect_may_end_cancelled_or_expired(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for (decision, state) in [(Decision::Cancel, State::Cancelled), (Decision::Expire, State::Expired)] {
        let claim = stage.claimed(db, state.as_str()).await;
        stage.done(Settling::of(&claim).unsent(decision)).await;
        let status = db.status(claim.effect.id).await;
        assert_eq!((status.state, status.attempts), (state, 0), "no attempt was made");
        assert!(status.finished_at.is_some());
        assert!(db.log(claim.effect.id).await.is_empty(), "and none is logged");
    }
}

async fn a_claim_given_back_leaves_no_trace(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    stage.done(Settling::of(&claim).give_back()).await;
    let status = db.status(claim.effect.id).await;
    assert_eq!((status.state, status.attempts, status.first_sent_at), (State::Ready, 0, None));
    assert!(db.log(claim.effect.id).await.is_empty());
    let again = stage.worker.claim_one("pay").await;
    assert_eq!((again.number, again.history.attempts, again.history.tries), (1, 1, 1));
    assert!(!again.history.sent_before);
    assert_eq!(again.history.started_at, claim.history.started_at, "the first claim is never taken back");
    // A repetition, as after a COMMIT without an answer, takes nothing back twice.
    let settled = stage.worker.settle(Settling::of(&claim).give_back()).await;
    assert_eq!(settled, Settled::Lost, "the effect is claimed anew");
    assert_eq!(db.status(claim.effect.id).await.attempts, 1);
}

async fn a_batch_answers_in_order_and_one_lost_claim_spoils_no_other(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let lost = stage.claimed(db, "lost").await;
    db.end_lease(lost.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let swept = Settling::of_expired(&expired).retry_unknown(db.now().await);
    db.store.sweep_expired(&[swept]).await.expect("the sweep writes");
    let taken =
        Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await.claim_one("pay").await;
    db.insert_many("pay", "k", 4).await;
    let mut claims = stage.worker.claim("pay", 4).await;
    claims.insert(2, lost);
    let lost = claims[2].effect.id;
    let batch: Vec<_> = claims.iter().map(|claim| Settling::of(claim).succeed()).collect();
    let settled = db.store.settle(&batch, &[]).await.expect("settling works");
    assert_eq!(settled, [Settled::Done, Settled::Done, Settled::Lost, Settled::Done, Settled::Done]);
    assert_eq!(db.state(lost).await, State::InFlight, "the new owner's");
    assert_eq!(db.status(lost).await.token, taken.token().get());
}

/// OUTBOX-07 (b) and trap T7.
async fn a_repeated_settle_is_done_and_changes_nothing(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let later = in_an_hour(db).await;
    type Making = fn(&Settling, Timestamp) -> aftercommit::store::Settlement;
    let kinds: [(&str, State, Making); 4] = [
        ("succeed", State::Succeeded, |settling, _| settling.succeed()),
        ("fail", State::Failed, |settling, _| settling.fail("no")),
        ("retry", State::Retrying, Settling::retry_unknown),
        ("park", State::InDoubt, |settling, _| settling.park("no answer")),
    ];
    for (key, state, make) in kinds {
        let claim = stage.claimed(db, key).await;
        let settlement = make(&Settling::of(&claim), later);
        stage.done(settlement.clone()).await;
        let before = db.status(claim.effect.id).await;
        assert_eq!(stage.worker.settle(settlement).await, Settled::Done, "{key}: found to have been written");
        let after = db.status(claim.effect.id).await;
        assert_eq!(
            (after.state, after.attempts, after.token),
            (state, before.attempts, before.token),
            "{key}"
        );
        assert_eq!(after.finished_at, before.finished_at, "{key}");
        assert_eq!(db.log(claim.effect.id).await.len(), 1, "{key}: logged once");
    }
    let counts = db.store.counts().await.expect("counts are readable");
    assert!(counts.iter().all(|count| count.effects == 1), "{counts:?}");
}

/// LEASE-05 and trap T8.
async fn a_lost_lease_cannot_settle(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let first = stage.claimed(db, "k").await;
    db.end_lease(first.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let now = db.now().await;
    let swept = db.store.sweep_expired(&[Settling::of_expired(&expired).retry_unknown(now)]).await;
    assert_eq!(swept.expect("the sweep writes"), [Settled::Done]);
    let other = Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    let second = other.claim_one("pay").await;
    assert_eq!(second.number, 2, "the swept attempt counted");
    // The old owner ends in a refusal while the new one is at work, and again after it succeeded.
    assert_eq!(stage.worker.settle(Settling::of(&first).fail("gone")).await, Settled::Lost);
    assert_eq!(db.state(first.effect.id).await, State::InFlight);
    assert_eq!(other.settle(Settling::of(&second).succeed()).await, Settled::Done);
    assert_eq!(stage.worker.settle(Settling::of(&first).fail("gone")).await, Settled::Lost);
    assert_eq!(stage.worker.settle(Settling::of(&first).succeed()).await, Settled::Lost);
    assert_eq!(db.state(first.effect.id).await, State::Succeeded);
    assert_eq!(db.log(first.effect.id).await.len(), 2, "the refused settles logged nothing");
}

/// Trap T28.
async fn a_cancel_request_sends_a_retry_back_to_the_decision(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k1").await;
    let acted = db.store.act(claim.effect.id, &Verb::Cancel, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(db.state(claim.effect.id).await, State::InFlight, "only a request");
    let settling = Settling::of(&claim);
    let settled = stage.worker.settle(settling.retry_not_applied(db.now().await)).await;
    assert_eq!(settled, Settled::Reconsider { cancel_requested: true, applied_late: false });
    assert!(db.log(claim.effect.id).await.is_empty(), "nothing was written");
    let again = aftercommit::store::Settlement {
        decision: aftercommit::store::Next::Decided(Decision::Cancel),
        ..settling.retry_not_applied(db.now().await)
    };
    assert_eq!(stage.worker.settle(again).await, Settled::Done);
    assert_eq!(db.state(claim.effect.id).await, State::Cancelled);
    assert_eq!(db.log(claim.effect.id).await.len(), 1, "the attempt was made and is logged");

    let claim = stage.claimed(db, "k2").await;
    let acted = db.store.act(claim.effect.id, &Verb::Cancel, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(stage.worker.settle(Settling::of(&claim).succeed()).await, Settled::Done);
    assert_eq!(db.state(claim.effect.id).await, State::Succeeded, "it was sent, and the state says so");
}

async fn numbers_and_tries_go_on_where_they_were(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut claim = stage.claimed(db, "k").await;
    let id = claim.effect.id;
    let due = db.now().await;
    // Not counted, counted, not counted.
    stage.done(Settling::of(&claim).retry_not_applied(due)).await;
    claim = stage.worker.claim_one("pay").await;
    assert_eq!((claim.number, claim.history.tries, claim.history.attempts), (2, 2, 1));
    stage.done(Settling::of(&claim).retry_unknown(due)).await;
    claim = stage.worker.claim_one("pay").await;
    assert_eq!((claim.number, claim.history.tries, claim.history.attempts), (3, 3, 2));
    stage.done(Settling::of(&claim).succeed()).await;
    let numbers: Vec<u32> = db.log(id).await.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(db.status(id).await.attempts, 3);
}

/// LEASE-15: what a stopping worker gives back in one go, while half of it has ended or belongs to somebody else.
async fn a_bulk_that_gives_back_moves_only_what_is_still_claimed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let ids = db.insert_many("pay", "k", 60).await;
    let claims = stage.worker.claim("pay", 60).await;
    let done: Vec<_> = claims[..20].iter().map(|claim| Settling::of(claim).succeed()).collect();
    db.store.settle(&done, &[]).await.expect("settling works");
    let give_back: Vec<_> = claims.iter().map(|claim| Settling::of(claim).give_back()).collect();
    let settled = db.store.settle(&give_back, &[claims[0].token()]).await.expect("settling works");
    assert!(settled[20..].iter().all(|one| *one == Settled::Done), "{settled:?}");
    for (number, id) in ids.iter().enumerate() {
        let expected = if number < 20 { (State::Succeeded, 1) } else { (State::Ready, 0) };
        let status = db.status(*id).await;
        assert_eq!((status.state, status.attempts), expected, "effect {number}");
    }
    // Once more, as after a lost answer, when another worker has the rest.
    let other = Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    let taken = other.claim("pay", 60).await;
    assert_eq!(taken.len(), 40);
    db.store.settle(&give_back, &[claims[0].token()]).await.expect("settling works");
    for claim in &taken {
        let status = db.status(claim.effect.id).await;
        assert_eq!((status.state, status.token), (State::InFlight, claim.token().get()));
        assert_eq!(other.settle(Settling::of(claim).succeed()).await, Settled::Done);
    }
    for id in ids {
        assert_eq!((db.state(id).await, db.log(id).await.len()), (State::Succeeded, 1));
    }
}
