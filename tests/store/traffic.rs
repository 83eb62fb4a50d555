//! Defends: the charts add up: what ended is counted once, in the minute in which it ended, however often it is folded.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    clock::Timestamp,
    state::State,
    store::{Latency, Resolution, Step},
    verb::Verb,
};
use tokio::task::JoinSet;

use super::stage::{HOUR, Stage, person};
use crate::support::{Settling, TestDatabase, on_every_database, on_postgres};

on_every_database! {
    traffic_is_what_ended_and_when,
    what_is_taken_back_is_no_traffic,
    minutes_become_hours_and_hours_go,
    folding_at_several_places_loses_nothing,
    latencies_are_of_the_attempts_that_ended_effects_while_their_history_is_kept,
    latencies_read_no_more_than_a_few_of_each_part_of_an_hour,
}

on_postgres! { what_an_older_version_counts_is_no_traffic }

const DAY: Duration = Duration::from_secs(86_400);

/// How many ended since then, by downstream and state.
async fn ended(db: &TestDatabase, since: Timestamp, per: Resolution) -> BTreeMap<(String, State), u64> {
    let mut sums = BTreeMap::new();
    for row in db.store.traffic(since, per).await.expect("readable") {
        assert_eq!(row.at.micros().rem_euclid(per.micros()), 0, "it begins with its minute or hour: {row:?}");
        *sums.entry((row.downstream, row.state)).or_default() += row.effects;
    }
    sums
}

async fn counted(db: &TestDatabase) -> BTreeMap<(String, State), u64> {
    let counts = db.store.counts().await.expect("readable");
    counts
        .into_iter()
        .filter(|count| count.state.is_terminal())
        .map(|count| ((count.downstream, count.state), count.effects))
        .collect()
}

async fn a_day_ago(db: &TestDatabase) -> Timestamp {
    db.now().await.minus(DAY)
}

async fn traffic_is_what_ended_and_when(db: &TestDatabase) {
    let since = a_day_ago(db).await;
    assert!(ended(db, since, Resolution::Minute).await.is_empty());
    let began = db.now().await;
    let (pay, mail) = (Stage::by_key(db, "pay").await, Stage::hold(db, "mail").await);
    for at in 0..3 {
        pay.reach(db, &format!("ok-{at}"), State::Succeeded).await;
    }
    for state in [State::Failed, State::Cancelled, State::Expired] {
        pay.reach(db, state.as_str(), state).await;
    }
    // By a person's word.
    let parked = mail.parked(db, "doubtful").await;
    db.store.act(parked, &Verb::ResolveNotApplied, &person(), None).await.expect("acting works");
    for round in ["unfolded", "folded", "folded again"] {
        for per in [Resolution::Minute, Resolution::Hour] {
            assert_eq!(ended(db, since, per).await, counted(db).await, "{round}, per {per:?}");
        }
        db.store.maintain().await.expect("maintenance works");
    }
    let now = db.now().await;
    let rows = db.store.traffic(began, Resolution::Minute).await.expect("readable");
    let first = began.micros() - began.micros().rem_euclid(Resolution::Minute.micros());
    assert!(rows.iter().all(|row| (first..=now.micros()).contains(&row.at.micros())), "{rows:?}");
    assert_eq!(rows.iter().map(|row| row.effects).sum::<u64>(), 7);
    assert!(ended(db, now.plus(HOUR), Resolution::Minute).await.is_empty());
}

async fn what_is_taken_back_is_no_traffic(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let since = a_day_ago(db).await;
    let id = stage.failed(db, "k").await;
    db.store.act(id, &Verb::Retry, &person(), None).await.expect("acting works");
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    for step in Step::OF_EFFECTS {
        db.store.drop_batch(step, Duration::ZERO, 10).await.expect("the step runs");
    }
    assert!(counted(db).await.is_empty(), "nothing is left of it");
    db.store.maintain().await.expect("maintenance works");
    let of = |state| (("pay".to_owned(), state), 1);
    let both = BTreeMap::from([of(State::Succeeded), of(State::Failed)]);
    assert_eq!(ended(db, since, Resolution::Minute).await, both, "both ends were");
}

/// As if everything had ended `by` earlier.
async fn earlier(db: &TestDatabase, by: Duration) {
    let at = db.engine.before("at", by);
    db.sql.execute(&format!("UPDATE aftercommit.traffic SET at = {at}")).await;
}

