//! Guarantee: what is in doubt at a downstream that can be asked is settled by what it shows, sent again only once it was seen
//! absent twice, and never by a probe itself; probes lose to people, survive kills, and are in nobody's way.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    downstream::Served,
    outcome::Sighting::{Absent, Applied, Unproven},
    state::State,
    store::{Acted, RegisteredTerms},
    verb::{Actor, Verb},
};
use tokio::sync::Barrier;

use super::{
    PATIENCE, Running, Stop, at_once, engine,
    faulty::{Fault, FaultyStore, Op},
    reaches, unknown,
};
use crate::support::{
    Asked, Look, Script, Scripted, TestDatabase, answer, eventually, key_terms, lookup_terms,
    on_every_database, within,
};

on_every_database!(
    an_effect_that_is_found_succeeds_with_what_was_found_and_is_not_sent_again,
    an_effect_that_is_absent_twice_is_sent_again_with_the_same_key,
    a_pending_object_between_two_absences_keeps_the_effect_in_doubt,
    an_absence_counts_from_the_end_of_the_lease_of_a_worker_that_was_killed,
    what_a_person_resolved_during_a_probe_stands,
    a_probe_whose_worker_is_killed_is_made_again_and_sends_nothing,
    an_effect_past_the_window_of_its_key_is_probed,
    a_cancelled_effect_that_is_absent_twice_is_cancelled,
    an_expired_effect_that_is_absent_twice_is_expired,
    an_effect_whose_request_would_change_is_not_asked_about,
    a_paused_downstream_is_not_asked,
    a_worker_that_ends_when_idle_makes_the_probes_that_are_due,
    a_worker_that_ends_when_idle_waits_for_the_answer_of_its_claim_of_probes,
    one_round_makes_the_probes_that_are_due,
    nobody_is_asked_for_probes_where_no_downstream_can_be_asked,
    probes_that_hang_do_not_hold_up_sends,
    a_probe_survives_an_outage_at_its_settle,
    probes_that_were_claimed_at_another_server_are_given_back_unmade,
);

fn by_hand() -> Actor {
    Actor { who: "ops".to_owned(), reason: Some("looked it up".to_owned()), ..Actor::default() }
}

/// A downstream that can be asked, with timeouts that no busy machine comes near: what a test waits for is moved into the past
/// by [`let_pass`].
fn terms() -> RegisteredTerms {
    let mut terms = at_once(lookup_terms());
    terms.contract.margin = Duration::ZERO;
    terms.contract.absent_after = Duration::from_millis(50);
    terms
}

/// Longer than any request here travels, shorter than an hour.
const TRAVEL: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn served(asked: &Arc<Asked>, terms: RegisteredTerms) -> Served {
    crate::support::served("pay", asked.clone(), terms)
}

/// Sent once with an unknown outcome, then applied.
fn unknown_once() -> Arc<Scripted> {
    Scripted::queue([Script::Answer(unknown())])
}

fn start(db: &TestDatabase, asked: &Arc<Asked>, terms: RegisteredTerms) -> Running {
    Running::start(engine(db.store.clone(), "w", vec![served(asked, terms)]))
}

/// An effect that was sent once, is in doubt, and whose probe is due: its request has stopped travelling.
async fn doubtful(db: &TestDatabase, asked: &Arc<Asked>, terms: RegisteredTerms, key: &str) -> EffectId {
    let id = db.insert("pay", key).await;
    send(db, asked, terms).await;
    assert_eq!((db.state(id).await, asked.keys().len()), (State::InDoubt, 0), "its request may travel");
    let_pass(db, id).await;
    id
}

async fn send(db: &TestDatabase, asked: &Arc<Asked>, terms: RegisteredTerms) {
    engine(db.store.clone(), "sender", vec![served(asked, terms)])
        .run_once(Stop::default())
        .await
        .expect("a round");
}

/// The request of an effect in doubt has stopped travelling.
async fn let_pass(db: &TestDatabase, id: EffectId) {
    for column in ["due_at", "quiet_at"] {
        db.shift_back("queue", column, id, TRAVEL).await;
    }
}

/// Waits until a worker has claimed the one probe that is due.
async fn claimed(db: &TestDatabase) {
    let due = async || db.store.probe_is_due(&["pay".into()]).await.expect("asking works");
    eventually(PATIENCE, "the probe is claimed", async || (!due().await).then_some(())).await;
}

async fn last_error(db: &TestDatabase, id: EffectId) -> String {
    db.status(id).await.last_error.unwrap_or_default()
}

