//! TLS and AUTH against a server that nobody here wrote: with a certificate that is trusted, and with one that is not. Case HTTP-07.

use aftercommit::outcome::{Finding, Phase};
use serde_json::json;

use super::{receiver::Receiver, send, served};
use crate::downstreams::certificates::Certificates;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_travel_within_tls_to_a_server_whose_certificate_is_trusted() {
    let certificates = Certificates::make();
    let mut receiver = Receiver::start(&certificates.server(), &["starttls"]);
    let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }\ntls = \"required\"\n";
    let at =
        |host: &str, more: &str| served(&format!("server = \"smtp://{host}:{}\"\n{more}", receiver.port));
    let trusted = format!("tls_ca = \"{}\"\n", certificates.ca().display());
    let mail = json!({"from": "a@shop.test", "to": "b@shop.test", "text": "x"});
    // Nobody vouches for it, or a stranger.
    let stranger = format!("tls_ca = \"{}\"\n", certificates.stranger().display());
    for more in [auth, &format!("{auth}{stranger}")] {
        let outcome = send(&at("localhost", more), "k", &mail, None).await;
        assert_eq!(
            (outcome.finding, outcome.phase, outcome.refuses_us),
            (Finding::NotApplied, Phase::Connect, false),
            "{outcome:?}"
        );
        assert!(outcome.reason.contains("certificate (a PEM file) in tls_ca"), "{outcome:?}");
    }
    // The wrong password.
    let wrong = auth.replace("bob", "eve");
    let outcome = send(&at("localhost", &format!("{trusted}{wrong}")), "k", &mail, None).await;
    assert_eq!(
        (outcome.finding, outcome.refuses_us, outcome.status()),
        (Finding::NotApplied, true, Some(535)),
        "{outcome:?}"
    );
    // Without TLS it wants no mail.
    let outcome = send(&at("127.0.0.1", ""), "k", &mail, None).await;
    assert_eq!(
        (outcome.finding, outcome.refuses_us, outcome.status()),
        (Finding::NotApplied, true, Some(530)),
        "{outcome:?}"
    );
    for host in ["localhost", "127.0.0.1"] {
        let served = at(host, &format!("{trusted}{auth}"));
        let outcome = send(&served, "k", &mail, None).await;
        assert_eq!(outcome.finding, Finding::Applied, "{host}: {outcome:?}");
        let checks = served.downstream.check(std::time::Duration::from_secs(10)).await;
        assert!(
            checks.iter().any(|check| check.check == "tls" && check.found.contains("STARTTLS")),
            "{checks:?}"
        );
        assert!(checks.iter().all(|check| check.level == aftercommit::check::Level::Ok), "{checks:?}");
    }
    for _ in 0..2 {
        let got = receiver.next();
        assert_eq!((&got["tls"], &got["user"]), (&json!(true), &json!("bob")), "{got}");
    }
}

/// TLS from the first byte (smtps://).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_goes_within_tls_from_the_first_byte_to_a_server_that_is_trusted_and_to_no_other() {
    let certificates = Certificates::make();
    let mut receiver = Receiver::start(&certificates.server(), &["smtps"]);
    let at = |scheme: &str, ca: &std::path::Path| {
        let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }";
        let (port, ca) = (receiver.port, ca.display());
        served(&format!(
            "server = \"{scheme}://localhost:{port}\"\ntls_ca = \"{ca}\"\ntimeout = \"5s\"\n{auth}\n"
        ))
    };
    let mail = json!({"from": "a@shop.test", "to": "b@shop.test", "text": "x"});
    for (scheme, ca, says) in [
        ("smtps", certificates.stranger(), "certificate (a PEM file) in tls_ca"),
        // It waits for our first byte, and we for its greeting.
        ("smtp", certificates.ca(), "no greeting"),
    ] {
        let outcome = send(&at(scheme, &ca), "k", &mail, None).await;
        assert_eq!(
            (outcome.finding, outcome.phase, outcome.refuses_us),
            (Finding::NotApplied, Phase::Connect, false),
            "{outcome:?}"
        );
        assert!(outcome.reason.contains(says), "{outcome:?}");
    }
    let served = at("smtps", &certificates.ca());
    let outcome = send(&served, "k", &mail, None).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    let got = receiver.next();
    assert_eq!((&got["tls"], &got["user"]), (&json!(true), &json!("bob")), "{got}");
    let checks = served.downstream.check(std::time::Duration::from_secs(10)).await;
    assert!(checks.iter().any(|check| check.found.contains("TLS from the first byte")), "{checks:?}");
}
