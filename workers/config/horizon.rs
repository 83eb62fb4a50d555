//! How long an effect is retried, against how long its downstream remembers the key: which effects would be parked.

use std::time::Duration;

use aftercommit::{
    contract::{Dedupe, Window},
    schedule::Policy,
};

use super::{Operation, values::show_duration};

/// Ceilings beyond this many tries are taken as equal: by then they have long reached their maximum.
const TRIES_SUMMED: u32 = 10_000;

/// Which effects of this operation are parked before their retries are used up; `None` where none are.
pub(super) fn parks(operation: &Operation) -> Option<String> {
    let contract = &operation.contract;
    match (contract.dedupe, contract.window) {
        (Dedupe::Key, None) => Some(
            "is unpublished: an effect with an unknown outcome is parked in doubt at once, and never retried on its own"
                .to_owned(),
        ),
        (Dedupe::Key, Some(Window::For(window))) => {
            let safe = window.saturating_sub(contract.margin + operation.timeout);
            let retried = retried_for(&operation.policy, operation.timeout);
            (retried > safe).then(|| {
                format!(
                    "is shorter than the retries: an effect whose outcome stays unknown is parked in doubt {} after its first request (window {} - margin {} - timeout {}), while retry goes on for up to {} (max_attempts {}, max_age {}); lower retry.max_age to {}, or be ready to look at what is parked",
                    spoken(safe),
                    show_duration(window),
                    show_duration(contract.margin),
                    show_duration(operation.timeout),
                    spoken(retried),
                    operation.policy.max_attempts,
                    show_duration(operation.policy.max_age),
                    spoken(safe),
                )
            })
        }
        (Dedupe::Key, Some(Window::Forever)) | (Dedupe::Lookup | Dedupe::None, _) => None,
    }
}

/// The longest time from an effect's first claim to the begin of its last try: the budget ends it, or its age.
fn retried_for(policy: &Policy, timeout: Duration) -> Duration {
    let waits = policy.max_attempts.saturating_sub(1);
    let mut total = Duration::ZERO;
    for tries in 1..=waits.min(TRIES_SUMMED) {
        total = total.saturating_add(policy.ceiling(tries)).saturating_add(timeout);
        if total >= policy.max_age {
            return policy.max_age;
        }
    }
    let rest = waits.saturating_sub(TRIES_SUMMED);
    let each = policy.ceiling(TRIES_SUMMED).saturating_add(timeout);
    total.saturating_add(each.saturating_mul(rest)).min(policy.max_age)
}

/// A length of time to the second, as it would be written: `54m40s`.
fn spoken(length: Duration) -> String {
    let seconds = length.as_secs();
    if seconds == 0 {
        return show_duration(length);
    }
    [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")]
        .into_iter()
        .scan(seconds, |rest, (size, unit)| {
            let count = *rest / size;
            *rest %= size;
            Some((count, unit))
        })
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_or_the_age_ends_the_retries_whichever_comes_first() {
        let policy = |max_attempts, max_age| Policy {
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(4),
            max_attempts,
            max_age: Duration::from_secs(max_age),
            ..Policy::default()
        };
        let timeout = Duration::from_secs(10);
        // 1 + 2 + 4 + 4 seconds of waiting, and four calls of ten seconds before the last.
        assert_eq!(retried_for(&policy(5, 3600), timeout), Duration::from_secs(51));
        assert_eq!(retried_for(&policy(1, 3600), timeout), Duration::ZERO);
        assert_eq!(retried_for(&policy(5, 30), timeout), Duration::from_secs(30));
        assert_eq!(
            retried_for(&policy(u32::MAX, 8_640_000_000), timeout),
            Duration::from_secs(8_640_000_000)
        );
    }

    #[test]
    fn a_length_of_time_is_spoken_to_the_second() {
        for (seconds, text) in
            [(3280, "54m40s"), (86_400, "1d"), (72_000, "20h"), (90_061, "1d1h1m1s"), (0, "0s")]
        {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }
}
