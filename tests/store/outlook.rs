//! Defends: what is told of a list before a verb is carried out for it is what comes of it, on every database.

use aftercommit::{
    EffectId,
    state::State,
    store::{Acted, Beside, Status},
    verb::{Listed, Refusal, Resolved, Seen, Verb, foresee, is_said_not_applied},
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Engine, Settling, TestDatabase, Worker, key_terms, on_every_way, registered};

on_every_way! {
    what_is_foreseen_is_what_happens,
    what_no_row_shows_is_foreseen_of_a_resend,
    an_attempt_whose_outcome_was_unknown_is_remembered,
    what_a_person_said_is_told_from_what_an_attempt_showed,
    causes_tell_what_a_new_effect_took_the_place_of,
}

async fn beside(db: &TestDatabase, id: EffectId) -> Option<Beside> {
    db.store.beside(&[id]).await.expect("readable").first().copied()
}

/// What is foreseen of a verb, with all that can be known.
async fn foreseen(db: &TestDatabase, id: EffectId, verb: &Verb) -> (Status, Option<Refusal>) {
    let (effect, beside) = (db.status(id).await, beside(db, id).await);
    let foreseen = foresee(verb, &effect, beside.as_ref(), db.now().await);
    (effect, foreseen)
}

async fn act(db: &TestDatabase, id: EffectId, verb: &Verb) -> Acted {
    db.store.act(id, verb, &person(), None).await.expect("acting works")
}

/// What is special about an effect, so that a verb that takes its state is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    No,
    Superseded,
    RefusalStored,
    Redacted,
    LogDropped,
    Travelling,
    Late,
}

const ODD: [(State, Odd); 16] = [
    (State::Scheduled, Odd::No),
    (State::Ready, Odd::No),
    (State::InFlight, Odd::No),
    (State::Retrying, Odd::No),
    (State::InDoubt, Odd::No),
    (State::Succeeded, Odd::No),
    (State::Failed, Odd::No),
    (State::Cancelled, Odd::No),
    (State::Expired, Odd::No),
    (State::Failed, Odd::Superseded),
    (State::Failed, Odd::RefusalStored),
    (State::Failed, Odd::Redacted),
    (State::Failed, Odd::LogDropped),
    (State::InDoubt, Odd::Travelling),
    (State::InDoubt, Odd::Late),
    (State::Succeeded, Odd::Superseded),
];

async fn make_odd(db: &TestDatabase, id: EffectId, odd: Odd) {
    let (yes, later) =
        (if db.engine == Engine::Postgres { "true" } else { "1" }, db.engine.after(db.engine.now(), HOUR));
    let past = db.engine.before(db.engine.now(), HOUR);
    let changed = match odd {
        Odd::No => return,
        Odd::Superseded => return drop(act(db, id, &Verb::Reissue { resolve: None }).await),
        Odd::Redacted => return drop(act(db, id, &Verb::Redact).await),
        Odd::RefusalStored => format!("outcomes SET refusal_stored = {yes} WHERE effect_id = {id}"),
        Odd::LogDropped => format!("outcomes SET kept = kept & ~2 WHERE effect_id = {id}"),
        Odd::Travelling => format!("queue SET quiet_at = {later} WHERE id = {id}"),
        Odd::Late => format!("queue SET expires_at = {past} WHERE id = {id}"),
    };
    assert_eq!(db.sql.execute(&format!("UPDATE aftercommit.{changed}")).await, 1, "{odd:?}");
}

async fn what_is_foreseen_is_what_happens(db: &TestDatabase) {
    let verbs = [
        Verb::Retry,
        Verb::Resend,
        Verb::Cancel,
        Verb::ResolveApplied { response: None },
        Verb::ResolveNotApplied,
        Verb::Redact,
        Verb::Reissue { resolve: None },
        Verb::Reissue { resolve: Some(Resolved::NotApplied) },
    ];
    for (at, (state, odd)) in ODD.into_iter().enumerate() {
        for (nth, verb) in verbs.iter().enumerate() {
            let stage = Stage::by_key(db, &format!("pay-{at}-{nth}")).await;
            let id = stage.reach(db, "k", state).await;
            make_odd(db, id, odd).await;
            let (effect, foreseen) = foreseen(db, id, verb).await;
            let seen = Seen { state: effect.state, token: effect.token };
            let acted = db.store.act(id, verb, &person(), Some(seen)).await.expect("acting works");
            match (&acted, &foreseen) {
                (Acted::Done(..), None) => {}
                (Acted::Refused(refusal), Some(foreseen)) => {
                    assert_eq!(refusal, foreseen, "{verb:?} of {state} {odd:?}")
                }
                (Acted::Done(..) | Acted::Refused(_) | Acted::NotFound, _) => {
                    panic!("{verb:?} of {state} {odd:?}: {foreseen:?} was foreseen, and then {acted:?}")
                }
            }
        }
    }
}

