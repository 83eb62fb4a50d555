//! Defends: a bulk does its verb to each effect of a frozen list once, says what became of each, and does nothing more once
//! somebody said so.

use std::time::Duration;

use aftercommit::{
    EffectId,
    error::StoreError,
    state::State,
    store::{Acted, BULK_MAX, BulkInfo, BulkItemRow, BulkState, Control, ItemOutcome, NewBulk, Step},
    verb::{Actor, BulkItem, Refusal, Seen, Verb},
};

use super::stage::{HOUR, Stage, person};
use crate::support::{Settling, TestDatabase, on_every_database, on_every_way};

on_every_way! {
    a_bulk_says_what_became_of_each_effect,
    one_runner_holds_a_bulk_at_a_time,
    nothing_is_done_after_a_pause_or_a_cancel,
    an_item_is_done_once,
    an_act_that_is_refused_leaves_its_item_open,
}

on_every_database! {
    a_control_that_does_not_fit_changes_nothing,
    a_bulk_ends_when_no_item_is_left,
    what_cannot_be_a_bulk_is_refused_unwritten,
    a_long_list_is_kept_in_order,
    old_bulks_go_with_the_history,
}

const LEASE: Duration = Duration::from_secs(30);

fn retry() -> NewBulk {
    let actor = Actor { from: Some("10.0.0.7".to_owned()), ..person() };
    NewBulk { verb: "retry".to_owned(), what: "failed of pay".to_owned(), rate: 25, actor }
}

/// What a person saw of these effects.
async fn seen(db: &TestDatabase, ids: &[EffectId]) -> Vec<(EffectId, Seen)> {
    let mut seen = Vec::new();
    for id in ids {
        let status = db.status(*id).await;
        seen.push((*id, Seen { state: status.state, token: status.token }));
    }
    seen
}

async fn failed(db: &TestDatabase, n: usize) -> Vec<EffectId> {
    let stage = Stage::by_key(db, "pay").await;
    let mut ids = Vec::new();
    for at in 0..n {
        ids.push(stage.failed(db, &format!("k{at}")).await);
    }
    ids
}

async fn started(db: &TestDatabase, ids: &[EffectId]) -> i64 {
    db.store.start_bulk(&retry(), &seen(db, ids).await).await.expect("it starts")
}

async fn info(db: &TestDatabase, id: i64) -> BulkInfo {
    db.store.bulk(id).await.expect("readable").expect("it is there")
}

/// (done, refused, stale, gone)
fn counts(info: &BulkInfo) -> (u32, u32, u32, u32) {
    (info.done, info.refused, info.stale, info.gone)
}

fn as_item(info: &BulkInfo, n: u32) -> Actor {
    Actor {
        who: info.who.clone(),
        reason: info.reason.clone(),
        from: info.from.clone(),
        bulk: Some(BulkItem { bulk: info.id, n }),
        confirmed: true,
    }
}

async fn act(db: &TestDatabase, info: &BulkInfo, item: &BulkItemRow) -> Acted {
    let verb = Verb::of_word(&info.verb).expect("a verb");
    let actor = as_item(info, item.n);
    db.store.act(item.effect, &verb, &actor, Some(item.seen)).await.expect("acting works")
}

async fn items(db: &TestDatabase, id: i64) -> Vec<BulkItemRow> {
    db.store.bulk_items(id, 100).await.expect("readable")
}

async fn take(db: &TestDatabase, runner: &str) -> Option<BulkInfo> {
    db.store.take_bulk(runner, LEASE).await.expect("taking works")
}

async fn keep(db: &TestDatabase, id: i64, runner: &str) -> Option<BulkState> {
    db.store.keep_bulk(id, runner, LEASE).await.expect("keeping works")
}

async fn control(db: &TestDatabase, id: i64, control: Control) -> Option<BulkInfo> {
    db.store.control_bulk(id, control, &person()).await.expect("it is answered")
}

