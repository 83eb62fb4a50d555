//! Guarantee: no call is made that a budget forbids, by any worker of the fleet, and a budget takes nothing from an effect.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    EffectId,
    downstream::{Attempt, Downstream, Rate, Served},
    effect::Effect,
    outcome::{About, Finding, Outcome, Phase, Verdict},
    state::State,
    store::{Breaker, RegisteredTerms},
};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once, engine,
    faulty::{Fault, FaultyStore, Op},
    reaches, served, unknown,
};
use crate::support::{Script, Scripted, TestDatabase, answer, eventually, key_terms, on_every_database};

on_every_database!(
    a_rate_holds_over_three_workers,
    a_revoked_key_pauses_burns_nothing_and_resumes,
    refused_credentials_pause_even_when_the_database_fails_first,
    a_retry_after_pauses_its_origin_for_the_whole_fleet_and_no_other,
    an_absurd_retry_after_is_capped,
    a_dead_origin_is_left_alone_and_found_again_by_one_call,
    a_settle_never_fails_because_of_a_budget,
    a_pause_by_hand_lets_an_open_call_end_and_begins_no_other,
    one_hanging_target_with_a_backlog_does_not_delay_another,
    a_strangers_endpoint_holds_up_only_its_own_effects,
    a_paused_effect_that_would_pass_its_window_is_parked,
);

const ORIGIN: &str = "https://api.example.com";

fn at_origin(name: &str, downstream: &Arc<Scripted>, terms: RegisteredTerms) -> Served {
    Served { origin: Some(ORIGIN.into()), ..served(name, downstream, terms) }
}

async fn worker(db: &TestDatabase, name: &str, served: Vec<Served>) -> Running {
    Running::start(engine(db.another_store().await, name, served))
}

fn refused() -> Outcome {
    let outcome = Outcome::new(Finding::NotApplied, Phase::Done, "HTTP 401 from api.example.com:443");
    Outcome { refuses_us: true, ..outcome }
}

/// What a stranger shows that wants credentials of its own.
fn not_ours() -> Outcome {
    Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "HTTP 401 from locked:443")
}

fn busy(seconds: u64) -> Outcome {
    let retry_after = Some(Duration::from_secs(seconds));
    Outcome { retry_after, ..Outcome::new(Finding::NotApplied, Phase::Done, "HTTP 429") }
}

async fn all_succeed(db: &TestDatabase, ids: &[EffectId]) {
    for id in ids {
        reaches(db, *id, State::Succeeded).await;
    }
}

/// I9: counted in every window of the recorded calls; each may begin up to a second after it was granted.
async fn a_rate_holds_over_three_workers(db: &TestDatabase) {
    let rate = Rate { calls: 40, period: Duration::from_secs(1) };
    let downstream = Scripted::applying();
    let ids = db.insert_many("pay", "k", 60).await;
    let mut workers = Vec::new();
    for name in ["w1", "w2", "w3"] {
        let of = Served { rate: Some(rate), ..served("pay", &downstream, key_terms()) };
        workers.push(worker(db, name, vec![of]).await);
    }
    all_succeed(db, &ids).await;
    for worker in workers {
        worker.drain().await;
    }
    let calls: Vec<_> = downstream.calls().iter().map(|call| call.at).collect();
    assert_eq!(calls.len(), 60);
    for (first, began) in calls.iter().enumerate() {
        for (last, ended) in calls.iter().enumerate().skip(first) {
            let window = (*ended - *began).as_secs_f64();
            let count = f64::from(u32::try_from(last - first + 1).unwrap());
            let most = 40.0 * (window + 1.0) + f64::from(rate.burst()) + 1.0;
            assert!(count <= most, "{count} calls in {window} s");
        }
    }
}

