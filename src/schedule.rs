//! When to try again: exponential with full jitter from a hash of (id, attempt), so that the same effect always waits
//! equally long and no generator is needed.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::effect::EffectId;

/// How often and how long an effect is retried.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Policy {
    /// The ceiling of the first delay.
    pub initial: Duration,
    /// Each ceiling is the one before times this.
    pub factor: f64,
    /// No ceiling is higher.
    pub max: Duration,
    /// Attempts that may have reached the downstream, in one history.
    pub max_attempts: u32,
    /// From the first claim of a history.
    pub max_age: Duration,
    /// A downstream's own delay (Retry-After) is honoured up to this.
    pub max_pause: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(600),
            max_attempts: 100,
            max_age: Duration::from_secs(20 * 3600),
            max_pause: Duration::from_secs(600),
        }
    }
}

/// No delay is shorter, whatever the jitter draws: a retry is never a hot loop.
pub const DELAY_MIN: Duration = Duration::from_millis(1);

impl Policy {
    /// The ceiling of the delay after try number `tries` (from 1): it grows up to [`Self::max`] and never overflows.
    pub fn ceiling(&self, tries: u32) -> Duration {
        let exponent = i32::try_from(tries.saturating_sub(1)).unwrap_or(i32::MAX);
        // Not from zero: nothing grows from there, and zero times an overflowed power is no number.
        let initial = self.initial.max(DELAY_MIN);
        let seconds = initial.as_secs_f64() * self.factor.max(1.0).powi(exponent);
        let max = self.max.max(DELAY_MIN);
        // Compared as floats before the conversion: `Duration::from_secs_f64` panics on what it cannot hold.
        if seconds.is_finite() && seconds < max.as_secs_f64() {
            Duration::from_secs_f64(seconds).clamp(DELAY_MIN, max)
        } else {
            max
        }
    }

    /// How an effect is retried whose only trouble were the credentials of the downstream it goes to: that uses up nothing, and
    /// it is due at once when the downstream is resumed.
    pub fn after_being_refused(&self) -> Self {
        Self {
            initial: DELAY_MIN,
            max: DELAY_MIN,
            max_attempts: u32::MAX,
            max_age: Duration::MAX,
            ..self.clone()
        }
    }

    /// The delay after try number `tries` of effect `id`: full jitter below the ceiling, at least a tenth of
    /// [`Self::initial`] (and never zero); `retry_after` lengthens it, up to [`Self::max_pause`].
    pub fn delay(&self, id: EffectId, tries: u32, retry_after: Option<Duration>) -> Duration {
        let ceiling = self.ceiling(tries);
        let floor = (self.initial.min(ceiling) / 10).max(DELAY_MIN);
        let jittered = ceiling.mul_f64(unit(id, tries)).clamp(floor, ceiling.max(floor));
        let asked = retry_after.unwrap_or(Duration::ZERO).min(self.max_pause);
        jittered.max(asked)
    }
}

/// A number in [0, 1) that depends on nothing but (id, attempt).
pub(crate) fn unit(id: EffectId, attempt: u32) -> f64 {
    let mut hash = Sha256::new();
    hash.update(id.get().to_be_bytes());
    hash.update(attempt.to_be_bytes());
    let digest = hash.finalize();
    let bits = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