async fn an_effect_that_is_found_succeeds_with_what_was_found_and_is_not_sent_again(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let worker = start(db, &asked, terms());
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let status = db.status(id).await;
    assert_eq!(status.response.as_ref().map(|json| json.get()), Some(r#"{"id":"seen"}"#));
    assert!(last_error(db, id).await.contains("found that it was applied"), "{status:?}");
    assert_eq!(asked.keys(), ["k"]);
    assert_eq!(asked.sent.calls().len(), 1);
    assert_eq!(db.log(id).await.len(), 1, "a probe is no attempt");
}

async fn an_effect_that_is_absent_twice_is_sent_again_with_the_same_key(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Absent; 10].map(Look::Shows));
    let id = doubtful(db, &asked, terms(), "k").await;
    let worker = start(db, &asked, terms());
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert!(asked.keys().len() >= 2, "asked {} times", asked.keys().len());
    let calls = asked.sent.calls();
    assert!(calls.len() == 2 && calls.iter().all(|call| call.key == "k"), "{calls:?}");
    assert_eq!(db.status(id).await.attempts, 2);
}

async fn a_pending_object_between_two_absences_keeps_the_effect_in_doubt(db: &TestDatabase) {
    let mut terms = terms();
    terms.contract.absent_after = Duration::from_millis(1);
    let looks = [Absent, Unproven, Absent, Unproven, Absent].map(Look::Shows);
    let asked = Asked::showing(&unknown_once(), looks);
    let id = doubtful(db, &asked, terms.clone(), "k").await;
    let worker = start(db, &asked, terms);
    asked.asked(8).await;
    worker.drain().await;
    assert_eq!((db.state(id).await, asked.sent.calls().len()), (State::InDoubt, 1));
}

/// Trap T24: the worker dies with its call open.
async fn an_absence_counts_from_the_end_of_the_lease_of_a_worker_that_was_killed(db: &TestDatabase) {
    let mut terms = at_once(lookup_terms());
    terms.contract.absent_after = Duration::from_secs(3600);
    let hanging = Asked::showing(&Scripted::by(|_| Script::Hang), []);
    let id = db.insert("pay", "k").await;
    let worker = start(db, &hanging, terms.clone());
    hanging.sent.called(1).await;
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
    // The lease ended an hour and a minute ago, although the attempt's own deadline is still to come.
    let ended = db.engine.before(db.engine.now(), Duration::from_secs(60));
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    let asked = Asked::showing(&Scripted::applying(), [Absent; 10].map(Look::Shows));
    let once = || engine(db.store.clone(), "w2", vec![served(&asked, terms.clone())]);
    let before = db.now().await;
    once().run_once(Stop::default()).await.expect("the sweep and a probe");
    let status = db.status(id).await;
    assert_eq!((status.state, asked.keys().len()), (State::InDoubt, 1), "{status:?}");
    let due = status.due_at.expect("it will be probed");
    let (earliest, latest) = (Duration::from_secs(3500), Duration::from_secs(3600));
    assert!(
        due > before.plus(earliest) && due < before.plus(latest),
        "{due} is an hour after the lease's end"
    );
    once().run_once(Stop::default()).await.expect("a round");
    assert_eq!(asked.keys().len(), 1, "not due yet");
    assert!(asked.sent.calls().is_empty());
}

async fn what_a_person_resolved_during_a_probe_stands(db: &TestDatabase) {
    for (verb, state) in [
        (Verb::ResolveNotApplied, State::Failed),
        (Verb::ResolveApplied { response: None }, State::Succeeded),
    ] {
        let barrier = Arc::new(Barrier::new(2));
        let asked = Asked::showing(&unknown_once(), [Look::Meet(barrier.clone(), Unproven)]);
        let id = doubtful(db, &asked, terms(), verb.as_str()).await;
        let worker = start(db, &asked, terms());
        barrier.wait().await;
        let acted = db.store.act(id, &verb, &by_hand(), None).await.expect("acting works");
        assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
        barrier.wait().await;
        let report = worker.drain().await;
        assert_eq!((db.state(id).await, report.fenced), (state, 1), "{verb:?}");
        assert_eq!(asked.sent.calls().len(), 1);
    }
}

