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
    // What would be declared is looked for, and not declared.
    let other = unique("look");
    let declared = format!(
        "exchange = \"{other}\"\n[downstream.orders.declare]\nexchanges = [{{ name = \"{other}\", type = \"topic\" }}]\n\
         queues = [{{ name = \"{queue}\" }}, {{ name = \"{other}\" }}]\n\
         bindings = [{{ exchange = \"{other}\", queue = \"{queue}\", routing_key = \"#\" }}]"
    );
    for _ in 0..2 {
        let checks = served(&shared_url(), &declared).downstream.check(PATIENCE).await;
        assert!(checks.iter().all(|check| check.level == Level::Ok), "{checks:?}");
        let found = |what: &str, words: &str| {
            let mut there = checks.iter().filter(|check| check.check == what);
            assert!(there.any(|check| check.found.contains(words)), "{what}, {words}: {checks:?}");
        };
        found("exchange", &format!("{other:?} does not exist yet"));
        found("queue", &format!("{queue:?} is there: 0 messages, 0 consumers"));
        found("queue", &format!("{other:?} does not exist yet"));
    }
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}
