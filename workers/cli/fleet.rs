//! `downstreams`, `workers`, `audit`: what is served, by whom, and who did what.

use aftercommit::effect::EffectId;
use clap::{Args, Subcommand};

use super::{
    Context, Exit, Grid,
    clean::clean,
    data,
    effects::absent,
    json::{self, AuditJson, DownstreamJson, WorkerJson},
    parse, table, talk,
    times::{relative, utc},
};

#[derive(Debug, Subcommand)]
pub(crate) enum DownstreamsCommand {
    /// List the downstreams, what they promise, and what waits for them
    #[command(
        after_help = "Examples:\n  aftercommit downstreams list\n  aftercommit downstreams list --json"
    )]
    List,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit audit
  aftercommit audit --effect 17")]
pub(crate) struct AuditArgs {
    /// Only this effect
    #[arg(long, value_name = "ID", value_parser = parse::effect_id)]
    effect: Option<EffectId>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: u32,
}

/// `downstreams list`.
pub(super) async fn downstreams(context: &Context, command: &DownstreamsCommand) -> anyhow::Result<Exit> {
    let DownstreamsCommand::List = command;
    let store = context.open().await?;
    let all = store.downstreams().await?;
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
    let now = store.now().await?;
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
    for unserved in all.iter().filter_map(|info| info.unserved(now)) {
        talk!("Warning: {}.", clean(&unserved));
    }
    Ok(Exit::Ok)
}

/// `workers`.
pub(super) async fn workers(context: &Context) -> anyhow::Result<Exit> {
    let store = context.open().await?;
    let all = store.workers().await?;
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
    let now = store.now().await?;
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
    let store = context.open().await?;
    let rows = store.audit(args.effect, args.limit).await?;
    if rows.is_empty()
        && let Some(id) = args.effect
        && store.effect(id).await?.is_none()
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
    let mut grid = Grid::new(&["AT", "WHO", "VERB", "EFFECT", "FROM", "TO", "REASON"])
        .numbers(&[3])
        .cut(&[1])
        .below(&[6]);
    for row in &rows {
        grid.row(vec![
            table::cell(utc(row.at)),
            table::cell(&row.who),
            table::cell(&row.verb),
            table::maybe(row.effect_id),
            table::maybe(row.from_state.as_deref()),
            table::maybe(row.to_state.as_deref()),
            table::cell(row.reason.as_deref().unwrap_or("")),
        ]);
    }
    data(grid)?;
    Ok(Exit::Ok)
}
