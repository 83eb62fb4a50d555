//! `aftercommit config`: check, show, write one.

use aftercommit::visible::clean;
use aftercommit_workers::config::{ConfigError, Settings};
use clap::Subcommand;
use serde_json::json;

use super::{Context, Exit, data, json, output::plural, talk};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Refuse what is inconsistent, and say what is remarkable
    #[command(
        after_help = "Examples:\n  aftercommit config check\n  aftercommit --config shop.toml config check"
    )]
    Check,
    /// Print the effective values and contracts with their sources, secrets masked
    #[command(after_help = "\
Examples:
  aftercommit config show
  aftercommit config show --json | jq -c 'select(.source != \"default\")'")]
    Show,
    /// Print a commented configuration with every default
    #[command(after_help = "Example:\n  aftercommit config init > aftercommit.toml")]
    Init,
}

/// Runs one of them.
pub(super) fn run(context: &Context, command: &ConfigCommand) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Init => {
            context.refuse_json("`config init` prints TOML")?;
            data(aftercommit_workers::config::init().trim_end())?;
        }
        ConfigCommand::Show => {
            let settings = context.settings()?;
            if context.json() {
                for shown in settings.shown() {
                    json::print(&json!({ "key": shown.key, "value": shown.value, "source": shown.source }))?;
                }
            } else {
                data(settings.show().trim_end())?;
            }
        }
        ConfigCommand::Check => return check(context),
    }
    Ok(Exit::Ok)
}

/// Everything that is wrong, and else everything that is remarkable: whoever corrects a file wants to know all of it.
fn check(context: &Context) -> anyhow::Result<Exit> {
    let settings = match context.load()? {
        Ok(settings) => settings,
        Err(problems) => return refused(context, &problems),
    };
    let dashboard = settings.dashboard().err().unwrap_or_default();
    match settings.serve_all(None) {
        Ok(served) if dashboard.is_empty() => {
            let names: Vec<&str> = served.iter().map(|served| served.name.as_ref()).collect();
            told(context, &settings, &names)
        }
        served => {
            let problems = served.err().unwrap_or_default().into_iter().chain(dashboard).collect::<Vec<_>>();
            refused(context, &problems)
        }
    }
}

fn refused(context: &Context, problems: &[ConfigError]) -> anyhow::Result<Exit> {
    if context.json() {
        let errors: Vec<_> = problems
            .iter()
            .map(|error| json!({ "place": error.place, "key": error.key, "message": error.problem }))
            .collect();
        json::print(&json!({ "ok": false, "downstreams": [], "errors": errors, "notes": [] }))?;
        return Ok(Exit::Usage);
    }
    for problem in problems {
        talk!("{}", clean(&problem.to_string()));
    }
    talk!("{}", plural(u64::try_from(problems.len()).unwrap_or(0), "error"));
    Ok(Exit::Usage)
}

fn told(context: &Context, settings: &Settings, names: &[&str]) -> anyhow::Result<Exit> {
    let findings = settings.check();
    if context.json() {
        let notes: Vec<_> = findings
            .iter()
            .map(|finding| json!({ "key": finding.key, "message": finding.message }))
            .collect();
        json::print(&json!({ "ok": true, "downstreams": names, "errors": [], "notes": notes }))?;
        return Ok(Exit::Ok);
    }
    for finding in &findings {
        talk!("note: {} {}", clean(&finding.key), clean(&finding.message));
    }
    let file = context.file()?;
    let place = file.map_or_else(|| "The configuration".to_owned(), |path| path.display().to_string());
    talk!("{place} is consistent: {}.", plural(u64::try_from(names.len()).unwrap_or(0), "downstream"));
    Ok(Exit::Ok)
}
