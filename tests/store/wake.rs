//! Defends: a wake-up is a hint that costs an INSERT nothing; without it, polling finds everything.

use std::time::Duration;

use aftercommit::{state::State, store::Acted, verb::Verb};
use tokio::time::Instant;

use super::stage::{Stage, person};
use crate::support::{
    TestDatabase, close_session, eventually, insert_sql, on_every_database, on_postgres, on_session, within,
};

on_every_database! {
    waiting_for_work_ends_in_time,
    work_is_found_without_a_hint,
}
on_postgres! {
    a_commit_wakes_a_waiting_worker,
    inserts_of_every_size_commit,
    who_inserts_nothing_wakes_nobody,
    a_notification_carries_nothing,
    a_lost_listener_stops_nothing_and_comes_back,
    anybody_may_notify_and_nothing_follows_from_it,
    an_effect_that_came_while_the_trigger_was_gone_is_not_passed_over_in_silence,
}

async fn waiting_for_work_ends_in_time(db: &TestDatabase) {
    for at_most in [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200)] {
        within(at_most + Duration::from_secs(5), "work_arrived ends", db.store.work_arrived(at_most)).await;
    }
}

/// Trap T21.
async fn work_is_found_without_a_hint(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    for number in 0..5 {
        let id = db.insert("pay", &format!("k{number}")).await;
        assert_eq!(stage.worker.claim_one("pay").await.effect.id, id);
    }
}

/// How long a waiting worker waited until a commit woke it; `None` when it was not woken.
async fn woken(db: &TestDatabase, key: &str) -> Option<()> {
    const AT_MOST: Duration = Duration::from_secs(5);
    let store = std::sync::Arc::clone(&db.store);
    // Hints of earlier commits are used up first.
    store.work_arrived(Duration::from_millis(100)).await;
    let began = Instant::now();
    let waiting = store.work_arrived(AT_MOST);
    let (_, ()) = tokio::join!(db.insert("pay", key), waiting);
    (began.elapsed() < AT_MOST / 2).then_some(())
}

async fn a_commit_wakes_a_waiting_worker(db: &TestDatabase) {
    let mut number = 0;
    eventually(Duration::from_secs(30), "a commit wakes a worker that waits for 5 s", async || {
        number += 1;
        woken(db, &format!("k{number}")).await
    })
    .await;
    let mut tx = db.sql.begin().await;
    tx.execute(&insert_sql("pay", "rolled-back", &[])).await;
    tx.rollback().await;
}

/// NOTIFY-03.
async fn inserts_of_every_size_commit(db: &TestDatabase) {
    for size in [7_900, 8_100, 1 << 20] {
        let payload = format!("(to_json(repeat('x', {})))", size - 2);
        db.insert_with("pay", &format!("size-{size}"), &[("payload", &payload)]).await;
    }
    let error =
        db.sql.refused(&insert_sql("pay", "huge", &[("payload", "(to_json(repeat('x', 20000000)))")])).await;
    assert!(error.to_string().contains("payload"), "refused for its size, not by NOTIFY: {error}");
    let written = db
        .sql
        .execute("INSERT INTO aftercommit.effects (downstream, idempotency_key) SELECT 'pay', 'many-' || n FROM generate_series(1, 3000) n")
        .await;
    assert_eq!(written, 3000);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.queue").await, 3003);
}

/// A transaction that notifies cannot be prepared.
async fn who_inserts_nothing_wakes_nobody(db: &TestDatabase) {
    let mut session = db.sql.session().await;
    let effects = "INSERT INTO aftercommit.effects (downstream, idempotency_key, due_at)";
    on_session(&mut session, &format!("{effects} VALUES ('pay', 'there', NULL)")).await.expect("written");
    for rows in
        ["SELECT 'pay', 'none', NULL WHERE false", "VALUES ('pay', 'there', NULL) ON CONFLICT DO NOTHING"]
    {
        for end in ["ROLLBACK", "COMMIT"] {
            on_session(&mut session, "BEGIN").await.expect("it begins");
            on_session(&mut session, &format!("{effects} {rows}")).await.expect(rows);
            on_session(&mut session, "PREPARE TRANSACTION 'nothing'").await.expect(rows);
            on_session(&mut session, &format!("{end} PREPARED 'nothing'")).await.expect(rows);
        }
    }
    close_session(session).await;
}

