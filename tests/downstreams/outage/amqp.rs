//! RabbitMQ: an alarm, then SIGKILL under load, for both contracts that a broker can have.

#![expect(clippy::disallowed_methods, reason = "a test harness reads the machine's clock")]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use aftercommit::engine::Stop;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::{
    downstreams::amqp::{
        engine,
        rabbit::{OwnRabbit, Rabbit},
        served,
    },
    support::{Engine, TestDatabase, Way, eventually, on_postgres, within},
};

on_postgres!(an_alarm_and_two_kills_lose_nothing);

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "orders";
/// Messages under way at one time.
const CONCURRENCY: u32 = 64;

/// What the database and the queue say after an outage.
struct Seen {
    contract: &'static str,
    effects: usize,
    succeeded: usize,
    in_doubt: usize,
    unknown_attempts: i64,
    /// Effects that succeeded and whose message is nowhere.
    lost: Vec<String>,
    /// Ids that are there more than once.
    duplicated: usize,
    down: Duration,
    /// From the broker's first welcome to the first confirm after it.
    back_after: Duration,
}

impl Seen {
    fn json(&self) -> Value {
        json!({
            "broker": "rabbitmq", "contract": self.contract, "effects": self.effects, "succeeded": self.succeeded,
            "in_doubt": self.in_doubt, "unknown_attempts": self.unknown_attempts, "lost": self.lost.len(),
            "duplicated": self.duplicated, "down_s": self.down.as_secs_f64(),
            "first_confirm_after_s": self.back_after.as_secs_f64(),
        })
    }
}

fn table(on_unknown: &str) -> String {
    format!(
        "routing_key = \"{QUEUE}\"\ntimeout = \"5s\"\nconcurrency = {CONCURRENCY}\nmax_pause = \"2s\"\n\
         contract = {{ dedupe = \"none\", on_unknown = \"{on_unknown}\" }}\nretry = {{ initial = \"200ms\", max = \"2s\" }}"
    )
}

async fn count(db: &TestDatabase, condition: &str) -> i64 {
    db.sql.number(&format!("SELECT count(*) FROM aftercommit.status WHERE {condition}")).await
}

/// Kills the broker in the middle of `effects` messages, leaves it down for `down`, and waits until all have ended.
async fn outage(
    db: &TestDatabase,
    rabbit: &mut OwnRabbit,
    on_unknown: &'static str,
    effects: usize,
    down: Duration,
) -> Seen {
    let before = count(db, "true").await;
    let unknown_before = unknown(db).await;
    db.insert_many("orders", on_unknown, effects).await;
    let engine = engine(db, served(&rabbit.url(), &table(on_unknown)), CONCURRENCY);
    let stop = Stop::default();
    let worker = TaskTracker::new().spawn({
        let stop = stop.clone();
        async move { engine.run(stop).await }
    });
    let mine = format!("idempotency_key LIKE '{on_unknown}-%'");
    let succeeded = || count(db, "state = 'succeeded'");
    let enough = before + i64::try_from(effects / 4).expect("a small number");
    eventually(PATIENCE, "a quarter is confirmed", async || (succeeded().await >= enough).then_some(()))
        .await;
    rabbit.kill().await;
    let killed = Instant::now();
    tokio::time::sleep(down).await;
    rabbit.launch();
    rabbit.answers().await;
    let (back, down) = (Instant::now(), killed.elapsed());
    let then = succeeded().await;
    let first = eventually(PATIENCE, "a confirm after the broker is back", async || {
        (succeeded().await > then).then(|| back.elapsed())
    });
    let back_after = first.await;
    let open = format!("{mine} AND state NOT IN ('succeeded', 'in_doubt')");
    eventually(PATIENCE, "every effect ends or is in doubt", async || {
        (count(db, &open).await == 0).then_some(())
    })
    .await;
    stop.drain.cancel();
    within(PATIENCE, "the worker's end", worker).await.expect("no panic").expect("the worker runs");
    let unknown_attempts = unknown(db).await - unknown_before;
    assert!(unknown_attempts > 0, "the kill hit no message under way: nothing was tested");
    let number = async |state: &str| {
        let counted = count(db, &format!("{mine} AND state = '{state}'")).await;
        usize::try_from(counted).expect("a count")
    };
    let (sure, in_doubt) = (number("succeeded").await, number("in_doubt").await);
    let ids = ids(rabbit).await;
    let there = |key: &String| ids.get(key).copied().unwrap_or(0);
    let mut lost = Vec::new();
    for n in 0..effects {
        let key = format!("{on_unknown}-{n}");
        if there(&key) == 0
            && count(db, &format!("idempotency_key = '{key}' AND state = 'succeeded'")).await == 1
        {
            lost.push(key);
        }
    }
    Seen {
        contract: on_unknown,
        effects,
        succeeded: sure,
        in_doubt,
        unknown_attempts,
        lost,
        duplicated: ids.values().filter(|times| **times > 1).count(),
        down,
        back_after,
    }
}

