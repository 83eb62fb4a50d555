//! What others wrote, made harmless for whoever reads it, on a terminal or on a page: no control character of theirs moves the
//! cursor, breaks a row, or turns text around. It is not HTML's escaping: pages do that besides.

use std::{borrow::Cow, fmt::Write as _};

/// `text` with every control character and every override of the writing direction spelled out: `\n`, `\x1b`, `\u{202e}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// [`clean`] for a text of several lines: its newlines stay.
pub fn clean_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_unsafe(c) => clean.push(c),
            '\n' => clean.push_str("\\n"),
            '\r' => clean.push_str("\\r"),
            '\t' => clean.push_str("\\t"),
            c if c.is_ascii() => write!(clean, "\\x{:02x}", u32::from(c)).expect("a string takes everything"),
            c => write!(clean, "\\u{{{:x}}}", u32::from(c)).expect("a string takes everything"),
        }
    }
    Cow::Owned(clean)
}

/// Control characters (C0, DEL, C1), line separators, and what sets the direction of writing.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_direction_overrides_are_spelled_out() {
        assert_eq!(clean("a\x1b[2Jb\nc\r\t\x7f\u{9b}"), r"a\x1b[2Jb\nc\r\t\x7f\u{9b}");
        assert_eq!(clean("x\u{202e}y\u{2066}z"), r"x\u{202e}y\u{2066}z");
        assert!(matches!(clean("order-17/größe…"), Cow::Borrowed(_)));
        assert_eq!(clean_lines("a\nb\x1b"), "a\nb\\x1b");
    }
}
