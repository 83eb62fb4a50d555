//! `bench latency`: from a producer's commit until the downstream is called.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aftercommit::{
    clock::{Boot, Clock as _, SystemClock},
    downstream::{Attempt, Downstream},
    engine::Stop,
    outcome::{Finding, Outcome, Phase},
    store::Pooler,
};
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, postgres::PgListener};
use tokio::task::JoinSet;

use super::{
    Common, Context, Exit, Found, NAME, Place, Times, Writer, batch, payload, plural,
    sink::{self, applied},
    talk, write_batch,
};

/// How long the last effects may take to be seen once nothing more is written.
const PATIENCE: Duration = Duration::from_secs(30);
/// Notifications that are timed for the limit.
const PINGS: u32 = 300;

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one.

Example:
  aftercommit bench latency --rate 200 --database postgres://localhost/bench")]
pub(crate) struct LatencyArgs {
    /// Transactions per second, over all producers
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..100_000))]
    rate: u32,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Producers, each with a connection [on SQLite 1]
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    producers: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &LatencyArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let ping = if place.is_sqlite() { None } else { Some(pings(&place.url).await?) };
    let producers = if place.is_sqlite() { 1 } else { args.producers };
    let seen = Arc::new(Seen::new(args.rate * args.seconds));
    let concurrency = 64;
    let served = sink::served(seen.clone(), concurrency);
    let engine = sink::engine(place.store.clone(), served, concurrency, Duration::from_secs(1))?;
    let stop = Stop::default();
    let mut tasks = JoinSet::new();
    let until = stop.clone();
    tasks.spawn(async move { engine.run(until).await.map(drop).context("working") });
    talk!("{} producers commit {} transactions a second for {} s …", producers, args.rate, args.seconds);
    let start = SystemClock.boot();
    let mut writers = JoinSet::new();
    for producer in 0..producers {
        writers.spawn(produce(
            place.url.clone(),
            seen.clone(),
            (producer, producers),
            args.common.payload_bytes,
            args.rate,
        ));
    }
    while let Some(writer) = writers.join_next().await {
        writer.context("a producer ended in a panic")??;
    }
    let seconds = (SystemClock.boot() - start).as_secs_f64();
    seen.wait_for_all().await?;
    stop.drain.cancel();
    while let Some(task) = tasks.join_next().await {
        task.context("the worker ended in a panic")??;
    }
    let (from_commit, from_insert) = seen.times();
    let limits = ping.as_ref().map_or(Value::Null, |ping| json!({ "notify": ping.summary() }));
    let limit = ping.map_or_else(String::new, |ping| {
        format!(
            "\nLimit   p50 {:.2} ms, p99 {:.2} ms from a NOTIFY's commit to its listener",
            ping.ms(500),
            ping.ms(990)
        )
    });
    let text = format!(
        "{} at {} a second\nSeen    p50 {:.2} ms, p99 {:.2} ms after the commit (p50 {:.2} ms after the INSERT was sent){limit}",
        plural(u64::from(seen.count()), "effect"),
        args.rate,
        from_commit.ms(500),
        from_commit.ms(990),
        from_insert.ms(500),
    );
    let found = Found {
        bench: "latency",
        effects: u64::from(seen.count()),
        seconds,
        more: json!({ "from_commit": from_commit.summary(), "from_insert": from_insert.summary() }),
        limits,
        settings: json!({ "rate": args.rate, "producers": producers, "payload_bytes": args.common.payload_bytes }),
        text,
    };
    found.print(context, &place)
}

/// When each effect was sent, committed and seen.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    sent: Option<Boot>,
    committed: Option<Boot>,
    seen: Option<Boot>,
}

struct Seen {
    run: i64,
    marks: Mutex<Vec<Marks>>,
    all: tokio::sync::Notify,
}

impl Seen {
    fn new(effects: u32) -> Self {
        let marks = vec![Marks::default(); usize::try_from(effects).unwrap_or(0)];
        Self { run: SystemClock.wall().micros(), marks: Mutex::new(marks), all: tokio::sync::Notify::new() }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.lock().len()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Marks>> {
        self.marks.lock().expect("nobody panics while holding the marks")
    }

    fn mark(&self, n: u64, set: impl FnOnce(&mut Marks)) {
        let mut marks = self.lock();
        if let Some(marks) = usize::try_from(n).ok().and_then(|n| marks.get_mut(n)) {
            set(marks);
        }
    }

    async fn wait_for_all(&self) -> anyhow::Result<()> {
        let all = async {
            while self.lock().iter().any(|marks| marks.seen.is_none()) {
                tokio::time::timeout(Duration::from_millis(50), self.all.notified()).await.ok();
            }
        };
        tokio::time::timeout(PATIENCE, all).await.context("some effects were never carried out")
    }

    fn times(&self) -> (Times, Times) {
        let marks = self.lock();
        let since = |from: fn(&Marks) -> Option<Boot>| {
            // The downstream may be called before the producer has heard of its commit: that took no time.
            marks.iter().filter_map(|marks| Some(from(marks)?.until(marks.seen?))).collect()
        };
        (Times::new(since(|marks| marks.committed)), Times::new(since(|marks| marks.sent)))
    }
}

#[async_trait::async_trait]
impl Downstream for Seen {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Render, closed.to_string());
        }
        let now = SystemClock.boot();
        let number = attempt.key.strip_prefix(&format!("bench-{}-", self.run)).and_then(|n| n.parse().ok());
        if let Some(number) = number {
            self.mark(number, |marks| marks.seen = Some(now));
            self.all.notify_one();
        }
        applied()
    }
}

/// One producer's transactions, evenly spaced; those of all producers interleave.
async fn produce(
    url: String,
    seen: Arc<Seen>,
    (producer, producers): (u32, u32),
    payload_bytes: usize,
    rate: u32,
) -> anyhow::Result<()> {
    let mut writer = Writer::connect(&url, &Pooler::None).await?;
    let every = Duration::from_secs(1) / rate;
    let start = tokio::time::Instant::now();
    let mut n = producer;
    while n < seen.count() {
        tokio::time::sleep_until(start + every * n).await;
        let number = u64::from(n);
        seen.mark(number, |marks| marks.sent = Some(SystemClock.boot()));
        match &mut writer {
            Writer::Postgres(connection) | Writer::Pooled(connection) => {
                sqlx::query("INSERT INTO aftercommit.effects (downstream, idempotency_key, payload) VALUES ($1, $2, $3::json)")
                    .bind(NAME)
                    .bind(format!("bench-{}-{n}", seen.run))
                    .bind(payload(number, payload_bytes))
                    .execute(connection)
                    .await?;
            }
            Writer::Sqlite(_) => {
                write_batch(&mut writer, batch(seen.run, number..number + 1, payload_bytes)?).await?;
            }
        }
        seen.mark(number, |marks| marks.committed = Some(SystemClock.boot()));
        n += producers;
    }
    Ok(())
}

/// What the database itself takes to tell another connection that something was committed.
async fn pings(url: &str) -> anyhow::Result<Times> {
    let mut listener = PgListener::connect(url).await?;
    listener.listen("aftercommit_bench").await?;
    let mut connection = PgConnection::connect(url).await?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = SystemClock.boot();
        sqlx::query("SELECT pg_notify('aftercommit_bench', '')").execute(&mut connection).await?;
        listener.recv().await?;
        times.push(SystemClock.boot() - start);
    }
    Ok(Times::new(times))
}
