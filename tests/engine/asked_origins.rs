//! Guarantee: probes keep to pauses and breakers like calls, tell the fleet like calls what they show of their origin, and what
//! awaits a probe never waits for ever behind a breaker that nothing else is left to close.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    downstream::Served,
    outcome::{Contact, Sighting::Applied},
    state::State,
    store::{Breaker, DownstreamInfo, FAILURES_TO_OPEN, Report, Sign},
};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once,
    budgets::Endpoints,
    engine,
    faulty::{FaultyStore, Op},
    reaches, unknown,
};
use crate::support::{
    Asked, Look, Script, Scripted, TestDatabase, eventually, key_terms, lookup_terms, on_every_database,
};

on_every_database!(
    a_due_probe_finds_out_that_a_broken_origin_answers_again,
    a_probe_that_gets_no_answer_from_a_broken_origin_leaves_it_alone_for_longer,
    an_origin_that_answers_no_probe_is_left_alone,
    a_probe_that_is_asked_for_patience_pauses_its_origin,
    refuses_us_to_a_probe_pause_the_downstream,
    a_pause_stops_a_probe_between_two_pages,
    effects_that_wait_for_somebody_elses_trial_are_put_off_apart,
);

const ORIGIN: &str = "https://api.example.com";

fn served(asked: &Arc<Asked>) -> Served {
    let mut terms = at_once(lookup_terms());
    // Long enough to look at what is in doubt before it is asked about.
    terms.timeout = Duration::from_secs(5);
    terms.contract.margin = Duration::ZERO;
    Served { origin: Some(ORIGIN.into()), ..crate::support::served("pay", asked.clone(), terms) }
}

fn start(db: &TestDatabase, asked: &Arc<Asked>) -> Running {
    Running::start(engine(db.store.clone(), "w", vec![served(asked)]))
}

async fn once(db: &TestDatabase, asked: &Arc<Asked>) {
    engine(db.store.clone(), "w", vec![served(asked)]).run_once(Stop::default()).await.expect("a round");
}

async fn info(db: &TestDatabase) -> DownstreamInfo {
    db.store.downstreams().await.expect("listed").remove(0)
}

async fn held_by(db: &TestDatabase, id: EffectId) -> Option<String> {
    db.status(id).await.held_by
}

async fn probe_now(db: &TestDatabase, id: EffectId) {
    db.shift_back("queue", "due_at", id, Duration::from_secs(60)).await;
}

/// Effects that were sent once, are in doubt, and whose probes are due; nothing else is left to send.
async fn doubtful(
    db: &TestDatabase,
    looks: impl IntoIterator<Item = Look>,
    n: usize,
) -> (Arc<Asked>, Vec<EffectId>) {
    let sent = Scripted::queue(vec![Script::Answer(unknown()); n]);
    let asked = Asked::showing(&sent, looks);
    let ids = db.insert_many("pay", "k", n).await;
    once(db, &asked).await;
    db.sql.execute("DELETE FROM aftercommit.origins").await;
    for id in &ids {
        assert_eq!(db.state(*id).await, State::InDoubt);
        assert_eq!(held_by(db, *id).await, None, "its probe is not due");
        probe_now(db, *id).await;
    }
    (asked, ids)
}

async fn break_it(db: &TestDatabase) {
    let failed =
        Report { origin: ORIGIN.into(), sign: Sign::Failed, pause: None, reason: "it broke".to_owned() };
    db.store.report(&vec![failed; FAILURES_TO_OPEN as usize]).await.expect("reporting works");
}

async fn a_due_probe_finds_out_that_a_broken_origin_answers_again(db: &TestDatabase) {
    let (asked, ids) = doubtful(db, [Look::Shows(Applied), Look::Shows(Applied)], 2).await;
    break_it(db).await;
    assert_eq!(held_by(db, ids[0]).await.as_deref(), Some("breaker"));
    let worker = start(db, &asked);
    for id in ids {
        reaches(db, id, State::Succeeded).await;
    }
    let closed = async || (info(db).await.breaker == Breaker::Closed).then_some(());
    eventually(PATIENCE, "the breaker closes", closed).await;
    worker.drain().await;
    assert_eq!((asked.keys().len(), asked.sent.calls().len()), (2, 2));
}

async fn a_probe_that_gets_no_answer_from_a_broken_origin_leaves_it_alone_for_longer(db: &TestDatabase) {
    let (asked, _) = doubtful(db, [Look::Tells(Contact::Failed, None)], 1).await;
    break_it(db).await;
    let worker = start(db, &asked);
    let opened = async || (db.sql.number("SELECT opens FROM aftercommit.origins").await == 2).then_some(());
    eventually(PATIENCE, "the trial failed", opened).await;
    assert_eq!(asked.keys().len(), 1);
    worker.drain().await;
}

