//! Guarantee: while the first transaction is open, a repeat is told "in progress" and another request "mismatch", at once, whatever
//! the isolation; on SQLite it waits, and gets the replay (IDEMP-IN-13).

use std::time::Duration;

use aftercommit::guard::Begun;
use tokio::task::JoinSet;

use super::{answer, begun, orders, shop, told};
use crate::support::{
    Sql, TestDatabase, answered, close_session, eventually, on_every_database, on_postgres, on_session,
    request, within,
};

on_every_database! { who_comes_second_gets_the_answer_of_the_first }

on_postgres! {
    nobody_waits_for_an_open_request,
    an_open_request_in_every_isolation,
    a_prepared_transaction_goes_on_holding_its_key,
    a_snapshot_that_is_too_old_is_told_to_retry,
    who_only_looked_leaves_no_trace,
    a_writer_that_was_told_to_replay_decides_for_nobody,
    a_begun_request_outlasts_its_savepoints,
}

const AT_ONCE: Duration = Duration::from_secs(5);

async fn who_comes_second_gets_the_answer_of_the_first(db: &TestDatabase) {
    let one = request("shop", "k", "1");
    let mut first = begun(db, &one).await;
    let mut second = JoinSet::new();
    let (sql, again) = (db.sql.clone(), one.clone());
    second.spawn(async move {
        loop {
            let mut tx = sql.begin().await;
            let told = tx.begin_request(&again).await.expect("it is told");
            tx.rollback().await;
            if told != Begun::InProgress {
                return told;
            }
        }
    });
    first.finish_request(&one, &answered(201, "first")).await.expect("it is finished");
    first.commit().await;
    let told = within(Duration::from_secs(20), "the second", second.join_all()).await;
    assert_eq!(told, [Begun::Replay(answered(201, "first"))]);
}

async fn nobody_waits_for_an_open_request(db: &TestDatabase) {
    let (one, two) = (request("shop", "k", "1"), request("shop", "k", "2"));
    let mut first = begun(db, &one).await;
    for finished in [false, true] {
        if finished {
            first.finish_request(&one, &answered(201, "")).await.expect("it is finished");
        }
        let told =
            async { (told(db, &one).await, told(db, &two).await, told(db, &request("b", "k", "2")).await) };
        let told = within(AT_ONCE, "an answer while the first is open", told).await;
        assert_eq!(told, (Begun::InProgress, Begun::Mismatch, Begun::New), "finished: {finished}");
    }
    first.commit().await;
    assert_eq!(told(db, &two).await, Begun::Mismatch);
}

const BEGIN_ONE: &str = "SELECT status FROM aftercommit.begin_request('shop', 'k', 'one')";
const BEGIN_TWO: &str = "SELECT status FROM aftercommit.begin_request('shop', 'k', 'two')";
const FINISH: &str = "SELECT aftercommit.finish_request('shop', 'k', 201, '\\x00', '\\xff')";

fn status(rows: &[crate::support::Row]) -> &str {
    rows[0]["status"].as_deref().expect("a status")
}

async fn an_open_request_in_every_isolation(db: &TestDatabase) {
    let levels = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    let (mut first, mut second) = (db.sql.session().await, db.sql.session().await);
    for of_first in levels {
        on_session(&mut first, &format!("BEGIN ISOLATION LEVEL {of_first}")).await.expect("it begins");
        assert_eq!(status(&on_session(&mut first, BEGIN_ONE).await.expect("it begins")), "new");
        for level in levels {
            for (sql, told) in [(BEGIN_ONE, "in_progress"), (BEGIN_TWO, "mismatch")] {
                on_session(&mut second, &format!("BEGIN ISOLATION LEVEL {level}")).await.expect("it begins");
                let rows = within(AT_ONCE, "an answer", on_session(&mut second, sql)).await.expect("told");
                assert_eq!(status(&rows), told, "{of_first}, {level}");
                on_session(&mut second, "COMMIT").await.expect("it ends");
            }
        }
        on_session(&mut first, "ROLLBACK").await.expect("it ends");
    }
    close_session(first).await;
    close_session(second).await;
}

async fn a_prepared_transaction_goes_on_holding_its_key(db: &TestDatabase) {
    let mut first = db.sql.session().await;
    on_session(&mut first, "BEGIN").await.expect("it begins");
    on_session(&mut first, BEGIN_ONE).await.expect("it begins");
    let unfinished =
        on_session(&mut first, "PREPARE TRANSACTION 'guarded'").await.expect_err("no answer yet");
    assert_eq!(unfinished.as_database_error().and_then(|said| said.code()).as_deref(), Some("AC001"));
    on_session(&mut first, "BEGIN").await.expect("it begins");
    on_session(&mut first, BEGIN_ONE).await.expect("it begins");
    on_session(&mut first, FINISH).await.expect("it is finished");
    on_session(&mut first, "PREPARE TRANSACTION 'guarded'").await.expect("it is prepared");
    close_session(first).await;
    let mut second = db.sql.session().await;
    for (sql, told) in [(BEGIN_ONE, "in_progress"), (BEGIN_TWO, "mismatch")] {
        assert_eq!(status(&on_session(&mut second, sql).await.expect("told")), told);
    }
    on_session(&mut second, "COMMIT PREPARED 'guarded'").await.expect("it commits");
    for (sql, told) in [(BEGIN_ONE, "replay"), (BEGIN_TWO, "mismatch")] {
        assert_eq!(status(&on_session(&mut second, sql).await.expect("told")), told);
    }
    close_session(second).await;
}

