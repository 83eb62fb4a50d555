//! Defends: an effect exists if and only if its transaction committed, and one (downstream, key) is one effect.

use std::time::Duration;

use aftercommit::{
    Enqueued, IdempotencyKey, NewEffect,
    contract::{Contract, KeyCharset, KeyRule},
    effect::InvalidEffect,
    error::EnqueueError,
    state::State,
};

use super::stage::Stage;
use crate::support::{
    Chance, Engine, TestDatabase, Tx, Worker, on_every_database, on_postgres, registered, terms, within,
};

on_every_database! {
    a_plain_insert_is_claimable_once_it_committed,
    the_library_writes_into_the_callers_transaction,
    a_rollback_leaves_nothing,
    an_identical_effect_is_the_same_effect,
    another_request_under_a_key_is_refused_and_the_transaction_goes_on,
    a_plain_insert_of_an_existing_key_is_a_unique_violation,
    nobody_is_told_of_an_effect_that_then_rolls_back,
    waiting_enqueuers_get_the_effect_that_committed,
    a_bulk_answers_for_each_effect_in_input_order,
    bulks_in_any_order_do_not_deadlock,
    keys_are_compared_byte_by_byte,
    a_key_that_its_downstream_cannot_take_fails_alone,
    what_the_database_refuses_names_its_column,
}

on_postgres! { a_snapshot_that_is_too_old_is_told_to_retry }

/// An effect of `pay` with a payload that names its key.
pub(crate) fn effect(key: &str) -> NewEffect {
    NewEffect::to("pay")
        .key(IdempotencyKey::parse(key).expect("a key"))
        .json(&serde_json::json!({ "order": key }))
        .expect("JSON")
}

async fn rows(db: &TestDatabase, table: &str) -> i64 {
    db.sql.number(&format!("SELECT count(*) FROM aftercommit.{table}")).await
}

async fn a_plain_insert_is_claimable_once_it_committed(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut tx = db.sql.begin().await;
    tx.execute("CREATE TABLE orders (id integer PRIMARY KEY)").await;
    tx.execute("INSERT INTO orders VALUES (17)").await;
    tx.execute("INSERT INTO aftercommit.effects (downstream, payload) VALUES ('pay', '{\"a\": 1}')").await;
    assert!(stage.worker.claim("pay", 5).await.is_empty(), "not before the commit");
    tx.commit().await;
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.effect.payload.as_deref(), Some("{\"a\": 1}"));
    let key = uuid::Uuid::parse_str(&claim.effect.key).expect("the default key is a UUID");
    assert_eq!(key.get_version_num(), 4);
}

