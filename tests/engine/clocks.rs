//! Guarantee: only the database's clock decides. A worker whose machine's clock is wrong sends nothing early, keeps its leases
//! and takes nobody else's; one that was suspended sends nothing under a lease that has ended.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    clock::{Boot, Clock, SystemClock, Timestamp},
    contract::OnUnknown,
    engine::Engine,
    outcome::Verdict,
    state::State,
};
use tokio::sync::Barrier;
use tokio_util::task::TaskTracker;

use super::{
    PATIENCE, Running, Stop, at_once, config,
    faulty::{FaultyStore, Op},
    leases::end_all_leases,
    reaches, served, unknown,
};
use crate::support::{
    LEASE, Script, Scripted, TestDatabase, answer, eventually, key_terms, none_terms, on_every_database,
};

on_every_database!(
    a_wrong_wall_clock_changes_nothing,
    a_worker_that_was_suspended_after_its_claim_sends_nothing,
    a_hold_effect_that_was_swept_and_is_handed_back_unstarted_says_so_in_the_log,
);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The machine's clocks, set wrong.
struct Wrong {
    /// How far the wall clock is off; ahead if `true`.
    wall: (Duration, bool),
    /// By how much the machine has been suspended so far.
    suspended: Mutex<Duration>,
}

impl Clock for Wrong {
    fn boot(&self) -> Boot {
        SystemClock.boot().plus(*self.suspended.lock().unwrap())
    }

    fn wall(&self) -> Timestamp {
        let (by, ahead) = self.wall;
        if ahead { SystemClock.wall().plus(by) } else { SystemClock.wall().minus(by) }
    }
}

/// Trap T18, RETRY-09.
async fn a_wrong_wall_clock_changes_nothing(db: &TestDatabase) {
    for (off, ahead) in
        [(Duration::from_secs(90), true), (Duration::from_secs(90), false), (DAY, true), (DAY, false)]
    {
        let name = format!("pay-{}-{ahead}", off.as_secs());
        let downstream = Scripted::by(|attempt| match (attempt.key.as_str(), attempt.number) {
            ("again", 1) => Script::Answer(unknown()),
            _ => Script::Answer(answer(200, "{}")),
        });
        // Due and expiring within minutes: less than the clock is off.
        let minute = db.engine.after(db.engine.now(), Duration::from_secs(60));
        let later = db.insert_with(&name, "later", &[("due_at", minute.as_str())]).await;
        let living = db.insert_with(&name, "living", &[("expires_at", minute.as_str())]).await;
        let again = db.insert(&name, "again").await;
        let began = db.now().await;
        let mut of = served(&name, &downstream, at_once(key_terms()));
        of.terms.policy.initial = Duration::from_millis(400);
        of.terms.policy.max = Duration::from_millis(400);
        let clock = Wrong { wall: (off, ahead), suspended: Mutex::default() };
        let engine =
            Engine::new(db.store.clone(), vec![of], config("w"), Arc::new(clock)).expect("settings fit");
        let worker = Running::start(engine);
        reaches(db, living, State::Succeeded).await;
        reaches(db, again, State::Succeeded).await;
        let report = worker.drain().await;
        assert_eq!((report.swept, report.fenced), (0, 0), "{name}: its leases run on the database's clock");
        assert_eq!(db.state(later).await, State::Scheduled, "{name}: not before its time");
        let ended = db.now().await;
        for row in db.log(again).await.iter().chain(&db.log(living).await) {
            let end = row.ended_at.expect("it ended");
            // A worker's idea of the database's time is a little ahead of it at most.
            let inside =
                began <= row.started_at && row.started_at <= end && end <= ended.plus(Duration::from_secs(1));
            assert!(inside, "{name}: {began} … {ended}: {row:?}");
        }
        assert!(downstream.calls().iter().all(|call| call.key != "later"));
    }
}

