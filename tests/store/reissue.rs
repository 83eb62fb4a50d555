//! Defends: a reissue is the same request with a new key, once; the old effect is over, whoever still asks or answers about it.

use std::time::Duration;

use aftercommit::{
    EffectId,
    contract::KeyRule,
    decision::Decision,
    key::derive,
    outcome::Verdict,
    state::State,
    store::{Acted, Content, Intent, Late, LateAnswer, Look, Next, ProbeWant, Settled, Status},
    verb::{Change, Refusal, Resolved, Verb},
};

use super::stage::{HOUR, Stage, person};
use crate::support::{
    Settling, TestDatabase, Worker, answer, key_terms, lookup_terms, on_every_way, registered,
};

on_every_way! {
    a_reissue_is_the_same_request_with_a_new_key,
    what_is_in_doubt_is_resolved_in_the_same_action,
    what_was_superseded_stays_as_it_is,
    a_probe_of_what_was_superseded_changes_nothing,
    a_late_success_of_what_was_superseded_is_loud,
    a_reissue_needs_the_payload,
    a_reissue_that_its_downstream_cannot_take_is_refused_in_words,
    keys_count_on_where_one_is_taken,
    an_expiry_that_has_passed_does_not_stop_a_reissue,
    whoever_reissues_first_is_the_only_one,
}

const REISSUE: Verb = Verb::Reissue { resolve: None };

async fn act(db: &TestDatabase, id: EffectId, verb: &Verb) -> Acted {
    db.store.act(id, verb, &person(), None).await.expect("acting works")
}

/// Reissues; the number of the new effect.
async fn reissued(db: &TestDatabase, id: EffectId, verb: &Verb) -> EffectId {
    let acted = act(db, id, verb).await;
    let Acted::Done(Change::Reissue(_), status) = &acted else {
        panic!("{verb:?} of effect {id}: {acted:?}");
    };
    assert_eq!(status.id, id);
    status.superseded_by.expect("it says which effect took its place")
}

async fn refusal(db: &TestDatabase, id: EffectId, verb: &Verb) -> Refusal {
    match act(db, id, verb).await {
        Acted::Refused(refusal) => refusal,
        other @ (Acted::Done(..) | Acted::NotFound) => panic!("{verb:?} of effect {id}: {other:?}"),
    }
}

async fn effects(db: &TestDatabase) -> i64 {
    db.sql.number("SELECT count(*) FROM aftercommit.effects").await
}

async fn intent(db: &TestDatabase, id: EffectId) -> Intent {
    db.store.intent(id, Look::Whole).await.expect("readable").expect("it is there")
}

/// An effect with everything that one can have, in a state in which it has ended.
async fn ended(db: &TestDatabase, stage: &Stage, key: &str, state: State) -> EffectId {
    let trace = "'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'";
    let columns = [
        ("payload", "'{\"amount\": 1500.00}'"),
        ("headers", "'{\"X-Tenant\": \"blue\"}'"),
        ("target", "'/v1/charges'"),
        ("metadata", "'{\"order\": \"A-17\"}'"),
        ("trace_context", trace),
    ];
    let id = db.insert_with(&stage.downstream, key, &columns).await;
    db.sql.execute(&format!("UPDATE aftercommit.effects SET request_id = 7 WHERE id = {id}")).await;
    if state == State::Cancelled {
        assert!(matches!(act(db, id, &Verb::Cancel).await, Acted::Done(..)));
        return id;
    }
    let claim = stage.worker.claim_one(&stage.downstream).await;
    let settling = Settling::of(&claim);
    stage
        .done(if state == State::Succeeded {
            settling.succeed()
        } else if state == State::Failed {
            settling.fail("card declined")
        } else {
            assert_eq!(state, State::Expired, "an end that is made here");
            settling.unsent(Decision::Expire)
        })
        .await;
    id
}

