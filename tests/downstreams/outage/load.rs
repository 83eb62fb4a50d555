//! A whole worker under load, a broker that is killed in the midst of it, and what came of it.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    IdempotencyKey, NewEffect,
    clock::{Clock as _, SystemClock},
    engine::Engine,
};
use serde_json::{Value, json};

use crate::{
    engine::Running,
    support::{TestDatabase, eventually},
};

/// Effects of a whole run.
pub(super) const EFFECTS: usize = 2000;
/// Longer than a run takes on a busy machine, the outage not counted.
const PATIENCE: Duration = Duration::from_secs(100);

/// A broker of the test's own.
pub(super) trait Broker {
    /// SIGKILL, and waits until it is gone.
    async fn kill(&mut self);
    /// Starts it, and waits until it lets somebody in.
    async fn start(&mut self);
}

#[cfg(any(feature = "nats", feature = "redis"))]
impl Broker for super::super::brokers::Server {
    async fn kill(&mut self) {
        Self::kill(self).await;
    }

    async fn start(&mut self) {
        Self::start(self).await;
    }
}

/// What a worker has to do.
pub(super) struct Load {
    /// The downstream.
    pub(super) downstream: &'static str,
    /// How the keys of this load begin: no other of the database's does so.
    pub(super) prefix: &'static str,
    /// How many effects.
    pub(super) effects: usize,
    /// So many succeed before the broker is killed.
    pub(super) before: usize,
}

/// How long the broker stays away.
#[derive(Clone, Copy)]
pub(super) enum Away {
    /// Until attempts were refused.
    Noticed,
    /// So long.
    For(Duration),
}

/// What came of a load.
pub(super) struct Figures {
    pub(super) succeeded: usize,
    pub(super) in_doubt: usize,
    /// Attempts of which nobody knows.
    pub(super) unknown: usize,
    /// Attempts that certainly did nothing.
    pub(super) not_applied: usize,
    /// Effects that succeeded and whose message is nowhere.
    pub(super) lost: Vec<String>,
    /// Keys that are there more than once.
    pub(super) doubled: usize,
    away_s: f64,
    /// From the broker's first welcome to the first success after it.
    first_after_s: f64,
}

/// Has `engine` work off the load, kills the broker in the midst of it, and waits until every effect has ended or is in doubt.
/// `stored` says then which keys the broker has.
pub(super) async fn run<B: Broker>(
    db: &TestDatabase,
    load: &Load,
    engine: Engine,
    (broker, away): (&mut B, Away),
    stored: impl AsyncFnOnce(&mut B) -> Vec<String>,
) -> Figures {
    load.write(db).await;
    let worker = Running::start(engine);
    let succeeded = || load.count(db, "succeeded");
    let enough = async || (succeeded().await >= load.before).then_some(());
    eventually(PATIENCE, "some effects succeed", enough).await;
    let clock = SystemClock;
    broker.kill().await;
    let killed = clock.boot();
    match away {
        Away::Noticed => {
            let refused = async || (load.attempts(db, "not_applied").await > 0).then_some(());
            eventually(PATIENCE, "an attempt finds the broker gone", refused).await;
        }
        Away::For(length) => tokio::time::sleep(length).await,
    }
    // While nobody is there: a broker that is waited for until it is wholly up may have been given the rest by then.
    let before = succeeded().await;
    broker.start().await;
    let back = clock.boot();
    let more = async || (succeeded().await > before).then_some(());
    eventually(PATIENCE, "an effect succeeds after the broker is back", more).await;
    let first = clock.boot();
    let ended = async || (succeeded().await + load.count(db, "in_doubt").await >= load.effects).then_some(());
    eventually(PATIENCE, "every effect ends, or is in doubt", ended).await;
    worker.drain().await;
    let stored = stored(broker).await;
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for key in stored.iter().filter(|key| key.starts_with(load.prefix)) {
        *times.entry(key).or_default() += 1;
    }
    Figures {
        succeeded: succeeded().await,
        in_doubt: load.count(db, "in_doubt").await,
        unknown: load.attempts(db, "unknown").await,
        not_applied: load.attempts(db, "not_applied").await,
        lost: load.succeeded_without(db, &times).await,
        doubled: times.values().filter(|times| **times > 1).count(),
        away_s: (back - killed).as_secs_f64(),
        first_after_s: (first - back).as_secs_f64(),
    }
}

