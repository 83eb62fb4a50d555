//! Defends: what is sent is what was written, byte for byte, on every database.

use aftercommit::{IdempotencyKey, NewEffect, effect::InvalidEffect};

use super::stage::Stage;
use crate::support::{Engine, TestDatabase, insert_sql, on_every_database};

on_every_database! {
    keys_that_look_alike_are_distinct_or_refused,
    payload_text_comes_out_as_it_went_in,
    metadata_with_a_nul_is_refused_before_the_database,
    deep_payloads_do_not_break_the_batch,
    a_body_of_any_bytes_comes_out_as_it_went_in,
}

fn keyed(key: &str) -> NewEffect {
    NewEffect::to("pay").key(IdempotencyKey::parse(key).expect("a key"))
}

/// ENCODING-01 and ENCODING-03.
async fn payload_text_comes_out_as_it_went_in(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let texts = [
        r#"{"id":9007199254740993,"big":1234567890123456789012345,"neg":-9223372036854775809}"#,
        r#"{"a":"\u0000","b":"x\u0000y"}"#,
        r#"{ "z" : 1.0, "a" : 1e3 ,"a":2}"#,
        "{\"b\":1.0,\"a\":\"é\u{2028}/\",\"n\":12345678901234567890,\"emoji\":\"\u{1f600}\"}",
        "\"\\/\\u00e9\"",
        "null",
        " [ ] ",
        "1E400",
    ];
    for (number, text) in texts.iter().enumerate() {
        let key = format!("lib-{number}");
        db.sql.enqueue(keyed(&key).json_text(*text).expect("JSON")).await.expect("it is written");
        let claim = stage.worker.claim_one("pay").await;
        assert_eq!(claim.effect.payload.as_deref(), Some(*text), "by the library");
        db.insert_with("pay", &format!("sql-{number}"), &[("payload", &format!("'{text}'"))]).await;
        let claim = stage.worker.claim_one("pay").await;
        assert_eq!(claim.effect.payload.as_deref(), Some(*text), "by a plain INSERT");
        assert!(matches!(
            db.sql.enqueue(keyed(&key).json_text(*text).expect("JSON")).await,
            Ok(aftercommit::Enqueued::Pending(_))
        ));
    }
}

/// ENCODING-01.
async fn metadata_with_a_nul_is_refused_before_the_database(db: &TestDatabase) {
    let refused = keyed("k").metadata(&serde_json::json!({"a": "\0"})).expect_err("U+0000");
    assert!(matches!(refused, InvalidEffect::Column { column: "metadata", .. }), "{refused:?}");
    // Neither does a downstream's, an operation's or a target's NUL abort the caller's transaction by surprise.
    let mut tx = db.sql.begin().await;
    for bad in [NewEffect::to("a\0b"), keyed("k1").operation("a\0b"), keyed("k2").target("a\0b")] {
        let error = tx.enqueue(bad).await.expect_err("U+0000");
        assert!(matches!(error, aftercommit::error::EnqueueError::Invalid(_)), "{error:?}");
    }
    let fine = tx.enqueue(keyed("k3")).await.expect("the transaction goes on");
    tx.commit().await;
    assert_eq!(db.status(fine.receipt().id).await.idempotency_key, "k3");
}

/// ENCODING-05.
async fn deep_payloads_do_not_break_the_batch(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [127, 128] {
        let effect = keyed(&format!("lib-{depth}")).json_text(nested(depth)).expect("not too deep");
        db.sql.enqueue(effect).await.expect("it is written");
    }
    for depth in [129, 10_000] {
        let refused = keyed("deep").json_text(nested(depth)).expect_err("too deep");
        assert!(refused.to_string().contains("payload"), "{refused}");
    }
    let mut written = 2;
    for depth in [127, 128, 129, 10_000] {
        let insert =
            insert_sql("pay", &format!("sql-{depth}"), &[("payload", &format!("'{}'", nested(depth)))]);
        match db.sql.try_execute(&insert).await {
            Ok(_) => written += 1,
            // SQLite's own parser gives up at 1,000 levels.
            Err(error) => {
                assert!(db.engine == Engine::Sqlite && depth > 1000, "{depth}: {error}");
                assert!(error.to_string().contains("payload"), "{error}");
            }
        }
    }
    let claims = stage.worker.claim("pay", 20).await;
    assert_eq!(claims.len(), written, "every one of them is handed out");
    for claim in claims {
        assert!(claim.effect.payload.as_deref().is_some_and(|text| text.starts_with("[[[")));
        db.status(claim.effect.id).await;
    }
}

/// Trap T12.
async fn a_body_of_any_bytes_comes_out_as_it_went_in(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let effect = keyed("k").body("application/octet-stream", bytes.clone());
    db.sql.enqueue(effect.clone()).await.expect("it is written");
    let again = db.sql.enqueue(effect).await.expect("it is found");
    assert!(matches!(again, aftercommit::Enqueued::Pending(_)), "{again:?}");
    let claim = stage.worker.claim_one("pay").await;
    assert_eq!(claim.effect.body.as_deref(), Some(&bytes[..]));
    assert_eq!(claim.effect.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(claim.effect.payload, None);
}

/// Case UNIQUE-07: no collation pads, folds or normalises a key.
async fn keys_that_look_alike_are_distinct_or_refused(db: &TestDatabase) {
    let refused =
        ["k1 ", " k1", "k1\t", "k1\u{a0}", "k1\u{200b}", "\u{fb01}", "caf\u{e9}", "cafe\u{301}", "\u{ff4b}1"];
    for key in refused {
        let error = db.sql.refused(&insert_sql("pay", key, &[])).await;
        let said = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(said.contains("idempotency_key"), "{key:?}: {error}");
        assert!(IdempotencyKey::parse(key).is_err(), "{key:?}: the library refuses what the database does");
    }
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
    let distinct = ["k1", "K1", "k 1", "k01", "fi", "FI", "cafe", "cafe~"];
    for key in distinct {
        let id = db.insert("pay", key).await;
        assert_eq!(db.status(id).await.idempotency_key, key, "as it was written");
        assert!(IdempotencyKey::parse(key).is_ok(), "{key:?}");
    }
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 8);
}
