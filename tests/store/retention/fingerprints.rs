//! Defends: what takes a payload's place tells the same request from another one, in SQL as in the library.

use aftercommit::store::Step;

use super::{Stage, drop_all};
use crate::support::{Engine, Settling, TestDatabase, on_postgres};

on_postgres! {
    enqueue_answers_by_the_fingerprint,
    fingerprints_are_those_of_the_shared_vectors,
}

async fn enqueue_answers_by_the_fingerprint(db: &TestDatabase) {
    assert_eq!(db.engine, Engine::Postgres);
    let stage = Stage::by_key(db, "pay").await;
    let call = |payload: &str| format!("SELECT * FROM aftercommit.enqueue('pay', '{payload}', 'k')");
    db.sql.execute(&call(r#"{"a": 1}"#)).await;
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    for step in [Step::Payloads, Step::History] {
        drop_all(db, step).await;
        let found = db.sql.row(&call(r#"{"a": 1}"#)).await;
        assert_eq!((found["inserted"].as_deref(), found["state"].as_deref()), (Some("f"), Some("succeeded")));
        let error = db.sql.refused(&call(r#"{"a":1}"#)).await;
        let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        assert_eq!(code.as_deref(), Some("AC422"), "{step:?}: {error}");
    }
    drop_all(db, Step::Keys).await;
    assert_eq!(db.sql.row(&call("{}")).await["inserted"].as_deref(), Some("t"), "the key is free");
}

/// The file is shared with the library's own test.
async fn fingerprints_are_those_of_the_shared_vectors(db: &TestDatabase) {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../vectors/fingerprint.json")).expect("the file is JSON");
    let vectors = file["vectors"].as_array().expect("a list of vectors");
    assert!(vectors.len() >= 12, "{} vectors are few", vectors.len());
    for vector in vectors {
        let text = |part: &str| {
            vector[part].as_str().map_or("NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")))
        };
        let body =
            vector["body_hex"].as_str().map_or("NULL".to_owned(), |text| format!("'\\x{text}'::bytea"));
        let rest: Vec<String> =
            ["content_type", "headers", "target", "ordering_key", "needs", "bindings", "undoes"]
                .map(text)
                .to_vec();
        let sql = format!(
            "SELECT encode(aftercommit.fingerprint({}, {}, {body}, {}), 'hex')",
            text("operation"),
            text("payload"),
            rest.join(", ")
        );
        assert_eq!(db.sql.scalar(&sql).await.as_deref(), vector["sha256"].as_str(), "{}", vector["case"]);
    }
}
