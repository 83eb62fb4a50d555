//! How many of what ended failed, and how long the attempts took that ended effects. Pure.

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    state::State,
    store::{Latency, Traffic},
};

use super::{Picture, Plot, Span, height};
use crate::pages::parts::Num;

/// Of the highest bar: the first of these, in tenths of a percent, that no bar exceeds. One failure among thousands is no wall.
const TOPS: [u64; 6] = [10, 50, 100, 250, 500, 1_000];

/// What succeeded or failed in one bar.
struct Ended {
    at: Timestamp,
    failed: u64,
    all: u64,
}

impl Ended {
    fn tenths(&self) -> u64 {
        tenths(self.failed, self.all).unwrap_or(0)
    }

    fn percent(&self) -> String {
        percent(self.failed, self.all)
    }

    /// By bar, oldest first.
    fn of(span: Span, now: Timestamp, traffic: &[Traffic]) -> Vec<Self> {
        let mut bars: Vec<Self> =
            span.starts(now).into_iter().map(|at| Self { at, failed: 0, all: 0 }).collect();
        for one in traffic {
            let Some(bar) = span.bar(now, one.at).and_then(|index| bars.get_mut(index)) else { continue };
            if one.state == State::Failed {
                bar.failed = bar.failed.saturating_add(one.effects);
            }
            if matches!(one.state, State::Failed | State::Succeeded) {
                bar.all = bar.all.saturating_add(one.effects);
            }
        }
        bars
    }
}

/// Of what succeeded or failed, how many failed. What was called off, came too late, or is in doubt, is neither.
pub(crate) fn error_rate(span: Span, now: Timestamp, traffic: &[Traffic]) -> Plot {
    let bars = Ended::of(span, now, traffic);
    let failed: u64 = bars.iter().map(|bar| bar.failed).sum();
    let all: u64 = bars.iter().map(|bar| bar.all).sum();
    let worst = bars.iter().max_by_key(|bar| (bar.tenths(), bar.failed)).filter(|bar| bar.failed > 0);
    let most = worst.map_or(0, Ended::tenths);
    let top = TOPS.into_iter().find(|top| *top >= most).unwrap_or(1_000);
    let (words, per) = (span.words(), span.per());
    let (note, sentence) = match worst {
        None if all == 0 => (format!("in {words}"), format!("Nothing succeeded or failed in {words}.")),
        None => (
            format!("in {words}"),
            format!("None failed of {} that succeeded or failed in {words}.", Num(all)),
        ),
        Some(bar) => (
            format!("in {words}, at worst {} a {per}; the top is {} %", bar.percent(), top / 10),
            format!(
                "{} failed of {} that succeeded or failed in {words}; at worst {} in one {per}, at {}.",
                Num(failed),
                Num(all),
                bar.percent(),
                span.name(bar.at)
            ),
        ),
    };
    let high = |bar: &Ended| if bar.failed == 0 { 0 } else { height(bar.tenths().max(1), top) };
    let row = |bar: &Ended| {
        let figures = [Num(bar.failed).to_string(), Num(bar.all).to_string(), bar.percent()];
        (span.name(bar.at), figures.to_vec())
    };
    Plot {
        id: "errors",
        figure: percent(failed, all),
        what: "failed of what ended",
        note,
        sentence,
        picture: Picture { class: "bad", layers: vec![bars.iter().map(high).collect()] },
        axis: span.axis(now),
        per,
        columns: vec!["failed", "ended", "rate"],
        rows: bars.iter().rev().filter(|bar| bar.all > 0).map(row).collect(),
    }
}

/// In tenths of a percent, rounded; `None`: of nothing.
fn tenths(part: u64, whole: u64) -> Option<u64> {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let tenths = (part * 1_000 + whole / 2).checked_div(whole)?;
    u64::try_from(tenths).ok()
}

