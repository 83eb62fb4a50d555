//! Guarantee: a request is begun where its whole transaction hangs on it, and nowhere else.

use aftercommit::guard::{Begun, GuardError};

use super::{answer, begun, orders, shop, told};
use crate::support::{
    TestDatabase, answered, close_session, on_every_database, on_postgres, on_session, request,
};

on_every_database! { one_transaction_acts_on_one_request }

on_postgres! {
    what_has_written_begins_nothing,
    what_has_only_read_may_begin,
    nothing_begins_in_a_savepoint,
    a_call_per_column_is_told_so,
    alone_in_its_statement_it_is_refused,
    constraints_that_are_checked_at_once_ask_for_the_answer_at_once,
    whose_server_vanished_holds_its_key_for_minutes,
    who_is_not_told_new_writes_no_effect,
    a_key_in_its_quotes_is_refused,
}

async fn one_transaction_acts_on_one_request(db: &TestDatabase) {
    let (one, other) = (request("shop", "k", "1"), request("shop", "other", "1"));
    for second in [&one, &other] {
        let mut tx = begun(db, &one).await;
        let refused = tx.begin_request(second).await;
        assert!(matches!(refused, Err(GuardError::NotFirst)), "{refused:?}");
        tx.rollback().await;
    }
    answer(db, &one, &answered(201, "")).await;
    answer(db, &other, &answered(200, "")).await;
}

async fn what_has_written_begins_nothing(db: &TestDatabase) {
    shop(db).await;
    db.sql.execute("INSERT INTO orders VALUES ('17')").await;
    let request = request("shop", "k", "1");
    for before in [
        "INSERT INTO orders VALUES ('18')",
        "SELECT * FROM orders FOR UPDATE",
        "CREATE TEMP TABLE t (i int)",
        "SAVEPOINT s; INSERT INTO orders VALUES ('18'); ROLLBACK TO s",
    ] {
        let mut tx = db.sql.begin().await;
        tx.execute(before).await;
        let refused = tx.begin_request(&request).await;
        assert!(matches!(refused, Err(GuardError::NotFirst)), "{before}: {refused:?}");
        tx.rollback().await;
    }
    assert_eq!((told(db, &request).await, orders(db).await), (Begun::New, 1));
}

async fn what_has_only_read_may_begin(db: &TestDatabase) {
    shop(db).await;
    let request = request("shop", "k", "1");
    let mut tx = db.sql.begin().await;
    tx.execute("SELECT count(*) FROM orders; SET LOCAL statement_timeout = '1min'").await;
    assert_eq!(tx.begin_request(&request).await.expect("it begins"), Begun::New);
    tx.rollback().await;
}

async fn nothing_begins_in_a_savepoint(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    let mut tx = db.sql.begin().await;
    tx.execute("SAVEPOINT s").await;
    let refused = tx.begin_request(&request).await;
    assert!(matches!(refused, Err(GuardError::NotFirst)), "{refused:?}");
    // The key is free although the transaction goes on.
    tx.execute("ROLLBACK TO s").await;
    assert_eq!(told(db, &request).await, Begun::New);
    tx.rollback().await;
    let block = "DO $$ BEGIN PERFORM aftercommit.begin_request('shop', 'k', 'f'); EXCEPTION WHEN division_by_zero THEN NULL; END $$";
    let error = db.sql.refused(block).await;
    let said = error.as_database_error().expect("the database says it");
    assert_eq!(said.code().as_deref(), Some("25001"), "{said}");
    assert!(said.message().contains("savepoint"), "{said}");
}

