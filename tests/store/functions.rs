//! Defends: `aftercommit.enqueue()` and `derive_key()` say the same as the library, to any language (PostgreSQL).

use aftercommit::{
    contract::{Contract, KeyCharset, KeyRule, Window},
    state::State,
};

use super::stage::Stage;
use crate::support::{Row, Settling, TestDatabase, WINDOW, on_postgres, terms};

on_postgres! {
    enqueue_inserts_and_finds_again,
    enqueue_tells_its_refusals_apart,
    enqueue_keeps_the_payload_text,
    keys_are_those_of_the_shared_vectors,
}

async fn code(db: &TestDatabase, sql: &str) -> String {
    let error = db.sql.refused(sql).await;
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    code.unwrap_or_else(|| panic!("{error}"))
}

fn of<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column).unwrap_or_else(|| panic!("no column {column} in {row:?}")).as_deref()
}

async fn enqueue_inserts_and_finds_again(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let call = r#"SELECT * FROM aftercommit.enqueue('pay', '{"a":1}', 'k', operation => NULL, metadata => '{"order":"A-17"}')"#;
    let first = db.sql.row(call).await;
    assert_eq!((of(&first, "idempotency_key"), of(&first, "inserted")), (Some("k"), Some("t")));
    assert_eq!(of(&first, "state"), Some("ready"));
    let again = db.sql.row(call).await;
    assert_eq!((of(&again, "id"), of(&again, "inserted")), (of(&first, "id"), Some("f")));
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    let ended = db.sql.row(call).await;
    assert_eq!((of(&ended, "inserted"), of(&ended, "state")), (Some("f"), Some("succeeded")));
    let random = db.sql.row("SELECT * FROM aftercommit.enqueue('pay')").await;
    assert_eq!(of(&random, "idempotency_key").map(str::len), Some(36), "a random key is given back");
    let timed = db
        .sql
        .row("SELECT * FROM aftercommit.enqueue('pay', due_at => clock_timestamp() + interval '1 hour')")
        .await;
    assert_eq!(of(&timed, "state"), Some(State::Scheduled.as_str()));
}

async fn enqueue_tells_its_refusals_apart(db: &TestDatabase) {
    let rule = KeyRule { min_len: 1, max_len: 20, charset: KeyCharset::Token };
    Stage::at(db, "pay", terms(Contract { key: rule, ..Contract::key(Some(Window::For(WINDOW))) })).await;
    db.sql.execute(r#"SELECT * FROM aftercommit.enqueue('pay', '{"a":1}', 'k')"#).await;
    assert_eq!(code(db, r#"SELECT * FROM aftercommit.enqueue('pay', '{"a":2}', 'k')"#).await, "AC422");
    assert_eq!(code(db, "SELECT * FROM aftercommit.enqueue('nobody', '{}', 'k')").await, "AC404");
    assert_eq!(code(db, "SELECT * FROM aftercommit.enqueue('pay', '{}', 'a/b')").await, "AC400");
    let long = format!("SELECT * FROM aftercommit.enqueue('pay', '{{}}', '{}')", "x".repeat(21));
    assert_eq!(code(db, &long).await, "AC400");
    let deep =
        format!("SELECT * FROM aftercommit.enqueue('pay', '{}{}', 'deep')", "[".repeat(129), "]".repeat(129));
    let error = db.sql.refused(&deep).await;
    assert!(error.to_string().contains("payload"), "{error}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 1);
}

async fn enqueue_keeps_the_payload_text(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let text = r#"{ "id": 9007199254740993,"big":1234567890123456789012345, "nul":"\u0000","a":1,"a":2 }"#;
    db.sql.execute(&format!("SELECT * FROM aftercommit.enqueue('pay', '{text}', 'k')")).await;
    assert_eq!(stage.worker.claim_one("pay").await.effect.payload.as_deref(), Some(text));
}

/// The file is shared with the library's own test (and with whoever derives keys in another language).
async fn keys_are_those_of_the_shared_vectors(db: &TestDatabase) {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../vectors/derive_key.json")).expect("the file is JSON");
    let vectors = file["vectors"].as_array().expect("a list of vectors");
    assert!(vectors.len() >= 12, "{} vectors are few", vectors.len());
    for vector in vectors {
        let literal = |part: &str| format!("'{}'", text(&vector[part]).replace('\'', "''"));
        let (scope, request, name) = (literal("scope"), literal("request_key"), literal("name"));
        let derived =
            db.sql.scalar(&format!("SELECT aftercommit.derive_key({scope}, {request}, {name})")).await;
        assert_eq!(derived.as_deref(), vector["key"].as_str(), "{}", vector["case"]);
    }
    let error = db.sql.refused("SELECT aftercommit.derive_key('a', NULL, 'b')").await;
    assert!(error.to_string().contains("null"), "{error}");
}

/// A part of a vector: a text, or `{"repeat": [text, times]}`.
fn text(part: &serde_json::Value) -> String {
    if let Some(text) = part.as_str() {
        return text.to_owned();
    }
    let repeat = &part["repeat"];
    let times = repeat[1].as_u64().and_then(|times| usize::try_from(times).ok()).expect("how often");
    repeat[0].as_str().expect("what is repeated").repeat(times)
}
