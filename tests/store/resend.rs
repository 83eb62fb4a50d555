//! Defends: a resend that nobody confirmed is a resend only as long as the downstream certainly recognises the key, whatever becomes
//! of it on its way; one that was confirmed is sent whenever it can be.

use aftercommit::{
    EffectId,
    clock::Timestamp,
    contract::{Contract, Dedupe, OnUnknown, Window},
    decision::{Decision, KEY_USED_BEFORE, Resend},
    state::State,
    store::{Acted, Next, Overdue, RegisteredTerms, Settlement},
    verb::{Actor, Change, Refusal, Verb},
};

use super::stage::{HOUR, Stage, person};
use crate::support::{Settling, TestDatabase, WINDOW, Worker, key_terms, on_every_way, registered, terms};

on_every_way! {
    it_is_refused_where_it_may_be_applied_twice,
    the_sweep_looks_when_it_could_not_end_in_time_any_more,
    a_window_that_became_narrower_holds_for_what_nobody_confirmed,
    it_stays_what_it_is_until_it_is_attempted,
    a_new_history_knows_nothing_of_it,
}

/// Nobody told this person of a risk.
fn unasked() -> Actor {
    Actor { confirmed: false, ..person() }
}

async fn resend(db: &TestDatabase, id: EffectId, actor: &Actor) -> Acted {
    db.store.act(id, &Verb::Resend, actor, None).await.expect("acting works")
}

/// When the sweep looks at the resend that was accepted.
async fn resent(db: &TestDatabase, id: EffectId, actor: &Actor, kind: Resend) -> Option<Timestamp> {
    match resend(db, id, actor).await {
        Acted::Done(Change::OneResend { resend, sweep_at }, status) => {
            assert_eq!((resend, status.state), (kind, State::Ready));
            sweep_at
        }
        other @ (Acted::Done(..) | Acted::Refused(_) | Acted::NotFound) => panic!("{other:?}"),
    }
}

async fn overdue(db: &TestDatabase) -> Vec<Overdue> {
    db.store.overdue(10).await.expect("the sweep reads")
}

async fn it_is_refused_where_it_may_be_applied_twice(db: &TestDatabase) {
    let lookup = Contract { dedupe: Dedupe::Lookup, can_probe: true, ..Contract::none(OnUnknown::Hold) };
    let of = |contract| (terms(contract), "no answer");
    let cases: [(&str, (RegisteredTerms, &str), bool); 7] = [
        ("hold", of(Contract::none(OnUnknown::Hold)), false),
        ("retry", of(Contract::none(OnUnknown::Retry)), false),
        ("lookup", of(lookup), false),
        ("unpublished", of(Contract::key(None)), false),
        ("used", (key_terms(), KEY_USED_BEFORE), false),
        ("day", of(Contract::key(Some(Window::For(WINDOW)))), true),
        ("forever", of(Contract::key(Some(Window::Forever))), true),
    ];
    for (name, (terms, why), safe) in cases {
        let stage = Stage::at(db, name, terms).await;
        let claim = stage.claimed(db, "k").await;
        let id = claim.effect.id;
        stage.done(Settling::of(&claim).park(why)).await;
        match (safe, resend(db, id, &unasked()).await) {
            (true, Acted::Done(Change::OneResend { resend: Resend::Unconfirmed, .. }, _)) => {}
            (false, Acted::Refused(Refusal::Unconfirmed)) => {
                assert!(db.audit(Some(id), 10).await.is_empty(), "{name}: nothing was done");
                resent(db, id, &person(), Resend::Confirmed).await;
            }
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
    // The window of the one, less the margin, is over.
    let stage = Stage::by_key(db, "over").await;
    let id = stage.parked(db, "k").await;
    db.shift_back("queue", "first_sent_at", id, WINDOW).await;
    let refused = resend(db, id, &unasked()).await;
    assert!(matches!(refused, Acted::Refused(Refusal::Unconfirmed)), "{refused:?}");
}

async fn the_sweep_looks_when_it_could_not_end_in_time_any_more(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (id, confirmed) = (stage.parked(db, "k1").await, stage.parked(db, "k2").await);
    let sweep_at = resent(db, id, &unasked(), Resend::Unconfirmed).await.expect("its window ends");
    let safe_until = db.status(id).await.safe_until.expect("its window ends");
    assert_eq!(sweep_at, safe_until.minus(key_terms().timeout));
    assert_eq!(resent(db, confirmed, &person(), Resend::Confirmed).await, None);
    assert!(overdue(db).await.is_empty());
    // Nobody serves it for a day.
    db.shift_back("queue", "sweep_at", id, WINDOW).await;
    let found = overdue(db).await;
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [id], "{found:?}");
    assert_eq!(found[0].history.resend, Some(Resend::Unconfirmed));
    let parked = Settling::of_overdue(&found[0], Decision::Park("too late".to_owned()));
    db.store.sweep_overdue(&[parked]).await.expect("the sweep writes");
    assert_eq!(db.state(id).await, State::InDoubt);
    let claims = stage.worker.claim("pay", 5).await;
    assert_eq!(claims.iter().map(|claim| claim.effect.id).collect::<Vec<_>>(), [confirmed]);
}

/// Of what was confirmed a person said that it may be applied twice: another window changes nothing about that.
async fn a_window_that_became_narrower_holds_for_what_nobody_confirmed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (id, confirmed) = (stage.parked(db, "k1").await, stage.parked(db, "k2").await);
    for id in [id, confirmed] {
        db.shift_back("queue", "first_sent_at", id, HOUR * 2).await;
    }
    resent(db, id, &unasked(), Resend::Unconfirmed).await;
    resent(db, confirmed, &person(), Resend::Confirmed).await;
    let hour = terms(Contract::key(Some(Window::For(HOUR))));
    Worker::start(&db.store, "w2", vec![registered("pay", hour)]).await;
    assert_eq!(overdue(db).await.iter().map(|one| one.id).collect::<Vec<_>>(), [id]);
}

async fn it_stays_what_it_is_until_it_is_attempted(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k").await;
    resent(db, id, &unasked(), Resend::Unconfirmed).await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.history.resend, Some(Resend::Unconfirmed));
    stage.done(Settling::of(&claim).give_back()).await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.history.resend, Some(Resend::Unconfirmed), "given back");
    let put_off = Settlement {
        decision: Next::Decided(Decision::RetryAt(Timestamp::from_micros(1))),
        ..Settling::of(&claim).give_back()
    };
    stage.done(put_off).await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.history.resend, Some(Resend::Unconfirmed), "put off");
    stage.done(Settling::of(&claim).park("no answer again")).await;
    // The next one is what this person says it is.
    resent(db, id, &person(), Resend::Confirmed).await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.history.resend, Some(Resend::Confirmed));
    stage.done(Settling::of(&claim).park("no answer again")).await;
    resent(db, id, &unasked(), Resend::Unconfirmed).await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.history.resend, Some(Resend::Unconfirmed));
    // One attempt, not more: what the attempt left behind is no resend any more.
    stage.done(Settling::of(&claim).retry_unknown(Timestamp::from_micros(1))).await;
    assert_eq!(stage.worker.claim_one("pay").await.history.resend, None);
}

async fn a_new_history_knows_nothing_of_it(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.parked(db, "k").await;
    resent(db, id, &unasked(), Resend::Unconfirmed).await;
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).park("no answer")).await;
    for verb in [Verb::ResolveNotApplied, Verb::Retry] {
        let acted = db.store.act(id, &verb, &person(), None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    }
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!((claim.history.resend, claim.history.uncertain), (None, false));
}
