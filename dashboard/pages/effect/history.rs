//! What happened to an effect, in one list: attempts, what people did, its beginning and its end.

use aftercommit::{
    clock::{Timestamp, words::span},
    outcome::{Phase, Verdict},
    store::{Audited, LoggedAttempt},
};

use super::Known;
use crate::pages::parts::{Moment, Text, maybe, text, verdict, words};

/// Something that happened.
pub(in crate::pages) struct Event {
    at: Timestamp,
    pub(in crate::pages) when: Moment,
    /// For the mark beside it.
    pub(in crate::pages) class: &'static str,
    pub(in crate::pages) title: Text,
    /// What an attempt showed.
    pub(in crate::pages) outcome: Option<&'static str>,
    pub(in crate::pages) details: Vec<Text>,
    pub(in crate::pages) quote: Option<Text>,
}

/// Everything, newest first.
pub(super) fn events(known: &Known) -> Vec<Event> {
    let Known { effect, attempts, audit, now, .. } = known;
    let mut events: Vec<Event> = Vec::new();
    let plain = |at, class, title: &str| Event {
        at,
        when: Moment::short(at, *now),
        class,
        title: text(title),
        outcome: None,
        details: Vec::new(),
        quote: None,
    };
    events.push(plain(effect.created_at, "", "Written, with the business transaction"));
    events.extend(attempts.iter().map(|attempt| attempted(attempt, *now)));
    events.extend(audit.iter().map(|row| acted(row, *now)));
    if let Some(ended) = effect.finished_at {
        let class = match effect.last_outcome {
            Some(Verdict::Applied) => "applied",
            Some(Verdict::Rejected) => "rejected",
            Some(Verdict::NotApplied | Verdict::Unknown) | None => "",
        };
        events.push(plain(ended, class, &format!("Ended: {}", words(effect.state))));
    }
    // What happened at one time stands in the order in which it was put here: the end after what led to it.
    events.sort_by_key(|event| event.at);
    events.reverse();
    events
}

/// What happened after `seen`, newest first.
pub(in crate::pages) fn since(known: &Known, seen: Timestamp) -> Vec<Event> {
    events(known).into_iter().filter(|event| event.at > seen).collect()
}

fn attempted(attempt: &LoggedAttempt, now: Timestamp) -> Event {
    let at = attempt.ended_at.unwrap_or(attempt.started_at);
    let late = if attempt.late { ", told late" } else { "" };
    let mut details = vec![text(how_far(&attempt.phase))];
    details.extend(
        attempt.ended_at.map(|ended| text(&format!("took {}", span(ended.since(attempt.started_at))))),
    );
    details.extend(attempt.response_status.map(|status| text(&format!("status {status}"))));
    details.extend(attempt.worker.as_deref().map(text));
    Event {
        at,
        when: Moment::short(at, now),
        class: match attempt.outcome {
            Verdict::Applied => "applied",
            Verdict::Rejected => "rejected",
            Verdict::NotApplied => "not_applied",
            Verdict::Unknown => "unknown",
        },
        title: text(&format!("Attempt {}{late}", attempt.attempt)),
        outcome: Some(verdict(attempt.outcome)),
        details,
        quote: attempt.error.as_deref().map(text),
    }
}

/// How far the request got, in words.
fn how_far(phase: &str) -> &str {
    match Phase::of_word(phase) {
        Some(Phase::Render) => "no request was made of it",
        Some(Phase::Connect) => "no byte of it left",
        Some(Phase::Send) => "bytes of it may have left",
        Some(Phase::Answer) => "an answer was begun",
        Some(Phase::Done) => "it was answered",
        Some(Phase::Lease) => "its worker did not come back",
        None => phase,
    }
}

fn acted(row: &Audited, now: Timestamp) -> Event {
    let moved = match (&row.from_state, &row.to_state) {
        (Some(from), Some(to)) => Some(format!("{} → {}", from.replace('_', " "), to.replace('_', " "))),
        (_, _) => None,
    };
    let mut details: Vec<Text> = moved.iter().map(|moved| text(moved)).collect();
    details.extend(row.from.as_deref().map(|from| text(&format!("from {from}"))));
    details.extend(row.bulk.map(|bulk| text(&format!("in bulk {bulk}"))));
    Event {
        at: row.at,
        when: Moment::short(row.at, now),
        class: "person",
        title: text(&format!("{}: {}", row.who, row.verb)),
        outcome: None,
        details,
        quote: maybe(row.reason.as_deref()),
    }
}