async fn an_origin_that_answers_no_probe_is_left_alone(db: &TestDatabase) {
    let silent = [const { Look::Tells(Contact::Failed, None) }; 100];
    let (asked, ids) = doubtful(db, silent, 4).await;
    let worker = start(db, &asked);
    let broken = async || {
        // Each is asked again later, by its policy.
        for id in &ids {
            probe_now(db, *id).await;
        }
        (info(db).await.breaker != Breaker::Closed).then_some(())
    };
    eventually(PATIENCE, "the breaker opens", broken).await;
    worker.drain().await;
}

async fn a_probe_that_is_asked_for_patience_pauses_its_origin(db: &TestDatabase) {
    let patience = Some(Duration::from_secs(300));
    let (asked, ids) = doubtful(db, [Look::Tells(Contact::Answered, patience)], 1).await;
    once(db, &asked).await;
    let until = info(db).await.paused_until.expect("it is paused");
    assert!(until > db.now().await.plus(Duration::from_secs(200)), "{until}");
    probe_now(db, ids[0]).await;
    db.shift_back("queue", "due_at", ids[0], Duration::from_secs(600)).await;
    assert_eq!(held_by(db, ids[0]).await.as_deref(), Some("pause"));
    once(db, &asked).await;
    assert_eq!(asked.keys().len(), 1, "nobody asks meanwhile");
}

async fn refuses_us_to_a_probe_pause_the_downstream(db: &TestDatabase) {
    let (asked, ids) = doubtful(db, [Look::Tells(Contact::Refused, None)], 1).await;
    once(db, &asked).await;
    let paused = info(db).await.paused.expect("it is paused");
    assert_eq!(paused.who, "worker w");
    probe_now(db, ids[0]).await;
    assert_eq!(held_by(db, ids[0]).await.as_deref(), Some("pause"));
    assert_eq!(db.state(ids[0]).await, State::InDoubt);
}

async fn a_pause_stops_a_probe_between_two_pages(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let (asked, ids) = doubtful(db, [Look::Pages(barrier.clone())], 1).await;
    let store = FaultyStore::over(db.store.clone());
    let worker = Running::start(engine(store.clone(), "w", vec![served(&asked)]));
    barrier.wait().await;
    let ann = aftercommit::verb::Actor { who: "ann".to_owned(), ..Default::default() };
    db.store.pause("pay", &ann).await.expect("pausing works");
    // Whatever begins after this sees the pause, and has come to its end when the next one begins.
    let looks = store.calls(Op::Budget);
    let looked = async || (store.calls(Op::Budget) >= looks + 2).then_some(());
    eventually(PATIENCE, "two more looks at what holds calls", looked).await;
    barrier.wait().await;
    let report = worker.drain().await;
    assert_eq!((db.state(ids[0]).await, report.probed), (State::InDoubt, 0), "it was given back");
    assert_eq!(held_by(db, ids[0]).await.as_deref(), Some("pause"));
}

/// HTTP-09: a dead target's backlog, due at one time, would be claimed over and over while one call finds out.
async fn effects_that_wait_for_somebody_elses_trial_are_put_off_apart(db: &TestDatabase) {
    let sent = Scripted::applying();
    let mut ids = Vec::new();
    for n in 0..8 {
        let target = format!("'{ORIGIN}'");
        ids.push(db.insert_with("hooks", &format!("k-{n}"), &[("target", &target)]).await);
    }
    break_it(db).await;
    let past = db.engine.before(db.engine.now(), Duration::from_secs(1));
    db.sql.execute(&format!("UPDATE aftercommit.origins SET open_until = {past}")).await;
    assert!(db.store.begin_trial(ORIGIN, Duration::from_secs(60)).await.expect("asking works"));
    let hooks = super::served("hooks", &sent, key_terms());
    let of = Served { downstream: Arc::new(Endpoints(sent.clone())), ..hooks };
    engine(db.store.clone(), "w", vec![of]).run_once(Stop::default()).await.expect("a round");
    let mut due = std::collections::BTreeSet::new();
    for id in ids {
        due.insert(db.status(id).await.due_at.expect("it is due again"));
    }
    let (first, last) = (due.first().expect("some"), due.last().expect("some"));
    assert!(due.len() == 8 && last.since(*first) > Duration::from_millis(500), "{due:?}");
    assert!(sent.calls().is_empty());
}