/// Trap T5: the machine sleeps between the claim and the first byte. The lease is over when it wakes, whatever its
/// monotonic clock says; the gate is shut.
async fn a_worker_that_was_suspended_after_its_claim_sends_nothing(db: &TestDatabase) {
    let clock = Arc::new(Wrong { wall: (Duration::ZERO, true), suspended: Mutex::default() });
    let (sleeps, first) = (clock.clone(), AtomicBool::new(true));
    let downstream = Scripted::by(move |_| {
        // Asked before the gate is, as a name is resolved or a connection made.
        if first.swap(false, Ordering::SeqCst) {
            *sleeps.suspended.lock().unwrap() += LEASE;
        }
        Script::Answer(answer(200, "{}"))
    });
    let id = db.insert("pay", "k").await;
    let of = served("pay", &downstream, at_once(key_terms()));
    let engine = Engine::new(db.store.clone(), vec![of.clone()], config("w"), clock).expect("settings fit");
    engine.run_once(Stop::default()).await.expect("a round");
    assert_eq!((downstream.refused(), downstream.calls().len()), (1, 0));
    let status = db.status(id).await;
    assert_eq!((status.state, status.attempts), (State::Ready, 0), "given back: nothing was sent");
    let other = super::engine(db.store.clone(), "other", vec![of]);
    other.run_once(Stop::default()).await.expect("a round");
    assert_eq!((db.state(id).await, downstream.calls().len()), (State::Succeeded, 1));
}

/// As after SIGSTOP: its lease ended, another worker parked the effect as if it had been sent, and then it wakes, renews nothing, and
/// finds the gate shut. The effect is sent after that, once; the log must not read as if it had been resent.
async fn a_hold_effect_that_was_swept_and_is_handed_back_unstarted_says_so_in_the_log(db: &TestDatabase) {
    let clock = Arc::new(Wrong { wall: (Duration::ZERO, true), suspended: Mutex::default() });
    let store = FaultyStore::over(db.store.clone());
    let barrier = Arc::new(Barrier::new(2));
    let gate = barrier.clone();
    let sleeper = Scripted::by(move |_| Script::MeetFirst(gate.clone(), answer(200, "{}")));
    let other = Scripted::applying();
    let of = |downstream: &Arc<Scripted>| served("mail", downstream, at_once(none_terms(OnUnknown::Hold)));
    let id = db.insert("mail", "k").await;
    // From the start: one that is under way while the leases end would tell the first worker that it lost its own.
    let renewal = store.hold(Op::Renew);
    let first = Engine::new(store.clone(), vec![of(&sleeper)], config("first"), clock.clone());
    let first = first.expect("settings fit");
    let slept = TaskTracker::new().spawn(async move { first.run_once(Stop::default()).await });
    barrier.wait().await;
    end_all_leases(db).await;
    *clock.suspended.lock().unwrap() += LEASE;
    let second = super::engine(db.store.clone(), "second", vec![of(&other)]);
    second.run_once(Stop::default()).await.expect("a sweep");
    assert_eq!(db.state(id).await, State::InDoubt, "as far as anybody could know");
    barrier.wait().await;
    let logged = async || (db.log(id).await.len() == 2).then_some(());
    eventually(PATIENCE, "the hand-back is in the log", logged).await;
    let freed = async || {
        renewal.notify_one();
        slept.is_finished().then_some(())
    };
    eventually(PATIENCE, "the first worker ends", freed).await;
    slept.await.expect("it does not panic").expect("a round");
    assert_eq!((sleeper.refused(), sleeper.calls().len()), (1, 0), "it sent nothing");
    second.run_once(Stop::default()).await.expect("a round");
    assert_eq!((db.state(id).await, other.calls().len()), (State::Succeeded, 1));
    let log = db.log(id).await;
    let rows: Vec<_> = log.iter().map(|row| (row.attempt, row.outcome, row.late)).collect();
    let applied = (2, Verdict::Applied, false);
    assert_eq!(rows, [(1, Verdict::Unknown, false), (1, Verdict::NotApplied, true), applied]);
    assert!(log[1].error.as_deref().is_some_and(|said| said.starts_with("not begun")), "{log:?}");
}
