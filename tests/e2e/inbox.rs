//! The inbox, as the example applications use it: a consumer acts once on each message, whoever was killed between its COMMIT and
//! its acknowledgement; a receiver of webhooks reads nothing that its sender did not sign, and acts once on each delivery.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Command,
    task::JoinSet,
};

use super::{
    clock::now_us,
    environment,
    processes::{Process, eventually, run_ok},
    reservation::address,
    shop::Shop,
    wire::{Message, Reader},
};

const SOON: Duration = Duration::from_secs(60);
/// What the example's consumer takes at a time, unacknowledged.
const PREFETCH: usize = 20;
const ORDERS: usize = 50;

/// A proxy in front of the broker that can stop forwarding what clients say: what they acknowledge then is never heard.
struct Gate {
    address: SocketAddr,
    shut: Arc<AtomicBool>,
    _server: JoinSet<()>,
}

impl Gate {
    async fn before(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shut = Arc::new(AtomicBool::new(false));
        let mut server = JoinSet::new();
        let shared = Arc::clone(&shut);
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&upstream).await.expect("the broker listens");
                let (client, server) = (client.into_split(), server.into_split());
                connections.spawn(forward(client, server, Arc::clone(&shared)));
            }
        });
        Self { address, shut, _server: server }
    }
}

/// Both directions, until one of the two is gone; then the other is told.
async fn forward(
    (client_read, client_write): (OwnedReadHalf, OwnedWriteHalf),
    (server_read, server_write): (OwnedReadHalf, OwnedWriteHalf),
    shut: Arc<AtomicBool>,
) {
    let never = AtomicBool::new(false);
    tokio::select! {
        _gone = pass(client_read, server_write, &shut) => {}
        _gone = pass(server_read, client_write, &never) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shut: &AtomicBool) -> std::io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let n = from.read(&mut piece).await?;
        if n == 0 {
            return Ok(());
        }
        if !shut.load(Ordering::SeqCst) {
            to.write_all(&piece[..n]).await?;
        }
    }
}

/// The test's own queue.
struct Queue {
    name: String,
    broker: url::Url,
}

impl Queue {
    fn new() -> Self {
        let name = format!("orders-{}", uuid::Uuid::new_v4().simple());
        Self { name, broker: environment::amqp_url().parse().expect("the broker's URL") }
    }

    fn server(&self) -> String {
        format!("{}:{}", self.broker.host_str().unwrap_or("127.0.0.1"), self.broker.port().unwrap_or(5672))
    }

    fn through(&self, proxy: SocketAddr) -> url::Url {
        let mut url = self.broker.clone();
        url.set_ip_host(proxy.ip()).expect("an address");
        url.set_port(Some(proxy.port())).expect("it has a host");
        url
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(environment::python());
        command.arg(environment::script("amqp.py")).args([verb, &self.name]);
        command.env("AMQP_URL", self.broker.as_str());
        command
    }

    /// Publishes (message id, order); the broker has confirmed each when this returns.
    async fn publish(&self, messages: &[(String, String)], log: &Path) {
        let mut publisher = Process::spawn("publisher", &mut self.script("publish"), log);
        let mut stdin = publisher.stdin();
        for (id, order) in messages {
            let line = format!("{id}\t{{\"order\":\"{order}\"}}\n");
            stdin.write_all(line.as_bytes()).await.expect("the publisher reads");
        }
        drop(stdin);
        let status = publisher.ended(SOON).await;
        assert!(status.success(), "{}", publisher.output());
    }

    async fn depth(&self) -> usize {
        run_ok(&mut self.script("depth"), SOON).await.trim().parse().expect("a number")
    }
}

async fn consumer(shop: &Shop, queue: &Queue, broker: &url::Url, name: &str) -> Process {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("consumer.py")).arg(&queue.name);
    command.env("DATABASE_URL", shop.database.url()).env("AMQP_URL", broker.as_str());
    let mut consumer = Process::spawn(name, &mut command, &shop.path(&format!("{name}.log")));
    eventually("the consumer consumes", SOON, async || {
        assert!(consumer.has_ended().is_none(), "{}", consumer.output());
        consumer.output().contains("consuming")
    })
    .await;
    consumer
}

async fn number(shop: &Shop, sql: &str) -> usize {
    shop.database.text(&format!("SELECT CAST(({sql}) AS text)")).await.parse().expect("a number")
}

