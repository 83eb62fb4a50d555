//! What follows for an effect, in words: what happens on its own, and what a person can say.

use aftercommit::{
    clock::Timestamp,
    decision::KEY_USED_BEFORE,
    outcome::Verdict,
    state::State,
    store::{LoggedAttempt, Status},
};

use crate::cli::{
    Context,
    clean::clean,
    times::{relative, utc},
};

/// What follows, and the commands that change it.
pub(crate) fn words(
    effect: &Status,
    attempts: &[LoggedAttempt],
    now: Timestamp,
    context: &Context,
) -> String {
    said(effect, attempts, now, &context.invocation())
}

fn said(effect: &Status, attempts: &[LoggedAttempt], now: Timestamp, command: &str) -> String {
    match effect.state {
        State::Waiting => "It waits for its prerequisites; nothing is sent before they succeeded.".to_owned(),
        State::Scheduled | State::Ready | State::Retrying => pending(effect, now, command),
        State::InFlight => in_flight(effect, now),
        State::InDoubt => in_doubt(effect, now, command),
        State::Succeeded => succeeded(effect, command),
        State::Failed => failed(effect, attempts, command),
        State::Cancelled => "Nothing: it was called off before it was applied.".to_owned(),
        State::Expired => {
            "Nothing: it was not begun before it expired, and was never applied. Write a new effect with a new key if it \
             is still wanted."
                .to_owned()
        }
    }
}

fn pending(effect: &Status, now: Timestamp, command: &str) -> String {
    match effect.held_by.as_deref() {
        Some("unserved") => {
            return format!(
                "No live worker serves {}: start `{command} work` with a configuration that has it.",
                clean(&effect.downstream)
            );
        }
        Some("pause") => {
            return format!(
                "The downstream {} is paused, asked for patience, or its rate is used up: `{command} downstreams list` tells \
                 which. Nothing is sent until that ends.",
                clean(&effect.downstream)
            );
        }
        Some("breaker") => {
            return format!(
                "The downstream {} does not answer; one call at a time finds out when it does again: `{command} downstreams \
                 list`.",
                clean(&effect.downstream)
            );
        }
        Some(other) => return format!("It is held by {}.", clean(other)),
        None => {}
    }
    let due = effect.due_at.filter(|due| *due > now);
    let next = due.map_or_else(
        || "A worker sends it next.".to_owned(),
        |due| format!("It is sent {}, at {}.", relative(due, now), utc(due)),
    );
    match (effect.last_outcome, effect.safe_until) {
        (Some(Verdict::Unknown), Some(until)) if until != Timestamp::MAX => format!(
            "{next}\nAn earlier attempt may have been applied; the same key makes the next one safe until {}.",
            utc(until)
        ),
        (Some(Verdict::Unknown), _) => {
            format!("{next}\nAn earlier attempt may have been applied; the next one carries the same key.")
        }
        (Some(Verdict::Applied | Verdict::Rejected | Verdict::NotApplied) | None, _) => next,
    }
}

fn in_flight(effect: &Status, now: Timestamp) -> String {
    let worker = clean(effect.worker.as_deref().unwrap_or("a worker"));
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
    let why = effect.last_error.as_deref().unwrap_or("its outcome could not be known");
    let why = clean(why.trim_end_matches('.'));
    let probe = effect
        .due_at
        .filter(|due| *due > now)
        .map(|due| format!("The downstream is asked {}. ", relative(due, now)))
        .unwrap_or_default();
    let once_more = if is_of_a_used_key(effect) {
        "A resend settles nothing: it would get the same answer or, once the downstream has forgotten the key, act a second \
         time. What is still wanted is a new effect with a new key."
            .to_owned()
    } else {
        let resend = line(command, &format!("effects resend {id} --reason 'why twice does no harm'"));
        format!("or send it once more, which may apply it twice:\n{resend}")
    };
    format!(
        "In doubt because {why}.\n\
         It may or may not have been applied; nothing is sent again on its own. {probe}\
         Look at {} for the key {}, then say what you found:\n{}\n{}\n{once_more}",
        clean(&effect.downstream),
        clean(&effect.idempotency_key),
        line(command, &format!("effects resolve {id} --as applied --reason 'seen there'")),
        line(command, &format!("effects resolve {id} --as not-applied --reason 'not there'")),
    )
}