/// NOTIFY-03.
async fn a_notification_carries_nothing(db: &TestDatabase) {
    let source = "SELECT DISTINCT (regexp_matches(prosrc, 'pg_notify\\s*\\(\\s*''(\\w+)', 'g'))[1] AS channel \
       FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace";
    let channels = db.sql.rows(source).await;
    assert_eq!(channels.len(), 1, "one channel: {channels:?}");
    let channel = channels[0]["channel"].clone().expect("a name");
    let mut listener = sqlx::postgres::PgListener::connect(&db.url).await.expect("it connects");
    listener.listen(&channel).await.expect("it listens");
    db.insert_with("pay", "k", &[("payload", r#"'{"card":"4242"}'"#)]).await;
    let notification = within(Duration::from_secs(10), "a notification arrives", listener.recv()).await;
    assert_eq!(notification.expect("received").payload(), "");
}

/// NOTIFY-01: the server ends the connection.
async fn a_lost_listener_stops_nothing_and_comes_back(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'";
    eventually(Duration::from_secs(10), "the store listens", async || {
        (db.sql.number(listening).await > 0).then_some(())
    })
    .await;
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    assert!(db.sql.number(kill).await > 0);
    let id = db.insert("pay", "k0").await;
    assert_eq!(stage.worker.claim_one("pay").await.effect.id, id, "polling finds it");
    within(Duration::from_secs(5), "waiting still ends", db.store.work_arrived(Duration::from_millis(100)))
        .await;
    let mut number = 0;
    eventually(
        Duration::from_secs(60),
        "the listener comes back and a commit wakes a worker again",
        async || {
            number += 1;
            woken(db, &format!("k{number}")).await
        },
    )
    .await;
}

/// Trap T21: a notification is a hint from anybody at all.
async fn anybody_may_notify_and_nothing_follows_from_it(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = db.insert("pay", "k").await;
    let claim = stage.worker.claim_one("pay").await;
    for payload in ["", "1", "DROP TABLE", &"x".repeat(7000)] {
        db.sql.execute(&format!("SELECT pg_notify('aftercommit_work', '{payload}')")).await;
    }
    db.store.work_arrived(Duration::from_millis(100)).await;
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "what is claimed stays claimed");
    assert_eq!((claim.effect.id, db.status(id).await.attempts), (id, 1));
}

/// NOTIFY-07: the trigger is dropped and made again while the worker runs.
async fn an_effect_that_came_while_the_trigger_was_gone_is_not_passed_over_in_silence(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    db.insert("pay", "before").await;
    assert_eq!(stage.worker.claim_one("pay").await.effect.key, "before");
    let definition = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'effects_inserted'";
    let definition = db.sql.scalar(definition).await.expect("the trigger is there");
    db.sql.execute("DROP TRIGGER effects_inserted ON aftercommit.effects").await;
    let during = db.insert("pay", "during").await;
    db.sql.execute(&definition).await;
    db.insert("pay", "after").await;
    assert_eq!(stage.worker.claim_one("pay").await.effect.key, "after", "the worker goes on as before");
    let status = db.status(during).await;
    assert_eq!(status.state, State::InDoubt, "nobody knows what became of it: {status:?}");
    // A person can end it, and only a person can have it sent.
    assert!(stage.worker.claim("pay", 5).await.is_empty());
    let acted = db.store.act(during, &Verb::ResolveNotApplied, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(db.state(during).await, State::Failed);
    let acted = db.store.act(during, &Verb::Retry, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    assert_eq!(stage.worker.claim_one("pay").await.effect.id, during);
}
