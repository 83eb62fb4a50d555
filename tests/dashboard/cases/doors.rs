//! DASH-04: whoever finds the path gets no further. Without configuration no other machine is answered, whatever the route; with it nobody
//! without credentials is, and nobody guesses them, whichever way and at whichever route they try.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use aftercommit_dashboard::{Dashboard, Right, Role, Route, Settings};
use axum::{Extension, extract::ConnectInfo};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use tokio::{net::TcpListener, task::JoinSet};

use super::super::{Answer, Ask, Site, everybody, settings, token};
use crate::{
    e2e::processes::{aftercommit, run_ok},
    support::{Engine, TestDatabase, run},
};

/// Other machines, as their connections say; the last is one that calls by another form of its address.
const ELSEWHERE: [&str; 5] =
    ["10.0.0.5:4711", "192.168.1.7:4711", "203.0.113.9:1", "[fd00::5]:4711", "[::ffff:10.0.0.5]:4711"];

/// The dashboard as it is seen by whoever is connected from there.
struct Seen {
    dashboard: Dashboard,
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Seen {
    async fn from(db: &TestDatabase, peer: &str, settings: Settings) -> Self {
        let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), settings);
        let peer = ConnectInfo(peer.parse::<SocketAddr>().expect("an address"));
        let app = dashboard.router().layer(Extension(peer));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
        task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self { dashboard, address, _task: task }
    }

    fn ask(&self, route: &Route) -> Ask {
        Ask::new(self.address, route.method.as_str(), &filled(route))
    }
}

/// The key of an effect, which nobody is to see.
const OURS: &str = "order-of-ours-17";

fn filled(route: &Route) -> String {
    let part = |part: &str| if part.starts_with('{') { "1".to_owned() } else { part.to_owned() };
    route.path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[test]
fn without_configuration_no_route_answers_another_machine() {
    run(Engine::Sqlite, async |db| {
        db.insert("pay", OURS).await;
        for peer in ELSEWHERE {
            let seen = Seen::from(db, peer, Settings::default()).await;
            let mut refused = BTreeSet::new();
            for route in seen.dashboard.table() {
                let answer = seen.ask(route).ours().shown().send().await;
                if route.right == Right::Public {
                    assert!(!answer.body.contains(OURS), "{peer}: {route:?}: {answer:?}");
                } else {
                    assert_eq!(answer.status, 403, "{peer}: {route:?}: {answer:?}");
                    refused.insert(route.path.clone());
                }
            }
            for path in ["/", "/metrics", "/api/v1/events", "/api/v1/effects", "/effects/{id}"] {
                assert!(refused.contains(path), "{peer}: {path}");
            }
        }
        // This machine is let in, also where its address comes in the longer form.
        for peer in ["127.0.0.1:4711", "[::1]:4711", "[::ffff:127.0.0.1]:4711"] {
            let seen = Seen::from(db, peer, Settings::default()).await;
            assert_eq!(Ask::new(seen.address, "GET", "/effects").send().await.status, 200, "{peer}");
        }
    });
}

#[test]
fn with_credentials_configured_no_route_answers_whoever_brings_none() {
    run(Engine::Sqlite, async |db| {
        db.insert("pay", OURS).await;
        let configured = Settings { access: everybody(), ..Settings::default() };
        for peer in ["10.0.0.5:4711", "127.0.0.1:4711"] {
            let seen = Seen::from(db, peer, configured.clone()).await;
            for route in seen.dashboard.table().iter().filter(|route| route.right != Right::Public) {
                let answer = seen.ask(route).ours().send().await;
                assert_eq!(answer.status, 401, "{peer}: {route:?}: {answer:?}");
                assert!(!answer.body.contains(OURS), "{peer}: {route:?}: {answer:?}");
            }
        }
    });
}

/// Every way in which somebody may guess, and every route at which an answer would tell whether they were right.
fn guess(site: &Site, n: usize, secret: &str) -> Ask {
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let by_header = |path: &str| site.ask("GET", path).bearer(secret);
    match n % 8 {
        0 => by_header("/"),
        1 => by_header("/metrics"),
        2 => by_header("/api/v1/effects"),
        3 => by_header("/api/v1/events"),
        4 => by_header("/readyz"),
        5 => site.ask("GET", "/").with("Authorization", &basic(&format!("ann:{secret}"))),
        6 => site.ask("POST", "/login").ours().form(&format!("token={secret}")),
        _ => site.ask("POST", "/login").ours().form(&format!("user=ann&password={secret}")),
    }
}

#[test]
fn no_way_and_no_route_lets_anybody_guess_faster() {
    run(Engine::Sqlite, async |db| {
        let (clock, settings) = settings(everybody());
        let site = Site::open(&db.store, settings).await;
        for n in 0..10 {
            let answer = guess(&site, n, &format!("guess-{n}")).send().await;
            // Whoever is not known is told whether it is ready, and nothing else.
            assert!(matches!(answer.status, 401 | 200), "{n}: {answer:?}");
            assert!(answer.status == 401 || n % 8 == 4, "{n}: {answer:?}");
        }
        // Ten were wrong: now not even a right one is told from a wrong one, whichever way and wherever it is tried.
        let right = token(Role::Admin);
        for n in 0..8 {
            let (wrong, right) =
                (guess(&site, n, "guess").send().await, guess(&site, n, &right).send().await);
            if n == 4 {
                let told =
                    |answer: &Answer| (answer.status, answer.body.contains("\"ready\":true,\"reasons\":[]"));
                assert_eq!(
                    (told(&wrong), told(&right)),
                    ((200, true), (200, true)),
                    "{n}: {wrong:?} {right:?}"
                );
            } else {
                assert_eq!((wrong.status, right.status), (429, 429), "{n}: {wrong:?} {right:?}");
                assert!(right.header("retry-after").is_some() && right.cookie().is_none(), "{n}: {right:?}");
            }
        }
        // In an hour as many are looked at as fit in it, however many are sent.
        let mut looked_at = 0;
        for n in 0..720 {
            clock.advance(Duration::from_secs(5));
            looked_at +=
                u32::from(guess(&site, n * 8 + n % 4, &format!("guess-{n}")).send().await.status == 401);
        }
        println!("{looked_at} of 720 guesses in an hour were looked at");
        assert!((100..=130).contains(&looked_at), "one each 30 s: {looked_at}");
    });
}

#[test]
fn whoever_asks_for_no_credentials_listens_at_this_machine_alone() {
    run(Engine::Sqlite, async |db| {
        let folder =
            tempfile::Builder::new().prefix("aftercommit-doors.").tempdir().expect("a scratch folder");
        let config = format!("database = {:?}\nenvironment = \"test\"\n", db.url);
        std::fs::write(folder.path().join("aftercommit.toml"), config).expect("it is written");
        let mut command = aftercommit();
        command.current_dir(folder.path()).args(["config", "show"]);
        let shown = run_ok(&mut command, Duration::from_secs(60)).await;
        assert!(shown.contains("listen = \"127.0.0.1:7799\""), "{shown}");
    });
}
