//! Guarantee: nothing is published twice by the client, and nothing after its attempt's deadline.

use std::{sync::Arc, time::Duration};

use aftercommit::outcome::Finding;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    sync::Notify,
    task::JoinSet,
};

use super::{
    LONG,
    server::{INFO, Reply, STORED, STREAM, Server, next},
    table,
};
use crate::trial::{deliver, effect, served};

#[tokio::test]
async fn a_lost_connection_is_never_mended_and_republishes_nothing() {
    let server = Server::start(Reply::Closes).await;
    let downstream = served(&table(&server.place)).downstream;
    for key in ["a", "b", "c"] {
        assert_eq!(deliver(&*downstream, effect(key), LONG).await.finding, Finding::Unknown);
    }
    assert_eq!(server.ids(), ["a", "b", "c"]);
    assert_eq!(server.seen.lock().unwrap().connections, 3, "one for each attempt, and none by itself");
}

#[tokio::test]
async fn a_thousand_attempts_at_once_share_a_connection() {
    let server = Server::start(STORED).await;
    let served = served(&table(&server.place));
    let mut attempts = JoinSet::new();
    for n in 0..1000 {
        let downstream = Arc::clone(&served.downstream);
        attempts.spawn(async move { deliver(&*downstream, effect(&format!("k-{n}")), LONG).await.finding });
    }
    assert!(attempts.join_all().await.iter().all(|finding| *finding == Finding::Applied));
    let seen = server.seen.lock().unwrap();
    assert_eq!((seen.connections, seen.published.len()), (1, 1000));
}

/// A dropped attempt (the end of a lease) harms no other.
#[tokio::test]
async fn a_dropped_attempt_leaves_the_connection_to_the_others() {
    let server = Server::start(STORED).await;
    let downstream = served(&table(&server.place)).downstream;
    deliver(&*downstream, effect("first"), LONG).await;
    let attempt = crate::trial::attempt(effect("dropped"), LONG, Ok(()));
    drop(futures_util::future::poll_immediate(downstream.deliver(&attempt)).await);
    assert_eq!(deliver(&*downstream, effect("next"), LONG).await.finding, Finding::Applied);
    assert_eq!(server.seen.lock().unwrap().connections, 1);
}

/// A server that stops reading: what is still in our hands at the deadline never leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_socket_did_not_take_by_the_deadline_never_leaves() {
    const BODY: usize = 1_000_000;
    const ATTEMPTS: usize = 40;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let go_on = Arc::new(Notify::new());
    let reads_again = Arc::clone(&go_on);
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut socket = BufReader::new(listener.accept().await.unwrap().0);
        socket.write_all(INFO.as_bytes()).await.unwrap();
        while let Some((line, _)) = next(&mut socket).await {
            if line == "PING" {
                socket.write_all(b"PONG\r\n").await.unwrap();
            }
            if let Some(rest) = line.strip_prefix("PUB $JS.API.STREAM.INFO.ORDERS ") {
                let inbox = rest.split(' ').next().unwrap();
                let answer = format!("MSG {inbox} 0 {}\r\n{STREAM}\r\n", STREAM.len());
                socket.write_all(answer.as_bytes()).await.unwrap();
                break;
            }
        }
        reads_again.notified().await;
        let mut rest = Vec::new();
        let _reset = socket.read_to_end(&mut rest).await;
        rest.len()
    });
    let served = served(&table(&place));
    let mut attempts = JoinSet::new();
    for n in 0..ATTEMPTS {
        let downstream = Arc::clone(&served.downstream);
        attempts.spawn(async move {
            let mut effect = effect(&format!("k-{n}"));
            (effect.payload, effect.body) = (None, Some(vec![b'x'; BODY]));
            deliver(&*downstream, effect, Duration::from_millis(1500)).await.finding
        });
    }
    let findings = attempts.join_all().await;
    assert!(findings.iter().all(|finding| *finding == Finding::Unknown), "{findings:?}");
    go_on.notify_one();
    let read = server.join_next().await.unwrap().unwrap();
    assert!(read < ATTEMPTS * BODY, "all {read} bytes left, though nobody read them by the deadline");
}
