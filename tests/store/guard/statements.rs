//! Guarantee: the guard's statements say the same to any language, and what they cannot take they refuse in words; on SQLite no form
//! of INSERT or UPDATE gets past them (UNIQUE-07, IDEMP-IN-05).

use std::time::Duration;

use aftercommit::guard::{Begun, GuardError, KEPT_MAX, Request};
use sqlx::{Postgres, pool::PoolConnection};

use super::{answer, begun, told};
use crate::support::{
    TestDatabase, answered, close_session, on_every_database, on_postgres, on_session, on_sqlite, request,
};

on_every_database! {
    a_time_that_is_none_is_refused_and_zero_is_not_absent,
    what_is_not_final_is_no_answer,
}

on_postgres! {
    what_cannot_be_is_refused_by_name,
    a_fingerprint_may_be_bytes,
    an_answer_without_headers_or_body_has_empty_ones,
}

on_sqlite! {
    no_form_of_insert_gets_past_an_answer,
    without_foreign_keys_nothing_begins,
    an_answer_is_written_once,
    who_acts_on_a_request_does_not_take_it_away,
    what_is_no_request_is_refused,
    the_statements_alone_guard_too,
}

async fn a_time_that_is_none_is_refused_and_zero_is_not_absent(db: &TestDatabase) {
    for ttl in [Duration::ZERO, Duration::from_nanos(999), KEPT_MAX + Duration::from_secs(1), Duration::MAX] {
        let mut tx = db.sql.begin().await;
        let refused = tx.begin_request(&Request { ttl: Some(ttl), ..request("shop", "k", "1") }).await;
        assert!(
            matches!(refused, Err(GuardError::Invalid(said)) if said.contains("ttl")),
            "{ttl:?}: {refused:?}"
        );
        tx.rollback().await;
    }
    let times = [
        (Some(Duration::from_micros(1)), 1),
        (Some(Duration::from_millis(1)), 1_000),
        (Some(KEPT_MAX), 311_040_000_000_000_i64),
        (None, 86_400_000_000),
    ];
    for (at, (ttl, micros)) in times.into_iter().enumerate() {
        let request = Request { ttl, ..request("shop", &format!("k{at}"), "1") };
        let mut tx = begun(db, &request).await;
        tx.finish_request(&request, &answered(200, "")).await.expect("it is finished");
        tx.commit().await;
        let kept = format!(
            "SELECT {} - {} AS kept FROM aftercommit.requests ORDER BY id DESC LIMIT 1",
            db.engine.micros("expires_at"),
            db.engine.micros("created_at")
        );
        let kept = db.sql.number(&kept).await;
        // On PostgreSQL the two defaults read the clock one after the other.
        assert!(
            (micros..micros + 1_000_000).contains(&kept) || (kept - micros).abs() < 1_000,
            "{ttl:?}: {kept}"
        );
    }
}

/// A repeat could not be given it as the answer.
async fn what_is_not_final_is_no_answer(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    for status in [0, 99, 100, 103, 199, 600] {
        let mut tx = begun(db, &request).await;
        let refused = tx.finish_request(&request, &answered(status, "")).await;
        assert!(
            matches!(&refused, Err(GuardError::Database(said)) if said.to_string().contains("response_status")),
            "{status}: {refused:?}"
        );
        tx.rollback().await;
    }
    answer(db, &request, &answered(200, "")).await;
}

async fn refused(session: &mut PoolConnection<Postgres>, sql: &str, column: &str) {
    on_session(session, "BEGIN").await.expect("it begins");
    let error = on_session(session, sql).await.expect_err(sql);
    let said = error.as_database_error().expect("the database says it");
    let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    assert_eq!((said.code(), said.column()), ("AC400", Some(column)), "{sql}: {said}");
    assert!(said.hint().is_some() && said.detail().is_none(), "{said:?}");
    on_session(session, "ROLLBACK").await.expect("it ends");
}

async fn what_cannot_be_is_refused_by_name(db: &TestDatabase) {
    let mut session = db.sql.session().await;
    for (arguments, column) in [
        ("NULL, 'k', 'f'", "scope"),
        ("'', 'k', 'f'", "scope"),
        ("repeat('ä', 256), 'k', 'f'", "scope"),
        ("repeat('x', 50000000), 'k', 'f'", "scope"),
        ("'s', NULL, 'f'", "key"),
        ("'s', '', 'f'", "key"),
        ("'s', ' k', 'f'", "key"),
        ("'s', 'k ', 'f'", "key"),
        ("'s', E'k\\t', 'f'", "key"),
        ("'s', E'k\\n', 'f'", "key"),
        ("'s', 'ﬁ', 'f'", "key"),
        ("'s', E'\\u0065\\u0301', 'f'", "key"),
        ("'s', repeat('x', 256), 'f'", "key"),
        ("'s', repeat('x', 50000000), 'f'", "key"),
        ("'s', 'k', NULL", "fingerprint"),
        ("'s', 'k', ''", "fingerprint"),
        ("'s', 'k', ''::bytea", "fingerprint"),
        ("'s', 'k', NULL::bytea", "fingerprint"),
        ("'s', 'k', repeat('x', 1025)", "fingerprint"),
        ("'s', 'k', 'f', '0'", "ttl"),
        ("'s', 'k', 'f', '-1 ms'", "ttl"),
        ("'s', 'k', 'f', '1000 years'", "ttl"),
        // Compares as one day, and lies in the past.
        ("'s', 'k', 'f', '-12 mons +361 days'", "ttl"),
    ] {
        let sql = format!("SELECT * FROM aftercommit.begin_request({arguments})");
        refused(&mut session, &sql, column).await;
    }
    for status in ["NULL", "0", "99", "100", "199", "600", "-1", "2147483647"] {
        let sql = format!("SELECT aftercommit.finish_request('s', 'k', {status}, '', '')");
        refused(&mut session, &sql, "response_status").await;
    }
    on_session(&mut session, "BEGIN").await.expect("it begins");
    let null = on_session(&mut session, "SELECT aftercommit.finish_request(NULL, NULL, 200, '', '')").await;
    assert!(null.is_err(), "no request is null");
    close_session(session).await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.requests").await, 0);
}

