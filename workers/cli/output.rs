//! Where words go: data to stdout, talk to stderr. Colours are stripped where the reader is no terminal or `NO_COLOR` is
//! set (anstream decides).

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

/// Prints data, and a newline, to stdout.
///
/// # Errors
///
/// When stdout cannot be written; a broken pipe ends the command quietly.
pub(crate) fn data(text: impl fmt::Display) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Prints a line of talk to stderr. There is nobody to tell when that fails.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    writeln!(anstream::stderr().lock(), "{text}").ok();
}

/// Prints a line of talk to stderr.
macro_rules! talk {
    ($($words:tt)*) => { $crate::cli::say(format_args!($($words)*)) };
}
pub(crate) use talk;

/// Shows how far something is on the terminal's present line; an empty text clears it.
pub(crate) fn progress(text: &str) {
    let mut err = anstream::stderr().lock();
    write!(err, "\r\x1b[2K{text}").and_then(|()| err.flush()).ok();
}

/// Whether a person reads stdout.
pub(crate) fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person can be asked: stdin and stderr are a terminal.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on the terminal; the answer without its newline.
///
/// # Errors
///
/// When stdin cannot be read.
pub(crate) fn ask(question: &str) -> io::Result<String> {
    let mut err = anstream::stderr().lock();
    write!(err, "{question} ")?;
    err.flush()?;
    drop(err);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// How wide prose may be on stdout: the terminal's width; elsewhere what `COLUMNS` says, or unlimited.
pub(crate) fn width() -> usize {
    if on_terminal() {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        return terminal_width(size.map_or(0, |size| size.ws_col));
    }
    columns(std::env::var("COLUMNS").ok().as_deref())
}

/// A terminal that does not know its width (a serial line, some containers) says 0.
fn terminal_width(columns: u16) -> usize {
    if columns == 0 { 80 } else { usize::from(columns).max(40) }
}

fn columns(variable: Option<&str>) -> usize {
    let columns = variable.and_then(|text| text.trim().parse().ok()).filter(|columns| *columns > 0);
    columns.map_or(usize::MAX, |columns: usize| columns.max(40))
}

/// `text`, its lines broken between words to be at most `width` characters wide; what follows a break is indented by
/// `indent`. A word that is longer stays whole: half a command cannot be copied.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let start = line.len() - line.trim_start().len();
        let mut now = line[..start].to_owned();
        let mut first = true;
        for word in line[start..].split(' ') {
            if !first && now.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::replace(&mut now, format!("{}{word}", " ".repeat(indent))));
                continue;
            }
            if !first {
                now.push(' ');
            }
            now.push_str(word);
            first = false;
        }
        lines.push(now);
    }
    for line in &mut lines {
        line.truncate(line.trim_end_matches(' ').len());
    }
    lines.join("\n")
}

/// `count` and the word for so many of them: `plural(2, "effect")` is "2 effects".
pub(crate) fn plural(count: impl Into<u64>, word: &str) -> String {
    let count = count.into();
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_that_nobody_knows_is_80() {
        assert_eq!((terminal_width(0), terminal_width(120), terminal_width(1)), (80, 120, 40));
        assert_eq!(
            (columns(Some("60")), columns(Some("0")), columns(Some("x"))),
            (60, usize::MAX, usize::MAX)
        );
        assert_eq!(columns(None), usize::MAX);
    }

    #[test]
    fn prose_is_broken_between_words_and_nothing_is_lost() {
        let text = "In doubt because nobody knows.\nShort.\n  a-very-long-word-that-stays-whole";
        let broken = wrapped(text, 16, 2);
        assert_eq!(broken, "In doubt because\n  nobody knows.\nShort.\n  a-very-long-word-that-stays-whole");
        assert_eq!(wrapped(text, usize::MAX, 0), text);
        assert_eq!(wrapped("  indented line", 80, 2), "  indented line");
    }
}
