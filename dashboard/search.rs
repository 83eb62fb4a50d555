//! The search language of the effects page: `state:failed downstream:payments metadata.order:A-17 error:"card declined" age:>1h`.
//!
//! Pure: text to terms, terms to a [`Filter`], terms to text again (a link is a search). A word without a name looks one effect up,
//! by number, key or business reference. What it cannot read it names, and then nothing is searched: a filter that silently lost a
//! term would act on more than was meant.

mod read;

use std::{fmt, time::Duration};

use aftercommit::{clock::Timestamp, effect::EffectId, state::State, store::Filter};
use serde_json::Value;

/// The names of terms, with an example each, for suggestions and help.
pub(crate) const NAMES: [(&str, &str, &str); 10] = [
    ("state:", "state:failed,in_doubt", "any of these states"),
    ("downstream:", "downstream:payments", "one downstream"),
    ("operation:", "operation:charge", "one operation of it"),
    ("key:", "key:order-A-17/charge", "the whole idempotency key"),
    ("metadata.NAME:", "metadata.order:A-17", "a business reference"),
    ("error:", "error:\"card declined\"", "words of the last error, in any case"),
    ("age:", "age:>1h", "written longer ago (or age:<1h, more lately) than this: s, m, h, d"),
    (
        "created:",
        "created:>2026-01-31T12:00:00Z",
        "written at this time or after it (or created:<…, before it)",
    ),
    ("id:", "id:17,18", "these numbers"),
    ("cause:", "cause:…", "one group of the failures page, and nothing else: its links write it"),
];

/// A search as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// What was asked for, in order.
    pub(crate) terms: Vec<Term>,
    /// What could not be read; then nothing may be searched.
    pub(crate) problems: Vec<String>,
}

/// One thing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// In any of these states.
    State(Vec<State>),
    /// Of this downstream.
    Downstream(String),
    /// Of this operation.
    Operation(String),
    /// With this key.
    Key(String),
    /// With this in its metadata.
    Metadata(Reference),
    /// With this in its last error.
    Error(String),
    /// Written longer ago than this.
    Older(Duration),
    /// Written less long ago than this.
    Younger(Duration),
    /// Written before this.
    Before(Timestamp),
    /// Written at this time or after it.
    After(Timestamp),
    /// One of these numbers.
    Ids(Vec<EffectId>),
    /// Of the group of failures with this id.
    Cause(String),
    /// A number, key or reference: whatever has it.
    Bare(String),
}

/// A place in the metadata and what stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The names on the way to it.
    pub(crate) path: Vec<String>,
    /// What stands there.
    pub(crate) value: String,
    /// It was quoted: certainly a text, also where it looks like a number.
    pub(crate) quoted: bool,
}

impl Search {
    /// Reads a search.
    pub(crate) fn parse(text: &str) -> Self {
        read::search(text)
    }

    /// A search for one state.
    pub(crate) fn of_state(state: State) -> Self {
        Self { terms: vec![Term::State(vec![state])], problems: Vec::new() }
    }

    /// The same search with one more thing asked for.
    #[must_use]
    pub(crate) fn and(mut self, term: Term) -> Self {
        self.terms.push(term);
        self
    }

    /// The same search without its `index`-th term.
    pub(crate) fn without(&self, index: usize) -> Self {
        let terms = self.terms.iter().enumerate().filter(|(at, _)| *at != index);
        Self { terms: terms.map(|(_, term)| term.clone()).collect(), problems: Vec::new() }
    }

    /// The word that looks one effect up, where the search is that and nothing else.
    pub(crate) fn bare(&self) -> Option<&str> {
        match self.terms.as_slice() {
            [Term::Bare(word)] => Some(word),
            _ => None,
        }
    }

    /// The states asked for; empty: any.
    pub(crate) fn states(&self) -> &[State] {
        let states = self
            .terms
            .iter()
            .find_map(|term| if let Term::State(states) = term { Some(states) } else { None });
        states.map_or(&[], Vec::as_slice)
    }

    /// The downstream asked for.
    pub(crate) fn downstream(&self) -> Option<&str> {
        self.terms
            .iter()
            .find_map(|term| if let Term::Downstream(name) = term { Some(name.as_str()) } else { None })
    }

