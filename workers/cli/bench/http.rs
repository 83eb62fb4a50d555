//! `bench http`: effects with keys over HTTP on the loopback, client, server and database on this machine.

use std::{
    future::IntoFuture as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    engine::Stop,
};
use aftercommit_workers::config::{Settings, Sources};
use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, routing::post};
use clap::Args;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    Common, Context, Exit, Found, NAME, Place, fail, limits, payload, plural, rate, rounded, sink, talk,
};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one.

Example:
  aftercommit bench http --effects 50000 --database postgres://localhost/bench")]
pub(crate) struct HttpArgs {
    /// How many effects
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    effects: u64,
    /// Requests in flight at one time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &HttpArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let server = Server::start().await?;
    talk!("Measuring the limits: a bare HTTP loop, and UPDATE + DELETE …");
    let loop_rate = bare_loop(&server.base, args).await?;
    let sql_rate =
        limits::update_delete(&place, args.effects, args.concurrency, args.common.payload_bytes).await?;
    let harmonic = 1.0 / (1.0 / loop_rate + 1.0 / sql_rate);
    place.fill(args.effects, &args.common).await?;
    talk!("Draining …");
    let before = server.received();
    let served = http_downstream(&server.base, args.concurrency)?;
    let engine = sink::engine(place.store.clone(), served, args.concurrency, Duration::from_millis(20))?;
    let start = SystemClock.boot();
    engine.run_until_idle(Stop::default()).await.context("draining")?;
    let seconds = (SystemClock.boot() - start).as_secs_f64();
    let delivered = server.received() - before;
    sink::whole(delivered, args.effects)?;
    let reached = rate(delivered, seconds) / harmonic;
    let text = format!(
        "Drained {} over HTTP in {seconds:.2} s: {:.0} effects/s\n\
         Limit   {harmonic:.0} effects/s (HTTP loop {loop_rate:.0} requests/s, UPDATE + DELETE {sql_rate:.0} rows/s); the drain reached {reached:.2} of it",
        plural(delivered, "effect"),
        rate(delivered, seconds),
    );
    let found = Found {
        bench: "http",
        effects: delivered,
        seconds,
        more: json!({ "of_limit": rounded(reached) }),
        limits: json!({
            "http_loop_per_s": loop_rate.round(),
            "update_delete_per_s": sql_rate.round(),
            "harmonic_per_s": harmonic.round(),
        }),
        settings: json!({ "concurrency": args.concurrency, "payload_bytes": args.common.payload_bytes }),
        text,
    };
    found.print(context, &place)
}

/// An HTTP server in this process that takes everything.
struct Server {
    base: String,
    received: Arc<AtomicU64>,
    _task: JoinSet<std::io::Result<()>>,
}

impl Server {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening on the loopback address")?;
        let base = format!("http://{}", listener.local_addr()?);
        let received = Arc::new(AtomicU64::new(0));
        let app = Router::new().fallback(post(take)).with_state(received.clone());
        let mut task = JoinSet::new();
        task.spawn(axum::serve(listener, app).into_future());
        Ok(Self { base, received, _task: task })
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

async fn take(
    State(received): State<Arc<AtomicU64>>,
    _body: axum::body::Bytes,
) -> (StatusCode, &'static str) {
    received.fetch_add(1, Ordering::Relaxed);
    (StatusCode::OK, r#"{"ok":true}"#)
}

/// The `http` kind, as a configuration would make it.
fn http_downstream(base: &str, concurrency: u32) -> anyhow::Result<aftercommit::downstream::Served> {
    let set = |key: &str, value: &str| (format!("downstream.{NAME}.{key}"), value.to_owned());
    let overrides = vec![
        set("kind", "http"),
        set("base_url", base),
        set("concurrency", &concurrency.to_string()),
        set("contract.dedupe", "key"),
        set("contract.window", "forever"),
    ];
    let sources = Sources { file: None, env: Vec::new(), overrides, dev: true };
    let mut served = Settings::load(&sources)?.serve(None)?;
    served.pop().ok_or_else(|| fail(Exit::Failure, "the bench's downstream was not built"))
}

/// Requests per second of as many loops as the drain has slots, without a database.
async fn bare_loop(base: &str, args: &HttpArgs) -> anyhow::Result<f64> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .pool_max_idle_per_host(usize::try_from(args.concurrency).unwrap_or(usize::MAX))
        .build()
        .context("building the bare loop's client")?;
    let text = payload(0, args.common.payload_bytes);
    let lanes = u64::from(args.concurrency);
    let start = SystemClock.boot();
    let mut tasks = JoinSet::new();
    for lane in 0..lanes {
        let (client, text, base) = (client.clone(), text.clone(), base.to_owned());
        let requests = args.effects / lanes + u64::from(lane < args.effects % lanes);
        tasks.spawn(async move {
            for n in 0..requests {
                let answer = client
                    .post(&base)
                    .header("idempotency-key", format!("loop-{lane}-{n}"))
                    .header("content-type", "application/json")
                    .body(text.clone())
                    .send()
                    .await?;
                answer.bytes().await?;
            }
            Ok::<(), reqwest::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a loop ended in a panic")?.context("the bare HTTP loop")?;
    }
    Ok(rate(args.effects, (SystemClock.boot() - start).as_secs_f64()))
}
