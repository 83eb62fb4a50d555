//! Printing what was looked at: `doctor`, and `downstreams test`.

use aftercommit::{
    check::{Check, Level},
    visible::clean,
};

use super::{
    Context, Exit, data, json,
    output::{width, wrapped},
    talk,
};

/// Prints each with its remedy, and the counts. [`Exit::Failure`] when one fails.
pub(super) fn print(context: &Context, checks: &[Check]) -> anyhow::Result<Exit> {
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let exit = if count(Level::Fail) > 0 { Exit::Failure } else { Exit::Ok };
    if context.json() {
        checks.iter().try_for_each(json::print)?;
        return Ok(exit);
    }
    let width = width();
    for check in checks {
        let (colour, word) = match check.level {
            Level::Ok => ("\x1b[32m", "ok"),
            Level::Warn => ("\x1b[33m", "warn"),
            Level::Fail => ("\x1b[31m", "fail"),
        };
        // A long label takes its own room.
        let text = wrapped(&format!("{word:<6}{:<14} {}", check.check, clean(&check.found)), width, 21);
        data(format!("{colour}{word}\x1b[0m{}", &text[word.len()..]))?;
        if let Some(remedy) = check.remedy.as_deref().filter(|_| check.level != Level::Ok) {
            data(wrapped(&format!("{:21}→ {}", "", clean(remedy)), width, 23))?;
        }
    }
    talk!("{} ok, {} warn, {} fail.", count(Level::Ok), count(Level::Warn), count(Level::Fail));
    Ok(exit)
}
