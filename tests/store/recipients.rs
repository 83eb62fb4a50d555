//! Defends: a mail to several recipients is one effect of each, however it is enqueued, with keys that follow from one key.

use aftercommit::{IdempotencyKey, NewEffect, effect::InvalidEffect, error::EnqueueError, key::derive};

use super::stage::Stage;
use crate::support::{TestDatabase, close_session, on_every_database, on_postgres, on_session};

on_postgres! {
    recipients_are_those_of_the_shared_vectors,
    enqueue_makes_one_effect_per_recipient,
    in_a_guarded_request_the_keys_follow_from_the_request,
}

on_every_database! {
    a_row_for_several_recipients_is_refused,
    the_library_makes_one_effect_per_recipient,
}

const SEVERAL: &str = r#"{"to":["a@x.test"],"cc":["b@x.test"],"bcc":"A <a@X.test>","text":"x"}"#;

async fn mail(db: &TestDatabase) -> Stage {
    let stage = Stage::hold(db, "mail").await;
    db.sql.execute("UPDATE aftercommit.downstreams SET kind = 'smtp' WHERE name = 'mail'").await;
    stage
}

#[derive(serde::Deserialize)]
struct Shared {
    vectors: Vec<Vector>,
}

#[derive(serde::Deserialize)]
struct Vector {
    case: String,
    payload: String,
    recipients: Option<Vec<String>>,
    keys: Vec<String>,
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

async fn recipients_are_those_of_the_shared_vectors(db: &TestDatabase) {
    mail(db).await;
    let shared: Shared =
        serde_json::from_str(include_str!("../vectors/mail_recipients.json")).expect("vectors");
    assert!(shared.vectors.len() >= 12);
    for Vector { case, payload, recipients, keys } in shared.vectors {
        let payload = quoted(&payload);
        let found =
            db.sql.scalar(&format!("SELECT to_json(aftercommit.mail_recipients({payload}))::text")).await;
        let found = found.map(|text| serde_json::from_str::<Vec<String>>(&text).expect("a list"));
        assert_eq!(found, recipients, "{case}");
        let mut session = db.sql.session().await;
        on_session(&mut session, "BEGIN").await.expect("it begins");
        let call = format!("SELECT * FROM aftercommit.enqueue('mail', {payload}, 'order-17')");
        let rows = on_session(&mut session, &call).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        let found: Vec<_> = rows.iter().map(|row| row["idempotency_key"].clone().expect("a key")).collect();
        assert_eq!(found, if keys.is_empty() { vec!["order-17".to_owned()] } else { keys }, "{case}");
        on_session(&mut session, "ROLLBACK").await.expect("it ends");
        close_session(session).await;
    }
}

async fn enqueue_makes_one_effect_per_recipient(db: &TestDatabase) {
    mail(db).await;
    let call = format!(
        "SELECT * FROM aftercommit.enqueue('mail', '{SEVERAL}', 'order-17', metadata => '{{\"a\":1}}')"
    );
    let first = db.sql.rows(&call).await;
    assert_eq!(first.len(), 2);
    for (row, recipient) in first.iter().zip(["a@x.test", "b@x.test"]) {
        let key = derive("mail", "order-17", recipient);
        assert_eq!(row["idempotency_key"].as_deref(), Some(key.as_str()));
        assert_eq!((row["inserted"].as_deref(), row["state"].as_deref()), (Some("t"), Some("ready")));
        let id = row["id"].as_deref().expect("an id");
        let written = db
            .sql
            .row(&format!("SELECT target, payload::text AS payload FROM aftercommit.effects WHERE id = {id}"))
            .await;
        assert_eq!(
            (written["target"].as_deref(), written["payload"].as_deref()),
            (Some(recipient), Some(SEVERAL))
        );
    }
    let again = db.sql.rows(&call).await;
    assert!(again.iter().all(|row| row["inserted"].as_deref() == Some("f")), "{again:?}");
    assert_eq!(
        again.iter().map(|row| &row["id"]).collect::<Vec<_>>(),
        first.iter().map(|row| &row["id"]).collect::<Vec<_>>()
    );
    // With a target it is that one's, whoever else stands in the headers; without a key both get random ones of one origin.
    let one = db
        .sql
        .rows(&format!(
            "SELECT * FROM aftercommit.enqueue('mail', '{SEVERAL}', 'order-18', target => 'b@x.test')"
        ))
        .await;
    assert_eq!(one.len(), 1);
    assert_eq!(one[0]["idempotency_key"].as_deref(), Some("order-18"));
    let random = db.sql.rows(&format!("SELECT * FROM aftercommit.enqueue('mail', '{SEVERAL}')")).await;
    assert_ne!(random[0]["idempotency_key"], random[1]["idempotency_key"]);
    // Another request under the same key stays one.
    db.sql.refused(&call.replace("\"x\"", "\"y\"")).await;
}

async fn in_a_guarded_request_the_keys_follow_from_the_request(db: &TestDatabase) {
    mail(db).await;
    let mut session = db.sql.session().await;
    let begin = "BEGIN; SELECT * FROM aftercommit.begin_request('shop', 'k 1', 'f')";
    on_session(&mut session, begin).await.expect("it begins");
    let call = |rest: &str| format!("SELECT * FROM aftercommit.enqueue('mail', '{SEVERAL}'{rest})");
    for (rest, name) in [("", "mail/"), (", name => 'again'", "again")] {
        let rows = on_session(&mut session, &call(rest)).await.expect("it is written");
        let base = derive("shop", "k 1", name);
        let keys: Vec<_> = rows.iter().map(|row| row["idempotency_key"].as_deref().expect("a key")).collect();
        let expected = ["a@x.test", "b@x.test"].map(|to| derive("mail", base.as_str(), to));
        assert_eq!(keys, expected.iter().map(IdempotencyKey::as_str).collect::<Vec<_>>(), "{name}");
    }
    let error = on_session(&mut session, &call("")).await.expect_err("which of the two is meant?");
    assert_eq!(error.as_database_error().and_then(|said| said.code()).as_deref(), Some("AC409"), "{error}");
    on_session(&mut session, "ROLLBACK").await.expect("it ends");
    close_session(session).await;
}

async fn a_row_for_several_recipients_is_refused(db: &TestDatabase) {
    mail(db).await;
    let insert = |payload: &str, more: (&str, &str)| {
        format!(
            "INSERT INTO aftercommit.effects (downstream, payload{}) VALUES ('mail', {}{})",
            more.0,
            quoted(payload),
            more.1
        )
    };
    let error = db.sql.refused(&insert(SEVERAL, ("", ""))).await;
    let said = error.to_string();
    assert!(said.contains("target") && said.contains("must name one recipient"), "{said}");
    if let Some(said) =
        error.as_database_error().and_then(|said| said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>())
    {
        assert_eq!(said.column(), Some("target"));
        assert!(said.hint().is_some_and(|hint| hint.contains("aftercommit.enqueue")), "{said:?}");
    }
    db.sql.execute(&insert(SEVERAL, (", target", ", 'b@x.test'"))).await;
    for one in [
        r#"{"to":"a@x.test"}"#,
        r#"{"to":["a@x.test"],"cc":[],"bcc":null}"#,
        r#"{"to":["a@x.test","a@x.test"]}"#,
        "[1,2]",
        "17",
    ] {
        db.sql.execute(&insert(one, ("", ""))).await;
    }
    // A kind without recipients of its own does not look.
    Stage::hold(db, "hooks").await;
    db.sql.execute(&insert(SEVERAL, ("", "")).replace("'mail'", "'hooks'")).await;
}

async fn the_library_makes_one_effect_per_recipient(db: &TestDatabase) {
    mail(db).await;
    let mail = || {
        let key = IdempotencyKey::parse("order-17").expect("a key");
        NewEffect::to("mail").key(key).json_text(SEVERAL).expect("JSON")
    };
    let mut tx = db.sql.begin().await;
    let several = tx.enqueue(mail()).await;
    assert!(
        matches!(several, Err(EnqueueError::Invalid(InvalidEffect::Column { column: "target", .. }))),
        "{several:?}"
    );
    tx.rollback().await;
    for inserted in [true, false] {
        let mut tx = db.sql.begin().await;
        let results = tx.enqueue_many(mail().for_each_recipient()).await.expect("the transaction stands");
        let keys: Vec<_> = results
            .iter()
            .map(|result| {
                let enqueued = result.as_ref().expect("it can be taken");
                assert_eq!(matches!(enqueued, aftercommit::Enqueued::Inserted(_)), inserted);
                enqueued.receipt().key.clone()
            })
            .collect();
        assert_eq!(keys, ["a@x.test", "b@x.test"].map(|to| derive("mail", "order-17", to).to_string()));
        tx.commit().await;
    }
}
