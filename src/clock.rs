//! Time as a value: [`Timestamp`] (the database's clock) and [`Boot`] (this machine's clock, running through suspend).
//!
//! Nothing in the vocabulary reads a clock. Who needs the time is given it, so that a test can choose it.

pub mod words;

use std::{
    fmt,
    ops::Sub,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

/// A point in time: microseconds since 1970-01-01T00:00:00Z. Arithmetic saturates, it never panics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every other point: PostgreSQL's `infinity`, "for ever".
    pub const MAX: Self = Self(i64::MAX);
    /// Earlier than every other point: PostgreSQL's `-infinity`.
    pub const MIN: Self = Self(i64::MIN);

    /// From microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// `self + duration`; for ever stays for ever.
    pub fn plus(self, duration: Duration) -> Self {
        if self == Self::MAX || self == Self::MIN {
            return self;
        }
        Self(self.0.saturating_add(duration_micros(duration)))
    }

    /// `self - duration`; for ever stays for ever.
    pub fn minus(self, duration: Duration) -> Self {
        if self == Self::MAX || self == Self::MIN {
            return self;
        }
        Self(self.0.saturating_sub(duration_micros(duration)))
    }

    /// How long from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// What [`Self::rfc3339`] writes, RFC 3339 with any offset, or a date, whose beginning in UTC it is. `None` when it is none of
    /// these: never a guess.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "infinity" => return Some(Self::MAX),
            "-infinity" => return Some(Self::MIN),
            _ => {}
        }
        if let Some(micros) = text.strip_suffix("us") {
            return micros.parse().ok().map(Self);
        }
        let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
        let at = time::OffsetDateTime::parse(&whole, &time::format_description::well_known::Rfc3339).ok()?;
        i64::try_from(at.unix_timestamp_nanos().div_euclid(1000)).ok().map(Self)
    }

    /// RFC 3339 in UTC with microseconds, or `infinity` / `-infinity`; what no calendar holds is printed as a number.
    pub fn rfc3339(self) -> String {
        if self == Self::MAX {
            return "infinity".to_owned();
        }
        if self == Self::MIN {
            return "-infinity".to_owned();
        }
        let form = time::macros::format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z"
        );
        time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1000)
            .ok()
            .and_then(|at| at.format(form).ok())
            .unwrap_or_else(|| format!("{}us", self.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

/// A duration in whole microseconds, saturating at `i64::MAX`.
pub fn duration_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// This machine's time since it was started, suspend included. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot(Duration);

impl Boot {
    /// `self + duration`, saturating.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// How long until `later`; zero when it has passed.
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl Sub for Boot {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where the engine reads the time. Decisions use the database's; this one measures what passes between two looks at it.
pub trait Clock: Send + Sync {
    /// Time since boot, suspend included.
    fn boot(&self) -> Boot;
    /// This machine's wall clock: for log lines and log rows only, never for a lease or a window.
    fn wall(&self) -> Timestamp;
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Boot {
        // Not CLOCK_MONOTONIC: it stands still while the machine is suspended, and a lease does not.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Boot(Duration::new(seconds, nanos))
    }

    fn wall(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp::from_micros(now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000))
    }
}

/// A clock that a test sets.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `at`.
    pub fn at(at: Timestamp) -> Self {
        Self(AtomicI64::new(at.micros()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(duration_micros(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn boot(&self) -> Boot {
        Boot(Duration::from_micros(u64::try_from(self.0.load(Ordering::SeqCst)).unwrap_or(0)))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_and_for_ever_stays() {
        assert_eq!(Timestamp::MAX.minus(Duration::from_secs(300)), Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(5).plus(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(5).since(Timestamp::from_micros(9)), Duration::ZERO);
    }

    #[test]
    fn times_print_as_rfc_3339_in_utc() {
        assert_eq!(Timestamp::from_micros(1_500_000).rfc3339(), "1970-01-01T00:00:01.500000Z");
        assert_eq!(Timestamp::MAX.rfc3339(), "infinity");
    }

    #[test]
    fn times_are_read_with_their_offset_and_never_guessed() {
        let micros = |text| Timestamp::parse(text).map(Timestamp::micros);
        assert_eq!(micros("1970-01-02"), Some(86_400_000_000));
        assert_eq!(micros("1970-01-01T09:00:01.5+09:00"), Some(1_500_000));
        let printed = Timestamp::from_micros(1_234_567_890_123_456);
        assert_eq!(Timestamp::parse(&printed.rfc3339()), Some(printed));
        for text in ["", "yesterday", "1970-01-01T09:00", "1970-02-30", "1970-1-1", "ä234567890"] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
