//! Guarantee: a configuration that cannot keep its contract is refused where it is read, or when the stream shows it.

use aftercommit::outcome::{Finding, Phase};

use super::{
    LONG,
    server::{STORED, STREAM, Server},
    table,
};
use crate::trial::{deliver, effect, refused, served};

#[test]
fn what_a_stream_cannot_promise_is_refused_with_a_way_out() {
    let with = |contract: &str| {
        table("127.0.0.1:4222")
            .replace("contract = { dedupe = \"key\", window = \"2m\", margin = \"10s\" }", contract)
    };
    for (contract, says) in [
        ("contract = { dedupe = \"key\", window = \"2m\" }", "margin = \"10s\""),
        ("contract = { dedupe = \"key\", window = \"forever\" }", "duplicate window"),
        ("contract = { dedupe = \"key\" }", "duplicate window"),
        ("contract = { dedupe = \"none\" }\ntoken = \"abc\"", "reference"),
        ("contract = { dedupe = \"none\" }\nsubject = \"orders.*\"", ""),
        ("contract = { dedupe = \"none\" }\nservers = [\"nats://a:b@c\"]", "without credentials"),
        (
            "contract = { dedupe = \"none\" }\ntoken = { env = \"SECRET\" }\nnkey = { env = \"SECRET\" }",
            "only one of",
        ),
    ] {
        let problem = refused(&with(contract));
        assert!(problem.contains(says), "{contract}: {problem}");
        assert!(!problem.contains("sekret"), "{problem}");
    }
    let without = table("h").replace("stream = \"ORDERS\"\n", "");
    assert!(refused(&without).contains("stream = \"ORDERS\""), "{}", refused(&without));
    let bare = table("abcdef@h");
    assert!(refused(&bare).contains("token = { env"), "{}", refused(&bare));
}

/// The window is read from the stream: a stream that remembers for less gets nothing.
#[tokio::test]
async fn a_stream_that_forgets_too_soon_gets_nothing_and_both_figures_are_named() {
    let shorter = Box::leak(STREAM.replace("120000000000", "60000000000").into_boxed_str());
    let server = Server::with(shorter, STORED).await;
    let downstream = served(&table(&server.place)).downstream;
    let outcome = deliver(&*downstream, effect("k"), LONG).await;
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, true)
    );
    assert!(outcome.reason.contains("1m") && outcome.reason.contains("2m"), "{}", outcome.reason);
    assert!(server.ids().is_empty());
    let checks = downstream.check(LONG).await;
    assert!(checks.iter().any(|check| check.check == "duplicate window" && check.remedy.is_some()));
    let none = table(&server.place)
        .replace("dedupe = \"key\", window = \"2m\", margin = \"10s\"", "dedupe = \"none\"");
    assert_eq!(deliver(&*served(&none).downstream, effect("k"), LONG).await.finding, Finding::Applied);
}

#[tokio::test]
async fn a_missing_stream_and_one_that_acknowledges_nothing_refuse_us() {
    let missing = r#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
    let silent = Box::leak(STREAM.replace("\"max_age\"", "\"no_ack\":true,\"max_age\"").into_boxed_str());
    for (stream, says) in [(missing, "no stream ORDERS"), (silent, "no_ack")] {
        let server = Server::with(stream, STORED).await;
        let outcome = deliver(&*served(&table(&server.place)).downstream, effect("k"), LONG).await;
        assert!(outcome.refuses_us && outcome.reason.contains(says), "{}", outcome.reason);
    }
}

#[tokio::test]
async fn the_look_says_what_a_stream_forgets_after_a_restart() {
    let queue = Box::leak(STREAM.replace("limits", "workqueue").into_boxed_str());
    let server = Server::with(queue, STORED).await;
    let checks = served(&table(&server.place)).downstream.check(LONG).await;
    let found = checks.iter().find(|check| check.check == "retention").expect("it is looked at");
    assert!(found.found.contains("forgets"), "{}", found.found);
    assert!(server.ids().is_empty(), "nothing is published");
}
