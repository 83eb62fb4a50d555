//! Guarantee: what the fleet shares of a downstream (rate, pauses, breaker) is kept by every worker, and costs no outcome.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::Timestamp,
    downstream::Rate,
    state::State,
    store::{
        Breaker, DownstreamInfo, FAILURES_TO_OPEN, PauseActed, RegisteredDownstream, Report, Sign, Want,
    },
};
use tokio::task::JoinSet;

use super::stage::person;
use crate::support::{
    Chance, Settling, TestDatabase, Worker, key_terms, on_every_database, on_postgres, registered, want,
};

on_every_database!(
    a_rate_is_never_exceeded_however_many_ask,
    calls_given_back_are_granted_again,
    nothing_is_taken_from_a_rate_while_nothing_is_due,
    an_origin_that_nobody_tried_for_a_day_is_forgotten,
    a_pause_by_hand_is_kept_by_the_claim_and_audited_with_who_and_why,
    a_pause_and_a_resume_say_when_there_is_nothing_to_do,
    refused_credentials_pause_once_and_say_so,
    a_retry_after_is_kept_by_the_claim_for_its_origin_only,
    a_pause_of_an_origin_is_never_shortened,
    a_breaker_opens_over_the_fleet_and_lets_one_call_through_at_a_time,
    a_prober_that_died_does_not_keep_the_breaker_half_open,
    an_answer_closes_the_breaker_and_is_forgotten,
    effects_that_waited_out_a_hold_are_all_claimed_afterwards,
    workers_that_report_the_same_origins_do_not_deadlock,
    what_holds_a_downstream_is_idle,
    a_put_off_effect_keeps_its_attempts_and_a_persons_resend,
);

on_postgres!(roles_may_do_what_they_must_and_no_more);

pub(super) const ORIGIN: &str = "https://api.example.com";

pub(super) fn at_origin(name: &str, origin: &str) -> RegisteredDownstream {
    RegisteredDownstream { origin: Some(origin.into()), ..registered(name, key_terms()) }
}