async fn a_snapshot_that_is_too_old_is_told_to_retry(db: &TestDatabase) {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let one = request("shop", level, "1");
        let (same, other) = (one.clone(), request("shop", level, "2"));
        let mut old = Vec::new();
        for _ in 0..2 {
            let mut session = db.sql.session().await;
            on_session(&mut session, &format!("BEGIN ISOLATION LEVEL {level}")).await.expect("it begins");
            on_session(&mut session, "SELECT count(*) FROM aftercommit.schema_version")
                .await
                .expect("a look");
            old.push(session);
        }
        answer(db, &one, &answered(201, "first")).await;
        for (session, request) in old.iter_mut().zip([same, other]) {
            let sql = format!(
                "SELECT * FROM aftercommit.begin_request('shop', '{level}', '{}')",
                request.fingerprint.as_str()
            );
            let error = within(AT_ONCE, "an answer", on_session(session, &sql)).await.expect_err("too old");
            assert_eq!(
                error.as_database_error().and_then(|said| said.code()).as_deref(),
                Some("40001"),
                "{error}"
            );
            on_session(session, "ROLLBACK").await.expect("it ends");
            on_session(session, &format!("BEGIN ISOLATION LEVEL {level}")).await.expect("it begins again");
            let rows = on_session(session, &sql).await.expect("told");
            let retried = if request == one { "replay" } else { "mismatch" };
            assert_eq!(status(&rows), retried, "{level}: as the retry is told");
        }
        for session in old {
            close_session(session).await;
        }
    }
}

async fn who_only_looked_leaves_no_trace(db: &TestDatabase) {
    let one = request("shop", "k", "1");
    answer(db, &one, &answered(201, "")).await;
    let before = db.sql.rows("SELECT xmin, xmax, ctid, * FROM aftercommit.requests").await;
    let mut looking = db.sql.begin().await;
    assert!(matches!(looking.begin_request(&one).await, Ok(Begun::Replay(_))));
    // It keeps the key's lock: nobody else is held up by it.
    for _ in 0..3 {
        assert!(matches!(within(AT_ONCE, "an answer", told(db, &one)).await, Begun::Replay(_)));
    }
    let mut tx = begun(db, &request("shop", "another", "1")).await;
    tx.finish_request(&request("shop", "another", "1"), &answered(200, "")).await.expect("it is finished");
    tx.commit().await;
    looking.commit().await;
    let after = db.sql.rows("SELECT xmin, xmax, ctid, * FROM aftercommit.requests WHERE key = 'k'").await;
    assert_eq!(after, before);
}

/// Whoever was told "mismatch" and goes on to write holds the key's lock and its own fingerprint: it must not be taken for the
/// first, by one to whom the answer is not visible yet or any more.
async fn a_writer_that_was_told_to_replay_decides_for_nobody(db: &TestDatabase) {
    shop(db).await;
    let (one, two) = (request("shop", "k", "1"), request("shop", "k", "2"));
    let mut old = db.sql.session().await;
    on_session(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("it begins");
    on_session(&mut old, "SELECT count(*) FROM orders").await.expect("a look");
    answer(db, &one, &answered(201, "first")).await;
    let mut writer = db.sql.begin().await;
    assert_eq!(writer.begin_request(&two).await.expect("told"), Begun::Mismatch);
    writer.execute("INSERT INTO orders VALUES ('a note that it was refused')").await;
    let sql =
        format!("SELECT status FROM aftercommit.begin_request('shop', 'k', '{}')", one.fingerprint.as_str());
    let error = within(AT_ONCE, "an answer", on_session(&mut old, &sql)).await.expect_err("it is too old");
    assert_eq!(error.as_database_error().and_then(|said| said.code()).as_deref(), Some("40001"), "{error}");
    close_session(old).await;
    // The answer goes while the writer is still open.
    db.sql.execute("DELETE FROM aftercommit.requests").await;
    for request in [&one, &two] {
        let told = within(AT_ONCE, "an answer", told(db, request)).await;
        assert_eq!(told, Begun::InProgress, "somebody holds the key, and has begun nothing");
    }
    writer.commit().await;
    assert_eq!((told(db, &one).await, orders(db).await), (Begun::New, 1));
}

async fn a_begun_request_outlasts_its_savepoints(db: &TestDatabase) {
    let (one, two) = (request("shop", "k", "1"), request("shop", "k", "2"));
    let mut first = begun(db, &one).await;
    for round in 0..20 {
        first.execute("SAVEPOINT s; SELECT pg_current_xact_id(); CREATE TEMP TABLE t (i int)").await;
        first.execute("ROLLBACK TO s; RELEASE s").await;
        assert_eq!(
            (told(db, &one).await, told(db, &two).await),
            (Begun::InProgress, Begun::Mismatch),
            "{round}"
        );
    }
    first.rollback().await;
    let free = async || (told(db, &two).await == Begun::New).then_some(());
    eventually(AT_ONCE, "the key is free", free).await;
    assert!(matches!(db.sql, Sql::Postgres(_)));
}