async fn a_probe_whose_worker_is_killed_is_made_again_and_sends_nothing(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Hang, Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let worker = start(db, &asked, terms());
    asked.asked(1).await;
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
    let next = || engine(db.store.clone(), "w2", vec![served(&asked, terms())]);
    next().run_once(Stop::default()).await.expect("a round");
    assert_eq!((db.state(id).await, asked.keys().len()), (State::InDoubt, 1), "its lease runs");
    // The lease of the probe ended long ago.
    for table in ["queue", "probes"] {
        db.shift_back(table, "due_at", id, HOUR).await;
    }
    next().run_once(Stop::default()).await.expect("a round");
    assert_eq!(db.state(id).await, State::Succeeded);
    assert_eq!((asked.keys().len(), asked.sent.calls().len()), (2, 1));
}

async fn an_effect_past_the_window_of_its_key_is_probed(db: &TestDatabase) {
    let mut terms = key_terms();
    terms.contract.can_probe = true;
    (terms.policy.initial, terms.policy.max) = (HOUR, HOUR);
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = db.insert("pay", "k").await;
    send(db, &asked, terms.clone()).await;
    assert_eq!(db.state(id).await, State::Retrying, "inside its window it is retried");
    assert!(asked.keys().is_empty());
    let days = Duration::from_secs(2 * 24 * 3600);
    for column in ["first_sent_at", "due_at", "quiet_at"] {
        db.shift_back("queue", column, id, days).await;
    }
    let worker = start(db, &asked, terms.clone());
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!((asked.keys().len(), asked.sent.calls().len()), (1, 1));
}

async fn a_cancelled_effect_that_is_absent_twice_is_cancelled(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let sent = Scripted::queue([Script::Meet(barrier.clone(), unknown())]);
    let asked = Asked::showing(&sent, [Absent; 10].map(Look::Shows));
    let id = db.insert("pay", "k").await;
    let worker = start(db, &asked, terms());
    barrier.wait().await;
    let acted = db.store.act(id, &Verb::Cancel, &by_hand(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    barrier.wait().await;
    reaches(db, id, State::InDoubt).await;
    let_pass(db, id).await;
    reaches(db, id, State::Cancelled).await;
    worker.drain().await;
    assert_eq!(asked.sent.calls().len(), 1);
}

async fn an_expired_effect_that_is_absent_twice_is_expired(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Absent; 10].map(Look::Shows));
    let later = db.engine.after(db.engine.now(), HOUR);
    let id = db.insert_with("pay", "k", &[("expires_at", &later)]).await;
    send(db, &asked, terms()).await;
    assert_eq!(db.state(id).await, State::InDoubt);
    db.shift_back("queue", "expires_at", id, 2 * HOUR).await;
    let_pass(db, id).await;
    let worker = start(db, &asked, terms());
    reaches(db, id, State::Expired).await;
    worker.drain().await;
    assert_eq!(asked.sent.calls().len(), 1);
}

/// Trap T12: what another account or path shows says nothing about what was sent.
async fn an_effect_whose_request_would_change_is_not_asked_about(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Absent; 10].map(Look::Shows));
    let id = doubtful(db, &asked, terms(), "k").await;
    let mut after = served(&asked, terms());
    after.terms.request_sha256 = [8; 32];
    let worker = Running::start(engine(db.store.clone(), "new", vec![after]));
    let parked = async || (db.status(id).await.due_at.is_none()).then_some(());
    eventually(PATIENCE, "it waits for a person", parked).await;
    worker.drain().await;
    assert!(asked.keys().is_empty());
    assert!(last_error(db, id).await.contains("the request would differ"), "{}", last_error(db, id).await);
    assert_eq!((db.state(id).await, asked.sent.calls().len()), (State::InDoubt, 1));
}

async fn a_paused_downstream_is_not_asked(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let once = || engine(db.store.clone(), "w", vec![served(&asked, terms())]);
    let now = db.engine.now();
    db.sql.execute(&format!("UPDATE aftercommit.downstreams SET paused_at = {now}")).await;
    once().run_until_idle(Stop::default()).await.expect("nothing that may be done is due");
    assert!(asked.keys().is_empty());
    db.sql.execute("UPDATE aftercommit.downstreams SET paused_at = NULL").await;
    once().run_until_idle(Stop::default()).await.expect("it is asked");
    assert_eq!((db.state(id).await, asked.keys().len()), (State::Succeeded, 1));
}

async fn a_worker_that_ends_when_idle_makes_the_probes_that_are_due(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Absent), Look::Shows(Absent)]);
    let mut terms = terms();
    terms.contract.absent_after = HOUR;
    let id = doubtful(db, &asked, terms.clone(), "k").await;
    let one = engine(db.store.clone(), "w", vec![served(&asked, terms)]);
    within(PATIENCE, "the worker's end", one.run_until_idle(Stop::default())).await.expect("it works");
    assert_eq!((db.state(id).await, asked.keys().len()), (State::InDoubt, 1), "the next is due in an hour");
}