async fn a_reissue_is_the_same_request_with_a_new_key(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for state in [State::Succeeded, State::Failed, State::Cancelled, State::Expired] {
        let old = ended(db, &stage, &format!("order-{state}"), state).await;
        let before = db.status(old).await;
        let audited = db.audit(Some(old), 10).await.len();
        let new = reissued(db, old, &REISSUE).await;
        let (after, fresh) = (db.status(old).await, db.status(new).await);
        assert_eq!((after.state, after.superseded_by), (state, Some(new)));
        assert!(after.token > before.token, "who looked before is told that it changed");
        assert_eq!(fresh.state, State::Ready);
        assert_eq!(fresh.idempotency_key, derive(&before.idempotency_key, "reissue", "1").as_str());
        assert_eq!((&fresh.downstream, &fresh.operation), (&before.downstream, &before.operation));
        assert_eq!((fresh.attempts, fresh.uncertain, fresh.superseded_by), (0, false, None));
        let metadata = |status: &Status| status.metadata.as_ref().map(|json| json.get().to_owned());
        assert_eq!(metadata(&fresh), metadata(&before));
        assert_eq!(
            intent(db, new).await,
            intent(db, old).await,
            "content, headers, target, trace, who and for what"
        );
        assert_eq!(intent(db, new).await.request_id, Some(7));
        let claim = stage.worker.claim_one("pay").await;
        assert_eq!((claim.effect.id, claim.effect.key.as_str()), (new, fresh.idempotency_key.as_str()));
        assert_eq!(claim.effect.payload.as_deref(), Some("{\"amount\": 1500.00}"));
        stage.done(Settling::of(&claim).succeed()).await;
        let audit = db.audit(Some(old), 10).await;
        assert_eq!(audit.len(), audited + 1, "{audit:?}");
        assert_eq!((audit[0].verb.as_str(), audit[0].downstream.as_deref()), ("reissue", Some("pay")));
        assert_eq!(audit[0].from_state, audit[0].to_state, "{audit:?}");
    }
}

async fn what_is_in_doubt_is_resolved_in_the_same_action(db: &TestDatabase) {
    let stage = Stage::hold(db, "pay").await;
    for (resolved, state) in [(Resolved::Applied, State::Succeeded), (Resolved::NotApplied, State::Failed)] {
        let old = stage.parked(db, &format!("to-{state}")).await;
        let verb = Verb::Reissue { resolve: Some(resolved) };
        assert!(matches!(refusal(db, old, &REISSUE).await, Refusal::State { state: State::InDoubt, .. }));
        let until = db.engine.after(db.engine.now(), HOUR);
        db.sql.execute(&format!("UPDATE aftercommit.queue SET quiet_at = {until} WHERE id = {old}")).await;
        let written = effects(db).await;
        assert!(matches!(refusal(db, old, &verb).await, Refusal::StillTravelling { .. }));
        assert!(db.status(old).await.quiet_at.is_some(), "people see until when");
        assert_eq!((effects(db).await, db.state(old).await), (written, State::InDoubt));
        db.sql.execute(&format!("UPDATE aftercommit.queue SET quiet_at = NULL WHERE id = {old}")).await;
        let new = reissued(db, old, &verb).await;
        assert_eq!((db.state(old).await, db.state(new).await), (state, State::Ready));
        let audit = db.audit(Some(old), 10).await;
        assert_eq!(audit.len(), 1, "one action: {audit:?}");
        assert_eq!(audit[0].from_state.as_deref(), Some("in_doubt"));
        assert_eq!(audit[0].to_state.as_deref(), Some(state.as_str()));
        let claim = stage.worker.claim_one("pay").await;
        assert_eq!(claim.effect.id, new);
        stage.done(Settling::of(&claim).succeed()).await;
    }
    let counts = db.store.counts().await.expect("readable");
    let of = |state| counts.iter().find(|count| count.state == state).map(|count| count.effects);
    assert_eq!((of(State::Succeeded), of(State::Failed)), (Some(3), Some(1)), "{counts:?}");
}

