//! Defends: purging hurts nobody. It meets verbs, settles, late answers, enqueues and other purgers in any order without an
//! error, a lost effect or a payload that is sent without being there; it looks through no table.

mod limits;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    Enqueued, NewEffect,
    outcome::{Finding, Outcome, Phase},
    state::State,
    store::{Acted, Database, LateAnswer, Settled, Step},
    verb::{Refusal, Verb},
};
use tokio::task::JoinSet;

use super::{
    retention::{drop_all, in_state, key},
    stage::{Stage, person},
};
use crate::support::{Engine, Settling, TestDatabase, eventually, on_every_database, on_postgres, within};

on_every_database! {
    a_retry_meets_a_purge_and_one_of_them_is_first,
    settles_go_on_while_everything_is_dropped,
    several_purgers_drop_each_effect_once,
    a_key_that_is_going_is_taken_or_free,
    a_late_answer_that_meets_the_purge_of_its_key_leaves_no_log,
}

on_postgres! {
    a_late_answer_in_the_middle_of_the_purge_of_its_key_leaves_no_log,
    what_somebody_holds_is_left_for_a_later_look,
    a_batch_of_a_step_is_done_in_one_place,
    no_step_looks_through_a_table,
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Purges everything that has ended, again and again, until the other side is done.
async fn purge_until(
    store: Arc<dyn Database>,
    steps: &'static [Step],
    done: tokio_util::sync::CancellationToken,
) -> u64 {
    let mut effects = 0;
    while !done.is_cancelled() {
        for step in steps {
            effects += store.drop_batch(*step, Duration::ZERO, 3).await.expect("the step runs").effects;
        }
        tokio::task::yield_now().await;
    }
    effects
}

async fn a_retry_meets_a_purge_and_one_of_them_is_first(db: &TestDatabase) {
    const N: usize = 40;
    let stage = Stage::by_key(db, "pay").await;
    let mut ids = Vec::new();
    for at in 0..N {
        db.insert_with("pay", &format!("k{at}"), &[("payload", "'{\"n\": 1}'")]).await;
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).fail("declined")).await;
        ids.push(claim.effect.id);
    }
    let done = tokio_util::sync::CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (store, done) = (db.another_store().await, done.clone());
        async move { purge_until(store, &[Step::Payloads], done).await }
    });
    let mut retried = 0;
    // From the back, while the purge comes from the front.
    for id in ids.iter().rev() {
        match db.store.act(*id, &Verb::Retry, &person(), None).await.expect("acting works") {
            Acted::Done(..) => retried += 1,
            Acted::Refused(Refusal::PayloadDropped) => {}
            other @ (Acted::Refused(_) | Acted::NotFound) => panic!("effect {id}: {other:?}"),
        }
    }
    done.cancel();
    within(PATIENCE, "the purger's end", tasks.join_all()).await;
    let claims = stage.worker.claim("pay", 100).await;
    assert_eq!(claims.len(), retried, "what was retried is due");
    assert!(claims.iter().all(|claim| claim.effect.payload.as_deref() == Some("{\"n\": 1}")));
    let lost = "SELECT count(*) FROM aftercommit.effects e WHERE NOT EXISTS (SELECT 1 FROM aftercommit.queue q WHERE q.id = e.id) \
                AND NOT EXISTS (SELECT 1 FROM aftercommit.outcomes o WHERE o.effect_id = e.id)";
    assert_eq!(db.sql.number(lost).await, 0);
}

async fn settles_go_on_while_everything_is_dropped(db: &TestDatabase) {
    const N: usize = 120;
    let stage = Stage::by_key(db, "pay").await;
    db.insert_many("pay", "k", N).await;
    let done = tokio_util::sync::CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (store, done) = (db.another_store().await, done.clone());
        async move { purge_until(store, &Step::OF_EFFECTS, done).await }
    });
    let mut settled = 0;
    while settled < N {
        for claim in stage.worker.claim("pay", 10).await {
            assert_eq!(stage.worker.settle(Settling::of(&claim).succeed()).await, Settled::Done);
            settled += 1;
        }
    }
    done.cancel();
    within(PATIENCE, "the purger's end", tasks.join_all()).await;
    for step in Step::OF_EFFECTS {
        drop_all(db, step).await;
    }
    for table in ["effects", "outcomes", "attempts", "queue"] {
        assert_eq!(db.sql.number(&format!("SELECT count(*) FROM aftercommit.{table}")).await, 0, "{table}");
    }
    assert!(db.store.counts().await.expect("readable").iter().all(|count| count.effects == 0));
}

