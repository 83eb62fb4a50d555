//! `aftercommit profiles`: the contracts that are shipped, with their sources.

use aftercommit_workers::profiles::{all, get};
use clap::Subcommand;

use super::{Context, Exit, Grid, data, fail, json, table};

#[derive(Debug, Subcommand)]
pub(crate) enum ProfilesCommand {
    /// List the shipped profiles
    #[command(after_help = "Example:\n  aftercommit profiles list")]
    List,
    /// Print a profile as it is shipped: contract, answer rules, sources
    #[command(after_help = "Example:\n  aftercommit profiles show stripe-v1")]
    Show {
        /// Its name
        name: String,
    },
}

/// Runs one of them.
pub(super) fn run(context: &Context, command: &ProfilesCommand) -> anyhow::Result<Exit> {
    match command {
        ProfilesCommand::List => list(context),
        ProfilesCommand::Show { name } => show(context, name),
    }
}

fn list(context: &Context) -> anyhow::Result<Exit> {
    let mut grid = Grid::new(&["NAME", "READ", "CONFIDENCE", "WHAT"]).below(&[3]);
    for profile in all() {
        let about = profile.about()?;
        if context.json() {
            json::print(&serde_json::json!({
                "name": profile.name, "summary": about.summary, "date": about.date,
                "confidence": about.confidence, "sources": about.sources,
            }))?;
        }
        grid.row(vec![
            table::cell(profile.name),
            table::cell(about.date),
            table::cell(about.confidence),
            table::cell(about.summary),
        ]);
    }
    if !context.json() {
        data(grid)?;
    }
    Ok(Exit::Ok)
}

fn show(context: &Context, name: &str) -> anyhow::Result<Exit> {
    let Some(profile) = get(name) else {
        let names: Vec<&str> = all().iter().map(|profile| profile.name).collect();
        return Err(fail(
            Exit::NotFound,
            format!("there is no profile {name}; shipped are {}", names.join(", ")),
        ));
    };
    if context.json() {
        let about = profile.about()?;
        json::print(&serde_json::json!({
            "name": profile.name, "summary": about.summary, "date": about.date,
            "confidence": about.confidence, "sources": about.sources, "toml": profile.text,
        }))?;
    } else {
        data(profile.text.trim_end())?;
    }
    Ok(Exit::Ok)
}