async fn a_bulk_says_what_became_of_each_effect(db: &TestDatabase) {
    let ids = failed(db, 5).await;
    let bulk = started(db, &ids).await;
    // Meanwhile one is retried by hand, one succeeds after that, one is gone.
    for id in &ids[1..3] {
        db.store.act(*id, &Verb::Retry, &person(), None).await.expect("acting works");
    }
    for table in ["outcomes WHERE effect_id", "effects WHERE id"] {
        db.sql.execute(&format!("DELETE FROM aftercommit.{table} = {}", ids[4])).await;
    }
    let held = take(db, "r1").await.expect("it waits for somebody");
    assert_eq!((held.id, held.verb.as_str(), held.rate, held.total), (bulk, "retry", 25, 5));
    assert_eq!((held.who.as_str(), held.from.as_deref()), ("ann", Some("10.0.0.7")));
    for item in items(db, bulk).await {
        assert_eq!(item.effect, ids[item.n as usize - 1], "in order");
        let (outcome, words) = match act(db, &held, &item).await {
            Acted::Done(..) => continue,
            Acted::Refused(refusal @ Refusal::Stale { .. }) => (ItemOutcome::Stale, refusal.to_string()),
            Acted::Refused(refusal) => (ItemOutcome::Refused, refusal.to_string()),
            Acted::NotFound => (ItemOutcome::NotFound, "there is no such effect".to_owned()),
        };
        db.store.bulk_refused(bulk, item.n, outcome, &words).await.expect("it is written down");
        assert_eq!(info(db, bulk).await.total, 5);
    }
    assert!(items(db, bulk).await.is_empty());
    assert_eq!(counts(&info(db, bulk).await), (2, 0, 2, 1), "while it runs");
    db.store.end_bulk(bulk).await.expect("it ends");
    let ended = info(db, bulk).await;
    assert_eq!((ended.state, counts(&ended)), (BulkState::Finished, (2, 0, 2, 1)));
    assert!(ended.finished_at.is_some() && ended.samples.len() == 3, "{ended:?}");
    let refusals: Vec<_> = ended.refusals.iter().map(|one| (one.effect, one.outcome)).collect();
    let stale = [(ids[1], ItemOutcome::Stale), (ids[2], ItemOutcome::Stale)];
    assert_eq!(refusals, [stale[0], stale[1], (ids[4], ItemOutcome::NotFound)], "each with its effect");
    let states = [db.state(ids[0]).await, db.state(ids[3]).await];
    assert_eq!(states, [State::Ready, State::Ready]);
    let audit = db.audit(None, 100).await;
    let of_bulk: Vec<_> = audit.iter().filter(|row| row.bulk == Some(bulk)).collect();
    assert_eq!(of_bulk.len(), 3, "the start, and a row for each that was done: {audit:?}");
    assert_eq!(of_bulk[2].verb, "start bulk");
    assert!(of_bulk[2].reason.as_deref().is_some_and(|why| why.contains("retry of 5 (failed of pay)")));
    assert!(of_bulk.iter().all(|row| row.from.as_deref() == Some("10.0.0.7") && row.who == "ann"));
    assert_eq!(
        db.store.bulks(10).await.expect("readable"),
        [BulkInfo { samples: Vec::new(), refusals: Vec::new(), ..ended }]
    );
}

async fn one_runner_holds_a_bulk_at_a_time(db: &TestDatabase) {
    let ids = failed(db, 2).await;
    let (first, second) = (started(db, &ids[..1]).await, started(db, &ids[1..]).await);
    assert_eq!(take(db, "r1").await.map(|info| info.id), Some(first), "the oldest");
    assert_eq!(take(db, "r2").await.map(|info| info.id), Some(second));
    assert_eq!(take(db, "r3").await, None);
    assert_eq!(keep(db, first, "r1").await, Some(BulkState::Running));
    assert_eq!(keep(db, first, "r2").await, None, "it is not r2's");
    let over = db.engine.before(db.engine.now(), Duration::from_secs(1));
    db.sql.execute(&format!("UPDATE aftercommit.bulks SET lease_until = {over} WHERE id = {first}")).await;
    assert_eq!(keep(db, first, "r1").await, Some(BulkState::Running), "nobody has taken it yet");
    db.sql.execute(&format!("UPDATE aftercommit.bulks SET lease_until = {over} WHERE id = {first}")).await;
    assert_eq!(take(db, "r3").await.map(|info| info.id), Some(first), "r1 was killed");
    assert_eq!(keep(db, first, "r1").await, None);
}

