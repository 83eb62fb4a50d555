//! Guarantee: whatever answers at a broker's address, an attempt ends in time, nothing was sent, and no secret is shown
//! (AMQP-05, HTTP-07).

use std::{sync::Arc, time::Duration};

use aftercommit::outcome::{Finding, Phase};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
};

use super::{at, attempt, begin_within, broker::Broker, served, shows, within};

/// Half of it is for the connection.
const TIMEOUT: Duration = Duration::from_millis(1500);

async fn ends_in_time(broker: &Broker) -> aftercommit::outcome::Outcome {
    let downstream = at(broker, "timeout = \"1500ms\"");
    let outcome = tokio::time::timeout(TIMEOUT, downstream.deliver(&attempt("k", TIMEOUT))).await;
    let outcome = outcome.expect("an attempt ends before its deadline where nobody lets it in");
    shows(&outcome, Finding::NotApplied, Phase::Connect);
    outcome
}

/// And the library's thread does not wait for ever: the connection is shut.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_open_and_silent_is_left_in_time() {
    let left = Arc::new(Notify::new());
    let leaves = left.clone();
    let broker = Broker::start(move |mut connection| {
        let left = leaves.clone();
        async move {
            let mut rest = Vec::new();
            connection.stream.read_to_end(&mut rest).await.ok();
            left.notify_one();
        }
    })
    .await;
    let outcome = ends_in_time(&broker).await;
    assert!(outcome.reason.contains("did not let us in"), "{}", outcome.reason);
    assert!(!outcome.refuses_us);
    within(left.notified()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lets_us_in_and_then_says_nothing_is_left_in_time() {
    let broker = Broker::start(|mut connection| async move {
        connection.confirms_looks = false;
        connection.greet().await;
        connection.swallow().await;
    })
    .await;
    ends_in_time(&broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_broker_is_left_at_once() {
    for noise in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"AMQP\x00\x01\x00\x00",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"",
    ] {
        let broker = Broker::start(move |mut connection| async move {
            connection.stream.write_all(noise).await.ok();
            connection.stream.shutdown().await.ok();
        })
        .await;
        ends_in_time(&broker).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_refused_is_not_applied_and_shows_no_password() {
    let served = served("url = { env = \"WHOLE\" }\nexchange = \"orders\"");
    let outcome = within(served.downstream.deliver(&attempt("k", TIMEOUT))).await;
    shows(&outcome, Finding::NotApplied, Phase::Connect);
    assert!(
        outcome.reason.contains("127.0.0.1:1") && !outcome.reason.contains("sekret"),
        "{}",
        outcome.reason
    );
    let checks = served.downstream.check(TIMEOUT).await;
    assert!(!format!("{checks:?}").contains("sekret"), "{checks:?}");
}

/// What a broker says may hold what we sent it.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_the_broker_repeats_is_hidden() {
    let broker = Broker::start(|mut connection| async move {
        connection.prove().await;
        let message = connection.next().await.unwrap();
        connection.close_channel(message.channel, 403, "ACCESS_REFUSED - for sekret-password").await;
        connection.swallow().await;
    })
    .await;
    let auth = "auth = { user = \"shop\", password = { env = \"PASSWORD\" } }";
    let downstream = at(&broker, auth);
    within(downstream.deliver(&attempt("first", TIMEOUT))).await;
    let outcome = within(downstream.deliver(&attempt("k", TIMEOUT))).await;
    assert!(
        outcome.reason.contains("ACCESS_REFUSED") && !outcome.reason.contains("sekret"),
        "{}",
        outcome.reason
    );
    assert!(outcome.refuses_us);
}

/// 200 attempts at once share one connection; where it fails, they share the failure.
#[tokio::test(flavor = "multi_thread")]
async fn many_attempts_make_one_connection() {
    let broker = Broker::start(|mut connection| async move {
        connection.greet().await;
        connection.confirm_all().await;
    })
    .await;
    let downstream = at(&broker, "");
    let attempts: Vec<_> =
        (0..200).map(|n| begin_within(&downstream, format!("k{n}"), Duration::from_secs(20))).collect();
    for attempt in attempts {
        shows(&within(attempt).await.unwrap(), Finding::Applied, Phase::Done);
    }
    assert_eq!(broker.accepted(), 1);

    let silent = Broker::start(|mut connection| async move {
        connection.stream.read_to_end(&mut Vec::new()).await.ok();
    })
    .await;
    let downstream = at(&silent, "timeout = \"2s\"");
    let attempts: Vec<_> =
        (0..200).map(|n| begin_within(&downstream, format!("k{n}"), Duration::from_secs(2))).collect();
    for attempt in attempts {
        shows(&within(attempt).await.unwrap(), Finding::NotApplied, Phase::Connect);
    }
    assert!(silent.accepted() <= 2, "{} connections at a broker that does not answer", silent.accepted());
}
