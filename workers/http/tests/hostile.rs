//! How far a request got is never guessed: an attempt that may have reached the downstream is never *not applied*, and
//! none outlives its deadline (cases HTTP-01, HTTP-03, HTTP-05, HTTP-07).

use std::time::Duration;

use aftercommit::{
    downstream::Closed,
    outcome::{About, Finding, Phase},
};

use super::{
    attempt, deliver, effect, served,
    server::{Connection, Server, answer},
};

const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(20);

fn shop(server: &Server) -> aftercommit::downstream::Served {
    served(&format!("base_url = \"{}\"", server.url))
}

#[tokio::test]
async fn a_refused_connection_is_not_applied() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    drop(listener);
    let outcome = deliver(&served(&format!("base_url = \"http://{place}\"")), effect(), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{}", outcome.reason);
    assert!(outcome.reason.contains(&place.to_string()), "{}", outcome.reason);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_applied() {
    let outcome = deliver(&served("base_url = \"http://no.such.host.invalid\""), effect(), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{}", outcome.reason);
}

#[tokio::test]
async fn a_failed_tls_handshake_is_not_applied() {
    let server = Server::start(|mut connection| async move {
        connection.write(b"this is not TLS\r\n\r\n").await;
    })
    .await;
    let tls = served(&format!("base_url = \"https://{}\"", server.place));
    let outcome = deliver(&tls, effect(), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{}", outcome.reason);
}

#[tokio::test]
async fn a_reset_is_unknown_whether_or_not_the_request_was_read() {
    let unread = Server::start(|connection| async move {
        // The first byte is seen, and left where it is.
        connection.stream.peek(&mut [0]).await.unwrap();
        connection.reset();
    })
    .await;
    let read = Server::start(|mut connection: Connection| async move {
        connection.read().await;
        connection.reset();
    })
    .await;
    for (server, what) in [(&read, "read"), (&unread, "unread")] {
        let outcome = deliver(&shop(server), effect(), LONG).await;
        let expected = (Finding::Unknown, Phase::Send);
        assert_eq!((outcome.finding, outcome.phase), expected, "{what}: {}", outcome.reason);
    }
    assert_eq!(read.seen.requests().len(), 1, "a reset request must not be sent again");
}

#[tokio::test]
async fn a_connection_reset_before_the_request_was_begun_is_not_applied_or_unknown() {
    let server = Server::start(|connection| async move { connection.reset() }).await;
    let shop = shop(&server);
    for _ in 0..20 {
        let outcome = deliver(&shop, effect(), LONG).await;
        let seen = (outcome.finding, outcome.phase);
        let honest = [(Finding::NotApplied, Phase::Connect), (Finding::Unknown, Phase::Send)];
        assert!(honest.contains(&seen), "{seen:?}: {}", outcome.reason);
    }
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_unknown_at_the_deadline() {
    let pause = Duration::from_millis(20);
    let trickled_head = Server::start(move |mut connection| async move {
        connection.read().await;
        connection.write(b"HTTP/1.1 200 OK\r\nX: ").await;
        connection.trickle(b"a", pause).await;
    })
    .await;
    let trickled_body = Server::start(move |mut connection| async move {
        connection.read().await;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await;
        connection.trickle(b"a", pause).await;
    })
    .await;
    let endless_chunks = Server::start(move |mut connection| async move {
        connection.read().await;
        connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        connection.trickle(b"1\r\na\r\n", pause).await;
    })
    .await;
    let endless_continue = Server::start(move |mut connection| async move {
        connection.read().await;
        connection.trickle(b"HTTP/1.1 100 Continue\r\n\r\n", pause).await;
    })
    .await;
    let silent = Server::start(|mut connection| async move {
        connection.read().await;
        std::future::pending::<()>().await;
    })
    .await;
    for (server, phase) in [
        (&trickled_head, Phase::Send),
        (&trickled_body, Phase::Answer),
        (&endless_chunks, Phase::Answer),
        (&endless_continue, Phase::Send),
        (&silent, Phase::Send),
    ] {
        let outcome = deliver(&shop(server), effect(), SHORT).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, phase), "{}", outcome.reason);
        assert_eq!(server.seen.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_server_that_never_reads_holds_no_slot_beyond_the_deadline() {
    let server = Server::start(|connection| async move {
        let _open = connection;
        std::future::pending::<()>().await;
    })
    .await;
    let mut big = effect();
    big.payload = None;
    big.body = Some(vec![b'x'; 5_000_000]);
    let outcome = deliver(&shop(&server), big, SHORT).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Send), "{}", outcome.reason);
}

#[tokio::test]
async fn an_empty_body_is_no_less_a_request() {
    let server = Server::start(|mut connection| async move {
        connection.read().await;
        connection.reset();
    })
    .await;
    let mut bare = effect();
    bare.payload = None;
    let outcome = deliver(&shop(&server), bare, LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Send), "{}", outcome.reason);
    assert!(server.seen.requests()[0].contains("content-length: 0"), "{:?}", server.seen.requests());
}

#[tokio::test]
async fn a_kept_connection_that_closes_under_a_request_hides_no_second_one() {
    // Answers one request per connection, keeps it open for a moment, then closes it: some requests meet the close.
    for applies in [true, false] {
        let server = Server::start(move |mut connection| async move {
            if connection.read().await && connection.write(&answer(200, "", "{}")).await {
                tokio::time::sleep(Duration::from_millis(3)).await;
                if applies {
                    connection.read().await;
                }
            }
        })
        .await;
        let shop = shop(&server);
        for round in 0..40 {
            let before = server.seen.requests().len();
            let outcome = deliver(&shop, effect(), LONG).await;
            let seen = server.seen.requests().len() - before;
            assert!(seen <= 1, "attempt {round} was sent {seen} times: {}", outcome.reason);
            let allowed = [Finding::Applied, Finding::Unknown, Finding::NotApplied];
            assert!(allowed.contains(&outcome.finding), "{:?}: {}", outcome.finding, outcome.reason);
            assert!(
                outcome.finding != Finding::NotApplied || seen == 0,
                "sent all the same: {}",
                outcome.reason
            );
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let other = Server::answering(answer(200, "", "{}")).await;
    for status in [301, 302, 303, 307, 308] {
        for location in
            [format!("{}/x", other.url), "/same".to_owned(), "file:///etc/passwd".to_owned(), String::new()]
        {
            let header =
                if location.is_empty() { String::new() } else { format!("Location: {location}\r\n") };
            let server = Server::answering(answer(status, &header, "")).await;
            let outcome = deliver(&shop(&server), effect(), LONG).await;
            let expected =
                if status == 303 { Finding::Unknown } else { Finding::Rejected(About::ThisAttempt) };
            assert_eq!(outcome.finding, expected, "{status} to {location:?}: {}", outcome.reason);
            assert!(outcome.reason.contains("Location"), "{}", outcome.reason);
            assert_eq!(server.seen.requests().len(), 1, "{status} to {location:?} was followed");
        }
    }
    assert_eq!(other.seen.requests().len(), 0);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unknown_whatever_its_status() {
    for status in [200, 402, 429, 500] {
        let cut = format!("HTTP/1.1 {status} X\r\nContent-Length: 100\r\nRetry-After: 7\r\n\r\n{{\"id\":");
        let server = Server::start(move |mut connection| {
            let cut = cut.clone();
            async move {
                connection.read().await;
                connection.write(cut.as_bytes()).await;
            }
        })
        .await;
        let outcome = deliver(&shop(&server), effect(), LONG).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::Unknown, Phase::Answer), "{}", outcome.reason);
        assert_eq!(outcome.status(), Some(status));
        assert_eq!(outcome.retry_after, Some(Duration::from_secs(7)));
    }
}

#[tokio::test]
async fn an_answer_cut_at_our_limit_is_applied() {
    let server = Server::answering(answer(200, "", &"x".repeat((1 << 20) + 1))).await;
    let outcome = deliver(&shop(&server), effect(), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
    let response = outcome.response.unwrap();
    assert_eq!((response.body.len(), response.truncated), (1 << 20, true));

    let server = Server::answering(answer(200, "", &"x".repeat(1 << 20))).await;
    let response = deliver(&shop(&server), effect(), LONG).await.response.unwrap();
    assert_eq!((response.body.len(), response.truncated), (1 << 20, false));
}

/// More than anybody has to say: hyper stops at a hundred headers and at some hundred KiB of them.
#[tokio::test]
async fn a_head_without_measure_is_unknown_and_not_kept() {
    let many: String = (0..10_000).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let long = format!("X: {}\r\n", "a".repeat(8 << 20));
    for headers in [many, long] {
        let server = Server::answering(answer(200, &headers, "{}")).await;
        let outcome = deliver(&shop(&server), effect(), LONG).await;
        let expected = (Finding::Unknown, Phase::Send);
        assert_eq!((outcome.finding, outcome.phase), expected, "{}", outcome.reason);
        assert!(outcome.response.is_none() && outcome.reason.len() < 200, "{}", outcome.reason);
        assert_eq!(server.seen.requests().len(), 1);
    }
}

#[tokio::test]
async fn an_endless_body_is_read_up_to_our_limit_and_no_further() {
    let server = Server::start(|mut connection| async move {
        connection.read().await;
        connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
        while connection.write(chunk.as_bytes()).await {}
    })
    .await;
    let outcome = deliver(&shop(&server), effect(), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
    let response = outcome.response.unwrap();
    assert_eq!((response.body.len(), response.truncated), (1 << 20, true));
}

#[tokio::test]
async fn a_compressed_body_is_left_as_it_came() {
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff];
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", gzip.len())
            .into_bytes();
    bytes.extend_from_slice(&gzip);
    let server = Server::answering(bytes).await;
    let outcome = deliver(&shop(&server), effect(), LONG).await;
    assert_eq!(outcome.response.unwrap().body, gzip);
    assert!(
        !server.seen.requests()[0].to_lowercase().contains("accept-encoding"),
        "{:?}",
        server.seen.requests()
    );
}

#[tokio::test]
async fn a_body_cut_inside_a_character_is_recorded() {
    for offset in 0..4 {
        let body = format!("{}€ and more", "a".repeat((1 << 20) - offset));
        let server = Server::answering(answer(500, "", &body)).await;
        let outcome = deliver(&shop(&server), effect(), LONG).await;
        assert_eq!((outcome.finding, outcome.status()), (Finding::Unknown, Some(500)));
        assert!(outcome.response.unwrap().truncated);
    }
}

#[tokio::test]
async fn no_reason_holds_what_the_url_or_the_secret_holds() {
    let silent = Server::start(|connection| async move {
        let _open = connection;
        std::future::pending::<()>().await;
    })
    .await;
    let not_tls = format!("https://{}", silent.place);
    let redirect = Server::answering(answer(302, "Location: /hooks/T0/SECRET?token=SECRET2\r\n", "")).await;
    for origin in ["http://127.0.0.1:1", &silent.url, &not_tls, "http://no.such.host.invalid", &redirect.url]
    {
        let toml = format!(
            "base_url = \"{origin}/hooks/T0/SECRET?token=SECRET2\"\nauth = {{ bearer = {{ env = \"TOKEN\" }} }}"
        );
        let outcome = deliver(&served(&toml), effect(), SHORT).await;
        assert_ne!(outcome.finding, Finding::Applied);
        for secret in ["SECRET", "hooks", "sekret-token", "token="] {
            assert!(!outcome.reason.contains(secret), "{origin}: {}", outcome.reason);
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_through_a_closed_gate() {
    let server = Server::answering(answer(200, "", "{}")).await;
    let shop = shop(&server);
    for closed in [Closed::TooLate, Closed::Stopping] {
        let outcome = shop.downstream.deliver(&attempt(effect(), LONG, Err(closed))).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect));
        assert!(outcome.reason.contains(&closed.to_string()));
    }
    assert_eq!(server.seen.requests().len(), 0);
}

#[tokio::test]
async fn a_connection_that_never_opens_is_not_applied_at_the_deadline() {
    // A listener whose backlog is full drops the handshake: the connection hangs.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let place = listener.local_addr().unwrap();
    let mut fill = tokio::task::JoinSet::new();
    for _ in 0..8 {
        fill.spawn(async move {
            let _held = tokio::net::TcpStream::connect(place).await;
            std::future::pending::<()>().await;
        });
    }
    let full = tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(place)).await;
    if full.is_ok() {
        return; // This system does not drop handshakes: there is nothing to test.
    }
    let outcome = deliver(&served(&format!("base_url = \"http://{place}\"")), effect(), SHORT).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{}", outcome.reason);
}
