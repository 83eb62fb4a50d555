//! `aftercommit purge`: retention now, to the end, instead of little by little in the workers.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use aftercommit::{
    clock::words::span,
    engine::{Manner, Purged, purge},
    store::{Ahead, Database, Retention, Step},
};
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Context, Exit, data, fail, json,
    output::{ask, can_ask, plural, progress},
    parse, talk,
    work::Signals,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Drops what [retention] of the configuration does not keep any longer, or what
the ages given here do not. Without either it refuses: what is dropped cannot
be had back. With them go answers of guarded requests and received messages
whose own time is over. Workers do the same, little by little. Nothing that
has not ended, or is in doubt, is touched, nor the answer of its request.
Ctrl-C stops it between two batches; what was dropped is dropped.

Examples:
  aftercommit purge --dry-run
  aftercommit purge
  aftercommit purge --yes --json
  aftercommit purge --payloads 3d --history 30d --keys 400d")]
pub(crate) struct PurgeArgs {
    /// Count what would be dropped, and drop nothing
    #[arg(long)]
    dry_run: bool,
    /// Drop payloads of effects that ended this long ago, whatever the configuration says
    #[arg(long, value_name = "AGE", value_parser = parse::duration)]
    payloads: Option<Duration>,
    /// Drop attempt logs and responses of effects that ended this long ago
    #[arg(long, value_name = "AGE", value_parser = parse::duration)]
    history: Option<Duration>,
    /// Drop effects that ended this long ago, with their keys
    #[arg(long, value_name = "AGE", value_parser = parse::duration)]
    keys: Option<Duration>,
    /// Confirm it, where nobody can be asked
    #[arg(long)]
    yes: bool,
    /// Believe the database's clock, though it is more than a day ahead of the last look
    #[arg(long)]
    trust_clock: bool,
}

/// Purges.
pub(super) async fn run(context: &Context, args: &PurgeArgs) -> anyhow::Result<Exit> {
    let retention = retention(context, args)?;
    let store = context.open().await?;
    if args.dry_run {
        return dry_run(context, store.as_ref(), &retention, args.trust_clock).await;
    }
    confirm(args, &retention)?;
    if args.trust_clock {
        store.believe_clock().await?;
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
    let purged = purged?;
    let forgotten = match purged.ahead {
        Some(_) => 0,
        None => store.forget_unused(retention.keys).await?,
    };
    told(context, "dropped", &purged, Some(forgotten))?;
    if let Some(ahead) = purged.ahead {
        talk!("No key was dropped: {}", disbelief(&ahead));
        return Ok(Exit::Partly);
    }
    if stop.is_cancelled() {
        talk!("Stopped; what is left is due still.");
        return Ok(Exit::Partly);
    }
    Ok(Exit::Ok)
}

/// What would be dropped now: no key, and nothing that came in, by a clock that would not be believed.
async fn dry_run(
    context: &Context,
    store: &dyn Database,
    retention: &Retention,
    trusted: bool,
) -> anyhow::Result<Exit> {
    let mut due = due(store, retention).await?;
    let ahead = if trusted { None } else { disbelieved(store).await? };
    if let Some(ahead) = ahead {
        due = Purged { keys: 0, requests: 0, inbox: 0, ahead: Some(ahead), ..due };
        talk!("No key, answer or received message would be dropped: {}", disbelief(&ahead));
    }
    told(context, "would be dropped", &due, None).map(|()| Exit::Ok)
}

/// Whether the database's clock would not be believed. Asked by a batch of nothing, which looks at the clock as every batch does.
async fn disbelieved(store: &dyn Database) -> anyhow::Result<Option<Ahead>> {
    match store.drop_batch(Step::Keys, Duration::MAX, 0).await {
        Ok(batch) => Ok(batch.ahead),
        // Whoever may not drop may still count.
        Err(problem) if problem.is_forbidden() => Ok(None),
        Err(problem) => Err(problem.into()),
    }
}

fn disbelief(ahead: &Ahead) -> String {
    format!(
        "the database's clock says {}, and the last look was at {}. If nobody looked for so long and the clock is right, add \
         --trust-clock.",
        ahead.now, ahead.last
    )
}

/// The ages given, else those of the configuration. No defaults: who purges a database of which they have no configuration
/// does not know how long its owner wants things kept.
fn retention(context: &Context, args: &PurgeArgs) -> anyhow::Result<Retention> {
    let written = match context.configured()? {
        true => Some(context.settings()?).filter(|settings| settings.writes_retention()),
        false => None,
    };
    let written = written.map(|settings| settings.retention.kept());
    let age = |given: Option<Duration>, of: fn(&Retention) -> Duration| given.or(written.as_ref().map(of));
    let ages = (
        age(args.payloads, |kept| kept.payloads),
        age(args.history, |kept| kept.history),
        age(args.keys, |kept| kept.keys),
    );
    let (Some(payloads), Some(history), Some(keys)) = ages else {
        return Err(fail(
            Exit::Usage,
            "how long things are kept is written nowhere here, and what is dropped cannot be had back: give the \
             configuration that the workers have (--config FILE) with its\n\n\
             [retention]\npayloads = \"3d\"\nhistory = \"30d\"\nkeys = \"400d\"\n\n\
             or all of --payloads, --history and --keys",
        ));
    };
    // What came in says itself how long it is kept.
    let retention = Retention { payloads, history, keys, ..Retention::default() };
    retention.validate().map_err(|(setting, problem)| fail(Exit::Usage, format!("--{setting} {problem}")))?;
    Ok(retention)
}

/// What is dropped cannot be had back.
fn confirm(args: &PurgeArgs, retention: &Retention) -> anyhow::Result<()> {
    if args.yes {
        return Ok(());
    }
    if !can_ask() {
        return Err(fail(Exit::Usage, "this is confirmed on a terminal: add --yes to confirm it here"));
    }
    talk!(
        "Of effects that have ended: payloads go after {}, history after {}, keys after {}. Answers of requests and \
         received messages go when their own time is over. That cannot be undone.",
        span(retention.payloads),
        span(retention.history),
        span(retention.keys)
    );
    match ask("Go on? [y/N]")?.as_str() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(fail(Exit::Failure, "nothing was done: the answer differs")),
    }
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
            "requests": purged.requests,
            "inbox": purged.inbox,
            "unused": forgotten,
            "clock_ahead": purged.ahead.is_some(),
        }));
    }
    data(format!(
        "{what}: payloads of {}, history of {}, keys of {}, {}, {}",
        plural(purged.payloads, "effect"),
        plural(purged.history, "effect"),
        plural(purged.keys, "effect"),
        plural(purged.requests, "answered request"),
        plural(purged.inbox, "received message"),
    ))?;
    if let Some(rows) = forgotten.filter(|rows| *rows > 0) {
        data(format!("forgotten: {} that nothing refers to", plural(rows, "row")))?;
    }
    Ok(())
}
