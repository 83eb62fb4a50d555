//! Guarantee: an effect is the same CloudEvent over every broker, its data byte for byte what the application wrote.

use std::collections::BTreeMap;

use aftercommit::{downstream::Served, effect::Effect, outcome::Finding};
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};

use super::{
    amqp,
    brokers::{LONG, deliver, effect, own_name, served, variable},
    nats::{Stream, bystander},
    redis::{Bystander, table},
};

const EVENTS: &str = "[downstream.shop.cloudevents]\nsource = \"/shop/orders\"\ntype = \"order.{operation}\"\nsubject = \"{/order}\"\n";
/// A reader of JSON that reads numbers would change it.
const PAYLOAD: &str = r#"{"order": "A 17",  "n":12345678901234567890, "x":1.0}"#;

fn event(key: &str) -> Effect {
    Effect { operation: Some("placed".to_owned()), payload: Some(PAYLOAD.to_owned()), ..effect(key) }
}

async fn sends(served: &Served, key: &str) {
    let outcome = deliver(&*served.downstream, event(key), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
}

/// What every event here has, with `prefix` before each name.
fn holds(attributes: &BTreeMap<String, String>, prefix: &str, key: &str, subject: &str) {
    let of = |name: &str| attributes.get(&format!("{prefix}{name}")).map(String::as_str);
    assert_eq!(of("specversion"), Some("1.0"), "{attributes:?}");
    assert_eq!(of("id"), Some(key), "{attributes:?}");
    assert_eq!(of("source"), Some("/shop/orders"), "{attributes:?}");
    assert_eq!(of("type"), Some("order.placed"), "{attributes:?}");
    assert_eq!(of("subject"), Some(subject), "{attributes:?}");
    assert!(of("time").is_some_and(|time| time.ends_with('Z')), "{attributes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_carries_an_event_in_its_headers() {
    let place = variable("AFTERCOMMIT_TEST_NATS").trim_start_matches("nats://").to_owned();
    let stream = Stream::make(&place, |_config| {}).await;
    let table = format!("{}operations.placed = {{}}\n{EVENTS}", stream.table(&place));
    sends(&served(&table, ""), "order-1").await;
    let stored = bystander(&place).await.get_stream(&stream.name).await.expect("it is there");
    let message = stored.get_raw_message(1).await.expect("a message");
    let headers = message
        .headers
        .iter()
        .map(|(name, values)| (name.to_string(), values[0].to_string()))
        .collect::<BTreeMap<_, _>>();
    holds(&headers, "ce-", "order-1", "A%2017");
    assert_eq!(headers["ce-datacontenttype"], "application/json");
    assert_eq!(message.payload.as_ref(), PAYLOAD.as_bytes());
    bystander(&place).await.delete_stream(&stream.name).await.expect("it can be deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_carries_an_event_in_its_fields() {
    let place = variable("AFTERCOMMIT_TEST_REDIS").trim_start_matches("redis://").to_owned();
    let stream = own_name("events");
    let table = format!("{}operations.placed = {{}}\n{EVENTS}", table(&place, &stream));
    sends(&served(&table, ""), "order-1").await;
    let mut bystander = Bystander::at(&place).await;
    let entries: Vec<(String, BTreeMap<String, String>)> =
        bystander.ask(&["XRANGE", &stream, "-", "+"]).await;
    let fields = &entries[0].1;
    holds(fields, "ce_", "order-1", "A 17");
    assert_eq!((fields["content_type"].as_str(), fields["body"].as_str()), ("application/json", PAYLOAD));
    let _deleted: i64 = bystander.ask(&["DEL", &stream]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn amqp_carries_an_event_in_its_headers() {
    let url = amqp::rabbit::shared_url();
    let queue = amqp::rabbit::unique("events");
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.expect("it answers");
    let channel = connection.create_channel().await.expect("a channel");
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await.expect("a queue");
    let events = EVENTS.replace("downstream.shop", "downstream.orders");
    let served =
        amqp::served(&url, &format!("routing_key = \"{queue}\"\noperations.placed = {{}}\n{events}"));
    sends(&served, "order-1").await;
    let got = channel
        .basic_get(queue.as_str().into(), BasicGetOptions { no_ack: true })
        .await
        .expect("it can be read");
    let message = got.expect("a message").delivery;
    let headers = message.properties.headers().clone().expect("headers");
    let text = |value: &AMQPValue| {
        let AMQPValue::LongString(text) = value else { return format!("{value:?}") };
        String::from_utf8_lossy(text.as_bytes()).into_owned()
    };
    let headers = headers.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    holds(&headers, "cloudEvents:", "order-1", "A 17");
    assert_eq!(message.data, PAYLOAD.as_bytes());
    channel
        .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
        .await
        .expect("it can be deleted");
}
