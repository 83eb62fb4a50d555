//! `aftercommit config`: check, show, write one.

use clap::Subcommand;

use super::{Context, Exit, data, json, output::plural, talk};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Refuse what is inconsistent, and say what is remarkable
    #[command(
        after_help = "Examples:\n  aftercommit config check\n  aftercommit --config shop.toml config check"
    )]
    Check,
    /// Print the effective values, secrets masked
    #[command(after_help = "Example:\n  aftercommit config show")]
    Show,
    /// Print a commented configuration with every default
    #[command(after_help = "Example:\n  aftercommit config init > aftercommit.toml")]
    Init,
}

/// Runs one of them.
pub(super) fn run(context: &Context, command: &ConfigCommand) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Init => data(aftercommit_workers::config::init().trim_end())?,
        ConfigCommand::Show => data(context.settings()?.show().trim_end())?,
        ConfigCommand::Check => return check(context),
    }
    Ok(Exit::Ok)
}

fn check(context: &Context) -> anyhow::Result<Exit> {
    let settings = context.settings()?;
    let findings = settings.check();
    let served = settings.serve(None)?;
    if context.json() {
        let names: Vec<&str> = served.iter().map(|served| served.name.as_ref()).collect();
        let notes: Vec<_> = findings
            .iter()
            .map(|finding| serde_json::json!({ "key": finding.key, "message": finding.message }))
            .collect();
        json::print(&serde_json::json!({ "ok": true, "downstreams": names, "notes": notes }))?;
        return Ok(Exit::Ok);
    }
    for finding in &findings {
        talk!("note: {} {}", finding.key, finding.message);
    }
    let file = context.file()?;
    let place = file.map_or_else(|| "The configuration".to_owned(), |path| path.display().to_string());
    talk!("{place} is consistent: {}.", plural(u64::try_from(served.len()).unwrap_or(0), "downstream"));
    Ok(Exit::Ok)
}
