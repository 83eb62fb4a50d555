//! A person's verb for many effects: which ones is frozen first, then each is acted on with the state and token that were
//! seen, in a transaction of its own. What changed meanwhile is counted as stale and left alone.

mod frozen;
mod server;
mod tally;
mod work;

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    state::State,
    verb::{Actor, Verb},
};
use clap::Args;
use serde_json::json;

use self::tally::Tally;

use crate::cli::{
    Context, Exit, data, fail, json,
    output::{ask, can_ask, plural},
    parse, talk,
};

/// Which effects, where they are not given by number.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Many {
    /// Every effect that --state, --downstream and --older-than choose
    #[arg(long, conflicts_with = "ids", requires = "state")]
    pub(super) all: bool,
    /// With --all: those in this state
    #[arg(long, requires = "all", value_parser = parse::state)]
    state: Option<State>,
    /// With --all: only this downstream's
    #[arg(long, requires = "all", value_name = "NAME")]
    downstream: Option<String>,
    /// With --all: only this operation
    #[arg(long, requires = "all", value_name = "NAME")]
    operation: Option<String>,
    /// With --all: only those whose metadata contains this: order=A-17, or a JSON object
    #[arg(long, requires = "all", value_name = "NAME=VALUE|JSON", value_parser = parse::metadata)]
    metadata: Option<String>,
    /// With --all: only those in whose last error this stands
    #[arg(long, requires = "all", value_name = "TEXT")]
    error: Option<String>,
    /// With --all: only those written longer ago than this, such as 30m, 2h, 7d
    #[arg(long, requires = "all", value_name = "AGE", value_parser = parse::duration)]
    older_than: Option<Duration>,
    /// With --all: at most this many, the oldest first
    #[arg(long, requires = "all", value_name = "N", value_parser = parse::limit)]
    limit: Option<u32>,
    /// With --all: only say what would be done
    #[arg(long, requires = "all")]
    dry_run: bool,
    /// With --all, for a resend where nobody can be asked: the number of effects that --dry-run told
    #[arg(long, requires = "all", value_name = "N")]
    confirm: Option<usize>,
}

/// Carries `verb` out for all of them.
pub(super) async fn run(
    context: &Context,
    verb: &Verb,
    many: &Many,
    actor: Actor,
    yes: Asked,
) -> anyhow::Result<Exit> {
    let state = many.state.ok_or_else(|| fail(Exit::Usage, "--all needs --state"))?;
    takes(verb, state)?;
    if many.confirm.is_some() && !is_risky(verb) {
        return Err(fail(
            Exit::Usage,
            "--confirm goes with `effects resend --all` and `reissue --all`; here it is --yes",
        ));
    }
    let people = context.people().await?;
    if let Some(name) = &many.downstream {
        super::list::known_downstream(people.as_ref(), name).await?;
    }
    if let Some(remote) = context.remote()? {
        return server::run(context, &remote, (verb, state, many), (&actor, yes)).await;
    }
    let store = context.open_quietly().await?;
    let frozen = frozen::collect(store.as_ref(), state, many).await?;
    let list = List::of(many, frozen.len(), (&frozen.by_downstream, frozen.left_out));
    if many.dry_run {
        return would(context, verb, state, &list);
    }
    if frozen.is_empty() {
        return nothing(context, verb, state);
    }
    confirm(verb, (list.n, &list.told(verb, state)), many.confirm, yes)?;
    let (left_out, cut_off) = (list.left_out, list.cut_off);
    let actor = super::act::confirmed(verb, actor)?;
    let acted = work::act(store, verb, actor, frozen.effects).await?;
    let tally = Tally { left_out, cut_off, ..acted };
    tally.tell(context, verb)?;
    Ok(tally.exit())
}

/// What would be acted on.
struct List<'a> {
    /// How many effects.
    n: usize,
    /// Of each downstream.
    by_downstream: &'a BTreeMap<String, u64>,
    /// How many match besides.
    left_out: u64,
    /// Nobody asked for so few.
    cut_off: bool,
}

