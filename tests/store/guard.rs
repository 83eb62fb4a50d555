//! Guarantee: of one request, whoever sends it how often, one transaction commits, and every repeat gets that one's answer, byte
//! for byte (IDEMP-IN-01, -03, -09, -15, -17, -21). There is no state between "not begun" and "answered".

mod begin;
mod expiry;
mod keys;
mod open;
mod races;
mod settings;
mod statements;

use std::time::Duration;

use aftercommit::guard::{Answer, Begun, GuardError, Request};

use crate::support::{TestDatabase, Tx, answered, eventually, on_every_database, request};

on_every_database! {
    a_repeat_gets_the_same_answer_byte_for_byte,
    another_request_under_the_key_is_told_so,
    a_rollback_frees_the_key,
    a_connection_that_breaks_frees_the_key,
    a_commit_without_the_answer_is_refused,
    an_answer_is_stored_by_the_transaction_that_began_once,
    an_answer_in_a_savepoint_goes_with_it,
    a_refusal_is_remembered_without_its_business_rows,
    scopes_are_separate,
    keys_are_compared_byte_by_byte,
}

/// Begins a request that nobody has begun.
pub(super) async fn begun(db: &TestDatabase, request: &Request) -> Tx {
    let mut tx = db.sql.begin().await;
    let begun = tx.begin_request(request).await.expect("it begins");
    assert_eq!(begun, Begun::New, "{request:?}");
    tx
}

/// Answers a request that nobody has begun.
pub(super) async fn answer(db: &TestDatabase, request: &Request, answer: &Answer) {
    let mut tx = begun(db, request).await;
    tx.finish_request(request, answer).await.expect("it is finished");
    tx.commit().await;
}

/// Waits until nobody holds the request: a server says that a COMMIT was refused before it has ended the transaction, and
/// notices late that a connection broke.
async fn freed(db: &TestDatabase, request: &Request) {
    let free = async || (told(db, request).await == Begun::New).then_some(());
    eventually(Duration::from_secs(20), "the key is free", free).await;
}

/// What a request is told, whose transaction then does nothing.
pub(super) async fn told(db: &TestDatabase, request: &Request) -> Begun {
    let mut tx = db.sql.begin().await;
    let told = tx.begin_request(request).await.expect("it is told");
    tx.rollback().await;
    told
}

pub(super) async fn orders(db: &TestDatabase) -> i64 {
    db.sql.number("SELECT count(*) FROM orders").await
}

pub(super) async fn shop(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE orders (id text NOT NULL)").await;
}

