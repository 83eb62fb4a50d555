//! Whoever can write an effect must not be able to send the downstream's credentials where he likes.

use aftercommit::outcome::{About, Finding};

use super::{Names, OUTSIDE, deliver, downstream, effect, ports, to};
use crate::http::tests::server::{Server, answer};

#[tokio::test]
async fn credentials_go_to_the_listed_origins_and_to_base_url_alone() {
    let server = Server::start_at(OUTSIDE, |mut connection| async move {
        while connection.read().await && connection.write(&answer(200, "", "{}")).await {}
    })
    .await;
    let port: u16 = server.place.rsplit_once(':').unwrap().1.parse().unwrap();
    let names = Names::new(|_name, _nth| Ok(vec![OUTSIDE]));
    let settings = format!(
        "base_url = \"{}/own\"\nauth = {{ bearer = {{ env = \"TOKEN\" }} }}\negress.http = true\n\
         egress.allow = [\"{OUTSIDE}\"]\negress.auth_origins = [\"http://Trusted.example:{port}\"]\n{}",
        server.url,
        ports(&[port])
    );
    let shop = downstream(&settings, &names);
    let other = Some(format!("http://{OUTSIDE}:{port}/by-address"));
    for (target, carried) in [
        (Some(format!("http://trusted.example:{port}/hook")), true),
        (Some(format!("http://x.trusted.example:{port}/hook")), false),
        (Some(format!("http://evil.example:{port}/hook")), false),
        (other, false),
        (None, true),
    ] {
        let mut effect = target.as_deref().map_or_else(effect, to);
        effect.headers = Some(r#"{"X-Shop":"1"}"#.to_owned());
        let outcome = deliver(&shop, effect).await;
        assert_eq!(outcome.finding, Finding::Applied, "{target:?}: {}", outcome.reason);
        let request = server.seen.requests().pop().unwrap();
        assert_eq!(request.contains("sekret-token"), carried, "{target:?}: {request}");
        assert!(request.contains("idempotency-key: order-17/charge"), "{request}");
    }
}

#[tokio::test]
async fn only_who_had_our_credentials_can_refuse_them() {
    let server = Server::start_at(OUTSIDE, |mut connection| async move {
        while connection.read().await && connection.write(&answer(401, "", "{}")).await {}
    })
    .await;
    let port: u16 = server.place.rsplit_once(':').unwrap().1.parse().unwrap();
    let names = Names::new(|_name, _nth| Ok(vec![OUTSIDE]));
    let settings = format!(
        "base_url = \"{}/own\"\nauth = {{ bearer = {{ env = \"TOKEN\" }} }}\negress.http = true\n\
         egress.allow = [\"{OUTSIDE}\"]\negress.auth_origins = [\"http://trusted.example:{port}\"]\n{}",
        server.url,
        ports(&[port])
    );
    let shop = downstream(&settings, &names);
    let this = Finding::Rejected(About::ThisAttempt);
    for (target, expected) in [
        (Some(format!("http://trusted.example:{port}/hook")), (Finding::NotApplied, true)),
        (Some(format!("http://stranger.example:{port}/hook")), (this, false)),
        (None, (Finding::NotApplied, true)),
    ] {
        let outcome = deliver(&shop, target.as_deref().map_or_else(effect, to)).await;
        assert_eq!((outcome.finding, outcome.refuses_us), expected, "{target:?}: {}", outcome.reason);
    }
}

#[tokio::test]
async fn a_key_in_the_query_joins_what_the_target_has() {
    let server = Server::start_at(OUTSIDE, |mut connection| async move {
        while connection.read().await && connection.write(&answer(200, "", "{}")).await {}
    })
    .await;
    let port: u16 = server.place.rsplit_once(':').unwrap().1.parse().unwrap();
    let names = Names::new(|_name, _nth| Ok(vec![OUTSIDE]));
    let settings = format!(
        "contract = {{ dedupe = \"key\", window = \"24h\", key_in = \"query:ref\" }}\negress.http = true\n\
         egress.allow = [\"{OUTSIDE}\"]\n{}",
        ports(&[port])
    );
    let shop = downstream(&settings, &names);
    for (path, line) in [
        ("", "POST /?ref=order-17%2Fcharge HTTP"),
        ("/a//b?x=%20&y=1", "POST /a//b?x=%20&y=1&ref=order-17%2Fcharge HTTP"),
        ("/?ref=order-17%2Fcharge", "POST /?ref=order-17%2Fcharge HTTP"),
    ] {
        let outcome = deliver(&shop, to(&format!("http://hooks.example.com:{port}{path}"))).await;
        assert_eq!(outcome.finding, Finding::Applied, "{path}: {}", outcome.reason);
        assert!(server.seen.requests().pop().unwrap().starts_with(line), "{path}");
    }
    let other = deliver(&shop, to(&format!("http://hooks.example.com:{port}/?ref=other"))).await;
    assert!(other.reason.contains("another value for ref"), "{}", other.reason);
}
