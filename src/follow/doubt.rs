//! What is known of an effect that may have been applied: since when, by which attempts, and what its key still does. Pure.

use crate::{
    clock::{Timestamp, words::utc},
    decision::KEY_USED_BEFORE,
    outcome::{Phase, Verdict},
    state::State,
    store::{LoggedAttempt, Status},
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
