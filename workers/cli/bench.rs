//! `aftercommit bench`: measures this database and this machine, with the limit measured beside it in the same run.
//! Compare ratios inside one run; absolute figures drift from run to run.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    IdempotencyKey, NewEffect,
    clock::{Boot, Clock as _, SystemClock},
    contract::{Contract, Window},
    downstream::{Attempt, Downstream, Served, Terms},
    engine::{Config, Engine, SWEEP_INTERVAL, Stop},
    error::StoreError,
    outcome::{Finding, Outcome, Phase, Response},
    schedule::Policy,
    store::{self, Database, Options},
};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    Context, Exit, Writer, bench_limits,
    context::{sqlite_file, without_password},
    data, fail, json, migrate,
    output::plural,
    talk, worker_name,
};

/// The downstream whose effects a bench writes, and the only one that it drains.
const NAME: &str = "bench";
/// Effects per transaction when the backlog is written.
const ENQUEUE_BATCH: u64 = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Write effects, then drain them through a downstream that answers at once
    Drain(DrainArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one. Where there is no schema, it makes
one.

Examples:
  aftercommit bench drain --effects 100000 --database postgres://localhost/bench
  aftercommit bench drain --effects 20000 --database sqlite:bench.db --json")]
pub(crate) struct DrainArgs {
    /// How many effects
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    effects: u64,
    /// Rows per statement in the limit that it is compared with
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Effects in flight at one time [default: twice the batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Bytes of each payload
    #[arg(long, value_name = "N", default_value_t = 300)]
    payload_bytes: usize,
    /// Keep a snapshot open in another session all the while, as a long report would
    #[arg(long)]
    hold_snapshot: bool,
    /// Also where the database holds other effects
    #[arg(long)]
    yes: bool,
}

/// Runs it.
pub(super) async fn run(context: &Context, command: BenchCommand) -> anyhow::Result<Exit> {
    let BenchCommand::Drain(args) = command;
    let url = context.database_url()?;
    let store = open(&url).await?;
    refuse_others(store.as_ref(), args.yes).await?;
    let clock = SystemClock;
    talk!("Writing {} to {} …", plural(args.effects, "effect"), without_password(&url));
    let start = clock.boot();
    fill(&url, &args).await?;
    let enqueue = clock.boot() - start;
    talk!("Measuring the limit: UPDATE + DELETE in batches of {} …", args.batch);
    let limit = bench_limits::update_delete(&url, args.effects, args.batch).await?;
    talk!("Draining …");
    let snapshot = if args.hold_snapshot { Some(bench_limits::Snapshot::hold(&url).await?) } else { None };
    let drained = drain(store, &args).await?;
    drop(snapshot);
    report(context, &url, &args, &Figures { enqueue, limit, drained })
}

/// Opens the database; one without a schema gets it.
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

/// A bench must not carry out, or wait for, anybody's real effects.
async fn refuse_others(store: &dyn Database, yes: bool) -> anyhow::Result<()> {
    let counts = store.counts().await?;
    let others: u64 = counts.iter().filter(|count| count.downstream != NAME).map(|count| count.effects).sum();
    if others > 0 && !yes {
        return Err(fail(
            Exit::Forbidden,
            format!(
                "this database holds {} of other downstreams: use an empty database, or add --yes",
                plural(others, "effect")
            ),
        ));
    }
    Ok(())
}

/// Writes the backlog.
async fn fill(url: &str, args: &DrainArgs) -> anyhow::Result<()> {
    let mut writer = Writer::connect(url).await?;
    let run = SystemClock.wall().micros();
    let pad = "x".repeat(args.payload_bytes.saturating_sub(r#"{"n":000000,"pad":""}"#.len()));
    let mut written = 0;
    while written < args.effects {
        let end = args.effects.min(written + ENQUEUE_BATCH);
        let batch = (written..end)
            .map(|n| {
                let key = IdempotencyKey::parse(format!("bench-{run}-{n}"))?;
                NewEffect::to(NAME).key(key).json_text(format!(r#"{{"n":{n},"pad":"{pad}"}}"#))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for result in writer.enqueue_many(batch).await.context("writing effects")? {
            result.context("writing an effect")?;
        }
        written = end;
    }
    Ok(())
}

/// What was measured.
struct Figures {
    enqueue: Duration,
    limit: f64,
    drained: Drained,
}

/// How the drain went.
struct Drained {
    seconds: f64,
    delivered: u64,
    /// Effects per second in each tenth of the run.
    tenths: Vec<f64>,
}

/// Drains the backlog with the engine.
async fn drain(store: Arc<dyn Database>, args: &DrainArgs) -> anyhow::Result<Drained> {
    let clock = SystemClock;
    let concurrency = args.concurrency.unwrap_or(args.batch.saturating_mul(2));
    let start = clock.boot();
    let sink = Arc::new(Sink::new((args.effects / 10).max(1), start));
    let config = Config {
        worker: worker_name(),
        version: env!("CARGO_PKG_VERSION"),
        poll: Duration::from_millis(20),
        concurrency,
        shutdown_grace: Duration::from_secs(10),
        sweep_interval: SWEEP_INTERVAL,
        // What is measured is the work; nothing gets old enough here.
        retention: None,
    };
    let engine =
        Engine::new(store, vec![served(Arc::clone(&sink), concurrency)], config, Arc::new(SystemClock))
            .map_err(|problem| fail(Exit::Usage, problem))?;
    engine.run_until_idle(Stop::default()).await.context("draining")?;
    let seconds = (clock.boot() - start).as_secs_f64();
    let delivered = sink.delivered.load(Ordering::Relaxed);
    if delivered < args.effects {
        return Err(fail(
            Exit::Failure,
            format!(
                "only {delivered} of {} effects were carried out; `effects list` shows the rest",
                args.effects
            ),
        ));
    }
    Ok(Drained { seconds, delivered, tenths: sink.tenths() })
}

/// A downstream in this process that applies everything at once.
struct Sink {
    delivered: AtomicU64,
    tenth: u64,
    marks: Mutex<Vec<Boot>>,
}

impl Sink {
    fn new(tenth: u64, start: Boot) -> Self {
        Self { delivered: AtomicU64::new(0), tenth, marks: Mutex::new(vec![start]) }
    }

    fn tenths(&self) -> Vec<f64> {
        let marks = self.marks.lock().expect("nobody panics while holding the marks");
        let tenth = whole(self.tenth);
        marks.windows(2).map(|pair| rate(tenth, (pair[1] - pair[0]).as_secs_f64())).map(f64::round).collect()
    }
}

#[async_trait::async_trait]
impl Downstream for Sink {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Render, closed.to_string());
        }
        let count = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(self.tenth) {
            let mut marks = self.marks.lock().expect("nobody panics while holding the marks");
            marks.push(SystemClock.boot());
        }
        let mut outcome = Outcome::new(Finding::Applied, Phase::Done, "");
        outcome.response =
            Some(Response { status: Some(200), body: br#"{"ok":true}"#.to_vec(), truncated: false });
        outcome
    }
}

fn served(sink: Arc<Sink>, concurrency: u32) -> Served {
    Served {
        name: NAME.into(),
        kind: "bench",
        downstream: sink,
        key_prefix: String::new(),
        concurrency,
        terms: Terms {
            contract: Contract::key(Some(Window::Forever)),
            policy: Policy::default(),
            timeout: Duration::from_secs(10),
            request_sha256: [0; 32],
        },
        operations: BTreeMap::new(),
        lease: Duration::from_secs(30),
    }
}

fn report(context: &Context, url: &str, args: &DrainArgs, figures: &Figures) -> anyhow::Result<Exit> {
    let drained = &figures.drained;
    let rate_drain = rate(whole(drained.delivered), drained.seconds);
    let rate_enqueue = rate(whole(args.effects), figures.enqueue.as_secs_f64());
    let database = if url.starts_with("sqlite:") { "sqlite" } else { "postgres" };
    if context.json() {
        json::print(&json!({
            "bench": "drain",
            "effects_per_s": rate_drain.round(),
            "effects": drained.delivered,
            "seconds": drained.seconds,
            "enqueue_per_s": rate_enqueue.round(),
            "tenths_per_s": drained.tenths,
            "limits": { "update_delete_per_s": figures.limit.round() },
            "of_limit": rate_drain / figures.limit,
            "peak_rss_kib": peak_rss_kib(),
            "settings": {
                "database": database,
                "batch": args.batch,
                "concurrency": args.concurrency.unwrap_or(args.batch.saturating_mul(2)),
                "payload_bytes": args.payload_bytes,
                "hold_snapshot": args.hold_snapshot,
                "version": env!("CARGO_PKG_VERSION"),
            },
        }))?;
        return Ok(Exit::Ok);
    }
    data(format!(
        "Drained {} in {:.2} s: {:.0} effects/s\n\
         Limit   {:.0} rows/s (UPDATE + DELETE, batches of {}); the drain reached {:.2} of it\n\
         Written {:.0} effects/s in transactions of {ENQUEUE_BATCH}",
        plural(drained.delivered, "effect"),
        drained.seconds,
        rate_drain,
        figures.limit,
        args.batch,
        rate_drain / figures.limit,
        rate_enqueue,
    ))?;
    Ok(Exit::Ok)
}

/// The most memory that this process ever had, where the system says so.
fn peak_rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "a count for a rate; no bench has 2^52 effects")]
pub(super) fn whole(count: u64) -> f64 {
    count as f64
}

pub(super) fn rate(count: f64, seconds: f64) -> f64 {
    count / seconds.max(1e-9)
}