async fn a_repeat_gets_the_same_answer_byte_for_byte(db: &TestDatabase) {
    let every: Vec<u8> = (0..=255).collect();
    let headers: [(&str, &[u8]); 6] = [
        ("content-type", b"text/csv"),
        ("location", b"/orders/17"),
        ("content-disposition", b"attachment; filename=\"a,b\xe9.txt\""),
        ("link", b"<a>; rel=next, <b>; rel=last"),
        ("link", b"<c>; rel=prev"),
        ("set-cookie", b"s=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
    ];
    let answers = [
        Answer { status: 201, headers: Answer::lines(headers), body: every.repeat(3) },
        Answer { status: 303, headers: Vec::new(), body: Vec::new() },
        Answer { status: 200, headers: Answer::lines([("a", b"".as_slice())]), body: vec![0] },
        Answer { status: 599, headers: Vec::new(), body: "Zoë\u{2028}".as_bytes().to_vec() },
    ];
    for (at, stored) in answers.iter().enumerate() {
        let request = request("shop", &format!("k{at}"), "1");
        answer(db, &request, stored).await;
        for _ in 0..2 {
            assert_eq!(told(db, &request).await, Begun::Replay(stored.clone()), "answer {at}");
        }
    }
    let Begun::Replay(replayed) = told(db, &request("shop", "k0", "1")).await else { panic!("a replay") };
    assert_eq!(replayed.header_lines().expect("ours"), headers, "lines, order, bytes and repetition");
}

/// IDEMP-IN-11, -13: after the commit. While the first is open: see `open`.
async fn another_request_under_the_key_is_told_so(db: &TestDatabase) {
    answer(db, &request("shop", "k", "1"), &answered(201, "one")).await;
    assert_eq!(told(db, &request("shop", "k", "2")).await, Begun::Mismatch);
    assert_eq!(told(db, &request("shop", "k", "1")).await, Begun::Replay(answered(201, "one")));
}

async fn a_rollback_frees_the_key(db: &TestDatabase) {
    shop(db).await;
    let request = request("shop", "k", "1");
    for finished in [false, true] {
        let mut tx = begun(db, &request).await;
        tx.execute("INSERT INTO orders VALUES ('17')").await;
        if finished {
            tx.finish_request(&request, &answered(201, "lost")).await.expect("it is finished");
        }
        tx.rollback().await;
        assert_eq!(orders(db).await, 0);
    }
    // Not even its fingerprint is remembered.
    answer(db, &crate::support::request("shop", "k", "another"), &answered(201, "")).await;
}

/// IDEMP-IN-03: as when the process is killed.
async fn a_connection_that_breaks_frees_the_key(db: &TestDatabase) {
    use crate::support::Sql;
    shop(db).await;
    let request = request("shop", "k", "1");
    for finished in [false, true] {
        let begin = async |connection: &mut dyn Guarding| connection.act(&request, finished).await;
        match &db.sql {
            Sql::Postgres(pool) => {
                let mut connection = pool.acquire().await.expect("a connection").detach();
                begin(&mut connection).await;
                drop(connection);
            }
            Sql::Sqlite(pool) => {
                let mut connection = pool.acquire().await.expect("a connection").detach();
                begin(&mut connection).await;
                drop(connection);
            }
        }
        freed(db, &request).await;
        assert_eq!(orders(db).await, 0);
    }
}

/// A connection of its own, in the middle of a request.
#[async_trait::async_trait]
trait Guarding: Send {
    async fn act(&mut self, request: &Request, finished: bool);
}

macro_rules! guarding {
    ($connection:ty, $begin:literal) => {
        #[async_trait::async_trait]
        impl Guarding for $connection {
            async fn act(&mut self, request: &Request, finished: bool) {
                use aftercommit::guard::Requests as _;
                sqlx::raw_sql($begin).execute(&mut *self).await.expect("it begins");
                assert_eq!(self.begin_request(request).await.expect("it begins"), Begun::New);
                sqlx::raw_sql("INSERT INTO orders VALUES ('17')")
                    .execute(&mut *self)
                    .await
                    .expect("it writes");
                if finished {
                    self.finish_request(request, &answered(201, "lost")).await.expect("it is finished");
                }
            }
        }
    };
}
guarding!(sqlx::PgConnection, "BEGIN");
guarding!(sqlx::SqliteConnection, "BEGIN IMMEDIATE");

async fn a_commit_without_the_answer_is_refused(db: &TestDatabase) {
    shop(db).await;
    let request = request("shop", "k", "1");
    let mut tx = begun(db, &request).await;
    tx.execute("INSERT INTO orders VALUES ('17')").await;
    let error = tx.try_commit().await.expect_err("it could not be repeated");
    let said = error.as_database_error().expect("the database says it");
    match db.engine {
        crate::support::Engine::Postgres => {
            assert_eq!(said.code().as_deref(), Some("AC001"), "{said}");
            assert!(said.message().contains("not finished"), "{said}");
        }
        crate::support::Engine::Sqlite => assert!(said.message().contains("FOREIGN KEY"), "{said}"),
    }
    assert_eq!(orders(db).await, 0, "nothing is committed");
    freed(db, &request).await;
    answer(db, &request, &answered(201, "then")).await;
}

async fn an_answer_is_stored_by_the_transaction_that_began_once(db: &TestDatabase) {
    let (one, other) = (request("shop", "k", "1"), request("shop", "other", "1"));
    let refused = |told: Result<(), GuardError>, case: &str| {
        assert!(matches!(told, Err(GuardError::NotBegun)), "{case}: {told:?}");
    };
    let mut tx = db.sql.begin().await;
    refused(tx.finish_request(&one, &answered(201, "")).await, "nothing was begun");
    tx.rollback().await;
    let mut tx = begun(db, &one).await;
    refused(tx.finish_request(&other, &answered(201, "")).await, "another was begun");
    tx.rollback().await;
    let mut tx = begun(db, &one).await;
    tx.finish_request(&one, &answered(201, "first")).await.expect("it is finished");
    refused(tx.finish_request(&one, &answered(200, "second")).await, "it is finished already");
    tx.rollback().await;
    answer(db, &one, &answered(201, "first")).await;
    let mut tx = db.sql.begin().await;
    refused(tx.finish_request(&one, &answered(200, "later")).await, "another transaction's");
    tx.rollback().await;
    let mut tx = db.sql.begin().await;
    assert!(matches!(tx.begin_request(&one).await, Ok(Begun::Replay(_))));
    refused(tx.finish_request(&one, &answered(200, "later")).await, "it was told to replay");
    tx.rollback().await;
    assert_eq!(told(db, &one).await, Begun::Replay(answered(201, "first")));
}

async fn an_answer_in_a_savepoint_goes_with_it(db: &TestDatabase) {
    let request = request("shop", "k", "1");
    let half = async |tx: &mut Tx| {
        tx.execute("SAVEPOINT s").await;
        tx.finish_request(&request, &answered(201, "undone")).await.expect("it is finished");
        tx.execute("ROLLBACK TO s").await;
    };
    let mut tx = begun(db, &request).await;
    half(&mut tx).await;
    tx.try_commit().await.expect_err("there is no answer");
    freed(db, &request).await;
    let mut tx = begun(db, &request).await;
    half(&mut tx).await;
    tx.finish_request(&request, &answered(201, "done")).await.expect("it is not finished yet");
    tx.commit().await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(201, "done")));
}

