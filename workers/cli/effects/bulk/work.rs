//! Acting on a frozen list: a few at a time, each in a transaction of its own, until it is through or somebody says stop.

use std::sync::Arc;

use aftercommit::{
    clock::{Clock as _, SystemClock},
    effect::EffectId,
    store::Database,
    verb::{Actor, Seen, Verb},
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use super::tally::Tally;
use crate::cli::{Signals, exit::sentence, talk};

/// At one time: each waits for its own commit, and a server flushes several together.
const AT_ONCE: usize = 8;

/// Carries `verb` out for each effect that is still as it was seen.
pub(super) async fn act(
    store: Arc<dyn Database>,
    verb: &Verb,
    actor: Actor,
    frozen: Vec<(EffectId, Seen)>,
) -> anyhow::Result<Tally> {
    let mut signals = Signals::listen()?;
    let began = SystemClock.boot();
    let mut tally = Tally { effects: frozen.len(), ..Tally::default() };
    let bar = bar(frozen.len());
    let mut left = frozen.into_iter();
    let mut open = JoinSet::new();
    let mut stopped = false;
    loop {
        while !stopped && open.len() < AT_ONCE {
            let Some((id, seen)) = left.next() else { break };
            let (store, verb, actor) = (Arc::clone(&store), verb.clone(), actor.clone());
            // A task of its own: a signal must not drop a transaction in its middle.
            open.spawn(async move { store.act(id, &verb, &actor, Some(seen)).await });
        }
        let ended = tokio::select! {
            ended = open.join_next() => ended,
            _ = signals.next(), if !stopped => {
                tally.interrupted = true;
                stopped = true;
                bar.suspend(|| talk!("Stopping: what was begun is finished first."));
                continue;
            }
        };
        let Some(ended) = ended else { break };
        bar.inc(1);
        match ended? {
            Ok(acted) => tally.count(&acted),
            Err(problem) => {
                tally.failed += 1;
                tally.unreachable |= problem.is_outage();
                // The next one would meet the same: a person looks first.
                stopped = true;
                tally.problem.get_or_insert_with(|| sentence(&problem.into()));
            }
        }
    }
    bar.finish_and_clear();
    tally.not_begun = left.len();
    tally.took = SystemClock.boot() - began;
    Ok(tally)
}

/// On a terminal only: indicatif draws nothing elsewhere.
pub(super) fn bar(length: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(length).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len}, {per_sec}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
