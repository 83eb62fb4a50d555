//! `aftercommit dev`: worker, dashboard and sinks in one process, on SQLite, without configuration.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aftercommit::{
    NewEffect,
    clock::SystemClock,
    engine::{Engine, Report, Stop},
    error::StoreError,
    store::Options,
};
use aftercommit_dashboard::{Dashboard, Operations, Settings as Shown, Trial, dashboard};
use aftercommit_workers::config::{Settings, Sources};
use anyhow::Context as _;
use axum::Router;
use clap::Args;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    catcher::{Catcher, FAIL_NAMES},
    fault::FAIL_WORDS,
    shop::Shop,
    sink::{Memory, Sink},
    stage::{CONTRACT, NO_FOLDER},
};
use crate::cli::{
    Context, DEV_DATABASE, Exit, Signals, data, engine_config, fail, migrate, open_database, program, quoted,
    sqlite_file, talk, who, without_password,
};

/// The port of the page and the sinks, unless it is taken.
const PORT: u16 = 7799;
/// Ports that are tried after it.
const MORE_PORTS: u16 = 50;
/// How long the dashboard's open requests may go on once the worker has ended.
const GRACE: Duration = Duration::from_secs(2);
/// Longer than the timeout below, so that a requested timeout is one.
const SLOW: Duration = Duration::from_secs(8);

#[derive(Debug, Args)]
#[command(after_help = "\
A payload with \"fail\": \"timeout\", \"500\", \"429\", \"decline\" or \"reset\" makes
the first call of its key fail in that way. After \"timeout\" the retries of a
payment may see 409 (the first call is still in progress) until it is done. A
mail to timeout@, reset@, nobody@ or full@ fails in that way. The sinks forget
everything when it ends; the database stays.

Examples:
  aftercommit dev
  aftercommit dev --port 8000 --database sqlite:play.db
  aftercommit dev --amqp amqp://guest:guest@localhost")]
pub(crate) struct DevArgs {
    /// Listen on this port of 127.0.0.1; 0 takes any [default: 7799, or the next free one]
    #[arg(long)]
    port: Option<u16>,
    /// Publish a message of each order to this RabbitMQ too, into the queue that is named after the playground
    #[arg(long, value_name = "URL")]
    amqp: Option<String>,
}

/// The queue that `--amqp` fills.
const QUEUE: &str = "aftercommit-dev-orders";
/// The name under which the playground's configuration finds the broker's URL, which may hold a password.
const AMQP_URL: &str = "AFTERCOMMIT_DEV_AMQP_URL";

