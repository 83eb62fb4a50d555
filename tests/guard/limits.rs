//! Defends: nothing is larger or longer than what was agreed; and what was cut off was not done.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    response::IntoResponse as _,
};
use futures_util::{StreamExt as _, stream};

use super::{
    ask::Ask,
    shop::{Call, Shop, Tune, orders, sell},
};
use crate::support::{TestDatabase, on_every_database, on_every_way};

on_every_way! { a_handler_that_takes_too_long_is_stopped_and_rolled_back }

on_every_database! {
    a_body_of_the_limit_is_read_and_one_byte_more_is_told_413,
    an_answer_of_the_limit_is_kept_and_one_byte_more_is_rolled_back,
    an_answer_that_breaks_off_is_rolled_back,
    an_answer_without_an_end_is_rolled_back,
}

async fn a_body_of_the_limit_is_read_and_one_byte_more_is_told_413(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune { request_limit: 10, ..Tune::default() }).await;
    shop.send(Ask::order("k").body("12345678901")).await.is_problem(413, "body-too-large");
    assert_eq!(shop.runs(), 0);
    assert_eq!(shop.send(Ask::order("k").body("1234567890")).await.status, 201, "the key was not used");
}

async fn an_answer_of_the_limit_is_kept_and_one_byte_more_is_rolled_back(db: &TestDatabase) {
    let shop = Shop::open(db, Tune { answer_limit: 10, ..Tune::default() }, |mut call: Call| async move {
        call.tx().await.expect("a transaction").order("A").await;
        (StatusCode::CREATED, "x".repeat(if call.number == 1 { 11 } else { 10 })).into_response()
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "answer-too-large");
    assert_eq!(orders(db).await, 0);
    assert_eq!(shop.send(Ask::order("k")).await.body, "xxxxxxxxxx");
    assert!(shop.send(Ask::order("k")).await.is_replay());
    assert_eq!((shop.runs(), orders(db).await), (2, 1));
}

async fn an_answer_that_breaks_off_is_rolled_back(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), |mut call| async move {
        if call.number > 1 {
            return sell(call).await;
        }
        call.tx().await.expect("a transaction").order("never").await;
        let pieces = [Ok(Bytes::from_static(b"half ")), Err(std::io::Error::other("the source is gone"))];
        Body::from_stream(stream::iter(pieces)).into_response()
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(500, "answer-broken");
    assert_eq!(orders(db).await, 0);
    assert_eq!(shop.send(Ask::order("k")).await.status, 201);
}

/// A limit that passes at once, for handlers that never end.
const SHORT: Duration = Duration::from_millis(100);

async fn an_answer_without_an_end_is_rolled_back(db: &TestDatabase) {
    let shop =
        Shop::open(db, Tune { handler_limit: SHORT, ..Tune::default() }, |mut call: Call| async move {
            call.tx().await.expect("a transaction").order("never").await;
            let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"tick"))]);
            Body::from_stream(first.chain(stream::pending())).into_response()
        })
        .await;
    let told = shop.send(Ask::order("k")).await;
    told.is_problem(503, "too-long");
    assert_eq!(told.header("retry-after"), Some("1"));
    assert_eq!(orders(db).await, 0);
}

async fn a_handler_that_takes_too_long_is_stopped_and_rolled_back(db: &TestDatabase) {
    let tune = Tune { handler_limit: Duration::from_secs(2), connections: 1, ..Tune::default() };
    let shop = Shop::open(db, tune, |mut call| async move {
        if call.number > 1 {
            return sell(call).await;
        }
        call.tx().await.expect("a transaction").order("never").await;
        std::future::pending().await
    })
    .await;
    shop.send(Ask::order("k")).await.is_problem(503, "too-long");
    assert_eq!(orders(db).await, 0);
    let again = shop.send(Ask::order("k")).await;
    assert_eq!((again.status, again.is_replay(), orders(db).await), (201, false, 1));
}
