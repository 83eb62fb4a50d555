//! What holds whoever asks and however: nobody without credentials takes what others need, nothing is told to strangers, and what looks
//! like a proxy is taken for one.

use std::{net::SocketAddr, time::Duration};

use aftercommit_dashboard::{Access, Login, Role, Secret, Settings};
use axum::{
    Router,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::{Ask, Site, everybody, settings, token};
use crate::{
    e2e::processes::{Process, aftercommit},
    support::{Engine, TestDatabase, eventually, run},
};

/// Longer than anything takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// More requests than are answered at one time.
const CROWD: usize = 270;
/// As `openssl rand -hex 32` makes them.
const LONG: &str = "6d1c0b7a58f94e2380a1d4c9b7e6f5039a8b7c6d5e4f30211f2e3d4c5b6a7988";

/// An application that listens, until it is dropped.
struct App {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl App {
    /// As most applications serve what is theirs.
    async fn open(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
        let app = router.into_make_service_with_connect_info::<SocketAddr>();
        task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self { address, _task: task }
    }
}

/// The status and all of what comes back for these bytes.
async fn raw(address: SocketAddr, said: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(said.as_bytes()).await.expect("it reads");
    let mut heard = String::new();
    timeout(SOON, stream.read_to_string(&mut heard)).await.expect("an answer").expect("text");
    let status = heard.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer: {heard}")), heard)
}

/// Somebody who begins to log in and sends no more, until the server waits for it.
async fn half_a_login(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!(
        "POST /login HTTP/1.1\r\nHost: {address}\r\nSec-Fetch-Site: none\r\nExpect: 100-continue\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut line = [0; 12];
    timeout(SOON, stream.read_exact(&mut line)).await.expect("a line").expect("it goes on");
    assert_eq!(String::from_utf8_lossy(&line), "HTTP/1.1 100", "the body is waited for");
    stream
}

#[test]
fn who_brings_no_credentials_takes_no_place_from_who_does() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let mounted = aftercommit_dashboard::dashboard(db.store.clone(), settings(everybody()).1);
        let app = App::open(mounted.router()).await;
        for address in [site.address, app.address] {
            let mut crowd = Vec::new();
            for _ in 0..CROWD {
                crowd.push(half_a_login(address).await);
            }
            let viewer = Ask::new(address, "GET", "/api/v1/about").bearer(&token(Role::Viewer)).send().await;
            assert_eq!(viewer.status, 200, "{viewer:?}");
            let form = format!("token={}", token(Role::Viewer));
            let login = Ask::new(address, "POST", "/login").ours().form(&form).send().await;
            assert_eq!(login.status, 303, "{login:?}");
        }
    });
}

#[test]
fn nothing_but_health_is_told_without_credentials() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let metrics = site.ask("GET", "/metrics").send().await;
        assert_eq!((metrics.status, metrics.problem().as_str()), (401, "sender-unknown"), "{metrics:?}");
        let metrics = site.ask("GET", "/metrics").bearer(&token(Role::Viewer)).send().await;
        assert!(metrics.status == 200 && metrics.body.contains("aftercommit_build"), "{metrics:?}");
        for path in ["/healthz", "/readyz"] {
            assert_eq!(site.ask("GET", path).send().await.status, 200, "{path}");
        }
        // At this machine, where nobody is asked, nothing changes.
        let site = Site::open(&db.store, Settings::default()).await;
        assert_eq!(site.ask("GET", "/metrics").send().await.status, 200);
    });
}

#[test]
fn why_it_is_not_ready_is_told_in_full_only_to_whom_it_knows() {
    run(Engine::Sqlite, async |db| {
        db.sql.execute("DROP TABLE aftercommit.hold").await;
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let reasons = |answer: &super::Answer| {
            assert_eq!(answer.status, 503, "{answer:?}");
            let body: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
            body["reasons"].clone()
        };
        let fixed = serde_json::json!(["the database does not answer"]);
        let ask = || site.ask("GET", "/readyz");
        assert_eq!(reasons(&ask().send().await), fixed);
        assert_eq!(reasons(&ask().bearer("wrong").send().await), fixed);
        let known = reasons(&ask().bearer(&token(Role::Viewer)).send().await);
        assert!(known[0].as_str().is_some_and(|why| why.contains("HOLD")), "{known}");
    });
}

