//! `effects show`: one effect, its attempts, and what follows.

use std::fmt::Write as _;

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc, utc_and_words},
    },
    contract::Contract,
    effect::Effect,
    follow::{Known, unknown_since},
    store::{AuditFilter, Audited, Content, DownstreamInfo, Intent, LoggedAttempt, Look, Status},
    visible::clean,
};
use aftercommit_workers::config::DownstreamSettings;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    list, named,
    recipients::{self, Recipient},
    request, ways,
};
use crate::cli::{
    Context, Exit, Grid, data,
    json::{self, AttemptJson, EffectJson},
    output::{width, wrapped},
    people::People,
    table,
};

#[derive(Debug, Args)]
#[command(after_help = "\
A key that effects of several downstreams have ends with 2, and their numbers.

Examples:
  aftercommit effects show 17
  aftercommit effects show order-17/charge
  aftercommit effects show 17 --payload
  aftercommit effects show 17 --json | jq .attempt_log")]
pub(crate) struct ShowArgs {
    /// The effect's number, or its idempotency key
    #[arg(value_name = "ID|KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    effect: String,
    /// Print what is sent, too
    #[arg(long)]
    payload: bool,
}

/// Shows it.
pub(super) async fn run(context: &Context, args: &ShowArgs) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let effect = named::find(people.as_ref(), &args.effect).await?;
    let look = if args.payload { Look::Whole } else { Look::Size };
    let seen = see(context, people.as_ref(), effect, look).await?;
    if context.json() { print_json(context, &seen, look) } else { print(context, &seen, look) }
}