/// Runs it until Ctrl-C or SIGTERM.
pub(crate) async fn run(context: &Context, args: DevArgs) -> anyhow::Result<Exit> {
    context.refuse_json("`dev` tells its addresses to a person")?;
    let url = context.database_flag().unwrap_or(DEV_DATABASE).to_owned();
    for said in context.not_read_by_dev(&url) {
        talk!("note: {said}.");
    }
    let mut signals = Signals::listen()?;
    migrate(&url, Some("dev")).await?;
    let database = open_database(&url, &Options::default()).await?;
    let listener = listen(args.port).await?;
    let address = listener.local_addr()?;
    let mail = TcpListener::bind("127.0.0.1:0").await.context("a port for the mail catcher")?;
    let settings = settings(&url, (address.port(), mail.local_addr()?.port()), args.amqp.as_deref())?;
    let served = settings.serve(None)?;
    let config = engine_config(&settings, &served);
    let engine = Engine::new(Arc::clone(&database) as _, served, config, Arc::new(SystemClock))
        .map_err(|problem| fail(Exit::Usage, problem))?;
    let engine = Arc::new(engine);
    let stop = Stop::default();
    let operations = Operations::default();
    operations.watch(Arc::clone(&database), Some((Arc::clone(&engine), stop.clone())));
    let catcher = Arc::new(Catcher::default());
    let shown = Shown {
        environment: "dev".to_owned(),
        local: who(),
        operations: Some(operations.clone()),
        known_as: settings.known_as(),
        trial: Some(trial()?),
        ..Shown::default()
    };
    let dashboard = dashboard(database, shown);
    let mut app = app(&dashboard, &catcher);
    // The service speaks SQLite; a playground on PostgreSQL does without it.
    let shop =
        if url.starts_with("sqlite:") { Some(Shop::open(&url, args.amqp.is_some()).await?) } else { None };
    let mut orders = Orders::default();
    if let Some(shop) = shop {
        orders = Orders::at(address);
        app = app.merge(dashboard.beside(shop.router()));
        operations.count_requests(move || shop.counts());
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(catcher.serve(mail));
    let (mut site, abort) = (JoinSet::new(), stop.abort.clone());
    site.spawn(async move { dashboard.serve_app(app, listener, abort, GRACE).await });
    let mut worker = JoinSet::new();
    let inner = stop.clone();
    worker.spawn(async move { engine.run(inner).await });
    greet(&url, address, &orders)?;
    let exit = run_until_stopped(&mut worker, &stop, &mut signals).await?;
    if exit == Exit::Ok {
        // A bulk of the dashboard ends with the effect that it is at.
        site.join_next().await;
    }
    Ok(exit)
}

async fn run_until_stopped(
    worker: &mut JoinSet<Result<Report, StoreError>>,
    stop: &Stop,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    loop {
        tokio::select! {
            done = worker.join_next() => {
                let report = done.context("the worker's task vanished")?;
                let report = report.context("the worker's task ended in a panic")??;
                stop.abort.cancel();
                talk!("Stopped; {} attempts were made. The database stays.", report.attempted);
                return Ok(Exit::Ok);
            }
            _ = signals.next() => {
                if stop.drain.is_cancelled() {
                    stop.abort.cancel();
                    return Ok(Exit::Failure);
                }
                talk!("Draining; Ctrl-C again stops at once.");
                stop.drain.cancel();
            }
        }
    }
}

/// What the empty dashboard offers to be sent.
fn trial() -> anyhow::Result<Trial> {
    let charge = NewEffect::to("payments").operation("charge");
    let effect = charge.json_text(r#"{"amount":1500,"currency":"jpy","source":"tok_visa"}"#)?;
    let says = "A charge of 1,500 yen at payments, a stand-in in this process: no money moves, and nothing outside hears of it.";
    Ok(Trial { effect, says: says.to_owned() })
}

/// The dashboard at the root, the sinks below.
fn app(dashboard: &Dashboard, catcher: &Arc<Catcher>) -> Router {
    let payments = Sink::new(Memory::HonoursKeys, "ch", SLOW);
    let sinks =
        Router::new().nest("/sinks/payments", payments.router()).nest("/sinks/mail", catcher.router());
    dashboard.router().merge(dashboard.beside(sinks))
}

/// The port asked for; else the usual one, or the next that is free.
async fn listen(port: Option<u16>) -> anyhow::Result<TcpListener> {
    if let Some(port) = port {
        return TcpListener::bind(("127.0.0.1", port)).await.map_err(|problem| {
            fail(
                Exit::Failure,
                format!("port {port} of 127.0.0.1 cannot be had ({problem}); try another --port"),
            )
        });
    }
    let mut last = None;
    for port in PORT..=PORT + MORE_PORTS {
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => {
                if port != PORT {
                    talk!("Port {PORT} is taken; using {port}.");
                }
                return Ok(listener);
            }
            Err(problem) => last = Some(problem),
        }
    }
    let why = last.map(|problem| problem.to_string()).unwrap_or_default();
    Err(fail(Exit::Failure, format!("no port from {PORT} on can be had ({why}); name one with --port")))
}

fn settings(url: &str, (port, mail): (u16, u16), amqp: Option<&str>) -> anyhow::Result<Settings> {
    let file =
        tempfile::Builder::new().prefix("aftercommit-dev-").suffix(".toml").tempfile().context(NO_FOLDER)?;
    let mut text = configuration(port, mail);
    if amqp.is_some() {
        text.push_str(&orders_configuration());
    }
    std::fs::write(file.path(), text).context("writing the playground's configuration")?;
    let sources = Sources {
        file: Some(file.path().to_owned()),
        // Only the playground's own values: whatever the environment says is meant for a real worker.
        env: amqp.map(|url| (AMQP_URL.to_owned(), url.to_owned())).into_iter().collect(),
        overrides: vec![("database".to_owned(), url.to_owned())],
        dev: true,
    };
    Ok(Settings::load(&sources)?)
}

fn configuration(port: u16, mail: u16) -> String {
    format!(
        r#"environment = "dev"

[worker]
poll = "200ms"

[downstream.payments]
kind = "http"
base_url = "http://127.0.0.1:{port}/sinks/payments"
timeout = "5s"
lease = "8s"
retry = {{ initial = "1s", max = "10s" }}
contract = {CONTRACT}

[downstream.payments.operations.charge]
method = "POST"
path = "/v1/charges"

[downstream.payments.operations.refund]
method = "POST"
path = "/v1/refunds"

[downstream.mail]
kind = "smtp"
server = "smtp://127.0.0.1:{mail}"
from = "Demo shop <shop@example.com>"
timeout = "3s"
data_timeout = "5s"
lease = "15s"
contract = {{ dedupe = "none", on_unknown = "hold", margin = "1s" }}
"#
    )
}

fn orders_configuration() -> String {
    format!(
        r#"
[downstream.orders]
kind = "amqp"
url = {{ env = "{AMQP_URL}" }}
routing_key = "{QUEUE}"
timeout = "5s"
lease = "12s"
contract = {{ dedupe = "none", on_unknown = "retry" }}
declare = {{ queues = [{{ name = "{QUEUE}" }}] }}

[downstream.orders.operations.placed]
"#
    )
}

fn greet(url: &str, address: SocketAddr, orders: &Orders) -> anyhow::Result<()> {
    let (program, version) = (program(), env!("CARGO_PKG_VERSION"));
    let file = sqlite_file(url).map_or_else(|| without_password(url), |path| path.display().to_string());
    let Orders { place, twice } = orders;
    data(format!(
        "\n  aftercommit {version}  dev: a playground, not for production\n\n  \
         Dashboard http://{address}/\n  {place}\
         Payments  http://{address}/sinks/payments  honours Idempotency-Key\n  \
         Mail      http://{address}/sinks/mail      cannot deduplicate; caught mail\n  \
         Health    http://{address}/healthz and http://{address}/readyz\n  \
         Metrics   http://{address}/metrics\n  \
         Database  {file}\n\n  \
         In another terminal, in this folder:\n{twice}    \
         {}\n    \
         {program} enqueue payments --key order-1 --payload '{{\"amount\":1500}}'\n    \
         {program} enqueue mail --payload '{{\"to\":\"timeout@example.com\",\"text\":\"hello\"}}'\n\n  \
         \"fail\" may be {FAIL_WORDS}; after timeout, the retries of\n  \
         a payment may see 409 until the first call is done.\n  \
         A mail to {FAIL_NAMES} fails in that way. Or, from any language:\n    \
         INSERT INTO aftercommit_effects (downstream, payload)\n      \
         VALUES ('payments', '{{\"amount\":1500}}')\n\n  \
         Ctrl-C drains.\n",
        export(url)
    ))?;
    Ok(())
}

/// What another terminal is told to say. A password is not printed: terminals are recorded and looked at.
fn export(url: &str) -> String {
    let shown = without_password(url);
    let fill_in = if shown == url { "" } else { "  # with its password" };
    format!("export DATABASE_URL={}{fill_in}", quoted(&shown))
}

/// What is told of the order service, where it is served.
#[derive(Default)]
struct Orders {
    place: String,
    /// The same order, placed twice: the second answer is the first one again.
    twice: String,
}

impl Orders {
    fn at(address: SocketAddr) -> Self {
        let order = "-H 'Idempotency-Key: \"order-1\"' -d item=tea -d amount=1500 -d currency=jpy";
        let curl = format!("    curl -i http://{address}/orders {order}\n");
        let place = format!("Orders    http://{address}/orders  behind the guard; /openapi.json\n  ");
        Self { place, twice: curl.repeat(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_printed() {
        assert_eq!(export("sqlite:play.db"), "export DATABASE_URL=sqlite:play.db");
        let said = export("postgres://me:hush@localhost/play");
        assert!(!said.contains("hush") && said.contains("with its password"), "{said}");
    }

    #[test]
    fn the_playground_s_configuration_is_valid() {
        for (amqp, wanted) in
            [(None, vec!["mail", "payments"]), (Some("amqp://a:b@c"), vec!["mail", "orders", "payments"])]
        {
            let served = settings("sqlite:x.db", (7799, 7825), amqp).unwrap().serve(None).unwrap();
            let names: Vec<_> = served.iter().map(|served| served.name.to_string()).collect();
            assert_eq!(names, wanted);
        }
    }
}
