//! `aftercommit purge`: retention now, to the end, instead of little by little in the workers.

use std::io::{IsTerminal, stderr};

use aftercommit::{
    engine::{Manner, Purged, purge},
    store::{Database, Retention, Step},
};
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Context, Exit, data, json,
    output::{plural, progress},
    talk,
    work::Signals,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Drops what [retention] of the configuration does not keep any longer; without a
configuration, what its defaults do not. Workers do the same, little by little.
Nothing that has not ended, or is in doubt, is touched. Ctrl-C stops it between
two batches; what was dropped is dropped.

Examples:
  aftercommit purge --dry-run
  aftercommit purge
  aftercommit purge --json")]
pub(crate) struct PurgeArgs {
    /// Count what is due, and drop nothing
    #[arg(long)]
    dry_run: bool,
}

/// Purges.
pub(super) async fn run(context: &Context, args: &PurgeArgs) -> anyhow::Result<Exit> {
    let retention =
        if context.configured()? { context.settings()?.retention.kept() } else { Retention::default() };
    let store = context.open().await?;
    if args.dry_run {
        let due = due(store.as_ref(), &retention).await?;
        return told(context, "would be dropped", &due, None).map(|()| Exit::Ok);
    }
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    // It is shown how far it is only to somebody who watches: to count beforehand costs a look at the index.
    let watched = stderr().is_terminal() && !context.json();
    let due = if watched { due(store.as_ref(), &retention).await? } else { Purged::default() };
    let mut done = Purged::default();
    let purging = purge(store.as_ref(), &retention, Manner::AtOnce, &stop, |step, effects| {
        *done.of(step) += effects;
        if watched {
            progress(&line(step, done, due));
        }
    });
    tokio::pin!(purging);
    let purged = loop {
        tokio::select! {
            purged = &mut purging => break purged,
            // Not dropped: a statement is never left in the middle.
            _ = signals.next() => stop.cancel(),
        }
    };
    if watched {
        progress("");
    }
    let forgotten = store.forget_unused(retention.keys).await?;
    told(context, "dropped", &purged?, Some(forgotten))?;
    if stop.is_cancelled() {
        talk!("Stopped; what is left is due still.");
        return Ok(Exit::Partly);
    }
    Ok(Exit::Ok)
}

/// What is due in each step; a key that falls due takes payload and history along, which are counted too.
async fn due(store: &dyn Database, retention: &Retention) -> anyhow::Result<Purged> {
    let mut due = Purged::default();
    for step in Step::ALL {
        *due.of(step) = store.due(step, retention).await?;
    }
    Ok(due)
}

fn line(step: Step, mut done: Purged, mut due: Purged) -> String {
    let (done, due) = (*done.of(step), *due.of(step));
    format!("{}: {done} of {}", step.as_str(), due.max(done))
}

fn told(context: &Context, what: &str, purged: &Purged, forgotten: Option<u64>) -> anyhow::Result<()> {
    if context.json() {
        return json::print(&json!({
            "dry_run": forgotten.is_none(),
            "payloads": purged.payloads,
            "history": purged.history,
            "keys": purged.keys,
            "unused": forgotten,
        }));
    }
    data(format!(
        "{what}: payloads of {}, history of {}, keys of {}",
        plural(purged.payloads, "effect"),
        plural(purged.history, "effect"),
        plural(purged.keys, "effect"),
    ))?;
    if let Some(rows) = forgotten.filter(|rows| *rows > 0) {
        data(format!("forgotten: {} that nothing refers to", plural(rows, "row")))?;
    }
    Ok(())
}
