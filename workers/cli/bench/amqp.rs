//! `bench amqp`: effects through worker and store into a real queue, beside a bare loop of the same client library with as
//! many confirms outstanding.

use std::time::Duration;

use aftercommit::{
    clock::{Clock as _, SystemClock},
    engine::Stop,
};
use aftercommit_workers::config::{Settings, Sources};
use anyhow::Context as _;
use clap::Args;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{FieldTable, ShortString},
};
use serde_json::json;

use super::{Common, Context, Exit, Found, NAME, Place, fail, payload, plural, rate, rounded, sink, talk};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database (use an empty one) and makes a queue of its own at
the broker, which it removes.

Example:
  aftercommit bench amqp --url amqp://localhost --database sqlite:b.db")]
pub(crate) struct AmqpArgs {
    /// The broker
    #[arg(long, value_name = "URL", env = "AMQP_URL", hide_env_values = true)]
    url: String,
    /// How many effects
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    effects: u64,
    /// Messages without a confirm at one time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &AmqpArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let queue = BenchQueue::make(&args.url).await?;
    let measured = measure(context, args, &place, &queue).await;
    queue.remove().await;
    measured
}

async fn measure(
    context: &Context,
    args: &AmqpArgs,
    place: &Place,
    queue: &BenchQueue,
) -> anyhow::Result<Exit> {
    talk!("Measuring the limit: a bare loop with {} confirms outstanding …", args.concurrency);
    let loop_rate = bare_loop(queue, args).await?;
    let before = queue.depth().await?;
    place.fill(args.effects, &args.common).await?;
    talk!("Draining …");
    let served = amqp_downstream(&args.url, &queue.name, args.concurrency)?;
    let engine = sink::engine(place.store.clone(), served, args.concurrency, Duration::from_millis(20))?;
    let start = SystemClock.boot();
    engine.run_until_idle(Stop::default()).await.context("draining")?;
    let seconds = (SystemClock.boot() - start).as_secs_f64();
    let delivered = queue.depth().await? - before;
    sink::whole(delivered, args.effects)?;
    let reached = rate(delivered, seconds) / loop_rate;
    let text = format!(
        "Published {} in {seconds:.2} s: {:.0} effects/s, each confirmed by the broker\n\
         Limit     {loop_rate:.0} messages/s by a bare loop; the drain reached {reached:.2} of it",
        plural(delivered, "effect"),
        rate(delivered, seconds),
    );
    let found = Found {
        bench: "amqp",
        effects: delivered,
        seconds,
        more: json!({ "of_limit": rounded(reached) }),
        limits: json!({ "bare_loop_per_s": loop_rate.round() }),
        settings: json!({ "concurrency": args.concurrency, "payload_bytes": args.common.payload_bytes }),
        text,
    };
    found.print(context, place)
}

/// A durable queue of the bench's own.
struct BenchQueue {
    name: String,
    connection: Connection,
    channel: Channel,
}

impl BenchQueue {
    async fn make(url: &str) -> anyhow::Result<Self> {
        // The library's words may hold the URL, and the URL a password.
        let broken = |_error| fail(Exit::Unreachable, "the broker of --url does not let us in");
        let connection = Connection::connect(url, ConnectionProperties::default()).await.map_err(broken)?;
        let channel = connection.create_channel().await.context("opening a channel")?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.context("asking for confirms")?;
        let name = format!("aftercommit-bench-{}", std::process::id());
        let queue = Self { name, connection, channel };
        queue.declare(QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() }).await?;
        Ok(queue)
    }

    async fn declare(&self, options: QueueDeclareOptions) -> anyhow::Result<u64> {
        let declared = self.channel.queue_declare(short(&self.name), options, FieldTable::default()).await;
        Ok(u64::from(declared.context("the bench's queue")?.message_count()))
    }

    /// Messages that it holds.
    async fn depth(&self) -> anyhow::Result<u64> {
        self.declare(QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() }).await
    }

    async fn remove(self) {
        if self.channel.queue_delete(short(&self.name), QueueDeleteOptions::default()).await.is_err() {
            talk!("The queue {} could not be removed: remove it by hand.", self.name);
        }
        self.connection.close(200, "done".into()).await.ok();
    }
}

fn short(name: &str) -> ShortString {
    ShortString::try_new(name).unwrap_or_default()
}

/// The `amqp` kind, as a configuration would make it.
fn amqp_downstream(
    url: &str,
    queue: &str,
    concurrency: u32,
) -> anyhow::Result<aftercommit::downstream::Served> {
    let set = |key: &str, value: &str| (format!("downstream.{NAME}.{key}"), value.to_owned());
    let overrides = vec![
        set("kind", "amqp"),
        set("url.env", "AFTERCOMMIT_BENCH_URL"),
        set("routing_key", queue),
        set("concurrency", &concurrency.to_string()),
        set("contract.dedupe", "none"),
        set("contract.on_unknown", "retry"),
    ];
    let env = vec![("AFTERCOMMIT_BENCH_URL".to_owned(), url.to_owned())];
    let sources = Sources { file: None, env, overrides, dev: true };
    let mut served = Settings::load(&sources)?.serve(None)?;
    served.pop().ok_or_else(|| fail(Exit::Failure, "the bench's downstream was not built"))
}

/// Messages per second of one loop that keeps as many confirms outstanding as the drain has slots, without a database.
async fn bare_loop(queue: &BenchQueue, args: &AmqpArgs) -> anyhow::Result<f64> {
    let most = usize::try_from(args.concurrency).unwrap_or(usize::MAX);
    let body = payload(0, args.common.payload_bytes);
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let mut outstanding = FuturesUnordered::new();
    let start = SystemClock.boot();
    for n in 0..args.effects {
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(2)
            .with_message_id(format!("loop-{n}").into());
        let key = short(&queue.name);
        let published = queue.channel.basic_publish("".into(), key, options, body.as_bytes(), properties);
        outstanding.push(published.await.context("the bare loop")?);
        if outstanding.len() >= most {
            confirmed(outstanding.next().await)?;
        }
    }
    while let Some(confirm) = outstanding.next().await {
        confirmed(Some(confirm))?;
    }
    Ok(rate(args.effects, (SystemClock.boot() - start).as_secs_f64()))
}

fn confirmed(confirm: Option<lapin::Result<Confirmation>>) -> anyhow::Result<()> {
    match confirm.transpose().context("the bare loop")? {
        Some(Confirmation::Ack(None)) | None => Ok(()),
        Some(_) => Err(fail(Exit::Failure, "the broker did not take a message of the bare loop")),
    }
}
