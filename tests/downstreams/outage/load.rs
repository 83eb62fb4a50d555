//! A whole worker under load, a broker that is killed in the middle of it, and what came of it.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    IdempotencyKey, NewEffect,
    clock::{Clock as _, SystemClock},
    downstream::{Rate, Served},
    state::State,
};
use serde_json::{Value, json};

use super::super::brokers::Server;
use crate::{
    engine::{Running, engine},
    support::{TestDatabase, eventually},
};

/// Effects of a run.
pub(super) const EFFECTS: usize = 2000;
/// Succeeded before the broker is killed.
const BEFORE: u64 = 300;
/// Longer than a run takes on a busy machine, the outage not counted.
const PATIENCE: Duration = Duration::from_secs(100);

/// How long the broker stays away.
#[derive(Clone, Copy)]
pub(super) enum Away {
    /// Until attempts were refused.
    Noticed,
    /// So long.
    For(Duration),
}

/// What came of a run.
pub(super) struct Figures {
    pub(super) in_doubt: u64,
    unknown: i64,
    not_applied: i64,
    away_s: f64,
    first_after_s: f64,
}

/// Sends [`EFFECTS`] at 400 a second and kills the broker after a few hundred.
pub(super) async fn run(db: &TestDatabase, mut served: Served, server: &mut Server, away: Away) -> Figures {
    served.rate = Some(Rate { calls: 400, period: Duration::from_secs(1) });
    let effects = (0..EFFECTS).map(|n| {
        let key = IdempotencyKey::parse(format!("order-{n}")).expect("a key");
        NewEffect::to("shop").key(key).json_text(format!("{{\"n\":{n}}}")).expect("a payload")
    });
    let mut tx = db.sql.begin().await;
    tx.enqueue_many(effects.collect()).await.expect("they are written");
    tx.commit().await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served]));
    let enough = async || (count(db, State::Succeeded).await >= BEFORE).then_some(());
    eventually(PATIENCE, "a few hundred effects succeed", enough).await;
    let clock = SystemClock;
    server.kill().await;
    let killed = clock.boot();
    match away {
        Away::Noticed => {
            let refused = async || (attempts(db, "not_applied").await > 0).then_some(());
            eventually(PATIENCE, "an attempt finds the broker gone", refused).await;
        }
        Away::For(length) => tokio::time::sleep(length).await,
    }
    server.start().await;
    let back = clock.boot();
    let before = count(db, State::Succeeded).await;
    let more = async || (count(db, State::Succeeded).await > before).then_some(());
    eventually(PATIENCE, "an effect succeeds after the broker is back", more).await;
    let first = clock.boot();
    let ended = async || {
        (count(db, State::Succeeded).await + count(db, State::InDoubt).await >= EFFECTS as u64).then_some(())
    };
    eventually(PATIENCE, "every effect ends", ended).await;
    worker.drain().await;
    Figures {
        in_doubt: count(db, State::InDoubt).await,
        unknown: attempts(db, "unknown").await,
        not_applied: attempts(db, "not_applied").await,
        away_s: (back - killed).as_secs_f64(),
        first_after_s: (first - back).as_secs_f64(),
    }
}

async fn count(db: &TestDatabase, state: State) -> u64 {
    let counts = db.store.counts().await.expect("they can be counted");
    counts.iter().filter(|count| count.state == state).map(|count| count.effects).sum()
}

async fn attempts(db: &TestDatabase, outcome: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM aftercommit.attempt_log WHERE outcome = '{outcome}'");
    db.sql.number(&sql).await
}

/// Compares what the broker has with what was confirmed, prints the figures, and returns them with how many were lost and doubled.
pub(super) fn judge(broker: &str, figures: &Figures, stored: &[String]) -> ((usize, usize), Value) {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for key in stored {
        *times.entry(key).or_default() += 1;
    }
    let lost = (0..EFFECTS).filter(|n| !times.contains_key(format!("order-{n}").as_str())).count();
    let doubled = times.values().filter(|times| **times > 1).count();
    assert!(figures.not_applied + figures.unknown > 0, "{broker}: the outage hit no attempt");
    let said: Value = json!({
        "broker": broker,
        "effects": EFFECTS,
        "away_s": figures.away_s,
        "first_confirmed_after_back_s": figures.first_after_s,
        "lost": lost,
        "duplicates": doubled,
        "in_doubt": figures.in_doubt,
        "attempts_unknown": figures.unknown,
        "attempts_not_applied": figures.not_applied,
    });
    // On a line of its own, whatever the test harness wrote before.
    println!("\n{said}");
    ((lost, doubled), said)
}
