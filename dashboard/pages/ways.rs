//! The ways out: every verb, with what it would do now, or greyed with the reason why not.

use aftercommit::{
    state::State,
    store::Status,
    verb::{Resolved, Verb},
};

use super::{
    effect::Known,
    frame::Frame,
    prose::{Prose, prose},
};
use crate::{
    actions::{self, Choice},
    routes::Right,
};

/// The ways out of doubt, in the order in which they are thought of.
const OUT_OF_DOUBT: [&str; 4] = ["It was applied", "It was not applied", "Resend", "Reissue"];

/// All of them, those that may be taken first.
pub(super) type Ways = Vec<Way>;

/// One.
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) href: String,
    pub(super) class: &'static str,
    /// What it does, or why it cannot be done.
    pub(super) says: Prose,
    pub(super) open: bool,
    /// The module's key for it.
    pub(super) key: &'static str,
}

/// The ways out of an effect.
pub(super) fn of(known: &Known, frame: &Frame) -> Ways {
    let expires_at = known.intent.as_ref().and_then(|intent| intent.expires_at);
    let choices = actions::choices(&known.effect, known.contract.as_ref(), expires_at, known.now);
    let mut ways: Ways = choices.iter().map(|choice| way(&known.effect, choice, frame)).collect();
    ways.sort_by_key(|way| (!way.open, place(way, known.effect.state)));
    ways
}

/// What is in doubt is looked at before anything is sent again.
fn place(way: &Way, state: State) -> usize {
    let order = OUT_OF_DOUBT.iter().position(|name| *name == way.name);
    if state == State::InDoubt { order.unwrap_or(OUT_OF_DOUBT.len()) } else { 0 }
}

/// Those that lead out of doubt.
pub(super) fn out_of_doubt(known: &Known, frame: &Frame) -> Ways {
    let mut ways: Ways =
        of(known, frame).into_iter().filter(|way| OUT_OF_DOUBT.contains(&way.name)).collect();
    ways.sort_by_key(|way| place(way, State::InDoubt));
    ways
}

fn way(effect: &Status, choice: &Choice, frame: &Frame) -> Way {
    let (name, path, key) = route(&choice.verb);
    let may = frame.visitor.may(Right::Operate);
    let (open, risky, says) = match &choice.outlook {
        Ok(_) if frame.visitor.read_only => (false, false, "This dashboard is read-only.".to_owned()),
        Ok(_) if !may => (false, false, "You may look, and an operator may do this.".to_owned()),
        Ok(consequence) => (true, consequence.risky, consequence.sentence.clone()),
        Err(refusal) => (false, false, sentence(&refusal.to_string())),
    };
    let main = matches!(choice.verb, Verb::Retry | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied);
    let class = match (risky, main) {
        (true, _) => "risk",
        (false, true) => "main",
        (false, false) => "",
    };
    Way { name, href: format!("effects/{}/{path}", effect.id), class, says: prose(&says), open, key }
}

/// A verb's button, its path below the effect, and its word.
pub(super) const fn route(verb: &Verb) -> (&'static str, &'static str, &'static str) {
    match verb {
        Verb::Retry => ("Retry", "retry", "retry"),
        Verb::Resend => ("Resend", "resend", "resend"),
        Verb::Cancel => ("Cancel", "cancel", "cancel"),
        Verb::ResolveApplied { .. } => ("It was applied", "resolve?as=applied", "resolve"),
        Verb::ResolveNotApplied => ("It was not applied", "resolve?as=not-applied", "resolve"),
        Verb::Redact => ("Redact", "redact", "redact"),
        Verb::Reissue { resolve: None } => ("Reissue", "reissue", "reissue"),
        Verb::Reissue { resolve: Some(Resolved::Applied) } => ("Reissue", "reissue?as=applied", "reissue"),
        Verb::Reissue { resolve: Some(Resolved::NotApplied) } => {
            ("Reissue", "reissue?as=not-applied", "reissue")
        }
    }
}

/// A refusal as a sentence of its own.
pub(super) fn sentence(words: &str) -> String {
    // The library tells states as machines read them, and of an effect that a page need not name.
    let words = words
        .replace("; effect is ", "; this one is ")
        .replace("in_doubt", "in doubt")
        .replace("in_flight", "in flight");
    let mut chars = words.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if words.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
