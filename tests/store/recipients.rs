//! Defends: a mail to several recipients is one effect of each, however it is enqueued, with keys that follow from one key.

use aftercommit::{
    IdempotencyKey, NewEffect, effect::InvalidEffect, error::EnqueueError, key::derive, store,
};

use super::{schema::older, stage::Stage};
use crate::support::{Engine, TestDatabase, close_session, on_every_database, on_postgres, on_session};

on_postgres! {
    recipients_are_those_of_the_shared_vectors,
    enqueue_makes_one_effect_per_recipient,
    in_a_guarded_request_the_keys_follow_from_the_request,
    another_request_under_the_key_of_a_mail_to_several_is_refused,
    more_than_a_hundred_recipients_are_refused,
    what_is_new_belongs_to_whom_the_old_belonged,
}

on_every_database! {
    a_row_for_several_recipients_is_refused,
    the_library_makes_one_effect_per_recipient,
    who_stands_there_twice_is_one_recipient,
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
    targeted: bool,
    keys: Vec<String>,
}

/// The code and the column of what PostgreSQL refuses.
fn refusal(error: &sqlx::Error) -> (String, Option<&str>) {
    let said = error.as_database_error().expect("the database said it");
    let code = said.code().expect("a code").into_owned();
    (code, said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().and_then(|said| said.column()))
}

