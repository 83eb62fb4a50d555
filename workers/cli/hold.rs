//! `aftercommit hold`: what stopped the fleet, and letting it go on.

use std::time::Duration;

use aftercommit::{
    clock::words::utc,
    store::{
        Database,
        identity::{Hold, Lifted},
    },
};
use clap::{Args, Subcommand};

use super::{Context, Exit, context::invocation, data, effects::actor, fail, json, talk};

/// A request of the lost history may travel for at least this long.
const LEASE_MIN: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(crate) enum HoldCommand {
    /// Say whether the fleet is on hold, since when and why
    #[command(after_help = "Examples:\n  aftercommit hold show\n  aftercommit hold show --json")]
    Show,
    /// Let the fleet go on: what the database is now is accepted
    #[command(after_help = "\
Before you lift it: is this the right database, and the newest copy of it? If it
went back, every unfinished effect is uncertain now. Those whose downstream
still remembers their key are sent again with the same key; the others are
probed or parked in doubt. Effects that only the lost part knew are not here.

Example:
  aftercommit hold lift --reason 'restored from the backup of 03:00, checked'")]
    Lift(LiftArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LiftArgs {
    /// Why it may go on; kept in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Runs one of them.
pub(super) async fn run(context: &Context, command: &HoldCommand) -> anyhow::Result<Exit> {
    let store = context.open_quietly().await?;
    match command {
        HoldCommand::Show => show(context, store.as_ref()).await,
        HoldCommand::Lift(args) => lift(context, store.as_ref(), &args.reason).await,
    }
}

async fn show(context: &Context, store: &dyn Database) -> anyhow::Result<Exit> {
    let hold = store.hold().await?;
    if context.json() {
        json::print(&as_json(hold.as_ref()))?;
        return Ok(Exit::Ok);
    }
    match hold {
        Some(hold) => data(banner(&hold))?,
        None => data("The fleet is not on hold.")?,
    }
    Ok(Exit::Ok)
}

async fn lift(context: &Context, store: &dyn Database, reason: &str) -> anyhow::Result<Exit> {
    if reason.trim().is_empty() {
        return Err(fail(Exit::Usage, "--reason must say why: it is kept in the audit"));
    }
    let actor = actor(Some(reason.to_owned()));
    let lease = longest_lease(context)?;
    let lifted = loop {
        match store.lift_hold(&actor).await? {
            // No worker did it, or none finished.
            Lifted::NotMarked => while store.mark_uncertain(lease).await? {},
            Lifted::NotHeld => {
                return Err(fail(Exit::Forbidden, "the fleet is not on hold: there is nothing to lift"));
            }
            Lifted::Done(hold) => break hold,
        }
    };
    if context.json() {
        json::print(&as_json(None))?;
    } else {
        talk!("Lifted the hold of {}; workers go on within a second or two.", utc(lifted.since));
    }
    Ok(Exit::Ok)
}

/// The longest lease of the configuration, where there is one; at least the usual one.
fn longest_lease(context: &Context) -> anyhow::Result<Duration> {
    let Some(_) = context.file()? else { return Ok(LEASE_MIN) };
    let settings = context.settings()?;
    let leases = settings.downstreams.values().map(|downstream| downstream.lease);
    Ok(leases.fold(LEASE_MIN, Duration::max))
}

/// What every command says first while the fleet is on hold.
pub(crate) fn banner(hold: &Hold) -> String {
    let uncertain = match (hold.went_back, hold.marked) {
        (true, true) => " Every effect that was unfinished then is uncertain.",
        (true, false) => " Every effect that was unfinished then is being made uncertain.",
        (false, _) => "",
    };
    format!(
        "HOLD since {}, found by {}: {}. Nothing is sent.{uncertain} Check that this is the right database, then: {} hold lift --reason …",
        utc(hold.since),
        hold.found_by,
        hold.reason,
        invocation()
    )
}

fn as_json(hold: Option<&Hold>) -> serde_json::Value {
    match hold {
        None => serde_json::json!({ "held": false }),
        Some(hold) => serde_json::json!({
            "held": true, "since": utc(hold.since), "found_by": hold.found_by, "reason": hold.reason,
            "went_back": hold.went_back, "marked": hold.marked,
        }),
    }
}
