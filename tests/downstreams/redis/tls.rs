//! Guarantee: over TLS an entry goes to the server whose certificate is trusted and for its name, and to no other (HTTP-07).

use std::time::Duration;

use aftercommit::{
    check::Level,
    outcome::{Finding, Phase},
};

use super::{Bystander, table};
use crate::downstreams::{
    brokers::{LONG, Server, deliver, effect, served},
    certificates::{Certificates, ca},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_goes_to_a_server_whose_certificate_is_trusted_and_to_no_other() {
    let certificates = Certificates::make();
    let server = Server::redis_with_tls(&certificates).await;
    let at = |place: &str, more: &str| {
        let place = format!("rediss://{place}");
        let table = table("X", "orders").replace("redis://X", &place);
        served(&(table + more), "").downstream
    };
    let (trusted, stranger) = (ca(&certificates.ca()), ca(&certificates.stranger()));
    let place = format!("127.0.0.1:{}", server.tls_port);
    for (place, more, says) in [
        (place.as_str(), "", "name its authority's certificate (a PEM file) in ca"),
        (&place, &stranger, "name its authority's certificate (a PEM file) in ca"),
        (&format!("127.0.0.2:{}", server.tls_port), &trusted, "its certificate is for another name"),
    ] {
        let downstream = at(place, more);
        let outcome = deliver(&*downstream, effect("a"), LONG).await;
        assert_eq!(
            (outcome.finding, outcome.phase, outcome.refuses_us),
            (Finding::NotApplied, Phase::Connect, false),
            "{outcome:?}"
        );
        assert!(outcome.reason.contains(says), "{says}: {outcome:?}");
        let checks = downstream.check(LONG).await;
        assert!(checks.len() == 1 && checks[0].level == Level::Fail, "{checks:?}");
        assert!(checks[0].found.contains(says), "{checks:?}");
    }
    // A Redis without TLS waits for more of what it takes for a command.
    let outcome = deliver(&*at(&server.place(), &trusted), effect("a"), Duration::from_secs(3)).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{outcome:?}");
    assert!(outcome.reason.contains("look whether it speaks TLS on this port"), "{outcome:?}");
    let plain = served(&table(&place, "orders"), "").downstream;
    let outcome = deliver(&*plain, effect("a"), LONG).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect), "{outcome:?}");
    assert!(outcome.reason.contains("rediss://"), "{outcome:?}");
    let mut bystander = Bystander::at(&server.place()).await;
    assert_eq!(bystander.count("*").await, 0, "nothing was sent");
    for host in ["127.0.0.1", "localhost"] {
        let downstream = at(&format!("{host}:{}", server.tls_port), &trusted);
        let outcome = deliver(&*downstream, effect(host), LONG).await;
        assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
        let checks = downstream.check(LONG).await;
        let found = &checks[0].found;
        assert!(
            checks[0].level == Level::Ok && found.contains("over TLS, its certificate is trusted"),
            "{found}"
        );
    }
    assert_eq!(bystander.keys("orders").await, ["127.0.0.1", "localhost"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_within_tls_is_accepted_or_pauses_with_the_servers_words() {
    let certificates = Certificates::make();
    let server = Server::redis_with_tls(&certificates).await;
    let mut bystander = Bystander::at(&server.place()).await;
    let rule = ["ACL", "SETUSER", "shop", "on", ">sekret-word-17", "~*", "+@all"];
    let _ok: String = bystander.ask(&rule).await;
    let table = table("X", "orders")
        .replace("redis://X", &format!("rediss://localhost:{}/0", server.tls_port))
        + &ca(&certificates.ca())
        + "auth = { user = \"shop\", password = { env = \"SECRET\" } }\n";
    let refused = deliver(&*served(&table, "wrong-word-17").downstream, effect("a"), LONG).await;
    assert_eq!((refused.finding, refused.refuses_us), (Finding::NotApplied, true), "{refused:?}");
    assert!(
        refused.reason.contains("WRONGPASS") && refused.reason.contains("correct url or auth"),
        "{refused:?}"
    );
    assert!(!format!("{refused:?}").contains("wrong-word-17"), "{refused:?}");
    assert_eq!(bystander.count("*").await, 0, "nothing was sent");
    let outcome = deliver(&*served(&table, "sekret-word-17").downstream, effect("a"), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    // Its words are told, whichever they are: here of a database that is not there.
    let elsewhere = table.replace("/0\"", "/99\"");
    let checks = served(&elsewhere, "sekret-word-17").downstream.check(LONG).await;
    assert!(
        checks[0].level == Level::Fail && checks[0].found.contains("DB index is out of range"),
        "{checks:?}"
    );
}
