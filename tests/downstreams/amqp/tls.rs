//! Guarantee: over TLS a message goes to the broker whose certificate is trusted, and to no other (HTTP-07).

use aftercommit::{check::Level, outcome::Finding};

use super::{
    PATIENCE,
    rabbit::{OwnRabbit, Rabbit},
    send, served, shows,
};
use crate::downstreams::certificates::{Certificates, ca};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_to_a_broker_whose_certificate_is_trusted_and_to_no_other() {
    let certificates = Certificates::make();
    let (own, port) = OwnRabbit::start_with_tls(certificates.server()).await;
    let rabbit = Rabbit::at(&own.url()).await;
    rabbit.queue("orders").await;
    let url = |host: &str| format!("amqps://guest:guest@{host}:{port}/%2f");
    for more in [String::new(), ca(&certificates.stranger())] {
        let served = served(&url("127.0.0.1"), &more);
        let outcome = send(&served, "k", "orders").await;
        shows(&outcome, Finding::NotApplied, "name its authority's certificate (a PEM file) in ca");
        assert!(!outcome.phase.may_have_reached() && !outcome.refuses_us, "{outcome:?}");
        let checks = served.downstream.check(PATIENCE).await;
        assert!(checks.len() == 1 && checks[0].level == Level::Fail, "{checks:?}");
        assert!(checks[0].found.contains("in ca"), "{checks:?}");
    }
    assert_eq!(rabbit.take_ids("orders").await, Vec::<String>::new(), "nothing was sent");
    for host in ["127.0.0.1", "localhost"] {
        let served = served(&url(host), &ca(&certificates.ca()));
        shows(&send(&served, host, "orders").await, Finding::Applied, "confirmed");
        let checks = served.downstream.check(PATIENCE).await;
        assert!(
            checks.iter().any(|check| check.found.contains("over TLS, its certificate is trusted")),
            "{checks:?}"
        );
    }
    assert_eq!(rabbit.take_ids("orders").await, ["127.0.0.1", "localhost"]);
    rabbit.leave().await;
}
