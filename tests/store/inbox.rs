//! Guarantee: a message that comes twice is acted on in at most one transaction that commits, and forgotten no sooner than its
//! consumer said.

use std::time::Duration;

use aftercommit::{guard::GuardError, store::Step};
use tokio::task::JoinSet;

use super::stage::HOUR;
use crate::support::{Engine, TestDatabase, on_every_database, on_postgres, on_sqlite, within};

on_every_database! {
    a_message_is_accepted_once,
    a_rollback_gives_the_message_back,
    racing_consumers_act_once,
    what_is_no_message_is_refused,
    a_message_is_forgotten_after_its_time,
    messages_of_one_time_are_all_forgotten,
}

on_postgres! {
    the_function_says_the_same_to_any_language,
    an_open_transaction_is_waited_for,
}

on_sqlite! { no_form_of_insert_accepts_twice }

const PATIENCE: Duration = Duration::from_secs(60);

/// What the library is told, in a transaction that commits.
async fn accepted(db: &TestDatabase, consumer: &str, key: &str) -> bool {
    let mut tx = db.sql.begin().await;
    let accepted = tx.accept(consumer, key, HOUR).await.expect("it is told");
    tx.commit().await;
    accepted
}

async fn a_message_is_accepted_once(db: &TestDatabase) {
    let longest = ("c".repeat(255), "ä".repeat(512));
    let messages = [
        ("billing", "m-1"),
        ("billing", "M-1"),
        ("billing", "m-1 "),
        ("mail", "m-1"),
        ("b", "illingm-1"),
        ("Zoë", "\u{fb01}"),
        ("Zoë", "fi"),
        (&longest.0, &longest.1),
    ];
    for told in [true, false, false] {
        for (consumer, key) in messages {
            assert_eq!(accepted(db, consumer, key).await, told, "{consumer:?}, {key:?}");
        }
    }
    let mut tx = db.sql.begin().await;
    for told in [true, false] {
        assert_eq!(tx.accept("billing", "twice in one", HOUR).await.expect("told"), told);
    }
    tx.commit().await;
}

async fn a_rollback_gives_the_message_back(db: &TestDatabase) {
    for _ in 0..2 {
        let mut tx = db.sql.begin().await;
        assert!(tx.accept("billing", "m", HOUR).await.expect("told"));
        tx.rollback().await;
    }
    let mut tx = db.sql.begin().await;
    tx.execute("SAVEPOINT s").await;
    assert!(tx.accept("billing", "m", HOUR).await.expect("told"));
    tx.execute("ROLLBACK TO s").await;
    tx.commit().await;
    assert!(accepted(db, "billing", "m").await);
    assert!(!accepted(db, "billing", "m").await);
}

/// Every third delivery that may act fails, as its consumer's process would.
async fn racing_consumers_act_once(db: &TestDatabase) {
    const MESSAGES: usize = 20;
    db.sql.execute("CREATE TABLE acts (message integer NOT NULL)").await;
    let mut consumers = JoinSet::new();
    for consumer in 0..8 {
        let sql = db.sql.clone();
        consumers.spawn(async move {
            for at in 0..MESSAGES {
                let message = (at + consumer * 3) % MESSAGES;
                let mut tx = sql.begin().await;
                if tx.accept("billing", &format!("m-{message}"), HOUR).await.expect("told") {
                    tx.execute(&format!("INSERT INTO acts VALUES ({message})")).await;
                    if (at + consumer) % 3 == 0 {
                        tx.rollback().await;
                        continue;
                    }
                }
                tx.commit().await;
            }
        });
    }
    within(PATIENCE, "the consumers' end", consumers.join_all()).await;
    // What only failing deliveries got is delivered once more.
    for message in 0..MESSAGES {
        let mut tx = db.sql.begin().await;
        if tx.accept("billing", &format!("m-{message}"), HOUR).await.expect("told") {
            tx.execute(&format!("INSERT INTO acts VALUES ({message})")).await;
        }
        tx.commit().await;
    }
    let acts = db.sql.rows("SELECT message, count(*) AS n FROM acts GROUP BY message").await;
    assert_eq!(acts.len(), MESSAGES);
    assert!(acts.iter().all(|row| row["n"].as_deref() == Some("1")), "{acts:?}");
}

async fn what_is_no_message_is_refused(db: &TestDatabase) {
    let (long, many) = ("x".repeat(1025), "ä".repeat(256));
    let mut tx = db.sql.begin().await;
    for (consumer, key, keep) in [
        ("", "m", HOUR),
        (&many, "m", HOUR),
        ("a\0b", "m", HOUR),
        ("a", "", HOUR),
        ("a", &long, HOUR),
        ("a", "a\0b", HOUR),
        ("a", "m", Duration::ZERO),
        ("a", "m", Duration::from_nanos(999)),
        ("a", "m", Duration::MAX),
    ] {
        let refused = tx.accept(consumer, key, keep).await;
        assert!(matches!(refused, Err(GuardError::Invalid(_))), "{consumer:?} {key:?} {keep:?}: {refused:?}");
    }
    // The transaction is usable still.
    assert!(tx.accept("a", "m", Duration::from_micros(1)).await.expect("told"));
    tx.commit().await;
}