/// "0.8 %". Some is never none, and not all is never all.
fn percent(part: u64, whole: u64) -> String {
    match tenths(part, whole) {
        None => "–".to_owned(),
        Some(0) if part > 0 => "under 0.1 %".to_owned(),
        Some(1_000..) if part < whole => "over 99.9 %".to_owned(),
        Some(tenths) if tenths % 10 == 0 => format!("{} %", tenths / 10),
        Some(tenths) => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// How long the attempts took that ended effects. `latencies` are of a sample, and the chart says so.
pub(crate) fn latency(span: Span, now: Timestamp, latencies: &[Latency]) -> Plot {
    let mut bars: Vec<Option<&Latency>> = span.starts(now).into_iter().map(|_| None).collect();
    for one in latencies {
        if let Some(bar) = span.bar(now, one.at).and_then(|index| bars.get_mut(index)) {
            *bar = Some(one);
        }
    }
    let seen = || bars.iter().rev().copied().flatten();
    let (newest, slowest) = (seen().next(), seen().max_by_key(|one| one.p95));
    let top = slowest.map_or(0, |one| micros(one.p95));
    let layer = |of: fn(&Latency) -> Duration| -> Vec<u64> {
        bars.iter().map(|one| one.map_or(0, |one| height(micros(of(one)).max(1), top.max(1)))).collect()
    };
    let (figure, note, sentence) = match newest.zip(slowest) {
        Some((newest, slowest)) => told(span, newest, slowest),
        None => {
            let words = span.words();
            let none = format!("No attempt that is still in the log ended an effect in {words}.");
            ("–".to_owned(), format!("in {words}"), none)
        }
    };
    let row = |one: &Latency| {
        let figures = [took(one.p50), took(one.p95), Num(u64::from(one.sampled)).to_string()];
        (span.name(one.at), figures.to_vec())
    };
    Plot {
        id: "latency",
        figure,
        what: "for 95 of 100 attempts",
        note,
        sentence,
        picture: Picture { class: "pair", layers: vec![layer(|one| one.p95), layer(|one| one.p50)] },
        axis: span.axis(now),
        per: span.per(),
        columns: vec!["half within", "95 % within", "attempts"],
        rows: seen().map(row).collect(),
    }
}

/// The newest bar and the slowest: in a figure, beside it, and in a sentence.
fn told(span: Span, newest: &Latency, slowest: &Latency) -> (String, String, String) {
    let (half, most, at) = (took(newest.p50), took(newest.p95), span.name(newest.at));
    let (words, per) = (span.words(), span.per());
    let at_worst = format!("{} at {}", took(slowest.p95), span.name(slowest.at));
    let note = format!(
        "and half within {half}, at {at}; in the slowest {per} of {words} {at_worst}. Of up to 30 attempts a {per} that ended an \
         effect"
    );
    let sentence = format!(
        "Of attempts that ended effects, half took no longer than {half} and 95 of 100 no longer than {most} in the {per} at {at}; in \
         the slowest {per} of {words} 95 of 100 took no longer than {at_worst}."
    );
    (most, note, sentence)
}

fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).unwrap_or(u64::MAX)
}

