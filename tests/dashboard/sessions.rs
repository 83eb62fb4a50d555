//! Sessions: a cookie is worth what the server says it is, no longer than it says, and to nobody else.

use std::time::Duration;

use aftercommit_dashboard::{Role, Settings};

use super::{Answer, Site, everybody, settings, token};
use crate::support::{Engine, run};

/// Whether a request with this cookie is let in.
async fn is_in(site: &Site, cookie: &str) -> bool {
    let answer = site.ask("GET", "/").cookie(cookie).send().await;
    assert!(matches!(answer.status, 200 | 401), "{answer:?}");
    answer.status == 200
}

fn cookies(answer: &Answer) -> Vec<&str> {
    answer.headers.iter().filter(|(name, _)| name == "set-cookie").map(|(_, value)| value.as_str()).collect()
}

#[test]
fn whoever_comes_without_credentials_is_asked_and_goes_on_to_where_they_wanted() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let page = site.ask("GET", "/?state=failed").shown().send().await;
        assert_eq!(page.status, 401);
        for part in ["action=\"./login\"", "name=\"token\"", "name=\"password\"", "value=\"?state=failed\""] {
            assert!(page.body.contains(part), "{part} in {page:?}");
        }
        let form = format!("token={}&next=%3Fstate%3Dfailed", token(Role::Viewer));
        let entered = site.ask("POST", "/login").ours().form(&form).send().await;
        assert_eq!(
            (entered.status, entered.header("location")),
            (303, Some("./?state=failed")),
            "{entered:?}"
        );
        assert!(is_in(&site, &entered.cookie().expect("a cookie")).await);
    });
}

#[test]
fn nobody_is_sent_elsewhere_by_a_login() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        for next in [
            "https://evil.example",
            "//evil.example",
            "%5C%5Cevil.example",
            "/etc",
            "a%0d%0aSet-Cookie:%20x=y",
            "../x",
        ] {
            let form = format!("token={}&next={next}", token(Role::Viewer));
            let answer = site.ask("POST", "/login").ours().form(&form).send().await;
            assert_eq!((answer.status, answer.header("location")), (303, Some("./")), "{next}: {answer:?}");
            assert_eq!(cookies(&answer).len(), 1);
        }
    });
}

#[test]
fn the_cookie_is_for_this_host_over_tls_where_there_is_tls() {
    run(Engine::Sqlite, async |db| {
        let mut settings = settings(everybody()).1;
        settings.hosts = vec!["ops.example.com".to_owned()];
        settings.proxies = vec!["127.0.0.1/32".parse().expect("a network")];
        let site = Site::open(&db.store, settings).await;
        let form = format!("user=ann&password={}", "password+of+ann");
        let login = || site.ask("POST", "/login").ours().form(&form);
        let plain = login().send().await;
        let [cookie] = cookies(&plain)[..] else { panic!("{plain:?}") };
        assert!(
            cookie.starts_with("aftercommit-") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
            "{cookie}"
        );
        let by_proxy = login().with("X-Forwarded-Proto", "https").send().await;
        let by_origin =
            login().host("Host: ops.example.com").with("Origin", "https://ops.example.com").send().await;
        for answer in [by_proxy, by_origin] {
            let [cookie] = cookies(&answer)[..] else { panic!("{answer:?}") };
            let fits = cookie.starts_with("__Host-aftercommit-")
                && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure")
                && !cookie.contains("Domain");
            assert!(fits, "{cookie}");
            assert!(is_in(&site, &answer.cookie().expect("a cookie")).await);
        }
    });
}

#[test]
fn a_session_that_somebody_else_planted_is_not_taken_over() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let name = site.log_in(&token(Role::Viewer)).await.split('=').next().expect("a name").to_owned();
        let attackers = site.log_in(&token(Role::Viewer)).await;
        let invented = format!("{name}={}", "a".repeat(64));
        for planted in [attackers, invented] {
            let form = format!("token={}", token(Role::Admin));
            let login = site.ask("POST", "/login").ours().cookie(&planted).form(&form).send().await;
            let fresh = login.cookie().expect("a cookie");
            assert_ne!(fresh, planted);
            assert!(is_in(&site, &fresh).await && !is_in(&site, &planted).await, "{planted}");
        }
    });
}

