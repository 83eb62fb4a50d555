//! Guarantee: what a worker says it measured is what happened, once each, by downstream.

use std::time::Duration;

use aftercommit::{outcome::Verdict, state::State};

use super::{PATIENCE, Running, Stop, at_once, engine, reaches, refused_connection, served, unknown};
use crate::support::{
    LEASE, Script, Scripted, TestDatabase, answer, eventually, key_terms, on_every_database,
};

on_every_database!(
    every_attempt_is_counted_by_what_it_showed,
    a_lease_that_ended_is_counted_by_whoever_swept_it,
    a_worker_has_a_pulse_once_the_database_let_it_work,
);

async fn every_attempt_is_counted_by_what_it_showed(db: &TestDatabase) {
    let downstream = Scripted::queue([
        Script::Answer(unknown()),
        Script::Answer(refused_connection()),
        Script::Answer(aftercommit::outcome::Outcome { replayed: true, ..answer(200, "{}") }),
    ]);
    let id = db.insert("pay", "k").await;
    let quiet = Scripted::applying();
    let of = vec![served("pay", &downstream, at_once(key_terms())), served("quiet", &quiet, key_terms())];
    let worker = Running::start(engine(db.store.clone(), "w", of));
    reaches(db, id, State::Succeeded).await;
    let figures = worker.engine.figures();
    worker.drain().await;
    let (pay, quiet) = (&figures[0], &figures[1]);
    let attempts =
        [(Verdict::Applied, 1), (Verdict::Rejected, 0), (Verdict::NotApplied, 1), (Verdict::Unknown, 1)];
    assert_eq!((pay.attempts, pay.replays), (attempts, 1));
    assert_eq!(pay.attempt.count, 3);
    assert_eq!(quiet.attempt.count, 0);
    assert_eq!(quiet.downstream.as_ref(), "quiet");
}

async fn a_lease_that_ended_is_counted_by_whoever_swept_it(db: &TestDatabase) {
    let downstream = Scripted::applying();
    db.insert("pay", "k").await;
    let lost = crate::support::Worker::start(
        &db.store,
        "lost",
        vec![crate::support::registered("pay", key_terms())],
    )
    .await;
    lost.claim_one("pay").await;
    let ended = db.engine.before(db.engine.now(), 4 * LEASE);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let worker = engine(db.store.clone(), "w", vec![served("pay", &downstream, at_once(key_terms()))]);
    worker.run_once(Stop::default()).await.expect("a round");
    let figures = worker.figures();
    assert_eq!(figures[0].attempts[3], (Verdict::Unknown, 1));
    assert_eq!(worker.report().leases_ended, 1);
}

async fn a_worker_has_a_pulse_once_the_database_let_it_work(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let worker = engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]);
    assert_eq!(worker.pulse().age(), None);
    let worker = Running::start(worker);
    let beats = async || worker.engine.pulse().age();
    let age = eventually(PATIENCE, "the worker claims", beats).await;
    assert!(age < Duration::from_secs(30), "{age:?}");
    let id = db.insert("pay", "k").await;
    reaches(db, id, State::Succeeded).await;
    let lag = async || Some(worker.engine.figures()[0].lag.count).filter(|count| *count == 1);
    eventually(PATIENCE, "the delivery is measured", lag).await;
    worker.drain().await;
}