/// Must show: a revoked API key pauses, burns nothing, and resumes.
async fn a_revoked_key_pauses_burns_nothing_and_resumes(db: &TestDatabase) {
    let revoked = Arc::new(AtomicBool::new(true));
    let key = revoked.clone();
    let downstream = Scripted::by(move |_| {
        Script::Answer(if key.load(Ordering::SeqCst) { refused() } else { answer(200, "{}") })
    });
    let mut terms = at_once(key_terms());
    // The first refusal would use it up, if it counted.
    terms.policy.max_attempts = 1;
    let ids = db.insert_many("pay", "k", 60).await;
    let of = || vec![at_origin("pay", &downstream, terms.clone())];
    let workers = [worker(db, "w1", of()).await, worker(db, "w2", of()).await];
    eventually(PATIENCE, "the downstream is paused", async || {
        let info = db.store.downstreams().await.expect("listed").remove(0);
        (info.paused.is_some() && info.in_flight == 0).then_some(())
    })
    .await;
    let made = downstream.calls().len();
    assert!(made <= 32, "{made} calls: no more than two workers could have open at one time");
    // A claim round of each worker later nothing more was sent.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(downstream.calls().len(), made);
    for id in &ids {
        let status = db.status(*id).await;
        assert!(matches!(status.state, State::Ready | State::Retrying), "{status:?}");
        assert_eq!(status.held_by.as_deref(), Some("pause"));
    }
    assert_eq!(db.sql.number("SELECT max(attempts) FROM aftercommit.queue").await, 0, "none is counted");
    let logged: usize = db.sql.number("SELECT count(*) FROM aftercommit.attempts").await.try_into().unwrap();
    assert_eq!(logged, made, "and every one is in the log");
    let audit = db.audit(None, 100).await;
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert!(audit[0].reason.as_deref().is_some_and(|why| why.contains("401")), "{audit:?}");
    revoked.store(false, Ordering::SeqCst);
    let ann = aftercommit::verb::Actor { who: "ann".to_owned(), ..Default::default() };
    db.store.resume("pay", &ann, None).await.expect("resuming works");
    all_succeed(db, &ids).await;
    for worker in workers {
        worker.drain().await;
    }
}

