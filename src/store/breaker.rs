//! An origin's breaker: when calls stop, who tries again, when they go on. Pure: no clock, no I/O.
//!
//! The stores apply it under their lock of the origin's row, as they apply [`crate::verb::judge`] under their lock of an
//! effect: so it stands beside them and not in the engine. A row is written only for an origin in trouble; a healthy one
//! costs nothing.

use std::time::Duration;

use crate::clock::Timestamp;

/// Consecutive failures, over the fleet, after which an origin is left alone. High enough that one effect that always breaks
/// it, among others that do not, never gets there; a dead origin does at once.
pub const FAILURES_TO_OPEN: u32 = 10;
/// How long it is first left alone: about as long as a restart takes.
const OPEN_FIRST: Duration = Duration::from_secs(1);
/// No trial is put off for longer: a call a minute hurts nobody.
const OPEN_MAX: Duration = Duration::from_secs(60);
/// Nor one after a trial that found nobody there: it cost no effect anything, and whoever restarts should not wait for us.
const UNREACHED_MAX: Duration = Duration::from_secs(4);

/// What is known of an origin that is, or was lately, in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Consecutive failures while the breaker was closed.
    pub failures: u32,
    /// How often it was opened since it last answered.
    pub opens: u32,
    /// The breaker is open, and a trial may begin after this. `None`: it is closed.
    pub open_until: Option<Timestamp>,
    /// A trial is under way; after this its worker is thought dead and another may begin.
    pub trial_until: Option<Timestamp>,
    /// It asked to be left alone until then (Retry-After).
    pub paused_until: Option<Timestamp>,
    /// What it was that went wrong last.
    pub reason: Option<String>,
}

/// What a call showed about the origin it went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It answered, whatever it said.
    Answered,
    /// It did not answer, or only that it is broken.
    Failed,
    /// Nobody was there: not a byte of the call left.
    Unreached,
    /// It did not answer, in the one call that was let through to find out.
    TrialFailed,
    /// Nobody was there, in that call.
    TrialUnreached,
    /// The trial came to nothing: no call was made.
    TrialEnded,
    /// Nothing about its health.
    Nothing,
}

/// Whether calls may go to an origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breaker {
    /// They may.
    #[default]
    Closed,
    /// None may.
    Open,
    /// One may, to find out.
    HalfOpen,
}

impl Breaker {
    /// The word used in JSON and on pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

impl Origin {
    /// Its breaker at `now`.
    pub fn breaker(&self, now: Timestamp) -> Breaker {
        match self.open_until {
            None => Breaker::Closed,
            Some(until) if now < until => Breaker::Open,
            Some(_) => Breaker::HalfOpen,
        }
    }

    /// Whether a trial may begin: it was left alone for long enough, nobody else tries, and it did not ask for more patience.
    pub fn may_try(&self, now: Timestamp) -> bool {
        let over = |until: Option<Timestamp>| until.is_none_or(|until| until <= now);
        self.breaker(now) == Breaker::HalfOpen && over(self.trial_until) && over(self.paused_until)
    }

    /// What is known of it after a call showed `sign` and, perhaps, asked for `pause`.
    #[must_use]
    pub fn after(mut self, sign: Sign, pause: Option<Duration>, now: Timestamp) -> Self {
        match sign {
            Sign::Answered => {
                (self.failures, self.opens, self.open_until, self.trial_until) = (0, 0, None, None);
            }
            // What was under way when it opened says nothing new.
            Sign::Failed | Sign::Unreached if self.open_until.is_some() => {}
            Sign::Failed | Sign::Unreached => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES_TO_OPEN {
                    self = self.open(OPEN_MAX, now);
                }
            }
            Sign::TrialFailed => self = self.open(OPEN_MAX, now),
            Sign::TrialUnreached => self = self.open(UNREACHED_MAX, now),
            Sign::TrialEnded => self.trial_until = None,
            Sign::Nothing => {}
        }
        if let Some(pause) = pause {
            self.paused_until = self.paused_until.max(Some(now.plus(pause)));
        }
        self
    }

    fn open(self, at_most: Duration, now: Timestamp) -> Self {
        let length = OPEN_FIRST.saturating_mul(1 << self.opens.min(16)).min(at_most);
        Self {
            opens: self.opens.saturating_add(1),
            open_until: Some(now.plus(length)),
            trial_until: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0).plus(Duration::from_secs(seconds))
    }

