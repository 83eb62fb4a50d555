//! `downstreams`, `workers`, `audit`: what is served, by whom, and who did what.

use aftercommit::{
    clock::{
        Timestamp,
        words::{relative, utc},
    },
    effect::EffectId,
    store::{AuditFilter, Audited, Breaker, DownstreamInfo, PAGE_MAX, PauseActed, PausedBy},
    visible::clean,
};
use clap::{Args, Subcommand};

use super::{
    Context, Exit, Grid, data,
    downstreams_test::{self, TestArgs},
    effects::{absent, actor},
    exit::fail,
    json::{self, AuditJson, DownstreamJson, WorkerJson},
    parse,
    people::People,
    table, talk,
};

#[derive(Debug, Subcommand)]
pub(crate) enum DownstreamsCommand {
    /// List the downstreams, what they promise, and what waits for them
    #[command(
        after_help = "Examples:\n  aftercommit downstreams list\n  aftercommit downstreams list --json"
    )]
    List,
    /// Send nothing more to a downstream until it is resumed; open calls go on
    #[command(after_help = "\
Exit codes: 3 nobody ever configured it, 4 it is paused already.

Example:
  aftercommit downstreams pause payments --reason 'the vendor is down'")]
    Pause(PauseArgs),
    /// Go on sending, whoever paused it: what is due is due at once
    #[command(after_help = "\
After refused credentials mend them first, and restart the workers that
read them. Exit codes: 3 nobody ever configured it, 4 it is not paused.

Example:
  aftercommit downstreams resume payments --reason 'the new key is in place'")]
    Resume(ResumeArgs),
    /// Look at a downstream from here, without any effect; or send it one thing
    Test(TestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The downstream
    name: String,
    /// Why, for the audit and for whoever wonders
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The downstream
    name: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit audit
  aftercommit audit --effect 17
  aftercommit audit --who alice --limit 200")]
pub(crate) struct AuditArgs {
    /// Only this effect
    #[arg(long, value_name = "ID", value_parser = parse::effect_id)]
    effect: Option<EffectId>,
    /// Only this downstream
    #[arg(long, value_name = "NAME")]
    downstream: Option<String>,
    /// Only what this person did
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: u32,
}

/// `downstreams …`.
pub(super) async fn downstreams(context: &Context, command: &DownstreamsCommand) -> anyhow::Result<Exit> {
    match command {
        DownstreamsCommand::List => list(context).await,
        DownstreamsCommand::Test(args) => {
            context.refuse_server("`downstreams test` looks from here, with a configuration")?;
            downstreams_test::run(context, args).await
        }
        DownstreamsCommand::Pause(PauseArgs { name, reason }) => {
            let people = context.people().await?;
            match people.pause(name, &actor(Some(reason.clone()))).await? {
                PauseActed::Done => shown(context, people.as_ref(), name, "is paused").await,
                PauseActed::NotFound => Err(unknown(context, name)),
                PauseActed::AsItWas(paused) => Err(fail(Exit::Forbidden, already(name, paused.as_ref()))),
            }
        }
        DownstreamsCommand::Resume(ResumeArgs { name, reason }) => {
            let people = context.people().await?;
            match people.resume(name, &actor(reason.clone())).await? {
                PauseActed::Done => shown(context, people.as_ref(), name, "is resumed").await,
                PauseActed::NotFound => Err(unknown(context, name)),
                PauseActed::AsItWas(_) => Err(fail(Exit::Forbidden, format!("{name} is not paused"))),
            }
        }
    }
}

async fn shown(context: &Context, people: &dyn People, name: &str, what: &str) -> anyhow::Result<Exit> {
    if context.json() {
        let all = people.downstreams().await?;
        all.iter()
            .filter(|info| info.name == name)
            .try_for_each(|info| json::print(&DownstreamJson::from(info)))?;
    } else {
        data(format!("{} {what}.", clean(name)))?;
    }
    Ok(Exit::Ok)
}

fn unknown(context: &Context, name: &str) -> anyhow::Error {
    let command = format!("{} downstreams list", context.invocation());
    fail(Exit::NotFound, format!("no downstream is named {name}; `{command}` shows what there is"))
}

fn already(name: &str, paused: Option<&PausedBy>) -> String {
    let Some(PausedBy { at, who, reason }) = paused else { return format!("{name} is paused already") };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{name} is paused already, by {who} at {}{reason}", utc(*at))
}

/// What holds a downstream, in words; nothing when nothing does.
fn holds(info: &DownstreamInfo, now: Timestamp) -> Option<String> {
    if let Some(PausedBy { at, who, reason }) = &info.paused {
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        return Some(format!("paused by {who} {}{reason}", relative(*at, now)));
    }
    let origin = info.origin.as_deref().unwrap_or_default();
    let reason = info.hold_reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    if let Some(until) = info.paused_until {
        return Some(format!("{origin} asked for patience until {}{reason}", utc(until)));
    }
    match info.breaker {
        Breaker::Closed => None,
        Breaker::Open => Some(format!("the breaker of {origin} is open{reason}")),
        Breaker::HalfOpen => Some(format!("the breaker of {origin} lets one call find out{reason}")),
    }
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let all = people.downstreams().await?;
    if context.json() {
        for info in &all {
            json::print(&DownstreamJson::from(info))?;
        }
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        talk!(
            "No downstreams are known yet: `{} migrate` with a configuration makes them known.",
            context.invocation()
        );
        return Ok(Exit::Ok);
    }
    let now = people.now().await?;
    let mut grid =
        Grid::new(&["NAME", "KIND", "WORKERS", "PENDING", "IN FLIGHT", "IN DOUBT", "FAILED", "OLDEST DUE"])
            .numbers(&[2, 3, 4, 5, 6])
            .cut(&[0])
            .below(&[7, 1]);
    for info in &all {
        grid.row(vec![
            table::cell(&info.name),
            table::maybe(info.kind.as_deref()),
            table::cell(info.workers),
            table::cell(info.pending),
            table::cell(info.in_flight),
            table::cell(info.in_doubt),
            table::cell(info.failed),
            table::maybe(info.oldest_due_at.map(|at| relative(at, now))),
        ]);
    }
    data(grid)?;
    let mut contracts = Grid::new(&["NAME", "CONTRACT"]).below(&[1]);
    for info in &all {
        let contract =
            info.contract.as_deref().unwrap_or("none is known here: no configuration has named it yet");
        contracts.row(vec![table::cell(&info.name), table::cell(contract)]);
    }
    data(format!("\n{contracts}"))?;
    let mut held = Grid::new(&["NAME", "RATE", "HELD"]).below(&[2]);
    let mut any = false;
    for info in &all {
        let holds = holds(info, now);
        if holds.is_some() || info.rate.is_some() {
            any = true;
            held.row(vec![
                table::cell(&info.name),
                table::maybe(info.rate.as_deref()),
                table::cell(holds.as_deref().unwrap_or("")),
            ]);
        }
    }
    if any {
        data(format!("\n{held}"))?;
    }
    for unserved in all.iter().filter_map(|info| info.unserved(now)) {
        talk!("Warning: {}.", clean(&unserved));
    }
    Ok(Exit::Ok)
}

/// `workers`.
pub(super) async fn workers(context: &Context) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let all = people.workers().await?;
    if context.json() {
        for info in &all {
            json::print(&WorkerJson::from(info))?;
        }
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        talk!("No worker has reported here: start `{} work`.", context.invocation());
        return Ok(Exit::Ok);
    }
    let now = people.now().await?;
    let mut grid = Grid::new(&["WORKER", "VERSION", "SEEN", "STARTED", "IN FLIGHT", "SERVES"])
        .numbers(&[4])
        .cut(&[0])
        .below(&[5]);
    for info in &all {
        grid.row(vec![
            table::cell(&info.name),
            table::cell(&info.version),
            table::cell(if info.live { "live".to_owned() } else { relative(info.seen_at, now) }),
            table::cell(relative(info.started_at, now)),
            table::cell(info.in_flight),
            table::cell(info.downstreams.join(", ")),
        ]);
    }
    data(grid)?;
    Ok(Exit::Ok)
}

