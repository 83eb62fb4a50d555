//! Guarantee: a database that went back, or is a copy, sends nothing until a person has looked; and then what may have been sent
//! is uncertain.

use std::sync::{Arc, Mutex};

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    engine::{Engine, Journal},
    state::State,
    store::{
        RegisteredTerms,
        identity::{Hold, Identity, Lifted, Remembered},
    },
    verb::Actor,
};

use super::{
    PATIENCE, Running, engine,
    faulty::{FaultyStore, Op},
    reaches, served,
};
use crate::support::{
    self, Asked, Scripted, Settling, TestDatabase, Worker, eventually, key_terms, lookup_terms, none_terms,
    on_every_database, on_postgres, registered,
};

on_every_database! {
    a_database_that_went_back_is_put_on_hold_and_what_was_unfinished_becomes_uncertain,
    what_cannot_be_deduplicated_is_parked_after_a_lift_and_never_resent,
    another_installation_is_put_on_hold_and_nothing_becomes_uncertain,
    what_cannot_have_been_sent_before_the_hold_stays_certain,
    a_worker_that_remembers_nothing_respects_a_hold,
    a_lifted_hold_is_not_entered_again,
    a_claim_on_a_new_connection_is_kept_where_the_server_is_the_one_that_we_knew,
    a_claim_on_a_new_connection_is_given_back_where_the_server_is_another,
    a_prober_compares_before_it_asks,
}
on_postgres! {
    a_copy_in_another_cluster_is_noticed_without_a_journal,
    a_promotion_that_lost_nothing_is_accepted,
    a_promotion_that_lost_the_last_claim_is_put_on_hold,
    a_promotion_that_nobody_can_judge_is_put_on_hold,
    a_promotion_that_the_fleet_accepted_is_no_hold_for_a_worker_that_was_killed,
    what_a_login_may_not_ask_is_not_forgotten,
}

/// A journal in memory: what a file would keep.
#[derive(Default)]
struct Memory(Mutex<Option<Remembered>>);

impl Memory {
    fn holds(&self) -> Remembered {
        self.0.lock().unwrap().clone().expect("a worker has written into the journal")
    }

    fn change(&self, change: impl FnOnce(&mut Remembered)) {
        change(self.0.lock().unwrap().as_mut().expect("a worker has written into the journal"));
    }
}

impl Journal for Memory {
    fn recall(&self) -> Option<Remembered> {
        self.0.lock().unwrap().clone()
    }

    fn write(&self, seen: &Remembered) {
        *self.0.lock().unwrap() = Some(seen.clone());
    }
}

/// A worker of `pay` with these terms; what it remembers is in `memory`.
fn worker(
    db: &TestDatabase,
    downstream: &Arc<Scripted>,
    terms: RegisteredTerms,
    memory: &Arc<Memory>,
) -> Running {
    Running::start(unstarted(db, downstream, terms).with_journal(memory.clone()))
}

fn unstarted(db: &TestDatabase, downstream: &Arc<Scripted>, terms: RegisteredTerms) -> Engine {
    engine(db.store.clone(), "w", vec![served("pay", downstream, terms)])
}

fn always() -> Arc<Scripted> {
    Scripted::applying()
}

fn calls(downstream: &Scripted, key: &str) -> usize {
    downstream.calls().iter().filter(|call| call.key == key).count()
}

async fn held(db: &TestDatabase) -> Hold {
    eventually(PATIENCE, "the fleet is on hold, and everything is marked", async || {
        db.store.hold().await.expect("the hold is readable").filter(|hold| hold.marked || !hold.went_back)
    })
    .await
}

async fn lift(db: &TestDatabase) {
    let actor =
        Actor { who: "ann".to_owned(), reason: Some("it is the right one".to_owned()), ..Actor::default() };
    let lifted = db.store.lift_hold(&actor).await.expect("lifting works");
    assert!(matches!(lifted, Lifted::Done(_)), "{lifted:?}");
}

/// A restore from before anything was sent: what workers wrote is gone, and tokens begin anew.
async fn restore(db: &TestDatabase) {
    for table in ["outcomes", "attempts", "claims", "queue"] {
        db.sql.execute(&format!("DELETE FROM aftercommit.{table}")).await;
    }
    let tokens = match db.engine {
        support::Engine::Postgres => "SELECT setval('aftercommit.tokens', 1, false)",
        support::Engine::Sqlite => "UPDATE aftercommit.token SET last = 0",
    };
    db.sql.execute(tokens).await;
    let due = match db.engine {
        support::Engine::Postgres => "",
        support::Engine::Sqlite => ", due_at",
    };
    db.sql
        .execute(&format!(
            "INSERT INTO aftercommit.queue (id, lane, downstream{due}) SELECT id, 'r', downstream{due} FROM aftercommit.effects"
        ))
        .await;
}

