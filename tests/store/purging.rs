//! Defends: purging hurts nobody. It meets verbs, settles, enqueues and other purgers in any order without an error, a lost
//! effect or a payload that is sent without being there; it looks through no table; and its role may do no more than it needs.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    Enqueued, NewEffect,
    state::State,
    store::{self, Acted, Database, Options, Settled, Step},
    verb::{Refusal, Verb},
};
use tokio::task::JoinSet;

use super::{
    retention::{drop_all, in_state, key},
    stage::{HOUR, Stage, person},
};
use crate::support::{Settling, TestDatabase, eventually, on_every_database, on_postgres, within};

on_every_database! {
    a_retry_meets_a_purge_and_one_of_them_is_first,
    settles_go_on_while_everything_is_dropped,
    several_purgers_drop_each_effect_once,
    a_key_that_is_going_is_taken_or_free,
}

on_postgres! {
    what_somebody_holds_is_left_for_a_later_look,
    a_batch_of_a_step_is_done_in_one_place,
    no_step_looks_through_a_table,
    the_workers_role_may_purge_and_the_operators_redact,
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
        async move { purge_until(store, &Step::ALL, done).await }
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
    for step in Step::ALL {
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
        tasks.spawn(async move { purge_until(store, &Step::ALL, done).await });
    }
    let gone = async || (db.sql.number("SELECT count(*) FROM aftercommit.effects").await == 0).then_some(());
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
        async move { purge_until(store, &Step::ALL, done).await }
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
        "UPDATE aftercommit.retention SET from_start_at = clock_timestamp() - interval '11 minutes'";
    db.sql.execute(long_ago).await;
    assert_eq!(drop_all(db, Step::Payloads).await, 1, "the next look from the start finds it");
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

async fn the_workers_role_may_purge_and_the_operators_redact(db: &TestDatabase) {
    let as_role = async |role: &str| {
        let url = format!("{}?options=-c%20role%3D{role}", db.url);
        store::connect(&url, &Options { max_connections: 2, ..Options::default() })
            .await
            .expect("the role connects")
    };
    in_state(db, "a", State::Failed).await;
    let redacted = in_state(db, "b", State::Failed).await;
    let cancelled = in_state(db, "c", State::Cancelled).await;
    let operator = as_role("aftercommit_operator").await;
    let acted = operator.act(redacted, &Verb::Redact, &person(), None).await.expect("an operator may redact");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let worker = as_role("aftercommit_worker").await;
    for (step, effects) in [(Step::Payloads, 2), (Step::History, 3), (Step::Keys, 3)] {
        let batch = worker.drop_batch(step, Duration::ZERO, 10).await.expect("a worker may purge");
        assert_eq!(batch.effects, effects, "{step:?}");
    }
    worker.forget_unused(HOUR).await.expect("a worker may tidy up");
    operator.forget_unused(HOUR).await.expect("an operator may too");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.audit").await, 0, "of effects that are gone");
    assert!(db.store.effect(cancelled).await.expect("readable").is_none());
    // The audit of an effect that is there is out of reach.
    let kept = in_state(db, "d", State::Cancelled).await;
    let forget =
        format!("SET ROLE aftercommit_worker; SELECT aftercommit.forget_audit('{{{kept}}}', 0); RESET ROLE");
    db.sql.execute(&forget).await;
    assert_eq!(db.store.audit(Some(kept), 10).await.expect("readable").len(), 1);
    for role in ["aftercommit_app", "aftercommit_viewer"] {
        let error =
            db.sql.refused(&format!("SET ROLE {role}; SELECT aftercommit.forget_audit('{{}}', 0)")).await;
        assert!(error.to_string().contains("permission denied"), "{role}: {error}");
    }
}