/// `audit`.
pub(super) async fn audit(context: &Context, args: &AuditArgs) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let rows = audited(people.as_ref(), args).await?;
    if rows.is_empty()
        && let Some(id) = args.effect
        && people.effect(id).await?.is_none()
    {
        return Err(absent(id));
    }
    if context.json() {
        for row in &rows {
            json::print(&AuditJson::from(row))?;
        }
        return Ok(Exit::Ok);
    }
    if rows.is_empty() {
        talk!("Nobody has done anything by hand here.");
        return Ok(Exit::Ok);
    }
    let mut grid =
        Grid::new(&["AT", "WHO", "VERB", "ON", "FROM", "TO", "REASON"]).numbers(&[3]).cut(&[1]).below(&[6]);
    for row in &rows {
        grid.row(vec![
            table::cell(utc(row.at)),
            table::cell(&row.who),
            table::cell(&row.verb),
            row.effect_id.map_or_else(|| table::maybe(row.downstream.as_deref()), table::cell),
            table::maybe(row.from_state.as_deref()),
            table::maybe(row.to_state.as_deref()),
            table::cell(row.reason.as_deref().unwrap_or("")),
        ]);
    }
    data(grid)?;
    Ok(Exit::Ok)
}

/// A page is bounded; whoever asks for more gets more pages.
async fn audited(people: &dyn People, args: &AuditArgs) -> anyhow::Result<Vec<Audited>> {
    let mut found: Vec<Audited> = Vec::new();
    let mut before = None;
    loop {
        let left = args.limit.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
        let limit = left.min(PAGE_MAX);
        if limit == 0 {
            return Ok(found);
        }
        let (downstream, who) = (args.downstream.clone(), args.who.clone());
        let page = people.audit(&AuditFilter { effect: args.effect, downstream, who, before, limit }).await?;
        let full = page.len() == usize::try_from(limit).unwrap_or(usize::MAX);
        before = page.last().map(|row| row.id);
        found.extend(page);
        if !full {
            return Ok(found);
        }
    }
}
