//! Guarantee: a drain finishes what is open, claims nothing more, and charges nothing to what it gives back; a stop leaves
//! open calls to the sweep.

use std::sync::Arc;

use aftercommit::{outcome::Verdict, state::State};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, engine,
    faulty::{FaultyStore, Op},
    reaches, served,
};
use crate::support::{
    Script, Scripted, TestDatabase, answer, eventually, key_terms, on_every_database, within,
};

on_every_database!(
    a_drain_finishes_open_calls_and_claims_nothing_more,
    a_stop_leaves_open_calls_to_the_sweep,
    until_idle_ends_when_nothing_is_due_or_in_flight,
    until_idle_ends_although_a_call_was_left_to_the_sweep,
    a_drain_ends_although_the_database_takes_no_outcome,
    one_round_is_stopped_like_a_worker,
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
    let ended = db.engine.before(db.engine.now(), 4 * crate::support::LEASE);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let next = Scripted::applying();
    let mut of = served("pay", &next, key_terms());
    of.terms.policy.initial = std::time::Duration::from_millis(1);
    of.terms.policy.max = std::time::Duration::from_millis(1);
    engine(db.store.clone(), "sweeper", vec![of.clone()]).run_once(Stop::default()).await.expect("a sweep");
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
    let report = worker.run_until_idle(Stop::default()).await.expect("it ends");
    assert_eq!(report.settled, 40);
    for id in ids {
        assert_eq!(db.state(id).await, State::Succeeded);
    }
}

async fn until_idle_ends_although_a_call_was_left_to_the_sweep(db: &TestDatabase) {
    let downstream = Scripted::by(|attempt| match attempt.number {
        1 => Script::Hang,
        _ => Script::Answer(answer(200, "{}")),
    });
    let id = db.insert("pay", "k").await;
    let worker =
        std::sync::Arc::new(engine(db.store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    let running = tokio_util::task::TaskTracker::new().spawn({
        let worker = worker.clone();
        async move { worker.run_until_idle(Stop::default()).await.expect("it ends") }
    });
    downstream.called(1).await;
    // The lease is gone, and somebody else has settled the effect.
    db.sql.execute("DELETE FROM aftercommit.claims").await;
    db.sql.execute(&format!("DELETE FROM aftercommit.queue WHERE id = {id}")).await;
    within(PATIENCE, "the worker's end", running).await.expect("it does not panic");
    assert_eq!(downstream.calls().len(), 1);
}

/// The grace bounds the whole drain, the writing of outcomes too.
async fn a_drain_ends_although_the_database_takes_no_outcome(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let downstream = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let mut config = super::config("w");
    config.shutdown_grace = std::time::Duration::from_millis(300);
    let of = vec![served("pay", &downstream, key_terms())];
    let clock = Arc::new(aftercommit::clock::SystemClock);
    store.fail(Op::Settle, &[super::faulty::Fault::Before; 1000]);
    let worker =
        Running::start(aftercommit::engine::Engine::new(store.clone(), of, config, clock).expect("it fits"));
    eventually(PATIENCE, "the settle is tried", async || (store.calls(Op::Settle) > 1).then_some(())).await;
    worker.drain().await;
    assert_eq!(db.state(id).await, State::InFlight, "left to the sweep");
}

async fn one_round_is_stopped_like_a_worker(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    let mut config = super::config("w");
    config.shutdown_grace = std::time::Duration::from_millis(100);
    let of = vec![served("pay", &downstream, key_terms())];
    let clock = Arc::new(aftercommit::clock::SystemClock);
    let worker = aftercommit::engine::Engine::new(db.store.clone(), of, config, clock).expect("it fits");
    let stop = Stop::default();
    let round = worker.run_once(stop.clone());
    let told = async {
        downstream.called(1).await;
        stop.drain.cancel();
    };
    let (report, ()) = within(PATIENCE, "the round's end", async { tokio::join!(round, told) }).await;
    report.expect("a round");
    assert_eq!(db.state(id).await, State::InFlight);
}