/// Sends one effect and stops; then the database is restored from before.
async fn sent_and_restored(
    db: &TestDatabase,
    downstream: &Arc<Scripted>,
    terms: RegisteredTerms,
    memory: &Arc<Memory>,
) -> EffectId {
    let id = db.insert("pay", "k").await;
    let first = worker(db, downstream, terms, memory);
    reaches(db, id, State::Succeeded).await;
    first.drain().await;
    assert!(memory.holds().exact && memory.holds().token > 0, "{:?}", memory.holds());
    restore(db).await;
    assert_eq!(db.state(id).await, State::Ready, "to the database it was never sent");
    id
}

/// Trap T3.
async fn a_database_that_went_back_is_put_on_hold_and_what_was_unfinished_becomes_uncertain(
    db: &TestDatabase,
) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let id = sent_and_restored(db, &downstream, key_terms(), &memory).await;
    let remembered = memory.holds().token;

    let second = worker(db, &downstream, key_terms(), &memory);
    let hold = held(db).await;
    assert!(hold.went_back && hold.reason.contains("went back"), "{hold:?}");
    let status = db.status(id).await;
    assert!(status.first_sent_at >= Some(status.created_at), "{status:?}");
    assert_eq!(calls(&downstream, "k"), 1, "nothing is sent");

    lift(db).await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
    assert_eq!(
        calls(&downstream, "k"),
        2,
        "the downstream still knows its key: it is sent again, by the ordinary rules"
    );
    let token = db.status(id).await.token;
    assert!(token > remembered, "tokens went on above what was remembered: {token} and {remembered}");
    let audit = db.audit(None, 10).await;
    assert!(audit.iter().any(|row| row.verb == "hold lift" && row.who == "ann"), "{audit:?}");
}

/// Traps T3 and T4.
async fn what_cannot_be_deduplicated_is_parked_after_a_lift_and_never_resent(db: &TestDatabase) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let terms = none_terms(OnUnknown::Hold);
    let id = sent_and_restored(db, &downstream, terms.clone(), &memory).await;
    let second = worker(db, &downstream, terms, &memory);
    held(db).await;
    lift(db).await;
    reaches(db, id, State::InDoubt).await;
    // What came later is sent: the worker had every chance to send the other one too.
    let later = db.insert("pay", "later").await;
    reaches(db, later, State::Succeeded).await;
    second.drain().await;
    assert_eq!(calls(&downstream, "k"), 1);
    assert_eq!(db.state(id).await, State::InDoubt);
}

async fn another_installation_is_put_on_hold_and_nothing_becomes_uncertain(db: &TestDatabase) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let first = worker(db, &downstream, key_terms(), &memory);
    let before = db.insert("pay", "before").await;
    reaches(db, before, State::Succeeded).await;
    first.drain().await;
    db.sql.execute("UPDATE aftercommit.meta SET value = 'another' WHERE key = 'installation'").await;
    let id = db.insert("pay", "k").await;
    let second = worker(db, &downstream, key_terms(), &memory);
    let hold = held(db).await;
    assert!(!hold.went_back && hold.reason.contains("another installation"), "{hold:?}");
    assert_eq!((calls(&downstream, "k"), db.status(id).await.first_sent_at), (0, None));
    lift(db).await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
    assert_eq!(memory.holds().installation, "another");
}

async fn what_cannot_have_been_sent_before_the_hold_stays_certain(db: &TestDatabase) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let terms = none_terms(OnUnknown::Hold);
    let id = sent_and_restored(db, &downstream, terms.clone(), &memory).await;
    let second = worker(db, &downstream, terms, &memory);
    held(db).await;
    let new = db.insert("pay", "new").await;
    assert_eq!(db.status(new).await.first_sent_at, None);
    lift(db).await;
    reaches(db, new, State::Succeeded).await;
    reaches(db, id, State::InDoubt).await;
    second.drain().await;
}

