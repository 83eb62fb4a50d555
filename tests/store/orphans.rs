//! Defends: no claimed effect is out of everybody's sight, whatever became of its claim, and what is given back late or swept
//! early stays where it can be found.

use aftercommit::{
    decision::Decision,
    outcome::Outcome,
    state::State,
    store::{Claim, Next, Settled, Settlement},
    verb::Verb,
};

use super::stage::{HOUR, Stage, in_an_hour, person};
use crate::support::{Settling, TestDatabase, on_every_database, on_postgres};

on_every_database! {
    a_claim_stays_while_one_of_its_effects_is_held,
    a_claimed_effect_without_its_claim_is_swept,
    a_parked_claim_given_back_uncertain_stays_in_doubt,
    a_parked_claim_given_back_certain_is_swept_at_its_expiry,
    an_overdue_effect_given_back_is_looked_at_later,
    what_waits_for_a_person_announces_no_probe,
}
on_postgres! { a_claimed_effect_that_cannot_be_read_is_swept }

async fn a_claim_stays_while_one_of_its_effects_is_held(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    db.insert_many("pay", "k", 2).await;
    let claims = stage.worker.claim("pay", 2).await;
    // As a worker would that never got the other one in its hands.
    let settled = db.store.settle(&[Settling::of(&claims[0]).succeed()], &[claims[0].token()]).await;
    assert_eq!(settled.expect("settling works"), [Settled::Done]);
    db.end_lease(claims[0].token()).await;
    let found = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [claims[1].effect.id]);
}

async fn a_claimed_effect_that_cannot_be_read_is_swept(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let ids = db.insert_many("pay", "k", 2).await;
    db.sql.execute(&format!("DELETE FROM aftercommit.effects WHERE id = {}", ids[1])).await;
    let claim = stage.worker.claim("pay", 2).await.remove(0);
    db.store.settle(&[Settling::of(&claim).succeed()], &[claim.token()]).await.expect("settling works");
    db.end_lease(claim.token()).await;
    let found = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [ids[1]]);
}

async fn a_claimed_effect_without_its_claim_is_swept(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let lost = stage.claimed(db, "lost").await;
    let held = stage.claimed(db, "held").await;
    let sql = format!("DELETE FROM aftercommit.claims WHERE token = {}", lost.token().get());
    db.sql.execute(&sql).await;
    for _ in 0..2 {
        let found = db.store.expired(10).await.expect("the sweep reads");
        assert_eq!(found.len(), 1, "again and again: {found:?}");
        assert_eq!((found[0].id, &*found[0].worker, found[0].number), (lost.effect.id, "", 1));
    }
    let found = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let retry = Settling::of_expired(&found).retry_unknown(db.now().await);
    assert_eq!(db.store.sweep_expired(&[retry]).await.expect("the sweep writes"), [Settled::Done]);
    assert_eq!(stage.worker.claim_one("pay").await.effect.id, lost.effect.id);
    assert_eq!(db.state(held.effect.id).await, State::InFlight);
    assert!(db.store.expired(10).await.expect("the sweep reads").is_empty());
}

/// Sweeps the claim into doubt, as for a downstream that cannot deduplicate.
async fn swept(db: &TestDatabase, claim: &Claim) {
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads").remove(0);
    let parked = Settling::of_expired(&expired)
        .decided(Decision::Park("the worker's lease ended".to_owned()), &Outcome::lease_ended());
    let parked = Settlement { uncertain: true, ..parked };
    assert_eq!(db.store.sweep_expired(&[parked]).await.expect("the sweep writes"), [Settled::Done]);
}

async fn a_parked_claim_given_back_uncertain_stays_in_doubt(db: &TestDatabase) {
    let stage = Stage::hold(db, "mail").await;
    let id = stage.parked(db, "k").await;
    db.sql.execute("UPDATE aftercommit.queue SET quiet_at = NULL").await;
    db.store.act(id, &Verb::Resend, &person(), None).await.expect("acting works");
    let claim = stage.worker.claim_one("mail").await;
    assert!(claim.history.resend.is_some() && claim.history.uncertain, "{:?}", claim.history);
    swept(db, &claim).await;
    stage.done(Settling::of(&claim).give_back()).await;
    let status = db.status(id).await;
    assert_eq!((status.state, status.due_at), (State::InDoubt, None), "a person decides about it again");
    assert!(stage.worker.claim("mail", 5).await.is_empty());
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
}