#[test]
fn a_token_that_nobody_can_guess_is_not_locked_out_by_who_guesses_beside_it() {
    run(Engine::Sqlite, async |db| {
        let mut access = everybody();
        access.tokens.push(Login { name: "ci".to_owned(), role: Role::Viewer, secret: Secret::new(LONG) });
        let site = Site::open(&db.store, settings(access).1).await;
        let ask = |token: &str| site.ask("GET", "/api/v1/about").bearer(token);
        for n in 0..10 {
            assert_eq!(ask(&format!("guess-{n}")).send().await.status, 401);
        }
        assert_eq!(ask("guess").send().await.status, 429);
        assert_eq!(ask(LONG).send().await.status, 200);
        let form = format!("token={LONG}");
        assert_eq!(site.ask("POST", "/login").ours().form(&form).send().await.status, 303);
        // One that can be guessed is not told from a wrong one.
        assert_eq!(ask(&token(Role::Admin)).send().await.status, 429);
        assert_eq!(ask(&LONG[..63]).send().await.status, 429);
    });
}

#[test]
fn a_page_that_is_left_open_keeps_no_session_alive() {
    run(Engine::Sqlite, async |db| {
        let (clock, settings) = settings(everybody());
        let site = Site::open(&db.store, settings).await;
        let cookie = site.log_in(&token(Role::Operator)).await;
        let asks = || {
            [
                site.ask("GET", "/").with("X-Aftercommit-Refresh", "1"),
                site.ask("GET", "/api/v1/counts"),
                site.ask("GET", "/api/v1/events"),
            ]
        };
        for _ in 0..2 {
            clock.advance(Duration::from_secs(14 * 60));
            for ask in asks() {
                let answer = ask.cookie(&cookie).send().await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        }
        clock.advance(Duration::from_secs(3 * 60));
        for ask in asks().into_iter().chain([site.ask("GET", "/")]) {
            let answer = ask.cookie(&cookie).send().await;
            assert_eq!(answer.status, 401, "{answer:?}");
        }
    });
}

#[test]
fn where_the_connection_is_encrypted_a_cookie_that_others_can_set_lets_nobody_in() {
    run(Engine::Sqlite, async |db| {
        let mut settings = settings(everybody()).1;
        settings.proxies = vec!["127.0.0.1/32".parse().expect("a network")];
        let site = Site::open(&db.store, settings).await;
        let cookie = site.log_in(&token(Role::Admin)).await;
        let ask = || site.ask("GET", "/").cookie(&cookie);
        assert_eq!(ask().send().await.status, 200);
        assert_eq!(ask().with("X-Forwarded-Proto", "https").send().await.status, 401);
        // Whoever logs in over TLS ends it all the same.
        let form = format!("token={}", token(Role::Viewer));
        let login = site.ask("POST", "/login").ours().form(&form).cookie(&cookie);
        assert_eq!(login.with("X-Forwarded-Proto", "https").send().await.status, 303);
        assert_eq!(ask().send().await.status, 401);
    });
}

#[test]
fn without_configuration_what_looks_like_a_proxy_is_not_let_in() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(Access::default()).1).await;
        let ours = format!("http://{}", site.address);
        let ask = || site.ask("GET", "/");
        for (name, value) in [
            ("X-Forwarded-Port", "443"),
            ("X-Envoy-External-Address", "203.0.113.9"),
            ("CF-Connecting-IP", "203.0.113.9"),
            ("True-Client-IP", "203.0.113.9"),
            // A browser behind one that says nothing: it knows another name.
            ("Referer", "https://ops.example.com/effects"),
            ("Origin", "https://ops.example.com"),
        ] {
            let answer = ask().with(name, value).send().await;
            assert_eq!((answer.status, answer.problem().as_str()), (403, "forbidden"), "{name}: {answer:?}");
            assert!(answer.body.contains("proxy") && answer.body.contains("auth"), "{answer:?}");
        }
        assert_eq!(ask().with("Referer", &format!("{ours}/effects")).send().await.status, 200);
        let link = ask().with("Sec-Fetch-Site", "cross-site").with("Referer", "https://chat.example/");
        assert_eq!(link.send().await.status, 200, "a link leads here from elsewhere");
        let head =
            |version: &str| format!("GET / {version}\r\nHost: {}\r\nConnection: close\r\n\r\n", site.address);
        // nginx, unless it is told more.
        assert_eq!(raw(site.address, &head("HTTP/1.0")).await.0, 403);
        assert_eq!(raw(site.address, &head("HTTP/1.1")).await.0, 200);
        let health = head("HTTP/1.0").replace("GET / ", "GET /healthz ");
        assert_eq!(raw(site.address, &health).await.0, 200);
    });
}

