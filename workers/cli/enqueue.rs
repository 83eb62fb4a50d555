//! `aftercommit enqueue`: one effect, or a mail's one per recipient, in a transaction of their own.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    Enqueued, NewEffect,
    clock::{Timestamp, words::relative},
    error::{EnqueueError, said_against},
    store::{DownstreamInfo, Look, Status},
    visible::clean,
};
use aftercommit_dashboard::api::json::Time;
use aftercommit_workers::config::nearest;
use clap::Args;
use serde_json::value::RawValue;

use super::{
    Context, Exit, Writer, data, fail,
    json::{self, EffectJson, EnqueueJson},
    parse,
    people::{People, Sight, Written},
    table, talk,
};

#[derive(Debug, Args)]
#[command(after_help = "\
The same key with the same request is the same effect: nothing is written
twice. Without --key every call writes another effect. A mail to several
without --target becomes one effect per recipient: all of them, or none.

Examples:
  aftercommit enqueue payments --operation charge --key order-17/charge \\
      --payload '{\"amount\":1500}'
  aftercommit enqueue mail --key order-17/mail --payload @mail.json --in 10m
  jq -n '{to:\"a@example.com\"}' | aftercommit enqueue mail --payload - --json")]
pub(crate) struct EnqueueArgs {
    /// The downstream's name
    downstream: String,
    /// A named operation of it [default: its default one]
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// The idempotency key: a business identity, such as order-17/charge [default: random]
    #[arg(long)]
    key: Option<String>,
    /// The payload: JSON, @FILE, or - for stdin; sent exactly as written
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: Option<String>,
    /// One more header or message property; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse::header)]
    headers: Vec<(String, String)>,
    /// Path, routing key, subject or stream within the downstream
    #[arg(long)]
    target: Option<String>,
    /// Not attempted before this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse::timestamp, conflicts_with = "delay")]
    due_at: Option<Timestamp>,
    /// Not attempted before this much time has passed
    #[arg(long = "in", id = "delay", value_name = "DURATION", value_parser = parse::duration)]
    delay: Option<Duration>,
    /// Not begun after this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse::timestamp)]
    expires_at: Option<Timestamp>,
    /// Business references as a JSON object, searchable, never sent
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
}

/// Enqueues it.
pub(super) async fn run(context: &Context, args: EnqueueArgs) -> anyhow::Result<Exit> {
    let effect = described(args)?;
    let downstream = effect.downstream.clone();
    let people = context.people().await?;
    let known = people.downstreams().await?;
    let written = match context.remote()? {
        Some(remote) => remote.enqueue(&effect).await?,
        None => write(context, people.as_ref(), &known, effect).await?,
    };
    if let Some(note) = unserved(&known, &downstream) {
        talk!("note: {note}");
    }
    let now = people.now().await?;
    for one in &written {
        show(context, one, now)?;
    }
    Ok(Exit::Ok)
}

/// Writes it as any application does, in a transaction of its own.
async fn write(
    context: &Context,
    people: &dyn People,
    known: &[DownstreamInfo],
    effect: EnqueueJson,
) -> anyhow::Result<Vec<Written>> {
    let kind = kind(context, known, &effect.downstream);
    let effect = effect.into_effect(people.now().await?).map_err(invalid)?;
    let mut writer = Writer::connect(&context.database_url()?, &context.options()?.pooler).await?;
    let enqueued = writer.enqueue(split(effect, kind)?).await.map_err(explained)?;
    let several = enqueued.len() > 1;
    let mut written = Vec::with_capacity(enqueued.len());
    for one in &enqueued {
        let id = one.receipt().id;
        let Some(effect) = people.effect(id).await? else {
            return Err(fail(Exit::Failure, format!("effect {id} was written and cannot be found")));
        };
        let sight = if several { people.intent(id, Look::Size).await? } else { Sight::Hidden };
        let target = match sight {
            Sight::Seen(intent) => intent.and_then(|intent| intent.target),
            Sight::Hidden => None,
        };
        written.push(Written { effect, inserted: matches!(one, Enqueued::Inserted(_)), target });
    }
    Ok(written)
}