async fn the_library_writes_into_the_callers_transaction(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let later = db.now().await.plus(Duration::from_secs(3600));
    let mut tx = db.sql.begin().await;
    let now = tx.enqueue(effect("now")).await.expect("it is written");
    let timed = tx.enqueue(effect("timed").due_at(later)).await.expect("it is written");
    let random = tx.enqueue(NewEffect::to("pay")).await.expect("it is written");
    let Enqueued::Inserted(now) = now else { panic!("{now:?}") };
    assert_eq!((now.key.as_str(), now.state), ("now", State::Ready));
    assert_eq!(timed.receipt().state, State::Scheduled);
    assert_eq!(random.receipt().key.len(), 36, "a random key is given back");
    assert_eq!(stage.worker.claim("pay", 5).await.len(), 0);
    tx.commit().await;
    let status = db.status(timed.receipt().id).await;
    assert_eq!((status.state, status.due_at), (State::Scheduled, Some(later)), "to the microsecond");
    let claims = stage.worker.claim("pay", 5).await;
    assert_eq!(claims.len(), 2);
    let first = claims.iter().find(|claim| claim.effect.id == now.id).expect("it is claimed");
    assert_eq!(first.effect.payload.as_deref(), Some(r#"{"order":"now"}"#));
}

async fn a_rollback_leaves_nothing(db: &TestDatabase) {
    let mut tx = db.sql.begin().await;
    tx.enqueue(effect("k1")).await.expect("it is written");
    tx.enqueue_many(vec![effect("k2"), effect("k3")]).await.expect("they are written");
    tx.execute("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k4')").await;
    tx.rollback().await;
    assert_eq!((rows(db, "effects").await, rows(db, "queue").await), (0, 0));
    let again = db.sql.enqueue(effect("k1")).await.expect("the key is free");
    assert!(matches!(again, Enqueued::Inserted(_)), "{again:?}");
}

async fn an_identical_effect_is_the_same_effect(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let first = db.sql.enqueue(effect("k")).await.expect("it is written");
    let id = first.receipt().id;
    let again = db.sql.enqueue(effect("k")).await.expect("it is found");
    let Enqueued::Pending(receipt) = again else { panic!("{again:?}") };
    assert_eq!((receipt.id, receipt.state), (id, State::Ready));
    // Times, metadata and trace do not make another request.
    let other = effect("k")
        .due_at(db.now().await.plus(Duration::from_secs(60)))
        .metadata(&serde_json::json!({"attempt": 2}))
        .expect("an object")
        .trace_context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    assert_eq!(db.sql.enqueue(other).await.expect("it is found").receipt().id, id);
    let claim = stage.worker.claim_one("pay").await;
    let again = db.sql.enqueue(effect("k")).await.expect("it is found");
    assert!(matches!(&again, Enqueued::Pending(receipt) if receipt.state == State::InFlight), "{again:?}");
    stage.done(crate::support::Settling::of(&claim).succeed()).await;
    let again = db.sql.enqueue(effect("k")).await.expect("it is found");
    let Enqueued::Ended(receipt) = again else { panic!("{again:?}") };
    assert_eq!((receipt.id, receipt.state), (id, State::Succeeded));
    assert_eq!(rows(db, "effects").await, 1);
}

async fn another_request_under_a_key_is_refused_and_the_transaction_goes_on(db: &TestDatabase) {
    let id = db.sql.enqueue(effect("k")).await.expect("it is written").receipt().id;
    let mut tx = db.sql.begin().await;
    let parsed = || IdempotencyKey::parse("k").expect("a key");
    let others = [
        NewEffect::to("pay").key(parsed()),
        NewEffect::to("pay").key(parsed()).json_text(r#"{"order": "k"}"#).expect("JSON"),
        effect("k").operation("refund"),
        effect("k").target("/elsewhere"),
        effect("k").headers(&serde_json::json!({"x-a": "1"})).expect("an object"),
        NewEffect::to("pay").key(parsed()).body("text/plain", r#"{"order":"k"}"#),
    ];
    for other in others {
        match tx.enqueue(other).await {
            Err(EnqueueError::OtherRequest { downstream, key, id: found }) => {
                assert_eq!((downstream.as_str(), key.as_str(), found), ("pay", "k", id.get()));
            }
            unexpected => panic!("{unexpected:?}"),
        }
    }
    let same = tx.enqueue(effect("k2")).await.expect("the transaction is still usable");
    tx.commit().await;
    assert_eq!(db.state(same.receipt().id).await, State::Ready);
    assert_eq!(rows(db, "effects").await, 2);
    // The same key at another downstream is another effect.
    let mail = NewEffect::to("mail").key(parsed());
    assert!(matches!(db.sql.enqueue(mail).await, Ok(Enqueued::Inserted(_))));
}

async fn a_plain_insert_of_an_existing_key_is_a_unique_violation(db: &TestDatabase) {
    let id = db.insert("pay", "k").await;
    let insert = "INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k')";
    let error = db.sql.refused(insert).await;
    match db.engine {
        Engine::Postgres => {
            assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("23505"));
        }
        // A trigger cannot raise the code of a constraint; it can say what it is.
        Engine::Sqlite => assert!(error.to_string().to_lowercase().contains("unique"), "{error}"),
    }
    assert!(error.to_string().contains("key"), "{error}");
    assert_eq!((rows(db, "effects").await, rows(db, "queue").await), (1, 1));
    assert_eq!(db.state(id).await, State::Ready);
}

/// One transaction holds the key; four more enqueue it meanwhile; then `end` ends the first.
async fn race(db: &TestDatabase, end: impl AsyncFnOnce(Tx)) -> Vec<Result<Enqueued, EnqueueError>> {
    let mut first = db.sql.begin().await;
    let held = first.enqueue(effect("k")).await.expect("it is written");
    assert!(matches!(held, Enqueued::Inserted(_)));
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let sql = db.sql.clone();
        others.spawn(async move { sql.enqueue(effect("k")).await });
    }
    let waited = tokio::time::timeout(Duration::from_millis(300), others.join_next()).await;
    assert!(waited.is_err(), "nobody may be told anything while the first is open: {waited:?}");
    end(first).await;
    within(Duration::from_secs(30), "the waiting enqueuers go on", others.join_all()).await
}

/// UNIQUE-01.
async fn nobody_is_told_of_an_effect_that_then_rolls_back(db: &TestDatabase) {
    let results = race(db, async |tx| tx.rollback().await).await;
    let told: Vec<Enqueued> = results.into_iter().map(|told| told.expect("they go on")).collect();
    let inserted = told.iter().filter(|told| matches!(told, Enqueued::Inserted(_))).count();
    assert_eq!(inserted, 1, "{told:?}");
    let id = told[0].receipt().id;
    assert!(told.iter().all(|told| told.receipt().id == id), "all mean the one that exists: {told:?}");
    assert_eq!(db.state(id).await, State::Ready);
    assert_eq!((rows(db, "effects").await, rows(db, "queue").await), (1, 1));
}

async fn waiting_enqueuers_get_the_effect_that_committed(db: &TestDatabase) {
    let results = race(db, async |tx| tx.commit().await).await;
    for told in results {
        assert!(matches!(told, Ok(Enqueued::Pending(_))), "{told:?}");
    }
    assert_eq!((rows(db, "effects").await, rows(db, "queue").await), (1, 1));
}

/// UNIQUE-01, under the higher isolation levels.
async fn a_snapshot_that_is_too_old_is_told_to_retry(db: &TestDatabase) {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let key = isolation.replace(' ', "-");
        let mut old = db.sql.begin().await;
        old.execute(&format!("SET TRANSACTION ISOLATION LEVEL {isolation}; SELECT 1")).await;
        let id = db.sql.enqueue(effect(&key)).await.expect("it is written").receipt().id;
        let told = old.enqueue(effect(&key)).await;
        let code = match &told {
            Err(EnqueueError::Database(error)) => error.as_database_error().and_then(|error| error.code()),
            _ => None,
        };
        assert_eq!(code.as_deref(), Some("40001"), "{isolation}: {told:?}");
        old.rollback().await;
        let retried = db.sql.enqueue(effect(&key)).await.expect("the retry finds it");
        assert_eq!(retried.receipt().id, id);

        let mut first = db.sql.begin().await;
        first.enqueue(effect(&format!("{key}-2"))).await.expect("it is written");
        let (sql, wanted) = (db.sql.clone(), effect(&format!("{key}-2")));
        let mut waiting = tokio::task::JoinSet::new();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {isolation}");
        waiting.spawn(async move {
            let mut tx = sql.begin().await;
            tx.execute(&begin).await;
            let told = tx.enqueue(wanted).await;
            tx.commit().await;
            told
        });
        let early = tokio::time::timeout(Duration::from_millis(200), waiting.join_next()).await;
        assert!(early.is_err(), "it waits for the first: {early:?}");
        first.rollback().await;
        let told = within(Duration::from_secs(20), "the second goes on", waiting.join_all()).await;
        assert!(matches!(told[0], Ok(Enqueued::Inserted(_))), "{isolation}: {told:?}");
    }
}

/// UNIQUE-03.
async fn a_bulk_answers_for_each_effect_in_input_order(db: &TestDatabase) {
    let existing = db.sql.enqueue(effect("key-42")).await.expect("it is written").receipt().id;
    let taken = db.sql.enqueue(effect("key-7").target("/other")).await.expect("it is written").receipt().id;
    // In no order at all; key-13 comes twice, at the places 13 and 99.
    let mut keys: Vec<String> = (0..99).map(|number| format!("key-{number}")).collect();
    keys.push("key-13".to_owned());
    let mut order: Vec<usize> = (0..100).collect();
    Chance::seeded().shuffle(&mut order);
    let shuffled: Vec<&str> = order.iter().map(|place| keys[*place].as_str()).collect();
    let mut tx = db.sql.begin().await;
    let told =
        tx.enqueue_many(shuffled.iter().map(|key| effect(key)).collect()).await.expect("one statement");
    assert_eq!(told.len(), 100);
    let mut seen_13 = None;
    for (key, told) in shuffled.iter().zip(&told) {
        match (*key, told) {
            ("key-42", Ok(Enqueued::Pending(receipt))) => assert_eq!(receipt.id, existing),
            ("key-7", Err(EnqueueError::OtherRequest { id, .. })) => assert_eq!(*id, taken.get()),
            ("key-13", Ok(Enqueued::Pending(receipt))) if seen_13.is_some() => {
                assert_eq!(Some(receipt.id), seen_13, "the second is the first");
            }
            (_, Ok(Enqueued::Inserted(receipt))) => {
                assert_eq!(receipt.key, *key, "in input order");
                if *key == "key-13" {
                    seen_13 = Some(receipt.id);
                }
            }
            unexpected => panic!("{unexpected:?}"),
        }
    }
    tx.execute("SELECT 1").await;
    let empty = tx.enqueue_many(Vec::new()).await.expect("nothing is fine");
    assert!(empty.is_empty());
    tx.commit().await;
    assert_eq!((rows(db, "effects").await, rows(db, "queue").await), (99, 99));
}

async fn bulks_in_any_order_do_not_deadlock(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (sql, mut chance) = (db.sql.clone(), chance.fork());
        writers.spawn(async move {
            let mut keys: Vec<String> = (0..60).map(|number| format!("key-{number}")).collect();
            chance.shuffle(&mut keys);
            let mut tx = sql.begin().await;
            let told = tx.enqueue_many(keys.iter().map(|key| effect(key)).collect()).await;
            let told = told.expect("no deadlock");
            assert!(told.iter().all(Result::is_ok), "{told:?}");
            tx.commit().await;
        });
    }
    within(Duration::from_secs(60), "six bulks over the same keys", writers.join_all()).await;
    assert_eq!(rows(db, "effects").await, 60);
}

