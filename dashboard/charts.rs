//! Charts as SVG, with the same figures in words and as a table. Pure; no style in them but class names, nothing that runs.

mod rates;

use std::{fmt, fmt::Write as _};

use aftercommit::{
    clock::Timestamp,
    store::{Resolution, Traffic},
};

pub(crate) use rates::{error_rate, latency};

use crate::pages::parts::Num;

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

    /// As many bars, the one under way included.
    pub(crate) const fn bars(self) -> u32 {
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
        Timestamp::from_micros((current - i64::from(self.bars()) + 1).saturating_mul(self.bar_micros()))
    }

    /// Each bar's beginning, oldest first.
    fn starts(self, now: Timestamp) -> Vec<Timestamp> {
        let since = self.since(now).micros();
        let at = |bar: u32| since.saturating_add(i64::from(bar).saturating_mul(self.bar_micros()));
        (0..self.bars()).map(|bar| Timestamp::from_micros(at(bar))).collect()
    }

    /// Which bar it falls into.
    fn bar(self, now: Timestamp, at: Timestamp) -> Option<usize> {
        let bar = (at.micros() - self.since(now).micros()).div_euclid(self.bar_micros());
        usize::try_from(bar).ok().filter(|_| bar < i64::from(self.bars()))
    }

    /// A bar's time: the day only where there are several.
    fn name(self, at: Timestamp) -> String {
        let text = at.rfc3339();
        let (day, time) = (text.get(..10).unwrap_or(&text), text.get(11..16).unwrap_or_default());
        match self {
            Self::Hour | Self::Day => format!("{time} UTC"),
            Self::Week => format!("{day} {time} UTC"),
        }
    }

    /// The axis: its beginning, middle and end.
    fn axis(self, now: Timestamp) -> [String; 3] {
        let starts = self.starts(now);
        let at = |index: usize| starts.get(index).map(|at| self.name(*at)).unwrap_or_default();
        [at(0), at(starts.len() / 2), "now".to_owned()]
    }
}

/// A chart with all that stands around it: nothing in it is told by the picture alone.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Its name in the page, and the last word of its table's.
    pub(crate) id: &'static str,
    /// The figure that says most, and of what it is.
    pub(crate) figure: String,
    pub(crate) what: &'static str,
    /// What is said beside it, smaller.
    pub(crate) note: String,
    /// The chart in a sentence, for who cannot see it.
    pub(crate) sentence: String,
    pub(crate) picture: Picture,
    /// Beginning, middle and end.
    pub(crate) axis: [String; 3],
    /// What one bar is: "minute".
    pub(crate) per: &'static str,
    /// The table's other columns.
    pub(crate) columns: Vec<&'static str>,
    /// Bars that are not empty, newest first: their times and figures.
    pub(crate) rows: Vec<(String, Vec<String>)>,
}

/// The picture itself. Its numbers are ours; it holds no text of anybody's.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// The class of its bars.
    class: &'static str,
    /// Rows of bars of 0 to 100, the one that stands behind the others first.
    layers: Vec<Vec<u64>>,
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
    axis: [String; 3],
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
        let mut bars: Vec<(Timestamp, u64)> = span.starts(now).into_iter().map(|at| (at, 0)).collect();
        for one in traffic.iter().filter(|one| counts(one)) {
            if let Some(bar) = span.bar(now, one.at).and_then(|index| bars.get_mut(index)) {
                bar.1 = bar.1.saturating_add(one.effects);
            }
        }
        Self { what, class, span, axis: span.axis(now), bars }
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
                self.span.name(*at)
            ),
        }
    }

    /// With all that stands around it.
    pub(crate) fn plot(&self) -> Plot {
        let (most, per) = (self.most(), self.span.per());
        let at_most = if most > 0 { format!(", at most {} a {per}", Num(most)) } else { String::new() };
        let some = self.bars.iter().rev().filter(|(_, n)| *n > 0);
        let heights = self.bars.iter().map(|(_, n)| height(*n, most)).collect();
        Plot {
            id: self.what,
            figure: Num(self.total()).to_string(),
            what: self.what,
            note: format!("in {}{at_most}", self.span.words()),
            sentence: self.sentence(),
            picture: Picture { class: self.class, layers: vec![heights] },
            axis: self.axis.clone(),
            per,
            columns: vec![self.what],
            rows: some.map(|(at, n)| (self.span.name(*at), vec![Num(*n).to_string()])).collect(),
        }
    }
}

const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 100;

/// How high the bar is of one that is `n`, where one of `top` is as high as it gets. What is there at all is seen.
fn height(n: u64, top: u64) -> u64 {
    let high = u128::from(n) * u128::from(HEIGHT) / u128::from(top.max(1));
    if n == 0 { 0 } else { u64::try_from(high).unwrap_or(HEIGHT).clamp(3, HEIGHT) }
}

impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bars = self.layers.first().map_or(1, Vec::len).max(1);
        let count = u64::try_from(bars).unwrap_or(1);
        let step = WIDTH / count;
        write!(
            f,
            "<svg class=\"plot {}\" viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" aria-hidden=\"true\" \
             focusable=\"false\">",
            self.class,
            step * count,
        )?;
        for layer in &self.layers {
            let mut path = String::new();
            for (index, height) in (0_u64..).zip(layer).filter(|(_, height)| **height > 0) {
                let (x, y, wide) = (index * step, HEIGHT - height, (step * 4 / 5).max(1));
                write!(path, "M{x} {HEIGHT}V{y}h{wide}V{HEIGHT}z")?;
            }
            write!(f, "<path d=\"{path}\"/>")?;
        }
        f.write_str("</svg>")
    }
}

impl askama::filters::HtmlSafe for Picture {}

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
        let plot = chart.plot();
        let row = |at: &str, n: &str| (at.to_owned(), vec![n.to_owned()]);
        assert_eq!(plot.rows, [row("01:40 UTC", "5"), row("00:41 UTC", "1")]);
        assert_eq!(plot.axis, ["00:41 UTC", "01:11 UTC", "now"].map(str::to_owned));
        assert_eq!((plot.figure.as_str(), plot.note.as_str()), ("6", "in the last hour, at most 5 a minute"));
    }

    #[test]
    fn the_smallest_bar_is_seen_and_the_highest_fits() {
        let chart =
            chart(100, &[traffic(99, State::Succeeded, 1), traffic(100, State::Succeeded, u64::MAX / 200)]);
        let svg = chart.plot().picture.to_string();
        assert!(svg.contains("V97h") && svg.contains("V0h"), "{svg}");
        assert!(!svg.contains("style") && !svg.contains(" on"), "no style and no handler: {svg}");
    }

    #[test]
    fn without_traffic_there_is_a_sentence_and_no_bar() {
        let chart = chart(100, &[]);
        assert_eq!(chart.sentence(), "None succeeded in the last hour.");
        let plot = chart.plot();
        assert!(plot.picture.to_string().contains("d=\"\"") && plot.rows.is_empty(), "{plot:?}");
    }

    #[test]
    fn longer_spans_are_by_the_hour() {
        let now = Timestamp::from_micros(1_000 * 3_600_000_000 + 5);
        assert_eq!(Span::Day.since(now).micros(), 977 * 3_600_000_000);
        assert_eq!(Span::Week.since(now).micros(), 833 * 3_600_000_000);
    }
}
