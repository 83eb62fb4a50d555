//! The small parts that pages are made of, each written once: others' text, times, states, numbers. Only those that hold nothing but
//! our own words and numbers are HTML; all else is text, which the templates escape.

use std::fmt;

use aftercommit::{
    clock::{
        Timestamp,
        words::{relative, utc},
    },
    outcome::Verdict,
    state::State,
    visible::{clean, clean_lines},
};
use askama::filters::HtmlSafe;

/// What others wrote, with control characters and overrides of the writing direction spelled out. A template escapes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(String);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// On one line.
pub(crate) fn text(of: &str) -> Text {
    Text(clean(of).into_owned())
}

/// On as many lines as it has.
pub(crate) fn lines(of: &str) -> Text {
    Text(clean_lines(&of.replace("\r\n", "\n")).into_owned())
}

/// Of something that may be missing.
pub(crate) fn maybe(of: Option<&str>) -> Option<Text> {
    of.filter(|of| !of.is_empty()).map(text)
}

/// A state: a shape and a word, and what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Badge {
    state: State,
    held: Option<&'static str>,
    big: bool,
}

impl Badge {
    pub(crate) const fn of(state: State) -> Self {
        Self { state, held: None, big: false }
    }

    /// With what keeps it from moving, as the database calls it.
    pub(crate) fn held(self, by: Option<&str>) -> Self {
        let held = by.map(|by| match by {
            "pause" => "paused",
            "breaker" => "no answer",
            "unserved" => "no worker",
            "order" => "waits its turn",
            _ => "held",
        });
        Self { held, ..self }
    }

    pub(crate) const fn big(self) -> Self {
        Self { big: true, ..self }
    }
}

/// A state as people read it.
pub(crate) fn words(state: State) -> &'static str {
    match state {
        State::InFlight => "in flight",
        State::InDoubt => "in doubt",
        State::Waiting
        | State::Scheduled
        | State::Ready
        | State::Retrying
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::Expired => state.as_str(),
    }
}

/// Shapes on a field of twelve by twelve.
const fn shape(state: State) -> &'static str {
    match state {
        State::Waiting => "<circle cx=\"6\" cy=\"6\" r=\"4.6\" stroke-dasharray=\"1.6 2.4\"/>",
        State::Scheduled => "<circle cx=\"6\" cy=\"6\" r=\"4.8\"/><path d=\"M6 3.4V6l1.7 1.2\"/>",
        State::Ready => "<circle cx=\"6\" cy=\"6\" r=\"4.8\"/>",
        State::InFlight => "<path class=\"full\" d=\"M3.4 2.2 9.6 6 3.4 9.8z\"/>",
        State::Retrying => "<path d=\"M10.4 6a4.4 4.4 0 1 1-1.3-3.1M10.4 .9v2.6H7.8\"/>",
        State::InDoubt => "<path class=\"full\" d=\"M6 1 11 6 6 11 1 6z\"/>",
        State::Succeeded => "<path d=\"M2 6.5 4.8 9.3 10 3.2\"/>",
        State::Failed => "<path d=\"m2.6 2.6 6.8 6.8m0-6.8-6.8 6.8\"/>",
        State::Cancelled => "<circle cx=\"6\" cy=\"6\" r=\"4.8\"/><path d=\"m2.7 9.3 6.6-6.6\"/>",
        State::Expired => {
            "<path d=\"M3 1.4h6M3 10.6h6M3.9 1.4c0 2.9 4.2 6.3 4.2 9.2M8.1 1.4c0 2.9-4.2 6.3-4.2 9.2\"/>"
        }
    }
}

impl fmt::Display for Badge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let big = if self.big { " big" } else { "" };
        write!(
            f,
            "<span class=\"state {}{big}\"><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\" focusable=\"false\">{}</svg>{}",
            self.state,
            shape(self.state),
            words(self.state)
        )?;
        if let Some(held) = self.held {
            write!(f, " <small>· {held}</small>")?;
        }
        f.write_str("</span>")
    }
}

impl HtmlSafe for Badge {}

/// A time: in UTC, and how far away it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    at: Timestamp,
    now: Timestamp,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The time, then the distance.
    Full,
    /// The distance; the time below it, smaller.
    Short,
}