/// What the downstream is: as the database knows it, else as it is configured here.
fn kind(context: &Context, known: &[DownstreamInfo], name: &str) -> Option<String> {
    let registered = known.iter().find(|info| info.name == name).and_then(|info| info.kind.clone());
    let configured = || {
        let settings =
            context.configured().ok().filter(|configured| *configured).and(context.settings().ok())?;
        settings.downstreams.get(name).map(|downstream| downstream.kind.to_owned())
    };
    registered.or_else(configured)
}

/// One effect per recipient of a mail, as SQL's `enqueue()` and the library make them; itself for every other kind.
fn split(effect: NewEffect, kind: Option<String>) -> anyhow::Result<Vec<NewEffect>> {
    if kind.as_deref() != Some("smtp") {
        return Ok(vec![effect]);
    }
    effect.for_each_recipient().map_err(invalid)
}

fn invalid(problem: impl std::fmt::Display) -> anyhow::Error {
    fail(Exit::Usage, problem.to_string())
}

/// The effect that the command line describes.
fn described(args: EnqueueArgs) -> anyhow::Result<EnqueueJson> {
    let json = |flag: &str, text: String| {
        RawValue::from_string(text)
            .map_err(|problem| fail(Exit::Usage, format!("{flag} is not JSON: {problem}")))
    };
    let payload = args.payload.map(|given| parse::text("--payload", &given)).transpose()?;
    let headers: BTreeMap<String, String> = args.headers.into_iter().collect();
    Ok(EnqueueJson {
        downstream: args.downstream,
        operation: args.operation,
        idempotency_key: args.key,
        payload: payload.map(|text| json("payload", text)).transpose()?,
        headers: (!headers.is_empty()).then_some(headers),
        target: args.target,
        due_at: args.due_at.map(Time),
        delay_ms: args.delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        expires_at: args.expires_at.map(Time),
        metadata: args.metadata.map(|text| json("--metadata", text)).transpose()?,
        ..EnqueueJson::default()
    })
}

/// What the database said against it, as the person who typed it needs it.
fn explained(problem: EnqueueError) -> anyhow::Error {
    if let EnqueueError::Database(sqlx::Error::Database(said)) = &problem
        && refuses_values(said.as_ref())
    {
        return fail(Exit::Usage, format!("the effect was refused: {}", said_against(said.as_ref())));
    }
    problem.into()
}

/// Whether the database refused the values, as opposed to failing: raised by our own checks, or of the class "data
/// exception" or "integrity constraint violation".
fn refuses_values(said: &dyn sqlx::error::DatabaseError) -> bool {
    let code = said.code().unwrap_or_default();
    // SQLite: SQLITE_CONSTRAINT and its kinds are 19 in the low byte.
    let sqlite = code.parse::<i64>().is_ok_and(|code| code & 0xff == 19);
    sqlite || code.starts_with("22") || code.starts_with("23") || code.starts_with("AC") || code == "P0001"
}

/// Why nobody will carry it out for now.
fn unserved(known: &[DownstreamInfo], name: &str) -> Option<String> {
    match known.iter().find(|info| info.name == name && info.kind.is_some()) {
        Some(info) if info.workers > 0 => None,
        Some(_) => {
            Some(format!("no live worker serves {} now; the effect waits until one does.", clean(name)))
        }
        None => {
            let names = known.iter().filter(|info| info.kind.is_some()).map(|info| info.name.as_str());
            let hint = nearest(name, names);
            let hint = hint.map_or_else(String::new, |nearest| format!(" Did you mean {nearest}?"));
            Some(format!(
                "no configuration made a downstream {} known here yet; the effect waits, unserved, until a worker serves it.{hint}",
                clean(name)
            ))
        }
    }
}

fn show(context: &Context, written: &Written, now: Timestamp) -> anyhow::Result<()> {
    let Written { effect, inserted, target } = written;
    let (id, state) = (effect.id, effect.state);
    if !inserted && state.is_terminal() {
        talk!("Effect {id} exists already and has ended: {state}.");
    } else if !inserted {
        talk!("Effect {id} exists already and is {state}.");
    }
    if context.json() {
        let (inserted, target) = (Some(*inserted), target.clone());
        return json::print(&EffectJson { inserted, target, ..EffectJson::from(effect) });
    }
    data(line(effect, target.as_deref(), now))?;
    Ok(())
}

