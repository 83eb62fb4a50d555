//! What is counted for people who look for causes and courses.

use std::{collections::BTreeMap, time::Duration};

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

/// At most so many minutes, or hours, have their latency told.
pub const LATENCY_BARS_MAX: u32 = 200;
/// Each minute, or hour, is looked at in so many equal parts, so that a burst at its end does not stand for all of it.
pub(crate) const LATENCY_PARTS: u32 = 6;
/// So many attempts are looked at in each part: what is read is bounded, however many effects there are.
pub(crate) const LATENCY_EACH: u32 = 5;

/// How long the attempts took that ended effects, within one minute or hour: of a sample, spread over it evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// When the minute, or the hour, began (UTC).
    pub at: Timestamp,
    /// How many attempts were looked at.
    pub sampled: u32,
    /// Half of them took no longer.
    pub p50: Duration,
    /// Ninety-five of a hundred took no longer.
    pub p95: Duration,
}

impl Latency {
    /// Of attempts that took so many microseconds and ended their effect then; oldest first.
    pub(crate) fn of(per: Resolution, attempts: impl IntoIterator<Item = (Timestamp, i64)>) -> Vec<Self> {
        let mut bars: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
        for (at, took) in attempts {
            let bar = at.micros().div_euclid(per.micros()).saturating_mul(per.micros());
            // A clock that was set back meanwhile makes an attempt that took less than nothing.
            bars.entry(bar).or_default().push(u64::try_from(took).unwrap_or(0));
        }
        let latency = |(at, mut took): (i64, Vec<u64>)| {
            took.sort_unstable();
            Self {
                at: Timestamp::from_micros(at),
                sampled: u32::try_from(took.len()).unwrap_or(u32::MAX),
                p50: rank(&took, 50),
                p95: rank(&took, 95),
            }
        };
        bars.into_iter().map(latency).collect()
    }
}

/// The smallest of `sorted` that so many of a hundred do not exceed.
fn rank(sorted: &[u64], of_a_hundred: usize) -> Duration {
    let index = (sorted.len() * of_a_hundred).div_ceil(100).saturating_sub(1);
    Duration::from_micros(sorted.get(index).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;

    #[test]
    fn a_latency_is_one_that_was_seen_and_that_so_many_do_not_exceed() {
        let took = |n: i64| (1..=n).rev().map(|took| (Timestamp::from_micros(7 * MINUTE + took), took));
        for (n, p50, p95) in [(1, 1, 1), (2, 1, 2), (20, 10, 19), (100, 50, 95)] {
            let found = Latency::of(Resolution::Minute, took(n));
            let [one] = &found[..] else { panic!("one minute: {found:?}") };
            assert_eq!((one.at.micros(), i64::from(one.sampled)), (7 * MINUTE, n));
            assert_eq!((one.p50, one.p95), (Duration::from_micros(p50), Duration::from_micros(p95)), "{n}");
        }
        assert!(Latency::of(Resolution::Hour, []).is_empty());
    }

    #[test]
    fn each_minute_is_told_by_itself_and_the_oldest_first() {
        let attempts = [(5 * MINUTE - 1, 9), (4 * MINUTE, 1), (5 * MINUTE, -3)];
        let attempts = attempts.map(|(at, took)| (Timestamp::from_micros(at), took));
        let found = Latency::of(Resolution::Minute, attempts);
        let told: Vec<_> = found.iter().map(|one| (one.at.micros() / MINUTE, one.sampled, one.p95)).collect();
        assert_eq!(told, [(4, 2, Duration::from_micros(9)), (5, 1, Duration::ZERO)]);
    }
}