async fn a_worker_that_remembers_nothing_respects_a_hold(db: &TestDatabase) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let id = sent_and_restored(db, &downstream, key_terms(), &memory).await;
    let second = worker(db, &downstream, key_terms(), &memory);
    held(db).await;
    second.drain().await;
    let stranger = Running::start(unstarted(db, &downstream, key_terms()));
    let wants = [support::want("pay", 10, &Vec::new())];
    let claims = db.store.claim("another", &wants).await.expect("claiming works");
    assert!(claims.is_empty(), "a claim respects the hold by itself: {claims:?}");
    assert!(db.store.is_idle(&["pay".into()]).await.expect("it can be asked"), "nothing can be done");
    let report = stranger.drain().await;
    assert_eq!((report.claimed, calls(&downstream, "k")), (0, 1));
    assert_eq!(db.state(id).await, State::Ready);
}

async fn a_lifted_hold_is_not_entered_again(db: &TestDatabase) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let id = sent_and_restored(db, &downstream, key_terms(), &memory).await;
    let (second, third) = (
        worker(db, &downstream, key_terms(), &memory),
        // Of another machine, which remembers as much and comes later.
        Arc::new(Memory(Mutex::new(memory.recall()))),
    );
    held(db).await;
    lift(db).await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
    let third = worker(db, &downstream, key_terms(), &third);
    let more = db.insert("pay", "more").await;
    reaches(db, more, State::Succeeded).await;
    third.drain().await;
    assert_eq!(db.store.hold().await.expect("the hold is readable"), None);
}

async fn a_claim_on_a_new_connection_is_kept_where_the_server_is_the_one_that_we_knew(db: &TestDatabase) {
    let (downstream, store) = (always(), FaultyStore::over(db.store.clone()));
    let id = db.insert("pay", "k").await;
    store.move_during(Op::Claim, 2);
    let worker = Running::start(engine(
        store.clone(),
        "w",
        vec![served("pay", &downstream, none_terms(OnUnknown::Hold))],
    ));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert!(store.faults_hit() > 0, "no claim ran on a new connection");
    assert_eq!(calls(&downstream, "k"), 1);
    let status = db.status(id).await;
    assert_eq!(status.attempts, 1, "{status:?}");
}

async fn a_claim_on_a_new_connection_is_given_back_where_the_server_is_another(db: &TestDatabase) {
    let (downstream, store) = (always(), FaultyStore::over(db.store.clone()));
    let id = db.insert("pay", "k").await;
    let answer = store.hold_answers(Op::Claim);
    store.move_during(Op::Claim, 1);
    let worker = Running::start(engine(store.clone(), "w", vec![served("pay", &downstream, key_terms())]));
    reaches(db, id, State::InFlight).await;
    db.sql.execute("UPDATE aftercommit.meta SET value = 'another' WHERE key = 'installation'").await;
    answer.cancel();
    let hold = held(db).await;
    assert!(!hold.went_back && hold.reason.contains("another installation"), "{hold:?}");
    let report = worker.drain().await;
    let status = db.status(id).await;
    assert_eq!((status.state, status.attempts, status.first_sent_at), (State::Ready, 0, None), "{status:?}");
    assert_eq!((store.calls(Op::Settle), report.claimed, calls(&downstream, "k")), (1, 0, 0));
    assert!(db.log(id).await.is_empty(), "it was never begun");
}

async fn a_prober_compares_before_it_asks(db: &TestDatabase) {
    let (asked, memory) = (Asked::showing(&always(), []), Arc::new(Memory::default()));
    let claiming = Worker::start(&db.store, "w1", vec![registered("pay", lookup_terms())]).await;
    let id = db.insert("pay", "k").await;
    let claim = claiming.claim_one("pay").await;
    claiming.settle(Settling::of(&claim).probe_at(claim.claimed_at, "no answer")).await;
    let found = db.store.identity().await.expect("the database says which it is");
    memory.write(&Remembered { token: found.token + 1, ..Remembered::of(&found) });
    let served = support::served("pay", asked.clone(), lookup_terms());
    let worker = Running::start(engine(db.store.clone(), "w", vec![served]).with_journal(memory));
    held(db).await;
    worker.drain().await;
    assert_eq!((asked.keys(), db.state(id).await), (Vec::new(), State::InDoubt));
}

