//! Who is let in: nobody by accident, nobody by what they say of themselves.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use aftercommit_dashboard::{Access, Guest, Proxy, Role};
use axum::Extension;
use tokio::{net::TcpListener, task::JoinSet};

use super::{Ask, Site, everybody, settings, token};
use crate::support::{Engine, TestDatabase, run};

/// A route that a viewer may see.
const SEEN: &str = "/";

async fn site(db: &TestDatabase, access: Access) -> Site {
    Site::open(&db.store, settings(access).1).await
}

fn proxy(from: &str) -> Access {
    let proxy = Proxy {
        from: vec![from.parse().expect("a network")],
        user: "X-Forwarded-User".to_owned(),
        groups: Some("X-Forwarded-Groups".to_owned()),
        roles: BTreeMap::from([("dev".to_owned(), Role::Viewer), ("sre".to_owned(), Role::Admin)]),
        role: None,
    };
    Access { proxy: Some(proxy), ..everybody() }
}

#[test]
fn without_configuration_this_machine_is_let_in_and_nobody_behind_a_proxy() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, Access::default()).await;
        assert_eq!(site.ask("GET", SEEN).send().await.status, 200);
        for header in
            ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host", "X-Forwarded-Proto"]
        {
            let answer = site.ask("GET", SEEN).with(header, "127.0.0.1").send().await;
            assert_eq!(
                (answer.status, answer.problem().as_str()),
                (403, "forbidden"),
                "{header}: {answer:?}"
            );
            assert!(answer.body.contains("proxy") && answer.body.contains("auth"), "{answer:?}");
        }
    });
}

#[test]
fn an_application_that_does_not_say_who_is_connected_lets_in_nobody_without_credentials() {
    run(Engine::Sqlite, async |db| {
        for (access, wanted) in [(Access::default(), 403), (everybody(), 401)] {
            let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), settings(access).1);
            let (address, _task) = serve(dashboard.router()).await;
            assert_eq!(Ask::new(address, "GET", SEEN).send().await.status, wanted);
            assert_eq!(Ask::new(address, "GET", "/healthz").send().await.status, 200);
        }
    });
}

#[test]
fn an_application_says_itself_who_its_guests_are() {
    run(Engine::Sqlite, async |db| {
        let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), settings(Access::default()).1);
        let guest = Guest { who: "ann".to_owned(), role: Role::Viewer };
        let (address, _task) = serve(dashboard.router().layer(Extension(guest))).await;
        assert_eq!(Ask::new(address, "GET", SEEN).send().await.status, 200);
    });
}

/// Serves a router as an application may that knows nothing of addresses.
async fn serve(router: axum::Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
    task.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    (address, task)
}

#[test]
fn credentials_count_only_as_what_they_are() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, everybody()).await;
        let viewer = token(Role::Viewer);
        let basic =
            |pair: &str| format!("Basic {}", base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pair));
        for (authorization, status) in [
            (format!("Bearer {viewer}"), 200),
            (format!("bearer {viewer}"), 200),
            (basic("ann:password of ann"), 200),
            (format!("Bearer {viewer}x"), 401),
            (viewer.clone(), 401),
            (format!("Basic {viewer}"), 401),
            (basic("ann:wrong"), 401),
            (basic(&format!("viewer:{viewer}")), 401),
            ("Bearer".to_owned(), 401),
            ("Digest username=ann".to_owned(), 401),
        ] {
            let answer = site.ask("GET", SEEN).with("Authorization", &authorization).send().await;
            assert_eq!(answer.status, status, "{authorization}: {answer:?}");
            if status == 401 {
                assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"aftercommit\""));
            }
        }
        let twice = site.ask("GET", SEEN).bearer(&viewer).bearer(&token(Role::Admin)).send().await;
        assert_eq!(twice.status, 400, "{twice:?}");
    });
}

