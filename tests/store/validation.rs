//! Defends: a wrong value fails the INSERT, and the message names its column.

use aftercommit::contract::{Contract, KeyCharset, KeyRule, Window};
use sqlx::postgres::PgDatabaseError;

use super::stage::Stage;
use crate::support::{
    Engine, Settling, TestDatabase, WINDOW, Worker, insert_sql, on_every_database, on_postgres, on_sqlite,
    registered, terms,
};

on_every_database! {
    a_bad_key_is_refused_by_name,
    a_bad_downstream_is_refused_by_name,
    bad_documents_are_refused_by_name,
    times_outside_the_calendar_are_refused_by_name,
    what_is_not_supported_yet_is_refused_by_name,
    the_registered_key_rule_counts_the_prefix,
    a_payload_or_body_above_the_limit_is_refused_by_name,
    one_bad_row_refuses_its_statement,
    an_unknown_downstream_is_accepted,
    names_that_the_contract_owns_are_refused_by_name,
    bad_texts_are_refused_by_name,
    a_missing_value_is_refused_by_name,
    only_a_real_escape_of_u0000_is_refused,
    no_due_time_is_now,
}
on_postgres! { the_database_writes_id_and_author, a_refusal_prints_no_payload }
on_sqlite! { conflict_clauses_do_not_get_past_the_checks, values_of_another_type_are_refused_by_name }

/// The INSERT must be refused, and the refusal must name `column`.
async fn refused(db: &TestDatabase, column: &str, insert: &str) {
    let error = db.sql.refused(insert).await;
    let database = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
    assert!(database.message().contains(column), "{column} is not named: {error}\n{insert:.300}");
    if let Some(postgres) = database.try_downcast_ref::<PgDatabaseError>() {
        assert_eq!(postgres.column(), Some(column), "the COLUMN field: {error}");
        assert!(postgres.hint().is_some(), "the HINT field: {error}");
    }
}

async fn refused_value(db: &TestDatabase, column: &str, value: &str) {
    refused(db, column, &insert_sql("pay", "k", &[(column, value)])).await;
}

async fn nothing_was_written(db: &TestDatabase) {
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.queue").await, 0);
}

async fn a_bad_key_is_refused_by_name(db: &TestDatabase) {
    let long = "x".repeat(256);
    for key in ["", " ", " k", "k ", "a\tb", "a\nb", "é", "\u{7f}", "k\u{a0}", &long] {
        refused(db, "idempotency_key", &insert_sql("pay", key, &[])).await;
    }
    nothing_was_written(db).await;
    for key in ["a", "order-17/charge", "a b", "~!@#$%^&*()", &"x".repeat(255)] {
        db.insert("pay", key).await;
    }
}

async fn a_bad_downstream_is_refused_by_name(db: &TestDatabase) {
    refused(db, "downstream", &insert_sql("", "k", &[])).await;
    for name in [&"x".repeat(300), " pay", "pay ", "p\u{1b}[31may", "pay\n", "päy"] {
        refused(db, "downstream", &insert_sql(name, "k", &[])).await;
    }
    nothing_was_written(db).await;
}