async fn unknown(db: &TestDatabase) -> i64 {
    db.sql.number("SELECT count(*) FROM aftercommit.attempt_log WHERE outcome = 'unknown'").await
}

async fn ids(rabbit: &OwnRabbit) -> BTreeMap<String, usize> {
    let test = Rabbit::at(&rabbit.url()).await;
    let mut ids = BTreeMap::new();
    for id in test.take_ids(QUEUE).await {
        *ids.entry(id).or_default() += 1;
    }
    test.leave().await;
    ids
}

fn held_its_promise(seen: &Seen) {
    println!("{}", seen.json());
    assert_eq!(seen.lost, Vec::<String>::new());
    assert_eq!(seen.succeeded + seen.in_doubt, seen.effects, "every effect ended, or waits for a person");
    match seen.contract {
        "hold" => assert_eq!(seen.duplicated, 0, "what is uncertain is not sent again"),
        _ => assert_eq!(seen.in_doubt, 0, "duplicates were accepted by name"),
    }
}

/// AMQP-09: an alarm holds the effects back, burns no attempt, puts nothing in doubt, and is shown.
async fn alarmed(db: &TestDatabase, rabbit: &OwnRabbit) {
    const EFFECTS: usize = 200;
    rabbit.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    db.insert_many("orders", "alarm", EFFECTS).await;
    let engine = engine(db, served(&rabbit.url(), &table("hold")), CONCURRENCY);
    let stop = Stop::default();
    let worker = TaskTracker::new().spawn({
        let stop = stop.clone();
        async move { engine.run(stop).await }
    });
    eventually(PATIENCE, "the alarm is shown", async || {
        (count(db, "last_error LIKE '%connection.blocked%'").await > 0).then_some(())
    })
    .await;
    let checks = served(&rabbit.url(), &table("hold")).downstream.check(Duration::from_secs(10)).await;
    assert!(checks.iter().any(|check| check.check == "alarm" && check.remedy.is_some()), "{checks:?}");
    assert_eq!(count(db, "state IN ('succeeded', 'failed', 'in_doubt')").await, 0);
    rabbit.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    let all = i64::try_from(EFFECTS).expect("a small number");
    eventually(PATIENCE, "they go on when the alarm is over", async || {
        (count(db, "state = 'succeeded'").await == all).then_some(())
    })
    .await;
    stop.drain.cancel();
    within(PATIENCE, "the worker's end", worker).await.expect("no panic").expect("the worker runs");
    assert_eq!(unknown(db).await, 0, "nothing was published into the alarm");
    let ids = ids(rabbit).await;
    assert!(ids.len() == EFFECTS && ids.values().all(|times| *times == 1), "each once");
}

async fn queue(rabbit: &OwnRabbit) {
    let test = Rabbit::at(&rabbit.url()).await;
    test.queue(QUEUE).await;
    test.leave().await;
}

async fn an_alarm_and_two_kills_lose_nothing(db: &TestDatabase) {
    let mut rabbit = OwnRabbit::start().await;
    queue(&rabbit).await;
    alarmed(db, &rabbit).await;
    for on_unknown in ["hold", "retry"] {
        held_its_promise(&outage(db, &mut rabbit, on_unknown, 1000, Duration::ZERO).await);
    }
}

/// The long form: the server stays away for 30 seconds.
pub(super) async fn half_a_minute_away() -> Vec<Value> {
    let db = TestDatabase::fresh(Engine::Postgres, Way::Direct).await;
    let mut rabbit = OwnRabbit::start().await;
    queue(&rabbit).await;
    let mut said = Vec::new();
    for on_unknown in ["hold", "retry"] {
        let seen = outage(&db, &mut rabbit, on_unknown, 2000, Duration::from_secs(30)).await;
        held_its_promise(&seen);
        said.push(seen.json());
    }
    db.remove().await;
    said
}