async fn nothing_is_done_after_a_pause_or_a_cancel(db: &TestDatabase) {
    let ids = failed(db, 3).await;
    let bulk = started(db, &ids).await;
    let held = take(db, "r1").await.expect("it waits");
    let todo = items(db, bulk).await;
    assert!(matches!(act(db, &held, &todo[0]).await, Acted::Done(..)));
    let paused = control(db, bulk, Control::Pause).await.expect("it is there");
    assert_eq!((paused.state, counts(&paused)), (BulkState::Paused, (1, 0, 0, 0)));
    let not_now =
        |acted: &Acted| matches!(acted, Acted::Refused(Refusal::NotInBulk { bulk: of }) if *of == bulk);
    let acted = act(db, &held, &todo[1]).await;
    assert!(not_now(&acted), "{acted:?}");
    assert_eq!(db.state(ids[1]).await, State::Failed);
    assert_eq!(take(db, "r2").await, None);
    assert_eq!(keep(db, bulk, "r1").await, Some(BulkState::Paused));
    assert_eq!(keep(db, bulk, "r1").await, None, "it was let go");
    assert_eq!(control(db, bulk, Control::Resume).await.map(|info| info.state), Some(BulkState::Running));
    let again = take(db, "r2").await.expect("at once");
    assert!(matches!(act(db, &again, &todo[1]).await, Acted::Done(..)));
    let cancelled = control(db, bulk, Control::Cancel).await.expect("it is there");
    assert_eq!(
        (cancelled.state, counts(&cancelled), cancelled.total),
        (BulkState::Cancelled, (2, 0, 0, 0), 3)
    );
    assert!(cancelled.finished_at.is_some());
    let acted = act(db, &again, &todo[2]).await;
    assert!(not_now(&acted), "{acted:?}");
    db.store.bulk_refused(bulk, 3, ItemOutcome::Refused, "too late").await.expect("it is heard");
    assert_eq!((db.state(ids[2]).await, counts(&info(db, bulk).await)), (State::Failed, (2, 0, 0, 0)));
    assert_eq!(take(db, "r3").await, None);
    let verbs: Vec<String> = db.audit(None, 100).await.into_iter().map(|row| row.verb).collect();
    assert_eq!(verbs, ["cancel bulk", "retry", "resume bulk", "pause bulk", "retry", "start bulk"]);
}

async fn an_item_is_done_once(db: &TestDatabase) {
    let ids = failed(db, 2).await;
    let bulk = started(db, &ids).await;
    let held = take(db, "r1").await.expect("it waits");
    let actor = as_item(&held, 1);
    let verb = Verb::Retry;
    let wrong = db.store.act(ids[1], &verb, &actor, None).await.expect("acting works");
    assert!(matches!(wrong, Acted::Refused(Refusal::NotInBulk { .. })), "another effect's item: {wrong:?}");
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, actor, verb, id) = (db.another_store().await, actor.clone(), verb.clone(), ids[0]);
        racers.spawn(async move { store.act(id, &verb, &actor, None).await.expect("acting works") });
    }
    let acted = racers.join_all().await;
    assert_eq!(acted.iter().filter(|acted| matches!(acted, Acted::Done(..))).count(), 1, "{acted:?}");
    assert_eq!(db.audit(Some(ids[0]), 10).await.len(), 1);
    assert_eq!(counts(&info(db, bulk).await), (1, 0, 0, 0));
    let unknown = as_item(&BulkInfo { id: 4711, ..held }, 1);
    let acted = db.store.act(ids[1], &verb, &unknown, None).await.expect("acting works");
    assert!(matches!(acted, Acted::Refused(Refusal::NotInBulk { bulk: 4711 })), "{acted:?}");
}

async fn an_act_that_is_refused_leaves_its_item_open(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "done").await;
    stage.done(Settling::of(&claim).succeed()).await;
    let bulk = started(db, &[claim.effect.id]).await;
    let held = take(db, "r1").await.expect("it waits");
    let item = items(db, bulk).await[0];
    let acted = act(db, &held, &item).await;
    assert!(matches!(acted, Acted::Refused(Refusal::State { .. })), "{acted:?}");
    assert_eq!(items(db, bulk).await, [item], "nothing is left of the try");
    db.store.bulk_refused(bulk, 1, ItemOutcome::Refused, "it has succeeded").await.expect("written down");
    db.store.bulk_refused(bulk, 1, ItemOutcome::Stale, "once more").await.expect("it is heard");
    let told = info(db, bulk).await;
    assert_eq!((counts(&told), told.samples), ((0, 1, 0, 0), vec!["it has succeeded".to_owned()]));
}

