//! Guarantee: inside a guarded request an effect without a key gets one that follows from the request's, the same in SQL and in
//! Rust (IDEMP-OUT-06, T13): the same request, should it run again, finds the same effects.

use aftercommit::{
    EffectId, Enqueued, IdempotencyKey, NewEffect, error::EnqueueError, guard::Begun, key::derive,
    store::Step,
};

use super::{answer, begun};
use crate::{
    store::{retention::drop_all, stage::Stage},
    support::{
        Settling, Sql, TestDatabase, Tx, answered, close_session, on_every_database, on_postgres, on_session,
        request,
    },
};

on_every_database! {
    a_key_that_is_missing_follows_from_the_request,
    the_shared_vectors_hold_end_to_end,
    a_key_of_ones_own_stays,
    two_effects_with_one_name_are_told_apart_or_refused,
    a_bulk_is_named_as_its_effects_are,
    a_rolled_back_savepoint_frees_the_name,
    outside_of_a_request_keys_are_random,
    a_plain_insert_derives_nothing_and_belongs_to_its_request,
    a_request_that_runs_again_finds_its_effects,
}

on_postgres! { the_function_derives_as_the_library_does }

fn effect(order: &str) -> NewEffect {
    NewEffect::to("pay").json(&serde_json::json!({ "order": order })).expect("JSON")
}

async fn enqueued(tx: &mut Tx, effect: NewEffect) -> (EffectId, String) {
    let enqueued = tx.enqueue(effect).await.expect("it is written");
    let Enqueued::Inserted(receipt) = enqueued else { panic!("{enqueued:?}") };
    (receipt.id, receipt.key)
}

async fn of_request(db: &TestDatabase, id: EffectId) -> Option<String> {
    db.sql.scalar(&format!("SELECT request_id FROM aftercommit.effects WHERE id = {id}")).await
}

async fn a_key_that_is_missing_follows_from_the_request(db: &TestDatabase) {
    let request = request("tenant-7", "k 1", "{}");
    let mut tx = begun(db, &request).await;
    let plain = enqueued(&mut tx, effect("1")).await;
    let charge = enqueued(&mut tx, effect("1").operation("charge")).await;
    let named = enqueued(&mut tx, effect("1").name("deposit")).await;
    let other = enqueued(&mut tx, NewEffect::to("mail")).await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    for ((id, key), name) in [(plain, "pay/"), (charge, "pay/charge"), (named, "deposit"), (other, "mail/")] {
        assert_eq!(key, derive("tenant-7", "k 1", name).as_str(), "{name}");
        assert_eq!(db.status(id).await.idempotency_key, key);
        assert!(of_request(db, id).await.is_some(), "{name}");
    }
}

/// The same file is held against `key.rs` and `derive_key`; here, what a request may be called.
async fn the_shared_vectors_hold_end_to_end(db: &TestDatabase) {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../vectors/derive_key.json")).expect("the file is JSON");
    let text = |part: &serde_json::Value| match part.as_str() {
        Some(text) => text.to_owned(),
        None => part["repeat"][0].as_str().expect("a text").repeat(
            part["repeat"][1].as_u64().and_then(|times| usize::try_from(times).ok()).expect("how often"),
        ),
    };
    let mut held = 0;
    for vector in file["vectors"].as_array().expect("a list") {
        let (scope, key, name) =
            (text(&vector["scope"]), text(&vector["request_key"]), text(&vector["name"]));
        let parsed = (
            aftercommit::guard::Scope::parse(scope.clone()),
            aftercommit::guard::RequestKey::parse(key.clone()),
        );
        let (Ok(_), Ok(_)) = parsed else { continue };
        let request = request(&scope, &key, "{}");
        let mut tx = begun(db, &request).await;
        let (_, derived) = enqueued(&mut tx, effect("1").name(name)).await;
        tx.rollback().await;
        assert_eq!(Some(derived.as_str()), vector["key"].as_str(), "{}", vector["case"]);
        held += 1;
    }
    assert!(held >= 4, "{held} vectors are few");
}

async fn a_key_of_ones_own_stays(db: &TestDatabase) {
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    let own = IdempotencyKey::parse("order-17/charge").expect("a key");
    let (_, key) = enqueued(&mut tx, effect("1").key(own.clone()).name("unused")).await;
    assert_eq!(key, "order-17/charge");
    // The same effect, as everywhere.
    assert!(matches!(tx.enqueue(effect("1").key(own)).await, Ok(Enqueued::Pending(_))));
    tx.rollback().await;
}

