//! `aftercommit work`: a worker process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    downstream,
    engine::{Config, Engine, Report, SWEEP_INTERVAL, Stop},
    store::{Database, Options},
};
use aftercommit_workers::config::Settings;
use anyhow::Context as _;
use clap::Args;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};

use super::{
    Context, Exit,
    context::open,
    exit::{exit_of, sentence},
    fail,
    hold::banner,
    journal::{JournalFile, default_path},
    json,
    serve::Served,
};

#[derive(Debug, Args)]
#[command(after_help = "\
SIGTERM or Ctrl-C drains: nothing more is claimed, open calls may end within
worker.shutdown_grace. A second one stops at once; the leases of open calls end
on their own, and the next worker decides.

Examples:
  aftercommit work
  aftercommit work --downstream payments --downstream mail
  aftercommit work --listen 127.0.0.1:7798     # health and metrics
  aftercommit work --until-idle && echo 'nothing left to do'")]
pub(crate) struct WorkArgs {
    /// Serve only this downstream; may be given several times
    #[arg(long, value_name = "NAME")]
    downstream: Vec<String>,
    /// One claim round, then end
    #[arg(long, conflicts_with = "until_idle")]
    once: bool,
    /// End when nothing is due or in flight
    #[arg(long)]
    until_idle: bool,
    /// Serve /healthz, /readyz and /metrics here [default: worker.listen, else nowhere]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Works.
pub(super) async fn run(context: &Context, args: &WorkArgs) -> anyhow::Result<Exit> {
    let settings = context.settings()?;
    say_sources(context, Some(&settings))?;
    let url = settings.database.clone();
    let only = (!args.downstream.is_empty()).then_some(args.downstream.as_slice());
    let served = settings.serve(only)?;
    if served.is_empty() {
        return Err(fail(
            Exit::Usage,
            "the configuration has no downstream to serve: add one ([downstream.NAME]), see `aftercommit config init`",
        ));
    }
    let mut signals = Signals::listen()?;
    let endpoints = Served::start(args.listen.or(settings.worker.listen)).await?;
    let config = engine_config(&settings, &served);
    let options = settings.options();
    // A run with an end of its own fails at once where the database is away.
    let store = if args.once || args.until_idle {
        Some(open(&url, &options).await?)
    } else {
        open_patiently(&url, &options, &mut signals).await?
    };
    let Some(store) = store else { return Ok(Exit::Ok) };
    let names: Vec<&str> = served.iter().map(|served| served.name.as_ref()).collect();
    tracing::info!(worker = %config.worker, downstreams = %names.join(","), "worker started");
    for finding in settings.check() {
        tracing::warn!("{}: {}", finding.key, finding.message);
    }
    let journal = journal(context, &settings, &url)?;
    let engine = Engine::new(Arc::clone(&store) as _, served, config, Arc::new(SystemClock))
        .map_err(|problem| fail(Exit::Usage, problem))?
        .with_journal(Arc::new(journal));
    let engine = Arc::new(engine);
    let stop = Stop::default();
    endpoints.operations().watch(store.clone(), Some((Arc::clone(&engine), stop.clone())));
    let report = run_engine(engine, args, &stop, &mut signals).await?;
    let Some(report) = report else {
        tracing::warn!("stopped at once; open calls are left to the next worker's sweep");
        return Ok(Exit::Failure);
    };
    tracing::info!(
        claimed = report.claimed,
        attempted = report.attempted,
        settled = report.settled,
        swept = report.swept,
        "worker stopped"
    );
    if context.json() {
        json::print(&report)?;
    }
    // A run with an end of its own that did nothing must not look like one that had nothing to do.
    if (args.once || args.until_idle)
        && let Some(hold) = store.hold().await?
    {
        return Err(fail(Exit::Forbidden, banner(&hold)));
    }
    Ok(Exit::Ok)
}

/// Says which configuration was read, and which database is used in the place of its own.
pub(super) fn say_sources(context: &Context, settings: Option<&Settings>) -> anyhow::Result<()> {
    context.sources(settings)?.iter().for_each(|said| tracing::info!("{said}"));
    Ok(())
}

/// The journal's file.
fn journal(context: &Context, settings: &Settings, url: &str) -> anyhow::Result<JournalFile> {
    let path = match &settings.worker.journal {
        Some(path) => path.clone(),
        None => default_path(std::env::var("STATE_DIRECTORY").ok().as_deref(), context.file()?.as_deref()),
    };
    Ok(JournalFile::new(path, url))
}

/// Between two tries to reach the database at the start, at first and at most: it must be noticed soon when it is back.
const OPEN_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Opens the database. What runs until it is told to stop waits for one that is away, since machines start in any order; `None`
/// when it was told to stop meanwhile.
pub(super) async fn open_patiently(
    url: &str,
    options: &Options,
    signals: &mut Signals,
) -> anyhow::Result<Option<Arc<dyn Database>>> {
    let mut pause = OPEN_PAUSE.0;
    loop {
        let problem = match open(url, options).await {
            Ok(store) => return Ok(Some(store)),
            Err(problem) => problem,
        };
        if exit_of(&problem) != Exit::Unreachable {
            return Err(problem);
        }
        if pause == OPEN_PAUSE.0 {
            tracing::warn!(cause = sentence(&problem), "the database is away; trying again until it is back");
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = signals.next() => return Ok(None),
        }
        pause = (pause * 2).min(OPEN_PAUSE.1);
    }
}

/// Runs the engine while listening to signals; `None` when it was stopped at once.
async fn run_engine(
    engine: Arc<Engine>,
    args: &WorkArgs,
    stop: &Stop,
    signals: &mut Signals,
) -> anyhow::Result<Option<Report>> {
    let (once, until_idle) = (args.once, args.until_idle);
    let mut task = JoinSet::new();
    let inner = stop.clone();
    // A task of its own: a signal must not drop a database call in the middle of its transaction.
    task.spawn(async move {
        if once {
            engine.run_once(inner).await
        } else if until_idle {
            engine.run_until_idle(inner).await
        } else {
            engine.run(inner).await
        }
    });
    loop {
        tokio::select! {
            done = task.join_next() => {
                let done = done.context("the worker's task vanished")?;
                return Ok(Some(done.context("the worker's task ended in a panic")??));
            }
            name = signals.next() => {
                if stop.drain.is_cancelled() {
                    stop.abort.cancel();
                    return Ok(None);
                }
                talk_of_drain(name);
                stop.drain.cancel();
            }
        }
    }
}

fn talk_of_drain(signal: &str) {
    tracing::info!(signal, "draining: nothing more is claimed; a second signal stops at once");
}

/// SIGTERM and SIGINT, as they come.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Begins to listen. From here on neither signal ends the process by itself.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let term = signal(SignalKind::terminate()).context("listening to SIGTERM")?;
        let int = signal(SignalKind::interrupt()).context("listening to SIGINT")?;
        Ok(Self { term, int })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// How the engine runs under these settings.
pub(crate) fn engine_config(settings: &Settings, served: &[downstream::Served]) -> Config {
    let shortest = served.iter().map(|served| served.lease).min().unwrap_or(Duration::from_secs(30));
    Config {
        worker: worker_name(),
        version: env!("CARGO_PKG_VERSION"),
        poll: settings.worker.poll,
        concurrency: settings.worker.concurrency,
        shutdown_grace: settings.worker.shutdown_grace,
        // A lost lease is noticed within a fraction of its length; looking costs one indexed query.
        sweep_interval: (shortest / 6).clamp(Duration::from_millis(200), SWEEP_INTERVAL),
        retention: Some(settings.retention.kept()),
    }
}

/// A name that no other process ever had: host, process id, start.
pub(crate) fn worker_name() -> Arc<str> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let start = SystemClock.wall().micros() / 1000;
    format!("{host}-{}-{start:x}", std::process::id()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_names_carry_the_process() {
        let name = worker_name();
        assert!(name.contains(&format!("-{}-", std::process::id())), "{name}");
    }
}