async fn a_worker_that_ends_when_idle_waits_for_the_answer_of_its_claim_of_probes(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let (store, stop) = (FaultyStore::over(db.store.clone()), Stop::default());
    let answer = store.hold_answers(Op::ClaimProbes);
    let one = engine(store.clone(), "w", vec![served(&asked, terms())]);
    let answered = async {
        claimed(db).await;
        let looks = store.calls(Op::ProbeIsDue);
        // The first may have begun before the claim; a second one comes only where the first did not end the worker.
        let looked =
            async || (store.calls(Op::ProbeIsDue) >= looks + 2 || stop.drain.is_cancelled()).then_some(());
        eventually(PATIENCE, "two more looks at whether a probe is due", looked).await;
        answer.cancel();
    };
    let run = async { tokio::join!(one.run_until_idle(stop.clone()), answered) };
    let (report, ()) = within(PATIENCE, "the worker's end", run).await;
    let report = report.expect("it works");
    assert_eq!((db.state(id).await, report.probed), (State::Succeeded, 1), "{}", last_error(db, id).await);
}

async fn one_round_makes_the_probes_that_are_due(db: &TestDatabase) {
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let one = engine(db.store.clone(), "w", vec![served(&asked, terms())]);
    let report = one.run_once(Stop::default()).await.expect("asked");
    assert_eq!((db.state(id).await, report.probed), (State::Succeeded, 1));
}

async fn nobody_is_asked_for_probes_where_no_downstream_can_be_asked(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    let asked = Asked::showing(&Scripted::applying(), []);
    let worker = Running::start(engine(store.clone(), "w", vec![served(&asked, key_terms())]));
    let claims = async || (store.calls(Op::Claim) >= 5).then_some(());
    eventually(PATIENCE, "five idle looks", claims).await;
    worker.drain().await;
    assert_eq!(store.calls(Op::ClaimProbes), 0);
}

async fn probes_that_hang_do_not_hold_up_sends(db: &TestDatabase) {
    let sent = Scripted::by(|attempt| {
        let doubtful = attempt.key.starts_with("doubt");
        Script::Answer(if doubtful { unknown() } else { answer(200, "{}") })
    });
    let asked = Asked::showing(&sent, std::iter::repeat_n(Look::Hang, 50));
    let doubtful = db.insert_many("pay", "doubt", 20).await;
    let worker = start(db, &asked, terms());
    for id in doubtful {
        reaches(db, id, State::InDoubt).await;
        let_pass(db, id).await;
    }
    asked.asked(4).await;
    let ids = db.insert_many("pay", "fine", 50).await;
    for id in ids {
        reaches(db, id, State::Succeeded).await;
    }
    assert_eq!(asked.keys().len(), 4, "few at one time");
    worker.stop.drain.cancel();
    worker.stop.abort.cancel();
    worker.ended().await;
}

async fn a_probe_survives_an_outage_at_its_settle(db: &TestDatabase) {
    let store = FaultyStore::over(db.store.clone());
    store.fail(Op::SettleProbe, &[Fault::Before, Fault::Strange, Fault::After]);
    let asked = Asked::showing(&unknown_once(), [Look::Shows(Applied)]);
    let id = doubtful(db, &asked, terms(), "k").await;
    let worker = Running::start(engine(store.clone(), "w", vec![served(&asked, terms())]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!((store.faults_hit(), asked.sent.calls().len()), (3, 1));
}

async fn probes_that_were_claimed_at_another_server_are_given_back_unmade(db: &TestDatabase) {
    let (asked, store) = (Asked::showing(&unknown_once(), []), FaultyStore::over(db.store.clone()));
    let id = doubtful(db, &asked, terms(), "k").await;
    let answer = store.hold_answers(Op::ClaimProbes);
    store.move_during(Op::ClaimProbes, 1);
    let worker = Running::start(engine(store.clone(), "w", vec![served(&asked, terms())]));
    claimed(db).await;
    db.sql.execute("UPDATE aftercommit.meta SET value = 'another' WHERE key = 'installation'").await;
    answer.cancel();
    let held = async || db.store.hold().await.expect("the hold is readable");
    eventually(PATIENCE, "the fleet is on HOLD", held).await;
    worker.drain().await;
    assert_eq!((store.faults_hit(), store.calls(Op::SettleProbe), asked.keys().len()), (1, 1, 0));
    let status = db.status(id).await;
    assert!(status.state == State::InDoubt && status.due_at <= Some(db.now().await), "{status:?}");
}