/// Each of the three answers that are not 'new': an effect would be one too many, and its key a random one.
async fn who_is_not_told_new_writes_no_effect(db: &TestDatabase) {
    let answered_before = request("shop", "k", "1");
    answer(db, &answered_before, &answered(201, "")).await;
    let open = begun(db, &request("shop", "open", "1")).await;
    for (key, print, expected) in [
        ("k", "1", "replay"),
        ("k", "2", "mismatch"),
        ("open", "1", "in_progress"),
        ("open", "2", "mismatch"),
    ] {
        for write in [
            "INSERT INTO aftercommit.effects (downstream, payload) VALUES ('pay', '{}')",
            "SELECT FROM aftercommit.enqueue('pay', '{}')",
        ] {
            let mut tx = db.sql.begin().await;
            let said = tx.begin_request(&request("shop", key, print)).await.expect("it is told");
            assert_ne!(said, Begun::New, "{expected}");
            let error = tx.try_execute(write).await.expect_err(expected);
            let said = error.to_string();
            assert!(said.contains(expected), "{expected}: {said}");
            tx.rollback().await;
        }
    }
    open.rollback().await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 0);
}

/// The header as it came would be another key than the same one sent bare.
async fn a_key_in_its_quotes_is_refused(db: &TestDatabase) {
    let error = db.sql.refused("SELECT * FROM aftercommit.begin_request('shop', '\"k\"', 'f')").await;
    let said = error.as_database_error().expect("the database says it");
    assert_eq!(said.code().as_deref(), Some("AC400"), "{said}");
    assert!(said.message().contains("quotes"), "{said}");
}

async fn a_call_per_column_is_told_so(db: &TestDatabase) {
    let mut session = db.sql.session().await;
    on_session(&mut session, "BEGIN").await.expect("it begins");
    let error = on_session(&mut session, "SELECT (aftercommit.begin_request('shop', 'k', 'f')).*")
        .await
        .expect_err("four calls");
    let said = error.as_database_error().expect("the database says it");
    let hint = said.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap_or_default();
    assert!(hint.contains("SELECT * FROM aftercommit.begin_request"), "{hint}");
    close_session(session).await;
}

async fn alone_in_its_statement_it_is_refused(db: &TestDatabase) {
    let error = db.sql.refused("SELECT * FROM aftercommit.begin_request('shop', 'k', 'f')").await;
    assert_eq!(error.as_database_error().and_then(|said| said.code()).as_deref(), Some("AC001"), "{error}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.requests").await, 0);
}

async fn constraints_that_are_checked_at_once_ask_for_the_answer_at_once(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    let mut tx = begun(db, &request).await;
    let error = tx.try_execute("SET CONSTRAINTS ALL IMMEDIATE").await.expect_err("there is no answer yet");
    let said = error.as_database_error().expect("the database says it");
    assert_eq!(said.code().as_deref(), Some("AC001"), "{said}");
    tx.rollback().await;
    let mut tx = begun(db, &request).await;
    tx.finish_request(&request, &answered(201, "")).await.expect("it is finished");
    tx.execute("SET CONSTRAINTS ALL IMMEDIATE").await;
    tx.commit().await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "")));
}

/// IDEMP-IN-05: no record is in progress without end. PostgreSQL ends a transaction that stands idle for so long.
async fn whose_server_vanished_holds_its_key_for_minutes(db: &TestDatabase) {
    const LIMIT: &str = "SHOW idle_in_transaction_session_timeout";
    const BEGIN: &str = "SELECT * FROM aftercommit.begin_request('shop', 'k', 'f')";
    let mut session = db.sql.session().await;
    for (own, inside) in [("0", "5min"), ("7s", "7s"), ("1h", "1h")] {
        let set = format!("SET idle_in_transaction_session_timeout = '{own}'");
        on_session(&mut session, &set).await.expect("set");
        for (sql, limit) in [
            ("BEGIN", own),
            (BEGIN, inside),
            ("SAVEPOINT s", inside),
            ("ROLLBACK TO s", inside),
            ("ROLLBACK", own),
        ] {
            on_session(&mut session, sql).await.expect(sql);
            let rows = on_session(&mut session, LIMIT).await.expect("readable");
            assert_eq!(
                rows[0]["idle_in_transaction_session_timeout"].as_deref(),
                Some(limit),
                "{own}: {sql}"
            );
        }
    }
    close_session(session).await;
}
