//! `aftercommit enqueue`: one effect, or a mail's one per recipient, in a transaction of their own.

use std::time::Duration;

use aftercommit::{
    Enqueued, IdempotencyKey, NewEffect,
    clock::Timestamp,
    effect::InvalidEffect,
    error::EnqueueError,
    store::{Database, DownstreamInfo, Look, Status},
};
use aftercommit_workers::config::nearest;
use clap::Args;
use serde_json::{Map, Value};

use super::{
    Context, Exit, Writer,
    clean::clean,
    data,
    exit::said_against,
    fail,
    json::{self, EffectJson},
    parse, table, talk,
    times::{relative, utc},
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
    let downstream = args.downstream.clone();
    let (delay, expires_at) = (args.delay, args.expires_at);
    let mut effect = build(args)?;
    let url = context.database_url()?;
    let options = context.options()?;
    let store = super::context::open(&url, &options).await?;
    if let Some(delay) = delay {
        effect = effect.due_at(store.now().await?.plus(delay));
    }
    if let Some(at) = expires_at
        && at <= store.now().await?
    {
        return Err(fail(
            Exit::Usage,
            format!("--expires-at {} has passed already: it would never be sent", utc(at)),
        ));
    }
    let known = store.downstreams().await?;
    let effects = split(effect, kind(context, &known, &downstream))?;
    let several = effects.len() > 1;
    let mut writer = Writer::connect(&url, &options.pooler).await?;
    let written = writer.enqueue(effects).await.map_err(explained)?;
    if let Some(note) = unserved(&known, &downstream) {
        talk!("note: {note}");
    }
    for one in &written {
        show(context, store.as_ref(), one, several).await?;
    }
    Ok(Exit::Ok)
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

fn invalid(problem: InvalidEffect) -> anyhow::Error {
    fail(Exit::Usage, problem.to_string())
}

/// The effect that the command line describes.
fn build(args: EnqueueArgs) -> anyhow::Result<NewEffect> {
    let mut effect = NewEffect::to(args.downstream);
    if let Some(operation) = args.operation {
        effect = effect.operation(operation);
    }
    if let Some(key) = args.key {
        effect = effect.key(IdempotencyKey::parse(key).map_err(invalid)?);
    }
    if let Some(payload) = args.payload {
        effect = effect.json_text(parse::text("--payload", &payload)?).map_err(invalid)?;
    }
    if !args.headers.is_empty() {
        let headers: Map<String, Value> =
            args.headers.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        effect = effect.headers(&headers).map_err(invalid)?;
    }
    if let Some(target) = args.target {
        effect = effect.target(target);
    }
    if let Some(due_at) = args.due_at {
        effect = effect.due_at(due_at);
    }
    if let Some(expires_at) = args.expires_at {
        effect = effect.expires_at(expires_at);
    }
    if let Some(metadata) = args.metadata {
        let object: Map<String, Value> = serde_json::from_str(&metadata)
            .map_err(|problem| fail(Exit::Usage, format!("--metadata is no JSON object: {problem}")))?;
        effect = effect.metadata(&object).map_err(invalid)?;
    }
    Ok(effect)
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

/// `several`: it is told whose effect this is.
async fn show(
    context: &Context,
    store: &dyn Database,
    written: &Enqueued,
    several: bool,
) -> anyhow::Result<()> {
    let receipt = written.receipt();
    let id = receipt.id;
    let (inserted, remark) = match written {
        Enqueued::Inserted(_) => (true, String::new()),
        Enqueued::Pending(_) => (false, format!("Effect {id} exists already and is {}.", receipt.state)),
        Enqueued::Ended(_) => {
            (false, format!("Effect {id} exists already and has ended: {}.", receipt.state))
        }
    };
    if !remark.is_empty() {
        talk!("{remark}");
    }
    let Some(effect) = store.effect(id).await? else {
        return Err(fail(Exit::Failure, format!("effect {id} was written and cannot be found")));
    };
    let target =
        if several { store.intent(id, Look::Size).await?.and_then(|sent| sent.target) } else { None };
    if context.json() {
        let mut view = EffectJson::from(&effect);
        view.inserted = Some(inserted);
        view.target = target;
        return json::print(&view);
    }
    data(line(&effect, target.as_deref(), store.now().await?))?;
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
        build(Line::try_parse_from([&["enqueue"], words].concat())?.args)
    }

    #[test]
    fn a_wrong_value_is_a_usage_error_that_names_it() {
        for (words, named) in [
            (&["p", "--key", " x"][..], "idempotency_key"),
            (&["p", "--payload", "{"][..], "payload"),
            (&["p", "--metadata", "[]"][..], "--metadata"),
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
