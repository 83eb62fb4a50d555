//! Acting on a frozen list: a few at a time, each in a transaction of its own, until it is through or somebody says stop.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    effect::EffectId,
    store::Database,
    verb::{Actor, Seen, Verb},
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use super::tally::Tally;
use crate::cli::{Signals, exit::sentence, talk};

/// At one time: each waits for its own commit, and a server flushes several together.
const AT_ONCE: usize = 8;

/// Carries `verb` out for each effect that is still as it was seen.
pub(super) async fn act(
    store: Arc<dyn Database>,
    verb: &Verb,
    actor: Actor,
    (frozen, rate): (Vec<(EffectId, Seen)>, Option<u32>),
) -> anyhow::Result<Tally> {
    let mut signals = Signals::listen()?;
    let began = SystemClock.boot();
    let mut tally = Tally { effects: frozen.len(), ..Tally::default() };
    let bar = bar(frozen.len());
    let mut left = frozen.into_iter();
    let mut open = JoinSet::new();
    let mut stopped = false;
    let mut pace = rate.map(pace);
    // Whether the next one may begin.
    let mut turn = pace.is_none();
    loop {
        while turn && !stopped && open.len() < AT_ONCE {
            let Some((id, seen)) = left.next() else { break };
            turn = pace.is_none();
            let (store, verb, actor) = (Arc::clone(&store), verb.clone(), actor.clone());
            // A task of its own: a signal must not drop a transaction in its middle.
            open.spawn(async move { store.act(id, &verb, &actor, Some(seen)).await });
        }
        let waits = !turn && !stopped && left.len() > 0;
        if open.is_empty() && !waits {
            break;
        }
        let ended = tokio::select! {
            Some(ended) = open.join_next() => ended,
            () = tick(&mut pace), if waits => {
                turn = true;
                continue;
            }
            _ = signals.next(), if !stopped => {
                tally.interrupted = true;
                stopped = true;
                bar.suspend(|| talk!("Stopping: what was begun is finished first."));
                continue;
            }
        };
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

/// One tick per effect.
fn pace(rate: u32) -> Interval {
    let mut pace = interval(Duration::from_secs(1) / rate.max(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// Waits for the rate; where there is none, for ever.
async fn tick(pace: &mut Option<Interval>) {
    match pace {
        Some(pace) => {
            pace.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// On a terminal only: indicatif draws nothing elsewhere.
pub(super) fn bar(length: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(length).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len}, {per_sec}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