#[test]
fn what_is_wrong_is_refused_though_something_weaker_would_be_right() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, everybody()).await;
        let cookie = site.log_in(&token(Role::Admin)).await;
        assert_eq!(site.ask("GET", SEEN).cookie(&cookie).send().await.status, 200);
        assert_eq!(site.ask("GET", SEEN).cookie(&cookie).bearer("wrong").send().await.status, 401);
    });
}

#[test]
fn a_token_in_the_address_is_none() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, everybody()).await;
        for name in ["token", "access_token", "authorization"] {
            let path = format!("{SEEN}?{name}={}", token(Role::Admin));
            assert_eq!(site.ask("GET", &path).send().await.status, 401);
        }
        // Nor is it taken by the login page, where a log or a history would keep it.
        let path = format!("/login?token={}", token(Role::Admin));
        assert!(site.ask("GET", &path).send().await.cookie().is_none());
    });
}

#[test]
fn a_proxys_word_counts_from_the_proxy_alone() {
    run(Engine::Sqlite, async |db| {
        let (near, far) = (site(db, proxy("127.0.0.1/32")).await, site(db, proxy("10.0.0.0/8")).await);
        let ask = |site: &Site| {
            site.ask("GET", SEEN).with("X-Forwarded-User", "ann").with("X-Forwarded-Groups", "dev")
        };
        assert_eq!(ask(&near).send().await.status, 200);
        assert_eq!(ask(&far).send().await.status, 401);
        // What says that it passed a proxy that is trusted does not make it so.
        for said in ["10.0.0.1", "10.0.0.1, 127.0.0.1"] {
            assert_eq!(ask(&far).with("X-Forwarded-For", said).send().await.status, 401);
        }
    });
}

#[test]
fn a_proxys_headers_cannot_be_smuggled_past_it() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, proxy("127.0.0.1/32")).await;
        let ask = || site.ask("GET", SEEN);
        // The proxy added its own to the client's.
        let twice = ask()
            .with("X-Forwarded-User", "root")
            .with("X-Forwarded-User", "ann")
            .with("X-Forwarded-Groups", "sre");
        assert_eq!(twice.send().await.status, 400);
        // Names that only some programs take for the same.
        for line in [
            "X_Forwarded_User: root",
            "X-Forwarded-User : root",
            " X-Forwarded-User: root",
            "X-Forwarded-User\t: root",
        ] {
            let answer = ask().line(line).with("X-Forwarded-Groups", "sre").send().await;
            assert!(matches!(answer.status, 400 | 401), "{line:?}: {answer:?}");
        }
        // Groups without a user are nobody's.
        assert_eq!(ask().with("X-Forwarded-Groups", "sre").send().await.status, 401);
        for empty in ["", " ", "\t"] {
            let answer = ask().with("X-Forwarded-User", empty).with("X-Forwarded-Groups", "sre").send().await;
            assert_eq!(answer.status, 400, "{answer:?}");
        }
        // Whoever has no group of ours has no role.
        let stranger = ask().with("X-Forwarded-User", "bob").with("X-Forwarded-Groups", "sales").send().await;
        assert_eq!((stranger.status, stranger.problem().as_str()), (403, "forbidden"));
    });
}

