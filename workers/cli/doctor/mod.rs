//! `aftercommit doctor`: looks at configuration, database and fleet, and says of each thing whether it is well, and what to
//! do where it is not. It changes nothing. This file looks; [`judge`], [`server`] and [`file`] say what it means.

mod file;
mod judge;
mod server;

use std::sync::Arc;

use aftercommit::{
    check::{Check, Level},
    clock::{Clock as _, SystemClock},
    effect::EffectId,
    engine::Engine,
    state::State,
    store::{Database, Filter, Options, SCHEMA_VERSION, Status},
};
use aftercommit_workers::config::Settings;
use clap::Args;

use self::judge::Clocks;
use super::{
    Context, Exit, checks,
    context::{invocation, open, without_password},
    exit::sentence,
    output::plural,
    work::engine_config,
};

/// So many waiting effects of a state are looked at for each downstream: enough to find a name that is wrong, few enough to
/// be quick.
const WAITING_MAX: u32 = 200;

#[derive(Debug, Args)]
#[command(after_help = "\
Ends with 1 when something fails; a warning alone ends with 0.

Examples:
  aftercommit doctor
  aftercommit doctor --json | jq -r 'select(.level != \"ok\") | .found'
  aftercommit doctor --database postgres://localhost/shop")]
pub(crate) struct DoctorArgs {}

/// Looks at everything, and prints it.
pub(super) async fn run(context: &Context, _args: &DoctorArgs) -> anyhow::Result<Exit> {
    let mut findings = Vec::new();
    let settings = configuration(context, &mut findings);
    let store = match context.database_url() {
        Ok(url) => {
            let options = settings.as_ref().map(Settings::options).unwrap_or_default();
            database(&url, &options, &mut findings).await
        }
        // A configuration that is wrong was told already; there is then no URL in it.
        Err(_) if findings.iter().any(|finding| finding.level == Level::Fail) => None,
        Err(problem) => {
            let remedy = "give --database URL, set DATABASE_URL, or write a configuration";
            findings.push(Check::fail("database", sentence(&problem), remedy));
            None
        }
    };
    if let Some(settings) = &settings {
        configured(settings, store.as_deref(), &mut findings).await;
    }
    checks::print(context, &findings)
}

/// The configuration, its secrets, and whether its parts fit together.
fn configuration(context: &Context, findings: &mut Vec<Check>) -> Option<Settings> {
    const CHECK: &str = "configuration";
    let remedy = format!("correct it; `{} config check` tells everything that is wrong", invocation());
    if context.configured().is_ok_and(|configured| !configured) {
        findings.push(Check::warn(
            CHECK,
            "there is none here: only the database is looked at",
            "run this where the worker's configuration is, or name it with --config",
        ));
        return None;
    }
    let settings = match context.load() {
        Ok(Ok(settings)) => settings,
        Ok(Err(problems)) => {
            let problem = |problem: &dyn std::fmt::Display| Check::fail(CHECK, problem.to_string(), &remedy);
            findings.extend(problems.iter().map(|one| problem(one)));
            return None;
        }
        Err(problem) => {
            findings.push(Check::fail(CHECK, sentence(&problem), remedy));
            return None;
        }
    };
    let names: Vec<&str> = settings.downstreams.keys().map(String::as_str).collect();
    if names.is_empty() {
        findings.push(Check::warn(
            CHECK,
            "it has no downstream: a worker would have nothing to serve",
            "add one ([downstream.NAME])",
        ));
    }
    match settings.serve_all(None) {
        Ok(served) => match engine_config(&settings, &served).validate(&served) {
            Ok(()) => {
                let found = format!(
                    "consistent; its downstreams' secrets can be read; every lease outlasts its timeout; {}: {}",
                    plural(u64::try_from(names.len()).unwrap_or(0), "downstream"),
                    names.join(", ")
                );
                findings.push(Check::ok(CHECK, found));
            }
            Err(problem) => findings.push(Check::fail(CHECK, problem, remedy)),
        },
        Err(problems) => {
            let fails = problems.iter().map(|problem| Check::fail(CHECK, problem.to_string(), &remedy));
            findings.extend(fails);
        }
    }
    findings.extend(settings.check().into_iter().map(|finding| {
        let found = format!("{} {}", finding.key, finding.message);
        Check::warn(CHECK, found, "change it, unless you mean it so")
    }));
    Some(settings)
}