async fn keys_are_compared_byte_by_byte(db: &TestDatabase) {
    for key in ["k1", "K1", "k1.", "k 1", "k_1", "k-1", "fi", "FI"] {
        let enqueued = db.sql.enqueue(effect(key)).await.expect("it is written");
        assert!(matches!(enqueued, Enqueued::Inserted(_)), "{key}: {enqueued:?}");
    }
    for key in ["k1 ", "k1\t", "ﬁ", "e\u{301}", "é"] {
        assert!(IdempotencyKey::parse(key).is_err(), "{key:?} is refused before the database");
        let quoted =
            format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', '{key}')");
        let error = db.sql.refused(&quoted).await;
        assert!(error.to_string().contains("idempotency_key"), "{error}");
    }
    assert_eq!(rows(db, "effects").await, 8);
}

/// The column that an enqueueing was refused for.
fn refused_column(told: &Result<Enqueued, EnqueueError>) -> Option<&'static str> {
    match told {
        Err(EnqueueError::Invalid(InvalidEffect::Column { column, .. })) => Some(column),
        _ => None,
    }
}

async fn a_key_that_its_downstream_cannot_take_fails_alone(db: &TestDatabase) {
    let key = KeyRule { min_len: 1, max_len: 8, charset: KeyCharset::Token };
    let short = terms(Contract { key, ..Contract::key(None) });
    Worker::start(&db.store, "w1", vec![registered("pay", short)]).await;
    let mut tx = db.sql.begin().await;
    let keys = ["k1", "far-too-long", "k2", "a/b", "k1"];
    let told = tx.enqueue_many(keys.map(effect).into()).await.expect("the others are written");
    let columns: Vec<_> = told.iter().map(refused_column).collect();
    assert_eq!(columns, [None, Some("idempotency_key"), None, Some("idempotency_key"), None]);
    assert!(matches!(told[4], Ok(Enqueued::Pending(_))), "{told:?}");
    let one = tx.enqueue(effect("far-too-long")).await;
    assert_eq!(refused_column(&one), Some("idempotency_key"), "{one:?}");
    tx.enqueue(effect("k3")).await.expect("the transaction goes on");
    tx.commit().await;
    assert_eq!(rows(db, "effects").await, 3);
}