async fn a_message_is_forgotten_after_its_time(db: &TestDatabase) {
    for message in 0..5 {
        assert!(accepted(db, "billing", &format!("old-{message}")).await);
    }
    let before = db.engine.before("expires_at", HOUR);
    let received = db.engine.before("received_at", HOUR);
    db.sql
        .execute(&format!("UPDATE aftercommit.inbox SET expires_at = {before}, received_at = {received}"))
        .await;
    assert!(accepted(db, "billing", "young").await);
    assert!(!accepted(db, "billing", "old-0").await, "until retention comes by it is known");
    let retention = aftercommit::store::Retention::default();
    assert_eq!(db.store.due(Step::Inbox, &retention).await.expect("counted"), 5);
    let mut dropped = Vec::new();
    loop {
        let batch = db.store.drop_batch(Step::Inbox, Duration::ZERO, 2).await.expect("the step runs");
        assert!(!batch.elsewhere);
        dropped.push(batch.effects);
        if !batch.more {
            break;
        }
    }
    assert_eq!(dropped, [2, 2, 1], "in small batches");
    assert_eq!(db.store.due(Step::Inbox, &retention).await.expect("counted"), 0);
    assert!(
        accepted(db, "billing", "old-0").await,
        "a message of a sender who sends it after that is a new one"
    );
    assert!(!accepted(db, "billing", "young").await);
}

/// As after an UPDATE of many rows, or an import.
async fn messages_of_one_time_are_all_forgotten(db: &TestDatabase) {
    for message in 0..7 {
        assert!(accepted(db, "billing", &format!("m-{message}")).await);
    }
    let (before, received) =
        (db.engine.before(db.engine.now(), HOUR), db.engine.before(db.engine.now(), HOUR * 2));
    db.sql
        .execute(&format!(
            "UPDATE aftercommit.inbox SET expires_at = (SELECT {before}), received_at = (SELECT {received})"
        ))
        .await;
    let mut batches = Vec::new();
    while batches.last().is_none_or(|batch: &aftercommit::store::Batch| batch.more) {
        batches.push(db.store.drop_batch(Step::Inbox, Duration::ZERO, 3).await.expect("the step runs"));
        assert!(batches.len() <= 4, "it must end: {batches:?}");
    }
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.inbox").await, 0, "{batches:?}");
}

async fn no_form_of_insert_accepts_twice(db: &TestDatabase) {
    const ROW: &str = "INTO aftercommit.inbox (consumer, key) VALUES ('billing', 'm')";
    assert_eq!(db.sql.execute(&format!("INSERT {ROW}")).await, 1);
    for recursive in ["ON", "OFF"] {
        let mut tx = db.sql.begin().await;
        tx.execute(&format!("PRAGMA recursive_triggers = {recursive}")).await;
        for form in ["INSERT OR REPLACE", "REPLACE"] {
            let error = tx.try_execute(&format!("{form} {ROW}")).await.expect_err(form);
            assert!(error.to_string().contains("was received already"), "{form}: {error}");
        }
        let error = tx.try_execute(&format!("INSERT {ROW}")).await.expect_err("a plain one");
        assert!(error.to_string().contains("UNIQUE"), "{error}");
        tx.rollback().await;
    }
    for form in
        [format!("INSERT OR IGNORE {ROW}"), format!("INSERT {ROW} ON CONFLICT (consumer, key) DO NOTHING")]
    {
        assert_eq!(db.sql.execute(&form).await, 0, "{form}");
        assert!(accepted(db, "billing", &form).await, "another message");
    }
    db.sql.execute("DELETE FROM aftercommit.inbox").await;
    assert_eq!(db.sql.execute(&format!("INSERT OR REPLACE {ROW}")).await, 1, "it is forgotten");
}

async fn the_function_says_the_same_to_any_language(db: &TestDatabase) {
    let call = "SELECT aftercommit.inbox_accept('billing', 'm')";
    let calls = [db.sql.scalar(call).await, db.sql.scalar(call).await];
    assert_eq!(calls, [Some("t".to_owned()), Some("f".to_owned())]);
    assert!(!accepted(db, "billing", "m").await);
    let kept = "SELECT round(extract(epoch FROM expires_at - received_at) / 86400) FROM aftercommit.inbox";
    assert_eq!(db.sql.number(kept).await, 30, "days, unless the consumer says otherwise");
    for (call, column) in [
        ("NULL, 'm'", "consumer"),
        ("'', 'm'", "consumer"),
        ("'a', NULL", "key"),
        ("'a', repeat('ä', 513)", "key"),
        ("'a', 'm', NULL", "keep"),
        ("'a', 'm', '0'", "keep"),
        ("'a', 'm', '-1 ms'", "keep"),
        ("'a', 'm', '100 years'", "keep"),
        ("'a', 'm', '-12 mons +361 days'", "keep"),
    ] {
        let error = db.sql.refused(&format!("SELECT aftercommit.inbox_accept({call})")).await;
        let said = error.as_database_error().expect("the database says it");
        let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!((said.code(), said.column()), ("AC400", Some(column)), "{call}: {said}");
    }
}

async fn an_open_transaction_is_waited_for(db: &TestDatabase) {
    assert_eq!(db.engine, Engine::Postgres);
    for committed in [true, false] {
        let key = format!("m {committed}");
        let mut first = db.sql.begin().await;
        assert!(first.accept("billing", &key, HOUR).await.expect("told"));
        let (sql, mut second) = (db.sql.clone(), JoinSet::new());
        second.spawn(async move {
            let mut tx = sql.begin().await;
            let told = tx.accept("billing", &key, HOUR).await.expect("told");
            tx.commit().await;
            told
        });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let so = async || (db.sql.number(waits).await == 1).then_some(());
        crate::support::eventually(PATIENCE, "the second waits", so).await;
        if committed {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        assert_eq!(within(PATIENCE, "the second", second.join_all()).await, [!committed]);
    }
}
