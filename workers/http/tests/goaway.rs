//! HTTP-05 over HTTP/2: a server that goes away, or refuses a stream, hides no second request and proves nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use reqwest::header::HeaderMap;
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

use crate::http::{
    request::Rendered,
    send::{Failure, builder, exchange},
};

/// What the server does with each request that it was sent.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// GOAWAY that covers the stream: it was, or may have been, worked on.
    Covered,
    /// GOAWAY with an error, the stream unanswered.
    Abrupt,
    /// REFUSED_STREAM.
    Refused,
}

/// Serves HTTP/2 without TLS; counts the requests that it was sent.
async fn server(manner: Manner, seen: Arc<AtomicUsize>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let seen = seen.clone();
            connections.spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((_request, mut respond))) = connection.accept().await {
                    seen.fetch_add(1, Ordering::SeqCst);
                    match manner {
                        Manner::Covered => connection.graceful_shutdown(),
                        Manner::Abrupt => connection.abrupt_shutdown(h2::Reason::INTERNAL_ERROR),
                        Manner::Refused => respond.send_reset(h2::Reason::REFUSED_STREAM),
                    }
                    if matches!(manner, Manner::Covered) {
                        respond.send_reset(h2::Reason::CANCEL);
                    }
                }
            });
        }
    });
    (place, tasks)
}

#[tokio::test]
async fn a_server_that_goes_away_hides_no_second_request() {
    for manner in [Manner::Covered, Manner::Abrupt, Manner::Refused] {
        let seen = Arc::new(AtomicUsize::new(0));
        let (place, _tasks) = server(manner, seen.clone()).await;
        let client = builder(false, Duration::from_secs(5), 4).http2_prior_knowledge().build().unwrap();
        for attempt in 1..=3 {
            let rendered = Rendered {
                method: reqwest::Method::POST,
                url: url::Url::parse(&format!("http://{place}/charges")).unwrap(),
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"{}"),
            };
            let deadline = Instant::now() + Duration::from_secs(5);
            let ended = exchange(&client, rendered, &place, deadline, 1024).await;
            // A request that the server saw is never called unsent, and an attempt is one request.
            assert!(matches!(ended, Err(Failure::NoAnswer(_))), "{manner:?}, attempt {attempt}: {ended:?}");
            assert_eq!(seen.load(Ordering::SeqCst), attempt, "{manner:?}: a hidden request");
        }
    }
}