async fn what_was_superseded_stays_as_it_is(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let failed = stage.failed(db, "failed").await;
    let doubtful = stage.parked(db, "doubtful").await;
    reissued(db, failed, &REISSUE).await;
    reissued(db, doubtful, &Verb::Reissue { resolve: Some(Resolved::NotApplied) }).await;
    let before = (db.status(failed).await.token, db.status(doubtful).await.token, effects(db).await);
    for id in [failed, doubtful] {
        for verb in [Verb::Retry, REISSUE] {
            assert_eq!(refusal(db, id, &verb).await, Refusal::Superseded, "{verb:?}");
        }
        for verb in [
            Verb::Resend,
            Verb::ResolveApplied { response: None },
            Verb::ResolveNotApplied,
            Verb::Reissue { resolve: Some(Resolved::NotApplied) },
        ] {
            assert!(matches!(refusal(db, id, &verb).await, Refusal::State { .. }), "{verb:?}");
        }
        assert_eq!(db.state(id).await, State::Failed);
    }
    let after = (db.status(failed).await.token, db.status(doubtful).await.token, effects(db).await);
    assert_eq!(after, before, "nothing of them changed");
    let claimed: Vec<EffectId> =
        stage.worker.claim("pay", 9).await.iter().map(|claim| claim.effect.id).collect();
    assert!(claimed.len() == 2 && !claimed.contains(&failed) && !claimed.contains(&doubtful), "{claimed:?}");
}

async fn a_probe_of_what_was_superseded_changes_nothing(db: &TestDatabase) {
    let stage = Stage::at(db, "crm", lookup_terms()).await;
    let claim = stage.claimed(db, "k").await;
    let id = claim.effect.id;
    stage.done(Settling::of(&claim).probe_at(db.now().await, "no answer")).await;
    let want = ProbeWant {
        downstream: "crm".into(),
        slots: 1,
        lease: Duration::from_secs(30),
        origin: None,
        trial: false,
    };
    let probe = db.store.claim_probes(&[want]).await.expect("probes are claimed").remove(0);
    let new = reissued(db, id, &Verb::Reissue { resolve: Some(Resolved::NotApplied) }).await;
    let found = probe.settlement(Next::Decided(Decision::Succeed));
    assert_eq!(db.store.settle_probe(&found).await.expect("it is answered"), Settled::Lost);
    let status = db.status(id).await;
    assert_eq!((status.state, status.superseded_by), (State::Failed, Some(new)));
}

/// "Counted as a possible duplicate" is what the engine makes of `Late::Contradicts`.
async fn a_late_success_of_what_was_superseded_is_loud(db: &TestDatabase) {
    let stage = Stage::hold(db, "pay").await;
    for resolved in [Resolved::Applied, Resolved::NotApplied] {
        let claim = stage.claimed(db, &format!("{resolved:?}")).await;
        let id = claim.effect.id;
        db.end_lease(claim.token()).await;
        let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
        let parked = Settling::of_expired(&expired).park("nobody knows");
        assert_eq!(db.store.sweep_expired(&[parked]).await.expect("the sweep writes"), [Settled::Done]);
        db.sql.execute("UPDATE aftercommit.queue SET quiet_at = NULL").await;
        let new = reissued(db, id, &Verb::Reissue { resolve: Some(resolved) }).await;
        let outcome = answer(200, "{}");
        // The worker that was only slow: its settle is refused, and it reports what it knows.
        let settled = stage.worker.settle(Settling::of(&claim).succeed()).await;
        assert_eq!(settled, Settled::Lost);
        let before = db.status(id).await;
        let late = LateAnswer {
            id,
            token: claim.token(),
            attempt: Settling::of(&claim).attempt(&outcome),
            response: outcome.response.clone(),
            begun: true,
        };
        assert_eq!(db.store.late(&[late]).await.expect("it is heard"), [Late::Contradicts]);
        let after = db.status(id).await;
        assert_eq!((after.state, after.token), (resolved.state(), before.token));
        assert_eq!(after.superseded_by, Some(new));
        let log = db.log(id).await;
        assert!(log.iter().any(|row| row.late && row.outcome == Verdict::Applied), "{log:?}");
        assert_eq!(db.state(new).await, State::Ready, "the new one is on its way all the same");
        let next = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&next).succeed()).await;
    }
}