async fn a_parked_claim_given_back_certain_is_swept_at_its_expiry(db: &TestDatabase) {
    let stage = Stage::hold(db, "mail").await;
    let later = db.engine.after(db.engine.now(), HOUR);
    let id = db.insert_with("mail", "k", &[("expires_at", &later)]).await;
    let claim = stage.worker.claim_one("mail").await;
    swept(db, &claim).await;
    stage.done(Settling::of(&claim).give_back()).await;
    assert_eq!(db.state(id).await, State::Ready, "it was never sent");
    let expiry = "SELECT count(*) FROM aftercommit.queue WHERE sweep_at = expires_at";
    assert_eq!(db.sql.number(expiry).await, 1, "and still expires where nobody claims it");
    assert_eq!(stage.worker.claim_one("mail").await.effect.id, id);
}

async fn an_overdue_effect_given_back_is_looked_at_later(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let (id, safe) = (claim.effect.id, in_an_hour(db).await);
    stage.done(Settlement { sweep_at: Some(safe), ..Settling::of(&claim).retry_unknown(safe) }).await;
    db.shift_back("queue", "sweep_at", id, HOUR * 2).await;
    let found = db.store.overdue(10).await.expect("the sweep reads").remove(0);
    let before = db.sql.rows("SELECT * FROM aftercommit.queue").await.remove(0);
    let given_back = Settlement {
        decision: Next::GiveBack,
        sweep_at: Some(safe),
        ..Settling::of_overdue(&found, Decision::Expire)
    };
    assert_eq!(db.store.sweep_overdue(&[given_back]).await.expect("the sweep writes"), [Settled::Done]);
    let mut after = db.sql.rows("SELECT * FROM aftercommit.queue").await.remove(0);
    assert_ne!(after["sweep_at"], before["sweep_at"]);
    after.insert("sweep_at".to_owned(), before["sweep_at"].clone());
    assert_eq!(after, before, "nothing but its next look moved");
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
    db.shift_back("queue", "sweep_at", id, HOUR * 2).await;
    assert_eq!(db.store.overdue(10).await.expect("the sweep reads").len(), 1, "it comes up again then");
}

async fn what_waits_for_a_person_announces_no_probe(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    // Parked by its settle, by the sweep, by an operator's cancel of an uncertain retry; and a probe that is due.
    let settled = stage.parked(db, "settled").await;
    let lost = stage.claimed(db, "lost").await;
    swept(db, &lost).await;
    let retrying = stage.claimed(db, "cancelled").await;
    stage.done(Settling::of(&retrying).retry_unknown(in_an_hour(db).await)).await;
    db.store.act(retrying.effect.id, &Verb::Cancel, &person(), None).await.expect("acting works");
    let overdue = stage.claimed(db, "overdue").await;
    let later = in_an_hour(db).await;
    stage.done(Settlement { sweep_at: Some(later), ..Settling::of(&overdue).retry_unknown(later) }).await;
    db.shift_back("queue", "sweep_at", overdue.effect.id, HOUR * 2).await;
    let found = db.store.overdue(10).await.expect("the sweep reads").remove(0);
    let park = Settling::of_overdue(&found, Decision::Park("its safe time has passed".to_owned()));
    assert_eq!(db.store.sweep_overdue(&[park]).await.expect("the sweep writes"), [Settled::Done]);
    for id in [settled, lost.effect.id, retrying.effect.id, overdue.effect.id] {
        let status = db.status(id).await;
        assert_eq!((status.state, status.due_at), (State::InDoubt, None), "{:?}", status.last_error);
    }
    let probed = stage.claimed(db, "probed").await;
    stage.done(Settling::of(&probed).probe_at(later, "asking the vendor")).await;
    assert_eq!(db.status(probed.effect.id).await.due_at, Some(later));
    // One that is neither queued nor finished.
    db.sql.execute(&format!("DELETE FROM aftercommit.queue WHERE id = {settled}")).await;
    let status = db.status(settled).await;
    assert_eq!((status.state, status.due_at), (State::InDoubt, None));
}
