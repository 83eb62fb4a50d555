//! Chance with a printed seed: the same seed draws the same plan.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64: small, good enough to choose faults, and the same on every machine.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// From `AFTERCOMMIT_TEST_SEED`, else from the clock. Printed, so that a failed run's plan can be drawn again.
    pub(super) fn announced(purpose: &str) -> Self {
        let seed = match std::env::var("AFTERCOMMIT_TEST_SEED") {
            Ok(seed) => seed.parse().expect("AFTERCOMMIT_TEST_SEED is a whole number"),
            Err(_) => now_us().unsigned_abs(),
        };
        println!("{purpose}: AFTERCOMMIT_TEST_SEED={seed}");
        Self(seed)
    }

    /// The next number.
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True once in `n` times; never when `n` is 0.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.draw().is_multiple_of(n)
    }

    /// A time between two.
    pub(super) fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let spread = u64::try_from((high - low).as_micros()).expect("a delay of minutes");
        low + Duration::from_micros(self.draw() % (spread + 1))
    }
}

/// The machine's clock in microseconds since 1970: the proxies, the database and the workers share it here.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(since.as_micros()).expect("before the year 294276")
}