    fn failed(times: u32) -> Origin {
        (0..times).fold(Origin::default(), |origin, _| origin.after(Sign::Failed, None, at(100)))
    }

    #[test]
    fn it_opens_after_so_many_consecutive_failures_and_an_answer_in_between_begins_anew() {
        let almost = failed(FAILURES_TO_OPEN - 1);
        assert_eq!(almost.breaker(at(100)), Breaker::Closed);
        let answered = almost.clone().after(Sign::Answered, None, at(100));
        assert_eq!(answered.after(Sign::Failed, None, at(100)).failures, 1);
        assert_eq!(almost.after(Sign::Failed, None, at(100)).breaker(at(100)), Breaker::Open);
    }

    #[test]
    fn an_open_breaker_lets_one_try_after_a_while() {
        let open = failed(FAILURES_TO_OPEN);
        assert!(!open.may_try(at(100)));
        assert_eq!(open.breaker(at(101)), Breaker::HalfOpen);
        assert!(open.may_try(at(101)));
        let trying = Origin { trial_until: Some(at(120)), ..open };
        assert!(!trying.may_try(at(119)), "one at a time");
        assert!(trying.may_try(at(120)), "a worker that died with its trial does not block it for ever");
        assert!(trying.after(Sign::TrialEnded, None, at(110)).may_try(at(110)));
    }

    #[test]
    fn a_failed_trial_doubles_the_wait_up_to_a_minute_and_an_answer_closes_it() {
        let mut origin = failed(FAILURES_TO_OPEN);
        let mut now = at(101);
        for seconds in [2, 4, 8, 16, 32, 60, 60, 60] {
            assert!(origin.may_try(now));
            origin = origin.after(Sign::TrialFailed, None, now);
            assert_eq!(origin.open_until, Some(now.plus(Duration::from_secs(seconds))));
            now = now.plus(Duration::from_secs(seconds));
        }
        assert_eq!(origin.after(Sign::Answered, None, now), Origin::default());
    }

    #[test]
    fn an_origin_where_nobody_is_is_tried_every_few_seconds() {
        let mut origin = failed(FAILURES_TO_OPEN);
        let mut now = at(101);
        for seconds in [2, 4, 4, 4] {
            origin = origin.after(Sign::TrialUnreached, None, now);
            assert_eq!(origin.open_until, Some(now.plus(Duration::from_secs(seconds))));
            now = now.plus(Duration::from_secs(seconds));
        }
        let broken = origin.after(Sign::TrialFailed, None, now);
        assert_eq!(
            broken.open_until,
            Some(now.plus(Duration::from_secs(32))),
            "that one costs an effect its certainty"
        );
    }

    #[test]
    fn calls_that_were_under_way_do_not_keep_it_open_for_longer() {
        let open = failed(FAILURES_TO_OPEN);
        assert_eq!(open.clone().after(Sign::Failed, None, at(500)), open);
    }

    #[test]
    fn a_pause_is_never_shortened_and_goes_with_any_sign() {
        let asked = Origin::default().after(Sign::Answered, Some(Duration::from_secs(60)), at(100));
        assert_eq!((asked.paused_until, asked.failures), (Some(at(160)), 0));
        let again = asked.after(Sign::Nothing, Some(Duration::from_secs(5)), at(101));
        assert_eq!(again.paused_until, Some(at(160)));
        assert_eq!(again.after(Sign::Answered, None, at(102)).paused_until, Some(at(160)));
    }

    #[test]
    fn nobody_tries_while_the_origin_asks_for_patience() {
        let paused = Origin { paused_until: Some(at(160)), ..failed(FAILURES_TO_OPEN) };
        assert!(!paused.may_try(at(159)));
        assert!(paused.may_try(at(160)));
    }

    #[test]
    fn arithmetic_does_not_overflow() {
        let old = Origin { failures: u32::MAX, opens: u32::MAX, ..Origin::default() };
        let after = old.after(Sign::Failed, Some(Duration::MAX), Timestamp::from_micros(i64::MAX - 5));
        assert_eq!((after.failures, after.opens), (u32::MAX, u32::MAX));
    }
}