/// The keys of the effects of [`SEVERAL`].
fn keys_of(key: &str) -> [String; 2] {
    [key.to_owned(), derive("mail", key, "b@x.test").to_string()]
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

async fn recipients_are_those_of_the_shared_vectors(db: &TestDatabase) {
    mail(db).await;
    let shared: Shared =
        serde_json::from_str(include_str!("../vectors/mail_recipients.json")).expect("vectors");
    assert!(shared.vectors.len() >= 12);
    for Vector { case, payload, recipients, targeted, keys } in shared.vectors {
        let payload = quoted(&payload);
        let found =
            db.sql.scalar(&format!("SELECT to_json(aftercommit.mail_recipients({payload}))::text")).await;
        let found = found.map(|text| serde_json::from_str::<Vec<String>>(&text).expect("a list"));
        assert_eq!(found, recipients, "{case}");
        let mut session = db.sql.session().await;
        on_session(&mut session, "BEGIN").await.expect("it begins");
        let call = format!("SELECT * FROM aftercommit.enqueue('mail', {payload}, 'order-17')");
        let rows = on_session(&mut session, &call).await;
        if let Some(recipients) = recipients {
            let rows = rows.unwrap_or_else(|error| panic!("{case}: {error}"));
            let found: Vec<_> =
                rows.iter().map(|row| row["idempotency_key"].clone().expect("a key")).collect();
            assert_eq!(found, keys, "{case}");
            let targets = "SELECT target FROM aftercommit.effects WHERE target IS NOT NULL ORDER BY id";
            let targets = on_session(&mut session, targets).await.expect("they are there");
            let targets: Vec<_> =
                targets.iter().map(|row| row["target"].clone().expect("a target")).collect();
            assert_eq!(targets, if targeted { recipients } else { Vec::new() }, "{case}");
        } else {
            let error = rows.expect_err(&case);
            assert_eq!(refusal(&error), ("23514".to_owned(), Some("payload")), "{case}: {error}");
        }
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
    for (row, (recipient, key)) in
        first.iter().zip(["a@x.test", "b@x.test"].into_iter().zip(keys_of("order-17")))
    {
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
}

async fn another_request_under_the_key_of_a_mail_to_several_is_refused(db: &TestDatabase) {
    mail(db).await;
    let enqueue =
        |payload: &str, key: &str| format!("SELECT * FROM aftercommit.enqueue('mail', '{payload}', '{key}')");
    let others = [
        r#"{"to":"a@x.test","text":"x"}"#,
        r#"{"to":["c@x.test","d@x.test"],"text":"x"}"#,
        r#"{"to":["b@x.test","a@x.test"],"text":"x"}"#,
        r#"{"to":["a@x.test","b@x.test","c@x.test"],"text":"x"}"#,
    ];
    for (n, other) in others.into_iter().enumerate() {
        let (first, then) = (format!("several-{n}"), format!("other-{n}"));
        db.sql.rows(&enqueue(SEVERAL, &first)).await;
        db.sql.rows(&enqueue(other, &then)).await;
        let written = db.sql.number("SELECT count(*) FROM aftercommit.effects").await;
        for call in [enqueue(other, &first), enqueue(SEVERAL, &then)] {
            let error = db.sql.refused(&call).await;
            assert_eq!(refusal(&error), ("AC422".to_owned(), Some("idempotency_key")), "{call}: {error}");
        }
        assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, written);
    }
}

async fn more_than_a_hundred_recipients_are_refused(db: &TestDatabase) {
    mail(db).await;
    let enqueue = |to: &str| {
        format!("SELECT * FROM aftercommit.enqueue('mail', json_build_object('to', {to}), 'order-17')")
    };
    let insert = |to: &str| {
        format!(
            "INSERT INTO aftercommit.effects (downstream, payload) SELECT 'mail', json_build_object('to', {to})"
        )
    };
    let many =
        |count: usize| format!("ARRAY(SELECT 'a' || n || '@x.test' FROM generate_series(1, {count}) AS n)");
    let same = |count: usize| format!("array_fill('a@x.test'::text, ARRAY[{count}])");
    assert_eq!(db.sql.rows(&enqueue(&many(100))).await.len(), 100);
    for to in [many(101), many(50_000), same(101), same(50_000)] {
        for call in [enqueue(&to), insert(&to)] {
            let error = db.sql.refused(&call).await;
            assert!(error.to_string().contains("at most 100 recipients"), "{call}: {error}");
            assert_eq!(refusal(&error), ("23514".to_owned(), Some("payload")), "{call}");
        }
    }
    db.sql.execute(&insert(&same(100))).await;
}

/// A migration that somebody else runs, such as a superuser, takes the functions from nobody.
async fn what_is_new_belongs_to_whom_the_old_belonged(db: &TestDatabase) {
    let old = older(db, "-- 0009 Recipients").await;
    let [owner, app] = ["owner", "app"].map(|role| format!("{role}_{}", uuid::Uuid::new_v4().simple()));
    old.sql
        .execute_as_is(&format!(
            "CREATE ROLE {owner}; CREATE ROLE {app}; GRANT USAGE ON SCHEMA aftercommit TO {app};
             GRANT EXECUTE ON FUNCTION aftercommit.enqueue TO {app};
             ALTER SCHEMA aftercommit OWNER TO {owner};
             DO $$ DECLARE one text; BEGIN
               FOR one IN
                 SELECT format('FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace
                 UNION ALL SELECT format('TABLE %s', oid::regclass) FROM pg_class
                 WHERE relnamespace = 'aftercommit'::regnamespace AND relkind IN ('r', 'v')
               LOOP EXECUTE format('ALTER %s OWNER TO {owner}', one); END LOOP;
             END $$"
        ))
        .await;
    store::migrate(&old.url, None).await.expect("it goes on");
    let others =
        "SELECT count(*) FROM (SELECT proowner FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace
        UNION ALL SELECT relowner FROM pg_class WHERE relnamespace = 'aftercommit'::regnamespace AND relkind IN ('r', 'v')) AS o (owner)
        WHERE o.owner::regrole::text <> ";
    assert_eq!(old.sql.number(&format!("{others}'{owner}'")).await, 0);
    old.sql.execute("INSERT INTO aftercommit.downstreams (name, kind) VALUES ('mail', 'smtp')").await;
    for role in [&owner, &app] {
        let mut session = old.sql.session().await;
        on_session(&mut session, &format!("SET SESSION AUTHORIZATION {role}"))
            .await
            .expect("a superuser may");
        let call = format!("SELECT * FROM aftercommit.enqueue('mail', '{SEVERAL}', 'order-17')");
        let rows = on_session(&mut session, &call).await.unwrap_or_else(|error| panic!("{role}: {error}"));
        assert_eq!(rows.len(), 2);
        close_session(session).await;
    }
    old.remove().await;
    db.sql.execute(&format!("DROP ROLE {owner}; DROP ROLE {app}")).await;
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
        assert_eq!(keys, keys_of(base.as_str()), "{name}");
    }
    for again in [call(""), call("").replace("\"x\"", "\"y\""), call("").replace("b@x", "c@x")] {
        on_session(&mut session, "SAVEPOINT s").await.expect("it is set");
        let error = on_session(&mut session, &again).await.expect_err("which of the two is meant?");
        assert_eq!(refusal(&error).0, "AC409", "{again}: {error}");
        on_session(&mut session, "ROLLBACK TO s").await.expect("it goes back");
    }
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
        let each = mail().for_each_recipient().expect("they can be read");
        let results = tx.enqueue_many(each).await.expect("the transaction stands");
        let keys: Vec<_> = results
            .iter()
            .map(|result| {
                let enqueued = result.as_ref().expect("it can be taken");
                assert_eq!(matches!(enqueued, aftercommit::Enqueued::Inserted(_)), inserted);
                enqueued.receipt().key.clone()
            })
            .collect();
        assert_eq!(keys, keys_of("order-17"));
        tx.commit().await;
    }
    // Another mail under the key: of none of its recipients there is an effect.
    for other in [r#"{"to":["a@x.test","c@x.test"]}"#, r#"{"to":["c@x.test","d@x.test"]}"#] {
        let mut tx = db.sql.begin().await;
        let each = mail().json_text(other).expect("JSON").for_each_recipient().expect("they can be read");
        let results = tx.enqueue_many(each).await.expect("the transaction stands");
        assert_eq!(results.len(), 2);
        for result in results {
            assert!(
                matches!(&result, Err(EnqueueError::OtherRequest { key, .. }) if key == "order-17"),
                "{result:?}"
            );
        }
        tx.commit().await;
        assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 2);
    }
}

async fn who_stands_there_twice_is_one_recipient(db: &TestDatabase) {
    mail(db).await;
    let twice = r#"{"to":"a@x.test","cc":"Ann <a@X.test>","text":"x"}"#;
    let key = IdempotencyKey::parse("order-17").expect("a key");
    let mail = NewEffect::to("mail").key(key).json_text(twice).expect("JSON");
    let mut tx = db.sql.begin().await;
    let each = mail.for_each_recipient().expect("they can be read");
    let results = tx.enqueue_many(each).await.expect("the transaction stands");
    assert!(matches!(results.as_slice(), [Ok(aftercommit::Enqueued::Inserted(_))]), "{results:?}");
    tx.commit().await;
    assert_eq!(
        db.sql.scalar("SELECT target FROM aftercommit.effects").await.as_deref(),
        Some("a@x.test"),
        "whom it is for"
    );
    if db.engine == Engine::Postgres {
        let same =
            db.sql.row(&format!("SELECT * FROM aftercommit.enqueue('mail', '{twice}', 'order-17')")).await;
        assert_eq!(same["inserted"].as_deref(), Some("f"), "the same request from SQL");
    }
}