impl Moment {
    pub(crate) const fn of(at: Timestamp, now: Timestamp) -> Self {
        Self { at, now, form: Form::Full }
    }

    /// For a column.
    pub(crate) const fn short(at: Timestamp, now: Timestamp) -> Self {
        Self { at, now, form: Form::Short }
    }
}

/// `2026-01-31 12:00:00 UTC`.
pub(crate) fn clock(at: Timestamp) -> String {
    utc(at).replace('T', " ").trim_end_matches('Z').to_owned() + " UTC"
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at == Timestamp::MAX || self.at == Timestamp::MIN {
            return f.write_str("for ever");
        }
        // The browser counts on from here, and shows the time of its own zone where that is wanted.
        let (exact, away) = (utc(self.at), relative(self.at, self.now));
        let time = format!("<time datetime=\"{exact}\">{}</time>", clock(self.at));
        let away = format!("<span data-away=\"{exact}\">{away}</span>");
        match self.form {
            Form::Full => write!(f, "{time} <span class=\"quiet\">({away})</span>"),
            Form::Short => write!(f, "{away}<span class=\"subline\">{time}</span>"),
        }
    }
}

impl HtmlSafe for Moment {}

/// A count, in groups of three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Num(pub(crate) u64);

impl Num {
    pub(crate) const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// "1 effect", "1,204 effects".
pub(crate) fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", Num(n), if n == 1 { "" } else { "s" })
}

/// What an attempt showed, as people read it.
pub(crate) const fn verdict(of: Verdict) -> &'static str {
    match of {
        Verdict::Applied => "applied",
        Verdict::Rejected => "rejected",
        Verdict::NotApplied => "not applied",
        Verdict::Unknown => "unknown",
    }
}

/// Text as it may stand in the query of a link.
pub(crate) fn in_query(of: &str) -> String {
    let mut safe = String::with_capacity(of.len());
    for byte in of.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b':' | b',' | b'/' => {
                safe.push(char::from(byte))
            }
            b' ' => safe.push('+'),
            byte => safe.push_str(&format!("%{byte:02X}")),
        }
    }
    safe
}

/// Text as it may stand as one segment of a path.
pub(crate) fn in_path(of: &str) -> String {
    in_query(of).replace('+', "%20").replace('/', "%2F").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_a_shape_and_a_word() {
        for state in State::ALL {
            let badge = Badge::of(state).to_string();
            assert!(badge.contains("<svg") && badge.contains(words(state)), "{badge}");
        }
        let held = Badge::of(State::Ready).held(Some("<script>")).to_string();
        assert!(held.contains("held") && !held.contains("script"), "{held}");
    }

    #[test]
    fn times_are_told_in_utc_and_as_a_distance() {
        let at = Timestamp::from_micros(1_767_787_200_000_000);
        let moment = Moment::of(at, at.plus(std::time::Duration::from_secs(180))).to_string();
        assert_eq!(
            moment,
            "<time datetime=\"2026-01-07T12:00:00Z\">2026-01-07 12:00:00 UTC</time> \
             <span class=\"quiet\">(<span data-away=\"2026-01-07T12:00:00Z\">3 min ago</span>)</span>"
        );
        assert_eq!(Moment::of(Timestamp::MAX, at).to_string(), "for ever");
    }

    #[test]
    fn counts_are_grouped() {
        let shown = |n| Num(n).to_string();
        assert_eq!([0, 7, 999, 1_204, 10_000_000].map(shown), ["0", "7", "999", "1,204", "10,000,000"]);
        assert_eq!(
            (plural(1, "effect"), plural(1_204, "effect")),
            ("1 effect".to_owned(), "1,204 effects".to_owned())
        );
    }

    #[test]
    fn others_text_stays_text() {
        assert_eq!(text("a\u{202e}b\n").to_string(), r"a\u{202e}b\n");
        assert_eq!(lines("a\r\nb\u{7}").to_string(), "a\nb\\x07");
        assert_eq!(in_query("state:failed error:\"a&b\"<ü"), "state:failed+error:%22a%26b%22%3C%C3%BC");
    }
}
