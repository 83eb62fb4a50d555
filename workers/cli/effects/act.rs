//! A person's verbs. Each carries the state and token it was decided on, so that nobody acts on what they did not see.

use std::time::Duration;

use aftercommit::{
    effect::EffectId,
    state::State,
    store::{Acted, Database, Status},
    verb::{Actor, Change, Refusal, Seen, Verb},
};
use clap::{Args, ValueEnum};
use serde_json::value::RawValue;

use super::{
    bulk::{self, Asked, Many},
    follow::{self, STORED},
    several::Tally,
    show::absent,
};
use crate::cli::{
    Context, Exit,
    clean::clean,
    data,
    exit::fail,
    json::{self, EffectJson},
    output::{ask, can_ask},
    parse, talk,
    times::utc,
};

/// Which effects, and why.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The effects' numbers
    #[arg(required_unless_present = "all", value_name = "ID", value_parser = parse::effect_id)]
    ids: Vec<EffectId>,
    #[command(flatten)]
    many: Many,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Target {
    /// The effects, each once, in the order given.
    fn ids(&self) -> Vec<EffectId> {
        let mut ids: Vec<EffectId> = Vec::with_capacity(self.ids.len());
        for &id in &self.ids {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects retry 17
  aftercommit effects retry 17 18 --reason 'the API key is valid again'
  aftercommit effects retry --all --state failed --downstream mail --dry-run")]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It may be applied twice: the downstream promises nothing about a request that
it has seen before. Where you can, look there first, and use `effects resolve`.

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects resend 17 --reason 'asked the bank, they saw nothing'
  aftercommit effects resend 17 --reason 'a second mail does no harm' --yes
  aftercommit effects resend --all --state in_doubt --downstream mail")]
pub(crate) struct ResendArgs {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects cancel 17
  aftercommit effects cancel 17 --reason 'the order was withdrawn'
  aftercommit effects cancel --all --state retrying --older-than 2d --yes")]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
applied      it becomes succeeded; --response stores what the downstream said
not-applied  it becomes failed; nothing is sent until `effects retry`

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects resolve 17 --as applied --reason 'charge ch_19 is there'
  aftercommit effects resolve 17 --as applied --reason 'it is there' \\
      --response '{\"id\":\"ch_19\"}'
  aftercommit effects resolve 17 --as not-applied --reason 'no such charge'
  aftercommit effects resolve --all --state in_doubt --downstream mail \\
      --as not-applied --reason 'the relay shows none of them'")]
pub(crate) struct ResolveArgs {
    /// The effects' numbers
    #[arg(required_unless_present = "all", value_name = "ID", value_parser = parse::effect_id)]
    ids: Vec<EffectId>,
    #[command(flatten)]
    many: Many,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Why, for the audit: how you found out
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// What you found out
    #[arg(long = "as", value_enum)]
    verdict: Found,
    /// What the downstream said, as JSON, @FILE or - (with --as applied)
    #[arg(long, value_name = "JSON")]
    response: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Payload, body, headers and response go, and what the log quotes of the answer.
Key, state, times and metadata stay: the same request under the key is still
answered as this effect, another one refused. It cannot be sent again.

Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Example:
  aftercommit effects redact 17 --reason 'erasure request 2026-118'")]
pub(crate) struct RedactArgs {
    /// The effects' numbers
    #[arg(required = true, value_name = "ID", value_parser = parse::effect_id)]
    ids: Vec<EffectId>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// What a person found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Found {
    Applied,
    NotApplied,
}

/// `effects retry`.
pub(super) async fn retry(context: &Context, args: &RetryArgs) -> anyhow::Result<Exit> {
    act(context, &args.target, &Verb::Retry).await
}

/// `effects cancel`.
pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> anyhow::Result<Exit> {
    act(context, &args.target, &Verb::Cancel).await
}

/// `effects resolve`.
pub(super) async fn resolve(context: &Context, args: &ResolveArgs) -> anyhow::Result<Exit> {
    let target = Target {
        ids: args.ids.clone(),
        many: args.many.clone(),
        reason: Some(args.reason.clone()),
        yes: args.yes,
    };
    let response = args.response.as_deref().map(|given| parse::text("--response", given)).transpose()?;
    if let Some(response) = &response {
        if args.verdict == Found::NotApplied || target.many.all || target.ids().len() > 1 {
            return Err(fail(Exit::Usage, "--response goes with one effect and --as applied"));
        }
        serde_json::from_str::<&RawValue>(response)
            .map_err(|problem| fail(Exit::Usage, format!("--response is not JSON: {problem}")))?;
    }
    let verb = match args.verdict {
        Found::Applied => Verb::ResolveApplied { response },
        Found::NotApplied => Verb::ResolveNotApplied,
    };
    act(context, &target, &verb).await
}

/// `effects redact`.
pub(super) async fn redact(context: &Context, args: &RedactArgs) -> anyhow::Result<Exit> {
    let (ids, reason) = (args.ids.clone(), Some(args.reason.clone()));
    let target = Target { ids, many: Many::default(), reason, yes: false };
    act(context, &target, &Verb::Redact).await
}

/// `effects resend`: says what it will do to the outside world, and asks.
pub(super) async fn resend(context: &Context, args: &ResendArgs) -> anyhow::Result<Exit> {
    reason_or_fail(&Verb::Resend, &args.target)?;
    if args.target.many.all {
        return all(context, &Verb::Resend, &args.target).await;
    }
    let store = context.open().await?;
    let mut done = Tally::default();
    for id in args.target.ids() {
        let one = async {
            let effect = store.effect(id).await?.ok_or_else(|| absent(id))?;
            // It will be refused: nothing need be confirmed for that.
            if effect.state != State::InDoubt {
                return one(context, store.as_ref(), effect, &Verb::Resend, &args.target).await;
            }
            if !args.target.yes && !can_ask() {
                return Err(fail(
                    Exit::Usage,
                    "a resend may apply the effect twice and is confirmed on a terminal: add --yes to confirm it here",
                ));
            }
            talk!("{}", outside(&effect));
            if !args.target.yes && ask(&format!("Type `resend {id}` to go on:"))? != format!("resend {id}") {
                return Err(fail(Exit::Failure, "it was not resent: the words differ"));
            }
            one(context, store.as_ref(), effect, &Verb::Resend, &args.target).await
        };
        done.count(id, one.await)?;
    }
    done.exit()
}

/// What a resend does to the outside world.
fn outside(effect: &Status) -> String {
    if follow::is_of_a_used_key(effect) {
        return format!(
            "{} knew the key {} of effect {} before it was ever sent. A resend would get the same answer or, once the key is \
             forgotten there, act a second time: better resolve it, and write a new effect with a new key.",
            clean(&effect.downstream),
            clean(&effect.idempotency_key),
            effect.id
        );
    }
    format!(
        "Effect {} may have been applied at {} already. A resend sends the same request with the same key {} \
         once more, now; unless {} still recognises the key, it may be applied a second time.",
        effect.id,
        clean(&effect.downstream),
        clean(&effect.idempotency_key),
        clean(&effect.downstream)
    )
}

async fn act(context: &Context, target: &Target, verb: &Verb) -> anyhow::Result<Exit> {
    reason_or_fail(verb, target)?;
    if target.many.all {
        return all(context, verb, target).await;
    }
    let store = context.open().await?;
    let mut done = Tally::default();
    for id in target.ids() {
        let result = match store.effect(id).await? {
            Some(effect) => one(context, store.as_ref(), effect, verb, target).await,
            None => Err(absent(id)),
        };
        done.count(id, result)?;
    }
    done.exit()
}

async fn all(context: &Context, verb: &Verb, target: &Target) -> anyhow::Result<Exit> {
    let actor = actor(target.reason.clone());
    bulk::run(context, verb, &target.many, actor, Asked::flag(target.yes)).await
}

fn reason_or_fail(verb: &Verb, target: &Target) -> anyhow::Result<()> {
    let given = target.reason.as_deref().is_some_and(|reason| !reason.trim().is_empty());
    if verb.needs_reason() && !given {
        let word = verb.as_str().split(' ').next().unwrap_or_default();
        return Err(fail(Exit::Usage, format!("{word} needs a reason for the audit: add --reason TEXT")));
    }
    Ok(())
}

/// How often a fleeting clash with a worker is tried again before a person is told.
const STALE_RETRIES: u32 = 5;

async fn one(
    context: &Context,
    store: &dyn Database,
    mut effect: Status,
    verb: &Verb,
    target: &Target,
) -> anyhow::Result<()> {
    let actor = actor(target.reason.clone());
    for tried in 0.. {
        let seen = Seen { state: effect.state, token: effect.token };
        match store.act(effect.id, verb, &actor, Some(seen)).await? {
            Acted::Done(change, now) => return told(context, &change, &now),
            Acted::NotFound => return Err(absent(effect.id)),
            // Nobody decided on the state of a moment ago: a cancel that raced with a claim is the same wish.
            Acted::Refused(Refusal::Stale { .. }) if *verb == Verb::Cancel && tried < STALE_RETRIES => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                effect = store.effect(effect.id).await?.ok_or_else(|| absent(effect.id))?;
            }
            Acted::Refused(refusal) => {
                return Err(fail(Exit::Forbidden, format!("effect {}: {}", effect.id, words(&refusal))));
            }
        }
    }
    Ok(())
}

/// Why nothing was changed, as a person on this command line needs it.
fn words(refusal: &Refusal) -> String {
    if let Refusal::StillTravelling { until } = refusal {
        return format!("the last request may still be travelling until {}; try again then", utc(*until));
    }
    if *refusal == Refusal::RefusalStored {
        return STORED.to_owned();
    }
    refusal.to_string()
}

/// Prints what was done.
fn told(context: &Context, change: &Change, now: &Status) -> anyhow::Result<()> {
    if context.json() {
        return json::print(&EffectJson::from(now));
    }
    let what = match change {
        Change::NewHistory => "back in the queue, with a new history".to_owned(),
        Change::DueNow => "due now".to_owned(),
        Change::OneResend => "sent once more by the next free worker".to_owned(),
        Change::RequestCancel => {
            "in flight: no further attempt after this one; its outcome decides".to_owned()
        }
        Change::End(state) => format!("{state} now"),
        Change::Park(why) => format!("in doubt: {why}"),
        Change::Reissue(_) => match now.superseded_by {
            Some(new) => format!("superseded by effect {new}, the same request with a new key"),
            None => "superseded".to_owned(),
        },
        Change::Redact => "redacted; its key and its outcome are kept".to_owned(),
        Change::Probe(at, why) => format!("in doubt, to be probed at {at}: {why}"),
    };
    data(format!("Effect {} is {what}.", now.id))?;
    Ok(())
}

/// Who acts here, and why.
pub(crate) fn actor(reason: Option<String>) -> Actor {
    Actor { who: who(), reason, from: Some("command line".to_owned()), bulk: None }
}

/// Who acts: the login name, for the audit.
fn who() -> String {
    ["AFTERCOMMIT_OPERATOR", "SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_that_is_named_twice_is_handled_once() {
        let id = EffectId::new;
        let ids = vec![id(7), id(3), id(7)];
        let target = Target { ids, many: Many::default(), reason: None, yes: false };
        assert_eq!(target.ids(), [id(7), id(3)]);
    }
}
