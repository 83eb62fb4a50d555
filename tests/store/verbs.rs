//! Defends: a person's verb does what it says in the states it takes, once, audited, and nothing in any other.

use std::time::Duration;

use aftercommit::{
    EffectId,
    decision::Resend,
    outcome::Verdict,
    state::State,
    store::{Acted, Settled, Settlement},
    verb::{Actor, Change, Refusal, Seen, Verb},
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_every_way, registered};

on_every_way! {
    each_verb_takes_its_states_and_no_other,
    an_uncertain_effect_is_never_cancelled,
    a_stale_look_is_refused,
    verbs_that_change_the_outcome_need_a_reason,
    a_request_that_may_still_travel_is_waited_for,
    a_resend_is_one_attempt,
    a_changed_request_is_not_resent,
    a_retried_failure_starts_anew_and_keeps_its_log,
    a_stored_refusal_is_not_retried,
    a_resolved_effect_carries_the_answer_given,
    a_cancel_request_outlives_its_claim,
    an_unknown_effect_is_not_found,
}

async fn act(db: &TestDatabase, id: EffectId, verb: &Verb) -> Acted {
    db.store.act(id, verb, &person(), None).await.expect("acting works")
}

async fn done(db: &TestDatabase, id: EffectId, verb: &Verb) -> Change {
    match act(db, id, verb).await {
        Acted::Done(change, status) => {
            assert_eq!(status.id, id);
            change
        }
        refused @ (Acted::Refused(_) | Acted::NotFound) => panic!("{verb:?} of effect {id}: {refused:?}"),
    }
}

async fn refusal(db: &TestDatabase, id: EffectId, verb: &Verb) -> Refusal {
    match act(db, id, verb).await {
        Acted::Refused(refusal) => refusal,
        other @ (Acted::Done(..) | Acted::NotFound) => {
            panic!("{verb:?} of effect {id} must be refused: {other:?}")
        }
    }
}

const STATES: [State; 9] = [
    State::Scheduled,
    State::Ready,
    State::InFlight,
    State::Retrying,
    State::InDoubt,
    State::Succeeded,
    State::Failed,
    State::Cancelled,
    State::Expired,
];

/// What a verb leads to; `None` where it is refused.
fn leads_to(verb: &Verb, state: State) -> Option<State> {
    match (verb, state) {
        (Verb::Retry, State::Scheduled | State::Retrying | State::Failed)
        | (Verb::Resend, State::InDoubt) => Some(State::Ready),
        (Verb::Cancel, State::Scheduled | State::Ready | State::Retrying) => Some(State::Cancelled),
        (Verb::Cancel, State::InFlight) => Some(State::InFlight),
        (Verb::ResolveApplied { .. }, State::InDoubt) => Some(State::Succeeded),
        (Verb::ResolveNotApplied, State::InDoubt) => Some(State::Failed),
        (Verb::Redact, state) if state.is_terminal() => Some(state),
        _ => None,
    }
}

/// LEASE-11: no verb but a cancel takes what is in flight.
async fn each_verb_takes_its_states_and_no_other(db: &TestDatabase) {
    let verbs = [
        Verb::Retry,
        Verb::Resend,
        Verb::Cancel,
        Verb::ResolveApplied { response: None },
        Verb::ResolveNotApplied,
        Verb::Redact,
    ];
    for verb in &verbs {
        for state in STATES {
            let case = format!("{} of {state}", verb.as_str().replace(' ', "-"));
            let stage = Stage::by_key(db, &case.replace(' ', "-")).await;
            let id = stage.reach(db, "k", state).await;
            let before = db.status(id).await;
            let acted = act(db, id, verb).await;
            let after = db.status(id).await;
            let audit = db.audit(Some(id), 10).await;
            let audit: Vec<_> = audit
                .iter()
                .filter(|row| state != State::Cancelled || row.from_state.as_deref() != Some("ready"))
                .collect();
            match (leads_to(verb, state), acted) {
                (Some(to), Acted::Done(_, status)) => {
                    assert_eq!((status.state, after.state), (to, to), "{case}");
                    assert_eq!(audit.len(), 1, "{case}: {audit:?}");
                    assert_eq!(
                        (audit[0].who.as_str(), audit[0].verb.as_str()),
                        ("ann", verb.as_str()),
                        "{case}"
                    );
                    assert_eq!(audit[0].from_state.as_deref(), Some(state.as_str()), "{case}");
                    assert_eq!(audit[0].to_state.as_deref(), Some(to.as_str()), "{case}");
                    assert_eq!(audit[0].reason.as_deref(), Some("the vendor said so"), "{case}");
                    if state != State::InFlight {
                        assert!(after.token > before.token, "{case} draws a new token");
                    }
                }
                (None, Acted::Refused(Refusal::State { state: found, .. })) => {
                    assert_eq!((found, after.state, after.token), (state, state, before.token), "{case}");
                    assert!(audit.is_empty(), "{case} is refused and not audited: {audit:?}");
                }
                (expected, acted) => panic!("{case}: expected {expected:?}, got {acted:?}"),
            }
        }
    }
}