impl Load {
    async fn write(&self, db: &TestDatabase) {
        let effects = (0..self.effects).map(|n| {
            let key = IdempotencyKey::parse(format!("{}-{n}", self.prefix)).expect("a key");
            NewEffect::to(self.downstream).key(key).json_text(format!("{{\"n\":{n}}}")).expect("a payload")
        });
        let mut tx = db.sql.begin().await;
        tx.enqueue_many(effects.collect()).await.expect("they are written");
        tx.commit().await;
    }

    async fn count(&self, db: &TestDatabase, state: &str) -> usize {
        let prefix = self.prefix;
        number(
            db,
            &format!(
                "SELECT count(*) FROM aftercommit.status WHERE state = '{state}' AND idempotency_key LIKE '{prefix}-%'"
            ),
        )
        .await
    }

    async fn attempts(&self, db: &TestDatabase, outcome: &str) -> usize {
        let prefix = self.prefix;
        number(
            db,
            &format!(
                "SELECT count(*) FROM aftercommit.attempt_log AS a JOIN aftercommit.effects AS e ON e.id = a.effect_id \
                 WHERE a.outcome = '{outcome}' AND e.idempotency_key LIKE '{prefix}-%'"
            ),
        )
        .await
    }

    /// What is in doubt may be there or not.
    async fn succeeded_without(&self, db: &TestDatabase, there: &BTreeMap<&str, u32>) -> Vec<String> {
        let mut lost = Vec::new();
        for key in (0..self.effects).map(|n| format!("{}-{n}", self.prefix)) {
            let succeeded = format!(
                "SELECT count(*) FROM aftercommit.status WHERE idempotency_key = '{key}' AND state = 'succeeded'"
            );
            if !there.contains_key(key.as_str()) && number(db, &succeeded).await == 1 {
                lost.push(key);
            }
        }
        lost
    }
}

async fn number(db: &TestDatabase, sql: &str) -> usize {
    usize::try_from(db.sql.number(sql).await).expect("a count")
}

impl Figures {
    /// For the report, and on a line of its own, whatever the test harness wrote before.
    pub(super) fn tell(&self, broker: &str) -> Value {
        let said = json!({
            "broker": broker,
            "effects": self.succeeded + self.in_doubt,
            "away_s": self.away_s,
            "first_confirmed_after_back_s": self.first_after_s,
            "lost": self.lost.len(),
            "duplicates": self.doubled,
            "in_doubt": self.in_doubt,
            "attempts_unknown": self.unknown,
            "attempts_not_applied": self.not_applied,
        });
        println!("\n{said}");
        said
    }

    /// Every effect ended or waits for a person, none was lost, and the outage hit an attempt at all.
    pub(super) fn hold(&self, load: &Load) {
        assert!(self.not_applied + self.unknown > 0, "the outage hit no attempt: nothing was tested");
        assert_eq!(self.lost, Vec::<String>::new());
        assert_eq!(self.succeeded + self.in_doubt, load.effects);
    }
}

/// What a stream that knows keys again must keep besides: nothing is there twice, and nobody has to decide anything.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(super) async fn killed_without_a_trace<B: Broker>(
    db: &TestDatabase,
    mut served: aftercommit::downstream::Served,
    (name, broker, away): (&str, &mut B, Away),
    stored: impl AsyncFnOnce(&mut B) -> Vec<String>,
) -> Value {
    // Slow enough that the kill comes in the midst of it.
    served.rate = Some(aftercommit::downstream::Rate { calls: 400, period: Duration::from_secs(1) });
    let load = Load { downstream: "shop", prefix: "order", effects: EFFECTS, before: 300 };
    let engine = crate::engine::engine(db.store.clone(), "w", vec![served]);
    let figures = run(db, &load, engine, (broker, away), stored).await;
    let said = figures.tell(name);
    figures.hold(&load);
    assert_eq!((figures.doubled, figures.in_doubt), (0, 0), "doubled, and in doubt");
    said
}