async fn a_reissue_needs_the_payload(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = ended(db, &stage, "k", State::Failed).await;
    assert!(matches!(act(db, id, &Verb::Redact).await, Acted::Done(..)));
    assert_eq!(refusal(db, id, &REISSUE).await, Refusal::PayloadDropped);
    assert_eq!((effects(db).await, db.status(id).await.superseded_by), (1, None));
    assert_eq!(intent(db, id).await.content, Content::Dropped);
}

async fn a_reissue_that_its_downstream_cannot_take_is_refused_in_words(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    let doubtful = stage.parked(db, "d").await;
    // By now it takes shorter keys than any that is derived.
    let mut narrow = registered("pay", key_terms());
    narrow.key = KeyRule { max_len: 20, ..narrow.key };
    Worker::start(&db.store, "w2", vec![narrow]).await;
    let in_doubt = Verb::Reissue { resolve: Some(Resolved::NotApplied) };
    for (id, verb, state) in [(id, &REISSUE, State::Failed), (doubtful, &in_doubt, State::InDoubt)] {
        let refused = refusal(db, id, verb).await;
        assert!(
            matches!(&refused, Refusal::NotWritten { why } if why.contains("idempotency_key")),
            "{refused:?}"
        );
        let status = db.status(id).await;
        assert_eq!((status.state, status.superseded_by), (state, None));
        assert!(db.audit(Some(id), 10).await.is_empty());
    }
    assert_eq!(effects(db).await, 2);
}

async fn keys_count_on_where_one_is_taken(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let old = stage.failed(db, "order-17").await;
    db.insert("pay", derive("order-17", "reissue", "1").as_str()).await;
    let new = reissued(db, old, &REISSUE).await;
    let key = derive("order-17", "reissue", "2");
    assert_eq!(db.status(new).await.idempotency_key, key.as_str());
    // What was reissued may be reissued: the next key follows from its own.
    let acted = act(db, new, &Verb::Cancel).await;
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let next = reissued(db, new, &REISSUE).await;
    assert_eq!(db.status(next).await.idempotency_key, derive(key.as_str(), "reissue", "1").as_str());
    assert_eq!(db.status(old).await.superseded_by, Some(new), "once");
}

async fn an_expiry_that_has_passed_does_not_stop_a_reissue(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for (key, passed) in [("later", false), ("passed", true)] {
        let at = db.engine.after(db.engine.now(), HOUR);
        let id = db.insert_with("pay", key, &[("expires_at", &at)]).await;
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).fail("declined")).await;
        if passed {
            db.shift_back("effects", "expires_at", id, HOUR * 2).await;
        }
        let expires_at = intent(db, id).await.expires_at;
        let new = reissued(db, id, &REISSUE).await;
        assert_eq!(intent(db, new).await.expires_at, expires_at.filter(|_| !passed), "{key}");
        let claim = stage.worker.claim_one("pay").await;
        assert_eq!(claim.effect.id, new);
        stage.done(Settling::of(&claim).succeed()).await;
    }
}

async fn whoever_reissues_first_is_the_only_one(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let store = db.another_store().await;
        racers.spawn(async move { store.act(id, &REISSUE, &person(), None).await.expect("acting works") });
    }
    let acted = racers.join_all().await;
    let done = acted.iter().filter(|acted| matches!(acted, Acted::Done(..))).count();
    let refused = acted.iter().filter(|acted| matches!(acted, Acted::Refused(Refusal::Superseded))).count();
    assert_eq!((done, refused, effects(db).await), (1, 5, 2), "{acted:?}");
    assert_eq!(db.audit(Some(id), 10).await.len(), 1);
}