#[test]
fn what_stands_beside_the_pages_is_no_strange_page_s_either() {
    run(Engine::Sqlite, async |db| {
        let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), Settings::default());
        let orders = Router::new().route("/orders", get(async || "orders").post(async || "placed"));
        let broken = Router::new().route("/broken", post(async || (axum::http::StatusCode::CONFLICT, "no")));
        let app = App::open(dashboard.router().merge(dashboard.beside(orders.merge(broken)))).await;
        let ask = |method: &str| Ask::new(app.address, method, "/orders");
        assert_eq!(ask("GET").send().await.body, "orders");
        assert_eq!(ask("POST").send().await.body, "placed");
        assert_eq!(ask("POST").ours().send().await.body, "placed");
        for (name, value) in [("Sec-Fetch-Site", "cross-site"), ("Origin", "https://evil.example")] {
            let answer = ask("POST").with(name, value).send().await;
            assert_eq!((answer.status, answer.problem().as_str()), (403, "cross-site"), "{answer:?}");
        }
        let rebound = ask("GET").host("Host: evil.example").send().await;
        assert_eq!((rebound.status, rebound.problem().as_str()), (421, "host-unknown"), "{rebound:?}");
        // What is answered there stays as it is.
        let conflict = Ask::new(app.address, "POST", "/broken").send().await;
        assert_eq!((conflict.status, conflict.body.as_str()), (409, "no"));
        assert!(conflict.header("content-security-policy").is_some(), "{conflict:?}");
    });
}

/// `aftercommit dev` in a folder of its own, and where it is.
async fn dev(folder: &std::path::Path) -> (Process, SocketAddr) {
    let mut command = aftercommit();
    command.current_dir(folder).args(["dev", "--port", "0"]);
    let process = Process::spawn("dev", &mut command, &folder.join("dev.log"));
    let address = || {
        let output = process.output();
        let (_, rest) =
            output.split_once("Dashboard http://").filter(|_| output.contains("Ctrl-C drains"))?;
        rest.split('/').next()?.parse().ok()
    };
    let address = eventually(SOON, "dev says where it is: see dev.log", async || address()).await;
    (process, address)
}

#[test]
fn no_page_of_somebody_else_s_reaches_what_dev_serves() {
    run(Engine::Sqlite, async |_db: &TestDatabase| {
        let folder = tempfile::Builder::new().prefix("aftercommit-dev.").tempdir().expect("a scratch folder");
        let (_process, address) = dev(folder.path()).await;
        for path in ["/sinks/payments", "/sinks/mail/json", "/openapi.json"] {
            let ask = || Ask::new(address, "GET", path);
            assert_eq!(ask().send().await.status, 200, "{path}");
            assert_eq!(ask().host("Host: evil.example").send().await.status, 421, "{path}");
        }
        let order = || {
            Ask::new(address, "POST", "/orders")
                .with("Idempotency-Key", "\"order-1\"")
                .form("item=tea&amount=1500&currency=jpy")
        };
        for strange in [
            order().with("Sec-Fetch-Site", "cross-site"),
            Ask::new(address, "POST", "/sinks/payments").with("Origin", "https://evil.example").json("{}"),
        ] {
            let answer = strange.send().await;
            assert_eq!((answer.status, answer.problem().as_str()), (403, "cross-site"), "{answer:?}");
        }
        assert_eq!(order().send().await.status, 201);
    });
}