/// One consumer is killed after its COMMITs, before the broker has heard of any; another one gets everything again.
async fn acts_once(shop: Shop) {
    let config = shop.configure("worker", "");
    shop.migrate(&config).await;
    let queue = Queue::new();
    let gate = Gate::before(queue.server()).await;
    let mut first = consumer(&shop, &queue, &queue.through(gate.address), "first").await;
    gate.shut.store(true, Ordering::SeqCst);

    // Every third message is sent twice by its sender, and one has no id.
    let mut messages = vec![(String::new(), "nobody".to_owned())];
    for order in 0..ORDERS {
        let message = (format!("message-{order}"), format!("A-{order}"));
        messages.extend(std::iter::repeat_n(message, 1 + usize::from(order % 3 == 0)));
    }
    queue.publish(&messages, &shop.path("publisher.log")).await;
    let shipped = "SELECT count(*) FROM shipments";
    // Of its first messages one is refused, and each third order stands twice among the others.
    let distinct = messages[1..PREFETCH].iter().collect::<std::collections::HashSet<_>>().len();
    eventually("the first consumer has committed what it was given", SOON, async || {
        number(&shop, shipped).await == distinct
    })
    .await;
    first.kill().await;

    let mut second = consumer(&shop, &queue, &queue.broker, "second").await;
    eventually("every order is shipped and the queue is empty", SOON, async || {
        assert!(second.has_ended().is_none(), "{}", second.output());
        number(&shop, "SELECT count(DISTINCT order_id) FROM shipments").await == ORDERS
            && queue.depth().await == 0
    })
    .await;
    // What it had taken and not acknowledged would come back now.
    second.kill().await;
    println!("{distinct} messages were committed and not acknowledged; all {} came again", PREFETCH);
    let mut third = consumer(&shop, &queue, &queue.broker, "third").await;
    queue.publish(&[("last".to_owned(), "last".to_owned())], &shop.path("publisher.log")).await;
    eventually("the last order is shipped", SOON, async || number(&shop, shipped).await > ORDERS).await;
    third.kill().await;
    assert_eq!(number(&shop, shipped).await, ORDERS + 1, "an order was shipped twice");
    assert_eq!(number(&shop, "SELECT count(*) FROM shipments WHERE order_id = 'nobody'").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_before_it_acknowledges_acts_once_on_postgresql() {
    acts_once(Shop::on_postgres("inbox").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_before_it_acknowledges_acts_once_on_sqlite() {
    acts_once(Shop::on_sqlite().await).await;
}

const SECRET: &[u8] = b"the receiver and the sender know";

/// A delivery of a webhook. What differs from an honest one is changed in the fields.
#[derive(Clone)]
struct Delivery {
    id: String,
    /// Seconds since 1970.
    sent_at: i64,
    body: String,
    signature: String,
}

impl Delivery {
    fn signed(id: &str, sent_at: i64, body: &str, secret: &[u8]) -> Self {
        let mac = hmac(secret, format!("{id}.{sent_at}.{body}").as_bytes());
        let signature = format!("v1,{}", STANDARD.encode(mac));
        Self { id: id.to_owned(), sent_at, body: body.to_owned(), signature }
    }

    fn honest(id: &str, amount: u32) -> Self {
        Self::signed(id, now_us() / 1_000_000, &payment(id, amount), SECRET)
    }

    async fn to(&self, address: &str) -> u16 {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nwebhook-id: {}\r\nwebhook-timestamp: {}\r\nwebhook-signature: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
            self.id,
            self.sent_at,
            self.signature,
            self.body.len(),
            self.body
        );
        let mut stream = TcpStream::connect(address).await.expect("the receiver listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let answer: Option<Message> = Reader::new(stream).message().await.expect("an answer");
        answer.expect("an answer").status()
    }
}

fn payment(id: &str, amount: u32) -> String {
    format!(r#"{{"type":"payment.received","data":{{"id":"{id}","amount":{amount}}}}}"#)
}

/// RFC 2104, by hand: the receiver's package must not check itself.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut pads = [[0x36_u8; 64], [0x5c_u8; 64]];
    for pad in &mut pads {
        pad.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    }
    let inner = Sha256::new().chain_update(pads[0]).chain_update(message).finalize();
    Sha256::new().chain_update(pads[1]).chain_update(inner).finalize().into()
}

async fn receives_what_is_signed_once(shop: Shop) {
    let config = shop.configure("worker", "");
    shop.migrate(&config).await;
    let mut command = Command::new(environment::python());
    command.arg(environment::example("webhook_receiver.py")).arg("0");
    command.env("DATABASE_URL", shop.database.url());
    command.env("WEBHOOK_SECRET", format!("whsec_{}", STANDARD.encode(SECRET)));
    let mut receiver = Process::spawn("receiver", &mut command, &shop.path("receiver.log"));
    let address = address(&mut receiver).await;

    let honest = Delivery::honest("evt-1", 1_500);
    let (now, body) = (honest.sent_at, honest.body.clone());
    let replayed = Delivery::signed("evt-1", now + 1, &body, SECRET);
    for (delivery, what) in
        [(&honest, "the first"), (&honest, "the same bytes again"), (&replayed, "a retry")]
    {
        assert_eq!(delivery.to(&address).await, 200, "{what}: {}", receiver.output());
    }
    let refused = [
        ("forged", Delivery::signed("evt-2", now, &payment("evt-2", 1), b"somebody else's")),
        ("stale", Delivery::signed("evt-2", now - 3_600, &payment("evt-2", 1), SECRET)),
        ("from the future", Delivery::signed("evt-2", now + 3_600, &payment("evt-2", 1), SECRET)),
        ("tampered with", Delivery { body: payment("evt-2", 9_999), ..Delivery::honest("evt-2", 1) }),
        ("under another id", Delivery { id: "evt-2".to_owned(), ..honest.clone() }),
        ("under another time", Delivery { sent_at: now + 2, ..honest.clone() }),
        ("unsigned", Delivery { signature: String::new(), ..Delivery::honest("evt-2", 1) }),
        ("no JSON, and not signed", Delivery { body: "{".to_owned(), ..Delivery::honest("evt-2", 1) }),
    ];
    for (what, delivery) in &refused {
        assert_eq!(delivery.to(&address).await, 401, "{what}: {}", receiver.output());
    }
    let received = "SELECT count(*) FROM received_payments";
    assert_eq!(number(&shop, received).await, 1);
    // What was refused has left nothing behind that could stand in the way of the honest one.
    assert_eq!(Delivery::honest("evt-2", 1).to(&address).await, 200, "{}", receiver.output());
    assert_eq!(number(&shop, received).await, 2);
    assert_eq!(number(&shop, "SELECT sum(amount) FROM received_payments").await, 1_501);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_read_when_it_is_signed_and_acted_on_once_on_postgresql() {
    receives_what_is_signed_once(Shop::on_postgres("webhooks").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_read_when_it_is_signed_and_acted_on_once_on_sqlite() {
    receives_what_is_signed_once(Shop::on_sqlite().await).await;
}