async fn a_fingerprint_may_be_bytes(db: &TestDatabase) {
    let mut session = db.sql.session().await;
    let mut told = async |fingerprint: &str| {
        on_session(&mut session, "BEGIN").await.expect("it begins");
        let sql =
            format!("SELECT status FROM aftercommit.begin_request('s', 'k', {fingerprint}, ttl => '1 hour')");
        let rows = on_session(&mut session, &sql).await.expect("told");
        let told = rows[0]["status"].clone().expect("a status");
        if told == "new" {
            on_session(&mut session, "SELECT aftercommit.finish_request('s', 'k', 200)")
                .await
                .expect("finished");
        }
        on_session(&mut session, "COMMIT").await.expect("it ends");
        told
    };
    assert_eq!(told("sha256('one')").await, "new");
    assert_eq!(told("sha256('one')").await, "replay");
    assert_eq!(told("encode(sha256('one'), 'hex')").await, "replay", "the same in hexadecimal");
    assert_eq!(told("sha256('two')").await, "mismatch");
    assert_eq!(told("'one'").await, "mismatch", "a literal is text");
    close_session(session).await;
}

async fn an_answer_without_headers_or_body_has_empty_ones(db: &TestDatabase) {
    let mut session = db.sql.session().await;
    on_session(&mut session, "BEGIN; SELECT * FROM aftercommit.begin_request('s', 'k', 'f')")
        .await
        .expect("begins");
    on_session(&mut session, "SELECT aftercommit.finish_request('s', 'k', 204, NULL, NULL); COMMIT")
        .await
        .expect("ends");
    let rows = on_session(&mut session, "SELECT * FROM aftercommit.begin_request('s', 'k', 'f')")
        .await
        .expect("told");
    let row = &rows[0];
    assert_eq!((row["status"].as_deref(), row["response_status"].as_deref()), (Some("replay"), Some("204")));
    assert_eq!(
        (row["response_headers"].as_deref(), row["response_body"].as_deref()),
        (Some("\\x"), Some("\\x"))
    );
    close_session(session).await;
}

const INSERT: &str = "INTO aftercommit.requests (scope, key, fingerprint) VALUES ('shop', 'k', 'f')";

async fn no_form_of_insert_gets_past_an_answer(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    answer(db, &request, &answered(201, "kept")).await;
    let update = "ON CONFLICT (scope, key) DO UPDATE SET response_status = NULL, unanswered = 0";
    for form in [
        format!("INSERT {INSERT}"),
        format!("INSERT OR REPLACE {INSERT}"),
        format!("REPLACE {INSERT}"),
        format!("INSERT OR IGNORE {INSERT}"),
        format!("INSERT OR FAIL {INSERT}"),
        format!("INSERT {INSERT} ON CONFLICT DO NOTHING"),
        format!("INSERT {INSERT} {update}"),
    ] {
        let mut tx = db.sql.begin().await;
        let error = tx.try_execute(&form).await.expect_err(&form);
        assert!(error.to_string().contains("answered already"), "{form}: {error}");
        tx.rollback().await;
    }
    for form in ["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE"] {
        let mut tx = begun(db, &crate::support::request("shop", "open", "1")).await;
        let error =
            tx.try_execute(&format!("{form} {INSERT}")).await.expect_err("one request in a transaction");
        assert!(error.to_string().contains("has begun a request already"), "{form}: {error}");
        tx.rollback().await;
    }
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "kept")));
}

