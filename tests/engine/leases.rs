//! Guarantee: a worker that lost its lease overwrites nothing, a live one is not swept, and late answers are heard.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    contract::OnUnknown,
    outcome::{About, Finding, Outcome, Phase, Verdict},
    state::State,
};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once, config, engine,
    faulty::{FaultyStore, Op},
    reaches, served,
};
use crate::support::{
    LEASE, Script, Scripted, TestDatabase, answer, eventually, key_terms, none_terms, on_every_database,
    on_postgres,
};

on_every_database!(
    a_worker_that_lost_its_lease_cannot_fail_what_another_applied,
    a_held_effect_is_parked_once_and_the_late_answer_still_settles_it,
    a_busy_runtime_does_not_lose_its_leases,
    at_most_one_renewal_is_on_its_way,
    a_worker_whose_lease_ended_stops_its_call_and_writes_nothing,
);
on_postgres!(a_lease_shorter_than_the_timeout_is_refused);

pub(super) async fn end_all_leases(db: &TestDatabase) {
    let ended = db.engine.before(db.engine.now(), 4 * LEASE);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
}

/// LEASE-05.
async fn a_worker_that_lost_its_lease_cannot_fail_what_another_applied(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let refusal = Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "400: a late refusal");
    let gate = barrier.clone();
    let slow = Scripted::by(move |_| Script::Meet(gate.clone(), refusal.clone()));
    let quick = Scripted::applying();
    let id = db.insert("pay", "k").await;
    let first =
        Running::start(engine(db.store.clone(), "first", vec![served("pay", &slow, at_once(key_terms()))]));
    barrier.wait().await;
    // It claims nothing more: else it could be the one that claims what the sweep frees.
    first.stop.drain.cancel();
    end_all_leases(db).await;
    let second = engine(db.store.clone(), "second", vec![served("pay", &quick, at_once(key_terms()))]);
    second.run_once(Stop::default()).await.expect("a sweep");
    let once_more = async || {
        second.run_once(Stop::default()).await.expect("a round");
        (db.state(id).await == State::Succeeded).then_some(())
    };
    eventually(PATIENCE, "the second worker applies it", once_more).await;
    barrier.wait().await;
    let report = first.drain().await;
    assert_eq!((report.settled, report.fenced), (0, 1));
    assert_eq!(db.state(id).await, State::Succeeded);
    let log = db.log(id).await;
    assert!(log.iter().any(|attempt| attempt.late && attempt.outcome == Verdict::Rejected), "{log:?}");
}

/// The token is kept when a sweep parks: the zombie's answer is decisive and settles.
async fn a_held_effect_is_parked_once_and_the_late_answer_still_settles_it(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let slow = Scripted::by(move |_| Script::Meet(gate.clone(), answer(200, "{}")));
    let other = Scripted::applying();
    let id = db.insert("mail", "k").await;
    let hold = || at_once(none_terms(OnUnknown::Hold));
    let first = Running::start(engine(db.store.clone(), "first", vec![served("mail", &slow, hold())]));
    barrier.wait().await;
    end_all_leases(db).await;
    engine(db.store.clone(), "second", vec![served("mail", &other, hold())])
        .run_once(Stop::default())
        .await
        .expect("a sweep");
    assert_eq!(db.state(id).await, State::InDoubt);
    barrier.wait().await;
    reaches(db, id, State::Succeeded).await;
    first.drain().await;
    assert!(other.calls().is_empty(), "nobody sent it again");
}

/// LEASE-07: renewals go out from a thread of their own.
async fn a_busy_runtime_does_not_lose_its_leases(db: &TestDatabase) {
    let (url, id) = (db.url.clone(), db.insert("pay", "k").await);
    let busy = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store =
                aftercommit::store::connect(&url, &aftercommit::store::Options::default()).await.unwrap();
            let burning = Scripted::by(|_| {
                // Nothing else runs on this thread meanwhile: a lease of two and a half seconds would end.
                std::thread::sleep(Duration::from_secs(5));
                Script::Answer(answer(200, "{}"))
            });
            let mut of = served("pay", &burning, key_terms());
            (of.lease, of.terms.timeout) = (Duration::from_millis(2500), Duration::from_millis(400));
            engine(store, "busy", vec![of]).run_once(Stop::default()).await.unwrap()
        })
    });
    let idle = Scripted::applying();
    let other = Running::start(engine(db.store.clone(), "other", vec![served("else", &idle, key_terms())]));
    let held = async || {
        let status = db.status(id).await;
        assert!(status.state != State::Retrying && status.state != State::InDoubt, "the lease was lost");
        (status.state == State::Succeeded || status.state.is_terminal()).then_some(())
    };
    eventually(PATIENCE, "the busy worker ends its attempt", held).await;
    assert_eq!(busy.join().unwrap().fenced, 0);
    other.drain().await;
    assert_eq!(db.log(id).await.len(), 1);
}

/// RUNTIME-05.
async fn at_most_one_renewal_is_on_its_way(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let slow = Scripted::by(move |_| Script::Meet(gate.clone(), answer(200, "{}")));
    db.insert("pay", "k").await;
    let mut of = served("pay", &slow, key_terms());
    (of.lease, of.terms.timeout) = (Duration::from_secs(2), Duration::ZERO);
    of.terms.timeout = Duration::from_millis(1);
    of.lease = Duration::from_millis(2010);
    let held = store.hold(Op::Renew);
    let mut quick = config("w");
    quick.concurrency = 4;
    let engine = aftercommit::engine::Engine::new(
        store.clone(),
        vec![of],
        quick,
        Arc::new(aftercommit::clock::SystemClock),
    )
    .expect("settings fit");
    let worker = Running::start(engine);
    barrier.wait().await;
    eventually(PATIENCE, "a renewal is asked for", async || (store.calls(Op::Renew) > 0).then_some(())).await;
    // Several ticks pass while it does not come back.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(store.calls(Op::Renew), 1);
    held.notify_one();
    drop(barrier);
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    let freed = async || {
        held.notify_one();
        store.calls(Op::Renew).ge(&1).then_some(())
    };
    eventually(PATIENCE, "the renewal goes on", freed).await;
    worker.ended().await;
}

/// LEASE-03: without renewals the call is stopped when the lease ends here.
async fn a_worker_whose_lease_ended_stops_its_call_and_writes_nothing(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    let mut of = served("pay", &downstream, key_terms());
    (of.lease, of.terms.timeout) = (Duration::from_secs(22), Duration::from_secs(20));
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    downstream.called(1).await;
    // The lease is gone in the database; the next renewal finds that out.
    db.sql.execute("DELETE FROM aftercommit.claims").await;
    let stopped = async || (worker.engine.report().attempted == 1 && downstream.open() == 0).then_some(());
    eventually(PATIENCE, "the call is stopped", stopped).await;
    worker.drain().await;
    assert_eq!(db.log(id).await.len(), 0, "it wrote nothing");
}

/// LEASE-09 and trap T5.
async fn a_lease_shorter_than_the_timeout_is_refused(db: &TestDatabase) {
    let downstream = Scripted::applying();
    let mut of = served("pay", &downstream, key_terms());
    of.lease = of.terms.timeout;
    let refused = aftercommit::engine::Engine::new(
        db.store.clone(),
        vec![of],
        config("w"),
        Arc::new(aftercommit::clock::SystemClock),
    );
    let why = refused.err().expect("refused");
    assert!(why.contains("downstream.pay") && why.contains("lease"), "{why}");
}