/// Trap T3: a dump that was restored elsewhere.
async fn a_copy_in_another_cluster_is_noticed_without_a_journal(db: &TestDatabase) {
    let downstream = always();
    let first = Running::start(unstarted(db, &downstream, key_terms()));
    let before = db.insert("pay", "before").await;
    reaches(db, before, State::Succeeded).await;
    first.drain().await;
    db.sql.execute("UPDATE aftercommit.identity SET system_identifier = '4711/5'").await;
    let id = db.insert("pay", "k").await;
    let second = Running::start(unstarted(db, &downstream, key_terms()));
    let hold = held(db).await;
    assert!(hold.went_back && hold.reason.contains("4711/5"), "{hold:?}");
    lift(db).await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
}

/// A worker that sent something, and a server that was promoted since; `change` is what the promotion did.
async fn promoted(db: &TestDatabase, change: &str) -> (Running, Arc<Memory>, Arc<Scripted>) {
    let (downstream, memory) = (always(), Arc::new(Memory::default()));
    let first = worker(db, &downstream, key_terms(), &memory);
    let before = db.insert("pay", "before").await;
    reaches(db, before, State::Succeeded).await;
    first.drain().await;
    memory.change(|remembered| remembered.timeline = Some(0));
    db.sql.execute("UPDATE aftercommit.identity SET timeline = 0").await;
    db.sql.execute(change).await;
    (worker(db, &downstream, key_terms(), &memory), memory, downstream)
}

/// Trap T2.
async fn a_promotion_that_lost_nothing_is_accepted(db: &TestDatabase) {
    let (second, memory, downstream) = promoted(db, "SELECT 1").await;
    let id = db.insert("pay", "k").await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
    assert_eq!(memory.holds().timeline, Some(1));
    assert_eq!(db.sql.number("SELECT timeline FROM aftercommit.identity").await, 1);
    assert_eq!(calls(&downstream, "before"), 1);
}

/// Trap T2: executed, but the row is gone. The sequence is logged ahead, so that tokens do not tell.
async fn a_promotion_that_lost_the_last_claim_is_put_on_hold(db: &TestDatabase) {
    let lost = "DELETE FROM aftercommit.outcomes; DELETE FROM aftercommit.attempts; DELETE FROM aftercommit.claims;
                INSERT INTO aftercommit.queue (id, lane, downstream) SELECT id, 'r', downstream FROM aftercommit.effects";
    let (second, memory, downstream) = promoted(db, lost).await;
    let hold = held(db).await;
    assert!(hold.went_back && hold.reason.contains("last claim"), "{hold:?}");
    second.drain().await;
    assert_eq!(calls(&downstream, "before"), 1, "it is not sent again as if it were new");
    assert!(memory.holds().last_claim.is_some());
}

async fn a_promotion_that_nobody_can_judge_is_put_on_hold(db: &TestDatabase) {
    let (second, memory, _downstream) = promoted(db, "SELECT 1").await;
    second.drain().await;
    memory.change(|remembered| (remembered.timeline, remembered.exact) = (Some(0), false));
    db.sql.execute("UPDATE aftercommit.identity SET timeline = 0").await;
    let third = worker(db, &always(), key_terms(), &memory);
    let hold = held(db).await;
    assert!(hold.reason.contains("did not end well"), "{hold:?}");
    third.drain().await;
}

/// It was killed before a switchover, which others judged.
async fn a_promotion_that_the_fleet_accepted_is_no_hold_for_a_worker_that_was_killed(db: &TestDatabase) {
    let (second, memory, _downstream) = promoted(db, "SELECT 1").await;
    let id = db.insert("pay", "k").await;
    reaches(db, id, State::Succeeded).await;
    second.drain().await;
    memory.change(|remembered| (remembered.timeline, remembered.exact) = (Some(0), false));
    let third = worker(db, &always(), key_terms(), &memory);
    let more = db.insert("pay", "more").await;
    reaches(db, more, State::Succeeded).await;
    third.drain().await;
    assert_eq!(db.store.hold().await.expect("the hold is readable"), None);
}

async fn what_a_login_may_not_ask_is_not_forgotten(db: &TestDatabase) {
    let found = db.store.identity().await.expect("the database says which it is");
    db.store.accept(&found).await.expect("it is written down");
    let untold = Identity { system_identifier: None, timeline: None, ..found.clone() };
    db.store.accept(&untold).await.expect("nothing is written down");
    let accepted =
        db.store.identity().await.expect("the database says which it is").accepted.expect("a cluster");
    assert!(found.system_identifier.is_some(), "{found:?}");
    assert_eq!((accepted.system_identifier, accepted.timeline), (found.system_identifier, found.timeline));
}