async fn two_effects_with_one_name_are_told_apart_or_refused(db: &TestDatabase) {
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    let (id, key) = enqueued(&mut tx, effect("1")).await;
    // Identical or not: which of two equal effects is meant once cannot be known.
    for again in [effect("1"), effect("2"), effect("3").name("pay/")] {
        let refused = tx.enqueue(again).await;
        let Err(EnqueueError::NeedsName { id: holds, key: held, .. }) = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!((*holds, held), (id.get(), &key));
        assert!(refused.unwrap_err().to_string().contains("name"), "it says what to do");
    }
    // The transaction is usable still.
    enqueued(&mut tx, effect("1").name("a")).await;
    enqueued(&mut tx, effect("1").name("b")).await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 3);
}

async fn a_bulk_is_named_as_its_effects_are(db: &TestDatabase) {
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    let own = IdempotencyKey::parse("own").expect("a key");
    let batch = vec![
        effect("1"),
        effect("1").name("b"),
        effect("2"),
        effect("1").key(own.clone()),
        effect("1").key(own),
        effect("1").name("b"),
        effect("1").name("c"),
    ];
    let results = tx.enqueue_many(batch).await.expect("a bulk");
    let words: Vec<&str> = results
        .iter()
        .map(|result| match result {
            Ok(Enqueued::Inserted(_)) => "inserted",
            Ok(Enqueued::Pending(_)) => "pending",
            Err(EnqueueError::NeedsName { .. }) => "needs a name",
            other => panic!("{other:?}"),
        })
        .collect();
    let expected =
        ["inserted", "inserted", "needs a name", "inserted", "pending", "needs a name", "inserted"];
    assert_eq!(words, expected);
    let key = &results[0].as_ref().expect("inserted").receipt().key;
    assert_eq!(key, derive("shop", "k", "pay/").as_str());
    tx.rollback().await;
}

async fn a_rolled_back_savepoint_frees_the_name(db: &TestDatabase) {
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    tx.execute("SAVEPOINT s").await;
    let (_, first) = enqueued(&mut tx, effect("1")).await;
    tx.execute("ROLLBACK TO s").await;
    let (id, second) = enqueued(&mut tx, effect("2")).await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    assert_eq!(first, second);
    assert!(of_request(db, id).await.is_some());
}

async fn outside_of_a_request_keys_are_random(db: &TestDatabase) {
    let random = async |what: &str| {
        let mut tx = db.sql.begin().await;
        let mut keys = Vec::new();
        for _ in 0..2 {
            let (id, key) = enqueued(&mut tx, effect("1").name("unused")).await;
            assert_eq!(uuid::Uuid::parse_str(&key).expect("a UUID").get_version_num(), 4, "{what}");
            keys.push((id, key));
        }
        tx.commit().await;
        assert_ne!(keys[0].1, keys[1].1, "{what}");
        assert_eq!(of_request(db, keys[0].0).await, None, "{what}");
    };
    random("before any").await;
    // On every connection of the pool, whatever it did before.
    for at in 0..20 {
        let request = request("shop", &format!("k{at}"), "{}");
        let mut tx = begun(db, &request).await;
        enqueued(&mut tx, effect("1")).await;
        tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
        if at % 2 == 0 {
            tx.commit().await
        } else {
            tx.rollback().await
        }
        random("after one").await;
    }
    answer(db, &request("shop", "k", "{}"), &answered(201, "")).await;
    let mut tx = db.sql.begin().await;
    assert!(matches!(tx.begin_request(&request("shop", "k", "{}")).await, Ok(Begun::Replay(_))));
    // Who was told to replay acts on no request: PostgreSQL refuses, SQLite cannot know.
    match tx.enqueue(effect("1")).await {
        Ok(enqueued) => {
            assert!(matches!(db.sql, Sql::Sqlite(_)), "{enqueued:?}");
            assert_ne!(enqueued.receipt().key, derive("shop", "k", "pay/").as_str());
        }
        Err(refused) => {
            assert!(matches!(db.sql, Sql::Postgres(_)), "{refused:?}");
            assert!(format!("{refused:?}").contains("another answer than 'new'"), "{refused:?}");
        }
    }
    tx.rollback().await;
}