#[test]
fn whoever_left_is_out_also_with_the_old_cookie() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let (mine, other) = (site.log_in(&token(Role::Admin)).await, site.log_in(&token(Role::Admin)).await);
        // A page of somebody else cannot log people out.
        let forged =
            site.ask("POST", "/logout").with("Sec-Fetch-Site", "cross-site").cookie(&mine).send().await;
        assert!(forged.status == 403 && is_in(&site, &mine).await);
        let left = site.ask("POST", "/logout").ours().cookie(&mine).send().await;
        assert_eq!((left.status, left.header("location")), (303, Some("./login")));
        assert_eq!(
            cookies(&left).iter().filter(|cookie| cookie.contains("Max-Age=0")).count(),
            2,
            "{left:?}"
        );
        assert!(!is_in(&site, &mine).await && is_in(&site, &other).await);
    });
}

#[test]
fn sessions_end_by_themselves() {
    run(Engine::Sqlite, async |db| {
        let (clock, settings) = settings(everybody());
        let site = Site::open(&db.store, settings).await;
        let cookie = site.log_in(&token(Role::Operator)).await;
        clock.advance(Duration::from_secs(29 * 60));
        assert!(is_in(&site, &cookie).await);
        clock.advance(Duration::from_secs(31 * 60));
        assert!(!is_in(&site, &cookie).await, "half an hour unused");
        let cookie = site.log_in(&token(Role::Operator)).await;
        for _ in 0..24 {
            clock.advance(Duration::from_secs(29 * 60));
            assert!(is_in(&site, &cookie).await);
        }
        clock.advance(Duration::from_secs(25 * 60));
        assert!(!is_in(&site, &cookie).await, "twelve hours in use");
    });
}

#[test]
fn a_flood_of_sessions_and_of_cookies_harms_nobody() {
    run(Engine::Sqlite, async |db| {
        let (clock, settings) = settings(everybody());
        let site = Site::open(&db.store, settings).await;
        let admins = site.log_in(&token(Role::Admin)).await;
        let first = site.log_in(&token(Role::Viewer)).await;
        let mut last = String::new();
        for _ in 0..500 {
            // Of sessions that were used at one instant none is the one unused longest.
            clock.advance(Duration::from_millis(1));
            last = site.log_in(&token(Role::Viewer)).await;
        }
        assert!(is_in(&site, &admins).await && is_in(&site, &last).await && !is_in(&site, &first).await);
        let name = admins.split('=').next().expect("a name");
        for length in [20_000, 60_000, 200_000] {
            let flood = site.ask("GET", "/").cookie(&format!("{name}={}", "a".repeat(length))).send().await;
            assert!(matches!(flood.status, 400 | 401 | 431), "{length}: {}", flood.status);
        }
        for strange in
            [format!("{name}="), name.to_string(), format!("{name}=\"; {name}=é"), "=;;=;".to_owned()]
        {
            assert!(!is_in(&site, &strange).await, "{strange}");
        }
        assert!(is_in(&site, &admins).await);
    });
}

#[test]
fn who_comes_by_a_link_from_elsewhere_is_sent_back_once_for_the_strict_cookie() {
    run(Engine::Sqlite, async |db| {
        let site = Site::open(&db.store, settings(everybody()).1).await;
        let ask = || {
            site.ask("GET", "/")
                .shown()
                .with("Sec-Fetch-Site", "cross-site")
                .with("Sec-Fetch-Mode", "navigate")
        };
        let first = ask().send().await;
        assert!(first.body.contains("http-equiv=\"refresh\"") && !first.body.contains("<form"), "{first:?}");
        let again = ask().cookie(&first.cookie().expect("a mark")).send().await;
        assert!(again.body.contains("<form") && !again.body.contains("refresh"), "{again:?}");
    });
}

#[test]
fn a_read_only_dashboard_still_lets_people_in_and_out() {
    run(Engine::Sqlite, async |db| {
        let settings = Settings { read_only: true, ..settings(everybody()).1 };
        let site = Site::open(&db.store, settings).await;
        let cookie = site.log_in(&token(Role::Admin)).await;
        assert!(is_in(&site, &cookie).await);
        site.ask("POST", "/logout").ours().cookie(&cookie).send().await;
        assert!(!is_in(&site, &cookie).await);
    });
}