/// The database, and what it knows of the fleet.
async fn database(url: &str, options: &Options, findings: &mut Vec<Check>) -> Option<Arc<dyn Database>> {
    const CHECK: &str = "database";
    let shown = without_password(url);
    findings.extend(file::judge(url));
    let store = match open(url, options).await {
        Ok(store) => store,
        Err(problem) => {
            let remedy = "until then nothing else can be looked at";
            findings.push(Check::fail(CHECK, sentence(&problem), remedy));
            return None;
        }
    };
    let of = options.environment.as_ref().map_or_else(String::new, |name| format!(", environment {name}"));
    findings.push(Check::ok(CHECK, format!("{shown} answers; schema version {SCHEMA_VERSION}{of}")));
    if let Err(problem) = look(store.as_ref(), findings).await {
        let remedy = "repeat it; let a login with the role aftercommit_operator or aftercommit_viewer look";
        findings.push(Check::fail(CHECK, sentence(&problem), remedy));
    }
    Some(store)
}

/// What the configuration and the database say of each other: endpoints that cannot be called, and effects for operations that
/// nobody configured. Without a database, what the configuration shows alone.
async fn configured(settings: &Settings, store: Option<&dyn Database>, findings: &mut Vec<Check>) {
    for (name, downstream) in &settings.downstreams {
        let known: Vec<&str> = downstream.operations().collect();
        if settings.endpoint_problems(name, &[]).is_some() {
            // Whoever may not read the rows is shown what the configuration has.
            let rows = match store {
                Some(store) => store.endpoints(name).await.map(|(_now, rows)| rows).unwrap_or_default(),
                None => Vec::new(),
            };
            let problems = settings.endpoint_problems(name, &rows).unwrap_or_default();
            findings.extend(judge::endpoints(name, &problems));
        }
        let Some(store) = store else { continue };
        match waiting(store, name).await {
            Ok(waiting) => findings.extend(judge::operations(name, &known, &waiting)),
            Err(problem) => {
                let remedy = "repeat it";
                findings.push(Check::fail("operation", sentence(&problem), remedy));
            }
        }
    }
}

/// The newest effects of a downstream that wait, of each state in which they do, with the operations that they name.
async fn waiting(store: &dyn Database, downstream: &str) -> anyhow::Result<Vec<(EffectId, String)>> {
    let mut waiting = Vec::new();
    for state in [State::Ready, State::Retrying, State::Scheduled] {
        let downstream = Some(downstream.to_owned());
        let filter = Filter { states: vec![state], downstream, limit: WAITING_MAX, ..Filter::default() };
        let named = |effect: Status| Some((effect.id, effect.operation?));
        waiting.extend(store.effects(&filter).await?.effects.into_iter().filter_map(named));
    }
    Ok(waiting)
}

async fn look(store: &dyn Database, findings: &mut Vec<Check>) -> anyhow::Result<()> {
    let examined = store.examine().await?;
    let workers = store.workers().await?;
    let downstreams = store.downstreams().await?;
    findings.push(judge::hold(store.hold().await?.as_ref()));
    let before = SystemClock.boot();
    let here = SystemClock.wall();
    let there = store.now().await?;
    let clocks = Clocks { here, there, took: SystemClock.boot() - before };
    findings.extend(server::judge(&examined, &workers, Engine::connections(store.connections().max)));
    findings.extend(judge::schema(&examined));
    findings.push(judge::clock(&clocks));
    findings.extend(judge::fleet(&workers, env!("CARGO_PKG_VERSION")));
    findings.extend(judge::downstreams(&downstreams, there));
    Ok(())
}
