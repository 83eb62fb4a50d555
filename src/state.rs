//! The states of an effect and the one table of legal transitions.
//!
//! The SQL CHECKs, `status` and the diagram in the README are tested against this table.

use std::{fmt, str::FromStr};

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its prerequisites have not all succeeded, or its lane is taken.
    Waiting,
    /// Due later, never attempted in its present history.
    Scheduled,
    /// Due now.
    Ready,
    /// A worker holds a claim on it, or a claim whose lease ended has not been swept yet.
    InFlight,
    /// Attempted before, due again at `due_at`.
    Retrying,
    /// It may or may not have been applied; a probe or a person will say.
    InDoubt,
    /// Applied.
    Succeeded,
    /// Never applied.
    Failed,
    /// Called off before it was applied.
    Cancelled,
    /// Not begun before `expires_at`.
    Expired,
}

impl State {
    /// Every state, in the order of an effect's life.
    pub const ALL: [Self; 10] = [
        Self::Waiting,
        Self::Scheduled,
        Self::Ready,
        Self::InFlight,
        Self::Retrying,
        Self::InDoubt,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The word used in SQL, JSON, logs and pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::InFlight => "in_flight",
            Self::Retrying => "retrying",
            Self::InDoubt => "in_doubt",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Waiting, scheduled, ready or retrying.
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::Waiting | Self::Scheduled | Self::Ready | Self::Retrying)
    }

    /// Succeeded, failed, cancelled or expired: only a person's audited verb leaves it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Expired)
    }

    /// Whether an effect may go from `self` to `to`, and by whom.
    pub fn transition_to(self, to: Self) -> Option<Cause> {
        TRANSITIONS
            .iter()
            .find(|(from, target, _)| (*from, *target) == (self, to))
            .map(|(_, _, cause)| *cause)
    }
}

/// Who or what makes a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The clock, the release of a prerequisite or a lane: no decision.
    Release,
    /// A worker's claim.
    Claim,
    /// A settle: what `decide` said of an attempt, a probe or a lease that ended.
    Settle,
    /// A sweep over effects that nobody holds.
    Sweep,
    /// A person's audited verb.
    Person,
}

/// Every legal transition, with its usual cause. A person may make some of the others too: resolving is what a probe would
/// have said, and cancelling an uncertain effect parks it as a sweep would. What is not here is never written.
pub const TRANSITIONS: &[(State, State, Cause)] = &[
    (State::Waiting, State::Scheduled, Cause::Release),
    (State::Waiting, State::Ready, Cause::Release),
    (State::Scheduled, State::Ready, Cause::Release),
    (State::Retrying, State::Ready, Cause::Release),
    (State::Ready, State::InFlight, Cause::Claim),
    (State::Retrying, State::InFlight, Cause::Claim),
    (State::InFlight, State::Succeeded, Cause::Settle),
    (State::InFlight, State::Failed, Cause::Settle),
    (State::InFlight, State::InDoubt, Cause::Settle),
    (State::InFlight, State::Retrying, Cause::Settle),
    (State::InFlight, State::Ready, Cause::Settle),
    (State::InFlight, State::Cancelled, Cause::Settle),
    (State::InFlight, State::Expired, Cause::Settle),
    (State::Ready, State::InDoubt, Cause::Sweep),
    (State::Retrying, State::InDoubt, Cause::Sweep),
    (State::Ready, State::Succeeded, Cause::Settle),
    (State::Retrying, State::Succeeded, Cause::Settle),
    (State::Waiting, State::Cancelled, Cause::Person),
    (State::Scheduled, State::Cancelled, Cause::Person),
    (State::Ready, State::Cancelled, Cause::Person),
    (State::Retrying, State::Cancelled, Cause::Person),
    (State::Waiting, State::Expired, Cause::Sweep),
    (State::Scheduled, State::Expired, Cause::Sweep),
    (State::Ready, State::Expired, Cause::Sweep),
    (State::Retrying, State::Expired, Cause::Sweep),
    (State::InDoubt, State::Succeeded, Cause::Settle),
    (State::InDoubt, State::Failed, Cause::Settle),
    (State::InDoubt, State::Retrying, Cause::Settle),
    (State::InDoubt, State::Ready, Cause::Person),
    (State::Failed, State::Waiting, Cause::Person),
    (State::Failed, State::Ready, Cause::Person),
    (State::Cancelled, State::Waiting, Cause::Person),
];

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no state; the states are waiting, scheduled, ready, in_flight, retrying, in_doubt, succeeded, failed, cancelled, expired"
)]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(word: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == word)
            .ok_or_else(|| UnknownState(word.to_owned()))
    }
}

#[cfg(test)]
mod tests;
