//! Times in words: RFC 3339 in UTC to the second, and how far away that is.

use std::time::Duration;

use super::Timestamp;

/// The time in UTC, to the second.
pub fn utc(at: Timestamp) -> String {
    let text = at.rfc3339();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// The time in UTC and how far away it is.
pub fn utc_and_words(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::MAX || at == Timestamp::MIN {
        return utc(at);
    }
    format!("{} ({})", utc(at), relative(at, now))
}

/// How far away a time is: "in 3 s", "2 min ago", "now".
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::MAX {
        return "never".to_owned();
    }
    let (distance, past) = if at > now { (at.since(now), false) } else { (now.since(at), true) };
    if distance < Duration::from_secs(1) {
        return "now".to_owned();
    }
    if past { format!("{} ago", span(distance)) } else { format!("in {}", span(distance)) }
}

/// A length of time in its largest unit that leaves a number of some use, rounded.
pub fn span(length: Duration) -> String {
    if length < Duration::from_secs(1) {
        return format!("{} ms", length.as_millis());
    }
    let seconds = length.saturating_add(Duration::from_millis(500)).as_secs();
    let rounded = |unit: u64| (seconds + unit / 2) / unit;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", rounded(60)),
        7_200..=172_799 => format!("{} h", rounded(3_600)),
        _ => format!("{} d", rounded(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_words() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let seconds = |count: u64| Duration::from_secs(count);
        assert_eq!(relative(now, now), "now");
        assert_eq!(relative(now.plus(seconds(3)), now), "in 3 s");
        assert_eq!(relative(now.minus(seconds(140)), now), "2 min ago");
        assert_eq!(relative(now.plus(Duration::from_millis(3_599_900)), now), "in 60 min");
        assert_eq!(relative(now.minus(seconds(10_000)), now), "3 h ago");
        assert_eq!(relative(now.plus(seconds(864_000)), now), "in 10 d");
        assert_eq!(relative(Timestamp::MAX, now), "never");
    }

    #[test]
    fn times_are_utc_to_the_second() {
        assert_eq!(utc(Timestamp::from_micros(1_500_000)), "1970-01-01T00:00:01Z");
        assert_eq!(utc_and_words(Timestamp::MAX, Timestamp::from_micros(0)), "infinity");
    }
}