/// "0.4 ms", "120 ms", "4.2 s", "3 min": two digits or three.
fn took(of: Duration) -> String {
    let tenths =
        |n: u64, of_one: u64, unit: &str| format!("{}.{} {unit}", n / of_one, n % of_one * 10 / of_one);
    match micros(of) {
        us @ ..10_000 => tenths(us, 1_000, "ms"),
        us @ ..1_000_000 => format!("{} ms", us / 1_000),
        us @ ..60_000_000 => tenths(us, 1_000_000, "s"),
        us @ ..3_600_000_000 => format!("{} min", us / 60_000_000),
        us => tenths(us, 3_600_000_000, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(100 * 60_000_000 + 30_000_000);

    fn traffic(minute: i64, state: State, effects: u64) -> Traffic {
        let at = Timestamp::from_micros(minute * 60_000_000);
        Traffic { at, downstream: "payments".to_owned(), state, effects }
    }

    #[test]
    fn the_error_rate_is_of_what_succeeded_or_failed() {
        let seen = [
            traffic(90, State::Succeeded, 990),
            traffic(90, State::Failed, 2),
            traffic(100, State::Succeeded, 6),
            traffic(100, State::Failed, 2),
            traffic(100, State::Cancelled, 500),
            traffic(100, State::Expired, 500),
            traffic(40, State::Failed, 500),
        ];
        let plot = error_rate(Span::Hour, NOW, &seen);
        assert_eq!(plot.figure, "0.4 %");
        assert_eq!(
            plot.sentence,
            "4 failed of 1,000 that succeeded or failed in the last hour; at worst 25 % in one minute, at 01:40 UTC."
        );
        assert_eq!(plot.note, "in the last hour, at worst 25 % a minute; the top is 25 %");
        let row = |at: &str, figures: [&str; 3]| (at.to_owned(), figures.map(str::to_owned).to_vec());
        assert_eq!(
            plot.rows,
            [row("01:40 UTC", ["2", "8", "25 %"]), row("01:30 UTC", ["2", "992", "0.2 %"])]
        );
        let svg = plot.picture.to_string();
        assert!(
            svg.contains("V0h") && svg.contains("V97h"),
            "the worst is as high as it gets, the least is seen: {svg}"
        );
    }

    #[test]
    fn a_rate_of_nothing_is_none_and_a_small_one_is_no_wall() {
        let plot = error_rate(Span::Day, NOW, &[]);
        assert_eq!(
            (plot.figure.as_str(), plot.sentence.as_str()),
            ("–", "Nothing succeeded or failed in the last 24 hours.")
        );
        let plot = error_rate(Span::Hour, NOW, &[traffic(100, State::Succeeded, 7)]);
        assert_eq!(plot.sentence, "None failed of 7 that succeeded or failed in the last hour.");
        let few = [traffic(100, State::Succeeded, 99_999), traffic(100, State::Failed, 1)];
        let plot = error_rate(Span::Hour, NOW, &few);
        assert_eq!(plot.figure, "under 0.1 %");
        assert!(
            plot.picture.to_string().contains("V90h") && plot.note.ends_with("the top is 1 %"),
            "{plot:?}"
        );
        assert_eq!((percent(99_999, 100_000), percent(3, 3)), ("over 99.9 %".to_owned(), "100 %".to_owned()));
    }

    #[test]
    fn a_latency_is_told_of_the_newest_and_of_the_slowest_minute() {
        let one = |minute: i64, p50: u64, p95: u64| Latency {
            at: Timestamp::from_micros(minute * 60_000_000),
            sampled: 50,
            p50: Duration::from_millis(p50),
            p95: Duration::from_millis(p95),
        };
        let plot =
            latency(Span::Hour, NOW, &[one(40, 9_000, 90_000), one(90, 2_000, 4_250), one(99, 120, 900)]);
        assert_eq!(plot.figure, "900 ms", "{plot:?}");
        for part in ["and half within 120 ms, at 01:39 UTC", "4.2 s at 01:30 UTC", "up to 30"] {
            assert!(plot.note.contains(part), "{part}: {}", plot.note);
        }
        for part in
            ["half took no longer than 120 ms", "95 of 100 no longer than 900 ms in the minute at 01:39 UTC"]
        {
            assert!(plot.sentence.contains(part), "{part}: {}", plot.sentence);
        }
        assert_eq!(plot.rows.len(), 2);
        assert_eq!(plot.rows[0].1, ["120 ms", "900 ms", "50"]);
        assert_eq!(plot.picture.to_string().matches("<path").count(), 2);
        let none = latency(Span::Week, NOW, &[]);
        assert!(none.rows.is_empty() && none.sentence.starts_with("No attempt"), "{none:?}");
    }

    #[test]
    fn times_are_told_in_two_or_three_digits() {
        let told =
            [400, 1_250, 120_000, 4_250_000, 61_000_000, 5_400_000_000].map(Duration::from_micros).map(took);
        assert_eq!(told, ["0.4 ms", "1.2 ms", "120 ms", "4.2 s", "1 min", "1.5 h"]);
    }
}
