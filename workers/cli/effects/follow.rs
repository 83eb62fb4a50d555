//! What follows for an effect, in words: what happens on its own, and what a person can say.

use aftercommit::{clock::Timestamp, outcome::Verdict, state::State, store::Status};

use crate::cli::{Context, times::relative};

/// What follows, and the commands that change it.
pub(crate) fn words(effect: &Status, now: Timestamp, context: &Context) -> String {
    let command = context.invocation();
    match effect.state {
        State::Waiting => "It waits for its prerequisites; nothing is sent before they succeeded.".to_owned(),
        State::Scheduled | State::Ready | State::Retrying => pending(effect, now),
        State::InFlight => in_flight(effect, now),
        State::InDoubt => in_doubt(effect, now, &command),
        State::Succeeded => succeeded(effect, &command),
        State::Failed => failed(effect, &command),
        State::Cancelled => "Nothing: it was called off before it was applied.".to_owned(),
        State::Expired => {
            "Nothing: it was not begun before it expired, and was never applied. Write a new effect with a new key if it \
             is still wanted."
                .to_owned()
        }
    }
}

fn pending(effect: &Status, now: Timestamp) -> String {
    match effect.held_by.as_deref() {
        Some("unserved") => {
            return format!(
                "No live worker serves {}: start `aftercommit work` with a configuration that has it.",
                effect.downstream
            );
        }
        Some("pause") => {
            return format!(
                "The downstream {} is paused; nothing is sent until it is resumed.",
                effect.downstream
            );
        }
        Some(other) => return format!("It is held by {other}."),
        None => {}
    }
    let due = effect.due_at.filter(|due| *due > now);
    let next = due.map_or_else(
        || "A worker sends it next.".to_owned(),
        |due| format!("It is sent {}, at {due}.", relative(due, now)),
    );
    match (effect.last_outcome, effect.safe_until) {
        (Some(Verdict::Unknown), Some(until)) if until != Timestamp::MAX => format!(
            "{next}\nAn earlier attempt may have been applied; the same key makes the next one safe until {until}."
        ),
        (Some(Verdict::Unknown), _) => {
            format!("{next}\nAn earlier attempt may have been applied; the next one carries the same key.")
        }
        (Some(Verdict::Applied | Verdict::Rejected | Verdict::NotApplied) | None, _) => next,
    }
}

fn in_flight(effect: &Status, now: Timestamp) -> String {
    let worker = effect.worker.as_deref().unwrap_or("a worker");
    match effect.lease_until {
        Some(until) if until > now => {
            format!("{worker} is carrying it out; its lease ends {}.", relative(until, now))
        }
        _ => format!(
            "The lease of {worker} has ended and it has not said what happened; the next sweep of a live worker decides."
        ),
    }
}

fn in_doubt(effect: &Status, now: Timestamp, command: &str) -> String {
    let id = effect.id;
    let why = effect.last_error.as_deref().unwrap_or("its outcome could not be known").trim_end_matches('.');
    let probe = effect
        .due_at
        .filter(|due| *due > now)
        .map(|due| format!("The downstream is asked {}. ", relative(due, now)))
        .unwrap_or_default();
    format!(
        "In doubt because {why}.\n\
         It may or may not have been applied; nothing is sent again on its own. {probe}\
         Look at {} for the key {}, then say what you found:\n{}\n{}\n\
         or send it once more, which may apply it twice:\n{}",
        effect.downstream,
        effect.idempotency_key,
        line(command, &format!("effects resolve {id} --as applied --reason 'seen there'")),
        line(command, &format!("effects resolve {id} --as not-applied --reason 'not there'")),
        line(command, &format!("effects resend {id} --reason 'why twice does no harm'")),
    )
}

fn succeeded(effect: &Status, command: &str) -> String {
    match effect.last_outcome {
        Some(Verdict::Applied) | None => "Nothing: it was applied.".to_owned(),
        Some(Verdict::Rejected | Verdict::NotApplied | Verdict::Unknown) => format!(
            "Nothing: it counts as applied, though its last attempt did not show it. Who said so:\n{}",
            line(command, &format!("audit --effect {}", effect.id))
        ),
    }
}

fn failed(effect: &Status, command: &str) -> String {
    if let Some(by) = effect.superseded_by {
        return format!("Nothing: effect {by} took its place.");
    }
    format!(
        "Nothing on its own: it was never applied. Once the cause is removed:\n{}",
        line(command, &format!("effects retry {}", effect.id))
    )
}

/// A command on a line of its own, broken where a shell lets it be when it is long.
fn line(command: &str, words: &str) -> String {
    const ROOM: usize = 74;
    if command.chars().count() + 1 + words.chars().count() <= ROOM {
        format!("  {command} {words}")
    } else {
        format!("  {command} \\\n    {words}")
    }
}