pub(super) async fn info(db: &TestDatabase, name: &str) -> DownstreamInfo {
    let all = db.store.downstreams().await.expect("downstreams are listed");
    all.into_iter().find(|info| info.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

fn report(origin: &str, sign: Sign) -> Report {
    Report { origin: origin.into(), sign, pause: None, reason: "it broke".to_owned() }
}

pub(super) fn pause(origin: &str, seconds: u64) -> Report {
    Report { pause: Some(Duration::from_secs(seconds)), ..report(origin, Sign::Answered) }
}

pub(super) async fn break_it(db: &TestDatabase, origin: &str) {
    let reports = vec![report(origin, Sign::Failed); FAILURES_TO_OPEN as usize];
    db.store.report(&reports).await.expect("reporting works");
}

/// Moves a time of every origin back by an hour.
async fn an_hour_later(db: &TestDatabase, column: &str) {
    let moved = db.engine.before(column, Duration::from_secs(3600));
    db.sql.execute(&format!("UPDATE aftercommit.origins SET {column} = {moved}")).await;
}

async fn held_by(db: &TestDatabase, id: EffectId) -> Option<String> {
    db.status(id).await.held_by
}

/// I9: three workers ask as fast as they can.
async fn a_rate_is_never_exceeded_however_many_ask(db: &TestDatabase) {
    let rate = Rate { calls: 100, period: Duration::from_secs(1) };
    let served = RegisteredDownstream { rate: Some(rate), ..registered("pay", key_terms()) };
    Worker::start(&db.store, "w1", vec![served]).await;
    db.insert("pay", "due").await;
    let began = db.now().await;
    let mut asking = JoinSet::new();
    for _ in 0..3 {
        let store = db.another_store().await;
        asking.spawn(async move {
            let mut calls = 0;
            for _ in 0..40 {
                let granted = store.take("pay", rate, 16).await.expect("taking works");
                assert!(granted.calls <= rate.burst(), "never more than a burst at once");
                calls += granted.calls;
            }
            calls
        });
    }
    let calls: u32 = asking.join_all().await.into_iter().sum();
    let passed = db.now().await.since(began);
    let most = f64::from(rate.burst()) + 100.0 * passed.as_secs_f64();
    assert!(f64::from(calls) <= most + 1.0, "{calls} calls in {passed:?}");
    assert!(calls >= rate.burst(), "some were granted");
}

async fn calls_given_back_are_granted_again(db: &TestDatabase) {
    let rate = Rate { calls: 1, period: Duration::from_secs(3600) };
    let served = RegisteredDownstream { rate: Some(rate), ..registered("pay", key_terms()) };
    Worker::start(&db.store, "w1", vec![served]).await;
    let id = db.insert("pay", "due").await;
    let take = async || db.store.take("pay", rate, 5).await.expect("taking works");
    assert_eq!(held_by(db, id).await, None);
    assert_eq!(take().await.calls, 1);
    let empty = take().await;
    assert_eq!(empty.calls, 0);
    let wait = empty.more_in.expect("something is due");
    assert!(wait > Duration::from_secs(3500) && wait <= Duration::from_secs(3600), "{wait:?}");
    assert_eq!(held_by(db, id).await.as_deref(), Some("pause"), "the rate is used up");
    assert_eq!(db.state(id).await, State::Ready, "which is no state");
    db.store.give_back("pay", rate, 1).await.expect("giving back works");
    assert_eq!(take().await.calls, 1);
    assert_eq!(info(db, "pay").await.rate.as_deref(), Some("1/h"));
}

async fn nothing_is_taken_from_a_rate_while_nothing_is_due(db: &TestDatabase) {
    let rate = Rate { calls: 1, period: Duration::from_secs(3600) };
    let served = RegisteredDownstream { rate: Some(rate), ..registered("pay", key_terms()) };
    Worker::start(&db.store, "w1", vec![served]).await;
    let granted = db.store.take("pay", rate, 5).await.expect("taking works");
    assert_eq!((granted.calls, granted.more_in), (0, None));
    db.insert("pay", "due").await;
    assert_eq!(db.store.take("pay", rate, 5).await.expect("taking works").calls, 1);
}

async fn an_origin_that_nobody_tried_for_a_day_is_forgotten(db: &TestDatabase) {
    break_it(db, ORIGIN).await;
    for (hours, left) in [(23, 1), (25, 0)] {
        let old = db.engine.before(db.engine.now(), Duration::from_secs(hours * 3600));
        db.sql.execute(&format!("UPDATE aftercommit.origins SET changed_at = {old}")).await;
        db.store.maintain().await.expect("upkeep works");
        assert_eq!(
            db.sql.number("SELECT count(*) FROM aftercommit.origins").await,
            left,
            "after {hours} hours"
        );
    }
}

async fn a_pause_by_hand_is_kept_by_the_claim_and_audited_with_who_and_why(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let id = db.insert("pay", "k").await;
    assert_eq!(db.store.pause("pay", &person()).await.expect("pausing works"), PauseActed::Done);
    assert!(worker.claim("pay", 5).await.is_empty());
    assert_eq!(held_by(db, id).await.as_deref(), Some("pause"));
    let paused = info(db, "pay").await.paused.expect("it is shown");
    assert_eq!((paused.who.as_str(), paused.reason.as_deref()), ("ann", Some("the vendor said so")));
    assert_eq!(db.store.resume("pay", &person(), None).await.expect("resuming works"), PauseActed::Done);
    assert_eq!(info(db, "pay").await.paused, None);
    assert_eq!(worker.claim("pay", 5).await.len(), 1);
    let audit = db.audit(None, 10).await;
    let rows: Vec<_> = audit
        .iter()
        .map(|row| (row.verb.as_str(), row.who.as_str(), row.downstream.as_deref(), row.reason.as_deref()))
        .collect();
    let why = Some("the vendor said so");
    assert_eq!(rows, [("resume", "ann", Some("pay"), why), ("pause", "ann", Some("pay"), why)]);
}

async fn a_pause_and_a_resume_say_when_there_is_nothing_to_do(db: &TestDatabase) {
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let acted = db.store.resume("pay", &person(), None).await.expect("resuming works");
    assert_eq!(acted, PauseActed::AsItWas(None));
    db.store.pause("pay", &person()).await.expect("pausing works");
    let again = db.store.pause("pay", &person()).await.expect("pausing works");
    assert!(matches!(&again, PauseActed::AsItWas(Some(paused)) if paused.who == "ann"), "{again:?}");
    assert_eq!(db.store.pause("other", &person()).await.expect("asking works"), PauseActed::NotFound);
    assert_eq!(db.store.resume("other", &person(), None).await.expect("asking works"), PauseActed::NotFound);
    assert_eq!(db.audit(None, 10).await.len(), 1);
}

async fn refused_credentials_pause_once_and_say_so(db: &TestDatabase) {
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let refuse = async |why: &str| db.store.pause_refused("pay", "w1", why).await.expect("pausing works");
    assert!(refuse("HTTP 401\0").await);
    assert!(!refuse("HTTP 403").await, "it is paused already");
    let paused = info(db, "pay").await.paused.expect("it is shown");
    assert_eq!((paused.who.as_str(), paused.reason.as_deref()), ("worker w1", Some("HTTP 401\u{fffd}")));
    let audit = db.audit(None, 10).await;
    assert_eq!(audit.len(), 1);
    assert_eq!((audit[0].verb.as_str(), audit[0].who.as_str()), ("pause", "worker w1"));
}

async fn a_retry_after_is_kept_by_the_claim_for_its_origin_only(db: &TestDatabase) {
    let served = vec![
        at_origin("pay", ORIGIN),
        at_origin("refund", ORIGIN),
        at_origin("mail", "https://mail.example.com"),
        registered("plain", key_terms()),
    ];
    let worker = Worker::start(&db.store, "w1", served).await;
    for name in ["pay", "refund", "mail", "plain"] {
        db.insert(name, "k").await;
    }
    let told = db.store.report(&[pause(ORIGIN, 60)]).await.expect("reporting works");
    assert_eq!(told.len(), 1);
    assert!(worker.claim("pay", 5).await.is_empty());
    assert!(worker.claim("refund", 5).await.is_empty(), "it has the same origin");
    assert_eq!(worker.claim("mail", 5).await.len(), 1);
    assert_eq!(worker.claim("plain", 5).await.len(), 1);
    let shown = info(db, "pay").await;
    assert!(shown.paused_until.expect("it is shown") > db.now().await);
    assert_eq!((shown.breaker, shown.hold_reason.as_deref()), (Breaker::Closed, Some("it broke")));
    let held = db.store.effects(&aftercommit::store::Filter { limit: 10, ..Default::default() }).await;
    let held: Vec<_> =
        held.expect("a page").effects.into_iter().filter(|status| status.held_by.is_some()).collect();
    assert!(held.iter().all(|status| status.held_by.as_deref() == Some("pause")), "{held:?}");
    assert_eq!(held.len(), 2);
    an_hour_later(db, "paused_until").await;
    assert_eq!(worker.claim("pay", 5).await.len(), 1);
    assert_eq!(info(db, "pay").await.paused_until, None);
}

async fn a_pause_of_an_origin_is_never_shortened(db: &TestDatabase) {
    let long = db.store.report(&[pause(ORIGIN, 600)]).await.expect("reporting works")[0].1.paused_until;
    let short = db.store.report(&[pause(ORIGIN, 1)]).await.expect("reporting works")[0].1.paused_until;
    assert_eq!(short, long);
}

async fn a_breaker_opens_over_the_fleet_and_lets_one_call_through_at_a_time(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![at_origin("pay", ORIGIN)]).await;
    let ids = db.insert_many("pay", "k", 3).await;
    let other = db.another_store().await;
    for n in 1..=FAILURES_TO_OPEN {
        assert_eq!(held_by(db, ids[0]).await, None, "closed after {}", n - 1);
        let store = if n % 2 == 0 { &db.store } else { &other };
        store.report(&[report(ORIGIN, Sign::Failed)]).await.expect("reporting works");
    }
    assert_eq!(held_by(db, ids[0]).await.as_deref(), Some("breaker"));
    assert_eq!(info(db, "pay").await.breaker, Breaker::Open);
    assert!(worker.claim("pay", 5).await.is_empty());
    let try_it = async || db.store.begin_trial(ORIGIN, Duration::from_secs(60)).await.expect("asking works");
    assert!(!try_it().await, "it was opened just now");
    an_hour_later(db, "open_until").await;
    assert_eq!(info(db, "pay").await.breaker, Breaker::HalfOpen);
    assert!(try_it().await);
    assert!(!try_it().await, "somebody tries");
    assert!(worker.claim("pay", 5).await.is_empty(), "only the trial's claim goes through");
    let trial = Want { trial: true, ..want("pay", 1, &worker.ids) };
    assert_eq!(db.store.claim("w1", &[trial]).await.expect("claiming works").len(), 1);
}

async fn a_prober_that_died_does_not_keep_the_breaker_half_open(db: &TestDatabase) {
    break_it(db, ORIGIN).await;
    an_hour_later(db, "open_until").await;
    let try_it = async || db.store.begin_trial(ORIGIN, Duration::from_secs(60)).await.expect("asking works");
    assert!(try_it().await);
    assert!(!try_it().await);
    an_hour_later(db, "trial_until").await;
    assert!(try_it().await, "its time is over");
    db.store.report(&[report(ORIGIN, Sign::TrialEnded)]).await.expect("reporting works");
    assert!(try_it().await, "it made no call");
}

async fn an_answer_closes_the_breaker_and_is_forgotten(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![at_origin("pay", ORIGIN)]).await;
    db.insert("pay", "k").await;
    break_it(db, ORIGIN).await;
    db.store.report(&[report(ORIGIN, Sign::Answered)]).await.expect("reporting works");
    assert_eq!(info(db, "pay").await.breaker, Breaker::Closed);
    assert_eq!(worker.claim("pay", 5).await.len(), 1);
    db.store.maintain().await.expect("upkeep works");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.origins").await, 1, "lately in trouble");
    let old = db.engine.before("changed_at", Duration::from_secs(2 * 3600));
    db.sql.execute(&format!("UPDATE aftercommit.origins SET changed_at = {old}")).await;
    db.store.maintain().await.expect("upkeep works");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.origins").await, 0);
}

