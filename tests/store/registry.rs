//! Defends: what is sent is sent under terms that are durable, and a worker's name never keeps an old claim alive.

use std::time::Duration;

use aftercommit::{
    contract::{Contract, OnUnknown, Window},
    store::{Acted, RegisteredDownstream, Registration, Settled, Settlement},
    verb::{Refusal, Verb},
};

use super::stage::{Stage, in_an_hour, person};
use crate::support::{
    Settling, TestDatabase, Worker, key_terms, lookup_terms, none_terms, on_every_way, registered,
    registration, terms,
};

on_every_way! {
    equal_terms_keep_their_number,
    terms_can_be_read_by_another_worker,
    a_narrower_window_moves_the_sweep,
    a_key_that_promises_nothing_any_more_moves_the_sweep,
    an_operation_that_left_the_configuration_is_not_resent,
    terms_that_cannot_be_told_stay_what_they_are,
    names_may_become_known_without_a_worker,
    workers_are_listed_with_what_they_hold,
    maintenance_forgets_workers_that_are_long_gone,
    idle_means_nothing_is_due_or_in_flight,
}

async fn number(db: &TestDatabase, downstream: RegisteredDownstream) -> i64 {
    let ids = db.store.register(&registration("w1", vec![downstream])).await.expect("the worker registers");
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0].2
}

async fn equal_terms_keep_their_number(db: &TestDatabase) {
    let first = number(db, registered("pay", key_terms())).await;
    assert_eq!(number(db, registered("pay", key_terms())).await, first);
    let mut other = registered("pay", key_terms());
    other.operations[0].2 = [9; 32];
    let second = number(db, other).await;
    assert_ne!(second, first, "another request");
    let third = number(db, registered("pay", lookup_terms())).await;
    assert!(third != first && third != second, "another contract");
    assert_eq!(number(db, registered("pay", key_terms())).await, first, "and back again");
    // Workers that start at the same time do not fail each other.
    let mut starting = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let store = db.another_store().await;
        starting.spawn(async move {
            let downstreams = ["b", "a", "c"].map(|name| registered(name, key_terms()));
            let worker = registration(&format!("w{worker}"), downstreams.into());
            let mut ids = store.register(&worker).await.expect("the worker registers");
            ids.sort();
            ids
        });
    }
    let mut ids = starting.join_all().await;
    ids.dedup();
    assert_eq!(ids.len(), 1, "all were given the same numbers: {ids:?}");
}

async fn terms_can_be_read_by_another_worker(db: &TestDatabase) {
    let mut downstream = registered("pay", key_terms());
    downstream.operations.push((Some("refund".to_owned()), lookup_terms(), [2; 32]));
    Worker::start(&db.store, "w1", vec![downstream]).await;
    let read = async |operation| db.store.terms("pay", operation).await.expect("readable");
    assert_eq!(read(None).await, Some(key_terms()));
    assert_eq!(read(Some("refund")).await, Some(lookup_terms()));
    assert_eq!(read(Some("charge")).await, Some(key_terms()), "never registered: the default operation's");
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    assert_eq!(read(Some("refund")).await, Some(lookup_terms()), "what is left of it is still swept");
    assert_eq!(db.store.terms("mail", None).await.expect("readable"), None);
    let forever = terms(Contract::key(Some(Window::Forever)));
    Worker::start(&db.store, "w1", vec![registered("ever", forever.clone())]).await;
    assert_eq!(db.store.terms("ever", None).await.expect("readable"), Some(forever));
}

async fn a_narrower_window_moves_the_sweep(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let later = in_an_hour(db).await;
    let safe = claim.history.safe_until(&key_terms().contract);
    stage.done(Settlement { sweep_at: safe, ..Settling::of(&claim).retry_unknown(later) }).await;
    assert!(db.store.overdue(10).await.expect("the sweep reads").is_empty());
    let narrow = terms(Contract::key(Some(Window::For(Duration::from_secs(1)))));
    Worker::start(&db.store, "w2", vec![registered("pay", narrow)]).await;
    let overdue = db.store.overdue(10).await.expect("the sweep reads");
    assert_eq!(overdue.len(), 1, "the new window is over already");
    assert_eq!(overdue[0].id, claim.effect.id);
    let status = db.status(claim.effect.id).await;
    assert!(status.safe_until < Some(db.now().await), "the view says so too: {:?}", status.safe_until);
}

async fn a_key_that_promises_nothing_any_more_moves_the_sweep(db: &TestDatabase) {
    let unpublished = terms(Contract::key(None));
    for (name, today) in
        [("none", none_terms(OnUnknown::Hold)), ("lookup", lookup_terms()), ("unpublished", unpublished)]
    {
        let stage = Stage::by_key(db, name).await;
        let claim = stage.claimed(db, "k").await;
        let later = in_an_hour(db).await;
        let safe = claim.history.safe_until(&key_terms().contract);
        stage.done(Settlement { sweep_at: safe, ..Settling::of(&claim).retry_unknown(later) }).await;
        let before = db.store.overdue(10).await.expect("the sweep reads");
        assert!(before.iter().all(|one| one.id != claim.effect.id), "{name}: its window runs");
        Worker::start(&db.store, "w2", vec![registered(name, today)]).await;
        let overdue = db.store.overdue(10).await.expect("the sweep reads");
        assert!(overdue.iter().any(|one| one.id == claim.effect.id), "{name}: {overdue:?}");
    }
}