impl<'a> List<'a> {
    fn of(many: &Many, n: usize, (by_downstream, left_out): (&'a BTreeMap<String, u64>, u64)) -> Self {
        let limit = many.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self { n, by_downstream, left_out, cut_off: left_out > 0 && limit.is_none_or(|limit| n < limit) }
    }

    /// What it means for them, in words, and that it is not all.
    fn told(&self, verb: &Verb, state: State) -> String {
        let consequence = consequence(verb, state, self.n);
        match self.left_out {
            0 => consequence,
            more => format!("{consequence} {}", left_out(more)),
        }
    }
}

/// That not all that match are taken.
fn left_out(more: u64) -> String {
    let effects = usize::try_from(more).unwrap_or(usize::MAX);
    format!("{} more match and are left out: only the oldest are taken at once.", grouped(effects))
}

/// Whether `--yes` was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Ask.
    Ask,
    /// It was confirmed on the command line.
    Confirmed,
}

impl Asked {
    /// From the flag.
    pub(super) const fn flag(yes: bool) -> Self {
        if yes { Self::Confirmed } else { Self::Ask }
    }
}

/// Refuses a state that the verb takes of no effect: a slip of the finger, before anything is read.
fn takes(verb: &Verb, state: State) -> anyhow::Result<()> {
    let states: &[State] = match verb {
        Verb::Retry => &[State::Failed, State::Scheduled, State::Retrying],
        Verb::Resend | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied => &[State::InDoubt],
        Verb::Reissue { resolve: Some(_) } => &[State::InDoubt],
        Verb::Redact | Verb::Reissue { resolve: None } => {
            &[State::Succeeded, State::Failed, State::Cancelled, State::Expired]
        }
        Verb::Cancel => &[State::Waiting, State::Scheduled, State::Ready, State::Retrying, State::InFlight],
    };
    if states.contains(&state) {
        return Ok(());
    }
    let words: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    Err(fail(Exit::Usage, format!("{} takes {}, not {state}", verb.as_str(), words.join(", "))))
}

/// What it means for so many effects, in words.
fn consequence(verb: &Verb, state: State, n: usize) -> String {
    let effects = format!("{} {}", grouped(n), if n == 1 { "effect" } else { "effects" });
    let word = state.as_str().replace('_', " ");
    match (verb, state) {
        (Verb::Retry, State::Failed) => {
            format!("{effects}, now failed, will be attempted again from the start, each with its own key.")
        }
        (Verb::Retry, _) => format!("{effects}, now {word}, will be due now."),
        (Verb::Resend, _) => format!(
            "{effects} may have been applied already. A resend sends each request once more, now; unless its downstream \
             still recognises the key, it may be applied a second time."
        ),
        (Verb::Reissue { .. }, _) => format!(
            "{effects}, now {word}, get a new effect with a new key in their place, due now. Their downstreams take those for other \
             requests: what was applied is applied a second time."
        ),
        (Verb::Redact, _) => {
            format!(
                "{effects}: what was sent and what was answered will be dropped; keys and outcomes are kept."
            )
        }
        (Verb::Cancel, State::InFlight) => {
            format!("{effects}, in flight, will not be attempted again after this attempt.")
        }
        (Verb::Cancel, _) => format!("{effects}, now {word}, will be called off and never sent."),
        (Verb::ResolveApplied { .. }, _) => {
            format!(
                "{effects} in doubt will be said to have been applied: they succeed, and nothing is sent."
            )
        }
        (Verb::ResolveNotApplied, _) => format!(
            "{effects} in doubt will be said not to have been applied: they fail, and nothing is sent until somebody retries them."
        ),
    }
}

/// Whether it may apply effects a second time.
const fn is_risky(verb: &Verb) -> bool {
    matches!(verb, Verb::Resend | Verb::Reissue { .. })
}