async fn a_control_that_does_not_fit_changes_nothing(db: &TestDatabase) {
    let ids = failed(db, 1).await;
    let bulk = started(db, &ids).await;
    assert_eq!(control(db, bulk, Control::Resume).await.map(|info| info.state), Some(BulkState::Running));
    control(db, bulk, Control::Cancel).await;
    for late in [Control::Pause, Control::Resume, Control::Cancel] {
        assert_eq!(control(db, bulk, late).await.map(|info| info.state), Some(BulkState::Cancelled));
    }
    assert_eq!(control(db, 4711, Control::Pause).await, None);
    assert_eq!(db.audit(None, 100).await.len(), 2, "the start and the cancel");
}

async fn a_bulk_ends_when_no_item_is_left(db: &TestDatabase) {
    let ids = failed(db, 1).await;
    let bulk = started(db, &ids).await;
    let held = take(db, "r1").await.expect("it waits");
    db.store.end_bulk(bulk).await.expect("it is answered");
    assert_eq!(info(db, bulk).await.state, BulkState::Running, "an item is left");
    act(db, &held, &items(db, bulk).await[0]).await;
    db.store.end_bulk(bulk).await.expect("it ends");
    let ended = info(db, bulk).await;
    db.store.end_bulk(bulk).await.expect("it ends once");
    assert_eq!((ended.state, &info(db, bulk).await), (BulkState::Finished, &ended));
    assert_eq!(keep(db, bulk, "r1").await, None);
}

async fn what_cannot_be_a_bulk_is_refused_unwritten(db: &TestDatabase) {
    let item = (EffectId::new(1), Seen { state: State::Failed, token: 1 });
    let unknown = NewBulk { verb: "pay".to_owned(), ..retry() };
    for (bulk, items) in [(retry(), vec![]), (retry(), vec![item; BULK_MAX + 1]), (unknown, vec![item])] {
        let refused = db.store.start_bulk(&bulk, &items).await.expect_err("it must be refused");
        assert!(matches!(refused, StoreError::Invalid { .. }), "{refused:?}");
    }
    assert!(db.store.bulks(10).await.expect("readable").is_empty() && db.audit(None, 10).await.is_empty());
}

async fn a_long_list_is_kept_in_order(db: &TestDatabase) {
    let seen = Seen { state: State::Failed, token: 3 };
    let items: Vec<_> = (1..=2_500).rev().map(|id| (EffectId::new(id), seen)).collect();
    let bulk = db.store.start_bulk(&retry(), &items).await.expect("it starts");
    let kept = db.store.bulk_items(bulk, 3_000).await.expect("readable");
    assert_eq!(kept.iter().map(|row| (row.effect, row.seen)).collect::<Vec<_>>(), items);
    assert!(kept.iter().zip(1..).all(|(row, n)| row.n == n));
    assert_eq!(info(db, bulk).await.total, 2_500);
}

async fn old_bulks_go_with_the_history(db: &TestDatabase) {
    let seen = Seen { state: State::Failed, token: 3 };
    let items: Vec<_> = (1..=120).map(|id| (EffectId::new(id), seen)).collect();
    let mut bulks = Vec::new();
    for _ in 0..3 {
        bulks.push(db.store.start_bulk(&retry(), &items).await.expect("it starts"));
    }
    for bulk in &bulks[..2] {
        control(db, *bulk, Control::Cancel).await;
    }
    let old = db.engine.before("finished_at", HOUR * 49);
    db.sql
        .execute(&format!("UPDATE aftercommit.bulks SET finished_at = {old} WHERE id = {}", bulks[0]))
        .await;
    let mut batches = 0;
    while db.store.drop_batch(Step::History, HOUR, 50).await.expect("the step runs").more {
        batches += 1;
        assert!(batches < 20, "it does not end");
    }
    assert!(batches > 1, "a batch is bounded");
    let left: Vec<i64> = db.store.bulks(10).await.expect("readable").iter().map(|info| info.id).collect();
    assert_eq!(left, [bulks[2], bulks[1]], "what has not ended, and what ended today, whatever the age");
    let orphans =
        "SELECT count(*) FROM aftercommit.bulk_items WHERE bulk NOT IN (SELECT id FROM aftercommit.bulks)";
    assert_eq!(db.sql.number(orphans).await, 0);
}
