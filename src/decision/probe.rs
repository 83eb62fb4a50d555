//! What follows from a probe. Pure, like all of [`crate::decision`].

use super::{Decision, History};
use crate::{
    clock::Timestamp,
    contract::Contract,
    outcome::{Probed, Sighting},
    schedule::Policy,
};

/// However old its history is, an effect is probed this often before what shows nothing leaves it to a person: `max_age` may be
/// shorter than what the downstream takes to show anything.
const PROBES_MIN: u32 = 5;

/// Between the reason for a doubt and what a probe showed: its number follows.
pub(crate) const ASKED: &str = "; probe ";
/// Before how often was asked in vain.
pub(crate) const IN_VAIN: &str = "; it was asked ";

/// An effect in doubt, as a probe finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// What is known of it.
    pub history: History,
    /// Probes made in this doubt, before this one.
    pub made: u32,
    /// When it was first seen absent, of the looks that count.
    pub absent_at: Option<Timestamp>,
    /// Until when its last request may have been travelling.
    pub travels_until: Timestamp,
    /// The downstream stored a server error under the key.
    pub error_stored: bool,
    /// Why it is in doubt.
    pub why: String,
}

/// What follows from a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// What follows. [`Decision::RetryAt`] begins a new history: the effect is certain again.
    pub decision: Decision,
    /// When it was first seen absent, this look counted.
    pub absent_at: Option<Timestamp>,
}

/// What follows from a probe that was begun at `looked_at` and ended by `now`, both on the database's clock.
///
/// *Applied* succeeds. *Absent* counts when it was seen twice, both times at least [`Contract::absent_after`] after the last
/// request can have been received; then the effect certainly was not applied. What shows nothing is asked again by the
/// policy's schedule, until its `max_age` has passed since the first claim of the history; then a person must say.
pub fn decide_probe(
    policy: &Policy,
    contract: &Contract,
    doubt: &Doubt,
    probed: &Probed,
    (looked_at, now): (Timestamp, Timestamp),
) -> Looked {
    let look = Look { policy, doubt, probed, now };
    let counts_from = doubt.travels_until.plus(contract.absent_after);
    let before = doubt.absent_at.filter(|at| *at >= counts_from && *at < looked_at);
    let looked = |decision, absent_at| Looked { decision, absent_at };
    match probed.sighting {
        Sighting::Applied => looked(Decision::Succeed, None),
        Sighting::Impossible => looked(Decision::Park(look.words()), None),
        // It was there, so an absence that was seen before proves nothing.
        Sighting::Unproven => looked(look.again(), None),
        Sighting::Unknown => looked(look.again(), before),
        Sighting::Absent if looked_at < counts_from => {
            looked(Decision::ProbeAt(look.next().max(counts_from), look.words()), None)
        }
        Sighting::Absent => match before {
            None => looked(Decision::ProbeAt(look.next(), look.words()), Some(looked_at)),
            Some(_) => looked(look.twice_absent(), None),
        },
    }
}

struct Look<'a> {
    policy: &'a Policy,
    doubt: &'a Doubt,
    probed: &'a Probed,
    now: Timestamp,
}

impl Look<'_> {
    /// Why it is in doubt, and what this look showed.
    fn words(&self) -> String {
        format!("{}{ASKED}{}: {}", self.doubt.why, self.number(), self.probed.reason)
    }

    fn number(&self) -> u32 {
        self.doubt.made.saturating_add(1)
    }

    fn next(&self) -> Timestamp {
        self.now.plus(self.policy.delay(self.doubt.history.id, self.number(), self.probed.retry_after))
    }

    fn again(&self) -> Decision {
        if self.too_old() && self.number() >= PROBES_MIN {
            return Decision::Park(format!("{}{IN_VAIN}{} times", self.words(), self.number()));
        }
        Decision::ProbeAt(self.next(), self.words())
    }

    fn too_old(&self) -> bool {
        self.now >= self.doubt.history.started_at.plus(self.policy.max_age)
    }

    /// Certainly not applied: the row *not applied* of the table, for a certain effect. One that somebody cancelled, or that
    /// has expired, is due at once and ends as every certain effect does: at its claim, or by the sweep.
    fn twice_absent(&self) -> Decision {
        let history = &self.doubt.history;
        if self.doubt.error_stored {
            return Decision::Park(format!(
                "{}; absent, and the downstream stored an error under the key: it may still carry it out",
                self.words()
            ));
        }
        if history.cancel_requested || history.expires_at.is_some_and(|expires_at| self.now >= expires_at) {
            return Decision::RetryAt(self.now);
        }
        if self.too_old() || history.attempts >= self.policy.max_attempts {
            return Decision::Fail(format!(
                "{}; the retry budget is used up; it was never applied",
                self.words()
            ));
        }
        let delay = self.policy.delay(history.id, history.tries, self.probed.retry_after);
        Decision::RetryAt(self.now.plus(delay))
    }
}

#[cfg(test)]
mod tests;
