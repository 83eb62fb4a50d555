//! An effect in a list.

use std::collections::{BTreeMap, btree_map::Entry};

use aftercommit::{clock::Timestamp, state::State, store::Status};
use serde_json::value::RawValue;

use super::parts::{Badge, Moment, Text, in_query, maybe, text, verdict};
use crate::{
    problem::Problem,
    redaction::MASK,
    search::{Reference, Term},
    shared::Shared,
};

/// References that a row shows.
const REFERENCES: usize = 3;
/// A longer value is cut.
const VALUE_MAX: usize = 60;

/// Operations whose limits are asked for on one page: more than are configured anywhere.
const LIMITS: usize = 20;

/// How many attempts there are at most, by downstream and operation, as today's configuration of the workers has it.
#[derive(Debug, Default)]
pub(super) struct Limits(BTreeMap<(String, Option<String>), Option<u32>>);

impl Limits {
    /// Of those of `effects` that may be attempted once more. A login at the database that may only view is not told.
    pub(super) async fn of(shared: &Shared, effects: &[Status]) -> Result<Self, Problem> {
        let mut limits = Self::default();
        for effect in effects.iter().filter(|effect| is_limited(effect)) {
            if limits.0.len() >= LIMITS {
                break;
            }
            let of = (effect.downstream.clone(), effect.operation.clone());
            let Entry::Vacant(place) = limits.0.entry(of) else { continue };
            let terms = shared.database().terms(&effect.downstream, effect.operation.as_deref()).await;
            match terms {
                Ok(terms) => {
                    let most = terms.map(|terms| terms.policy.max_attempts);
                    place.insert(most.filter(|most| *most < u32::MAX));
                }
                Err(problem) if problem.is_forbidden() => break,
                Err(problem) => return Err(problem.into()),
            }
        }
        Ok(limits)
    }

    /// "none", "3", "3 of 100". A limit is of one history, and the log may tell of several: then it says nothing here.
    fn words(&self, effect: &Status) -> String {
        let of = (effect.downstream.clone(), effect.operation.clone());
        let most = self.0.get(&of).copied().flatten().filter(|_| is_limited(effect));
        match (effect.attempts, most) {
            (0, _) => "none".to_owned(),
            (n, Some(most)) if n <= most => format!("{n} of {most}"),
            (n, _) => n.to_string(),
        }
    }
}

/// Whether it was attempted and may be attempted once more.
fn is_limited(effect: &Status) -> bool {
    effect.attempts > 0 && !effect.state.is_terminal()
}

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
    pub(super) written: Moment,
    pub(super) worker: Option<Text>,
    /// What the last attempt showed, with the protocol's status of the final answer.
    pub(super) answer: Option<String>,
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
    pub(super) fn of(effect: &Status, now: Timestamp, limits: &Limits) -> Self {
        let (when, at) = moment(effect);
        let mut references = references(effect);
        references.truncate(REFERENCES);
        Self {
            id: effect.id.get(),
            badge: Badge::of(effect.state).held(effect.held_by.as_deref()),
            place: place_of(effect),
            key: text(&effect.idempotency_key),
            references,
            attempts: limits.words(effect),
            when,
            at: Moment::short(at, now),
            written: Moment::short(effect.created_at, now),
            worker: maybe(effect.worker.as_deref()),
            answer: answer(effect),
            error: maybe(effect.last_error.as_deref()).filter(|_| effect.state != State::Succeeded),
        }
    }
}

fn answer(effect: &Status) -> Option<String> {
    match (effect.last_outcome.map(verdict), effect.response_status) {
        (Some(verdict), Some(status)) => Some(format!("{verdict}, {status}")),
        (Some(verdict), None) => Some(verdict.to_owned()),
        (None, status) => status.map(|status| status.to_string()),
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
