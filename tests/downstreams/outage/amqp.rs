//! RabbitMQ: an alarm, then SIGKILL under load, for both contracts that a broker can have.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::load::{Away, Broker, EFFECTS, Figures, Load, run};
use crate::{
    downstreams::amqp::{
        engine,
        rabbit::{OwnRabbit, Rabbit},
        served,
    },
    engine::Running,
    support::{Engine, TestDatabase, Way, eventually, on_postgres},
};

on_postgres!(an_alarm_and_two_kills_lose_nothing);

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "orders";
/// Messages under way at one time.
const CONCURRENCY: u32 = 64;

impl Broker for OwnRabbit {
    async fn kill(&mut self) {
        Self::kill(self).await;
    }

    async fn start(&mut self) {
        self.restart().await;
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

/// Kills the broker in the midst of `effects` messages, and holds what came of it to the contract.
async fn outage(
    db: &TestDatabase,
    rabbit: &mut OwnRabbit,
    on_unknown: &'static str,
    (effects, away): (usize, Duration),
) -> Value {
    let load = Load { downstream: "orders", prefix: on_unknown, effects, before: effects / 4 };
    let engine = engine(db, served(&rabbit.url(), &table(on_unknown)), CONCURRENCY);
    let stored = async |rabbit: &mut OwnRabbit| ids(rabbit).await;
    let figures = run(db, &load, engine, (rabbit, Away::For(away)), stored).await;
    let said = figures.tell(&format!("rabbitmq, on_unknown {on_unknown}"));
    figures.hold(&load);
    let Figures { unknown, doubled, in_doubt, .. } = figures;
    assert!(unknown > 0, "the kill hit no message under way: nothing was tested");
    match on_unknown {
        "hold" => assert_eq!(doubled, 0, "what is uncertain is not sent again"),
        _ => assert_eq!(in_doubt, 0, "duplicates were accepted by name"),
    }
    said
}

async fn ids(rabbit: &OwnRabbit) -> Vec<String> {
    let test = Rabbit::at(&rabbit.url()).await;
    let ids = test.take_ids(QUEUE).await;
    test.leave().await;
    ids
}

/// AMQP-09: an alarm holds the effects back, burns no attempt, puts nothing in doubt, and is shown.
async fn alarmed(db: &TestDatabase, rabbit: &OwnRabbit) {
    const ALARMED: usize = 200;
    rabbit.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    db.insert_many("orders", "alarm", ALARMED).await;
    let worker = Running::start(engine(db, served(&rabbit.url(), &table("hold")), CONCURRENCY));
    eventually(PATIENCE, "the alarm is shown", async || {
        (count(db, "last_error LIKE '%connection.blocked%'").await > 0).then_some(())
    })
    .await;
    let checks = served(&rabbit.url(), &table("hold")).downstream.check(Duration::from_secs(10)).await;
    assert!(checks.iter().any(|check| check.check == "alarm" && check.remedy.is_some()), "{checks:?}");
    assert_eq!(count(db, "state IN ('succeeded', 'failed', 'in_doubt')").await, 0);
    rabbit.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    let all = i64::try_from(ALARMED).expect("a small number");
    eventually(PATIENCE, "they go on when the alarm is over", async || {
        (count(db, "state = 'succeeded'").await == all).then_some(())
    })
    .await;
    worker.drain().await;
    let unknown = "SELECT count(*) FROM aftercommit.attempt_log WHERE outcome = 'unknown'";
    assert_eq!(db.sql.number(unknown).await, 0, "nothing was published into the alarm");
    let ids = ids(rabbit).await;
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!((ids.len(), distinct.len()), (ALARMED, ALARMED), "each once");
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
        outage(db, &mut rabbit, on_unknown, (1000, Duration::ZERO)).await;
    }
}

/// The long form: the server stays away for 30 seconds.
pub(super) async fn half_a_minute_away() -> Vec<Value> {
    let db = TestDatabase::fresh(Engine::Postgres, Way::Direct).await;
    let mut rabbit = OwnRabbit::start().await;
    queue(&rabbit).await;
    let mut said = Vec::new();
    for on_unknown in ["hold", "retry"] {
        said.push(outage(&db, &mut rabbit, on_unknown, (EFFECTS, Duration::from_secs(30))).await);
    }
    db.remove().await;
    said
}
