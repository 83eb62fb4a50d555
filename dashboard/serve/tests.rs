//! Nobody holds up others: not by sending slowly, not by hanging up, not by making a handler panic.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{body::Bytes, http::Method};
use tokio::{sync::Notify, task::JoinSet};

use super::*;
use crate::{
    Settings,
    routes::{Right, Routes},
    shared::Shared,
    slow::Patience,
};

/// A dashboard with routes of the test's own, and where it listens.
pub(crate) struct Stage {
    address: SocketAddr,
    shared: Shared,
    _folder: tempfile::TempDir,
    _task: JoinSet<usize>,
}

async fn stage(limits: Limits, more: impl FnOnce(&mut Routes)) -> Stage {
    staged((limits, Patience::default()), Settings::default(), more).await
}

/// The same for tests of what stands before the routes.
pub(crate) async fn open(settings: Settings, more: impl FnOnce(&mut Routes)) -> Stage {
    staged((LIMITS, Patience::default()), settings, more).await
}

async fn staged(
    (limits, patience): (Limits, Patience),
    settings: Settings,
    more: impl FnOnce(&mut Routes),
) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    aftercommit::store::migrate(&url, None).await.unwrap();
    let database = aftercommit::store::connect(&url, &aftercommit::store::Options::default()).await.unwrap();
    let shared = Shared::new(database, settings);
    let mut routes = Routes::within(patience, shared.clone());
    more(&mut routes);
    let (router, table) = routes.finish();
    let dashboard = Dashboard { router, table, shared: shared.clone() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mut task) = (listener.local_addr().unwrap(), JoinSet::new());
    task.spawn(async move {
        let app = dashboard.router();
        serve_within(limits, (&dashboard, app), listener, (CancellationToken::new(), Duration::ZERO)).await
    });
    Stage { address, shared, _folder: folder, _task: task }
}

impl Stage {
    async fn connect(&self, said: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        stream
    }

    /// All that is answered to `said` until the connection ends.
    pub(crate) async fn hear(&self, said: &str) -> String {
        let mut heard = String::new();
        let mut stream = self.connect(said).await;
        let read = stream.read_to_string(&mut heard);
        timeout(Duration::from_secs(30), read).await.expect("the connection ends").unwrap();
        heard
    }
}

const HEAD: &str = "Host: localhost\r\nSec-Fetch-Site: none\r\n";

#[tokio::test]
async fn a_handler_that_panics_is_an_answer_without_its_words() {
    async fn panics() -> &'static str {
        panic!("the secret of the house")
    }
    let stage = stage(LIMITS, |routes| routes.add(Method::GET, "/panics", Right::View, panics)).await;
    for accept in ["text/html", "application/json"] {
        let asked = format!("GET /panics HTTP/1.1\r\n{HEAD}Accept: {accept}\r\nConnection: close\r\n\r\n");
        let heard = stage.hear(&asked).await;
        assert!(heard.starts_with("HTTP/1.1 500") && heard.contains("content-security-policy"), "{heard}");
        assert!(heard.contains("The dashboard failed") && !heard.contains("secret"), "{heard}");
    }
}

#[tokio::test]
async fn a_handler_goes_on_to_its_end_when_its_client_hangs_up() {
    let (begun, go_on, done) =
        (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let handler = {
        let (begun, go_on, done) = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&done));
        async move || {
            begun.notify_one();
            go_on.notified().await;
            done.store(true, Ordering::SeqCst);
        }
    };
    let stage = stage(LIMITS, |routes| routes.add(Method::POST, "/act", Right::Operate, handler)).await;
    let stream = stage.connect(&format!("POST /act HTTP/1.1\r\n{HEAD}\r\n")).await;
    begun.notified().await;
    drop(stream);
    go_on.notify_one();
    // Whoever carries out bulks ends with the dashboard.
    stage.shared.closing().cancel();
    stage.shared.tasks().close();
    stage.shared.tasks().wait().await;
    assert!(done.load(Ordering::SeqCst));
}

