//! Charts as SVG, with the same figures in words and as a table. Pure; no style in them but class names, nothing that runs.

use std::{fmt, fmt::Write as _, time::Duration};

use aftercommit::{
    clock::Timestamp,
    store::{Resolution, Traffic},
};

/// How far back a chart looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    /// An hour, by the minute.
    #[default]
    Hour,
    /// A day, by the hour.
    Day,
    /// A week, by the hour.
    Week,
}

impl Span {
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// The word in the address and on the page.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    /// In words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Hour => "the last hour",
            Self::Day => "the last 24 hours",
            Self::Week => "the last 7 days",
        }
    }

    /// What one bar is.
    pub(crate) const fn per(self) -> &'static str {
        match self {
            Self::Hour => "minute",
            Self::Day | Self::Week => "hour",
        }
    }

    pub(crate) const fn resolution(self) -> Resolution {
        match self {
            Self::Hour => Resolution::Minute,
            Self::Day | Self::Week => Resolution::Hour,
        }
    }

    const fn bars(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 24,
            Self::Week => 168,
        }
    }

    const fn bar_micros(self) -> i64 {
        match self {
            Self::Hour => 60_000_000,
            Self::Day | Self::Week => 3_600_000_000,
        }
    }

    /// When the first bar begins.
    pub(crate) fn since(self, now: Timestamp) -> Timestamp {
        let current = now.micros().div_euclid(self.bar_micros());
        Timestamp::from_micros((current - self.bars() + 1).saturating_mul(self.bar_micros()))
    }
}

/// One chart: a bar per minute or hour, the one under way included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chart {
    /// What is counted: "succeeded".
    pub(crate) what: &'static str,
    /// The class of its bars.
    pub(crate) class: &'static str,
    /// How far back it looks.
    pub(crate) span: Span,
    /// Each bar's beginning and height, oldest first, without gaps.
    pub(crate) bars: Vec<(Timestamp, u64)>,
}

impl Chart {
    /// Counts `traffic` whose state `counts`.
    pub(crate) fn of(
        (what, class): (&'static str, &'static str),
        span: Span,
        now: Timestamp,
        traffic: &[Traffic],
        counts: impl Fn(&Traffic) -> bool,
    ) -> Self {
        let (since, length) = (span.since(now), Duration::from_micros(span.bar_micros().unsigned_abs()));
        let mut bars: Vec<(Timestamp, u64)> = Vec::new();
        let mut at = since;
        for _ in 0..span.bars() {
            bars.push((at, 0));
            at = at.plus(length);
        }
        for one in traffic.iter().filter(|one| counts(one) && one.at >= since) {
            let index = (one.at.micros() - since.micros()) / span.bar_micros();
            if let Some(bar) = usize::try_from(index).ok().and_then(|index| bars.get_mut(index)) {
                bar.1 = bar.1.saturating_add(one.effects);
            }
        }
        Self { what, class, span, bars }
    }

    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        self.bars.iter().map(|(_, n)| n).sum()
    }

    /// The highest bar.
    pub(crate) fn most(&self) -> u64 {
        self.bars.iter().map(|(_, n)| *n).max().unwrap_or(0)
    }

    /// The chart in a sentence, for who cannot see it.
    pub(crate) fn sentence(&self) -> String {
        let per = self.span.per();
        match self.bars.iter().max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0) {
            None => format!("None {} in {}.", self.what, self.span.words()),
            Some((at, most)) => format!(
                "{} {} in {}; at most {most} a {per}, at {}.",
                self.total(),
                self.what,
                self.span.words(),
                self.name(*at)
            ),
        }
    }

    /// Bars that are not empty, newest first, for the table.
    pub(crate) fn rows(&self) -> Vec<(String, u64)> {
        let some = self.bars.iter().rev().filter(|(_, n)| *n > 0);
        some.map(|(at, n)| (self.name(*at), *n)).collect()
    }

    /// The axis: its beginning, middle and end.
    pub(crate) fn axis(&self) -> [String; 3] {
        let end = || "now".to_owned();
        let at = |index: usize| self.bars.get(index).map(|(at, _)| self.name(*at)).unwrap_or_default();
        [at(0), at(self.bars.len() / 2), end()]
    }

    /// A bar's time: the day only where there are several.
    fn name(&self, at: Timestamp) -> String {
        let text = at.rfc3339();
        let (day, time) = (text.get(..10).unwrap_or(&text), text.get(11..16).unwrap_or_default());
        match self.span {
            Span::Hour | Span::Day => format!("{time} UTC"),
            Span::Week => format!("{day} {time} UTC"),
        }
    }
}

