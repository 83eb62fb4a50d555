//! `effects show`: one effect, its attempts, and what follows.

use std::fmt::Write as _;

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    store::{LoggedAttempt, Look, Status},
};
use clap::Args;

use super::{follow, list, request};
use crate::cli::{
    Context, Exit, Grid,
    clean::clean,
    context::invocation,
    data,
    exit::fail,
    json::{self, AttemptJson, EffectJson},
    output::{width, wrapped},
    parse, table,
    times::{span, utc, utc_and_words},
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit effects show 17
  aftercommit effects show 17 --payload
  aftercommit effects show 17 --json | jq .attempt_log")]
pub(crate) struct ShowArgs {
    /// The effect's number
    #[arg(value_parser = parse::effect_id)]
    id: EffectId,
    /// Print what is sent, too
    #[arg(long)]
    payload: bool,
}

/// Shows it.
pub(super) async fn run(context: &Context, args: &ShowArgs) -> anyhow::Result<Exit> {
    let store = context.open().await?;
    let id = args.id;
    let Some(effect) = store.effect(id).await? else { return Err(absent(id)) };
    let attempts = store.attempts(id).await?;
    let look = if args.payload { Look::Whole } else { Look::Size };
    let sent = request::read(store.as_ref(), id, look).await?;
    let now = store.now().await?;
    let follows = follow::words(&effect, &attempts, now, context);
    if context.json() {
        let mut view = EffectJson::from(&effect);
        view.attempt_log = Some(attempts.iter().map(AttemptJson::from).collect());
        view.what_follows = Some(follows);
        view.request = Some(request::json(&sent, look));
        json::print(&view)?;
        return Ok(Exit::Ok);
    }
    // Under the value, so that a long one stays readable.
    let described = describe(&effect, &attempts, now) + &request::lines(&sent, look, now);
    data(wrapped(&described, width(), 16))?;
    request::print_content(&sent)?;
    if effect.payload_dropped {
        data("\nThe payload was dropped; the key is kept.")?;
    }
    if effect.log_dropped {
        data("\nThe attempt log was dropped (retention.history).")?;
    }
    if !attempts.is_empty() {
        data(format!("\nAttempts\n{}", log(&attempts)))?;
    }
    data(format!("\nWhat follows\n{}", wrapped(&indented(&follows), width(), 2)))?;
    Ok(Exit::Ok)
}

/// The error for a number that no effect has.
pub(crate) fn absent(id: EffectId) -> anyhow::Error {
    let command = format!("{} effects list", invocation());
    fail(Exit::NotFound, format!("there is no effect {id}; `{command}` shows what there is"))
}

/// One line per thing that is known of it.
fn describe(effect: &Status, attempts: &[LoggedAttempt], now: Timestamp) -> String {
    let mut text = format!("Effect {}", effect.id);
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            write!(text, "\n  {name:<13} {}", clean(&value)).ok();
        }
    };
    let time = |at: Option<Timestamp>| at.map(|at| utc_and_words(at, now));
    line("downstream", Some(list::place(effect)));
    line("key", Some(effect.idempotency_key.clone()));
    line("state", Some(table::state_words(effect.state, effect.held_by.as_deref())));
    line("created", time(Some(effect.created_at)));
    line("due", time(effect.due_at).filter(|_| !effect.state.is_terminal()));
    line("first sent", time(effect.first_sent_at));
    line("unknown since", time(follow::unknown_since(effect, attempts)));
    line("safe until", time(effect.safe_until).filter(|_| !effect.state.is_terminal()));
    line("lease until", time(effect.lease_until));
    line("finished", time(effect.finished_at));
    line("worker", effect.worker.clone());
    line("attempts", Some(effect.attempts.to_string()));
    line("outcome", effect.last_outcome.map(|outcome| outcome.to_string()));
    line("last word", effect.last_error.clone());
    line("status", effect.response_status.map(|status| status.to_string()));
    line("response", effect.response.as_ref().map(|json| excerpt(json.get())));
    line("metadata", effect.metadata.as_ref().map(|json| excerpt(json.get())));
    line("superseded", effect.superseded_by.map(|by| format!("by effect {by}")));
    text
}

/// The attempts as a table.
fn log(attempts: &[LoggedAttempt]) -> Grid {
    let mut grid = Grid::new(&["  #", "STARTED", "TOOK", "OUTCOME", "STATUS", "PHASE", "ERROR"])
        .numbers(&[0])
        .below(&[6, 5]);
    for attempt in attempts {
        let late = if attempt.late { " late" } else { "" };
        grid.row(vec![
            table::cell(attempt.attempt),
            table::cell(utc(attempt.started_at)),
            table::maybe(attempt.ended_at.map(|ended| span(ended.since(attempt.started_at)))),
            table::cell(format!("{}{late}", attempt.outcome)),
            table::maybe(attempt.response_status),
            table::cell(&attempt.phase),
            table::cell(attempt.error.as_deref().unwrap_or("")),
        ]);
    }
    grid
}

/// The beginning of a long text, on one line.
fn excerpt(text: &str) -> String {
    const LONGEST: usize = 300;
    // White space of JSON: the rest of the control characters is spelled out where it is printed.
    let line = text.replace(['\n', '\r', '\t'], " ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    let start: String = line.chars().take(LONGEST).collect();
    format!("{start}… ({} bytes; --json prints all of it)", text.len())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_responses_are_cut_between_characters() {
        let text = "ü".repeat(1_000);
        let cut = excerpt(&text);
        assert!(cut.starts_with("üü") && cut.contains("2000 bytes"), "{cut}");
        assert_eq!(excerpt("{\n}"), "{ }");
    }
}