#[test]
fn only_names_of_our_own_are_answered() {
    run(Engine::Sqlite, async |db| {
        let mut settings = settings(everybody()).1;
        settings.hosts = vec!["ops.example.com".to_owned()];
        let site = Site::open(&db.store, settings).await;
        let status = async |path: &str, host: &str| {
            site.ask("GET", path).bearer(&token(Role::Viewer)).host(host).send().await.status
        };
        for host in
            ["localhost", "LOCALHOST:7799", "127.0.0.1", "[::1]:1", "ops.example.com", "OPS.example.com:443"]
        {
            assert_eq!(status(SEEN, &format!("Host: {host}")).await, 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.evil.example",
            "ops.example.com.evil.example",
            "ops.example.com@evil.example",
            "evil.example@ops.example.com",
            "xn--ops.example.com",
            "10.0.0.5",
            "[::2]",
            "2130706433",
            "127.1",
            "",
        ] {
            let got = status(SEEN, &format!("Host: {host}")).await;
            assert!(matches!(got, 400 | 421), "{host}: {got}");
        }
        assert!(matches!(status(SEEN, "").await, 400 | 421), "no host at all");
        assert!(
            matches!(status(SEEN, "Host: localhost\r\nHost: evil.example").await, 400 | 421),
            "two hosts"
        );
        assert!(
            matches!(status("http://evil.example/", "Host: localhost").await, 400 | 421),
            "another one in the address"
        );
        // A probe calls by address, and a rebound name is none.
        assert_eq!(status("/healthz", "Host: 10.0.0.5:7799").await, 200);
        assert_eq!(status("/metrics", "Host: [fd00::5]").await, 200);
        assert_eq!(status("/metrics", "Host: evil.example").await, 421);
    });
}

#[test]
fn people_are_shown_a_page_and_programs_a_problem() {
    run(Engine::Sqlite, async |db| {
        let site = site(db, everybody()).await;
        let admin = token(Role::Admin);
        for path in ["/nothing", "/nothing/deep/below"] {
            let page = site.ask("GET", path).bearer(&admin).shown().send().await;
            assert!(
                page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")),
                "{page:?}"
            );
            assert!(page.status == 404 && page.body.contains("<h1>Not found</h1>"), "{page:?}");
            let problem = site.ask("GET", path).bearer(&admin).send().await;
            assert_eq!(problem.header("content-type"), Some("application/problem+json"));
            assert_eq!((problem.status, problem.problem().as_str()), (404, "no-such-page"));
        }
        let api = site.ask("GET", "/api/v1/nothing").bearer(&admin).shown().send().await;
        assert_eq!(api.header("content-type"), Some("application/problem+json"));
        // Also what axum itself refuses: a body that is no form, one that is too long.
        let no_form = site.ask("POST", "/login").ours().with("Content-Length", "0").send().await;
        assert_eq!((no_form.status, no_form.problem().as_str()), (415, "media-type"), "{no_form:?}");
        let long =
            site.ask("POST", "/login").ours().form(&format!("token={}", "x".repeat(100_000))).send().await;
        assert_eq!((long.status, long.problem().as_str()), (413, "body-too-large"), "{long:?}");
    });
}

#[test]
fn guessing_gets_slow_and_harms_nobody_who_is_in() {
    run(Engine::Sqlite, async |db| {
        let (clock, settings) = settings(everybody());
        let site = Site::open(&db.store, settings).await;
        let cookie = site.log_in(&token(Role::Operator)).await;
        let guess = |n: usize| {
            let ways = [
                site.ask("GET", SEEN).bearer(&format!("guess-{n}")),
                site.ask("POST", "/login").ours().form(&format!("token=guess-{n}")),
                site.ask("POST", "/login").ours().form(&format!("user=ann&password=guess-{n}")),
            ];
            ways[n % 3].clone()
        };
        for n in 0..10 {
            assert_eq!(guess(n).send().await.status, 401, "guess {n}");
        }
        for n in 10..13 {
            let answer = guess(n).send().await;
            assert_eq!((answer.status, answer.header("retry-after")), (429, Some("31")), "{answer:?}");
        }
        // A right one is not told from a wrong one, so that nobody can find out in the meantime.
        assert_eq!(site.ask("GET", SEEN).bearer(&token(Role::Admin)).send().await.status, 429);
        assert_eq!(site.ask("GET", SEEN).cookie(&cookie).send().await.status, 200);
        clock.advance(Duration::from_secs(31));
        assert_eq!(site.ask("GET", SEEN).bearer(&token(Role::Admin)).send().await.status, 200);
    });
}