async fn an_operation_that_left_the_configuration_is_not_resent(db: &TestDatabase) {
    let mut with_refund = registered("pay", key_terms());
    with_refund.operations.push((Some("refund".to_owned()), key_terms(), [2; 32]));
    let worker = Worker::start(&db.store, "w1", vec![with_refund.clone()]).await;
    let id = db.insert_with("pay", "k", &[("operation", "'refund'")]).await;
    let claim = worker.claim_one("pay").await;
    assert_eq!(worker.settle(Settling::of(&claim).park("no answer")).await, Settled::Done);
    let resend = async || db.store.act(id, &Verb::Resend, &person(), None).await.expect("acting works");
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let refused = resend().await;
    assert!(matches!(refused, Acted::Refused(Refusal::RequestChanged)), "{refused:?}");
    Worker::start(&db.store, "w1", vec![with_refund]).await;
    let accepted = resend().await;
    assert!(matches!(accepted, Acted::Done(..)), "the configuration was restored: {accepted:?}");
}

/// A deployment's migration without the secrets must not make every resend look like another request.
async fn terms_that_cannot_be_told_stay_what_they_are(db: &TestDatabase) {
    let blind =
        RegisteredDownstream { operations: Vec::new(), kept: vec![None], ..registered("pay", key_terms()) };
    let migration = Registration { worker: None, ..registration("-", vec![blind]) };
    // Also where nothing is registered yet: effects are taken, and wait for a worker.
    assert!(db.store.register(&migration).await.expect("names are registered").is_empty());
    let id = db.insert("pay", "k").await;
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let claim = worker.claim_one("pay").await;
    assert_eq!(worker.settle(Settling::of(&claim).park("no answer")).await, Settled::Done);
    assert!(db.store.register(&migration).await.expect("names are registered").is_empty());
    let accepted = db.store.act(id, &Verb::Resend, &person(), None).await.expect("acting works");
    assert!(matches!(accepted, Acted::Done(..)), "nobody changed the request: {accepted:?}");
}

async fn names_may_become_known_without_a_worker(db: &TestDatabase) {
    let known = Registration { worker: None, ..registration("-", vec![registered("pay", key_terms())]) };
    db.store.register(&known).await.expect("names are registered");
    assert!(db.store.workers().await.expect("readable").is_empty());
    let found = db.store.downstreams().await.expect("readable");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name.as_str(), found[0].workers), ("pay", 0));
    assert!(found[0].contract.is_some(), "its contract in words");
}

async fn workers_are_listed_with_what_they_hold(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    Worker::start(&db.store, "w2", vec![registered("mail", key_terms())]).await;
    db.insert_many("pay", "k", 3).await;
    let claims = stage.worker.claim("pay", 3).await;
    let passed = db.engine.before(db.engine.now(), Duration::from_secs(60));
    db.sql.execute(&format!("UPDATE aftercommit.workers SET seen_at = {passed} WHERE name = 'w2'")).await;
    let found = db.store.workers().await.expect("readable");
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].name.as_str(), found[0].live, found[0].in_flight),
        ("w1", true, 3),
        "live ones first"
    );
    assert_eq!(found[0].leases, 1, "one claim of three effects is one lease");
    assert!(found[0].lease_until.is_some_and(|until| until > found[0].seen_at), "{found:?}");
    assert_eq!((found[1].leases, found[1].lease_until), (0, None));
    assert_eq!(found[0].downstreams, ["pay"]);
    assert_eq!(found[0].version, "0.0.0-test");
    assert_eq!((found[1].name.as_str(), found[1].live), ("w2", false));
    stage.done(Settling::of(&claims[0]).succeed()).await;
    assert_eq!(db.store.workers().await.expect("readable")[0].in_flight, 2);
    let downstreams = db.store.downstreams().await.expect("readable");
    let pay = downstreams.iter().find(|one| one.name == "pay").expect("it is registered");
    assert_eq!((pay.workers, pay.in_flight), (1, 2));
}

async fn maintenance_forgets_workers_that_are_long_gone(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    let passed = db.engine.before(db.engine.now(), Duration::from_secs(40 * 24 * 3600));
    db.sql.execute(&format!("UPDATE aftercommit.workers SET seen_at = {passed} WHERE name = 'w1'")).await;
    db.store.maintain().await.expect("maintenance works");
    let names: Vec<String> =
        db.store.workers().await.expect("readable").into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["w2"]);
    // What a forgotten worker held is found all the same.
    db.end_lease(claim.token()).await;
    let expired = db.store.expired(10).await.expect("the sweep reads");
    assert_eq!(expired.len(), 1);
    assert_eq!(&*expired[0].worker, "w1");
}

async fn idle_means_nothing_is_due_or_in_flight(db: &TestDatabase) {
    let idle = async || db.store.is_idle(&["pay".into()]).await.expect("readable");
    let stage = Stage::by_key(db, "pay").await;
    assert!(idle().await);
    db.insert("mail", "k").await;
    assert!(idle().await, "another downstream's");
    let claim = {
        db.insert("pay", "k").await;
        assert!(!idle().await, "due");
        stage.worker.claim_one("pay").await
    };
    assert!(!idle().await, "in flight");
    stage.done(Settling::of(&claim).succeed()).await;
    assert!(idle().await);
    stage.parked(db, "doubt").await;
    let later = db.engine.after(db.engine.now(), super::stage::HOUR);
    db.insert_with("pay", "later", &[("due_at", &later)]).await;
    assert!(idle().await, "neither what awaits a person nor what is due in an hour keeps a worker waiting");
}
