//! TLS and AUTH against a server that nobody here wrote: with a certificate that is trusted, and with one that is not. Case HTTP-07.

use std::{path::PathBuf, process::Command};

use aftercommit::outcome::{Finding, Phase};
use serde_json::json;

use super::{receiver::Receiver, send, served};

/// An authority, and a certificate for localhost that it signed.
fn certificates(folder: &std::path::Path) -> (PathBuf, [PathBuf; 2]) {
    let openssl = |words: &[&str]| {
        let output = Command::new("openssl").args(words).current_dir(folder).output();
        let output = output.expect("openssl is missing: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let new = ["-newkey", "rsa:2048", "-nodes", "-days", "2"];
    openssl(
        &[&["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority"], &new[..]]
            .concat(),
    );
    openssl(
        &[&["req", "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=localhost"], &new[..3]].concat(),
    );
    std::fs::write(
        folder.join("san"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        "leaf.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-out",
        "leaf.pem",
        "-extfile",
        "san",
    ]);
    (folder.join("ca.pem"), [folder.join("leaf.pem"), folder.join("leaf.key")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_travel_within_tls_to_a_server_whose_certificate_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, certificate) = certificates(folder.path());
    let mut receiver = Receiver::start(&certificate);
    let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }\ntls = \"required\"\n";
    let at =
        |host: &str, more: &str| served(&format!("server = \"smtp://{host}:{}\"\n{more}", receiver.port));
    let trusted = format!("tls_ca = \"{}\"\n", ca.display());
    let mail = json!({"from": "a@shop.test", "to": "b@shop.test", "text": "x"});
    // Nobody vouches for it.
    let outcome = send(&at("localhost", auth), "k", &mail, None).await;
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, false),
        "{outcome:?}"
    );
    assert!(outcome.reason.contains("certificate"), "{outcome:?}");
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
