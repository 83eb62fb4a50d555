//! Guarantee: whom the broker does not let in learns it in time, pauses where only a person can help, and shows no password
//! (AMQP-05, HTTP-07).

use aftercommit::{check::Level, outcome::Finding};

use super::{
    PATIENCE,
    rabbit::{Rabbit, shared_url, unique},
    send, served, shows,
};

fn changed(from: &str, to: &str) -> String {
    let url = shared_url();
    assert!(url.contains(from), "the test run's URL is not of the form that this test changes");
    url.replace(from, to)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_or_virtual_host_pauses_with_the_brokers_words() {
    for (url, words) in [
        (changed("guest:guest@", "guest:wrong-password@"), "ACCESS_REFUSED"),
        (changed("/%2f", "/no-such-host"), "no-such-host"),
    ] {
        let served = served(&url, "");
        let outcome = send(&served, "k", "q").await;
        shows(&outcome, Finding::NotApplied, words);
        assert!(outcome.refuses_us && !outcome.reason.contains("wrong-password"), "{outcome:?}");
        let checks = served.downstream.check(PATIENCE).await;
        assert!(
            checks.len() == 1 && checks[0].level == Level::Fail && checks[0].check == "login",
            "{checks:?}"
        );
        assert!(!format!("{checks:?}").contains("wrong-password"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_on_a_plain_port_is_not_applied() {
    let served = served(&changed("amqp://", "amqps://"), "");
    let outcome = send(&served, "k", "q").await;
    shows(&outcome, Finding::NotApplied, "TLS");
    assert!(!outcome.phase.may_have_reached());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_healthy_broker_says_what_it_saw_and_what_cannot_be_seen() {
    let (rabbit, queue) = (Rabbit::at(&shared_url()).await, unique("look"));
    let look = async |toml: &str| {
        let checks = served(&shared_url(), toml).downstream.check(PATIENCE).await;
        checks.into_iter().map(|check| (check.check, check.level)).collect::<Vec<_>>()
    };
    let healthy = [("connection", Level::Ok), ("login", Level::Ok), ("alarm", Level::Ok)];
    let with = |more: &[_]| [&healthy[..], more].concat();
    let routing = format!("routing_key = \"{queue}\"");
    assert_eq!(look(&routing).await, with(&[("queue", Level::Fail)]));
    rabbit.queue(&queue).await;
    assert_eq!(look(&routing).await, with(&[("queue", Level::Ok)]));
    assert_eq!(look("exchange = \"no-such-exchange\"").await, with(&[("exchange", Level::Fail)]));
    assert_eq!(
        look("exchange = \"amq.topic\"").await,
        with(&[("exchange", Level::Ok), ("binding", Level::Warn)])
    );
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}
