//! Guarantee: a worker that dies again and again uses up the attempts and no more; what a person asked for meanwhile is
//! honoured by whoever finds the wreck; what is in flight is nobody else's.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    Enqueued, IdempotencyKey, NewEffect,
    error::EnqueueError,
    outcome::Verdict,
    state::State,
    store::{Acted, RegisteredTerms},
    verb::{Actor, Refusal, Verb},
};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once, engine,
    faulty::{FaultyStore, Op},
    reaches, served,
};
use crate::support::{
    LEASE, Script, Scripted, TestDatabase, answer, eventually, insert_sql, key_terms, on_every_database,
};

on_every_database!(
    a_crash_loop_uses_up_the_attempts,
    a_cancel_is_honoured_although_the_worker_died,
    a_poison_effect_ends_and_harms_no_neighbour,
    a_key_whose_only_attempt_died_is_not_blocked_in_silence,
    what_is_in_flight_is_not_retried_by_anybody,
    a_backlog_that_is_stopped_in_the_middle_is_called_once_each,
    a_worker_that_cannot_renew_has_ended_its_call_before_another_sends,
);

fn by_hand() -> Actor {
    Actor { who: "ops".to_owned(), reason: Some("it hangs".to_owned()), ..Actor::default() }
}

fn three_attempts() -> RegisteredTerms {
    let mut terms = at_once(key_terms());
    terms.policy.max_attempts = 3;
    terms
}

/// A worker dies with its call open: nothing is written any more, and its lease ends.
async fn dies_in_its_call(db: &TestDatabase, name: &str, downstream: &Arc<Scripted>, terms: RegisteredTerms) {
    let calls = downstream.calls().len();
    let worker = Running::start(engine(db.store.clone(), name, vec![served("pay", downstream, terms)]));
    downstream.called(calls + 1).await;
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
}

/// Every lease has ended, and a worker of another downstream sweeps.
async fn swept(db: &TestDatabase) {
    let ended = db.engine.before(db.engine.now(), 4 * LEASE);
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let idle = Scripted::applying();
    let sweeper = engine(db.store.clone(), "sweeper", vec![served("another", &idle, key_terms())]);
    sweeper.run_once(Stop::default()).await.expect("a sweep");
}

/// CRASH-02 and trap T24: attempts rise with each claim, and end.
async fn a_crash_loop_uses_up_the_attempts(db: &TestDatabase) {
    let hanging = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    for crash in 1..=3 {
        dies_in_its_call(db, &format!("w{crash}"), &hanging, three_attempts()).await;
        assert_eq!(db.status(id).await.attempts, crash, "counted when it was claimed");
        swept(db).await;
    }
    assert_eq!(db.state(id).await, State::InDoubt, "each of them may have been received");
    let worker = Running::start(engine(
        db.store.clone(),
        "w4",
        vec![served("pay", &Scripted::applying(), three_attempts())],
    ));
    let after = db.insert("pay", "after").await;
    reaches(db, after, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(db.state(id).await, State::InDoubt);
    let log = db.log(id).await;
    let rows: Vec<(u32, Verdict)> = log.iter().map(|row| (row.attempt, row.outcome)).collect();
    assert_eq!(rows, [(1, Verdict::Unknown), (2, Verdict::Unknown), (3, Verdict::Unknown)]);
    let calls = hanging.calls();
    assert!(calls.len() == 3 && calls.iter().all(|call| call.key == "k" && call.bytes == calls[0].bytes));
}

/// CRASH-02 and trap T28: a cancel of what is in flight is a request, which the sweep and every later claim know of.
async fn a_cancel_is_honoured_although_the_worker_died(db: &TestDatabase) {
    let hanging = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    let worker =
        Running::start(engine(db.store.clone(), "w1", vec![served("pay", &hanging, three_attempts())]));
    hanging.called(1).await;
    let acted = db.store.act(id, &Verb::Cancel, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(db.state(id).await, State::InFlight, "it cannot be called back");
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
    swept(db).await;
    assert_eq!(db.state(id).await, State::InDoubt, "neither cancelled, for it was sent, nor tried again");
    let applying = Scripted::applying();
    let worker =
        Running::start(engine(db.store.clone(), "w2", vec![served("pay", &applying, three_attempts())]));
    let after = db.insert("pay", "after").await;
    reaches(db, after, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(applying.calls().iter().filter(|call| call.key == "k").count(), 0);
    assert_eq!((db.state(id).await, db.status(id).await.attempts), (State::InDoubt, 1));
}

/// Trap T24.
async fn a_poison_effect_ends_and_harms_no_neighbour(db: &TestDatabase) {
    let downstream = Scripted::by(|attempt| match attempt.key.as_str() {
        "poison" => Script::Panic("no such variant"),
        _ => Script::Answer(answer(200, "{}")),
    });
    let poison = db.insert("pay", "poison").await;
    let good = db.insert_many("pay", "good", 20).await;
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("pay", &downstream, three_attempts())]));
    for id in good {
        reaches(db, id, State::Succeeded).await;
    }
    reaches(db, poison, State::InDoubt).await;
    assert_eq!(worker.drain().await.panics, 3);
    assert_eq!(db.log(poison).await.len(), 3);
}