/// The scan of the ready lane must not pass what it could not look at: some of it commits late, while the claim is held.
async fn effects_that_waited_out_a_hold_are_all_claimed_afterwards(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![at_origin("pay", ORIGIN)]).await;
    db.insert("pay", "first").await;
    let claim = worker.claim_one("pay").await;
    assert_eq!(worker.settle(Settling::of(&claim).succeed()).await, aftercommit::store::Settled::Done);
    let insert = |key: &str| crate::support::insert_sql("pay", key, &[]).replace(" RETURNING id", "");
    let mut late = match db.engine {
        crate::support::Engine::Postgres => Some(db.sql.begin().await),
        // One writer: nothing can commit late.
        crate::support::Engine::Sqlite => None,
    };
    if let Some(late) = &mut late {
        late.execute(&insert("late")).await;
    }
    db.insert("pay", "early").await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).succeed()).await;
    db.store.report(&[pause(ORIGIN, 600)]).await.expect("reporting works");
    // Longer than the time after which the lane is looked at from its floor again.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(worker.claim("pay", 5).await.is_empty());
    if let Some(late) = late {
        late.commit().await;
    }
    db.insert("pay", "meanwhile").await;
    assert!(worker.claim("pay", 5).await.is_empty());
    an_hour_later(db, "paused_until").await;
    let expected = if db.engine == crate::support::Engine::Postgres { 2 } else { 1 };
    assert_eq!(worker.claim("pay", 5).await.len(), expected);
}

