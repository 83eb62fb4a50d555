//! Defends: of one effect in doubt one probe is heard, the last that was begun; people and late answers come first; what was
//! seen in one doubt does not count in the next.

use std::time::Duration;

use aftercommit::{
    EffectId,
    decision::Decision,
    outcome::Response,
    state::State,
    store::{Acted, DueProbe, Late, LateAnswer, Next, ProbeWant, Settled},
    verb::{Change, Verb},
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, answer, lookup_terms, on_every_database};

on_every_database! {
    a_due_probe_is_claimed_by_one_and_put_off_by_its_lease,
    what_is_not_due_or_waits_for_a_person_is_not_probed,
    a_probe_that_another_took_over_changes_nothing,
    what_a_person_did_meanwhile_stands,
    a_late_success_wins_over_an_open_probe,
    a_late_success_after_probes_saw_it_absent_is_loud,
    a_look_is_remembered_beside_the_reason_for_the_doubt,
    a_probe_that_is_given_back_is_due_at_once,
    a_new_history_begins_certain_under_a_new_token,
    a_success_stores_what_was_found,
    a_new_doubt_begins_without_what_was_seen_in_the_last,
    a_stored_server_error_is_remembered,
    a_cancel_of_an_uncertain_effect_waits_for_a_probe,
}

const LEASE: Duration = Duration::from_secs(30);

async fn stage(db: &TestDatabase) -> Stage {
    Stage::at(db, "pay", lookup_terms()).await
}

/// A new effect in doubt whose probe is due.
async fn doubtful(db: &TestDatabase, stage: &Stage, key: &str) -> EffectId {
    let claim = stage.claimed(db, key).await;
    stage.done(Settling::of(&claim).probe_at(claim.claimed_at, "no answer")).await;
    claim.effect.id
}

fn want(lease: Duration) -> ProbeWant {
    ProbeWant { downstream: "pay".into(), slots: 5, lease, origin: None, trial: false }
}

async fn due(db: &TestDatabase, lease: Duration) -> Vec<DueProbe> {
    let want = want(lease);
    db.store.claim_probes(&[want]).await.expect("probes are claimed")
}

async fn one(db: &TestDatabase, lease: Duration) -> DueProbe {
    let mut due = due(db, lease).await;
    assert_eq!(due.len(), 1, "one probe was expected to be due");
    due.remove(0)
}

async fn settle(db: &TestDatabase, probe: &DueProbe, decision: Decision) -> Settled {
    let settlement = probe.settlement(Next::Decided(decision));
    db.store.settle_probe(&settlement).await.expect("a probe settles")
}

async fn a_due_probe_is_claimed_by_one_and_put_off_by_its_lease(db: &TestDatabase) {
    let stage = stage(db).await;
    let ids = [doubtful(db, &stage, "a").await, doubtful(db, &stage, "b").await];
    assert!(db.store.probe_is_due(&["pay".into()]).await.expect("asked"));
    let other = db.another_store().await;
    let want = [want(LEASE)];
    let (mine, others) = tokio::join!(db.store.claim_probes(&want), other.claim_probes(&want));
    let mut found: Vec<_> = mine.expect("claimed").into_iter().chain(others.expect("claimed")).collect();
    found.sort_by_key(|probe| probe.effect.id);
    assert_eq!(found.iter().map(|probe| probe.effect.id).collect::<Vec<_>>(), ids);
    assert_eq!(found[0].effect.key, "a");
    assert_eq!(found[0].doubt.why, "no answer");
    assert!(found.iter().all(|probe| probe.doubt.made == 0 && probe.doubt.history.uncertain));
    assert!(found.iter().all(|probe| probe.pinned == Some([7; 32])), "what it was sent under");
    assert!(db.status(ids[0]).await.due_at.is_some_and(|at| at > found[0].claimed_at.plus(LEASE / 2)));
    assert!(!db.store.probe_is_due(&["pay".into()]).await.expect("asked"));
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "it is never claimed for sending");
}

async fn what_is_not_due_or_waits_for_a_person_is_not_probed(db: &TestDatabase) {
    let stage = stage(db).await;
    let claim = stage.claimed(db, "later").await;
    stage.done(Settling::of(&claim).probe_at(in_an_hour(db).await, "no answer")).await;
    stage.parked(db, "person").await;
    assert!(due(db, LEASE).await.is_empty());
    assert!(!db.store.probe_is_due(&["pay".into()]).await.expect("asked"));
}