#[tokio::test]
async fn whoever_sends_slowly_is_cut_off() {
    let limits = Limits { head: Duration::from_millis(100), ..LIMITS };
    let [long, short] = [Duration::from_secs(60), Duration::from_millis(100)];
    async fn reads(body: Bytes) -> String {
        body.len().to_string()
    }
    let patient = async |body, of_strangers| {
        staged((limits, Patience { body, of_strangers }), Settings::default(), |routes| {
            routes.add(Method::POST, "/reads", Right::View, reads);
            routes.add(Method::POST, "/open", Right::Public, reads);
        })
        .await
    };
    let (stage, of_strangers) = (patient(short, long).await, patient(long, short).await);
    // Half a head, and half a body.
    let heard = stage.hear(&format!("POST /reads HTTP/1.1\r\n{HEAD}")).await;
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408"), "{heard}");
    let heard = stage.hear(&format!("POST /reads HTTP/1.1\r\n{HEAD}Content-Length: 10\r\n\r\nhalf")).await;
    assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
    let half = format!("POST /open HTTP/1.1\r\n{HEAD}Content-Length: 10\r\n\r\nhalf");
    let heard = of_strangers.hear(&half).await;
    assert!(heard.starts_with("HTTP/1.1 408") && heard.contains("body-too-slow"), "{heard}");
    for path in ["reads", "open"] {
        let asked =
            format!("POST /{path} HTTP/1.1\r\n{HEAD}Content-Length: 4\r\nConnection: close\r\n\r\nhalf");
        let whole = stage.hear(&asked).await;
        assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("\r\n\r\n4"), "{whole}");
    }
}

#[tokio::test]
async fn whoever_reads_nothing_is_cut_off() {
    async fn big() -> Vec<u8> {
        vec![b'x'; 32 << 20]
    }
    let limits = Limits { connections: 1, read: Duration::from_millis(100), ..LIMITS };
    let stage = stage(limits, |routes| routes.add(Method::GET, "/big", Right::View, big)).await;
    let asked = format!("GET /big HTTP/1.1\r\n{HEAD}\r\n");
    let _deaf = stage.connect(&asked.repeat(3)).await;
    // There is one place, and it is free again though its connection is open at the other end.
    let heard = stage.hear(&format!("GET / HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n")).await;
    assert!(heard.contains("404"), "{heard}");
}

#[tokio::test]
async fn an_address_has_no_more_connections_than_it_may() {
    let limits = Limits { of_one: 2, counts_itself: true, ..LIMITS };
    let strangers = stage(limits, |_| {}).await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}\r\n");
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = strangers.connect(&asked).await;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 404");
        held.push(stream);
    }
    let mut refused = TcpStream::connect(strangers.address).await.unwrap();
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed unread");
    // Everybody may come through a proxy that is trusted, and through this machine.
    let proxies = vec!["127.0.0.1/32".parse().unwrap()];
    let settings = Settings { proxies, ..Settings::default() };
    for (limits, settings) in
        [(limits, settings), (Limits { counts_itself: false, ..limits }, Settings::default())]
    {
        let stage = staged((limits, Patience::default()), settings, |_| {}).await;
        let mut held = Vec::new();
        for _ in 0..5 {
            let mut stream = stage.connect(&asked).await;
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.unwrap();
            held.push(stream);
        }
    }
}

#[tokio::test]
async fn a_head_that_never_ends_is_refused() {
    let stage = stage(LIMITS, |_| {}).await;
    let long = format!("GET / HTTP/1.1\r\n{HEAD}Cookie: {}\r\n\r\n", "a".repeat(200_000));
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    stream.write_all(long.as_bytes()).await.ok();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.ok();
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 431"), "{heard}");
    assert!(stage.hear(&format!("GET / HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n")).await.contains("404"));
}

#[tokio::test]
async fn more_connections_than_there_are_places_wait_for_one() {
    let stage = stage(Limits { connections: 1, ..LIMITS }, |_| {}).await;
    let first = stage.connect("").await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n");
    let second = stage.hear(&asked);
    let mut second = std::pin::pin!(second);
    assert!(timeout(Duration::from_millis(100), second.as_mut()).await.is_err(), "there was one place");
    drop(first);
    assert!(second.await.contains("404"));
}
