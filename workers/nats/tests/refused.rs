//! Guarantee: a refusal counts for the publish that it was meant for, and pauses only where a person must mend something.

use std::time::Duration;

use aftercommit::{
    effect::Effect,
    outcome::{About, Finding, Phase},
};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    LONG,
    server::{INFO, Reply, STORED, STREAM, Server, next},
    table,
};
use crate::trial::{attempt, deliver, effect, served};

const DENIAL: &str = "-ERR 'Permissions Violation for Publish to \"orders.new\"'\r\n";

/// Greets a connection and describes the stream; then the publishes' inboxes are the caller's.
async fn greeted(listener: &TcpListener) -> BufReader<TcpStream> {
    let mut socket = BufReader::new(listener.accept().await.unwrap().0);
    socket.write_all(INFO.as_bytes()).await.unwrap();
    let inbox = asked(&mut socket, "PUB $JS.API.STREAM.INFO.ORDERS ").await;
    let answer = format!("MSG {inbox} 0 {}\r\n{STREAM}\r\n", STREAM.len());
    socket.write_all(answer.as_bytes()).await.unwrap();
    socket
}

/// The inbox of the next line that begins so.
async fn asked(socket: &mut BufReader<TcpStream>, begin: &str) -> String {
    loop {
        let (line, _) = next(socket).await.expect("the client is there");
        if line == "PING" {
            socket.write_all(b"PONG\r\n").await.unwrap();
        }
        if let Some(rest) = line.strip_prefix(begin) {
            return rest.split(' ').next().unwrap().to_owned();
        }
    }
}

async fn listening() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    (listener, place)
}

/// The right is granted on the connection that was refused: the next attempt is stored, and not taken for the refused one.
#[tokio::test]
async fn a_refusal_of_an_earlier_attempt_is_not_taken_for_a_later_ones() {
    let (listener, place) = listening().await;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut refusing = greeted(&listener).await;
        asked(&mut refusing, "HPUB orders.new ").await;
        refusing.write_all(DENIAL.as_bytes()).await.unwrap();
        let mut granting = greeted(&listener).await;
        let inbox = asked(&mut granting, "HPUB orders.new ").await;
        let stored = r#"{"stream":"ORDERS","seq":7}"#;
        let answer = format!("MSG {inbox} 0 {}\r\n{stored}\r\n", stored.len());
        granting.write_all(answer.as_bytes()).await.unwrap();
        assert!(next(&mut granting).await.is_none_or(|(line, _)| line == "PING"));
    });
    let downstream = served(&table(&place)).downstream;
    let outcome = deliver(&*downstream, effect("a"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{outcome:?}");
    let outcome = deliver(&*downstream, effect("b"), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    drop(downstream);
    server.join_next().await.expect("the server's task").unwrap();
}

/// Two publishes and one refusal: nobody can say which it was meant for, until the other is answered.
#[tokio::test]
async fn one_refusal_of_two_publishes_leaves_both_unknown_and_pauses() {
    let (listener, place) = listening().await;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut socket = greeted(&listener).await;
        asked(&mut socket, "HPUB orders.new ").await;
        asked(&mut socket, "HPUB orders.new ").await;
        socket.write_all(DENIAL.as_bytes()).await.unwrap();
        while next(&mut socket).await.is_some() {}
    });
    let downstream = served(&table(&place)).downstream;
    let timeout = Duration::from_secs(1);
    let (a, b) = (attempt(effect("a"), timeout, Ok(())), attempt(effect("b"), timeout, Ok(())));
    let (a, b) = tokio::join!(downstream.deliver(&a), downstream.deliver(&b));
    for outcome in [a, b] {
        assert_eq!((outcome.finding, outcome.refuses_us), (Finding::Unknown, true), "{outcome:?}");
    }
    drop(downstream);
    server.join_next().await.expect("the server's task").unwrap();
}

/// The client's task panics on these: no event tells of it.
#[tokio::test]
async fn a_client_that_died_of_what_the_server_said_is_replaced_by_the_next_attempt() {
    let server = Server::start(Reply::Raw("-ERR\r\n")).await;
    let downstream = served(&table(&server.place)).downstream;
    for key in ["a", "b"] {
        assert_eq!(deliver(&*downstream, effect(key), LONG).await.finding, Finding::Unknown);
    }
    assert_eq!(server.ids(), ["a", "b"], "each had left, on a connection that worked");
    assert_eq!(server.seen.lock().unwrap().connections, 2);
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_heard_is_not_used_again() {
    let server = Server::start(Reply::Deaf).await;
    let downstream = served(&table(&server.place)).downstream;
    for key in ["a", "b"] {
        let outcome = deliver(&*downstream, effect(key), Duration::from_millis(500)).await;
        assert_eq!(outcome.finding, Finding::Unknown, "{outcome:?}");
    }
    assert_eq!(server.seen.lock().unwrap().connections, 2);
}

#[tokio::test]
async fn a_subject_that_the_effect_itself_names_pauses_nobody() {
    let other = r#"{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}"#;
    let denial = Reply::Error("Permissions Violation for Publish to \"orders.mine\"");
    let rejected = Finding::Rejected(About::ThisAttempt);
    for (reply, finding) in [(Reply::Says(other), rejected), (denial, Finding::NotApplied)] {
        let server = Server::start(reply).await;
        let named = Effect { target: Some("orders.mine".to_owned()), ..effect("k") };
        let outcome = deliver(&*served(&table(&server.place)).downstream, named, LONG).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (finding, false), "{outcome:?}");
    }
}

#[tokio::test]
async fn what_passes_by_itself_does_not_wait_for_a_person() {
    let busy = r#"{"error":{"code":500,"err_code":10003,"description":"bad request"}}"#;
    let server = Server::with(busy, STORED).await;
    let outcome = deliver(&*served(&table(&server.place)).downstream, effect("k"), LONG).await;
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, false)
    );
    let (listener, place) = listening().await;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut socket = listener.accept().await.unwrap().0;
        let text = format!("{INFO}-ERR 'Authentication Timeout'\r\n");
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut socket = BufReader::new(socket);
        while next(&mut socket).await.is_some() {}
    });
    let outcome = deliver(&*served(&table(&place)).downstream, effect("k"), LONG).await;
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, false)
    );
    server.join_next().await.expect("the server's task").unwrap();
}

/// The window was lowered after the connection was made: a repetition sees it.
#[tokio::test]
async fn a_repetition_looks_at_the_window_again() {
    let (listener, place) = listening().await;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut socket = greeted(&listener).await;
        let inbox = asked(&mut socket, "HPUB orders.new ").await;
        let stored = r#"{"stream":"ORDERS","seq":7}"#;
        let answer = format!("MSG {inbox} 0 {}\r\n{stored}\r\n", stored.len());
        socket.write_all(answer.as_bytes()).await.unwrap();
        let inbox = asked(&mut socket, "PUB $JS.API.STREAM.INFO.ORDERS ").await;
        let lowered = STREAM.replace("120000000000", "60000000000");
        let answer = format!("MSG {inbox} 0 {}\r\n{lowered}\r\n", lowered.len());
        socket.write_all(answer.as_bytes()).await.unwrap();
        while let Some((line, _)) = next(&mut socket).await {
            assert!(!line.starts_with("HPUB"), "{line}");
        }
    });
    let downstream = served(&table(&place)).downstream;
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::Applied);
    let again = aftercommit::downstream::Attempt { number: 2, ..attempt(effect("b"), LONG, Ok(())) };
    let outcome = downstream.deliver(&again).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{outcome:?}");
    drop(downstream);
    server.join_next().await.expect("the server's task").unwrap();
}