async fn a_plain_insert_derives_nothing_and_belongs_to_its_request(db: &TestDatabase) {
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    tx.execute("INSERT INTO aftercommit.effects (downstream) VALUES ('pay'), ('pay')").await;
    tx.execute("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'own')").await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    let keys =
        db.sql.rows("SELECT idempotency_key AS key, request_id FROM aftercommit.effects ORDER BY id").await;
    assert_eq!(keys.len(), 3);
    let request = db.sql.scalar("SELECT id FROM aftercommit.requests").await;
    assert!(keys.iter().all(|row| row["request_id"] == request), "{keys:?}");
    assert_eq!(keys[2]["key"].as_deref(), Some("own"));
    for row in &keys[..2] {
        let key = uuid::Uuid::parse_str(row["key"].as_deref().expect("a key")).expect("a UUID");
        assert_eq!(key.get_version_num(), 4);
    }
}

/// After its answer was forgotten (RETAIN-01): documented, and why derived keys outlive answers.
async fn a_request_that_runs_again_finds_its_effects(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let request = request("shop", "k", "{}");
    let mut tx = begun(db, &request).await;
    let (id, _) = enqueued(&mut tx, effect("1")).await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.commit().await;
    let again = async |found: &str| {
        db.sql.execute("DELETE FROM aftercommit.requests").await;
        let mut tx = begun(db, &request).await;
        match (tx.enqueue(effect("1")).await.expect("it is found"), found) {
            (Enqueued::Pending(receipt), "pending") | (Enqueued::Ended(receipt), "ended") => {
                assert_eq!(receipt.id, id);
            }
            other => panic!("{other:?}"),
        }
        let other = tx.enqueue(effect("2")).await;
        assert!(matches!(other, Err(EnqueueError::OtherRequest { .. })), "another content: {other:?}");
        tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
        tx.commit().await;
    };
    again("pending").await;
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    again("ended").await;
    assert_eq!(drop_all(db, Step::Payloads).await, 1);
    again("ended").await;
    assert_eq!(drop_all(db, Step::History).await, 1);
    again("ended").await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 1);
    // Beyond retention.keys it is a new effect, as everywhere.
    assert_eq!(drop_all(db, Step::Keys).await, 1);
    db.sql.execute("DELETE FROM aftercommit.requests").await;
    let mut tx = begun(db, &request).await;
    assert!(matches!(tx.enqueue(effect("1")).await, Ok(Enqueued::Inserted(_))));
    tx.rollback().await;
}

async fn the_function_derives_as_the_library_does(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut session = db.sql.session().await;
    let begin = "BEGIN; SELECT * FROM aftercommit.begin_request('tenant-7', 'k 1', 'f')";
    let enqueue = |rest: &str| format!("SELECT * FROM aftercommit.enqueue('pay', '{{}}'{rest})");
    on_session(&mut session, begin).await.expect("it begins");
    for (rest, name) in [
        ("", "pay/"),
        (", operation => 'charge'", "pay/charge"),
        (", name => 'ä'", "ä"),
        (", name => ''", ""),
    ] {
        let rows = on_session(&mut session, &enqueue(rest)).await.expect("it is written");
        assert_eq!(
            rows[0]["idempotency_key"].as_deref(),
            Some(derive("tenant-7", "k 1", name).as_str()),
            "{name}"
        );
        assert_eq!(rows[0]["inserted"].as_deref(), Some("t"));
    }
    let own = on_session(&mut session, &enqueue(", 'own', name => 'unused'")).await.expect("it is written");
    assert_eq!(own[0]["idempotency_key"].as_deref(), Some("own"));
    on_session(&mut session, "SAVEPOINT s").await.expect("a savepoint");
    for rest in ["", ", name => 'pay/'", ", operation => 'charge'"] {
        let error = on_session(&mut session, &enqueue(rest)).await.expect_err("which of the two is meant?");
        let said = error.as_database_error().expect("the database says it");
        let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!(said.code(), "AC409", "{said}");
        assert!(said.hint().is_some_and(|hint| hint.contains("name")), "{said}");
        on_session(&mut session, "ROLLBACK TO s").await.expect("it goes on");
    }
    on_session(&mut session, "ROLLBACK").await.expect("it ends");
    let random = on_session(&mut session, &enqueue(", name => 'unused'")).await.expect("it is written");
    let key = uuid::Uuid::parse_str(random[0]["idempotency_key"].as_deref().expect("a key")).expect("a UUID");
    assert_eq!(key.get_version_num(), 4, "outside of a request nothing changes");
    close_session(session).await;
}
