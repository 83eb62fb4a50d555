//! Late answers: what a worker found out after it had lost its lease. Always logged; a late *applied* may settle. A claim that
//! was handed back unstarted is one as well: beside the row in which a sweep took it for an attempt it says that it was none.

use std::sync::Arc;

use super::{Counters, Shared, outage::Outages};
use crate::{
    outcome::Verdict,
    store::{Late, LateAnswer},
};

/// Late answers, with their effects' downstreams, are logged by the store whatever becomes of them; until it answers we try
/// again.
pub(super) async fn report(shared: &Shared, answers: Vec<(Arc<str>, LateAnswer)>) {
    if answers.is_empty() {
        return;
    }
    let (downstreams, answers): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    let mut outages = Outages::default();
    for _ in 0..10 {
        match shared.store.late(&answers).await {
            Ok(results) => {
                for ((downstream, answer), late) in downstreams.iter().zip(&answers).zip(results) {
                    if late == Late::Contradicts {
                        shared.figures.possible_duplicate(downstream);
                    }
                    say(shared, answer, late);
                }
                return;
            }
            Err(error) => {
                outages.report("logging late answers", &error);
                outages.wait().await;
            }
        }
    }
    tracing::error!(answers = answers.len(), "late answers could not be logged");
}

fn say(shared: &Shared, answer: &LateAnswer, late: Late) {
    let effect = answer.id;
    match late {
        Late::Logged if !answer.begun => {
            tracing::info!(%effect, "handed back unstarted after its lease had ended");
        }
        Late::Logged => tracing::info!(%effect, outcome = %answer.attempt.verdict, "late answer logged"),
        Late::Succeeded => tracing::warn!(%effect, "a late answer says applied: succeeded"),
        Late::Noted => {
            tracing::warn!(%effect, "a late answer says applied: it succeeds when the present attempt settles")
        }
        Late::Contradicts => {
            debug_assert_eq!(answer.attempt.verdict, Verdict::Applied);
            Counters::add(&shared.counters.possible_duplicates, 1);
            tracing::error!(%effect, "POSSIBLE DUPLICATE: a late answer says applied, but a person had resolved it as not applied, probes had shown it absent, or it was superseded");
        }
    }
}
