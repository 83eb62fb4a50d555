//! An effect in a list.

use std::collections::BTreeMap;

use aftercommit::{clock::Timestamp, state::State, store::Status};
use serde_json::value::RawValue;

use super::parts::{Badge, Moment, Text, in_query, maybe, text};
use crate::{
    redaction::MASK,
    search::{Reference, Term},
};

/// References that a row shows.
const REFERENCES: usize = 3;
/// A longer value is cut.
const VALUE_MAX: usize = 60;

/// A row of a list of effects.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) badge: Badge,
    pub(super) place: Text,
    pub(super) key: Text,
    pub(super) references: Vec<Tag>,
    pub(super) attempts: String,
    /// What the time is of: "due", "ended".
    pub(super) when: &'static str,
    pub(super) at: Moment,
    pub(super) error: Option<Text>,
}

/// A business reference.
pub(super) struct Tag {
    pub(super) name: Text,
    pub(super) value: Text,
    /// The search for what else has it; `None` for what cannot be searched for.
    pub(super) query: Option<String>,
}

/// An effect's downstream and operation.
pub(super) fn place_of(effect: &Status) -> Text {
    match &effect.operation {
        Some(operation) => text(&format!("{} / {operation}", effect.downstream)),
        None => text(&effect.downstream),
    }
}

impl Row {
    pub(super) fn of(effect: &Status, now: Timestamp) -> Self {
        let (when, at) = moment(effect);
        let mut references = references(effect);
        references.truncate(REFERENCES);
        Self {
            id: effect.id.get(),
            badge: Badge::of(effect.state).held(effect.held_by.as_deref()),
            place: place_of(effect),
            key: text(&effect.idempotency_key),
            references,
            attempts: match effect.attempts {
                0 => "none".to_owned(),
                n => n.to_string(),
            },
            when,
            at: Moment::short(at, now),
            error: maybe(effect.last_error.as_deref()).filter(|_| effect.state != State::Succeeded),
        }
    }
}

/// The time that matters most in its state.
fn moment(effect: &Status) -> (&'static str, Timestamp) {
    let (when, at) = match effect.state {
        State::Scheduled | State::Ready | State::Retrying | State::Waiting => ("due", effect.due_at),
        State::InFlight => ("lease ends", effect.lease_until),
        State::InDoubt => ("first sent", effect.first_sent_at),
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => ("ended", effect.finished_at),
    };
    at.map_or(("written", effect.created_at), |at| (when, at))
}

/// The business references of an effect, digit by digit as they were written.
pub(super) fn references(effect: &Status) -> Vec<Tag> {
    let Some(metadata) = &effect.metadata else { return Vec::new() };
    let members = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(metadata.get()).unwrap_or_default();
    members.iter().map(|(name, value)| tag(name, value.get())).collect()
}

fn tag(name: &str, raw: &str) -> Tag {
    let string = serde_json::from_str::<String>(raw).ok();
    let plain = string.as_deref().unwrap_or(raw);
    // What is hidden is looked for by nobody.
    let hidden = name.contains(MASK) || plain.contains(MASK);
    let searchable = !hidden && (string.is_some() || !raw.starts_with(['{', '[', 'n']));
    let term = Term::Metadata(match &string {
        Some(text) => Reference::text(name, text),
        None => Reference::other(name, raw),
    });
    Tag { name: text(name), value: text(&cut(plain)), query: searchable.then(|| in_query(&term.to_string())) }
}

fn cut(value: &str) -> String {
    match value.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}
