//! Guarantee: a database that fails, at whatever moment and however long, loses nothing and doubles nothing.

use std::{sync::Arc, time::Duration};

use aftercommit::{contract::OnUnknown, outcome::Verdict, state::State};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once, engine,
    faulty::{Fault, FaultyStore, Op},
    reaches, served,
};
use crate::support::{
    LEASE, Script, Scripted, TestDatabase, answer, eventually, key_terms, none_terms, on_every_database,
};

on_every_database!(
    a_slow_claim_uses_the_calls_that_a_rate_granted_to_it,
    a_settle_whose_answer_was_lost_is_found_written_and_nothing_is_sent_twice,
    a_settle_that_failed_is_written_later_and_nothing_is_sent_twice,
    a_claim_whose_answer_was_lost_is_swept_and_not_called_by_the_one_that_lost_it,
    an_outage_during_a_call_is_waited_out,
    a_worker_that_starts_before_the_database_registers_when_it_comes,
    an_outcome_that_the_database_refuses_holds_up_no_other,
    an_outcome_is_kept_however_strangely_the_database_fails,
);

/// OUTBOX-07 (b).
async fn a_settle_whose_answer_was_lost_is_found_written_and_nothing_is_sent_twice(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.fail(Op::Settle, &[Fault::After, Fault::After]);
    let downstream = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let report = engine(store.clone(), "w", vec![served("pay", &downstream, key_terms())])
        .run_once(Stop::default())
        .await;
    assert_eq!(store.faults_hit(), 2);
    let report = report.expect("a round");
    assert_eq!((report.settled, report.fenced), (1, 0), "found done, not fenced");
    assert_eq!(db.state(id).await, State::Succeeded);
    assert_eq!(downstream.calls().len(), 1);
    assert_eq!(db.log(id).await.len(), 1);
}

async fn a_settle_that_failed_is_written_later_and_nothing_is_sent_twice(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.fail(Op::Settle, &[Fault::Before; 3]);
    let downstream = Scripted::applying();
    let id = db.insert("mail", "k").await;
    let of = served("mail", &downstream, none_terms(OnUnknown::Hold));
    engine(store.clone(), "w", vec![of]).run_once(Stop::default()).await.expect("a round");
    assert_eq!(store.faults_hit(), 3);
    assert_eq!(db.state(id).await, State::Succeeded);
    assert_eq!(downstream.calls().len(), 1);
}

/// OUTBOX-07 (c): the claim stands in the database, but nobody knows of it.
async fn a_claim_whose_answer_was_lost_is_swept_and_not_called_by_the_one_that_lost_it(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.fail(Op::Claim, &[Fault::After]);
    let downstream = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let of = served("pay", &downstream, at_once(key_terms()));
    let lost = engine(store.clone(), "w", vec![of.clone()]).run_once(Stop::default()).await;
    assert!(lost.is_err(), "the round says that the database failed");
    assert_eq!(store.faults_hit(), 1);
    assert_eq!((db.state(id).await, downstream.calls().len()), (State::InFlight, 0));
    let ended = db.engine.before(db.engine.now(), 4 * LEASE);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let worker = Running::start(engine(db.store.clone(), "next", vec![of]));
    worker_sweeps_without_waiting(db, &worker).await;
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let log = db.log(id).await;
    assert_eq!(
        log.iter().map(|attempt| attempt.outcome).collect::<Vec<_>>(),
        [Verdict::Unknown, Verdict::Applied]
    );
    assert_eq!(downstream.calls().len(), 1);
}

/// A worker waits one lease before it judges others' claims; a round of its own sweeps at once.
async fn worker_sweeps_without_waiting(db: &TestDatabase, _worker: &Running) {
    let idle = Scripted::applying();
    let of = served("another", &idle, key_terms());
    engine(db.store.clone(), "sweeper", vec![of]).run_once(Stop::default()).await.expect("a sweep");
}

async fn an_outage_during_a_call_is_waited_out(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let downstream = Scripted::by(move |_| Script::Meet(gate.clone(), answer(200, "{}")));
    let id = db.insert("mail", "k").await;
    let of = served("mail", &downstream, none_terms(OnUnknown::Hold));
    let worker = Running::start(engine(store.clone(), "w", vec![of]));
    barrier.wait().await;
    store.down(true);
    barrier.wait().await;
    let tried = store.calls(Op::Settle);
    let again = async || (store.calls(Op::Settle) > tried + 2).then_some(());
    eventually(PATIENCE, "the settle is tried again and again", again).await;
    assert_eq!(db.state(id).await, State::InFlight);
    store.down(false);
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert!(store.faults_hit() > 2);
    assert_eq!(downstream.calls().len(), 1);
}

/// DB-02.
async fn a_worker_that_starts_before_the_database_registers_when_it_comes(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.down(true);
    let downstream = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let worker = Running::start(engine(store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    let tried = async || (store.calls(Op::Register) > 2).then_some(());
    eventually(PATIENCE, "registering is tried again", tried).await;
    assert_eq!(db.status(id).await.attempts, 0, "nothing spins");
    store.down(false);
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(db.log(id).await.len(), 1);
}

async fn an_outcome_that_the_database_refuses_holds_up_no_other(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let downstream = Scripted::applying();
    let bad = db.insert("pay", "bad").await;
    store.refuse(bad);
    let good = db.insert_many("pay", "good", 5).await;
    let worker = Running::start(engine(store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    for id in good {
        reaches(db, id, State::Succeeded).await;
    }
    let after = db.insert("pay", "after").await;
    reaches(db, after, State::Succeeded).await;
    worker.drain().await;
    assert!(store.faults_hit() > 0);
    assert_eq!(db.state(bad).await, State::InFlight, "left to the sweep");
}

/// What we know of a call is not thrown away for a full disk, a read-only server or a fault without a name.
async fn an_outcome_is_kept_however_strangely_the_database_fails(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.fail(Op::Settle, &[Fault::Strange; 6]);
    let downstream = Scripted::applying();
    let id = db.insert("mail", "k").await;
    let of = served("mail", &downstream, none_terms(OnUnknown::Hold));
    engine(store.clone(), "w", vec![of]).run_once(Stop::default()).await.expect("a round");
    assert_eq!(store.faults_hit(), 6);
    assert_eq!(db.state(id).await, State::Succeeded);
    assert_eq!(downstream.calls().len(), 1);
}

/// It would spend the rate and send nothing, for as long as claims are slow.
async fn a_slow_claim_uses_the_calls_that_a_rate_granted_to_it(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let slow = store.hold(Op::Claim);
    let downstream = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let rate = Some(aftercommit::downstream::Rate { calls: 1, period: Duration::from_secs(3600) });
    let of = aftercommit::downstream::Served { rate, ..served("pay", &downstream, key_terms()) };
    let one = engine(store.clone(), "w", vec![of]);
    let round = one.run_once(Stop::default());
    // Longer than a call that was granted may wait once it is claimed.
    let later = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        slow.notify_one();
    };
    tokio::join!(round, later).0.expect("a round");
    assert_eq!((db.state(id).await, store.calls(Op::Claim)), (State::Succeeded, 1));
}