/// Whether the downstream knew its key before it was ever sent: a message broker drops whatever comes under it.
pub(super) fn is_of_a_used_key(effect: &Status) -> bool {
    effect.last_error.as_deref().is_some_and(|why| why.starts_with(KEY_USED_BEFORE))
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

fn failed(effect: &Status, attempts: &[LoggedAttempt], command: &str) -> String {
    if let Some(by) = effect.superseded_by {
        return format!("Nothing: effect {by} took its place.");
    }
    if effect.refusal_stored {
        return format!("Nothing: it was never applied. {STORED}.");
    }
    if effect.payload_dropped {
        return format!("Nothing: it was never applied. {DROPPED}.");
    }
    if effect.log_dropped {
        return format!("Nothing: it was never applied. {LOG_DROPPED}.");
    }
    let retry = line(command, &format!("effects retry {}", effect.id));
    if attempts.last().is_some_and(|attempt| attempt.phase == RENDER) {
        return format!(
            "Nothing on its own: no request could be made of it, and nothing was sent. The effect itself cannot be \
             changed: a retry can only help if the configuration was the cause and was corrected:\n{retry}\n\
             else enqueue a new effect with a new key."
        );
    }
    format!("Nothing on its own: it was never applied. Once the cause is removed:\n{retry}")
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

/// How the attempt log calls an attempt that ended before anything was sent, while the request was made.
const RENDER: &str = "render";

/// Why a retry of a stored refusal is refused.
pub(super) const STORED: &str = "The downstream stored this refusal under the key, so a retry could only replay it: enqueue a new effect with a new key (reissue is not built yet)";

/// Why what has no payload any more is not sent again.
const DROPPED: &str = "Its payload was dropped (retention.payloads, or a redaction), so it cannot be sent again: enqueue a new effect with a new key";

/// Why what has no log any more is not sent again.
const LOG_DROPPED: &str = "Its attempt log was dropped (retention.history), so what the downstream saw is not known here any more and it cannot be sent again: enqueue a new effect with a new key";

/// Since when nobody knows whether it was applied: the end of the first attempt, of the present history, that did not show
/// it. `None` where there is nothing to know any more.
pub(super) fn unknown_since(effect: &Status, attempts: &[LoggedAttempt]) -> Option<Timestamp> {
    let open = match effect.state {
        State::InDoubt | State::Retrying | State::Ready | State::InFlight => true,
        State::Waiting
        | State::Scheduled
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::Expired => false,
    };
    let began = effect.first_sent_at.filter(|_| open)?;
    let first = attempts.iter().find(|attempt| {
        attempt.outcome == Verdict::Unknown && attempt.ended_at.is_some_and(|ended| ended >= began)
    });
    first.and_then(|attempt| attempt.ended_at)
}

#[cfg(test)]
mod tests {
    use aftercommit::effect::EffectId;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000 + 123_456)
    }

    fn effect(state: State) -> Status {
        Status {
            id: EffectId::new(17),
            downstream: "payments".to_owned(),
            operation: None,
            idempotency_key: "order-17".to_owned(),
            state,
            held_by: None,
            attempts: 1,
            due_at: None,
            first_sent_at: Some(at(10)),
            safe_until: None,
            lease_until: None,
            worker: None,
            last_outcome: Some(Verdict::Rejected),
            last_error: Some("refused\x1b[2J".to_owned()),
            response_status: Some(402),
            refusal_stored: false,
            payload_dropped: false,
            log_dropped: false,
            response: None,
            metadata: None,
            superseded_by: None,
            created_at: at(1),
            finished_at: None,
            token: 1,
        }
    }

    fn attempt(outcome: Verdict, phase: &str) -> LoggedAttempt {
        LoggedAttempt {
            effect_id: EffectId::new(17),
            attempt: 1,
            token: 1,
            worker: None,
            started_at: at(10),
            ended_at: Some(at(20)),
            phase: phase.to_owned(),
            outcome,
            response_status: None,
            error: None,
            late: false,
        }
    }

    #[test]
    fn a_retry_is_recommended_only_where_it_would_not_be_refused() {
        let stored = Status { refusal_stored: true, ..effect(State::Failed) };
        let words = said(&stored, &[attempt(Verdict::Rejected, "response")], at(30), "aftercommit");
        assert!(words.contains("new key") && !words.contains("effects retry"), "{words}");
        for dropped in [
            Status { payload_dropped: true, ..effect(State::Failed) },
            Status { log_dropped: true, ..effect(State::Failed) },
        ] {
            let words = said(&dropped, &[], at(30), "aftercommit");
            assert!(words.contains("new key") && !words.contains("effects retry"), "{words}");
        }
        let words = said(&effect(State::Failed), &[], at(30), "aftercommit --database sqlite:x.db");
        assert!(words.contains("aftercommit --database sqlite:x.db effects retry 17"), "{words}");
        let unsent = [attempt(Verdict::NotApplied, RENDER)];
        let words = said(&effect(State::Failed), &unsent, at(30), "aftercommit");
        assert!(words.contains("only help if the configuration was the cause"), "{words}");
    }

    #[test]
    fn a_resend_is_not_recommended_where_the_key_was_used_before() {
        let used = Status {
            last_error: Some(format!("{KEY_USED_BEFORE}, as our log holds no attempt (it was dropped)")),
            last_outcome: Some(Verdict::Applied),
            ..effect(State::InDoubt)
        };
        let words = said(&used, &[], at(30), "aftercommit");
        assert!(!words.contains("effects resend") && words.contains("new key"), "{words}");
        assert!(words.contains("--as applied") && words.contains("--as not-applied"), "{words}");
        let words = said(&effect(State::InDoubt), &[], at(30), "aftercommit");
        assert!(words.contains("effects resend 17"), "{words}");
    }

    #[test]
    fn what_follows_has_no_microseconds_and_no_control_characters() {
        let mut retrying =
            Status { due_at: Some(at(90)), safe_until: Some(at(900)), ..effect(State::Retrying) };
        retrying.last_outcome = Some(Verdict::Unknown);
        let words = said(&retrying, &[], at(30), "aftercommit");
        assert!(words.contains("in 60 s") && !words.contains(".123456"), "{words}");
        let words = said(&effect(State::InDoubt), &[], at(30), "aftercommit");
        assert!(!words.contains('\x1b') && words.contains(r"refused\x1b[2J"), "{words}");
    }

    #[test]
    fn an_effect_is_unknown_since_the_first_attempt_that_did_not_show_it() {
        let attempts = [attempt(Verdict::NotApplied, "connect"), attempt(Verdict::Unknown, "response")];
        assert_eq!(unknown_since(&effect(State::InDoubt), &attempts), Some(at(20)));
        assert_eq!(unknown_since(&effect(State::InDoubt), &attempts[..1]), None);
        assert_eq!(unknown_since(&effect(State::Failed), &attempts), None);
    }
}
