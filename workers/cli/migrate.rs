//! `aftercommit migrate`.

use aftercommit::store::{self, Migrated, Options, Registration};
use aftercommit_workers::config::Settings;
use anyhow::Context as _;
use clap::Args;

use super::{
    Context, Exit,
    context::{open, sqlite_file, without_password, writable},
    data, json,
    output::plural,
    talk,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Without a configuration it makes the schema only: give --database. With one,
the names and contracts of its downstreams become known too, so that INSERTs
are checked against them.

Examples:
  aftercommit migrate
  aftercommit migrate --dry-run --database postgres://localhost/shop
  aftercommit migrate --database sqlite:shop.db")]
pub(crate) struct MigrateArgs {
    /// Print the SQL and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Migrates.
pub(super) async fn run(context: &Context, args: &MigrateArgs) -> anyhow::Result<Exit> {
    let settings = if context.configured()? { Some(context.settings()?) } else { None };
    let url = settings
        .as_ref()
        .map_or_else(|| context.database_url(), |settings| Ok(settings.direct().to_owned()))?;
    if args.dry_run {
        context.refuse_json("`migrate --dry-run` prints SQL")?;
        data(store::migration_sql(&url)?.trim_end())?;
        return Ok(Exit::Ok);
    }
    let done = migrate(&url, settings.as_ref().map(|settings| settings.environment.as_str())).await?;
    let known = match &settings {
        Some(settings) => register(&url, settings).await?,
        None => Vec::new(),
    };
    for note in &done.notes {
        talk!("{note}");
    }
    if context.json() {
        json::print(&serde_json::json!({
            "from": done.from, "to": done.to, "notes": done.notes, "downstreams": known,
        }))?;
        return Ok(Exit::Ok);
    }
    talk!("{}", words(&url, &done));
    if !known.is_empty() {
        talk!(
            "Known now: {}: {}.",
            plural(u64::try_from(known.len()).unwrap_or(0), "downstream"),
            known.join(", ")
        );
    }
    Ok(Exit::Ok)
}

/// Brings the schema up to date; what goes wrong names the database.
///
/// # Errors
///
/// When the database cannot be reached or migrated.
pub(crate) async fn migrate(url: &str, environment: Option<&str>) -> anyhow::Result<Migrated> {
    if let Some(file) = sqlite_file(url) {
        writable(&file)?;
    }
    store::migrate(url, environment).await.with_context(|| format!("migrating {}", without_password(url)))
}

/// Makes the configured downstreams known, without a worker that would serve them, and how long answers are kept.
async fn register(url: &str, settings: &Settings) -> anyhow::Result<Vec<String>> {
    let downstreams = settings.registered();
    let names = downstreams.iter().map(|downstream| downstream.name.to_string()).collect();
    let store = open(url, &Options::default()).await?;
    let registration = Registration {
        worker: None,
        version: env!("CARGO_PKG_VERSION"),
        downstreams,
        requests: Some(settings.retention.requests),
    };
    store.register(&registration).await.context("making the downstreams known")?;
    Ok(names)
}

fn words(url: &str, done: &Migrated) -> String {
    let place = without_password(url);
    if done.from == done.to {
        format!("{place} has schema version {} already; nothing was changed.", done.to)
    } else if done.from == 0 {
        format!("{place} has schema version {} now.", done.to)
    } else {
        format!("{place} went from schema version {} to {}.", done.from, done.to)
    }
}
