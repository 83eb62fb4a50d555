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

use super::{follow::STORED, show::absent};
use crate::cli::{
    Context, Exit,
    clean::{clean, clean_lines},
    data,
    exit::{exit_of, fail, sentence},
    json::{self, EffectJson},
    output::{ask, can_ask},
    parse, talk,
    times::utc,
};

/// Which effects, and why.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The effects' numbers
    #[arg(required = true, value_name = "ID", value_parser = parse::effect_id)]
    ids: Vec<EffectId>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
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
  aftercommit effects retry 17 18 --reason 'the API key is valid again'")]
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
  aftercommit effects resend 17 --reason 'a second mail does no harm' --yes")]
pub(crate) struct ResendArgs {
    #[command(flatten)]
    target: Target,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes with several IDs: 0 all done, 5 some done; none done: 3 when none of
them exists, else 4 (the state forbids it).

Examples:
  aftercommit effects cancel 17
  aftercommit effects cancel 17 --reason 'the order was withdrawn'")]
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
  aftercommit effects resolve 17 --as not-applied --reason 'no such charge'")]
pub(crate) struct ResolveArgs {
    /// The effects' numbers
    #[arg(required = true, value_name = "ID", value_parser = parse::effect_id)]
    ids: Vec<EffectId>,
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
    let target = Target { ids: args.ids.clone(), reason: Some(args.reason.clone()) };
    let response = args.response.as_deref().map(|given| parse::text("--response", given)).transpose()?;
    if let Some(response) = &response {
        if args.verdict == Found::NotApplied || target.ids().len() > 1 {
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

/// `effects resend`: says what it will do to the outside world, and asks.
pub(super) async fn resend(context: &Context, args: &ResendArgs) -> anyhow::Result<Exit> {
    reason_or_fail(&Verb::Resend, &args.target)?;
    let store = context.open().await?;
    let mut done = Tally::default();
    for id in args.target.ids() {
        let one = async {
            let effect = store.effect(id).await?.ok_or_else(|| absent(id))?;
            // It will be refused: nothing need be confirmed for that.
            if effect.state != State::InDoubt {
                return one(context, store.as_ref(), effect, &Verb::Resend, &args.target).await;
            }
            if !args.yes && !can_ask() {
                return Err(fail(
                    Exit::Usage,
                    "a resend may apply the effect twice and is confirmed on a terminal: add --yes to confirm it here",
                ));
            }
            talk!("{}", outside(&effect));
            if !args.yes && ask(&format!("Type `resend {id}` to go on:"))? != format!("resend {id}") {
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
    let actor = Actor { who: who(), reason: target.reason.clone() };
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
        Change::Probe(at, why) => format!("in doubt, to be probed at {at}: {why}"),
    };
    data(format!("Effect {} is {what}.", now.id))?;
    Ok(())
}

/// Who acts: the login name, for the audit.
fn who() -> String {
    ["AFTERCOMMIT_OPERATOR", "SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// What became of several effects.
#[derive(Default)]
struct Tally {
    done: usize,
    problems: Vec<anyhow::Error>,
}

impl Tally {
    /// Counts one; a database that does not answer ends everything.
    fn count(&mut self, id: EffectId, result: anyhow::Result<()>) -> anyhow::Result<()> {
        match result {
            Ok(()) => self.done += 1,
            Err(problem) => match exit_of(&problem) {
                Exit::NotFound | Exit::Forbidden => self.problems.push(problem),
                Exit::Ok | Exit::Failure | Exit::Usage | Exit::Partly | Exit::Unreachable => {
                    return Err(problem.context(format!("effect {id}")));
                }
            },
        }
        Ok(())
    }

    fn exit(mut self) -> anyhow::Result<Exit> {
        match self.problems.len() {
            0 => Ok(Exit::Ok),
            1 if self.done == 0 => Err(self.problems.remove(0)),
            failed => {
                for problem in &self.problems {
                    talk!("aftercommit: {}", clean_lines(&sentence(problem)));
                }
                talk!("{} of {} done.", self.done, self.done + failed);
                if self.done > 0 {
                    return Ok(Exit::Partly);
                }
                let all_absent = self.problems.iter().all(|problem| exit_of(problem) == Exit::NotFound);
                Ok(if all_absent { Exit::NotFound } else { Exit::Forbidden })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_that_is_named_twice_is_handled_once() {
        let id = EffectId::new;
        let target = Target { ids: vec![id(7), id(3), id(7)], reason: None };
        assert_eq!(target.ids(), [id(7), id(3)]);
    }

    fn tally(results: Vec<anyhow::Result<()>>) -> anyhow::Result<Exit> {
        let mut tally = Tally::default();
        for (id, result) in results.into_iter().enumerate() {
            tally.count(EffectId::new(i64::try_from(id).unwrap()), result)?;
        }
        tally.exit()
    }

    #[test]
    fn several_effects_end_in_one_exit_code() {
        let refused = || Err(fail(Exit::Forbidden, "no"));
        assert_eq!(tally(vec![Ok(()), Ok(())]).unwrap(), Exit::Ok);
        assert_eq!(tally(vec![Ok(()), refused()]).unwrap(), Exit::Partly);
        assert_eq!(tally(vec![refused(), refused()]).unwrap(), Exit::Forbidden);
        let absent = || Err(fail(Exit::NotFound, "gone"));
        assert_eq!(tally(vec![absent(), absent()]).unwrap(), Exit::NotFound);
        assert_eq!(tally(vec![absent(), refused()]).unwrap(), Exit::Forbidden);
        assert_eq!(exit_of(&tally(vec![refused()]).unwrap_err()), Exit::Forbidden);
        assert_eq!(
            exit_of(&tally(vec![Err(fail(Exit::Unreachable, "gone"))]).unwrap_err()),
            Exit::Unreachable
        );
    }
}
