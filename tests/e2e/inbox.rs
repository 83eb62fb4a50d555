//! The inbox, as the example consumer uses it: it acts once on each message, whoever was killed between its COMMIT and its
//! acknowledgement, and loses none.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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
    database::Database,
    environment,
    processes::{Process, eventually, run_ok},
    shop::Shop,
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

fn spawn(shop: &Shop, queue: &Queue, broker: &url::Url, name: &str) -> Process {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("consumer.py")).arg(&queue.name);
    command.env("DATABASE_URL", shop.database.url()).env("AMQP_URL", broker.as_str());
    Process::spawn(name, &mut command, &shop.path(&format!("{name}.log")))
}

async fn consumer(shop: &Shop, queue: &Queue, broker: &url::Url, name: &str) -> Process {
    let mut consumer = spawn(shop, queue, broker, name);
    eventually("the consumer consumes", SOON, async || {
        assert!(consumer.has_ended().is_none(), "{}", consumer.output());
        consumer.output().contains("consuming")
    })
    .await;
    consumer
}

/// A count, or a sum.
pub(super) async fn number(shop: &Shop, sql: &str) -> usize {
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
        number(&shop, shipped).await >= distinct
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

/// A consumer whose transaction fails has neither accepted nor acknowledged its message.
async fn loses_nothing(shop: Shop) {
    let config = shop.configure("worker", "");
    shop.migrate(&config).await;
    let (closed, open) = match shop.database {
        Database::Postgres(_) => (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''closed''; END';
             CREATE TRIGGER closed BEFORE INSERT ON shipments FOR EACH ROW EXECUTE FUNCTION refuse()",
            "DROP TRIGGER closed ON shipments",
        ),
        Database::Sqlite(_) => (
            "CREATE TRIGGER closed BEFORE INSERT ON shipments BEGIN SELECT RAISE(ABORT, 'closed'); END",
            "DROP TRIGGER closed",
        ),
    };
    shop.database.execute(&format!("CREATE TABLE shipments (order_id text NOT NULL); {closed}")).await;
    let queue = Queue::new();
    queue.publish(&[("message-1".to_owned(), "A-1".to_owned())], &shop.path("publisher.log")).await;
    let mut failing = spawn(&shop, &queue, &queue.broker, "failing");
    let status = failing.ended(SOON).await;
    assert!(!status.success() && failing.output().contains("closed"), "{}", failing.output());
    eventually("the broker has the message back", SOON, async || queue.depth().await == 1).await;

    shop.database.execute(open).await;
    let mut second = consumer(&shop, &queue, &queue.broker, "second").await;
    let shipped = "SELECT count(*) FROM shipments";
    eventually("the order is shipped", SOON, async || number(&shop, shipped).await > 0).await;
    second.kill().await;
    assert_eq!(number(&shop, shipped).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_transaction_fails_loses_no_message_on_postgresql() {
    loses_nothing(Shop::on_postgres("inbox_fails").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_transaction_fails_loses_no_message_on_sqlite() {
    loses_nothing(Shop::on_sqlite().await).await;
}