async fn several_purgers_drop_each_effect_once(db: &TestDatabase) {
    const N: u64 = 60;
    let stage = Stage::by_key(db, "pay").await;
    for at in 0..N {
        db.insert("pay", &format!("k{at}")).await;
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).succeed()).await;
    }
    let done = tokio_util::sync::CancellationToken::new();
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let (store, done) = (db.another_store().await, done.clone());
        tasks.spawn(async move { purge_until(store, &Step::OF_EFFECTS, done).await });
    }
    let gone = async || {
        // What one step held, another passed; it looks from the start again after a while: as if it were over.
        if db.engine == Engine::Postgres {
            db.sql.execute("UPDATE aftercommit.retention SET from_start_at = '-infinity'").await;
        }
        (db.sql.number("SELECT count(*) FROM aftercommit.effects").await == 0).then_some(())
    };
    eventually(PATIENCE, "three purgers drop everything", gone).await;
    done.cancel();
    let dropped: u64 = within(PATIENCE, "the purgers' end", tasks.join_all()).await.into_iter().sum();
    assert_eq!(dropped, 3 * N, "payload, history and key of each, once");
}

async fn a_key_that_is_going_is_taken_or_free(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let done = tokio_util::sync::CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (store, done) = (db.another_store().await, done.clone());
        async move { purge_until(store, &Step::OF_EFFECTS, done).await }
    });
    let (mut fresh, mut asked) = (0, 0);
    while fresh < 30 {
        let request = NewEffect::to("pay").key(key("k")).json_text("{}").expect("JSON");
        match db.sql.enqueue(request).await.expect("it is answered, never with an error") {
            Enqueued::Inserted(_) => fresh += 1,
            Enqueued::Pending(_) | Enqueued::Ended(_) => {}
        }
        for claim in stage.worker.claim("pay", 1).await {
            stage.done(Settling::of(&claim).succeed()).await;
        }
        asked += 1;
        assert!(asked < 20_000, "the key was never free");
    }
    done.cancel();
    within(PATIENCE, "the purger's end", tasks.join_all()).await;
}

async fn what_somebody_holds_is_left_for_a_later_look(db: &TestDatabase) {
    let (held, free) = (in_state(db, "a", State::Failed).await, in_state(db, "b", State::Failed).await);
    let mut tx = db.sql.begin().await;
    tx.execute(&format!("SELECT effect_id FROM aftercommit.outcomes WHERE effect_id = {held} FOR UPDATE"))
        .await;
    let dropped =
        within(Duration::from_secs(5), "a purge that waits for nobody", drop_all(db, Step::Payloads)).await;
    assert_eq!(dropped, 1);
    assert!(db.status(free).await.payload_dropped && !db.status(held).await.payload_dropped);
    tx.commit().await;
    assert_eq!(drop_all(db, Step::Payloads).await, 0, "this look has passed it");
    let long_ago =
        "UPDATE aftercommit.retention SET from_start_at = clock_timestamp() - interval '6 seconds'";
    db.sql.execute(long_ago).await;
    assert_eq!(
        drop_all(db, Step::Payloads).await,
        1,
        "what is kept for seconds is looked at from the start as often, and so found"
    );
    // Nor does a clock that was set back hide anything.
    let id = in_state(db, "c", State::Failed).await;
    let ahead = "UPDATE aftercommit.retention SET reached = clock_timestamp() + interval '1 year'";
    db.sql.execute(ahead).await;
    assert_eq!(drop_all(db, Step::Payloads).await, 1);
    assert!(db.status(id).await.payload_dropped);
}

async fn a_batch_of_a_step_is_done_in_one_place(db: &TestDatabase) {
    in_state(db, "a", State::Succeeded).await;
    let mut tx = db.sql.begin().await;
    tx.execute("SELECT kept FROM aftercommit.retention WHERE step = 'payloads' FOR UPDATE").await;
    let batch = db.store.drop_batch(Step::Payloads, Duration::ZERO, 10).await.expect("the step runs");
    assert!(batch.elsewhere && batch.effects == 0, "{batch:?}");
    let other = db.store.drop_batch(Step::History, Duration::ZERO, 10).await.expect("the step runs");
    assert!(!other.elsewhere && other.effects == 1, "another step is free: {other:?}");
    tx.rollback().await;
    let batch = db.store.drop_batch(Step::Payloads, Duration::ZERO, 10).await.expect("the step runs");
    assert!(!batch.elsewhere && batch.effects == 1, "its turn ended with its transaction: {batch:?}");
}

/// Counters of the server, of all statements so far that were flushed.
async fn counted(db: &TestDatabase, column: &str, from: &str) -> i64 {
    db.sql.number(&format!("SELECT coalesce(sum({column}), 0)::bigint FROM {from}")).await
}

const TABLES: &str =
    "pg_stat_user_tables WHERE schemaname = 'aftercommit' AND relname IN ('effects', 'outcomes', 'attempts')";
const INDEX: &str = "pg_stat_user_indexes WHERE indexrelname = 'outcomes_retention'";

