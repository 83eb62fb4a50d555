//! A person's verbs. Each carries the state and token it was decided on, so that nobody acts on what they did not see.

use std::time::Duration;

use aftercommit::{
    clock::{Timestamp, words::utc},
    decision::Resend,
    follow::is_of_a_used_key,
    state::State,
    store::{Acted, Status},
    verb::{Actor, Change, Refusal, Resolved, Seen, Verb},
    visible::clean,
};
use serde_json::value::RawValue;

use super::{
    args::{CancelArgs, Chosen, Found, RedactArgs, ReissueArgs, ResendArgs, ResolveArgs, RetryArgs, Target},
    bulk::{self, Asked},
    named::absent,
    several::Tally,
};
use crate::cli::{
    Context, Exit, data,
    exit::fail,
    json::{self, EffectJson},
    output::{ask, can_ask},
    parse,
    people::{People, Wish},
    talk,
};

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
    let target = Target { chosen: args.chosen.clone(), reason: Some(args.reason.clone()) };
    let response = args.response.as_deref().map(|given| parse::text("--response", given)).transpose()?;
    if let Some(response) = &response {
        if args.verdict == Found::NotApplied || target.chosen.many.all || target.chosen.ids().len() > 1 {
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
    let chosen = Chosen { ids: args.ids.clone(), ..Chosen::default() };
    let target = Target { chosen, reason: Some(args.reason.clone()) };
    act(context, &target, &Verb::Redact).await
}

/// `effects resend`: says what it will do to the outside world, and asks.
pub(super) async fn resend(context: &Context, args: &ResendArgs) -> anyhow::Result<Exit> {
    act(context, &args.target, &Verb::Resend).await
}

/// `effects reissue`: the same.
pub(super) async fn reissue(context: &Context, args: &ReissueArgs) -> anyhow::Result<Exit> {
    let resolve = args.verdict.map(|found| match found {
        Found::Applied => Resolved::Applied,
        Found::NotApplied => Resolved::NotApplied,
    });
    let target = Target { chosen: args.chosen.clone(), reason: Some(args.reason.clone()) };
    act(context, &target, &Verb::Reissue { resolve }).await
}

async fn act(context: &Context, target: &Target, verb: &Verb) -> anyhow::Result<Exit> {
    reason_or_fail(verb, target)?;
    if target.chosen.many.all {
        let actor = actor(target.reason.clone());
        return bulk::run(context, verb, &target.chosen.many, actor, Asked::flag(target.chosen.yes)).await;
    }
    let people = context.people().await?;
    let mut done = Tally::default();
    for id in target.chosen.ids() {
        let result = match people.effect(id).await? {
            Some(effect) => confirmed_one(context, people.as_ref(), effect, verb, target).await,
            None => Err(absent(id)),
        };
        done.count(id, result)?;
    }
    done.exit()
}

/// What may be applied twice is told, and asked about, before it is done; a resend that may be wants a reason besides.
async fn confirmed_one(
    context: &Context,
    people: &dyn People,
    effect: Status,
    verb: &Verb,
    target: &Target,
) -> anyhow::Result<()> {
    let words = match outside(people, verb, &effect).await? {
        None => None,
        Some(sentence) => {
            let word = if *verb == Verb::Resend { "resend" } else { "reissue" };
            if !has_reason(target) {
                return Err(reasonless(word));
            }
            if !target.chosen.yes && !can_ask() {
                return Err(fail(
                    Exit::Usage,
                    format!(
                        "a {word} may apply the effect twice and is confirmed on a terminal: add --yes to confirm it here"
                    ),
                ));
            }
            talk!("{sentence}");
            let words = format!("{word} {}", effect.id);
            if !target.chosen.yes && ask(&format!("Type `{words}` to go on:"))? != words {
                return Err(fail(Exit::Failure, format!("it was not {}: the words differ", past(word))));
            }
            Some(words)
        }
    };
    one(context, people, effect, verb, (target, words.as_deref())).await
}

fn past(word: &str) -> &'static str {
    if word == "resend" { "resent" } else { "reissued" }
}

/// What a verb may do to the outside world a second time; nothing where it does not, or will be refused.
async fn outside(people: &dyn People, verb: &Verb, effect: &Status) -> anyhow::Result<Option<String>> {
    let resends = *verb == Verb::Resend && effect.state == State::InDoubt;
    if resends && !people.may_apply_twice(effect).await? {
        return Ok(None);
    }
    Ok(twice(verb, effect))
}