async fn a_probe_that_another_took_over_changes_nothing(db: &TestDatabase) {
    let stage = stage(db).await;
    let id = doubtful(db, &stage, "k").await;
    let first = one(db, Duration::ZERO).await;
    let second = one(db, LEASE).await;
    assert_eq!(second.doubt.travels_until, first.doubt.travels_until, "it is the same doubt");
    assert_eq!(settle(db, &first, Decision::RetryAt(first.claimed_at)).await, Settled::Lost);
    assert_eq!(db.state(id).await, State::InDoubt);
    assert_eq!(settle(db, &second, Decision::Succeed).await, Settled::Done);
    assert_eq!(settle(db, &second, Decision::Succeed).await, Settled::Lost, "once");
    assert_eq!(db.state(id).await, State::Succeeded);
}

async fn what_a_person_did_meanwhile_stands(db: &TestDatabase) {
    let stage = stage(db).await;
    for (key, verb, state) in [
        ("failed", Verb::ResolveNotApplied, State::Failed),
        ("applied", Verb::ResolveApplied { response: None }, State::Succeeded),
        ("resent", Verb::Resend, State::Ready),
    ] {
        let id = doubtful(db, &stage, key).await;
        let probe = one(db, LEASE).await;
        let acted = db.store.act(id, &verb, &person(), None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
        let park = Decision::Park("seen".to_owned());
        for decision in [Decision::Succeed, Decision::RetryAt(probe.claimed_at), park] {
            assert_eq!(settle(db, &probe, decision).await, Settled::Lost, "{verb:?}");
        }
        assert_eq!(db.state(id).await, state);
    }
}

async fn a_late_success_wins_over_an_open_probe(db: &TestDatabase) {
    let stage = stage(db).await;
    let claim = stage.claimed(db, "k").await;
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let parked = Settling::of_expired(&expired).probe_at(claim.claimed_at, "the lease ended");
    assert_eq!(db.store.sweep_expired(&[parked]).await.expect("the sweep writes"), [Settled::Done]);
    let probe = one(db, LEASE).await;
    let outcome = answer(200, "{}");
    let late = LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: Settling::of(&claim).attempt(&outcome),
        begun: true,
        response: outcome.response.clone(),
    };
    assert_eq!(db.store.late(&[late]).await.expect("heard"), [Late::Succeeded]);
    assert_eq!(settle(db, &probe, Decision::RetryAt(probe.claimed_at)).await, Settled::Lost);
    assert_eq!(db.state(claim.effect.id).await, State::Succeeded);
}

/// It is about to be applied a second time, or was.
async fn a_late_success_after_probes_saw_it_absent_is_loud(db: &TestDatabase) {
    let stage = stage(db).await;
    for key in ["waiting", "in flight", "uncertain", "ended"] {
        let claim = stage.claimed(db, key).await;
        stage.done(Settling::of(&claim).probe_at(claim.claimed_at, "no answer")).await;
        let probe = one(db, LEASE).await;
        assert_eq!(settle(db, &probe, Decision::RetryAt(probe.claimed_at)).await, Settled::Done);
        let state = match key {
            "waiting" => State::Ready,
            _ => {
                let again = stage.worker.claim_one("pay").await;
                match key {
                    "in flight" => State::InFlight,
                    "uncertain" => {
                        stage.done(Settling::of(&again).retry_unknown(in_an_hour(db).await)).await;
                        State::Succeeded
                    }
                    _ => {
                        stage.done(Settling::of(&again).succeed()).await;
                        State::Succeeded
                    }
                }
            }
        };
        let outcome = answer(200, "{}");
        let late = LateAnswer {
            id: claim.effect.id,
            token: claim.token(),
            attempt: Settling::of(&claim).attempt(&outcome),
            begun: true,
            response: outcome.response.clone(),
        };
        assert_eq!(db.store.late(&[late]).await.expect("heard"), [Late::Contradicts], "{key}");
        assert_eq!(db.state(claim.effect.id).await, state, "{key}");
        if key == "waiting" {
            stage.worker.claim_one("pay").await;
        }
    }
}

async fn a_look_is_remembered_beside_the_reason_for_the_doubt(db: &TestDatabase) {
    let stage = stage(db).await;
    let id = doubtful(db, &stage, "k").await;
    let first = one(db, LEASE).await;
    let next = Decision::ProbeAt(first.claimed_at, "no answer; probe 1: absent".to_owned());
    let mut settlement = first.settlement(Next::Decided(next));
    settlement.absent_at = Some(first.claimed_at);
    assert_eq!(db.store.settle_probe(&settlement).await.expect("settled"), Settled::Done);
    let status = db.status(id).await;
    assert_eq!((status.state, status.due_at), (State::InDoubt, Some(first.claimed_at)));
    assert_eq!(status.last_error.as_deref(), Some("no answer; probe 1: absent"));
    let second = one(db, LEASE).await;
    assert_eq!((second.doubt.made, second.doubt.absent_at), (1, Some(first.claimed_at)));
    assert_eq!(second.doubt.why, "no answer", "what probes said is not said again");
    assert_eq!(second.doubt.travels_until, first.doubt.travels_until);
    assert_eq!(settle(db, &second, Decision::Park("for a person".to_owned())).await, Settled::Done);
    let status = db.status(id).await;
    assert_eq!((status.state, status.due_at), (State::InDoubt, None));
    assert_eq!(db.log(id).await.len(), 1, "a probe is no attempt");
}

