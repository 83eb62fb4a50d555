//! Guarantee: whoever is known by an nkey or by a JWT gets in with it, over TLS too; a certificate that nobody vouches for, or a
//! stranger's key, sends nothing and says what to do (HTTP-07).

use std::{path::PathBuf, process::Command};

use aftercommit::{
    check::Level,
    outcome::{Finding, Outcome, Phase},
};
use async_nats::{ConnectOptions, jetstream};
use serde_json::Value;

use super::Stream;
use crate::{
    downstreams::{
        brokers::{LONG, Server, deliver, effect, served},
        certificates::{Certificates, ca},
    },
    e2e::environment,
};

/// What `credentials.py` made.
struct Made(Value);

impl Made {
    fn new() -> Self {
        let script =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/downstreams/nats/credentials.py");
        let output = Command::new(environment::python()).arg(script).output().expect("Python starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn get(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// A stream at a server, made by a client that is not ours.
async fn stream(options: ConnectOptions, url: &str) -> Stream {
    let client = options.connect(url).await.expect("the server lets the bystander in");
    Stream::make_in(jetstream::new(client), |_config| {}).await
}

fn shows_that_nothing_was_sent(outcome: &Outcome, refuses_us: bool, says: &str) {
    assert_eq!(
        (outcome.finding, outcome.phase, outcome.refuses_us),
        (Finding::NotApplied, Phase::Connect, refuses_us),
        "{outcome:?}"
    );
    assert!(outcome.reason.contains(says), "{says}: {outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_to_a_server_whose_certificate_is_trusted_and_to_no_other() {
    let certificates = Certificates::make();
    let [certificate, key] = certificates.server().map(|path| path.display().to_string());
    let server = Server::nats(&format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}")).await;
    let place = server.place();
    let options = ConnectOptions::new().add_root_certificates(certificates.ca()).require_tls(true);
    let stream = stream(options, &place).await;
    let at = |scheme: &str, host: &str, more: &str| {
        let url = format!("url = \"{scheme}://{host}:{}\"", server.port);
        let table = stream.table(&place).replace(&format!("url = \"nats://{place}\""), &url);
        served(&(table + more), "").downstream
    };
    let (trusted, stranger) = (ca(&certificates.ca()), ca(&certificates.stranger()));
    let name_it = "name its authority's certificate (a PEM file) in ca";
    // It insists on TLS: so does nats://.
    for scheme in ["tls", "nats"] {
        for more in ["", &stranger] {
            let downstream = at(scheme, "127.0.0.1", more);
            shows_that_nothing_was_sent(&deliver(&*downstream, effect("a"), LONG).await, false, name_it);
            let checks = downstream.check(LONG).await;
            assert!(checks[0].level == Level::Fail && checks[0].found.contains(name_it), "{checks:?}");
        }
    }
    assert!(stream.ids().await.is_empty(), "nothing was sent");
    for (scheme, host) in [("tls", "127.0.0.1"), ("tls", "localhost"), ("nats", "127.0.0.1")] {
        let downstream = at(scheme, host, &trusted);
        let outcome = deliver(&*downstream, effect(&format!("{scheme}-{host}")), LONG).await;
        assert_eq!(outcome.finding, Finding::Applied, "{scheme} {host}: {outcome:?}");
        let found = &downstream.check(LONG).await[0].found;
        assert!(found.contains("over TLS, its certificate is trusted"), "{found}");
    }
    assert_eq!(stream.ids().await.len(), 3);
    // One that does not speak TLS, where it was to.
    let plain = Server::nats("").await;
    let table = stream.table(&place).replace(&format!("nats://{place}"), &format!("tls://{}", plain.place()));
    let outcome = deliver(&*served(&(table + &trusted), "").downstream, effect("a"), LONG).await;
    shows_that_nothing_was_sent(&outcome, false, "it does not speak TLS there: compare scheme and port");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nkey_lets_in_whom_the_server_knows_by_it() {
    let made = Made::new();
    let server =
        Server::nats(&format!("authorization {{ users: [ {{ nkey: {} }} ] }}", made.get("public"))).await;
    let known = ConnectOptions::with_nkey(made.get("seed").to_owned());
    let stream = stream(known, &server.place()).await;
    let table = stream.table(&server.place()) + "nkey = { env = \"SECRET\" }\n";
    let refused = deliver(&*served(&table, made.get("stranger")).downstream, effect("a"), LONG).await;
    shows_that_nothing_was_sent(&refused, true, "correct auth, token, nkey or creds");
    assert!(!format!("{refused:?}").contains(made.get("stranger")), "{refused:?}");
    let outcome = deliver(&*served(&table, made.get("seed")).downstream, effect("b"), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    assert_eq!(stream.ids().await, ["b"]);
}

/// Operator mode: accounts and users are JWTs, and the server has seen no user before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creds_file_lets_in_whom_an_account_vouches_for() {
    let made = Made::new();
    let (account, system) = (made.get("account"), made.get("system"));
    let server = Server::nats(&format!(
        "operator: {}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {account}: {}, {system}: {} }}",
        made.get("operator"),
        made.get("account_jwt"),
        made.get("system_jwt"),
    ))
    .await;
    let known = ConnectOptions::with_credentials(made.get("creds")).expect("a creds file");
    let stream = stream(known, &server.place()).await;
    let table = stream.table(&server.place()) + "creds = { env = \"SECRET\" }\n";
    let refused = deliver(&*served(&table, made.get("foreign_creds")).downstream, effect("a"), LONG).await;
    shows_that_nothing_was_sent(&refused, true, "correct auth, token, nkey or creds");
    let outcome = deliver(&*served(&table, made.get("creds")).downstream, effect("b"), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    assert_eq!(stream.ids().await, ["b"]);
}