async fn no_step_looks_through_a_table(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    db.sql
        .execute(
            "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload)
               SELECT 'pay', 'k' || n, '{\"n\": 1}' FROM generate_series(1, 30000) AS n;
             DELETE FROM aftercommit.queue;
             INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, state, downstream)
               SELECT id, id, clock_timestamp() - (40000 - id) * interval '1 second', 1, 'succeeded', 'pay' FROM aftercommit.effects;
             INSERT INTO aftercommit.attempts (effect_id, token, number, started_at, phase, outcome)
               SELECT id, id, 1, clock_timestamp(), 'done', 'applied' FROM aftercommit.effects;
             ANALYZE aftercommit.effects, aftercommit.outcomes, aftercommit.attempts",
        )
        .await;
    // A session's counters are flushed when it ends at the latest.
    let flushed = async |wrote: i64| {
        let all =
            async || (counted(db, "n_tup_ins + n_tup_upd + n_tup_del", TABLES).await >= wrote).then_some(());
        eventually(PATIENCE, "the server's counters are flushed", all).await;
    };
    flushed(90_000).await;
    let before = (counted(db, "seq_scan", TABLES).await, counted(db, "idx_tup_read", INDEX).await);
    let purger = db.another_store().await;
    let mut effects = 0;
    for step in [Step::Payloads, Step::History, Step::Keys, Step::Payloads, Step::History, Step::Keys] {
        let batch = purger.drop_batch(step, Duration::ZERO, 500).await.expect("the step runs");
        // Once history went before the payload of some, two parts of the index have work for a step.
        assert!((500..=1000).contains(&batch.effects) && batch.more, "{batch:?}");
        effects += i64::try_from(batch.effects).expect("few");
    }
    drop(purger);
    flushed(90_000 + effects).await;
    let after = (counted(db, "seq_scan", TABLES).await, counted(db, "idx_tup_read", INDEX).await);
    assert_eq!(after.0, before.0, "a table was read through");
    let read = after.1 - before.1;
    assert!(read >= effects && read <= effects * 3, "{read} index entries were read for {effects} effects");
}

/// Heard before the purge, it is purged; after it, it is not logged.
async fn a_late_answer_that_meets_the_purge_of_its_key_leaves_no_log(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut answers = Vec::new();
    for at in 0..20 {
        let claim = stage.claimed(db, &format!("k{at}")).await;
        stage.done(Settling::of(&claim).succeed()).await;
        answers.push(LateAnswer {
            id: claim.effect.id,
            token: claim.token(),
            attempt: Settling::of(&claim).attempt(&Outcome::new(Finding::Applied, Phase::Done, "")),
            begun: true,
            response: None,
        });
    }
    drop_all(db, Step::Payloads).await;
    drop_all(db, Step::History).await;
    let store = db.another_store().await;
    let mut hearing = JoinSet::new();
    hearing.spawn(async move {
        for answer in &answers {
            // Twice: a report whose acknowledgement was lost.
            for _ in 0..2 {
                store.late(std::slice::from_ref(answer)).await.expect("it is heard");
            }
        }
    });
    drop_all(db, Step::Keys).await;
    within(PATIENCE, "the answers are heard", hearing.join_all()).await;
    drop_all(db, Step::Keys).await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.attempts").await, 0, "of no effect");
}

async fn a_late_answer_in_the_middle_of_the_purge_of_its_key_leaves_no_log(db: &TestDatabase) {
    let id = in_state(db, "pay", State::Failed).await;
    drop_all(db, Step::Payloads).await;
    drop_all(db, Step::History).await;
    // What hearing a late answer does, up to its commit: it holds the effect and logs.
    let mut answer = db.sql.begin().await;
    answer.execute(&format!("SELECT id FROM aftercommit.effects WHERE id = {id} FOR KEY SHARE")).await;
    let purger = db.another_store().await;
    let mut purging = JoinSet::new();
    purging.spawn(async move { purger.drop_batch(Step::Keys, Duration::ZERO, 10).await });
    let waits = async || {
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        (db.sql.number(blocked).await == 1).then_some(())
    };
    eventually(PATIENCE, "the purge waits for the answer", waits).await;
    let log = "INSERT INTO aftercommit.attempts (effect_id, token, number, late, started_at, phase, outcome) \
               VALUES ({id}, 1, 1, true, clock_timestamp(), 'response', 'applied') ON CONFLICT DO NOTHING";
    answer.execute(&log.replace("{id}", &id.to_string())).await;
    answer.commit().await;
    let batch = within(PATIENCE, "the purge's end", purging.join_all()).await.remove(0).expect("no deadlock");
    assert_eq!(batch.effects, 1);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.attempts").await, 0, "a row of no effect");
}