/// The same, of a resend that may be applied twice.
fn twice(verb: &Verb, effect: &Status) -> Option<String> {
    let (id, name) = (effect.id, clean(&effect.downstream));
    match (verb, effect.state) {
        (Verb::Resend, State::InDoubt) if is_of_a_used_key(effect) => Some(format!(
            "{name} knew the key {} of effect {id} before it was ever sent. A resend would get the same answer or, once the key is \
             forgotten there, act a second time: better reissue it, with a new key.",
            clean(&effect.idempotency_key)
        )),
        (Verb::Resend, State::InDoubt) => Some(format!(
            "Effect {id} may have been applied at {name} already. A resend sends the same request with the same key {} \
             once more, as soon as {name} can be called, however late that is: it may be applied a second time.",
            clean(&effect.idempotency_key)
        )),
        (Verb::Reissue { resolve: Some(Resolved::Applied) }, State::InDoubt) => Some(format!(
            "Effect {id} was applied at {name}, as you say. A reissue sends the same request under a new key, which {name} takes for \
             another request: it is applied a second time."
        )),
        (Verb::Reissue { .. }, State::InDoubt) => Some(format!(
            "Effect {id} may have been applied at {name} already. A reissue sends the same request under a new key, which {name} takes \
             for another request: if the first one was applied, it is applied a second time."
        )),
        (Verb::Reissue { .. }, State::Succeeded) => Some(format!(
            "Effect {id} was applied at {name}. A reissue sends the same request under a new key: it is applied a second time."
        )),
        (Verb::Reissue { .. }, State::Failed | State::Cancelled | State::Expired) => Some(format!(
            "Effect {id} was not applied. A reissue sends the same request under a new key, which {name} takes for another request."
        )),
        (
            Verb::Retry
            | Verb::Resend
            | Verb::Cancel
            | Verb::ResolveApplied { .. }
            | Verb::ResolveNotApplied
            | Verb::Redact
            | Verb::Reissue { .. },
            _,
        ) => None,
    }
}

fn reason_or_fail(verb: &Verb, target: &Target) -> anyhow::Result<()> {
    if verb.needs_reason() && !has_reason(target) {
        return Err(reasonless(verb.as_str().split(' ').next().unwrap_or_default()));
    }
    Ok(())
}

fn has_reason(target: &Target) -> bool {
    target.reason.as_deref().is_some_and(|reason| !reason.trim().is_empty())
}

fn reasonless(word: &str) -> anyhow::Error {
    fail(Exit::Usage, format!("{word} needs a reason for the audit: add --reason TEXT"))
}

/// Who acts on many, now that they confirmed how many: what may be applied twice wants a reason besides.
pub(super) fn confirmed(verb: &Verb, actor: Actor) -> anyhow::Result<Actor> {
    let given = actor.reason.as_deref().is_some_and(|reason| !reason.trim().is_empty());
    if *verb == Verb::Resend && !given {
        return Err(reasonless("resend"));
    }
    Ok(Actor { confirmed: true, ..actor })
}

/// How often a fleeting clash with a worker is tried again before a person is told.
const STALE_RETRIES: u32 = 5;

async fn one(
    context: &Context,
    people: &dyn People,
    mut effect: Status,
    verb: &Verb,
    (target, confirmation): (&Target, Option<&str>),
) -> anyhow::Result<()> {
    let actor = Actor { confirmed: confirmation.is_some(), ..actor(target.reason.clone()) };
    for tried in 0.. {
        let seen = Seen { state: effect.state, token: effect.token };
        let wish = Wish { verb, actor: &actor, seen, confirmation };
        match people.act(effect.id, &wish).await? {
            Acted::Done(change, now) => return told(context, &change, &now),
            Acted::NotFound => return Err(absent(effect.id)),
            // Nobody decided on the state of a moment ago: a cancel that raced with a claim is the same wish.
            Acted::Refused(Refusal::Stale { .. }) if *verb == Verb::Cancel && tried < STALE_RETRIES => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                effect = people.effect(effect.id).await?.ok_or_else(|| absent(effect.id))?;
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
    if let Refusal::NeedsReason { .. } = refusal {
        return format!("{refusal}: add --reason TEXT");
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
        Change::OneResend { resend, .. } => resent(*resend, now),
        Change::RequestCancel => {
            "in flight: no further attempt after this one; its outcome decides".to_owned()
        }
        Change::End(state) => format!("{state} now"),
        Change::Park(why) => format!("in doubt: {why}"),
        Change::Redact => "redacted; its key and its outcome are kept".to_owned(),
        Change::Probe(at, why) => format!("in doubt, to be probed at {at}: {why}"),
        Change::Reissue(_) => match now.superseded_by {
            Some(by) => format!("{} and superseded by effect {by}, which is due now", now.state),
            None => format!("{} and superseded", now.state),
        },
    };
    data(format!("Effect {} is {what}.", now.id))?;
    Ok(())
}

fn resent(resend: Resend, now: &Status) -> String {
    let until = now.safe_until.filter(|until| resend == Resend::Unconfirmed && *until != Timestamp::MAX);
    let until = until.map(|until| format!(", if that is before {}; else it is in doubt again", utc(until)));
    format!("sent once more by the next free worker{}", until.unwrap_or_default())
}

/// Who acts here, and why.
pub(crate) fn actor(reason: Option<String>) -> Actor {
    Actor { who: who(), reason, from: Some("command line".to_owned()), ..Actor::default() }
}

/// Who acts: the login name, for the audit.
pub(crate) fn who() -> String {
    ["AFTERCOMMIT_OPERATOR", "SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}
