//! Guarantee: an answer shows what it shows, and nothing more (T4, T16).

use std::time::Duration;

use aftercommit::{
    downstream::Closed,
    outcome::{About, Finding, Outcome, Phase},
};

use super::{
    LONG,
    server::{Reply, STORED, Server},
    table,
};
use crate::trial::{attempt, deliver, effect, served, served_with};

async fn said(reply: Reply) -> (Outcome, Server) {
    let server = Server::start(reply).await;
    let served = served(&table(&server.place));
    let timeout = if matches!(reply, Reply::Nothing) { Duration::from_millis(300) } else { LONG };
    (deliver(&*served.downstream, effect("k"), timeout).await, server)
}

#[tokio::test]
async fn only_an_acknowledgement_of_the_stream_is_applied() {
    let (outcome, _server) = said(STORED).await;
    assert_eq!((outcome.finding, outcome.phase, outcome.replayed), (Finding::Applied, Phase::Done, false));
    let foreign = Reply::Says(r#"{"stream":"OTHER","seq":7}"#);
    for reply in
        [foreign, Reply::Says("OK"), Reply::Says(""), Reply::Says("{}"), Reply::Says(r#"{"seq":-1}"#)]
    {
        let (outcome, _server) = said(reply).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Done), "{reply:?}");
    }
}

/// NATS-03: the acknowledgement of a duplicate is shown as such.
#[tokio::test]
async fn a_duplicate_is_marked_so_that_a_first_attempt_does_not_take_it_for_its_own() {
    let (outcome, _server) = said(Reply::Says(r#"{"stream":"ORDERS","seq":3,"duplicate":true}"#)).await;
    assert_eq!((outcome.finding, outcome.replayed), (Finding::AlreadyDone, true));
    assert!(
        outcome.reason.contains("an earlier message with this id had been stored: ORDERS 3"),
        "{}",
        outcome.reason
    );
}

#[tokio::test]
async fn each_error_of_jetstream_is_what_it_is() {
    let errors = [
        (
            r#"{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}"#,
            Finding::InProgress,
            false,
        ),
        (
            r#"{"error":{"code":409,"err_code":0,"description":"duplicate message id is in process"}}"#,
            Finding::InProgress,
            false,
        ),
        (
            r#"{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}"#,
            Finding::NotApplied,
            true,
        ),
        (
            r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}"#,
            Finding::NotApplied,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}"#,
            Finding::NotApplied,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10077,"description":"write orders.blk: input/output error"}}"#,
            Finding::Unknown,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10077,"description":"write orders.blk: disk quota exceeded"}}"#,
            Finding::Unknown,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10077,"description":"resource temporarily unavailable"}}"#,
            Finding::Unknown,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}"#,
            Finding::NotApplied,
            false,
        ),
        (
            r#"{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}"#,
            Finding::NotApplied,
            false,
        ),
        (
            r#"{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}"#,
            Finding::Rejected(About::ThisAttempt),
            false,
        ),
        (
            r#"{"error":{"code":500,"err_code":1,"description":"of a later version"}}"#,
            Finding::Unknown,
            false,
        ),
    ];
    for (payload, finding, refuses_us) in errors {
        let (outcome, _server) = said(Reply::Says(payload)).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (finding, refuses_us), "{payload}");
        assert!(outcome.status().is_some(), "{payload}");
    }
}

#[tokio::test]
async fn where_nobody_listens_nothing_was_stored() {
    let (outcome, _server) = said(Reply::NoResponders).await;
    assert_eq!((outcome.finding, outcome.status()), (Finding::NotApplied, Some(503)));
    assert!(outcome.reason.contains("orders.new"), "{}", outcome.reason);
}

#[tokio::test]
async fn what_was_handed_over_and_not_answered_is_unknown() {
    for reply in [Reply::Nothing, Reply::Closes] {
        let (outcome, server) = said(reply).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Send), "{reply:?}");
        assert_eq!(server.ids(), ["k"], "{reply:?}: it had left");
    }
}

#[tokio::test]
async fn a_publish_that_is_not_permitted_refuses_us_at_once() {
    let (outcome, _server) = said(Reply::Error("Permissions Violation for Publish to \"orders.new\"")).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true));
    // Another subject's refusal says nothing about ours.
    let server = Server::start(Reply::Error("Permissions Violation for Publish to \"orders\"")).await;
    let downstream = served(&table(&server.place)).downstream;
    let outcome = deliver(&*downstream, effect("k"), Duration::from_millis(300)).await;
    assert_eq!(outcome.finding, Finding::Unknown);
}

#[tokio::test]
async fn nothing_leaves_once_the_gate_is_closed_or_nobody_can_be_reached() {
    let server = Server::start(STORED).await;
    let downstream = served(&table(&server.place)).downstream;
    let outcome = downstream.deliver(&attempt(effect("k"), LONG, Err(Closed::Stopping))).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect));
    assert!(server.ids().is_empty());
    let nobody = served(&table("127.0.0.1:1")).downstream;
    let outcome = deliver(&*nobody, effect("k"), LONG).await;
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, false)
    );
    assert!(outcome.reason.contains("connection refused"), "{}", outcome.reason);
}

/// HTTP-07: the password reaches the server, and nobody else.
#[tokio::test]
async fn a_password_in_the_url_reaches_the_server_only() {
    let server = Server::start(Reply::Says(
        r#"{"error":{"code":500,"err_code":9,"description":"no wordsekret/9 here"}}"#,
    ))
    .await;
    let secret = format!("nats://alice:wordsekret%2F9@{}", server.place);
    let table = table(&server.place)
        .replace(&format!("url = \"nats://{}\"", server.place), "url = { env = \"SECRET\" }");
    let downstream = served_with(&table, &secret).downstream;
    let outcome = deliver(&*downstream, effect("k"), LONG).await;
    assert!(!format!("{outcome:?}").contains("wordsekret"), "{outcome:?}");
    assert!(outcome.reason.contains("***"), "the server repeated it: {}", outcome.reason);
    let connects = server.seen.lock().unwrap().connects.clone();
    assert!(connects[0].contains(r#""pass":"wordsekret/9""#), "{connects:?}");
    let gone = served_with(&table, "nats://alice:wordsekret%2F9@127.0.0.1:1").downstream;
    let outcome = deliver(&*gone, effect("k"), LONG).await;
    assert!(!outcome.reason.contains("wordsekret"), "{}", outcome.reason);
}
