//! What is known of an effect that may have been applied: since when, by which attempts, and what its key still does. Pure.

use std::time::Duration;

use crate::{
    clock::{
        Timestamp,
        words::{relative, span, utc},
    },
    decision::{ASKED, IN_VAIN, KEY_USED_BEFORE},
    outcome::{Phase, Verdict},
    state::State,
    store::{LoggedAttempt, Status},
    visible::clean,
};

/// Since when nobody knows whether it was applied: the end of the first attempt, of the present history, that did not show
/// it. `None` where there is nothing to know any more.
pub fn unknown_since(effect: &Status, attempts: &[LoggedAttempt]) -> Option<Timestamp> {
    let open = match effect.state {
        State::InDoubt | State::Retrying | State::Ready | State::InFlight => true,
        State::Waiting
        | State::Scheduled
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::Expired => false,
    };
    effect.first_sent_at.filter(|_| open)?;
    let present = attempts.iter().filter(|attempt| is_of_the_present(effect, attempt));
    present.filter(|attempt| attempt.outcome == Verdict::Unknown).find_map(|attempt| attempt.ended_at)
}

/// The attempts of the present history that may have reached its downstream, oldest first. What came in late tells of one of them once
/// more, and is left out.
pub fn sent<'a>(effect: &Status, attempts: &'a [LoggedAttempt]) -> Vec<&'a LoggedAttempt> {
    // A word that a newer version wrote may mean anything.
    let reached = |phase: &str| Phase::of_word(phase).is_none_or(Phase::may_have_reached);
    let present = attempts.iter().filter(|attempt| !attempt.late && is_of_the_present(effect, attempt));
    present.filter(|attempt| reached(&attempt.phase)).collect()
}

/// An attempt of an earlier history had ended when the present one began.
fn is_of_the_present(effect: &Status, attempt: &LoggedAttempt) -> bool {
    let Some(began) = effect.first_sent_at else { return false };
    attempt.ended_at.is_none_or(|ended| ended >= began)
}

/// Whether its key still keeps a second request from being applied too.
pub fn key_protects(effect: &Status, now: Timestamp) -> bool {
    // A key that was used before us protects nothing of ours.
    !is_of_a_used_key(effect) && effect.safe_until.is_some_and(|until| now < until)
}

/// What one more request with its key does, as the end of a sentence.
pub fn sent_once_more(effect: &Status, now: Timestamp) -> String {
    match effect.safe_until.filter(|_| key_protects(effect, now)) {
        Some(Timestamp::MAX) => "which applies nothing twice".to_owned(),
        Some(until) => format!("which applies nothing twice before {}", utc(until)),
        None => "which may apply it twice".to_owned(),
    }
}

/// Whether the downstream knew its key before it was ever sent: a message broker drops whatever comes under it.
pub fn is_of_a_used_key(effect: &Status) -> bool {
    effect.last_error.as_deref().is_some_and(|why| why.starts_with(KEY_USED_BEFORE))
}

/// Why nobody knows whether an effect was applied, in parts: what differs from one effect to the next, and what many share. As others
/// wrote it: whoever shows it makes it harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// What became of the attempt that left the doubt, as a sentence without its end.
    pub what: String,
    /// All that this attempt said, where that is more.
    pub said: Option<String>,
    /// Why that leaves it in doubt, by the rules.
    pub meaning: Option<String>,
}

/// Why nobody knows whether `effect`, which is in doubt, was applied.
pub fn why_unknown(effect: &Status, attempts: &[LoggedAttempt]) -> Why {
    let (note, _) = asked(effect);
    let sent = sent(effect, attempts);
    let unknown = sent.iter().rfind(|attempt| attempt.outcome == Verdict::Unknown);
    let Some(left) = unknown.or(sent.last()) else {
        let what = if note.is_empty() { "nobody wrote down what happened" } else { note };
        return Why { what: capital(what), ..Why::default() };
    };
    let error = left.error.as_deref().unwrap_or_default().trim_end_matches('.');
    let what = what_became(left, sent.len() > 1);
    // The worker that did not come back is the sentence.
    let said = (first_clause(error) != error && !is_of_a_lost_worker(left)).then(|| error.to_owned());
    Why { what, said, meaning: meaning(note, error) }
}

