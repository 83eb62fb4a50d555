//! `aftercommit bench`: measures this database and this machine, each figure with its limit measured in the same run.
//! Compare ratios inside one run; absolute figures drift from run to run.

#[cfg(feature = "amqp")]
mod amqp;
mod backlog;
#[cfg(any(feature = "nats", feature = "redis"))]
mod brokers;
mod drain;
mod enqueue;
mod guard;
mod horizon;
mod http;
mod latency;
mod limits;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
mod scratch;
mod sink;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    IdempotencyKey, NewEffect,
    clock::{Clock as _, SystemClock},
    error::StoreError,
    store::{self, Database, Options},
};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::{
    Context, Exit, Writer,
    context::{sqlite_file, without_password},
    data, fail, json, migrate,
    output::plural,
    talk,
};

/// The downstream whose effects a bench writes, and the only one that it drains.
const NAME: &str = "bench";
/// Effects per transaction when a backlog is written.
const ENQUEUE_BATCH: u64 = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Write effects, then drain them through a downstream that answers at once
    Drain(drain::DrainArgs),
    /// Write effects in bulk and one per transaction, beside bare INSERTs
    Enqueue(enqueue::EnqueueArgs),
    /// Answer guarded requests, beside the same transaction with two bare writes
    Guard(guard::GuardArgs),
    /// Measure from a producer's commit to the downstream's receipt
    Latency(latency::LatencyArgs),
    /// Drain effects over HTTP on the loopback, beside a bare HTTP loop
    Http(http::HttpArgs),
    /// Drain effects into a queue of a RabbitMQ, beside a bare publishing loop
    #[cfg(feature = "amqp")]
    Amqp(amqp::AmqpArgs),
    /// Drain effects into a NATS stream, beside a bare loop of its client
    #[cfg(feature = "nats")]
    Nats(nats::NatsArgs),
    /// Drain effects into a Redis stream, beside a bare loop of its client
    #[cfg(feature = "redis")]
    Redis(redis::RedisArgs),
    /// Measure a claim with few and with many effects pending
    Backlog(backlog::BacklogArgs),
    /// Drain with and without a snapshot that another session holds open
    Horizon(horizon::HorizonArgs),
}

/// What every bench takes.
#[derive(Clone, Debug, Args)]
struct Common {
    /// Bytes of each payload
    #[arg(long, value_name = "N", default_value_t = 300)]
    payload_bytes: usize,
    /// Also where the database holds other effects
    #[arg(long)]
    yes: bool,
}

/// Runs it.
pub(super) async fn run(context: &Context, command: BenchCommand) -> anyhow::Result<Exit> {
    match command {
        BenchCommand::Drain(args) => drain::run(context, &args).await,
        BenchCommand::Enqueue(args) => enqueue::run(context, &args).await,
        BenchCommand::Guard(args) => guard::run(context, &args).await,
        BenchCommand::Latency(args) => latency::run(context, &args).await,
        BenchCommand::Http(args) => http::run(context, &args).await,
        #[cfg(feature = "amqp")]
        BenchCommand::Amqp(args) => amqp::run(context, &args).await,
        #[cfg(feature = "nats")]
        BenchCommand::Nats(args) => nats::run(context, &args).await,
        #[cfg(feature = "redis")]
        BenchCommand::Redis(args) => redis::run(context, &args).await,
        BenchCommand::Backlog(args) => backlog::run(context, &args).await,
        BenchCommand::Horizon(args) => horizon::run(context, &args).await,
    }
}

/// The database that is measured.
struct Place {
    url: String,
    store: Arc<dyn Database>,
}

impl Place {
    /// Opens the database; one without a schema gets it. A bench must not carry out, or wait for, anybody's real effects.
    async fn open(context: &Context, common: &Common) -> anyhow::Result<Self> {
        let url = context.database_url()?;
        let store = open(&url).await?;
        let counts = store.counts().await?;
        let others: u64 =
            counts.iter().filter(|count| count.downstream != NAME).map(|count| count.effects).sum();
        if others > 0 && !common.yes {
            return Err(fail(
                Exit::Forbidden,
                format!(
                    "this database holds {} of other downstreams: use an empty database, or add --yes",
                    plural(others, "effect")
                ),
            ));
        }
        sink::register(store.as_ref(), None).await?;
        Ok(Self { url, store })
    }

    fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    fn database(&self) -> &'static str {
        if self.is_sqlite() { "sqlite" } else { "postgres" }
    }

    /// Writes a backlog of `effects` through the library; how long it took.
    async fn fill(&self, effects: u64, common: &Common) -> anyhow::Result<Duration> {
        talk!("Writing {} to {} …", plural(effects, "effect"), without_password(&self.url));
        let clock = SystemClock;
        let start = clock.boot();
        let mut writer = Writer::connect(&self.url, &store::Pooler::None).await?;
        let run = clock.wall().micros();
        let mut written = 0;
        while written < effects {
            let end = effects.min(written + ENQUEUE_BATCH);
            write_batch(&mut writer, batch(run, written..end, common.payload_bytes)?).await?;
            written = end;
        }
        Ok(clock.boot() - start)
    }
}

