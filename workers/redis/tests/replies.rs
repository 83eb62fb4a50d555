//! Guarantee: a reply shows what it shows, and nothing more (T4); nothing is sent a second time by the client.

use std::time::Duration;

use aftercommit::outcome::{About, Finding, Outcome, Phase};

use super::{
    LONG,
    server::{ADDED, CLOSES, NOTHING, Reply, Server},
    table,
};
use crate::trial::{deliver, effect, served, served_with};

async fn said(replies: &[Reply]) -> (Outcome, Server) {
    let server = Server::start(replies).await;
    let timeout = if replies.contains(&NOTHING) { Duration::from_millis(300) } else { LONG };
    let outcome = deliver(&*served(&table(&server.place)).downstream, effect("k"), timeout).await;
    (outcome, server)
}

#[tokio::test]
async fn only_the_id_of_an_entry_is_applied() {
    let (outcome, _server) = said(&[ADDED]).await;
    assert_eq!((outcome.finding, outcome.replayed), (Finding::Applied, false));
    let body = outcome.response.expect("the id").body;
    assert_eq!(String::from_utf8(body).unwrap(), r#"{"stream":"orders","id":"5-1","duplicate":false}"#);
    for reply in [
        "+OK\r\n",
        "$3\r\n5-1\r\n",
        "*0\r\n",
        "*2\r\n$1\r\nx\r\n:0\r\n",
        "*2\r\n$3\r\n5-1\r\n:7\r\n",
        "_\r\n",
    ] {
        let (outcome, _server) = said(&[reply]).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Done), "{reply:?}");
    }
}

#[tokio::test]
async fn a_repetition_is_marked_so_that_a_first_attempt_does_not_take_it_for_its_own() {
    let (outcome, _server) = said(&["*2\r\n$3\r\n4-9\r\n:1\r\n"]).await;
    assert_eq!((outcome.finding, outcome.replayed), (Finding::AlreadyDone, true));
    assert!(outcome.reason.contains("4-9"), "{}", outcome.reason);
}

#[tokio::test]
async fn each_error_is_what_it_is() {
    let this = Finding::Rejected(About::ThisAttempt);
    let errors = [
        ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", Finding::NotApplied, false),
        ("-READONLY You can't write against a read only replica.\r\n", Finding::NotApplied, false),
        ("-LOADING Redis is loading the dataset in memory\r\n", Finding::NotApplied, false),
        ("-BUSY Redis is busy running a script.\r\n", Finding::NotApplied, false),
        ("-CLUSTERDOWN The cluster is down\r\n", Finding::NotApplied, false),
        ("-MASTERDOWN Link with MASTER is down\r\n", Finding::NotApplied, false),
        ("-MOVED 3999 127.0.0.1:6381\r\n", Finding::NotApplied, false),
        ("-ASK 3999 127.0.0.1:6381\r\n", Finding::NotApplied, false),
        ("-MISCONF Redis is configured to save RDB snapshots\r\n", Finding::NotApplied, false),
        ("-NOREPLICAS Not enough good replicas to write.\r\n", Finding::NotApplied, false),
        ("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", this, false),
        ("-NOAUTH Authentication required.\r\n", Finding::NotApplied, true),
        ("-NOPERM this user has no permissions to run the 'set' command\r\n", Finding::NotApplied, true),
        (
            "-ERR The user executing the script can't run this command or subcommand\r\n",
            Finding::NotApplied,
            true,
        ),
        ("-ERR ACL failure in script: User x has no permissions\r\n", Finding::NotApplied, true),
        ("-ERR syntax error\r\n", Finding::NotApplied, true),
        ("-ERR upstream connection error or disconnect\r\n", Finding::Unknown, false),
        ("-STRANGE of a later version\r\n", Finding::Unknown, false),
    ];
    for (reply, finding, refuses_us) in errors {
        let (outcome, server) = said(&[reply]).await;
        assert_eq!(
            (outcome.finding, outcome.refuses_us),
            (finding, refuses_us),
            "{reply}: {}",
            outcome.reason
        );
        assert_eq!(server.asked().len(), 1, "{reply}: it was not repeated, nor sent elsewhere");
    }
}

#[tokio::test]
async fn a_reply_that_does_not_come_is_unknown_and_nothing_is_repeated() {
    for reply in [CLOSES, NOTHING] {
        let (outcome, server) = said(&[reply]).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Send), "{reply:?}");
        assert_eq!(server.asked().len(), 1, "{reply:?}");
    }
}

/// Nothing that was queued leaves after the deadline: the connection ends at once, not with the next attempt.
#[tokio::test]
async fn a_connection_that_was_given_up_is_closed_without_another_attempt() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let downstream = served(&table(&listener.local_addr().unwrap().to_string())).downstream;
    let mut server = tokio::task::JoinSet::new();
    server.spawn(super::server::silent_until_closed(listener));
    let outcome = deliver(&*downstream, effect("k"), Duration::from_millis(500)).await;
    assert_eq!(outcome.finding, Finding::Unknown);
    let ended = tokio::time::timeout(LONG, server.join_next()).await.expect("the connection is closed");
    ended.expect("the server's task").unwrap();
    drop(downstream);
}

/// What the server does not have did nothing: it gets the whole script within the same attempt.
#[tokio::test]
async fn a_server_that_forgot_the_script_gets_it_whole() {
    let server = Server::start(&[ADDED, "-NOSCRIPT No matching script.\r\n", ADDED]).await;
    let downstream = served(&table(&server.place)).downstream;
    for key in ["a", "b"] {
        assert_eq!(deliver(&*downstream, effect(key), LONG).await.finding, Finding::Applied);
    }
    let verbs: Vec<_> = server.asked().into_iter().map(|words| words[0].clone()).collect();
    assert_eq!(verbs, ["EVAL", "EVALSHA", "EVAL"]);
}

#[tokio::test]
async fn whoever_cannot_be_reached_got_nothing() {
    let outcome = deliver(&*served(&table("127.0.0.1:1")).downstream, effect("k"), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect));
    assert!(outcome.reason.contains("connection refused"), "{}", outcome.reason);
}

/// HTTP-07: the password stands in no reason, whatever the server says.
#[tokio::test]
async fn a_password_in_the_url_stands_in_no_reason() {
    let server = Server::start(&["-ERR wordsekret9 is no user\r\n"]).await;
    let toml = table("X").replace("url = \"redis://X\"", "url = { env = \"SECRET\" }");
    for place in [server.place.as_str(), "127.0.0.1:1"] {
        let downstream = served_with(&toml, &format!("redis://alice:wordsekret9@{place}")).downstream;
        let outcome = deliver(&*downstream, effect("k"), LONG).await;
        assert!(!format!("{outcome:?}").contains("wordsekret9"), "{outcome:?}");
    }
}