async fn what_no_row_shows_is_foreseen_of_a_resend(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k1").await;
    let (effect, foreseen_of_it) = foreseen(db, id, &Verb::Resend).await;
    assert_eq!(foreseen_of_it, None);
    let mut changed = registered("pay", key_terms());
    changed.operations[0].2 = [8; 32];
    Worker::start(&db.store, "w2", vec![changed]).await;
    assert_eq!(foreseen(db, id, &Verb::Resend).await.1, Some(Refusal::RequestChanged));
    assert_eq!(foresee(&Verb::Resend, &effect, None, db.now().await), None, "the row alone does not show it");
    let none = db.store.beside(&[EffectId::new(4711)]).await.expect("readable");
    assert!(none.is_empty(), "there is no such effect: {none:?}");
    assert!(db.store.beside(&[]).await.expect("readable").is_empty());
}

async fn an_attempt_whose_outcome_was_unknown_is_remembered(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let refused = stage.failed(db, "refused").await;
    let retrying = stage.reach(db, "retrying", State::Retrying).await;
    let claim = stage.claimed(db, "unknown").await;
    stage.done(Settling::of(&claim).retry_unknown(db.now().await)).await;
    let unknown = claim.effect.id;
    let again = stage.worker.claim_one("pay").await;
    assert_eq!(again.effect.id, unknown);
    stage.done(Settling::of(&again).fail("card declined")).await;
    let uncertain = stage.claimed(db, "uncertain").await;
    stage.done(Settling::of(&uncertain).retry_unknown(in_an_hour(db).await)).await;
    for (id, sent_before) in
        [(refused, false), (retrying, false), (unknown, true), (uncertain.effect.id, true)]
    {
        let beside = beside(db, id).await.expect("it is there");
        assert_eq!((beside.id, beside.was_unknown), (id, sent_before), "{beside:?}");
        let listed = Listed::of(&db.status(id).await, Some(&beside));
        assert_eq!(listed.sent_before, sent_before, "{listed:?}");
    }
}

async fn what_a_person_said_is_told_from_what_an_attempt_showed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let refused = stage.failed(db, "refused").await;
    let resolved = stage.parked(db, "resolved").await;
    act(db, resolved, &Verb::ResolveNotApplied).await;
    let reissued = stage.parked(db, "reissued").await;
    act(db, reissued, &Verb::Reissue { resolve: Some(Resolved::NotApplied) }).await;
    for (id, said) in [(refused, false), (resolved, true), (reissued, true)] {
        let status = db.status(id).await;
        let error = status.last_error.as_deref().expect("why it failed");
        assert_eq!((status.state, is_said_not_applied(error)), (State::Failed, said), "{error}");
        assert_eq!(Listed::of(&status, None).resolved_not_applied, said);
        assert!(!said || error.ends_with("by ann: the vendor said so"), "{error}");
    }
    act(db, resolved, &Verb::Retry).await;
    let retried = db.status(resolved).await;
    assert!(!Listed::of(&retried, None).resolved_not_applied, "somebody said something else: {retried:?}");
}

async fn causes_tell_what_a_new_effect_took_the_place_of(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (left, gone) = (stage.failed(db, "left").await, stage.failed(db, "gone").await);
    act(db, gone, &Verb::Reissue { resolve: None }).await;
    let causes = db.store.causes(State::Failed, None).await.expect("readable");
    let rows: Vec<_> = causes.rows.iter().map(|row| (row.id, row.superseded)).collect();
    assert_eq!(rows, [(gone, true), (left, false)]);
}
