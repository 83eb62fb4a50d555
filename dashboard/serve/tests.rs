//! Nobody holds up others: not by sending slowly, not by hanging up, not by making a handler panic.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::http::Method;
use tokio::{sync::Notify, task::JoinSet};

use super::*;
use crate::{
    Settings,
    routes::{Right, Routes},
    shared::Shared,
};

/// A dashboard with routes of the test's own, and where it listens.
pub(crate) struct Stage {
    address: SocketAddr,
    shared: Shared,
    _folder: tempfile::TempDir,
    _task: JoinSet<usize>,
}

async fn stage(limits: Limits, more: impl FnOnce(&mut Routes)) -> Stage {
    staged(limits, Settings::default(), more).await
}

/// The same for tests of what stands before the routes.
pub(crate) async fn open(settings: Settings, more: impl FnOnce(&mut Routes)) -> Stage {
    staged(LIMITS, settings, more).await
}

async fn staged(limits: Limits, settings: Settings, more: impl FnOnce(&mut Routes)) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    aftercommit::store::migrate(&url, None).await.unwrap();
    let database = aftercommit::store::connect(&url, &aftercommit::store::Options::default()).await.unwrap();
    let shared = Shared::new(database, settings);
    let mut routes = Routes::new(shared.clone());
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
    stage.shared.tasks().close();
    stage.shared.tasks().wait().await;
    assert!(done.load(Ordering::SeqCst));
}

#[tokio::test]
async fn whoever_sends_slowly_is_cut_off() {
    let limits = Limits { head: Duration::from_millis(100), body: Duration::from_millis(100), ..LIMITS };
    async fn reads(body: Bytes) -> String {
        body.len().to_string()
    }
    let stage = stage(limits, |routes| routes.add(Method::POST, "/reads", Right::View, reads)).await;
    // Half a head, and half a body.
    let heard = stage.hear(&format!("POST /reads HTTP/1.1\r\n{HEAD}")).await;
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408"), "{heard}");
    let heard = stage.hear(&format!("POST /reads HTTP/1.1\r\n{HEAD}Content-Length: 10\r\n\r\nhalf")).await;
    assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
    let whole = stage.hear(&format!("POST /reads HTTP/1.1\r\n{HEAD}Content-Length: 4\r\n\r\nhalf")).await;
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
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
