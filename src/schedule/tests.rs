//! Defends the schedule: delays grow to their cap, are never zero, never overflow, and are the same for the same attempt of
//! the same effect, on every worker.

use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const TRIES: [u32; 14] = [0, 1, 2, 3, 31, 32, 40, 63, 64, 65, 1000, 2_147_483_647, 2_147_483_648, u32::MAX];

fn policy(initial: Duration, factor: f64, max: Duration) -> Policy {
    Policy { initial, factor, max, max_attempts: u32::MAX, ..Policy::default() }
}

#[test]
fn no_number_of_tries_overflows_or_gives_a_delay_of_zero() {
    let bases = [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(1), DAY, Duration::MAX];
    let caps = [Duration::ZERO, Duration::from_secs(600), 365 * DAY, Duration::MAX];
    for base in bases {
        for cap in caps {
            for factor in [2.0, 1.0, 0.5, 0.0, -3.0, 1e300, f64::INFINITY, f64::NAN] {
                let policy = policy(base, factor, cap);
                let mut before = Duration::ZERO;
                for tries in TRIES {
                    let ceiling = policy.ceiling(tries);
                    assert!(ceiling >= before, "{policy:?}: the ceiling fell at try {tries}");
                    assert!(ceiling <= cap.max(DELAY_MIN), "{policy:?}: above the cap at try {tries}");
                    before = ceiling;
                    for id in [i64::MIN, -1, 0, 1, i64::MAX] {
                        let delay = policy.delay(EffectId::new(id), tries, None);
                        assert!(
                            delay >= DELAY_MIN && delay <= ceiling,
                            "{policy:?}: {delay:?} at try {tries}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn ceilings_are_the_powers_of_the_factor_up_to_the_cap() {
    let seconds = |policy: &Policy| [1, 2, 3, 4, 10, 11, 12].map(|tries| policy.ceiling(tries).as_secs());
    assert_eq!(seconds(&Policy::default()), [1, 2, 4, 8, 512, 600, 600]);
    let tripling = policy(Duration::from_secs(10), 3.0, DAY);
    assert_eq!(seconds(&tripling), [10, 30, 90, 270, 86_400, 86_400, 86_400]);
    let patient = policy(Duration::from_millis(1), 2.0, 365 * DAY);
    assert_eq!(patient.ceiling(31), Duration::from_millis(1 << 30));
    assert_eq!(patient.ceiling(36), 365 * DAY);
    let from_zero = policy(Duration::ZERO, 2.0, 365 * DAY);
    assert_eq!(from_zero.ceiling(4), Duration::from_millis(8), "it grows from the shortest delay");
}

#[test]
fn the_same_attempt_always_waits_equally_long_and_others_differently() {
    // Written down: a worker of the next version must not disagree with one of this.
    let policy = Policy::default();
    let micros = |id, tries| policy.delay(EffectId::new(id), tries, None).as_micros();
    assert_eq!([micros(1, 1), micros(1, 2), micros(2, 1), micros(17, 20)], PINNED_MICROS);
    let mut delays: Vec<_> = (0..1000).map(|id| micros(id, 12)).collect();
    delays.sort_unstable();
    delays.dedup();
    assert!(delays.len() > 990, "effects that failed together must not come back together");
}

const PINNED_MICROS: [u128; 4] = [974_764, 1_215_267, 609_808, 295_183_883];

#[test]
fn the_jitter_is_full_and_even() {
    let policy = Policy::default();
    let cap = policy.max.as_secs_f64();
    let draws: Vec<f64> =
        (0..10_000).map(|id| policy.delay(EffectId::new(id), 50, None).as_secs_f64() / cap).collect();
    for tenth in 0..10u32 {
        let from = f64::from(tenth) / 10.0;
        let within = draws.iter().filter(|draw| **draw >= from && **draw < from + 0.1).count();
        assert!((850..1150).contains(&within), "{within} of 10,000 draws in the tenth from {from}");
    }
}

#[test]
fn retry_after_lengthens_a_delay_up_to_max_pause_and_never_shortens_it() {
    let policy = Policy::default();
    let id = EffectId::new(5);
    let own = policy.delay(id, 9, None);
    assert_eq!(policy.delay(id, 9, Some(Duration::ZERO)), own);
    assert_eq!(policy.delay(id, 1, Some(Duration::from_secs(120))), Duration::from_secs(120));
    assert_eq!(policy.delay(id, 1, Some(Duration::MAX)), policy.max_pause);
}

proptest! {
    #[test]
    fn delays_lie_between_a_tenth_of_the_first_and_the_ceiling(
        initial_us in 10_000u64..3_600_000_000, factor in 1.0f64..10.0, max_s in 3600u64..100_000,
        id in any::<i64>(), tries in any::<u32>(),
    ) {
        let initial = Duration::from_micros(initial_us);
        let policy = policy(initial, factor, Duration::from_secs(max_s));
        let delay = policy.delay(EffectId::new(id), tries, None);
        prop_assert!(delay >= initial / 10);
        prop_assert!(delay <= policy.ceiling(tries));
        prop_assert_eq!(delay, policy.delay(EffectId::new(id), tries, None));
        prop_assert!(policy.ceiling(tries) <= policy.ceiling(tries.saturating_add(1)));
    }
}