async fn an_uncertain_effect_is_never_cancelled(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    stage.done(Settling::of(&claim).retry_unknown(in_an_hour(db).await)).await;
    let change = done(db, claim.effect.id, &Verb::Cancel).await;
    assert!(matches!(change, Change::Park(_)), "{change:?}");
    let status = db.status(claim.effect.id).await;
    assert_eq!(status.state, State::InDoubt);
    assert!(status.last_error.is_some_and(|why| why.contains("cancelled while its outcome was unknown")));
}

/// Trap T8.
async fn a_stale_look_is_refused(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k").await;
    let token = db.status(id).await.token;
    let stale = [Seen { state: State::InDoubt, token: token - 1 }, Seen { state: State::Retrying, token }];
    for seen in stale {
        let acted = db.store.act(id, &Verb::Resend, &person(), Some(seen)).await.expect("acting works");
        assert!(
            matches!(acted, Acted::Refused(Refusal::Stale { state: State::InDoubt, token: now }) if now == token),
            "{acted:?}"
        );
    }
    // Two browsers act on the same look: the second is refused.
    let seen = Some(Seen { state: State::InDoubt, token });
    let first = db.store.act(id, &Verb::ResolveNotApplied, &person(), seen).await.expect("acting works");
    assert!(matches!(first, Acted::Done(..)), "{first:?}");
    let second = db.store.act(id, &Verb::ResolveApplied { response: None }, &person(), seen).await;
    assert!(matches!(second, Ok(Acted::Refused(Refusal::Stale { state: State::Failed, .. }))), "{second:?}");
    assert_eq!(db.audit(Some(id), 10).await.len(), 1);
}

async fn verbs_that_change_the_outcome_need_a_reason(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k").await;
    for reason in [None, Some("  ".to_owned())] {
        let silent = Actor { who: "ann".to_owned(), reason, ..Actor::default() };
        for verb in [Verb::ResolveNotApplied, Verb::ResolveApplied { response: None }] {
            let acted = db.store.act(id, &verb, &silent, None).await.expect("acting works");
            assert!(matches!(acted, Acted::Refused(Refusal::NeedsReason { .. })), "{acted:?}");
        }
    }
    let silent = Actor { who: "ann".to_owned(), reason: None, ..Actor::default() };
    let scheduled = stage.reach(db, "k2", State::Scheduled).await;
    let acted = db.store.act(scheduled, &Verb::Cancel, &silent, None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
}

async fn a_request_that_may_still_travel_is_waited_for(db: &TestDatabase) {
    let stage = Stage::hold(db, "mail").await;
    let claim = stage.claimed(db, "k").await;
    let id = claim.effect.id;
    let (now, quiet) = (db.now().await, in_an_hour(db).await);
    stage.done(Settlement { quiet_at: Some(quiet), ..Settling::of(&claim).retry_unknown(now) }).await;
    let again = stage.worker.claim_one("mail").await;
    stage.done(Settlement { quiet_at: Some(now), ..Settling::of(&again).park("no answer") }).await;
    for verb in [Verb::Resend, Verb::ResolveNotApplied, Verb::ResolveApplied { response: None }] {
        let refused = refusal(db, id, &verb).await;
        assert_eq!(refused, Refusal::StillTravelling { until: quiet });
    }
    db.shift_back("queue", "quiet_at", id, HOUR * 2).await;
    assert!(matches!(done(db, id, &Verb::Resend).await, Change::OneResend { .. }));
}

async fn a_resend_is_one_attempt(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let id = claim.effect.id;
    let sent = claim.history.first_sent_at;
    // Its safe time has passed, so only a person may send it again.
    let passed = Some(db.now().await);
    stage.done(Settlement { sweep_at: passed, ..Settling::of(&claim).park("no answer") }).await;
    assert!(matches!(done(db, id, &Verb::Resend).await, Change::OneResend { .. }));
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty(), "the sweep leaves it alone");
    let resent = stage.worker.claim_one("pay").await;
    assert!(
        resent.history.resend == Some(Resend::Confirmed) && resent.history.uncertain,
        "{:?}",
        resent.history
    );
    assert_eq!(resent.history.first_sent_at, sent, "it does not move safe_until");
    assert_eq!((resent.number, resent.history.tries), (2, 2));
    stage.done(Settling::of(&resent).park("no answer again")).await;
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "one attempt, not more");
    assert!(matches!(done(db, id, &Verb::Resend).await, Change::OneResend { .. }));
    let again = stage.worker.claim_one("pay").await;
    assert_eq!(again.history.resend, Some(Resend::Confirmed));
    stage.done(Settling::of(&again).succeed()).await;
    assert_eq!(db.log(id).await.len(), 3);
}