async fn refused_credentials_pause_even_when_the_database_fails_first(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let downstream = Scripted::by(|_| Script::Answer(refused()));
    let id = db.insert("pay", "k").await;
    let running = Running::start(engine(store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    store.fail(Op::Budget, &[Fault::Before, Fault::Before]);
    eventually(PATIENCE, "the downstream is paused", async || {
        db.store.downstreams().await.expect("listed").remove(0).paused
    })
    .await;
    assert!(store.faults_hit() > 0);
    running.drain().await;
    assert_eq!(db.status(id).await.held_by.as_deref(), Some("pause"));
}

/// Must show: a Retry-After pauses only its origin, for the whole fleet.
async fn a_retry_after_pauses_its_origin_for_the_whole_fleet_and_no_other(db: &TestDatabase) {
    let asking = Scripted::queue([Script::Answer(busy(3600))]);
    let other = Scripted::applying();
    let of = || {
        let elsewhere =
            Served { origin: Some("https://mail.example.com".into()), ..served("mail", &other, key_terms()) };
        vec![
            at_origin("pay", &asking, at_once(key_terms())),
            at_origin("refund", &asking, key_terms()),
            elsewhere,
        ]
    };
    let workers = [worker(db, "w1", of()).await, worker(db, "w2", of()).await];
    let first = db.insert("pay", "first").await;
    eventually(PATIENCE, "the origin is paused", async || {
        db.store
            .downstreams()
            .await
            .expect("listed")
            .into_iter()
            .find(|info| info.name == "pay")?
            .paused_until
    })
    .await;
    let held = [db.insert("pay", "second").await, db.insert("refund", "third").await, first];
    let mails = db.insert_many("mail", "m", 20).await;
    all_succeed(db, &mails).await;
    assert_eq!(asking.calls().len(), 1, "nobody of the fleet called it again");
    for id in held {
        let status = db.status(id).await;
        assert_eq!(status.held_by.as_deref(), Some("pause"), "{status:?}");
        assert!(status.state.is_pending(), "{status:?}");
    }
    let long_ago = db.engine.before(db.engine.now(), Duration::from_secs(1));
    db.sql.execute(&format!("UPDATE aftercommit.origins SET paused_until = {long_ago}")).await;
    db.sql.execute(&format!("UPDATE aftercommit.queue SET due_at = {long_ago} WHERE lane = 't'")).await;
    all_succeed(db, &held).await;
    for worker in workers {
        worker.drain().await;
    }
}

async fn an_absurd_retry_after_is_capped(db: &TestDatabase) {
    let downstream =
        Scripted::queue([Script::Answer(Outcome { retry_after: Some(Duration::MAX), ..busy(0) })]);
    let id = db.insert("pay", "k").await;
    let of = vec![at_origin("pay", &downstream, key_terms())];
    engine(db.store.clone(), "w", of).run_once(Stop::default()).await.expect("a round");
    let info = db.store.downstreams().await.expect("listed").remove(0);
    let wait = info.paused_until.expect("it is paused").since(db.now().await);
    assert!(wait <= Duration::from_secs(600) && wait > Duration::from_secs(500), "{wait:?}");
    let due = db.status(id).await.due_at.expect("it is due again").since(db.now().await);
    assert!(due <= Duration::from_secs(600), "{due:?}");
    // Zero is no pause.
    let downstream = Scripted::queue([Script::Answer(busy(0))]);
    db.insert("mail", "k").await;
    let of = Served { origin: Some("https://b".into()), ..served("mail", &downstream, key_terms()) };
    engine(db.store.clone(), "w", vec![of]).run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.origins WHERE origin = 'https://b' AND paused_until IS NOT NULL").await, 0);
}

async fn a_dead_origin_is_left_alone_and_found_again_by_one_call(db: &TestDatabase) {
    let dead = Arc::new(AtomicBool::new(true));
    let is_dead = dead.clone();
    let downstream = Scripted::by(move |_| {
        Script::Answer(if is_dead.load(Ordering::SeqCst) { unknown() } else { answer(200, "{}") })
    });
    let ids = db.insert_many("pay", "k", 60).await;
    let of = || vec![at_origin("pay", &downstream, key_terms())];
    let workers = [worker(db, "w1", of()).await, worker(db, "w2", of()).await];
    let breaker = async || db.store.downstreams().await.expect("listed").remove(0).breaker;
    eventually(PATIENCE, "the breaker opens", async || (breaker().await != Breaker::Closed).then_some(()))
        .await;
    eventually(PATIENCE, "what was under way has ended", async || {
        (db.store.downstreams().await.expect("listed").remove(0).in_flight == 0).then_some(())
    })
    .await;
    let before = downstream.calls().len();
    let held = eventually(PATIENCE, "somebody is held", async || {
        for id in &ids {
            let status = db.status(*id).await;
            if status.held_by.as_deref() == Some("breaker") {
                return Some(status);
            }
        }
        None
    })
    .await;
    assert!(held.state.is_pending());
    eventually(PATIENCE, "a trial failed", async || {
        (db.sql.number("SELECT opens FROM aftercommit.origins").await >= 2).then_some(())
    })
    .await;
    let tried = downstream.calls().len() - before;
    assert!(tried <= 3, "{tried} calls: one at a time, a second and more apart");
    dead.store(false, Ordering::SeqCst);
    let due = db.engine.before(db.engine.now(), Duration::from_secs(1));
    db.sql.execute(&format!("UPDATE aftercommit.queue SET due_at = {due} WHERE lane = 't'")).await;
    all_succeed(db, &ids).await;
    eventually(PATIENCE, "the breaker closes", async || (breaker().await == Breaker::Closed).then_some(()))
        .await;
    for worker in workers {
        worker.drain().await;
    }
}

async fn a_settle_never_fails_because_of_a_budget(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let downstream = Scripted::queue([Script::Answer(busy(1))]);
    let ids = db.insert_many("pay", "k", 5).await;
    let of = vec![at_origin("pay", &downstream, at_once(key_terms()))];
    let running = Running::start(engine(store.clone(), "w", of));
    downstream.called(1).await;
    store.fail(Op::Budget, &[Fault::Before, Fault::After, Fault::Before]);
    all_succeed(db, &ids).await;
    eventually(PATIENCE, "the faults are hit", async || (store.faults_hit() == 3).then_some(())).await;
    assert_eq!(running.drain().await.fenced, 0);
}

async fn a_pause_by_hand_lets_an_open_call_end_and_begins_no_other(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let downstream = Scripted::queue([Script::Meet(barrier.clone(), answer(200, "{}"))]);
    let open = db.insert("pay", "open").await;
    let running = worker(db, "w", vec![served("pay", &downstream, key_terms())]).await;
    barrier.wait().await;
    let ann = aftercommit::verb::Actor {
        who: "ann".to_owned(),
        reason: Some("why".to_owned()),
        ..Default::default()
    };
    db.store.pause("pay", &ann).await.expect("pausing works");
    let held = db.insert("pay", "held").await;
    barrier.wait().await;
    reaches(db, open, State::Succeeded).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(downstream.calls().len(), 1);
    assert_eq!(db.status(held).await.held_by.as_deref(), Some("pause"));
    db.store.resume("pay", &ann, None).await.expect("resuming works");
    reaches(db, held, State::Succeeded).await;
    running.drain().await;
}

/// HTTP-09: "One target hanging with 5,000 effects does not delay another's 100 (done in seconds)".
async fn one_hanging_target_with_a_backlog_does_not_delay_another(db: &TestDatabase) {
    let hanging = Scripted::by(|_| Script::Hang);
    let quick = Scripted::applying();
    let many = match db.engine {
        crate::support::Engine::Postgres => "SELECT 'slow', 's-' || n FROM generate_series(1, 5000) AS n",
        crate::support::Engine::Sqlite => {
            "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 5000) SELECT 'slow', 's-' || n FROM s"
        }
    };
    db.sql.execute(&format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) {many}")).await;
    let of = vec![
        Served { origin: Some("https://slow".into()), ..served("slow", &hanging, key_terms()) },
        Served { origin: Some("https://quick".into()), ..served("quick", &quick, key_terms()) },
    ];
    let running = worker(db, "w", of).await;
    hanging.called(16).await;
    let ids = db.insert_many("quick", "q", 100).await;
    all_succeed(db, &ids).await;
    assert!(hanging.open() > 0 && hanging.most_open() <= 16, "it still hangs, in its own slots");
    running.stop.abort.cancel();
    running.drain().await;
}

/// Targets that effects name: the origin is known only once an effect is claimed.
pub(super) struct Endpoints(pub(super) Arc<Scripted>);

#[async_trait::async_trait]
impl Downstream for Endpoints {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        self.0.deliver(attempt).await
    }

    fn origin(&self, effect: &Effect) -> Option<Arc<str>> {
        effect.target.as_deref().map(Into::into)
    }
}

async fn a_strangers_endpoint_holds_up_only_its_own_effects(db: &TestDatabase) {
    let scripted = Scripted::by(|attempt| {
        Script::Answer(match (attempt.effect.target.as_deref(), attempt.number) {
            (Some("https://busy"), 1) if attempt.key == "b-1" => busy(3600),
            (Some("https://locked"), _) => not_ours(),
            (Some("https://trusted"), _) => refused(),
            _ => answer(200, "{}"),
        })
    });
    let of = || {
        let endpoints = Served {
            downstream: Arc::new(Endpoints(scripted.clone())),
            ..served("hooks", &scripted, at_once(key_terms()))
        };
        vec![endpoints]
    };
    let running = worker(db, "w", of()).await;
    let first = db.insert_with("hooks", "b-1", &[("target", "'https://busy'")]).await;
    eventually(PATIENCE, "the endpoint asked for patience", async || {
        (db.sql.number("SELECT count(*) FROM aftercommit.origins").await == 1).then_some(())
    })
    .await;
    let second = db.insert_with("hooks", "b-2", &[("target", "'https://busy'")]).await;
    let locked = db.insert_with("hooks", "l", &[("target", "'https://locked'")]).await;
    let free = db.insert_with("hooks", "f", &[("target", "'https://free'")]).await;
    // A refusal of a stranger is its own: that effect fails, and nobody is paused.
    all_succeed(db, &[free]).await;
    reaches(db, locked, State::Failed).await;
    assert!(db.store.downstreams().await.expect("listed").remove(0).paused.is_none());
    let due = eventually(PATIENCE, "it is put off", async || {
        let status = db.status(second).await;
        status.due_at.filter(|_| !matches!(status.state, State::Ready | State::InFlight))
    })
    .await;
    assert!(due.since(db.now().await) > Duration::from_secs(300), "until the pause ends");
    assert_eq!(db.status(second).await.attempts, 0, "nothing was attempted");
    assert_eq!(scripted.calls().iter().filter(|call| call.key == "b-2").count(), 0);
    assert_eq!(db.log(first).await.iter().map(|row| row.outcome).collect::<Vec<_>>(), [Verdict::NotApplied]);
    // One that had our credentials and refuses them tells of all.
    db.insert_with("hooks", "t", &[("target", "'https://trusted'")]).await;
    eventually(PATIENCE, "the downstream is paused", async || {
        db.store.downstreams().await.expect("listed").remove(0).paused
    })
    .await;
    running.drain().await;
}

async fn a_paused_effect_that_would_pass_its_window_is_parked(db: &TestDatabase) {
    let downstream = Scripted::queue([Script::Answer(unknown())]);
    let id = db.insert("pay", "k").await;
    let of = || vec![at_origin("pay", &downstream, at_once(key_terms()))];
    engine(db.store.clone(), "w1", of()).run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.status(id).await.last_outcome, Some(Verdict::Unknown));
    let ann = aftercommit::verb::Actor { who: "ann".to_owned(), ..Default::default() };
    db.store.pause("pay", &ann).await.expect("pausing works");
    db.shift_back("queue", "first_sent_at", id, Duration::from_secs(24 * 3600)).await;
    db.shift_back("queue", "sweep_at", id, Duration::from_secs(24 * 3600)).await;
    engine(db.store.clone(), "w2", of()).run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.state(id).await, State::InDoubt);
    assert_eq!(downstream.calls().len(), 1);
}
