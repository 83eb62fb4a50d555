//! Sentences of ours that name a time and hold words of others: all of it is text, and the times in it are shown like all others, in
//! the reader's zone where that is wanted.

use std::fmt;

use askama::filters::{Escaper as _, Html, HtmlSafe};

use super::parts::{Text, text};

/// How the library writes a time in a sentence.
const INSTANT: &[u8] = b"0000-00-00T00:00:00Z";

/// A sentence. It escapes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prose(Text);

/// On one line.
pub(crate) fn prose(of: &str) -> Prose {
    Prose(text(of))
}

impl fmt::Display for Prose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.to_string();
        let mut rest = all.as_str();
        while let Some(at) = rest.as_bytes().windows(INSTANT.len()).position(is_instant) {
            let (before, from) = rest.split_at(at);
            let (instant, after) = from.split_at(INSTANT.len());
            Html.write_escaped_str(&mut *f, before)?;
            let shown = instant.replace('T', " ").replace('Z', " UTC");
            write!(f, "<time datetime=\"{instant}\">{shown}</time>")?;
            rest = after;
        }
        Html.write_escaped_str(f, rest)
    }
}

impl HtmlSafe for Prose {}

fn is_instant(window: &[u8]) -> bool {
    window.iter().zip(INSTANT).all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == form,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_marked_up_and_nothing_else_is() {
        assert_eq!(
            prose("<b>ü</b> until 2026-12-01T20:19:20Z, or 2026-12-01T20:19:2Z").to_string(),
            "&#60;b&#62;ü&#60;/b&#62; until <time datetime=\"2026-12-01T20:19:20Z\">2026-12-01 20:19:20 UTC</time>, or \
             2026-12-01T20:19:2Z"
        );
        assert_eq!(prose("\"2026-12-01T20:19:20Z").to_string().matches('"').count(), 2, "its own two only");
    }
}
