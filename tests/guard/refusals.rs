//! Defends: what was not done is not remembered as done. Only 2xx and 3xx are kept; any other end frees the key and leaves no row,
//! unless the handler asks to remember it.

use std::sync::{Arc, Mutex};

use aftercommit::guard::{Answer, Fingerprint, Remember, Request, RequestKey, Requests as _, Scope};
use axum::{
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};

use super::{
    ask::Ask,
    shop::{Call, Shop, Tune, Tx, orders, sell},
};
use crate::support::{Sql, TestDatabase, Unmigrated, on_every_database, on_every_way};

on_every_way! {
    a_refusal_frees_the_key_and_leaves_no_row,
    a_remembered_refusal_is_replayed_and_its_rows_are_not_there,
    a_handler_that_panics_is_rolled_back_and_a_retry_runs,
}

on_every_database! {
    a_handler_that_keeps_its_transaction_is_rolled_back,
    a_refusal_is_remembered_after_a_statement_failed_and_without_a_transaction,
    success_after_a_failed_statement_is_not_told,
    a_redirection_is_kept,
    only_one_part_of_a_handler_has_the_transaction,
    a_dropped_savepoint_leaves_the_rest_of_the_transaction,
    a_savepoint_that_is_left_open_is_never_told_as_success,
    a_handler_that_ends_the_transaction_itself_is_told_500,
    a_database_without_the_schema_is_told_500_and_nothing_runs,
    a_stored_answer_that_nobody_can_read_is_not_run_again,
}

/// IDEMP-IN-07: the first run ends as `bad` says, the second is fine.
async fn a_refusal_frees_the_key_and_leaves_no_row(db: &TestDatabase) {
    for status in [500, 503, 504, 429, 408, 400, 422, 409] {
        db.sql.execute("DROP TABLE IF EXISTS orders").await;
        let shop = Shop::open(db, Tune::default(), move |mut call| async move {
            if call.number > 1 {
                return sell(call).await;
            }
            call.tx().await.expect("a transaction").order("never").await;
            (StatusCode::from_u16(status).expect("a status"), "not now").into_response()
        })
        .await;
        let key = format!("k-{status}");
        let first = shop.send(Ask::order(&key)).await;
        assert_eq!((first.status, first.body.as_str()), (status, "not now"), "the handler's own answer");
        let again = shop.send(Ask::order(&key)).await;
        assert_eq!((again.status, again.is_replay()), (201, false), "{again:?}");
        assert_eq!((shop.runs(), orders(db).await), (2, 1), "after {status}");
    }
}

async fn declined(mut call: Call) -> Response {
    call.tx().await.expect("a transaction").order("never").await;
    Remember((StatusCode::PAYMENT_REQUIRED, [(header::ALLOW, "POST")], "declined")).into_response()
}

async fn a_remembered_refusal_is_replayed_and_its_rows_are_not_there(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), declined).await;
    let first = shop.send(Ask::order("k")).await;
    assert_eq!((first.status, first.body.as_str()), (402, "declined"));
    let again = shop.send(Ask::order("k")).await;
    assert!(again.is_replay());
    assert_eq!(again.first(), first);
    assert_eq!((shop.runs(), orders(db).await), (1, 0));
}

async fn a_refusal_is_remembered_after_a_statement_failed_and_without_a_transaction(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        if call.text() == "A" {
            let mut tx = call.tx().await.expect("a transaction");
            tx.order("never").await;
            tx.execute("INSERT INTO nowhere VALUES (1)").await.expect_err("there is no such table");
        }
        Remember(StatusCode::GONE).into_response()
    })
    .await;
    for (key, body) in [("a", "A"), ("b", "B")] {
        let ask = Ask::order(key).body(body);
        assert_eq!(shop.send(ask.clone()).await.status, 410);
        assert!(shop.send(ask).await.is_replay());
    }
    assert_eq!((shop.runs(), orders(db).await), (2, 0));
}

/// IDEMP-IN-07.
async fn a_handler_that_panics_is_rolled_back_and_a_retry_runs(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { connections: 1, ..Tune::default() }, |mut call| async move {
        if call.number > 1 {
            return sell(call).await;
        }
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("never").await;
        panic!("this is the test's own panic");
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "handler-failed");
    assert_eq!(orders(db).await, 0);
    let again = shop.send(Ask::order("k")).await;
    assert_eq!((again.status, again.is_replay(), orders(db).await), (201, false, 1));
}

async fn a_handler_that_keeps_its_transaction_is_rolled_back(db: &TestDatabase) {
    let kept: Arc<Mutex<Vec<Tx>>> = Arc::default();
    let keeper = Arc::clone(&kept);
    let shop = Shop::open(db, Tune::default(), move |mut call| {
        let keeper = Arc::clone(&keeper);
        async move {
            if call.number > 1 {
                return sell(call).await;
            }
            let mut tx = call.tx().await.expect("a transaction");
            tx.order("never").await;
            keeper.lock().expect("no test panicked").push(tx);
            StatusCode::CREATED.into_response()
        }
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "transaction-kept");
    let kept = kept.lock().expect("no test panicked").pop();
    assert!(kept.is_some(), "the handler kept it");
    drop(kept);
    // It is closed by then, or very soon: until then the key is in progress, or the writer is busy.
    let again =
        crate::support::eventually(std::time::Duration::from_secs(30), "the key is free", async || {
            let told = shop.send(Ask::order("k")).await;
            (told.status == 201).then_some(told)
        })
        .await;
    assert_eq!((again.is_replay(), orders(db).await), (false, 1));
}

async fn success_after_a_failed_statement_is_not_told(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("A").await;
        if call.number == 1 {
            tx.execute("INSERT INTO nowhere VALUES (1)").await.expect_err("there is no such table");
        }
        StatusCode::CREATED.into_response()
    })
    .await;
    let told = shop.send(Ask::order("k")).await;
    match db.sql {
        // PostgreSQL has aborted the transaction; on SQLite a failed statement takes only itself back.
        Sql::Postgres(_) => told.is_problem(500, "commit-refused"),
        Sql::Sqlite(_) => assert_eq!(told.status, 201),
    }
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    assert_eq!(orders(db).await, 1);
}

