//! Defends: an effect is found promptly whenever its transaction commits, in whatever order (PostgreSQL: ids are handed out
//! before the commit).

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aftercommit::EffectId;

use super::stage::Stage;
use crate::support::{
    Chance, Settling, Sql, TestDatabase, Worker, eventually, key_terms, on_postgres, registered, within,
};

on_postgres! {
    the_next_claim_finds_a_late_commit,
    two_hundred_open_transactions_lose_nothing,
    what_a_rolled_back_claimer_had_locked_is_found_again,
    a_rolled_back_savepoint_leaves_a_gap_and_nothing_else,
}

/// OUTBOX-01.
async fn the_next_claim_finds_a_late_commit(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut early = db.sql.begin().await;
    early
        .execute("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'early')")
        .await;
    for number in 0..20 {
        db.insert("pay", &format!("late-{number}")).await;
    }
    let first = stage.worker.claim("pay", 100).await;
    assert_eq!(first.len(), 20);
    for _ in 0..3 {
        assert!(stage.worker.claim("pay", 100).await.is_empty(), "not committed yet");
    }
    db.insert("pay", "later").await;
    assert_eq!(stage.worker.claim("pay", 100).await.len(), 1, "the watermark moves on");
    early.commit().await;
    let found = stage.worker.claim("pay", 100).await;
    assert_eq!(found.len(), 1, "the next look finds it, not a slow second look");
    assert_eq!(found[0].effect.key, "early");
}

/// One application transaction: a few effects, savepoints, an open pause, and a commit or a rollback.
async fn application(sql: Sql, mut chance: Chance, number: usize) -> Vec<i64> {
    let mut tx = sql.begin().await;
    let mut keys = Vec::new();
    for part in 0..=chance.below(3) {
        let key = format!("k-{number}-{part}");
        let insert =
            format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', '{key}')");
        if chance.percent(20) {
            tx.execute(&format!("SAVEPOINT s; {insert}; ROLLBACK TO s")).await;
        } else {
            tx.execute(&insert).await;
            keys.push(key);
        }
        tokio::time::sleep(chance.millis(150)).await;
    }
    if chance.percent(25) {
        tx.rollback().await;
        return Vec::new();
    }
    tx.commit().await;
    let mut ids = Vec::new();
    for key in keys {
        let found = format!("SELECT id FROM aftercommit.effects WHERE idempotency_key = '{key}'");
        ids.push(sql.number(&found).await);
    }
    ids
}

/// OUTBOX-01, with 200 transactions, rollbacks and savepoints.
async fn two_hundred_open_transactions_lose_nothing(db: &TestDatabase) {
    const OPEN: usize = 100;
    let mut chance = Chance::seeded();
    // Connections of their own: the pool of the other tests is too small for so many open transactions.
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(u32::try_from(OPEN).expect("small"));
    let sql = Sql::Postgres(pool.connect_lazy(&db.url).expect("a URL"));
    let running = Arc::new(AtomicUsize::new(200));
    let mut applications = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (sql, chance, running) = (sql.clone(), chance.fork(), Arc::clone(&running));
        applications.spawn(async move {
            let ids = application(sql, chance, number).await;
            running.fetch_sub(1, Ordering::SeqCst);
            ids
        });
    }
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..2 {
        let (store, running) = (db.another_store().await, Arc::clone(&running));
        let mut chance = chance.fork();
        workers.spawn(async move {
            let worker =
                Worker::start(&store, &format!("w{number}"), vec![registered("pay", key_terms())]).await;
            let mut found = Vec::new();
            // After the last commit, a few looks must be enough for everything.
            let mut looks_left = 5;
            while looks_left > 0 {
                if running.load(Ordering::SeqCst) == 0 {
                    looks_left -= 1;
                }
                for claim in worker.claim("pay", 1 + u32::try_from(chance.below(50)).expect("small")).await {
                    found.push(claim.effect.id);
                    worker.settle(Settling::of(&claim).succeed()).await;
                    looks_left = looks_left.max(5);
                }
                tokio::time::sleep(chance.millis(20)).await;
            }
            found
        });
    }
    let committed = within(Duration::from_secs(60), "the applications end", applications.join_all()).await;
    let committed: HashSet<EffectId> = committed.into_iter().flatten().map(EffectId::new).collect();
    let found = within(Duration::from_secs(60), "the workers end", workers.join_all()).await;
    let found: Vec<EffectId> = found.into_iter().flatten().collect();
    let distinct: HashSet<EffectId> = found.iter().copied().collect();
    assert_eq!(found.len(), distinct.len(), "an effect was claimed twice");
    let missed: Vec<_> = committed.difference(&distinct).collect();
    assert!(missed.is_empty(), "{} of {} were missed: {missed:?}", missed.len(), committed.len());
    assert_eq!(distinct.len(), committed.len(), "an effect that never committed was claimed");
    assert!(committed.len() > 100, "the test did something: {}", committed.len());
    let Sql::Postgres(pool) = sql else { unreachable!("made above") };
    pool.close().await;
}

async fn what_a_rolled_back_claimer_had_locked_is_found_again(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let ids = db.insert_many("pay", "k", 6).await;
    // What a worker that dies between its claim's lock and its COMMIT leaves for a moment.
    let mut dying = db.sql.begin().await;
    dying
        .execute(&format!(
            "SELECT FROM aftercommit.queue WHERE id IN ({}, {}, {}) FOR UPDATE",
            ids[0], ids[2], ids[5]
        ))
        .await;
    let mut found: Vec<EffectId> = Vec::new();
    let claim_all = async |found: &mut Vec<EffectId>| {
        found.extend(stage.worker.claim("pay", 100).await.iter().map(|claim| claim.effect.id));
    };
    claim_all(&mut found).await;
    assert_eq!(found, [ids[1], ids[3], ids[4]], "what is locked is skipped, not waited for");
    db.insert("pay", "younger").await;
    claim_all(&mut found).await;
    dying.rollback().await;
    let what = "what was locked is claimed (a re-look must find it within seconds)";
    eventually(Duration::from_secs(10), what, async || {
        claim_all(&mut found).await;
        (found.len() == 7).then_some(())
    })
    .await;
}

async fn a_rolled_back_savepoint_leaves_a_gap_and_nothing_else(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut tx = db.sql.begin().await;
    let insert = |key: &str| {
        format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', '{key}')")
    };
    tx.execute(&insert("a")).await;
    tx.execute(&format!("SAVEPOINT s; {}; ROLLBACK TO s; RELEASE s", insert("b"))).await;
    tx.execute(&format!("SAVEPOINT s; {}; RELEASE s", insert("c"))).await;
    tx.commit().await;
    let keys: Vec<String> =
        stage.worker.claim("pay", 9).await.iter().map(|claim| claim.effect.key.clone()).collect();
    assert_eq!(keys, ["a", "c"]);
}