async fn a_changed_request_is_not_resent(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k1").await;
    let mut changed = registered("pay", key_terms());
    changed.operations[0].2 = [8; 32];
    let deployed = Worker::start(&db.store, "w2", vec![changed]).await;
    assert_eq!(refusal(db, id, &Verb::Resend).await, Refusal::RequestChanged);
    // A certain effect is pinned anew.
    db.insert("pay", "k2").await;
    let claim = deployed.claim_one("pay").await;
    assert_eq!(claim.pinned, Some([8; 32]));
    deployed.settle(Settling::of(&claim).retry_unknown(db.now().await)).await;
    // An uncertain one keeps what it was sent with, whoever claims it.
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let again = stage.worker.claim_one("pay").await;
    assert_eq!((again.effect.id, again.pinned), (claim.effect.id, Some([8; 32])));
    // The configuration of the parked one is back.
    assert!(matches!(done(db, id, &Verb::Resend).await, Change::OneResend { .. }));
}

async fn a_retried_failure_starts_anew_and_keeps_its_log(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    assert_eq!(done(db, id, &Verb::Retry).await, Change::NewHistory);
    let status = db.status(id).await;
    assert_eq!((status.state, status.finished_at, status.first_sent_at), (State::Ready, None, None));
    assert_eq!(status.attempts, 1, "the log keeps the first");
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.effect.key, "k", "the same key");
    assert_eq!((claim.number, claim.history.attempts, claim.history.tries), (2, 1, 1), "a fresh budget");
    assert!(claim.history.sent_before && !claim.history.uncertain, "{:?}", claim.history);
    stage.done(Settling::of(&claim).succeed()).await;
    let log = db.log(id).await;
    let rows: Vec<_> = log.iter().map(|row| (row.attempt, row.outcome)).collect();
    assert_eq!(rows, [(1, Verdict::Rejected), (2, Verdict::Applied)]);
    let counts = db.store.counts().await.expect("counts are readable");
    assert!(counts.iter().all(|count| count.state == State::Succeeded || count.effects == 0), "{counts:?}");
}

async fn a_stored_refusal_is_not_retried(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    stage.done(Settlement { refusal_stored: true, ..Settling::of(&claim).fail("card declined") }).await;
    assert_eq!(refusal(db, claim.effect.id, &Verb::Retry).await, Refusal::RefusalStored);
    assert_eq!(db.state(claim.effect.id).await, State::Failed);
}

async fn a_resolved_effect_carries_the_answer_given(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k").await;
    let given = r#"{"id": "ch_1"}"#;
    let verb = Verb::ResolveApplied { response: Some(given.to_owned()) };
    assert_eq!(done(db, id, &verb).await, Change::End(State::Succeeded));
    let status = db.status(id).await;
    assert_eq!(status.response.as_ref().map(|json| json.get()), Some(given));
    assert_eq!(status.attempts, 1, "no attempt was made");
    assert_eq!(db.log(id).await.len(), 1);
    let unresolved = stage.parked(db, "k2").await;
    assert_eq!(done(db, unresolved, &Verb::ResolveNotApplied).await, Change::End(State::Failed));
    assert_eq!(done(db, unresolved, &Verb::Retry).await, Change::NewHistory, "nothing is sent until then");
}

/// CRASH-02: the store keeps the request for the sweep.
async fn a_cancel_request_outlives_its_claim(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    assert_eq!(done(db, claim.effect.id, &Verb::Cancel).await, Change::RequestCancel);
    let held = db.store.renew("w1", &[(claim.token(), HOUR)]).await.expect("renewing works");
    assert_eq!(held, [claim.token()], "a request takes no claim away");
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    assert!(expired.history.cancel_requested, "the sweep knows of it: {:?}", expired.history);
    let settling = Settling::of_expired(&expired);
    let swept = db.store.sweep_expired(&[settling.park("cancelled while its outcome was unknown")]).await;
    assert_eq!(swept.expect("the sweep writes"), [Settled::Done]);
    assert_eq!(db.state(claim.effect.id).await, State::InDoubt);
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "never claimed again");
}

async fn an_unknown_effect_is_not_found(db: &TestDatabase) {
    for verb in [Verb::Retry, Verb::Cancel, Verb::ResolveNotApplied] {
        let acted = act(db, EffectId::new(4711), &verb).await;
        assert!(matches!(acted, Acted::NotFound), "{acted:?}");
    }
    assert!(db.store.effect(EffectId::new(4711)).await.expect("readable").is_none());
    assert!(db.audit(None, 10).await.is_empty());
    tokio::time::timeout(Duration::from_secs(1), db.store.attempts(EffectId::new(4711)))
        .await
        .expect("at once")
        .expect("no attempts, no error");
}
