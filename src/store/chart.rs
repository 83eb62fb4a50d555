//! What is counted for people who look for causes and courses.

use crate::{clock::Timestamp, effect::EffectId, state::State};

/// The newest effects of a state, as thin as grouping them by cause allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Newest first.
    pub rows: Vec<CauseRow>,
    /// How many were looked at: [`super::CAUSES_WINDOW`] at most.
    pub searched: u64,
    /// Whether these are all that there are.
    pub whole: bool,
}

/// An effect that failed, or is in doubt, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseRow {
    /// Which effect.
    pub id: EffectId,
    /// Its downstream.
    pub downstream: String,
    /// Its operation.
    pub operation: Option<String>,
    /// As [`super::Status::last_error`].
    pub error: Option<String>,
    /// The protocol's status of the last answer.
    pub response_status: Option<u16>,
    /// A new effect took its place: nothing is to be done about it.
    pub superseded: bool,
    /// When it ended; in doubt, when its last attempt did; else when it was written.
    pub at: Timestamp,
}

/// How finely time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Minutes: kept for a day and an hour.
    Minute,
    /// Hours: kept for eight days.
    Hour,
}

impl Resolution {
    /// How long one is, in microseconds.
    pub const fn micros(self) -> i64 {
        match self {
            Self::Minute => 60_000_000,
            Self::Hour => 3_600_000_000,
        }
    }
}

/// How many effects of a downstream ended in a state within one minute, or hour. An effect that is retried and ends once more is
/// counted once more; what people and retention take back is not subtracted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// When the minute, or the hour, began (UTC).
    pub at: Timestamp,
    /// The downstream.
    pub downstream: String,
    /// In which state they ended.
    pub state: State,
    /// How many.
    pub effects: u64,
}
