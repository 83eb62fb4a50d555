//! Guarantee: a drain finishes what is open, claims nothing more, and charges nothing to what it gives back; a stop leaves
//! open calls to the sweep.

use std::sync::Arc;

use aftercommit::{outcome::Verdict, state::State};
use tokio::sync::Barrier;

use super::{Running, engine, reaches, served};
use crate::support::{Script, Scripted, TestDatabase, answer, key_terms, on_every_database};

on_every_database!(
    a_drain_finishes_open_calls_and_claims_nothing_more,
    a_stop_leaves_open_calls_to_the_sweep,
    until_idle_ends_when_nothing_is_due_or_in_flight,
);

/// CRASH-10.
async fn a_drain_finishes_open_calls_and_claims_nothing_more(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let downstream = Scripted::by(move |_| Script::Meet(gate.clone(), answer(200, "{}")));
    let open = db.insert("pay", "open").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    barrier.wait().await;
    worker.stop.drain.cancel();
    let waiting = db.insert("pay", "waiting").await;
    barrier.wait().await;
    worker.ended().await;
    assert_eq!(db.state(open).await, State::Succeeded);
    let status = db.status(waiting).await;
    assert_eq!((status.state, status.attempts), (State::Ready, 0));
    assert!(db.store.workers().await.expect("workers").iter().all(|worker| !worker.live), "it signed off");
}

/// CRASH-08.
async fn a_stop_leaves_open_calls_to_the_sweep(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    downstream.called(1).await;
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
    assert_eq!(db.state(id).await, State::InFlight, "interrupted, not failed");
    let ended = db.engine.before(db.engine.now(), std::time::Duration::from_secs(1));
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let next = Scripted::applying();
    let mut of = served("pay", &next, key_terms());
    of.terms.policy.initial = std::time::Duration::from_millis(1);
    of.terms.policy.max = std::time::Duration::from_millis(1);
    engine(db.store.clone(), "sweeper", vec![of.clone()]).run_once().await.expect("a sweep");
    let worker = Running::start(engine(db.store.clone(), "next", vec![of]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let verdicts: Vec<Verdict> = db.log(id).await.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(verdicts, [Verdict::Unknown, Verdict::Applied]);
}

async fn until_idle_ends_when_nothing_is_due_or_in_flight(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let ids = db.insert_many("pay", "k", 40).await;
    let worker = engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]);
    let report = worker.run_until_idle(aftercommit::engine::Stop::default()).await.expect("it ends");
    assert_eq!(report.settled, 40);
    for id in ids {
        assert_eq!(db.state(id).await, State::Succeeded);
    }
}