const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 100;

/// The picture itself. Its numbers are ours; it holds no text of anybody's.
impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = u64::try_from(self.bars.len()).unwrap_or(1).max(1);
        let most = self.most().max(1);
        let step = WIDTH / count;
        let mut path = String::new();
        for (index, (_, n)) in (0_u64..).zip(&self.bars) {
            // What is there at all is seen.
            let height = if *n == 0 { 0 } else { (n.saturating_mul(HEIGHT) / most).max(3) };
            if height > 0 {
                let (x, y, wide) = (index * step, HEIGHT - height, (step * 4 / 5).max(1));
                write!(path, "M{x} {HEIGHT}V{y}h{wide}V{HEIGHT}z")?;
            }
        }
        write!(
            f,
            "<svg class=\"plot {}\" viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" aria-hidden=\"true\" \
             focusable=\"false\"><path d=\"{path}\"/></svg>",
            self.class,
            step * count,
        )
    }
}

impl askama::filters::HtmlSafe for Chart {}

#[cfg(test)]
mod tests {
    use aftercommit::state::State;

    use super::*;

    fn traffic(minute: i64, state: State, effects: u64) -> Traffic {
        Traffic {
            at: Timestamp::from_micros(minute * 60_000_000),
            downstream: "payments".to_owned(),
            state,
            effects,
        }
    }

    fn chart(now: i64, traffic: &[Traffic]) -> Chart {
        let now = Timestamp::from_micros(now * 60_000_000 + 30_000_000);
        Chart::of(("succeeded", "good"), Span::Hour, now, traffic, |one| one.state == State::Succeeded)
    }

    #[test]
    fn a_chart_has_a_bar_for_every_minute_up_to_the_one_under_way() {
        let seen = [
            traffic(40, State::Succeeded, 9),
            traffic(41, State::Succeeded, 1),
            traffic(100, State::Succeeded, 3),
            traffic(100, State::Succeeded, 2),
            traffic(100, State::Failed, 7),
        ];
        let chart = chart(100, &seen);
        assert_eq!((chart.bars.len(), chart.total(), chart.most()), (60, 6, 5));
        assert_eq!(chart.bars.last().map(|(at, _)| at.micros()), Some(100 * 60_000_000));
        assert_eq!(chart.sentence(), "6 succeeded in the last hour; at most 5 a minute, at 01:40 UTC.");
        assert_eq!(chart.rows(), [("01:40 UTC".to_owned(), 5), ("00:41 UTC".to_owned(), 1)]);
        assert_eq!(chart.axis(), ["00:41 UTC", "01:11 UTC", "now"].map(str::to_owned));
    }

    #[test]
    fn the_smallest_bar_is_seen_and_the_highest_fits() {
        let chart =
            chart(100, &[traffic(99, State::Succeeded, 1), traffic(100, State::Succeeded, u64::MAX / 200)]);
        let svg = chart.to_string();
        assert!(svg.contains("V97h") && svg.contains("V0h"), "{svg}");
        assert!(!svg.contains("style") && !svg.contains(" on"), "no style and no handler: {svg}");
    }

    #[test]
    fn without_traffic_there_is_a_sentence_and_no_bar() {
        let chart = chart(100, &[]);
        assert_eq!(chart.sentence(), "None succeeded in the last hour.");
        assert!(chart.to_string().contains("d=\"\"") && chart.rows().is_empty());
    }

    #[test]
    fn longer_spans_are_by_the_hour() {
        let now = Timestamp::from_micros(1_000 * 3_600_000_000 + 5);
        assert_eq!(Span::Day.since(now).micros(), 977 * 3_600_000_000);
        assert_eq!(Span::Week.since(now).micros(), 833 * 3_600_000_000);
    }
}