async fn what_the_database_refuses_names_its_column(db: &TestDatabase) {
    let later = db.now().await.plus(Duration::from_secs(u64::from(u32::MAX) * 100));
    let bad = [
        ("downstream", NewEffect::to(" pay")),
        ("operation", NewEffect::to("pay").operation("")),
        ("target", NewEffect::to("pay").target("")),
        ("content_type", NewEffect::to("pay").body("text/\n", "x")),
        ("headers", NewEffect::to("pay").headers(&serde_json::json!({"Host": "x"})).expect("an object")),
        ("due_at", NewEffect::to("pay").due_at(later)),
        ("expires_at", NewEffect::to("pay").expires_at(later)),
        ("trace_context", NewEffect::to("pay").trace_context("?")),
    ];
    for (column, effect) in bad {
        let told = db.sql.enqueue(effect.clone()).await;
        assert_eq!(refused_column(&told), Some(column), "{told:?}");
        let mut tx = db.sql.begin().await;
        let told = match tx.enqueue_many(vec![effect]).await {
            Ok(mut told) => told.remove(0),
            Err(outer) => Err(outer),
        };
        assert_eq!(refused_column(&told), Some(column), "{told:?}");
        tx.rollback().await;
    }
    assert_eq!(rows(db, "effects").await, 0);
}