async fn open(url: &str) -> anyhow::Result<Arc<dyn Database>> {
    let absent = sqlite_file(url).is_some_and(|path| !path.exists());
    let opened = if absent { None } else { Some(store::connect(url, &Options::default()).await) };
    match opened {
        Some(Ok(store)) => return Ok(store),
        None | Some(Err(StoreError::SchemaTooOld { found: 0, .. })) => {
            migrate::migrate(url, Some("bench")).await?;
        }
        Some(Err(problem)) => {
            return Err(problem).with_context(|| format!("the database {}", without_password(url)));
        }
    }
    super::context::open(url, &Options::default()).await
}

/// Effects `range` of a run.
fn batch(run: i64, range: std::ops::Range<u64>, payload_bytes: usize) -> anyhow::Result<Vec<NewEffect>> {
    range
        .map(|n| {
            let key = IdempotencyKey::parse(format!("bench-{run}-{n}"))?;
            Ok(NewEffect::to(NAME).key(key).json_text(payload(n, payload_bytes))?)
        })
        .collect()
}

/// A payload of about `bytes` that names its number.
fn payload(n: u64, bytes: usize) -> String {
    let pad = "x".repeat(bytes.saturating_sub(r#"{"n":000000,"pad":""}"#.len()));
    format!(r#"{{"n":{n},"pad":"{pad}"}}"#)
}

async fn write_batch(writer: &mut Writer, batch: Vec<NewEffect>) -> anyhow::Result<()> {
    for result in writer.enqueue_many(batch).await.context("writing effects")? {
        result.context("writing an effect")?;
    }
    Ok(())
}

/// What a bench found: for scripts one object, for people a few lines.
struct Found {
    bench: &'static str,
    effects: u64,
    seconds: f64,
    /// What this bench measures besides, by name.
    more: Value,
    /// What the same machine could do at most, measured in the same run.
    limits: Value,
    settings: Value,
    text: String,
}

impl Found {
    fn print(self, context: &Context, place: &Place) -> anyhow::Result<Exit> {
        if !context.json() {
            data(&self.text)?;
            return Ok(Exit::Ok);
        }
        let mut object = Map::new();
        object.insert("bench".to_owned(), json!(self.bench));
        object.insert("effects_per_s".to_owned(), json!(rate(self.effects, self.seconds).round()));
        object.insert("effects".to_owned(), json!(self.effects));
        object.insert("seconds".to_owned(), json!(self.seconds));
        object.extend(fields(self.more));
        object.insert("limits".to_owned(), self.limits);
        let mut settings = fields(self.settings);
        settings.insert("database".to_owned(), json!(place.database()));
        settings.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
        object.insert("peak_rss_kib".to_owned(), json!(peak_rss_kib()));
        object.insert("settings".to_owned(), Value::Object(settings));
        json::print(&Value::Object(object))?;
        Ok(Exit::Ok)
    }
}

fn fields(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

/// The most memory that this process ever had, where the system says so.
fn peak_rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Times of many like events.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time below which `per_mille` of a thousand stay, in milliseconds.
    fn ms(&self, per_mille: usize) -> f64 {
        let at = (self.0.len() * per_mille).div_ceil(1000).saturating_sub(1);
        self.0.get(at).map_or(0.0, |time| (time.as_secs_f64() * 1e6).round() / 1e3)
    }

    fn summary(&self) -> Value {
        json!({ "p50_ms": self.ms(500), "p90_ms": self.ms(900), "p99_ms": self.ms(990), "max_ms": self.ms(1000) })
    }
}

/// What every client of a bench found.
async fn join<T: 'static>(mut lanes: JoinSet<anyhow::Result<T>>) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        all.push(lane.context("a client of the bench ended in a panic")??);
    }
    Ok(all)
}

/// The middle one of a few figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

#[expect(clippy::cast_precision_loss, reason = "a count for a rate; no bench has 2^52 effects")]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_time_that_so_many_do_not_exceed() {
        let times = Times::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!((times.ms(500), times.ms(990), times.ms(1000)), (50.0, 99.0, 100.0));
        assert_eq!(Times::new(vec![Duration::from_millis(7)]).ms(10), 7.0);
        assert_eq!(Times::new(Vec::new()).ms(500), 0.0);
    }

    #[test]
    fn a_payload_is_json_of_the_size_asked_for() {
        let text = payload(123_456, 300);
        assert_eq!(text.len(), 300);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["n"], 123_456);
    }
}
