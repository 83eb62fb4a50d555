//! Guarantee: the same message at every attempt, and what a broker would close the channel on is never sent.

use aftercommit::{
    effect::Effect,
    outcome::{About, Finding, Phase},
};
use lapin::types::AMQPValue;

use super::{
    super::{
        config::Amqp,
        render::{self, Publication},
    },
    PATIENCE, attempt, effect, served, settings, shows,
};

const PLACE: &str = "url = \"amqp://127.0.0.1:1\"\n";

/// The kind's own part of the configuration.
fn amqp(more: &str) -> Amqp {
    let settings = settings(&format!("{PLACE}{more}")).unwrap();
    let configured = settings.downstreams["orders"].configured.clone();
    let any: std::sync::Arc<dyn std::any::Any + Send + Sync> = configured;
    any.downcast_ref::<Amqp>().expect("an amqp downstream").clone()
}

fn rendered(amqp: &Amqp, effect: &Effect) -> Result<Publication, String> {
    render::render(amqp, effect, &effect.key)
}

#[test]
fn an_effect_becomes_the_same_message_every_time() {
    let amqp = amqp(
        "exchange = \"orders\"\nrouting_key = \"usual\"\n[downstream.orders.operations.place]\nexchange = \"placed\"",
    );
    let mut effect = effect();
    effect.operation = Some("place".to_owned());
    effect.headers = Some(r#"{"x-tenant":"ä","B":"2"}"#.to_owned());
    effect.trace_context = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    let first = rendered(&amqp, &effect).unwrap();
    let properties = &first.properties;
    assert_eq!((first.exchange.as_str(), first.routing_key.as_str()), ("placed", "usual"));
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "place");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), effect.key);
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    assert_eq!(*properties.delivery_mode(), Some(2));
    let headers = properties.headers().as_ref().unwrap().inner();
    let text = |name: &str| {
        let AMQPValue::LongString(text) = &headers[name] else { panic!("{name} is no string") };
        text.to_string()
    };
    assert_eq!(
        ["x-tenant", "B", "traceparent"].map(text),
        ["ä", "2", effect.trace_context.as_deref().unwrap()]
    );
    assert_eq!(first.body, effect.payload.clone().unwrap().into_bytes());
    for _ in 0..20 {
        let again = rendered(&amqp, &effect).unwrap();
        assert_eq!((again.body, again.properties), (first.body.clone(), first.properties.clone()));
    }
}

#[test]
fn the_effects_target_comes_before_the_operations_routing_key_and_that_before_the_downstreams() {
    let amqp =
        amqp("routing_key = \"usual\"\n[downstream.orders.operations.place]\nrouting_key = \"placed\"");
    let mut effect = effect();
    let key = |effect: &Effect| rendered(&amqp, effect).unwrap().routing_key.to_string();
    assert_eq!(key(&effect), "usual");
    effect.operation = Some("place".to_owned());
    assert_eq!(key(&effect), "placed");
    effect.target = Some("mine".to_owned());
    assert_eq!(key(&effect), "mine");
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_anybody_connects() {
    let long = "x".repeat(256);
    type Change = Box<dyn Fn(&mut Effect)>;
    let cases: Vec<(&str, Change)> = vec![
        (
            "routing key",
            Box::new({
                let long = long.clone();
                move |effect| effect.target = Some(long.clone())
            }),
        ),
        (
            "content_type",
            Box::new({
                let long = long.clone();
                move |effect| effect.content_type = Some(long.clone())
            }),
        ),
        (
            "name",
            Box::new({
                let long = long.clone();
                move |effect| effect.headers = Some(format!(r#"{{"{long}":"1"}}"#))
            }),
        ),
        ("not the effect's", Box::new(|effect| effect.headers = Some(r#"{"CC":"elsewhere"}"#.to_owned()))),
        ("not the effect's", Box::new(|effect| effect.headers = Some(r#"{"Message-Id":"1"}"#.to_owned()))),
        ("twice", Box::new(|effect| effect.headers = Some(r#"{"a":"1","a":"2"}"#.to_owned()))),
        ("empty name", Box::new(|effect| effect.headers = Some(r#"{"":"1"}"#.to_owned()))),
        (
            "headers have",
            Box::new(|effect| effect.headers = Some(format!(r#"{{"a":"{}"}}"#, "x".repeat(70_000)))),
        ),
        ("max_message_size", Box::new(|effect| effect.payload = Some("1".repeat(2000)))),
        ("no target", Box::new(|effect| effect.target = None)),
    ];
    let served = served(&format!("{PLACE}max_message_size = \"1KiB\""));
    for (words, change) in cases {
        let mut attempt = attempt("k", PATIENCE);
        let effect = std::sync::Arc::get_mut(&mut attempt.effect).unwrap();
        effect.target = Some("queue".to_owned());
        change(effect);
        let outcome = served.downstream.deliver(&attempt).await;
        shows(&outcome, Finding::Rejected(About::ThisAttempt), Phase::Render);
        assert!(outcome.reason.contains(words), "{words}: {}", outcome.reason);
    }
    let mut attempt = attempt(&long, PATIENCE);
    std::sync::Arc::get_mut(&mut attempt.effect).unwrap().target = Some("queue".to_owned());
    let outcome = served.downstream.deliver(&attempt).await;
    shows(&outcome, Finding::Rejected(About::ThisAttempt), Phase::Render);
    assert!(outcome.reason.contains("key"), "{}", outcome.reason);
}
