//! The gate before a route, with a route for every right: the routes that there are today need not have them all.

use axum::http::{HeaderValue, Method};

use super::*;
use crate::{
    Access, Login, Role, Secret,
    access::Visitor,
    serve::tests::{Stage, open},
};

const RIGHTS: [(Right, &str); 4] = [
    (Right::Public, "public"),
    (Right::View, "view"),
    (Right::Operate, "operate"),
    (Right::Administer, "administer"),
];

async fn stage(read_only: bool) -> Stage {
    let login =
        |role: Role| Login { name: role.as_str().to_owned(), role, secret: Secret::new(role.as_str()) };
    let access = Access { tokens: Role::ALL.map(login).to_vec(), ..Access::default() };
    open(Settings { access, read_only, ..Settings::default() }, |routes| {
        for (right, path) in RIGHTS {
            routes.add(Method::GET, &format!("/{path}"), right, async || "in");
            routes.add(Method::POST, &format!("/{path}"), right, async || "in");
        }
        routes.add(Method::GET, "/who", Right::View, async |visitor: Visitor| {
            format!("{}, {} from {}", visitor.who, visitor.role.as_str(), visitor.from)
        });
    })
    .await
}

async fn status(stage: &Stage, method: &str, path: &str, lines: &str) -> u16 {
    let asked = format!("{method} /{path} HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n");
    let heard = stage.hear(&asked).await;
    heard
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {heard}"))
}

#[tokio::test]
async fn a_role_gets_as_far_as_its_right() {
    let stage = stage(false).await;
    for (at, (_, path)) in RIGHTS.iter().enumerate() {
        for method in ["GET", "POST"] {
            let ours = "Sec-Fetch-Site: same-origin\r\n";
            let wanted = if at == 0 { 200 } else { 401 };
            assert_eq!(status(&stage, method, path, ours).await, wanted, "nobody {method} {path}");
            for (rank, role) in Role::ALL.iter().enumerate() {
                let lines = format!("{ours}Authorization: Bearer {}\r\n", role.as_str());
                let wanted = if rank + 1 >= at { 200 } else { 403 };
                assert_eq!(status(&stage, method, path, &lines).await, wanted, "{role:?} {method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn read_only_takes_every_change_from_everybody() {
    let stage = stage(true).await;
    for (right, path) in RIGHTS {
        let lines = "Sec-Fetch-Site: same-origin\r\nAuthorization: Bearer admin\r\n";
        assert_eq!(status(&stage, "GET", path, lines).await, 200, "{path}");
        let wanted = if right == Right::Public { 200 } else { 403 };
        assert_eq!(status(&stage, "POST", path, lines).await, wanted, "{path}");
    }
}

#[tokio::test]
async fn a_change_says_where_it_comes_from() {
    let stage = stage(false).await;
    let bearer = "Authorization: Bearer admin\r\n";
    for (lines, wanted) in [
        ("", 200),
        ("Sec-Fetch-Site: none\r\n", 200),
        ("Origin: http://localhost\r\n", 200),
        ("Origin: http://localhost:80\r\n", 200),
        ("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: same-origin\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Sec-Fetch-Site: \r\n", 403),
        ("Sec-Fetch-Site: new-word\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost\r\n", 403),
        ("Origin: null\r\n", 403),
        // Behind a proxy that ends TLS the name has no port either.
        ("Origin: https://localhost\r\n", 200),
        ("Origin: http://localhost:7799\r\n", 403),
        ("Origin: http://localhost\r\nOrigin: http://localhost\r\n", 403),
        ("Origin: http://localhost.evil.example\r\n", 403),
        ("Origin: file://localhost\r\n", 403),
        ("Origin: localhost\r\n", 403),
    ] {
        let lines = format!("{bearer}{lines}");
        assert_eq!(status(&stage, "POST", "operate", &lines).await, wanted, "{lines:?}");
        assert_eq!(status(&stage, "GET", "operate", &lines).await, 200, "{lines:?}");
    }
    assert_eq!(status(&stage, "POST", "public", "").await, 403, "who logs in says it too");
}

#[tokio::test]
async fn the_audit_will_have_a_name_and_an_address() {
    let asked = "GET /who HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer viewer\r\n\
                 X-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n";
    let heard = stage(false).await.hear(asked).await;
    assert!(heard.ends_with("viewer, viewer from 127.0.0.1"), "{heard}");
}

#[tokio::test]
async fn who_lost_their_session_while_they_changed_something_is_told_that_nothing_was_done() {
    let stage = stage(false).await;
    let asked = "POST /operate HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n\
                 Accept: text/html\r\nConnection: close\r\n\r\n";
    let heard = stage.hear(asked).await;
    assert!(heard.starts_with("HTTP/1.1 401") && heard.contains("Nothing was done"), "{heard}");
    assert!(heard.contains("action=\"./login\""), "{heard}");
}

#[test]
fn a_host_is_one_host() {
    let uri = |text: &str| text.parse::<Uri>().unwrap();
    let headers = |hosts: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_static(host));
        }
        headers
    };
    let found =
        |hosts: &[&'static str], line: &str| host(&headers(hosts), &uri(line)).map(|host| host.to_string());
    assert_eq!(found(&["a:1"], "/"), Some("a:1".to_owned()));
    assert_eq!(found(&[], "http://a/"), Some("a".to_owned()));
    assert_eq!(found(&["A"], "http://a/"), Some("A".to_owned()));
    for (hosts, line) in
        [(&["a", "a"][..], "/"), (&[], "/"), (&["b"], "http://a/"), (&["u@a"], "/"), (&["a b"], "/")]
    {
        assert_eq!(found(hosts, line), None, "{hosts:?} {line}");
    }
}
