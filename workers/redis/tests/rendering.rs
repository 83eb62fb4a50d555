//! Guarantee: an entry has the fields that consumers rely on, and its marker stands in its slot.

use aftercommit::{
    effect::Effect,
    outcome::{About, Finding, Phase},
};

use super::{
    LONG,
    server::{ADDED, Server},
    table,
};
use crate::{
    redis::entry::{check_stream, slot_tag},
    trial::{deliver, effect, served},
};

#[tokio::test]
async fn the_fields_stand_in_their_order_and_the_marker_beside_the_stream() {
    let server = Server::start(&[ADDED]).await;
    let toml =
        table(&server.place) + "maxlen = 1000\n[downstream.shop.operations.paid]\nstream = \"{eu}paid\"\n";
    let downstream = served(&toml).downstream;
    let whole = Effect {
        operation: Some("paid".to_owned()),
        headers: Some(r#"{"b":"1","a":"ä"}"#.to_owned()),
        trace_context: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..effect("order-17")
    };
    let bare = Effect { payload: None, ..effect("k2") };
    for effect in [whole, bare] {
        assert_eq!(deliver(&*downstream, effect, LONG).await.finding, Finding::Applied);
    }
    let asked = server.asked();
    assert_eq!(
        asked[0][2..],
        [
            "2",
            "{eu}paid",
            "aftercommit:{eu}:8:{eu}paid:order-17",
            "86400000",
            "1000",
            "key",
            "order-17",
            "type",
            "paid",
            "content_type",
            "application/json",
            "headers",
            r#"{"b":"1","a":"ä"}"#,
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "body",
            r#"{"amount":1500}"#,
        ]
    );
    assert_eq!(
        asked[1][2..],
        [
            "2",
            "orders",
            "aftercommit:{orders}:6:orders:k2",
            "86400000",
            "1000",
            "key",
            "k2",
            "content_type",
            "application/octet-stream",
            "body",
            "",
        ]
    );
}

#[tokio::test]
async fn without_a_promise_it_is_a_plain_entry_and_with_idmp_the_stream_remembers() {
    let server = Server::start(&["$3\r\n5-1\r\n"]).await;
    let plain = table(&server.place)
        .replace("dedupe = \"key\", window = \"24h\"", "dedupe = \"none\", on_unknown = \"retry\"");
    assert_eq!(deliver(&*served(&plain).downstream, effect("k"), LONG).await.finding, Finding::Applied);
    assert_eq!(server.asked()[0][..3], ["XADD", "orders", "*"]);
    let info = "%2\r\n$13\r\nidmp-duration\r\n:86400\r\n$12\r\nidmp-maxsize\r\n:10000\r\n";
    let server = Server::start(&[info, "$3\r\n5-1\r\n"]).await;
    let idmp = table(&server.place) + "idempotency = \"idmp\"\nmaxlen = 9\n";
    let downstream = served(&idmp).downstream;
    for key in ["a", "b"] {
        assert_eq!(deliver(&*downstream, effect(key), LONG).await.finding, Finding::Applied);
    }
    let asked = server.asked();
    assert_eq!(asked[0], ["XINFO", "STREAM", "orders"], "asked once for a connection");
    assert_eq!(asked[1][..9], ["XADD", "orders", "IDMP", "aftercommit", "a", "MAXLEN", "~", "9", "*"]);
    assert_eq!(asked[2][..5], ["XADD", "orders", "IDMP", "aftercommit", "b"]);
}

#[tokio::test]
async fn a_stream_that_forgets_too_soon_gets_nothing_and_both_figures_are_named() {
    let short = "%2\r\n$13\r\nidmp-duration\r\n:100\r\n$12\r\nidmp-maxsize\r\n:100\r\n";
    for info in [short, "-ERR no such key\r\n"] {
        let server = Server::start(&[info]).await;
        let downstream = served(&(table(&server.place) + "idempotency = \"idmp\"\n")).downstream;
        let outcome = deliver(&*downstream, effect("k"), LONG).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true));
        assert!(outcome.reason.contains("1d") && outcome.reason.contains("XCFGSET"), "{}", outcome.reason);
        assert_eq!(server.asked().len(), 1);
    }
}

/// One effect's stream of its own says nothing of the others.
#[tokio::test]
async fn a_stream_that_the_effect_itself_names_pauses_nobody() {
    let missing = Server::start(&["-ERR no such key\r\n"]).await;
    let forbidden = Server::start(&["-NOPERM No permissions to access a key\r\n"]).await;
    let idmp = table(&missing.place) + "idempotency = \"idmp\"\n";
    for toml in [idmp, table(&forbidden.place)] {
        let named = Effect { target: Some("mine".to_owned()), ..effect("k") };
        let downstream = served(&toml).downstream;
        let outcome = deliver(&*downstream, named, LONG).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, false), "{outcome:?}");
        let outcome = deliver(&*downstream, effect("k"), LONG).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_stream_that_remembers_fewer_keys_than_are_sent_at_once_gets_nothing() {
    let server =
        Server::start(&["%2\r\n$13\r\nidmp-duration\r\n:86400\r\n$12\r\nidmp-maxsize\r\n:1\r\n"]).await;
    let downstream = served(&(table(&server.place) + "idempotency = \"idmp\"\n")).downstream;
    let outcome = deliver(&*downstream, effect("k"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{outcome:?}");
    assert!(outcome.reason.contains("IDMP-MAXSIZE"), "{}", outcome.reason);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn two_streams_and_keys_never_share_a_marker() {
    let server = Server::start(&[ADDED]).await;
    let downstream = served(&table(&server.place)).downstream;
    for (stream, key) in [("{o}", "eu:17"), ("{o}:eu", "17")] {
        let effect = Effect { target: Some(stream.to_owned()), ..effect(key) };
        assert_eq!(deliver(&*downstream, effect, LONG).await.finding, Finding::Applied);
    }
    let asked = server.asked();
    assert_ne!(asked[0][4], asked[1][4]);
}

#[tokio::test]
async fn what_cannot_be_sent_as_it_is_written_is_refused_before_anybody_is_asked() {
    let downstream = served(&table("127.0.0.1:1")).downstream;
    let headers = |text: &str| Effect { headers: Some(text.to_owned()), ..effect("k") };
    let to = |target: &str| Effect { target: Some(target.to_owned()), ..effect("k") };
    for effect in [headers(r#"{"a":"b","a":"c"}"#), headers("[]"), to(""), to("a}b"), to("a\u{0}b")] {
        let outcome = deliver(&*downstream, effect, LONG).await;
        assert_eq!(
            (outcome.finding, outcome.phase),
            (Finding::Rejected(About::ThisAttempt), Phase::Render),
            "{}",
            outcome.reason
        );
    }
}

#[test]
fn a_marker_has_the_slot_of_its_stream() {
    for (stream, tag) in [("orders", "orders"), ("{eu}orders", "eu"), ("a{b}c{d}", "b"), ("a{b", "a{b")] {
        assert_eq!(slot_tag(stream), tag);
        assert_eq!(check_stream(stream), Ok(()), "{stream}");
        let marker = format!("p:{{{tag}}}:{stream}:k");
        assert_eq!(slot_tag(&marker), tag, "{marker}");
    }
    for stream in ["a}b", "{}a", "a{}b}"] {
        assert!(check_stream(stream).is_err(), "{stream}");
    }
}