    /// The group of failures asked for.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.terms.iter().find_map(|term| if let Term::Cause(id) = term { Some(id.as_str()) } else { None })
    }

    /// Whether the counts by state and downstream say how many effects match.
    pub(crate) fn is_counted(&self) -> bool {
        self.terms.iter().all(|term| matches!(term, Term::State(_) | Term::Downstream(_)))
    }

    /// What this search may mean, the likeliest first: whoever writes `metadata.order:17` may mean the text, and says nothing of
    /// quotes. Whoever reads a search decides once, and writes down which it was: quoted is the text, and nothing else.
    pub(crate) fn readings(&self) -> Vec<Self> {
        self.as_texts().into_iter().chain([self.clone()]).collect()
    }

    /// The same search for texts: with quotes around what looks like a number, true or false. `None`: nothing does.
    pub(crate) fn as_texts(&self) -> Option<Self> {
        let mut texts = self.clone();
        let mut quoted = false;
        for term in &mut texts.terms {
            if let Term::Metadata(reference) = term
                && reference.may_be_other()
            {
                (reference.quoted, quoted) = (true, true);
            }
        }
        quoted.then_some(texts)
    }

    /// As the store asks for it; [`Self::cause`] is not in it. Read as it is written: what looks like a number is one, unless it is
    /// quoted.
    pub(crate) fn filter(&self, now: Timestamp) -> Filter {
        let mut filter = Filter::default();
        let mut metadata = Vec::new();
        for term in &self.terms {
            match term.clone() {
                Term::State(states) => filter.states = states,
                Term::Downstream(name) => filter.downstream = Some(name),
                Term::Operation(name) => filter.operation = Some(name),
                Term::Key(key) => filter.key = Some(key),
                Term::Metadata(reference) => metadata.push(reference.member()),
                Term::Error(words) => filter.error = Some(words),
                Term::Older(length) => earliest(&mut filter.created_before, now.minus(length)),
                Term::Before(at) => earliest(&mut filter.created_before, at),
                Term::Younger(length) => latest(&mut filter.created_after, now.minus(length)),
                Term::After(at) => latest(&mut filter.created_after, at),
                Term::Ids(ids) => filter.ids = Some(ids),
                // Looked up before anything is listed.
                Term::Cause(_) | Term::Bare(_) => {}
            }
        }
        if !metadata.is_empty() {
            filter.metadata = Some(format!("{{{}}}", metadata.join(",")));
        }
        filter
    }
}

/// Both bounds hold: the narrower one is what counts.
fn earliest(bound: &mut Option<Timestamp>, at: Timestamp) {
    *bound = Some(bound.map_or(at, |before| before.min(at)));
}

fn latest(bound: &mut Option<Timestamp>, at: Timestamp) {
    *bound = Some(bound.map_or(at, |before| before.max(at)));
}

impl Reference {
    /// A text at a member of the metadata, found as a text also where it looks like a number.
    pub(crate) fn text(name: &str, value: &str) -> Self {
        let plain = Self { path: vec![name.to_owned()], value: value.to_owned(), quoted: false };
        Self { quoted: plain.may_be_other(), ..plain }
    }

    /// What is no text: a number, true or false.
    pub(crate) fn other(name: &str, value: &str) -> Self {
        Self { path: vec![name.to_owned()], value: value.to_owned(), quoted: false }
    }

    /// It looks like a number, true or false, and might be meant so.
    fn may_be_other(&self) -> bool {
        !self.quoted
            && (matches!(self.value.as_str(), "true" | "false")
                || serde_json::from_str::<serde_json::Number>(&self.value).is_ok())
    }

    /// The member of a JSON object that holds it. Numbers are written as they were given: no digit of theirs is read.
    fn member(self) -> String {
        let text = |text: String| Value::String(text).to_string();
        let value = if self.may_be_other() { self.value } else { text(self.value) };
        let mut names = self.path.into_iter().map(text);
        let first = names.next().unwrap_or_default();
        let inside = names.rev().fold(value, |value, name| format!("{{{name}:{value}}}"));
        format!("{first}:{inside}")
    }
}

impl Term {
    /// Its name, as it is written before the colon.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::State(_) => "state".to_owned(),
            Self::Downstream(_) => "downstream".to_owned(),
            Self::Operation(_) => "operation".to_owned(),
            Self::Key(_) => "key".to_owned(),
            Self::Metadata(reference) => reference
                .path
                .iter()
                .fold("metadata".to_owned(), |name, part| format!("{name}.{}", word(part, ".:"))),
            Self::Error(_) => "error".to_owned(),
            Self::Older(_) | Self::Younger(_) => "age".to_owned(),
            Self::Before(_) | Self::After(_) => "created".to_owned(),
            Self::Ids(_) => "id".to_owned(),
            Self::Cause(_) => "cause".to_owned(),
            Self::Bare(_) => String::new(),
        }
    }

    /// What stands behind the colon.
    fn value(&self) -> String {
        match self {
            Self::State(states) => joined(states.iter().map(State::to_string)),
            Self::Downstream(value)
            | Self::Operation(value)
            | Self::Key(value)
            | Self::Error(value)
            | Self::Cause(value) => word(value, ""),
            Self::Metadata(reference) if reference.quoted => quoted(&reference.value),
            Self::Metadata(reference) => word(&reference.value, ""),
            Self::Older(length) => format!(">{}", in_units(*length)),
            Self::Younger(length) => format!("<{}", in_units(*length)),
            Self::Before(at) => format!("<{}", at.rfc3339()),
            Self::After(at) => format!(">{}", at.rfc3339()),
            Self::Ids(ids) => joined(ids.iter().map(EffectId::to_string)),
            Self::Bare(value) if value.contains(':') => quoted(value),
            Self::Bare(value) => word(value, ""),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            name if name.is_empty() => f.write_str(&self.value()),
            name => write!(f, "{name}:{}", self.value()),
        }
    }
}

/// The search as text; reading it gives the same search.
impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.terms.iter().map(Term::to_string).collect::<Vec<_>>().join(" "))
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

/// A value as it may stand in a search: quoted where it would be read as something else.
fn word(value: &str, apart: &str) -> String {
    let plain = !value.is_empty()
        && value.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && !apart.contains(c));
    if plain { value.to_owned() } else { quoted(value) }
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A length in the largest unit that divides it.
fn in_units(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    match units.iter().find(|(_, size)| seconds > 0 && seconds.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{}{unit}", seconds / size),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests;