async fn a_refusal_is_remembered_without_its_business_rows(db: &TestDatabase) {
    shop(db).await;
    let request = request("shop", "k", "1");
    let mut tx = begun(db, &request).await;
    tx.execute("SAVEPOINT business").await;
    tx.execute("INSERT INTO orders VALUES ('17')").await;
    tx.execute("ROLLBACK TO business").await;
    tx.finish_request(&request, &answered(402, "declined")).await.expect("it is finished");
    tx.commit().await;
    assert_eq!(told(db, &request).await, Begun::Replay(answered(402, "declined")));
    assert_eq!(orders(db).await, 0);
}

/// IDEMP-IN-09.
async fn scopes_are_separate(db: &TestDatabase) {
    for scope in ["tenant-a", "tenant-b", "tenant", "-a", "Zoë \u{1f600}"] {
        answer(db, &request(scope, "1", "{}"), &answered(200, scope)).await;
    }
    for scope in ["tenant-a", "tenant-b", "tenant", "-a", "Zoë \u{1f600}"] {
        assert_eq!(told(db, &request(scope, "1", "{}")).await, Begun::Replay(answered(200, scope)));
    }
    let longest = "ä".repeat(255);
    answer(db, &request(&longest, "1", "{}"), &answered(200, "")).await;
}

/// UNIQUE-07. What is no key never gets here: see `statements`.
async fn keys_are_compared_byte_by_byte(db: &TestDatabase) {
    let longest = "x".repeat(255);
    let keys = ["k1", "K1", "k 1", "k  1", "'", "%", "_", "k1'); DROP TABLE orders; --", &longest];
    for key in keys {
        answer(db, &request("shop", key, "{}"), &answered(200, key)).await;
    }
    for key in keys {
        assert_eq!(told(db, &request("shop", key, "{}")).await, Begun::Replay(answered(200, key)), "{key:?}");
    }
}