/// T22.
async fn workers_that_report_the_same_origins_do_not_deadlock(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let mut reporting = JoinSet::new();
    for _ in 0..4 {
        let (store, mut chance) = (db.another_store().await, chance.fork());
        reporting.spawn(async move {
            for _ in 0..25 {
                let mut origins: Vec<u64> = (0..8).collect();
                chance.shuffle(&mut origins);
                let reports: Vec<Report> = origins
                    .iter()
                    .map(|n| report(&format!("https://{n}.example.com"), Sign::Failed))
                    .collect();
                store.report(&reports).await.expect("no report is refused");
                store.begin_trial("https://3.example.com", Duration::ZERO).await.expect("no trial either");
                store.maintain().await.expect("nor upkeep");
            }
        });
    }
    reporting.join_all().await;
    let failures = db.sql.number("SELECT sum(failures) FROM aftercommit.origins").await;
    assert_eq!(failures, 8 * i64::from(FAILURES_TO_OPEN), "each opened once, and counted no more");
}

async fn what_holds_a_downstream_is_idle(db: &TestDatabase) {
    Worker::start(&db.store, "w1", vec![at_origin("pay", ORIGIN)]).await;
    db.insert("pay", "k").await;
    let names: [Arc<str>; 1] = ["pay".into()];
    let idle = async || db.store.is_idle(&names).await.expect("asking works");
    assert!(!idle().await);
    db.store.report(&[pause(ORIGIN, 60)]).await.expect("reporting works");
    assert!(idle().await, "asked for patience");
    an_hour_later(db, "paused_until").await;
    assert!(!idle().await);
    break_it(db, ORIGIN).await;
    assert!(idle().await, "broken");
}