/// Python's default. The row that such a COMMIT leaves would stand in everybody's way.
async fn without_foreign_keys_nothing_begins(db: &TestDatabase) {
    use sqlx::ConnectOptions as _;
    let options =
        <sqlx::sqlite::SqliteConnectOptions as std::str::FromStr>::from_str(&db.url).expect("a URL");
    let mut connection = options.foreign_keys(false).connect().await.expect("it connects");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.expect("it begins");
    for form in ["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE"] {
        let sql = db.engine.dialect(&format!("{form} {INSERT}"));
        let error =
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect_err("refused");
        assert!(error.to_string().contains("PRAGMA foreign_keys = ON"), "{form}: {error}");
    }
    let mut guarding =
        aftercommit::guard::Requests::begin_request(&mut connection, &request("shop", "k", "1")).await;
    let error = guarding.as_mut().expect_err("refused");
    assert!(
        matches!(error, GuardError::Database(said) if said.to_string().contains("foreign_keys")),
        "{error:?}"
    );
    // And within a transaction they cannot be switched.
    sqlx::raw_sql("PRAGMA foreign_keys = ON").execute(&mut connection).await.expect("it does nothing");
    let sql = db.engine.dialect(&format!("INSERT {INSERT}"));
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect_err("still");
    drop(connection);
}

async fn an_answer_is_written_once(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    answer(db, &request, &answered(201, "kept")).await;
    for change in [
        "response_status = 500",
        "response_body = x'00'",
        "response_headers = NULL",
        "response_status = NULL, unanswered = 0",
        "fingerprint = 'other'",
        "key = 'other'",
        "scope = 'other'",
        "id = 99",
    ] {
        for form in ["UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE"] {
            let sql = format!("{form} aftercommit.requests SET {change} WHERE key = 'k'");
            let error = db.sql.refused(&sql).await;
            assert!(error.to_string().contains("is written once"), "{sql}: {error}");
        }
    }
    // The one that is open takes nothing but its answer.
    let mut tx = begun(db, &crate::support::request("shop", "open", "1")).await;
    for change in [
        "unanswered = NULL",
        "key = 'other', response_status = 200, unanswered = NULL",
        "response_status = 200",
    ] {
        let sql = format!("UPDATE aftercommit.requests SET {change} WHERE key = 'open'");
        tx.try_execute(&sql).await.expect_err(&sql);
    }
    tx.rollback().await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "kept")));
}

/// The business would be committed, and every repeat act again.
async fn who_acts_on_a_request_does_not_take_it_away(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    for form in ["WHERE key = 'k'", "WHERE unanswered IS NOT NULL", ""] {
        let mut tx = begun(db, &request).await;
        let error = tx
            .try_execute(&format!("DELETE FROM aftercommit.requests {form}"))
            .await
            .expect_err("it is acted on");
        assert!(error.to_string().contains("ROLLBACK"), "{error}");
        tx.rollback().await;
    }
    answer(db, &request, &answered(201, "")).await;
    db.sql.execute("DELETE FROM aftercommit.requests").await;
    assert_eq!(told(db, &request).await, Begun::New, "an answer may be taken away");
}

async fn what_is_no_request_is_refused(db: &TestDatabase) {
    for values in [
        "'', 'k', 'f'",
        "NULL, 'k', 'f'",
        "'s', '', 'f'",
        "'s', NULL, 'f'",
        "'s', ' k', 'f'",
        "'s', 'k ', 'f'",
        "'s', 'ﬁ', 'f'",
        "'s', 'k' || char(9), 'f'",
        "'s', 'a' || char(0) || 'b', 'f'",
        "'s', x'6b', 'f'",
        "'s', replace(hex(zeroblob(128)), '0', 'x'), 'f'",
        "'s', 'k', ''",
        "'s', 'k', NULL",
    ] {
        let mut tx = db.sql.begin().await;
        let sql = format!("INSERT INTO aftercommit.requests (scope, key, fingerprint) VALUES ({values})");
        tx.try_execute(&sql).await.expect_err(&sql);
        tx.rollback().await;
    }
    for (columns, values) in [
        ("response_status, unanswered", "200, NULL"),
        ("response_status", "200"),
        ("unanswered", "NULL"),
        ("unanswered", "1"),
        ("expires_at", "0"),
        ("expires_at", "NULL"),
        ("created_at, expires_at", "5, 5"),
    ] {
        let mut tx = db.sql.begin().await;
        let sql = format!(
            "INSERT INTO aftercommit.requests (scope, key, fingerprint, {columns}) VALUES ('s', 'k', 'f', {values})"
        );
        tx.try_execute(&sql).await.expect_err(&sql);
        tx.rollback().await;
    }
    let effect = "INSERT INTO aftercommit.effects (downstream, request_id) VALUES ('pay', 1)";
    assert!(db.sql.refused(effect).await.to_string().contains("request_id"), "is the database's");
}

/// As docs/guard.md has them for other languages.
async fn the_statements_alone_guard_too(db: &TestDatabase) {
    let mut tx = db.sql.begin().await;
    tx.execute(&format!("INSERT {INSERT}")).await;
    tx.execute("INSERT INTO aftercommit.effects (downstream) VALUES ('pay')").await;
    tx.execute(
        "UPDATE aftercommit.requests SET response_status = 201, response_headers = x'', response_body = x'00ff', \
             unanswered = NULL WHERE scope = 'shop' AND key = 'k' AND unanswered IS NOT NULL",
    )
    .await;
    tx.commit().await;
    let row = db.sql.row("SELECT r.response_status, e.request_id = r.id AS its_own FROM aftercommit.requests r, aftercommit.effects e").await;
    assert_eq!((row["response_status"].as_deref(), row["its_own"].as_deref()), (Some("201"), Some("1")));
}