async fn a_redirection_is_kept(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        call.tx().await.expect("a transaction").order("A").await;
        (StatusCode::SEE_OTHER, [(header::LOCATION, "/orders/A")]).into_response()
    })
    .await;
    let first = shop.send(Ask::order("k")).await;
    let again = shop.send(Ask::order("k")).await;
    assert!(again.is_replay());
    assert_eq!((again.first(), orders(db).await), (first, 1));
}

async fn only_one_part_of_a_handler_has_the_transaction(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        let first = call.tx().await.expect("a transaction");
        let second = call.tx().await.err().expect("one at a time").status();
        drop(first);
        let mut third = call.tx().await.expect("it was given back");
        third.order("A").await;
        (StatusCode::CREATED, second.to_string()).into_response()
    })
    .await;
    let told = shop.send(Ask::order("k")).await;
    assert_eq!((told.status, told.body.as_str()), (201, "500 Internal Server Error"));
    assert_eq!(orders(db).await, 1);
}

async fn a_dropped_savepoint_leaves_the_rest_of_the_transaction(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call: Call| async move {
        let mut tx = call.tx().await.expect("a transaction");
        tx.order("A").await;
        tx.order_and_drop("never").await;
        StatusCode::CREATED.into_response()
    })
    .await;
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    assert_eq!(db.sql.scalar("SELECT id FROM orders").await.as_deref(), Some("A"));
    assert!(shop.send(Ask::order("k")).await.is_replay());
}

/// A COMMIT would only release the savepoint, and look like success.
async fn a_savepoint_that_is_left_open_is_never_told_as_success(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { connections: 1, ..Tune::default() }, |mut call: Call| async move {
        if call.number > 1 {
            return sell(call).await;
        }
        call.tx().await.expect("a transaction").order_and_forget("never").await;
        StatusCode::CREATED.into_response()
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "commit-refused");
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
    assert_eq!(db.sql.scalar("SELECT id FROM orders").await.as_deref(), Some("A"));
}

async fn a_handler_that_ends_the_transaction_itself_is_told_500(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { connections: 1, ..Tune::default() }, |mut call: Call| async move {
        let mut tx = call.tx().await.expect("a transaction");
        match call.number {
            1 => drop(tx.execute("ROLLBACK").await.expect("it rolls back")),
            // An answer is missing: the database refuses.
            2 => drop(tx.execute("COMMIT").await.expect_err("nothing is committed")),
            _ => tx.order("A").await,
        }
        StatusCode::CREATED.into_response()
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "transaction-lost");
    let told = shop.send(Ask::order("l")).await;
    match db.sql {
        Sql::Postgres(_) => told.is_problem(500, "transaction-lost"),
        // Differs: a COMMIT that SQLite refuses leaves the transaction open, and it can be finished.
        Sql::Sqlite(_) => assert_eq!((told.status, told.is_replay()), (201, false)),
    }
    assert_eq!(shop.send(Ask::order("m")).await.status, 201);
}

async fn a_database_without_the_schema_is_told_500_and_nothing_runs(db: &TestDatabase) {
    let empty = Unmigrated::fresh(db.engine).await;
    // SQLite makes a file with its first writer.
    empty.sql.execute("CREATE TABLE something (id integer)").await;
    for fail_open in [false, true] {
        let shop =
            Shop::selling(db, Tune { url: Some(empty.url.clone()), fail_open, ..Tune::default() }).await;
        shop.send(Ask::order("k")).await.is_problem(500, "store-unusable");
        assert_eq!(shop.runs(), 0, "it is not away, and so not passed by");
    }
    empty.remove().await;
}

async fn a_stored_answer_that_nobody_can_read_is_not_run_again(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    // As a service in another language may store it: the fingerprint is the guard's own.
    let request = Request {
        scope: Scope::parse("shop").expect("a scope"),
        key: RequestKey::parse("k").expect("a key"),
        fingerprint: Fingerprint::of("POST", "/orders", [], b"A"),
        ttl: None,
    };
    let answer = Answer { status: 201, headers: b"no colon\r\n".to_vec(), body: Vec::new() };
    match db.sql.begin().await {
        crate::support::Tx::Postgres(mut tx) => {
            tx.begin_request(&request).await.expect("it begins");
            tx.finish_request(&request, &answer).await.expect("it is stored");
            tx.commit().await.expect("it commits");
        }
        crate::support::Tx::Sqlite(mut tx) => {
            tx.begin_request(&request).await.expect("it begins");
            tx.finish_request(&request, &answer).await.expect("it is stored");
            tx.commit().await.expect("it commits");
        }
    }
    shop.send(Ask::order("k")).await.is_problem(500, "answer-unreadable");
    assert_eq!(shop.runs(), 0);
}