async fn a_put_off_effect_keeps_its_attempts_and_a_persons_resend(db: &TestDatabase) {
    use aftercommit::{
        decision::{Decision, Resend},
        store::Next,
        verb::Verb,
    };
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let id = db.insert("pay", "k").await;
    let first = worker.claim_one("pay").await;
    worker.settle(Settling::of(&first).park("no answer")).await;
    db.store.act(id, &Verb::Resend, &person(), None).await.expect("acting works");
    let resend = worker.claim_one("pay").await;
    assert_eq!(resend.history.resend, Some(Resend::Confirmed));
    let put_off = aftercommit::store::Settlement {
        decision: Next::Decided(Decision::RetryAt(Timestamp::from_micros(1))),
        ..Settling::of(&resend).give_back()
    };
    assert_eq!(worker.settle(put_off).await, aftercommit::store::Settled::Done);
    let again = worker.claim_one("pay").await;
    assert_eq!(again.history.resend, resend.history.resend, "it is still the one resend");
    assert_eq!((again.history.attempts, again.number), (resend.history.attempts, resend.number));
    assert_eq!(again.history.first_sent_at, resend.history.first_sent_at);
}

async fn roles_may_do_what_they_must_and_no_more(db: &TestDatabase) {
    let may = async |role: &str, privilege: &str, table: &str| {
        let sql = format!("SELECT has_table_privilege('{role}', 'aftercommit.{table}', '{privilege}')");
        db.sql.scalar(&sql).await.as_deref() == Some("t")
    };
    for table in ["origins", "rates"] {
        for privilege in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
            assert!(may("aftercommit_worker", privilege, table).await, "{privilege} on {table}");
            assert!(!may("aftercommit_app", privilege, table).await, "{privilege} on {table}");
        }
        for role in ["aftercommit_viewer", "aftercommit_operator"] {
            assert!(may(role, "SELECT", table).await, "{role} on {table}");
            assert!(!may(role, "UPDATE", table).await, "{role} on {table}");
        }
    }
    let calls =
        "SELECT has_function_privilege($R$, 'aftercommit.pause_refused(text, text, text)', 'EXECUTE')";
    for (role, expected) in [("worker", "t"), ("app", "f"), ("viewer", "f"), ("operator", "f")] {
        let sql = calls.replace("$R$", &format!("'aftercommit_{role}'"));
        assert_eq!(db.sql.scalar(&sql).await.as_deref(), Some(expected), "{role}");
    }
}
