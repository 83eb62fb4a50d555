//! Guarantee: what is published is the effect and its key, the same on every attempt.

use aftercommit::{
    effect::Effect,
    outcome::{About, Finding, Phase},
};

use super::{
    LONG,
    server::{STORED, Server},
    table,
};
use crate::trial::{deliver, effect, served};

#[tokio::test]
async fn the_key_the_stream_and_the_effects_headers_stand_in_the_message() {
    let server = Server::start(STORED).await;
    let toml = table(&server.place) + "[downstream.shop.operations.paid]\nsubject = \"orders.paid\"\n";
    let downstream = served(&toml).downstream;
    let with_headers = Effect {
        headers: Some(r#"{"X-Shop":"eu","x-shop":"zwei ä"}"#.to_owned()),
        trace_context: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..effect("order-17/paid")
    };
    let by_operation = Effect { operation: Some("paid".to_owned()), ..effect("k2") };
    let by_target = Effect { target: Some("orders.eu".to_owned()), ..effect("k3") };
    for effect in [with_headers.clone(), with_headers, by_operation, by_target] {
        assert_eq!(deliver(&*downstream, effect, LONG).await.finding, Finding::Applied);
    }
    let seen = server.seen.lock().unwrap();
    let subjects: Vec<_> = seen.published.iter().map(|(subject, _, _)| subject.as_str()).collect();
    assert_eq!(subjects, ["orders.new", "orders.new", "orders.paid", "orders.eu"]);
    // The client's map has no order: the lines are the message, not their order.
    let lines = |n: usize| {
        let mut lines: Vec<_> = seen.published[n].1.lines().collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(
        lines(0),
        [
            "",
            "Content-Type: application/json",
            "NATS/1.0",
            "Nats-Expected-Stream: ORDERS",
            "Nats-Msg-Id: order-17/paid",
            "X-Shop: eu",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-shop: zwei ä",
        ]
    );
    assert_eq!(lines(0), lines(1), "the same on every attempt");
    assert_eq!(seen.published[0].2, br#"{"amount":1500}"#);
}

#[tokio::test]
async fn what_cannot_be_sent_as_it_is_written_is_refused_before_anybody_is_asked() {
    // Nobody listens there: whoever connected would see another outcome.
    let downstream = served(&table("127.0.0.1:1")).downstream;
    let headers = |text: &str| Effect { headers: Some(text.to_owned()), ..effect("k") };
    let to = |target: &str| Effect { target: Some(target.to_owned()), ..effect("k") };
    let unsendable = [
        headers(r#"{"Nats-Msg-Id":"mine"}"#),
        headers(r#"{"nats-rollup":"all"}"#),
        headers(r#"{"traceparent":"x"}"#),
        headers(r#"{"a b":"c"}"#),
        headers(r#"{"a":"b\r\nNats-Msg-Id: c"}"#),
        headers(r#"{"a":" b"}"#),
        to("orders.*"),
        to("orders.>"),
        to("orders..new"),
        to("orders new"),
        to("$JS.API.STREAM.DELETE.ORDERS"),
        to("_INBOX.x"),
        to(""),
        Effect { body: Some(vec![0]), ..effect("k") },
    ];
    for effect in unsendable {
        let what = format!("{:?} {:?}", effect.headers, effect.target);
        let outcome = deliver(&*downstream, effect, LONG).await;
        assert_eq!(
            (outcome.finding, outcome.phase),
            (Finding::Rejected(About::ThisAttempt), Phase::Render),
            "{what}: {}",
            outcome.reason
        );
    }
}

/// NATS-05: headers count, and the neighbours do not notice.
#[tokio::test]
async fn a_message_larger_than_the_server_takes_is_not_sent_and_its_neighbours_are() {
    let server = Server::start(STORED).await;
    let downstream = served(&table(&server.place)).downstream;
    let sized = |key: &str, bytes: usize| {
        let (payload, body) = (None, Some(vec![b'x'; bytes]));
        Effect { payload, body, ..effect(key) }
    };
    let overhead = "NATS/1.0\r\nContent-Type: application/octet-stream\r\nNats-Msg-Id: k0\r\nNats-Expected-Stream: ORDERS\r\n\r\n".len();
    let fits = 1_048_576 - overhead;
    assert_eq!(deliver(&*downstream, sized("k0", fits), LONG).await.finding, Finding::Applied);
    let outcome = deliver(&*downstream, sized("k1", fits + 1), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::Rejected(About::ThisAttempt), Phase::Render));
    assert!(outcome.reason.contains("1048577"), "{}", outcome.reason);
    assert_eq!(deliver(&*downstream, sized("k2", 10), LONG).await.finding, Finding::Applied);
    assert_eq!(server.ids(), ["k0", "k2"]);
    assert_eq!(server.seen.lock().unwrap().connections, 1);
}
