//! Guarantee: the settings by which a request reaches its effects count with the row that `begin_request` wrote and no other; who
//! writes something else there harms itself only, and is told so (PostgreSQL).

use aftercommit::{Enqueued, IdempotencyKey, NewEffect, Outbox, error::EnqueueError};

use super::{answer, begun};
use crate::{
    store::stage::Stage,
    support::{TestDatabase, answered, close_session, on_postgres, on_session, request},
};

on_postgres! {
    a_forged_setting_is_refused_with_the_remedy,
    a_forged_setting_attributes_nothing_to_another_request,
    a_forged_setting_is_refused_by_the_library_too,
    nothing_of_a_request_outlives_its_transaction,
}

const PLAIN: &str = "INSERT INTO aftercommit.effects (downstream) VALUES ('pay')";
const CALL: &str = "SELECT * FROM aftercommit.enqueue('pay', '{}')";

async fn a_forged_setting_is_refused_with_the_remedy(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut session = db.sql.session().await;
    for value in ["abc", "17", "-1", "99999999999999999999", " ", "1e3", "'; DROP TABLE aftercommit.requests"]
    {
        let set = format!("SELECT set_config('aftercommit.request', $${value}$$, false)");
        on_session(&mut session, &set).await.expect("anybody may set it");
        for sql in [PLAIN, CALL] {
            let error = on_session(&mut session, sql).await.expect_err("it says something else");
            let said = error.as_database_error().expect("the database says it");
            let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
            assert_eq!(said.code(), "55000", "{value:?}, {sql}: {said}");
            assert!(said.message().contains("aftercommit.request"), "{said}");
            assert!(said.hint().is_some_and(|hint| hint.contains("RESET aftercommit.request")), "{said}");
        }
        // Nobody else notices.
        assert!(matches!(db.sql.enqueue(NewEffect::to("pay")).await, Ok(Enqueued::Inserted(_))));
        // A request of the session itself tells its own transaction what is so.
        on_session(&mut session, "BEGIN").await.expect("it begins");
        on_session(&mut session, "SELECT * FROM aftercommit.begin_request('shop', 'k', 'f')")
            .await
            .expect("it begins");
        on_session(&mut session, PLAIN).await.expect("it is written");
        on_session(&mut session, CALL).await.expect("it is written");
        on_session(&mut session, "ROLLBACK").await.expect("it ends");
    }
    for reset in ["RESET aftercommit.request", "SET aftercommit.request = ''"] {
        on_session(&mut session, reset).await.expect("it is reset");
        on_session(&mut session, PLAIN).await.expect("it is written");
        on_session(&mut session, CALL).await.expect("it is written");
    }
    // The other two alone say nothing.
    on_session(&mut session, "SET aftercommit.request_scope = 'x'; SET aftercommit.request_key = 'y'")
        .await
        .expect("set");
    on_session(&mut session, PLAIN).await.expect("it is written");
    close_session(session).await;
}

/// What the victim's request is, and all of its settings.
async fn a_forged_setting_attributes_nothing_to_another_request(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let theirs = request("their tenant", "k", "{}");
    answer(db, &theirs, &answered(201, "")).await;
    let id = db.sql.number("SELECT id FROM aftercommit.requests").await;
    let open = begun(db, &request("their tenant", "open", "{}")).await;
    let mut session = db.sql.session().await;
    for (id, key) in [(id, "k"), (id + 1, "open")] {
        let forge = format!(
            "SET aftercommit.request = '{id}'; SET aftercommit.request_scope = 'their tenant'; SET aftercommit.request_key = '{key}'"
        );
        for inside in [false, true] {
            on_session(&mut session, "BEGIN").await.expect("it begins");
            if inside {
                let begin = "SELECT * FROM aftercommit.begin_request('mine', 'k', 'f')";
                on_session(&mut session, begin).await.expect("it begins");
            }
            on_session(&mut session, &forge).await.expect("anybody may set it");
            let error = on_session(&mut session, PLAIN).await.expect_err("not its request");
            let code = error.as_database_error().and_then(|said| said.code().map(|code| code.into_owned()));
            assert_eq!(code.as_deref(), Some("55000"), "{error}");
            on_session(&mut session, "ROLLBACK").await.expect("it ends");
        }
    }
    close_session(session).await;
    open.rollback().await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
}

async fn a_forged_setting_is_refused_by_the_library_too(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut session = db.sql.session().await;
    for (scope, key) in [("", ""), ("shop", ""), ("", "k"), ("shop", "k"), ("shop", " not a key")] {
        let forge = format!(
            "SET aftercommit.request = '17'; SET aftercommit.request_scope = '{scope}'; SET aftercommit.request_key = '{key}'"
        );
        on_session(&mut session, &forge).await.expect("anybody may set it");
        for effect in [NewEffect::to("pay"), NewEffect::to("pay").key(IdempotencyKey::random())] {
            let refused = Outbox.enqueue(&mut *session, effect).await;
            let Err(EnqueueError::Database(error)) = refused else { panic!("{refused:?}") };
            assert!(error.to_string().contains("aftercommit.request"), "{scope:?} {key:?}: {error}");
        }
    }
    on_session(&mut session, "RESET aftercommit.request").await.expect("it is reset");
    let enqueued = Outbox.enqueue(&mut *session, NewEffect::to("pay")).await;
    assert!(matches!(enqueued, Ok(Enqueued::Inserted(_))), "{enqueued:?}");
    close_session(session).await;
}

async fn nothing_of_a_request_outlives_its_transaction(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut session = db.sql.session().await;
    let settings = "SELECT coalesce(current_setting('aftercommit.request', true), '') \
       || coalesce(current_setting('aftercommit.request_scope', true), '') \
       || coalesce(current_setting('aftercommit.request_key', true), '') AS all_of_them";
    for end in ["COMMIT", "ROLLBACK"] {
        on_session(&mut session, "BEGIN").await.expect("it begins");
        on_session(&mut session, "SELECT * FROM aftercommit.begin_request('s', 'k', 'f')")
            .await
            .expect("it begins");
        on_session(&mut session, "SELECT aftercommit.finish_request('s', 'k', 200, '', '')")
            .await
            .expect("finished");
        on_session(&mut session, end).await.expect("it ends");
        let rows = on_session(&mut session, settings).await.expect("readable");
        assert_eq!(rows[0]["all_of_them"].as_deref(), Some(""), "{end}");
        on_session(&mut session, PLAIN).await.expect("it is written");
        db.sql.execute("DELETE FROM aftercommit.requests").await;
    }
    close_session(session).await;
    let guarded = "SELECT count(*) FROM aftercommit.effects WHERE request_id IS NOT NULL";
    assert_eq!(db.sql.number(guarded).await, 0);
}
