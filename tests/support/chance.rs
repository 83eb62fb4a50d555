//! Random numbers from a printed seed: AFTERCOMMIT_TEST_SEED=N repeats a run.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// A generator (SplitMix64) whose seed was printed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// Seeded from AFTERCOMMIT_TEST_SEED, else anew; prints the seed for the output of a failed test.
    pub(crate) fn seeded() -> Self {
        let seed = match std::env::var("AFTERCOMMIT_TEST_SEED") {
            Ok(seed) => seed.parse().expect("AFTERCOMMIT_TEST_SEED is a number"),
            Err(_) => RandomState::new().build_hasher().finish(),
        };
        println!("seed: AFTERCOMMIT_TEST_SEED={seed}");
        Self(seed)
    }

    /// What the generator goes on from; of a fresh one, its seed.
    pub(crate) fn seed(&self) -> u64 {
        self.0
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A duration below `millis` milliseconds.
    pub(crate) fn millis(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.below(millis))
    }

    /// Another generator, for another task.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Puts `items` into a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u64::try_from(last + 1).expect("fits");
            items.swap(last, usize::try_from(self.below(bound)).expect("fits"));
        }
    }
}