/// All that is shown of one effect.
struct Seen {
    effect: Status,
    attempts: Vec<LoggedAttempt>,
    sent: Option<Intent>,
    /// What its downstream knows it by besides its key.
    known_as: Option<(&'static str, String)>,
    recipients: Vec<Recipient>,
    /// Its downstream, where that holds it.
    holder: Option<DownstreamInfo>,
    /// What its downstream promises, as far as that is known here.
    contract: Option<Contract>,
    /// What a person did to it last.
    last_act: Option<Audited>,
    now: Timestamp,
}

async fn see(context: &Context, people: &dyn People, effect: Status, look: Look) -> anyhow::Result<Seen> {
    let attempts = people.attempts(effect.id).await?;
    let mut sent = request::read(people, effect.id, look).await?;
    let (mut known_as, mut recipients) = (None, Vec::new());
    // A dashboard's answer is shown as it is: what follows from payload and configuration is looked at only here.
    let here = context.remote()?.is_none();
    let configured = if here { configured(context, &effect.downstream) } else { None };
    // Of a mail more is told, which stands in its payload; where that may be read, it is read here, and not printed.
    let target = sent.as_ref().and_then(|sent| sent.target.clone()).unwrap_or_default();
    let mail = target.contains('@') || configured.as_ref().is_some_and(|of| of.kind == "smtp");
    if here && mail && sent.is_some() {
        let whole = request::read(people, effect.id, Look::Whole).await?;
        if let Some(Content::Json(Some(payload))) = whole.as_ref().map(|whole| &whole.content) {
            recipients = recipients::of(people, &effect, (payload, &target)).await?;
            known_as = configured.as_ref().and_then(|of| of.known_as(&rendered(&effect, payload, &sent)));
        }
        sent = if look == Look::Whole { whole } else { sent };
    }
    let holder = if effect.held_by.is_some() {
        people.downstreams().await?.into_iter().find(|info| info.name == effect.downstream)
    } else {
        None
    };
    let contract = people.contract(&effect).await?;
    let last = AuditFilter { effect: Some(effect.id), limit: 1, ..AuditFilter::default() };
    let last_act = people.audit(&last).await?.into_iter().next();
    let now = people.now().await?;
    Ok(Seen { attempts, sent, known_as, recipients, holder, contract, last_act, now, effect })
}

/// Its downstream as it is configured here, if it is.
fn configured(context: &Context, downstream: &str) -> Option<DownstreamSettings> {
    let settings = context.configured().ok().filter(|configured| *configured).and(context.settings().ok())?;
    settings.downstreams.get(downstream).cloned()
}

/// The effect as its downstream is given it, as far as that is asked here.
fn rendered(effect: &Status, payload: &str, sent: &Option<Intent>) -> Effect {
    let (downstream, key) = (effect.downstream.as_str(), effect.idempotency_key.as_str());
    Effect {
        operation: effect.operation.clone(),
        payload: Some(payload.to_owned()),
        target: sent.as_ref().and_then(|sent| sent.target.clone()),
        ..Effect::new(effect.id, downstream, key, effect.created_at)
    }
}

fn follows(context: &Context, seen: &Seen) -> String {
    let Seen { effect, attempts, holder, contract, last_act, now, .. } = seen;
    let (holder, contract, last_act) = (holder.as_ref(), contract.as_ref(), last_act.as_ref());
    ways::words(&Known { effect, attempts, holder, contract, last_act, now: *now }, context)
}

/// What the command line prints of one effect: what the API does, and what follows from payload and configuration.
#[derive(Serialize)]
struct ShownJson {
    #[serde(flatten)]
    effect: EffectJson,
    /// By what its downstream knows it besides its key, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_as: Option<Value>,
    /// Of a mail to several: whose effect is which.
    #[serde(skip_serializing_if = "Option::is_none")]
    recipients: Option<Value>,
}

fn print_json(context: &Context, seen: &Seen, look: Look) -> anyhow::Result<Exit> {
    let mut effect = EffectJson::from(&seen.effect);
    effect.attempt_log = Some(seen.attempts.iter().map(AttemptJson::from).collect());
    effect.what_follows = Some(follows(context, seen));
    effect.request = Some(request::json(&seen.sent, look));
    json::print(&ShownJson {
        effect,
        known_as: seen.known_as.as_ref().map(|(name, value)| json!({ *name: value })),
        recipients: recipients::json(&seen.recipients),
    })?;
    Ok(Exit::Ok)
}

fn print(context: &Context, seen: &Seen, look: Look) -> anyhow::Result<Exit> {
    let Seen { effect, attempts, sent, now, .. } = seen;
    // Under the value, so that a long one stays readable.
    let described = describe(seen) + &request::lines(sent, look, *now);
    data(wrapped(&described, width(), 16))?;
    request::print_content(sent)?;
    if effect.payload_dropped {
        data("\nThe payload was dropped; the key is kept.")?;
    }
    if effect.log_dropped {
        data("\nThe attempt log was dropped (retention.history).")?;
    }
    if !seen.recipients.is_empty() {
        let grid = recipients::grid(&seen.recipients, effect.id);
        data(format!("\nRecipients of this mail, one effect each\n{grid}"))?;
    }
    if !attempts.is_empty() {
        data(format!("\nAttempts\n{}", log(attempts)))?;
    }
    let follows = follows(context, seen);
    data(format!("\nWhat follows\n{}", wrapped(&indented(&follows), width(), 2)))?;
    Ok(Exit::Ok)
}

/// One line per thing that is known of it.
fn describe(seen: &Seen) -> String {
    let Seen { effect, attempts, now, .. } = seen;
    let now = *now;
    let mut text = format!("Effect {}", effect.id);
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            write!(text, "\n  {name:<13} {}", clean(&value)).ok();
        }
    };
    let time = |at: Option<Timestamp>| at.map(|at| utc_and_words(at, now));
    line("downstream", Some(list::place(effect)));
    line("key", Some(effect.idempotency_key.clone()));
    if let Some((name, value)) = &seen.known_as {
        line(name, Some(value.clone()));
    }
    line("state", Some(table::state_words(effect.state, effect.held_by.as_deref())));
    line("created", time(Some(effect.created_at)));
    line("due", time(effect.due_at).filter(|_| !effect.state.is_terminal()));
    line("first sent", time(effect.first_sent_at));
    line("unknown since", time(unknown_since(effect, attempts)));
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