async fn minutes_become_hours_and_hours_go(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for at in 0..4 {
        stage.reach(db, &format!("k{at}"), State::Succeeded).await;
    }
    db.store.maintain().await.expect("maintenance works");
    let whole = counted(db).await;
    let since = db.now().await.minus(DAY * 20);
    let rows = async || db.sql.number("SELECT count(*) FROM aftercommit.traffic WHERE per = 'minute'").await;
    earlier(db, HOUR * 24).await;
    db.store.maintain().await.expect("maintenance works");
    assert_eq!(ended(db, since, Resolution::Minute).await, whole, "minutes are kept for a day and an hour");
    earlier(db, HOUR * 2).await;
    for _ in 0..2 {
        db.store.maintain().await.expect("maintenance works");
        assert_eq!((ended(db, since, Resolution::Hour).await, rows().await), (whole.clone(), 0));
    }
    assert!(ended(db, since, Resolution::Minute).await.is_empty());
    // One that was folded late joins its hour.
    stage.reach(db, "late", State::Succeeded).await;
    db.store.maintain().await.expect("maintenance works");
    earlier(db, HOUR * 26).await;
    db.store.maintain().await.expect("maintenance works");
    assert_eq!(ended(db, since, Resolution::Hour).await.values().sum::<u64>(), 5);
    earlier(db, DAY * 5).await;
    db.store.maintain().await.expect("maintenance works");
    assert_eq!(ended(db, since, Resolution::Hour).await.values().sum::<u64>(), 5, "eight days");
    earlier(db, DAY * 2).await;
    db.store.maintain().await.expect("maintenance works");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.traffic").await, 0);
}

async fn folding_at_several_places_loses_nothing(db: &TestDatabase) {
    const N: usize = 60;
    let stage = Stage::by_key(db, "pay").await;
    let since = a_day_ago(db).await;
    let done = tokio_util::sync::CancellationToken::new();
    let mut folding = JoinSet::new();
    for _ in 0..3 {
        let (store, done) = (db.another_store().await, done.clone());
        folding.spawn(async move {
            while !done.is_cancelled() {
                store.maintain().await.expect("maintenance works");
                tokio::task::yield_now().await;
            }
        });
    }
    for at in 0..N {
        let state = if at % 3 == 0 { State::Failed } else { State::Succeeded };
        stage.reach(db, &format!("k{at}"), state).await;
        let seen: u64 = ended(db, since, Resolution::Minute).await.values().sum();
        assert_eq!(seen, at as u64 + 1, "exact at every moment");
    }
    done.cancel();
    folding.join_all().await;
    assert_eq!(ended(db, since, Resolution::Hour).await, counted(db).await);
}

/// Its folding adds sums up, and would make each look as if so many had ended this minute.
async fn what_an_older_version_counts_is_no_traffic(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let since = a_day_ago(db).await;
    stage.reach(db, "k", State::Succeeded).await;
    let old = "INSERT INTO aftercommit.counters (downstream, state, n) VALUES ('pay', 'succeeded', 1000000)";
    db.sql.execute(old).await;
    db.store.maintain().await.expect("maintenance works");
    assert_eq!(counted(db).await.values().sum::<u64>(), 1_000_001);
    assert_eq!(ended(db, since, Resolution::Minute).await.values().sum::<u64>(), 1);
}

/// Of the hour before and the one that is under way.
async fn latencies(db: &TestDatabase) -> Vec<Latency> {
    let since = db.now().await.minus(HOUR);
    db.store.latencies(since, 3, Resolution::Hour).await.expect("readable")
}

fn sampled(latencies: &[Latency]) -> u32 {
    latencies.iter().map(|one| one.sampled).sum()
}

async fn latencies_are_of_the_attempts_that_ended_effects_while_their_history_is_kept(db: &TestDatabase) {
    let (pay, mail) = (Stage::by_key(db, "pay").await, Stage::hold(db, "mail").await);
    assert!(latencies(db).await.is_empty());
    for at in 0..3 {
        pay.reach(db, &format!("ok-{at}"), State::Succeeded).await;
    }
    pay.failed(db, "declined").await;
    pay.reach(db, "called-off", State::Cancelled).await;
    mail.parked(db, "doubtful").await;
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(2));
    let lasted = |table: &str, took| {
        let end = db.engine.after("started_at", took);
        format!("UPDATE aftercommit.{table} SET ended_at = {end} WHERE started_at IS NOT NULL")
    };
    db.sql.execute(&lasted("outcomes", short)).await;
    db.sql.execute(&lasted("attempts", long)).await;
    for step in ["nothing was dropped", "payloads were"] {
        let found = latencies(db).await;
        assert_eq!(sampled(&found), 4, "{step}: three that succeeded, one that failed: {found:?}");
        assert_eq!(found.iter().map(|one| one.p50).min(), Some(short), "{step}: {found:?}");
        assert_eq!(found.iter().map(|one| one.p95).max(), Some(long), "{step}: {found:?}");
        assert!(found.iter().all(|one| one.at.micros() % Resolution::Hour.micros() == 0), "{found:?}");
        db.store.drop_batch(Step::Payloads, Duration::ZERO, 10).await.expect("the step runs");
    }
    let none = db.store.latencies(db.now().await, 0, Resolution::Minute).await.expect("readable");
    assert!(none.is_empty(), "{none:?}");
    db.store.drop_batch(Step::History, Duration::ZERO, 10).await.expect("the step runs");
    assert!(latencies(db).await.is_empty(), "the attempts went with the history");
}

async fn latencies_read_no_more_than_a_few_of_each_part_of_an_hour(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for at in 0..12 {
        stage.reach(db, &format!("ok-{at}"), State::Succeeded).await;
    }
    // A part of an hour is ten minutes; they may have ended in two of them.
    let found = latencies(db).await;
    assert!((5..=10).contains(&sampled(&found)), "{found:?}");
}
