//! Guarantee: an order that is placed once, however often it is sent, arrives once: as a receipt in the mailbox and as a message
//! in RabbitMQ.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{
    commands::{Machine, urls},
    processes::{Process, ending, eventually},
};
use crate::downstreams::amqp::rabbit::{Rabbit, shared_url};

const SOON: Duration = Duration::from_secs(30);
/// What `dev --amqp` fills; no other test starts it so.
const QUEUE: &str = "aftercommit-dev-orders";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_arrives_once_as_a_receipt_and_as_a_message() {
    let machine = Machine::new();
    let log = machine.path().join("dev.log");
    let broker = shared_url();
    let mut command = machine.command();
    command.args(["dev", "--port", "0", "--amqp", &broker]);
    let mut dev = Process::spawn("dev", &mut command, &log);
    eventually("dev prints its addresses", SOON, async || {
        assert!(dev.has_ended().is_none(), "{}", dev.output());
        urls(&dev.output()).iter().any(|(_, path)| path == "/healthz")
    })
    .await;
    let (host, _) = urls(&dev.output()).remove(0);
    let client = reqwest::Client::new();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let order = client
            .post(format!("http://{host}/orders"))
            .header("Idempotency-Key", "\"order-1\"")
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body("item=tea&amount=1500&currency=jpy&email=customer%40example.com");
        let answer = order.send().await.expect("the service answers");
        assert_eq!(answer.status(), 201);
        answers.push(answer.text().await.expect("a body"));
    }
    assert_eq!(answers[0], answers[1], "the second answer is the first one again");
    let id =
        serde_json::from_str::<Value>(&answers[0]).expect("JSON")["id"].as_str().expect("an id").to_owned();

    let mailbox = async || -> Vec<Value> {
        let got =
            client.get(format!("http://{host}/sinks/mail/json")).send().await.expect("the mailbox answers");
        let text = got.text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|problem| panic!("{problem}: {text}"))
    };
    eventually("the receipt is caught", SOON, async || mailbox().await.len() == 1).await;
    let mail = mailbox().await.remove(0).to_string();
    assert!(mail.contains(&format!("Your order {id}")) && mail.contains("customer@example.com"), "{mail}");

    let rabbit = Rabbit::at(&broker).await;
    rabbit.queue(QUEUE).await;
    let mut messages = Vec::new();
    eventually("the message is published", SOON, async || {
        messages.extend(rabbit.take_ids(QUEUE).await);
        !messages.is_empty()
    })
    .await;

    dev.signal(Signal::TERM);
    let status = dev.ended(Duration::from_secs(40)).await;
    assert!(status.success(), "{}\n{}", ending(status), dev.output());
    messages.extend(rabbit.take_ids(QUEUE).await);
    assert_eq!(messages.len(), 1, "one order is one message: {messages:?}");
    rabbit.delete_queue(QUEUE).await;
    rabbit.leave().await;
}
