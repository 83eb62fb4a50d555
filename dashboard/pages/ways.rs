//! The ways out: every verb that may be taken now, with what it does; those that may be taken later, and from when; and, folded away,
//! those that are none in this state, with the reason.

use aftercommit::{
    clock::{Timestamp, words::utc_and_words},
    state::State,
    store::Status,
    verb::{Refusal, Resolved, Verb},
};

use super::{
    effect::Known,
    frame::Frame,
    parts::Moment,
    prose::{Prose, prose},
};
use crate::{
    access::Visitor,
    actions::{Choice, Consequence},
    routes::Right,
};

/// The ways out of doubt, in the order in which they are thought of.
const OUT_OF_DOUBT: [&str; 4] = ["It was applied", "It was not applied", "Resend", "Reissue"];

/// The ways out of an effect.
pub(super) struct Ways {
    /// Whose they are.
    pub(super) id: i64,
    /// Why none of them may be taken by whoever looks.
    pub(super) note: Option<&'static str>,
    /// Those that may be taken now.
    pub(super) open: Vec<Way>,
    pub(super) later: Option<Later>,
    /// Those that may not.
    pub(super) closed: Vec<Way>,
}

/// Those that are refused until a time, for no other reason.
pub(super) struct Later {
    pub(super) from: Moment,
    pub(super) ways: Vec<Way>,
}

/// One.
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) href: String,
    pub(super) class: &'static str,
    /// What it does, or why it cannot be done.
    pub(super) says: Prose,
    /// The module's key for it.
    pub(super) key: &'static str,
}

impl Ways {
    /// Those of so many names, in their order.
    fn only(mut self, names: &[&str]) -> Self {
        let keep = |ways: &mut Vec<Way>| ways.retain(|way| names.contains(&way.name));
        keep(&mut self.open);
        keep(&mut self.closed);
        if let Some(later) = &mut self.later {
            keep(&mut later.ways);
        }
        self
    }
}

/// The ways out of an effect.
pub(super) fn of(known: &Known, frame: &Frame) -> Ways {
    let (effect, now) = (&known.effect, known.now);
    let from = effect.quiet_at.filter(|at| *at > now);
    let then = from.map(|at| known.choices(at)).unwrap_or_default();
    let (mut open, mut later, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    for Choice { verb, outlook } in known.choices(now) {
        match (outlook, possible(&then, &verb)) {
            (Ok(consequence), _) => open.push(way(effect, &verb, &consequence)),
            (Err(Refusal::StillTravelling { .. }), Some(consequence)) => {
                later.push(way(effect, &verb, consequence));
            }
            (Err(refusal), _) => closed.push(shut(effect, &verb, &refusal, now)),
        }
    }
    for ways in [&mut open, &mut later, &mut closed] {
        ways.sort_by_key(|way| place(way, effect.state));
    }
    let later = from.filter(|_| !later.is_empty()).map(|at| Later { from: Moment::of(at, now), ways: later });
    Ways { id: effect.id.get(), note: note(&frame.visitor), open, later, closed }
}

/// What `verb` will do once nothing can be travelling any more.
fn possible<'c>(then: &'c [Choice], verb: &Verb) -> Option<&'c Consequence> {
    then.iter().find(|choice| choice.verb == *verb).and_then(|choice| choice.outlook.as_ref().ok())
}

fn note(visitor: &Visitor) -> Option<&'static str> {
    if visitor.may(Right::Operate) {
        return None;
    }
    Some(if visitor.read_only {
        "This dashboard is read-only: nothing can be done from here."
    } else {
        "You may look, and an operator may do this."
    })
}

/// What is in doubt is looked at before anything is sent again.
fn place(way: &Way, state: State) -> usize {
    let order = OUT_OF_DOUBT.iter().position(|name| *name == way.name);
    if state == State::InDoubt { order.unwrap_or(OUT_OF_DOUBT.len()) } else { 0 }
}

/// Those that lead out of doubt.
pub(super) fn out_of_doubt(known: &Known, frame: &Frame) -> Ways {
    of(known, frame).only(&OUT_OF_DOUBT)
}

fn way(effect: &Status, verb: &Verb, consequence: &Consequence) -> Way {
    let (name, path, key) = route(verb);
    let main = matches!(verb, Verb::Retry | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied);
    let class = match (consequence.risky, main) {
        (true, _) => "risk",
        (false, true) => "main",
        (false, false) => "",
    };
    let href = format!("effects/{}/{path}", effect.id);
    Way { name, href, class, says: prose(&consequence.sentence), key }
}

fn shut(effect: &Status, verb: &Verb, refusal: &Refusal, now: Timestamp) -> Way {
    let (name, path, key) = route(verb);
    let says = prose(&why_not(refusal, now));
    Way { name, href: format!("effects/{}/{path}", effect.id), class: "", says, key }
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

/// Why a verb cannot be done, beside its name: what to do instead, where the state forbids it.
fn why_not(refusal: &Refusal, now: Timestamp) -> String {
    if let Refusal::State { hint, .. } = refusal {
        return (*hint).to_owned();
    }
    refused(refusal, now)
}

/// Why a verb cannot be done, in sentences of their own.
pub(super) fn refused(refusal: &Refusal, now: Timestamp) -> String {
    if let Refusal::StillTravelling { until } = refusal {
        return format!(
            "It can be done from {} on. Until then its last request may still be travelling, and may prove wrong whoever decides.",
            utc_and_words(*until, now)
        );
    }
    if let Refusal::Expired { at } = refusal {
        let at = utc_and_words(*at, now);
        return format!("It was not to be begun after {at}, so it cannot be sent again: resolve it.");
    }
    sentence(&refusal.to_string())
}

/// The library's words without the names of the configuration, which nobody who decides has before them.
pub(super) fn plain(words: &str) -> String {
    words
        .replace("(retention.payloads, or a redaction)", "(by retention, or by a person)")
        .replace("(retention.history)", "(by retention)")
}

/// A refusal as a sentence of its own.
pub(super) fn sentence(words: &str) -> String {
    // The library tells states as machines read them, and of an effect that a page need not name.
    let words = plain(words)
        .replace("; effect is ", "; this one is ")
        .replace("in_doubt", "in doubt")
        .replace("in_flight", "in flight");
    let mut chars = words.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if words.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_without_what_programs_read() {
        let now = Timestamp::from_micros(1_767_787_200_123_456);
        let until = now.plus(std::time::Duration::from_secs(180));
        let told = refused(&Refusal::StillTravelling { until }, now);
        assert!(told.starts_with("It can be done from 2026-01-07T12:03:00Z (in 3 min) on."), "{told}");
        let expired = refused(&Refusal::Expired { at: now }, now);
        assert!(expired.contains("2026-01-07T12:00:00Z (now)"), "{expired}");
        for dropped in [Refusal::PayloadDropped, Refusal::LogDropped] {
            let told = refused(&dropped, now);
            assert!(told.contains("(by retention") && !told.contains("retention."), "{told}");
        }
        let state = State::InDoubt;
        let state = Refusal::State { verb: "retry", takes: "failed effects", state, hint: "Resolve it." };
        assert_eq!(why_not(&state, now), "Resolve it.");
        assert_eq!(refused(&state, now), "Retry takes failed effects; this one is in doubt. Resolve it.");
    }
}
