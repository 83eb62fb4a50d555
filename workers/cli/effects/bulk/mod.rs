//! A person's verb for many effects: which ones is frozen first, then each is acted on with the state and token that were
//! seen, in a transaction of its own. What changed meanwhile is counted as stale and left alone.

mod frozen;
mod server;
mod tally;
mod work;

use std::time::Duration;

use aftercommit::{
    state::State,
    verb::{Actor, Outlook, Verb},
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
    /// With --all: at most this many effects a second; left out, as fast as it goes, or as the dashboard is configured
    #[arg(long, requires = "all", value_name = "N", value_parser = parse::rate)]
    rate: Option<u32>,
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
    let frozen = frozen::collect(store.as_ref(), (verb, state), many).await?;
    let list = List::of(many, frozen.outlook);
    if many.dry_run {
        return would(context, verb, state, &list);
    }
    if list.n == 0 {
        return nothing(context, verb, state, &list);
    }
    confirm(verb, (list.n, &list.told(verb, state)), many.confirm, yes)?;
    let actor = super::act::confirmed(verb, actor)?;
    let tally = work::act(store, verb, actor, (frozen.effects, many.rate)).await?.with(&list);
    tally.tell(context, verb)?;
    Ok(tally.exit())
}

/// What would be acted on.
struct List {
    /// How many effects.
    n: usize,
    /// What is told of them, and of what matches besides.
    outlook: Outlook,
    /// Nobody asked for so few.
    cut_off: bool,
}

impl List {
    fn of(many: &Many, outlook: Outlook) -> Self {
        let limit = many.limit.map_or(u64::MAX, u64::from);
        let cut_off = outlook.left_out > 0 && outlook.effects < limit;
        Self { n: usize::try_from(outlook.effects).unwrap_or(usize::MAX), cut_off, outlook }
    }

    /// What it means for them, in words; what should be known of them; and what else matches.
    fn told(&self, verb: &Verb, state: State) -> String {
        let mut lines = Vec::new();
        if self.n > 0 {
            let consequence = consequence(verb, state, self.n);
            lines.push(match self.outlook.left_out {
                0 => consequence,
                more => format!("{consequence} {}", left_out(more)),
            });
        }
        lines.extend(self.outlook.notes(verb));
        if let Some((sentence, reasons)) = self.outlook.refused_in_words() {
            lines.push(sentence);
            lines.extend(reasons.iter().map(|reason| format!("  {reason}")));
        }
        lines.join("\n")
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

/// There is nothing to be done; where something matches and would be refused, that forbids it.
fn nothing(context: &Context, verb: &Verb, state: State, list: &List) -> anyhow::Result<Exit> {
    if list.outlook.all_refused() > 0 {
        let tally = Tally::default().with(list);
        tally.tell(context, verb)?;
        return Ok(tally.exit());
    }
    if context.json() {
        json::print(&json!({ "verb": verb.as_str(), "effects": 0, "done": 0 }))?;
    } else {
        talk!("No effects are {}: nothing was done.", state.as_str().replace('_', " "));
    }
    Ok(Exit::Ok)
}

/// `--dry-run`.
fn would(context: &Context, verb: &Verb, state: State, list: &List) -> anyhow::Result<Exit> {
    if context.json() {
        json::print(&json!({
            "dry_run": true,
            "verb": verb.as_str(),
            "state": state,
            "effects": list.n,
            "by_state": list.outlook.by_state,
            "by_downstream": list.outlook.by_downstream,
            "left_out": list.outlook.left_out,
            "refused": tally::refused(&list.outlook),
            "resolved_not_applied": list.outlook.resolved_not_applied,
            "sent_before": list.outlook.sent_before,
        }))?;
        return Ok(Exit::Ok);
    }
    if list.n == 0 && list.outlook.all_refused() == 0 {
        data(format!("No effects are {}.", state.as_str().replace('_', " ")))?;
    } else {
        data(list.told(verb, state))?;
    }
    if list.outlook.all_refused() > 0 && list.n > 0 {
        data("On the list:")?;
    }
    for (name, n) in &list.outlook.by_downstream {
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
    use aftercommit::verb::Refusal;

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
        let list = |limit, effects, left_out| {
            let many = Many { limit, ..Many::default() };
            let list = List::of(&many, Outlook { effects, left_out, ..Outlook::default() });
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
    fn what_would_be_refused_is_told_apart_and_counts_as_not_done() {
        let mut outlook = Outlook { effects: 2, resolved_not_applied: 1, ..Outlook::default() };
        outlook.refuse(&Refusal::Superseded);
        let list = List::of(&Many::default(), outlook.clone());
        let told = list.told(&Verb::Retry, State::Failed);
        assert!(told.starts_with("2 effects, now failed, will be attempted again"), "{told}");
        assert!(told.contains("1 of them was resolved by a person as not applied"), "{told}");
        assert!(told.ends_with("1 more matches and is left alone, since it would be refused:\n  1 effect: superseded by a new effect"), "{told}");
        let done = Tally { effects: 2, done: 2, ..Tally::default() }.with(&list);
        assert_eq!((done.effects, done.done, done.exit()), (3, 2, Exit::Partly));
        let none = List::of(&Many::default(), Outlook { effects: 0, ..outlook });
        assert_eq!(Tally::default().with(&none).exit(), Exit::Forbidden);
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