/// UNIQUE-05.
async fn a_key_whose_only_attempt_died_is_not_blocked_in_silence(db: &TestDatabase) {
    let hanging = Scripted::by(|_| Script::Hang);
    let mut once = at_once(key_terms());
    once.policy.max_attempts = 1;
    let same = || NewEffect::to("pay").key(IdempotencyKey::parse("k").expect("a key"));
    let id = db.sql.enqueue(same()).await.expect("it is written").receipt().id;
    dies_in_its_call(db, "w1", &hanging, once).await;
    let told = db.sql.enqueue(same()).await.expect("it is found");
    assert!(matches!(&told, Enqueued::Pending(receipt) if receipt.state == State::InFlight), "{told:?}");
    swept(db).await;
    assert_eq!(db.state(id).await, State::InDoubt, "resolved by the sweep, not frozen in flight");

    // Whoever enqueues the key again learns which effect it is and how that stands; nothing is written, nothing swallowed.
    let told = db.sql.enqueue(same()).await.expect("it is found");
    assert!(
        matches!(&told, Enqueued::Pending(receipt) if (receipt.id, receipt.state) == (id, State::InDoubt)),
        "{told:?}"
    );
    let other = same().json(&serde_json::json!({"amount": 2})).expect("JSON");
    let told = db.sql.enqueue(other).await;
    assert!(
        matches!(&told, Err(EnqueueError::OtherRequest { id: found, .. }) if *found == id.get()),
        "{told:?}"
    );
    db.sql.refused(&insert_sql("pay", "k", &[])).await;

    db.shift_back("queue", "quiet_at", id, Duration::from_secs(24 * 3600)).await;
    let acted = db.store.act(id, &Verb::ResolveNotApplied, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let told = db.sql.enqueue(same()).await.expect("it is found");
    assert!(matches!(&told, Enqueued::Ended(receipt) if receipt.state == State::Failed), "{told:?}");
}

/// LEASE-11.
async fn what_is_in_flight_is_not_retried_by_anybody(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(11));
    let gate = barrier.clone();
    let downstream = Scripted::by(move |_| Script::Meet(gate.clone(), answer(200, "{}")));
    let ids = db.insert_many("pay", "k", 10).await;
    let of = || vec![served("pay", &downstream, at_once(key_terms()))];
    let first = Running::start(engine(db.store.clone(), "first", of()));
    barrier.wait().await;
    for id in &ids {
        for verb in [Verb::Retry, Verb::Resend] {
            let acted = db.store.act(*id, &verb, &by_hand(), None).await.expect("acting works");
            let in_flight =
                matches!(&acted, Acted::Refused(Refusal::State { state, .. }) if *state == State::InFlight);
            assert!(in_flight, "{verb:?}: {acted:?}");
        }
    }
    // Another instance starts, looks for work and sweeps, several times.
    let second = engine(db.store.clone(), "second", of());
    for _ in 0..3 {
        second.run_once(Stop::default()).await.expect("a round");
    }
    assert_eq!(second.report().claimed, 0);
    barrier.wait().await;
    for id in ids {
        reaches(db, id, State::Succeeded).await;
        assert_eq!(db.status(id).await.attempts, 1);
    }
    first.drain().await;
    assert_eq!(downstream.calls().len(), 10);
}

