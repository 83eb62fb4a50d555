//! What happened to an effect, in one list: attempts, what people did, its beginning and its end.

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc, utc_and_words},
    },
    contract::Dedupe,
    follow::{Why, why_unknown},
    outcome::{Phase, Verdict},
    state::State,
    store::{Audited, LoggedAttempt},
};

use super::Known;
use crate::pages::{
    parts::{Moment, Text, maybe, text, verdict, words},
    prose::{Prose, prose},
};

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
    /// What followed from it.
    pub(in crate::pages) then: Option<Prose>,
}

/// Everything, newest first.
pub(super) fn events(known: &Known) -> Vec<Event> {
    let Known { effect, audit, now, .. } = known;
    let mut events: Vec<Event> = Vec::new();
    let plain = |at, class, title: &str| Event {
        at,
        when: Moment::short(at, *now),
        class,
        title: text(title),
        outcome: None,
        details: Vec::new(),
        quote: None,
        then: None,
    };
    events.push(plain(effect.created_at, "", "Written"));
    let attempted = |attempt| Event {
        then: followed(known, attempt).map(|then| prose(&then)),
        ..attempted(attempt, *now)
    };
    events.extend(known.attempts.iter().map(attempted));
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
    details.extend(attempt.worker.as_deref().map(|worker| text(&format!("by {worker}"))));
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
        quote: maybe(attempt.error.as_deref()),
        then: None,
    }
}

/// What followed from an attempt, as far as the log tells: what was decided at once, or what somebody did before anything else.
fn followed(known: &Known, attempt: &LoggedAttempt) -> Option<String> {
    let ended = attempt.ended_at.filter(|_| !attempt.late)?;
    let next = known.attempts.iter().find(|later| !later.late && later.attempt > attempt.attempt);
    let before_next = |row: &&Audited| row.at >= ended && next.is_none_or(|next| row.at <= next.started_at);
    // What people did comes newest first.
    let by = known.audit.iter().rfind(before_next).map(|row| format!(", after {}: {}", row.who, row.verb));
    let Some(next) = next else { return last(known, attempt.outcome, by) };
    let when =
        format!("sent again at {}, {} later", utc(next.started_at), span(next.started_at.since(ended)));
    // Where it can be asked, that comes first.
    let asked = known.contract.as_ref().is_some_and(|contract| contract.dedupe == Dedupe::Lookup);
    Some(match by {
        Some(by) => format!("It was {when}{by}."),
        None if asked && attempt.outcome == Verdict::Unknown => {
            format!("Its downstream was asked, and it was {when}.")
        }
        None => format!("So it was {when}."),
    })
}

/// What followed from the last attempt.
fn last(known: &Known, outcome: Verdict, by: Option<String>) -> Option<String> {
    let Known { effect, attempts, now, .. } = known;
    let after = by.clone().unwrap_or_default();
    match effect.state {
        State::Waiting | State::Scheduled | State::Ready | State::Retrying => Some(match effect.due_at {
            Some(due) if due > *now => format!("So it is sent again at {}{after}.", utc_and_words(due, *now)),
            Some(_) | None => format!("So it is sent again as soon as a worker has a free slot{after}."),
        }),
        State::InFlight => Some(format!("So it is being sent again now{after}.")),
        State::InDoubt => {
            let Why { meaning, .. } = why_unknown(effect, attempts);
            let why = meaning.map(|meaning| format!(": {meaning}")).unwrap_or_default();
            Some(format!("So it is in doubt, and nothing is sent again on its own{why}."))
        }
        // A person's word is an event of its own.
        State::Succeeded | State::Failed | State::Cancelled | State::Expired if by.is_some() => None,
        // Of what ended otherwise than its last attempt shows, a late answer or a probe decided.
        State::Succeeded => {
            (outcome == Verdict::Applied).then(|| "So it succeeded, and nothing more is sent.".to_owned())
        }
        State::Failed => (outcome != Verdict::Unknown)
            .then(|| "So it failed: it was never applied, and is not sent again on its own.".to_owned()),
        State::Cancelled => Some("So it was called off, as somebody had asked.".to_owned()),
        State::Expired => Some("So it was too late to send it again.".to_owned()),
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
        then: None,
    }
}