/// What a note says besides what the attempt said itself.
fn meaning(note: &str, error: &str) -> Option<String> {
    if note.is_empty() || note.trim_end_matches('.') == error {
        return None;
    }
    let quoted = format!(" ({error}");
    let end = note.find(&quoted).filter(|_| !error.is_empty() && note.ends_with(')'));
    Some(note[..end.unwrap_or(note.len())].trim_end_matches('.').to_owned())
}

fn what_became(attempt: &LoggedAttempt, one_of_several: bool) -> String {
    let which = if one_of_several { format!(" (attempt {})", attempt.attempt) } else { String::new() };
    if is_of_a_lost_worker(attempt) {
        let worker = attempt.worker.as_deref().map(|name| format!("Worker {name}"));
        let worker = worker.unwrap_or_else(|| "Its worker".to_owned());
        return format!("{worker} did not come back from the call{which}");
    }
    let clause = first_clause(attempt.error.as_deref().unwrap_or("nobody wrote down what happened"));
    let took = attempt.ended_at.map(|ended| ended.since(attempt.started_at)).unwrap_or_default();
    // What ended at once says nothing by its length, and some say it themselves.
    let tells = took >= Duration::from_secs(1) && !clause.contains(" within ");
    let after = if tells { format!(", after {}", span(took)) } else { String::new() };
    format!("{}{after}{which}", capital(clause))
}

fn is_of_a_lost_worker(attempt: &LoggedAttempt) -> bool {
    Phase::of_word(&attempt.phase) == Some(Phase::Lease)
}

/// Up to where it explains itself.
fn first_clause(words: &str) -> &str {
    let end = [": ", "; "].iter().filter_map(|mark| words.find(mark)).min();
    words[..end.unwrap_or(words.len())].trim_end_matches('.')
}

fn capital(words: &str) -> String {
    let mut chars = words.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + chars.as_str()
}

/// What the downstream of an effect in doubt was asked so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// How often.
    pub times: u32,
    /// What was seen the last time.
    pub said: &'a str,
}

/// Why an effect is in doubt, and what was seen when its downstream was asked: two parts of its note.
pub fn asked(effect: &Status) -> (&str, Option<Asked<'_>>) {
    let note = effect.last_error.as_deref().unwrap_or_default();
    // What was seen is in others' words, too: only what reads as ours ends the reason.
    let last = note.rmatch_indices(ASKED).find_map(|(at, _)| {
        let (number, said) = note[at + ASKED.len()..].split_once(": ")?;
        let said = said.rfind(IN_VAIN).map_or(said, |end| &said[..end]);
        Some((&note[..at], Asked { times: number.parse().ok()?, said }))
    });
    last.map_or((note, None), |(why, asked)| (why, Some(asked)))
}

/// What was asked about an effect in doubt, and when it is asked again; `None` where nobody asked, and nobody will.
pub fn asking(effect: &Status, now: Timestamp) -> Option<String> {
    let (_, last) = asked(effect);
    let next = match (effect.due_at, effect.held_by.is_some()) {
        (None, _) if last.is_none() => return None,
        (None, _) => "It is not asked any more.".to_owned(),
        (Some(_), true) => "The next question waits until its downstream is called again.".to_owned(),
        (Some(due), false) if due > now => {
            format!("The next question goes out {} ({}).", relative(due, now), utc(due))
        }
        (Some(_), false) => "The next question goes out as soon as a worker has a free slot.".to_owned(),
    };
    let Some(Asked { times, said }) = last else { return Some(next) };
    let said = clean(said.trim_end_matches('.'));
    Some(match times {
        1 => format!("Its downstream was asked once: {said}. {next}"),
        n => format!("Its downstream was asked {n} times, and the last time: {said}. {next}"),
    })
}

#[cfg(test)]
mod tests;