/// LEASE-15: workers that are stopped in the middle of a backlog and started again give back what they had not begun.
async fn a_backlog_that_is_stopped_in_the_middle_is_called_once_each(db: &TestDatabase) {
    let downstream = Scripted::by(|_| Script::AnswerAfter(Duration::from_millis(3), answer(200, "{}")));
    let ids = db.insert_many("pay", "k", 300).await;
    for stop in 1..=3 {
        let of = vec![served("pay", &downstream, key_terms())];
        let worker = Running::start(engine(db.store.clone(), &format!("w{stop}"), of));
        downstream.called(60 * stop).await;
        worker.drain().await;
        let states = "SELECT count(*) FROM aftercommit.status WHERE state NOT IN ('succeeded', 'ready')";
        assert_eq!(db.sql.number(states).await, 0, "done or as they were, after stop {stop}");
    }
    let of = vec![served("pay", &downstream, key_terms())];
    let rest = engine(db.store.clone(), "last", of).run_until_idle(Stop::default()).await;
    rest.expect("it ends");
    for id in ids {
        let status = db.status(id).await;
        assert_eq!((status.state, status.attempts), (State::Succeeded, 1));
    }
    assert_eq!(downstream.calls().len(), 300, "no effect was called twice");
}

/// LEASE-03: its renewals go nowhere, its call goes on; the timeout ends the call inside the lease, so that there is never a
/// second one at the same time.
async fn a_worker_that_cannot_renew_has_ended_its_call_before_another_sends(db: &TestDatabase) {
    let cut = FaultyStore::over(db.store.clone());
    let slow = Scripted::by(|_| Script::Hang);
    let id = db.insert("pay", "k").await;
    // With a lease this short the second sweeps soon after it starts.
    let short = |downstream: &Arc<Scripted>| {
        let mut of = served("pay", downstream, at_once(key_terms()));
        (of.lease, of.terms.timeout) = (Duration::from_millis(2500), Duration::from_millis(300));
        of
    };
    // Neither a renewal nor an outcome of the first reaches the database.
    let (renewal, settle) = (cut.hold(Op::Renew), cut.hold(Op::Settle));
    let first = Running::start(engine(cut.clone(), "first", vec![short(&slow)]));
    slow.called(1).await;
    first.stop.drain.cancel();
    let open_at_second = Arc::new(std::sync::atomic::AtomicUsize::new(usize::MAX));
    let (seen, watched) = (open_at_second.clone(), slow.clone());
    let quick = Scripted::by(move |_| {
        seen.store(watched.open(), std::sync::atomic::Ordering::SeqCst);
        Script::Answer(answer(200, "{}"))
    });
    let second = Running::start(engine(db.store.clone(), "second", vec![short(&quick)]));
    reaches(db, id, State::Succeeded).await;
    assert_eq!(open_at_second.load(std::sync::atomic::Ordering::SeqCst), 0, "the first call was over");
    let ended = async || {
        settle.notify_one();
        renewal.notify_one();
        (first.engine.report().fenced == 1).then_some(())
    };
    eventually(PATIENCE, "the first worker finds that it lost its lease", ended).await;
    let status = db.status(id).await;
    assert_eq!((status.state, status.attempts), (State::Succeeded, 2));
    second.drain().await;
    let keys: Vec<String> = slow.calls().into_iter().chain(quick.calls()).map(|call| call.key).collect();
    assert_eq!(keys, ["k", "k"], "the same key, once each");
    first.stop.abort.cancel();
    first.ended().await;
}