async fn bad_documents_are_refused_by_name(db: &TestDatabase) {
    for (column, value) in [
        ("headers", "'[1]'"),
        ("headers", "'\"text\"'"),
        ("metadata", "'[1]'"),
        ("metadata", "'17'"),
        ("metadata", "'null'"),
    ] {
        refused_value(db, column, value).await;
    }
    for name in ["Idempotency-Key", "AUTHORIZATION", "host", "Content-Length", "transfer-encoding"] {
        refused_value(db, "headers", &format!("'{{\"{name}\": \"x\"}}'")).await;
    }
    // A line end in a header would begin another one.
    for headers in [
        r#"{"X-A": "b\r\nX-C: d"}"#,
        r#"{"X-A\n": "b"}"#,
        r#"{"X-A": "\u0000"}"#,
        r#"{"": "b"}"#,
        r#"{"X": "\u007f"}"#,
    ] {
        refused_value(db, "headers", &format!("'{headers}'")).await;
    }
    db.insert_with("pay", "headers", &[("headers", r#"'{"X-A": "tab\there \\n", "X-B": "ü"}'"#)]).await;
    db.sql.execute("DELETE FROM aftercommit.queue").await;
    db.sql.execute("DELETE FROM aftercommit.effects").await;
    let bytes = match db.engine {
        Engine::Postgres => r"'\x00'",
        Engine::Sqlite => "x'00'",
    };
    refused(db, "body", &insert_sql("pay", "k", &[("payload", "'{}'"), ("body", bytes)])).await;
    // What PostgreSQL's own input functions refuse keeps its message.
    for (column, value) in [
        ("payload", "'{a:1}'"),
        ("payload", "'[1,]'"),
        ("payload", "''"),
        ("metadata", "'{'"),
        ("headers", "'x'"),
    ] {
        let error = db.sql.refused(&insert_sql("pay", "k", &[(column, value)])).await;
        let said = match db.engine {
            Engine::Postgres => "invalid input syntax for type json",
            Engine::Sqlite => column,
        };
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = db.sql.refused(&insert_sql("pay", "k", &[("metadata", r#"'{"a":"\u0000"}'"#)])).await;
    assert!(
        error.to_string().contains(if db.engine == Engine::Postgres { "Unicode" } else { "metadata" }),
        "{error}"
    );
    nothing_was_written(db).await;
}

async fn times_outside_the_calendar_are_refused_by_name(db: &TestDatabase) {
    let bad: &[&str] = match db.engine {
        Engine::Postgres => &[
            "'infinity'",
            "'-infinity'",
            "'1969-12-31T23:59:59Z'",
            "'10000-01-01T00:00:00Z'",
            "'4713-01-01 BC'",
        ],
        Engine::Sqlite => &[
            "-1",
            "1796000000", // Seconds: what was meant for tomorrow must not go out now.
            "'tomorrow'",
            "'2030-01-01T00:00:00Z'",
            "1.5",
            "253402300800000000",
            "9223372036854775807",
        ],
    };
    for column in ["due_at", "expires_at"] {
        for value in bad {
            refused_value(db, column, value).await;
        }
    }
    nothing_was_written(db).await;
    let last = match db.engine {
        Engine::Postgres => "'9999-12-31T23:59:59.999999Z'",
        Engine::Sqlite => "253402300799999999",
    };
    let id = db.insert_with("pay", "k", &[("due_at", last), ("expires_at", last)]).await;
    assert_eq!(db.status(id).await.due_at.map(|at| at.micros()), Some(253_402_300_799_999_999));
}

async fn what_is_not_supported_yet_is_refused_by_name(db: &TestDatabase) {
    let array = if db.engine == Engine::Postgres { "'{1}'" } else { "'[1]'" };
    for (column, value) in [
        ("needs", array),
        ("bindings", r#"'{"/a": {"effect": 1, "pointer": "/id"}}'"#),
        ("undoes", "1"),
        ("if_failed", array),
        ("ordering_key", "'order-17'"),
    ] {
        refused_value(db, column, value).await;
    }
    nothing_was_written(db).await;
}

async fn the_registered_key_rule_counts_the_prefix(db: &TestDatabase) {
    let rules = [
        (
            "short",
            KeyRule { min_len: 8, max_len: 12, charset: KeyCharset::Printable },
            "shop-",
            vec!["ab", "12345678"],
            vec!["abc", "1234567"],
        ),
        (
            "token",
            KeyRule { min_len: 1, max_len: 40, charset: KeyCharset::Token },
            "",
            vec!["a/b", "a b", "a.b"],
            vec!["a_b:C-9"],
        ),
        (
            "uuid",
            KeyRule { min_len: 36, max_len: 36, charset: KeyCharset::Uuid },
            "",
            vec!["0b9f7c1e4d3a4a8e9c1f2d3e4f5a6b7c", "0b9f7c1e-4d3a-4a8e-9c1f-2d3e4f5a6b7g"],
            vec!["0b9f7c1e-4d3a-4a8e-9c1f-2d3e4f5a6b7c"],
        ),
    ];
    let downstreams = rules
        .iter()
        .map(|(name, rule, prefix, ..)| {
            let contract = Contract { key: *rule, ..Contract::key(Some(Window::For(WINDOW))) };
            aftercommit::store::RegisteredDownstream {
                key_prefix: (*prefix).to_owned(),
                ..registered(name, terms(contract))
            }
        })
        .collect();
    Worker::start(&db.store, "w1", downstreams).await;
    for (name, _, _, bad, good) in rules {
        for key in bad {
            refused(db, "idempotency_key", &insert_sql(name, key, &[])).await;
        }
        for key in good {
            db.insert(name, key).await;
        }
    }
}

async fn a_payload_or_body_above_the_limit_is_refused_by_name(db: &TestDatabase) {
    let (payload, body) = match db.engine {
        Engine::Postgres => ("(to_json(repeat('x', {})))", "convert_to(repeat('x', {}), 'UTF8')"),
        Engine::Sqlite => ("('\"' || printf('%.*c', {}, 'x') || '\"')", "zeroblob({})"),
    };
    let sized = |form: &str, size: usize| form.replace("{}", &size.to_string());
    let limit = aftercommit::effect::PAYLOAD_LEN_MAX;
    refused_value(db, "payload", &sized(payload, limit - 1)).await;
    refused_value(db, "body", &sized(body, limit + 1)).await;
    nothing_was_written(db).await;
    db.insert_with("pay", "k1", &[("payload", &sized(payload, limit - 2))]).await;
    db.insert_with("pay", "k2", &[("body", &sized(body, limit))]).await;
}

async fn one_bad_row_refuses_its_statement(db: &TestDatabase) {
    let insert = "INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k1'), ('pay', ' k2'), ('pay', 'k3')";
    refused(db, "idempotency_key", insert).await;
    nothing_was_written(db).await;
}

async fn an_unknown_downstream_is_accepted(db: &TestDatabase) {
    let id = db.insert("not-yet-configured", "k").await;
    assert_eq!(db.status(id).await.held_by.as_deref(), Some("unserved"));
}

async fn the_database_writes_id_and_author(db: &TestDatabase) {
    let error = db.sql.refused(&insert_sql("pay", "k", &[("id", "17")])).await;
    assert!(error.to_string().contains("\"id\""), "{error}");
    let id = db.insert("pay", "k").await;
    let author = db.sql.scalar(&format!("SELECT enqueued_by FROM aftercommit.effects WHERE id = {id}")).await;
    assert_eq!(author, db.sql.scalar("SELECT session_user::text").await);
}

async fn a_refusal_prints_no_payload(db: &TestDatabase) {
    let insert = insert_sql("pay", " k", &[("payload", r#"'{"card":"4242424242424242"}'"#)]);
    let error = db.sql.refused(&insert).await;
    let postgres = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let postgres = postgres.expect("PostgreSQL refused it");
    let printed = format!("{} {:?} {:?}", postgres.message(), postgres.detail(), postgres.hint());
    assert!(!printed.contains("4242"), "{printed}");
}

async fn conflict_clauses_do_not_get_past_the_checks(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    for clause in ["OR IGNORE", "OR REPLACE", "OR FAIL", "OR ROLLBACK"] {
        let insert = insert_sql("pay", " bad", &[]).replace("INSERT", &format!("INSERT {clause}"));
        refused(db, "idempotency_key", &insert).await;
    }
    let replace =
        insert_sql("pay", "k", &[("payload", "'{\"other\":1}'")]).replace("INSERT", "INSERT OR REPLACE");
    drop(db.sql.try_execute(&replace).await);
    let by_id = format!(
        "INSERT OR REPLACE INTO aftercommit.effects (id, downstream, idempotency_key) VALUES ({}, 'pay', 'other')",
        claim.effect.id
    );
    drop(db.sql.try_execute(&by_id).await);
    assert_eq!(db.status(claim.effect.id).await.idempotency_key, "k", "the effect is still the same one");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 1);
    stage.done(Settling::of(&claim).succeed()).await;
}

async fn values_of_another_type_are_refused_by_name(db: &TestDatabase) {
    for (column, value) in [
        ("payload", "x'7b7d'"),
        ("body", "'text'"),
        ("headers", "17"),
        ("id", "17"),
        ("created_at", "17"),
        ("enqueued_by", "'me'"),
    ] {
        refused_value(db, column, value).await;
    }
    nothing_was_written(db).await;
}

async fn names_that_the_contract_owns_are_refused_by_name(db: &TestDatabase) {
    let owned = "authorization proxy-authorization host content-length content-type content-encoding accept-encoding \
                 transfer-encoding connection keep-alive proxy-connection te trailer upgrade expect idempotency-key \
                 signature signature-input message-id message_id traceparent";
    for name in owned.split_whitespace().flat_map(|name| [name.to_owned(), name.to_uppercase()]) {
        refused_value(db, "headers", &format!("'{{\"X-A\": \"b\", \"{name}\": \"x\"}}'")).await;
    }
    nothing_was_written(db).await;
}

async fn bad_texts_are_refused_by_name(db: &TestDatabase) {
    let long = |length: usize| format!("'{}'", "x".repeat(length));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let bad = [
        ("operation", "''".to_owned()),
        ("operation", long(129)),
        ("target", "''".to_owned()),
        ("target", long(2049)),
        ("content_type", "'text/plain'".to_owned()),
        ("trace_context", "''".to_owned()),
        ("trace_context", "'trace'".to_owned()),
        ("trace_context", format!("'{}'", trace.to_uppercase())),
        ("trace_context", format!("' {trace}'")),
        ("trace_context", format!("'{trace}x'")),
        ("trace_context", format!("'{}'", &trace[..54])),
        ("trace_context", format!("'{trace}-{}'", "x".repeat(512))),
    ];
    for (column, value) in &bad {
        refused_value(db, column, value).await;
    }
    let bytes = if db.engine == Engine::Postgres { r"'\x00'" } else { "x'00'" };
    for value in ["' text/plain'", "'text/plain '", "'text/\u{e4}'"] {
        refused(db, "content_type", &insert_sql("pay", "k", &[("body", bytes), ("content_type", value)]))
            .await;
    }
    nothing_was_written(db).await;
    let later_version = format!("'cc{}-what-comes'", &trace[2..]);
    for (key, column, value) in [
        ("k1", "operation", long(128)),
        ("k2", "target", long(2048)),
        ("k3", "trace_context", format!("'{trace}'")),
        ("k4", "trace_context", later_version),
    ] {
        db.insert_with("pay", key, &[(column, &value)]).await;
    }
}

async fn a_missing_value_is_refused_by_name(db: &TestDatabase) {
    for (column, values) in [("downstream", "NULL, 'k'"), ("idempotency_key", "'pay', NULL")] {
        let insert =
            format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ({values})");
        refused(db, column, &insert).await;
    }
    nothing_was_written(db).await;
}

async fn only_a_real_escape_of_u0000_is_refused(db: &TestDatabase) {
    for (number, text) in
        [r#"{"a":"\\u0000"}"#, r#"{"a":"\\\\u0000", "b\\u0000":"\""}"#].into_iter().enumerate()
    {
        for column in ["metadata", "headers"] {
            db.insert_with("pay", &format!("{column}-{number}"), &[(column, &format!("'{text}'"))]).await;
        }
    }
    for text in [r#"{"a":"\u0000"}"#, r#"{"a":"\\\u0000"}"#, r#"{"\u0000":"a"}"#] {
        for column in ["metadata", "headers"] {
            // PostgreSQL's jsonb refuses it by itself, in its own words.
            let error = db.sql.refused(&insert_sql("pay", "k", &[(column, &format!("'{text}'"))])).await;
            let said = error.to_string();
            let own = db.engine == Engine::Postgres && said.contains("Unicode");
            assert!(said.contains(column) || own, "{column} {text}: {said}");
        }
    }
}

async fn no_due_time_is_now(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = db.insert_with("pay", "k", &[("due_at", "NULL")]).await;
    let status = db.status(id).await;
    assert_eq!(status.state, aftercommit::state::State::Ready);
    let due_at = status.due_at.expect("now is a time");
    assert!(due_at.since(db.now().await) < std::time::Duration::from_secs(60), "{due_at}");
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    assert!(db.status(id).await.due_at.is_some(), "also once it has ended");
}
