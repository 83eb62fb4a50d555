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

/// `count` and the word for so many of them: `plural(2, "effect")` is "2 effects".
pub(crate) fn plural(count: impl Into<u64>, word: &str) -> String {
    let count = count.into();
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}