/// Asks, with the number and the consequence. What may apply them a second time wants the number typed.
fn confirm(verb: &Verb, (n, told): (usize, &str), typed: Option<usize>, yes: Asked) -> anyhow::Result<()> {
    let unasked = |flag: &str| {
        fail(Exit::Usage, format!("this is confirmed on a terminal: add {flag} to confirm it here"))
    };
    let differs = || fail(Exit::Failure, "nothing was done: the answer differs");
    talk!("{told}");
    if is_risky(verb) {
        return match typed {
            Some(typed) if typed == n => Ok(()),
            Some(typed) => Err(fail(
                Exit::Failure,
                format!("nothing was done: --confirm says {typed}, and there are {n} now"),
            )),
            None if !can_ask() => Err(unasked("--confirm N, with the number that --dry-run tells,")),
            None if ask(&format!("Type {n} to go on:"))? == n.to_string() => Ok(()),
            None => Err(differs()),
        };
    }
    match yes {
        Asked::Confirmed => Ok(()),
        Asked::Ask if !can_ask() => Err(unasked("--yes")),
        Asked::Ask if matches!(ask("Go on? [y/N]")?.as_str(), "y" | "Y" | "yes") => Ok(()),
        Asked::Ask => Err(differs()),
    }
}

/// There is nothing to be done.
fn nothing(context: &Context, verb: &Verb, state: State) -> anyhow::Result<Exit> {
    if context.json() {
        json::print(&json!({ "verb": verb.as_str(), "effects": 0, "done": 0 }))?;
    } else {
        talk!("No effects are {}: nothing was done.", state.as_str().replace('_', " "));
    }
    Ok(Exit::Ok)
}

/// `--dry-run`.
fn would(context: &Context, verb: &Verb, state: State, list: &List<'_>) -> anyhow::Result<Exit> {
    if context.json() {
        json::print(&json!({
            "dry_run": true,
            "verb": verb.as_str(),
            "state": state,
            "effects": list.n,
            "by_downstream": list.by_downstream,
            "left_out": list.left_out,
        }))?;
        return Ok(Exit::Ok);
    }
    data(list.told(verb, state))?;
    for (name, n) in list.by_downstream {
        data(format!("  {}: {}", aftercommit::visible::clean(name), plural(*n, "effect")))?;
    }
    talk!("Nothing was done: this was a dry run.");
    Ok(Exit::Ok)
}

/// A number with its thousands apart.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_names_the_number_and_the_consequence() {
        let text = consequence(&Verb::Retry, State::Failed, 1_204);
        assert!(
            text.starts_with("1,204 effects") && text.contains("attempted again from the start"),
            "{text}"
        );
        assert!(consequence(&Verb::Resend, State::InDoubt, 1).contains("1 effect may have been applied"));
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!((grouped(0), grouped(999)), ("0".to_owned(), "999".to_owned()));
    }

    #[test]
    fn what_is_left_out_is_told_and_is_cut_off_unless_it_was_asked_for() {
        let by_downstream = BTreeMap::new();
        let list = |limit, n, left_out| {
            let many = Many { limit, ..Many::default() };
            let list = List::of(&many, n, (&by_downstream, left_out));
            (list.cut_off, list.told(&Verb::Retry, State::Failed))
        };
        let (cut_off, told) = list(None, 100_000, 4_204);
        assert!(cut_off && told.contains("4,204 more match and are left out"), "{told}");
        let (cut_off, told) = list(Some(10), 10, 90);
        assert!(!cut_off && told.contains("90 more match"), "{told}");
        assert!(list(Some(200_000), 100_000, 1).0, "the dashboard takes fewer than were asked for");
        assert!(!list(None, 3, 0).1.contains("left out"));
    }

    #[test]
    fn a_state_that_the_verb_never_takes_is_a_mistake() {
        assert!(takes(&Verb::Retry, State::Failed).is_ok() && takes(&Verb::Cancel, State::InFlight).is_ok());
        let problem = takes(&Verb::Retry, State::InDoubt).unwrap_err();
        assert!(problem.to_string().contains("failed, scheduled, retrying, not in_doubt"), "{problem}");
        assert!(takes(&Verb::Resend, State::Failed).is_err());
    }

    #[test]
    fn a_resend_wants_the_number_whatever_else_was_confirmed() {
        let confirmed = |typed| confirm(&Verb::Resend, (3, "3 effects"), typed, Asked::Confirmed);
        assert!(confirmed(Some(3)).is_ok());
        assert!(confirmed(Some(2)).unwrap_err().to_string().contains("there are 3 now"));
        assert!(confirm(&Verb::Retry, (3, "3 effects"), None, Asked::Confirmed).is_ok());
    }
}