fn line(effect: &Status, target: Option<&str>, now: Timestamp) -> String {
    let to = target.map(|target| format!(" to {target}")).unwrap_or_default();
    let operation = effect.operation.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
    let due = effect.due_at.filter(|due| *due > now && effect.state.is_pending());
    let due = due.map(|due| format!(", due {}", relative(due, now))).unwrap_or_default();
    let state = table::state_words(effect.state, effect.held_by.as_deref());
    let words = format!(
        "Effect {} for {}{operation}{to} with key {} is {state}{due}.",
        effect.id, effect.downstream, effect.idempotency_key
    );
    clean(&words).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::exit::exit_of;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: EnqueueArgs,
    }

    fn built(words: &[&str]) -> anyhow::Result<NewEffect> {
        let effect = described(Line::try_parse_from([&["enqueue"], words].concat())?.args)?;
        effect
            .into_effect(Timestamp::from_micros(0))
            .map_err(|problem| fail(Exit::Usage, problem.to_string()))
    }

    #[test]
    fn a_wrong_value_is_a_usage_error_that_names_it() {
        for (words, named) in [
            (&["p", "--key", " x"][..], "idempotency_key"),
            (&["p", "--payload", "{"][..], "payload"),
            (&["p", "--metadata", "[]"][..], "metadata"),
            (&["p", "--payload", "@/no/such/file"][..], "/no/such/file"),
        ] {
            let problem = built(words).unwrap_err();
            assert_eq!(exit_of(&problem), Exit::Usage, "{words:?}");
            assert!(problem.to_string().contains(named), "{problem}");
        }
    }

    #[test]
    fn who_would_carry_it_out_is_told() {
        let info = |name: &str, workers| DownstreamInfo {
            name: name.to_owned(),
            kind: Some("http".to_owned()),
            contract: None,
            workers,
            pending: 0,
            in_flight: 0,
            in_doubt: 0,
            failed: 0,
            oldest_due_at: None,
            paused: None,
            origin: None,
            paused_until: None,
            breaker: aftercommit::store::Breaker::Closed,
            hold_reason: None,
            rate: None,
        };
        let known = [info("payments", 1), info("mail", 0)];
        assert_eq!(unserved(&known, "payments"), None);
        assert!(unserved(&known, "mail").unwrap().contains("no live worker"));
        assert!(unserved(&known, "payment").unwrap().contains("Did you mean payments?"));
        assert!(!unserved(&known, "zzz").unwrap().contains("Did you mean"));
    }

    #[test]
    fn a_mail_to_several_is_one_effect_per_recipient_and_nothing_else_is_split() {
        let to = r#"{"to":["a@x.test","b@x.test"],"cc":"a@x.test"}"#;
        let of = |kind: Option<&str>, words: &[&str]| {
            let words = [&["mail", "--payload", to], words].concat();
            split(built(&words).unwrap(), kind.map(str::to_owned)).unwrap().len()
        };
        assert_eq!(of(Some("smtp"), &[]), 2);
        assert_eq!(of(Some("smtp"), &["--target", "a@x.test"]), 1);
        assert_eq!((of(Some("http"), &[]), of(None, &[])), (1, 1));
        let unreadable = built(&["mail", "--payload", r#"{"to":[7]}"#]).unwrap();
        let problem = split(unreadable, Some("smtp".to_owned())).unwrap_err();
        assert_eq!(exit_of(&problem), Exit::Usage);
    }

    #[test]
    fn an_effect_is_described_by_flags() {
        let words = ["p", "--payload", "-1", "--header", "X-A: 1", "--in", "5m", "--metadata", "{}"];
        assert!(built(&words).is_ok());
        assert!(built(&["p", "--in", "5m", "--due-at", "2030-01-01T00:00:00Z"]).is_err());
    }
}