async fn a_probe_that_is_given_back_is_due_at_once(db: &TestDatabase) {
    let stage = stage(db).await;
    doubtful(db, &stage, "k").await;
    let first = one(db, LEASE).await;
    let back = db.store.settle_probe(&first.settlement(Next::GiveBack)).await.expect("given back");
    assert_eq!(back, Settled::Done);
    let again = one(db, LEASE).await;
    assert_eq!((again.doubt.made, again.doubt.travels_until), (0, first.doubt.travels_until));
}

async fn a_new_history_begins_certain_under_a_new_token(db: &TestDatabase) {
    let stage = stage(db).await;
    let id = doubtful(db, &stage, "k").await;
    let before = db.status(id).await.token;
    let probe = one(db, LEASE).await;
    assert_eq!(settle(db, &probe, Decision::RetryAt(probe.claimed_at)).await, Settled::Done);
    let status = db.status(id).await;
    assert!(status.token > before && status.first_sent_at.is_none(), "{status:?}");
    let claim = stage.worker.claim_one("pay").await;
    let history = &claim.history;
    assert_eq!((history.uncertain, history.sent_before, history.attempts), (false, true, 1));
    assert_eq!((history.started_at, history.travels_until), (claim.claimed_at, None));
    assert_eq!(claim.number, 2, "the log goes on");
}

async fn a_success_stores_what_was_found(db: &TestDatabase) {
    let stage = stage(db).await;
    let id = doubtful(db, &stage, "k").await;
    let probe = one(db, LEASE).await;
    let mut settlement = probe.settlement(Next::Decided(Decision::Succeed));
    let body = br#"{"id":"ch_1"}"#.to_vec();
    settlement.response = Some(Response { status: Some(200), body, truncated: false });
    settlement.note = Some("probe 1 found it".to_owned());
    assert_eq!(db.store.settle_probe(&settlement).await.expect("settled"), Settled::Done);
    let status = db.status(id).await;
    assert_eq!((status.state, status.response_status), (State::Succeeded, Some(200)));
    assert_eq!(status.response.as_ref().map(|json| json.get()), Some(r#"{"id":"ch_1"}"#));
    assert_eq!(status.last_error.as_deref(), Some("probe 1 found it"));
    let counts = db.store.counts().await.expect("counted");
    assert!(counts.iter().any(|count| count.state == State::Succeeded && count.effects == 1), "{counts:?}");
}

async fn a_new_doubt_begins_without_what_was_seen_in_the_last(db: &TestDatabase) {
    let stage = stage(db).await;
    let id = doubtful(db, &stage, "k").await;
    let first = one(db, LEASE).await;
    let mut settlement = first
        .settlement(Next::Decided(Decision::ProbeAt(in_an_hour(db).await, "no answer; probe 1".to_owned())));
    settlement.absent_at = Some(first.claimed_at);
    assert_eq!(db.store.settle_probe(&settlement).await.expect("settled"), Settled::Done);
    let acted = db.store.act(id, &Verb::Resend, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).probe_at(claim.claimed_at, "no answer again")).await;
    let probe = one(db, LEASE).await;
    assert_eq!((probe.doubt.made, probe.doubt.absent_at), (0, None));
    assert_eq!(probe.doubt.why, "no answer again");
    assert_eq!(probe.doubt.travels_until, claim.claimed_at);
}

async fn a_stored_server_error_is_remembered(db: &TestDatabase) {
    let stage = stage(db).await;
    for (key, refusal_stored) in [("stored", true), ("not", false)] {
        let claim = stage.claimed(db, key).await;
        let settlement = Settling::of(&claim).probe_at(claim.claimed_at, "HTTP 500");
        stage.done(aftercommit::store::Settlement { refusal_stored, ..settlement }).await;
        assert_eq!(one(db, HOUR).await.doubt.error_stored, refusal_stored, "{key}");
    }
}

async fn a_cancel_of_an_uncertain_effect_waits_for_a_probe(db: &TestDatabase) {
    let stage = stage(db).await;
    let claim = stage.claimed(db, "k").await;
    stage.done(Settling::of(&claim).retry_unknown(in_an_hour(db).await)).await;
    let acted = db.store.act(claim.effect.id, &Verb::Cancel, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(Change::Probe(..), _)), "{acted:?}");
    assert_eq!(db.state(claim.effect.id).await, State::InDoubt);
    assert!(one(db, LEASE).await.doubt.history.cancel_requested);
}
