//! What follows for an effect, in words: what happens on its own, and what a person can say.

use aftercommit::{
    clock::Timestamp,
    decision::KEY_USED_BEFORE,
    outcome::Verdict,
    state::State,
    store::{DownstreamInfo, LoggedAttempt, PausedBy, Status},
};

use crate::cli::{
    Context,
    clean::clean,
    times::{relative, utc, utc_and_words},
};

/// What is known of an effect when it is told what follows.
pub(crate) struct Known<'a> {
    pub(crate) effect: &'a Status,
    pub(crate) attempts: &'a [LoggedAttempt],
    /// Its downstream, where that holds it.
    pub(crate) holder: Option<&'a DownstreamInfo>,
    /// Until when its last request may still be travelling, where one may.
    pub(crate) quiet_at: Option<Timestamp>,
    pub(crate) now: Timestamp,
}

/// What follows, and the commands that change it.
pub(crate) fn words(known: &Known<'_>, context: &Context) -> String {
    said(known, &context.invocation())
}

fn said(known: &Known<'_>, command: &str) -> String {
    let Known { effect, attempts, now, .. } = *known;
    match effect.state {
        State::Waiting => "It waits for its prerequisites; nothing is sent before they succeeded.".to_owned(),
        State::Scheduled | State::Ready | State::Retrying => {
            held(known, command).unwrap_or_else(|| pending(effect, now))
        }
        State::InFlight => in_flight(effect, now),
        State::InDoubt => in_doubt(known, command),
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

/// What holds it, and how that ends; nothing where nothing does.
fn held(known: &Known<'_>, command: &str) -> Option<String> {
    let downstream = clean(&known.effect.downstream);
    Some(match known.effect.held_by.as_deref()? {
        "unserved" => format!(
            "No live worker serves {downstream}: start `{command} work` with a configuration that has it."
        ),
        "pause" => paused(known, command),
        "breaker" => format!(
            "The downstream {downstream} does not answer; one call at a time finds out when it does again: `{command} \
             downstreams list`."
        ),
        other => format!("It is held by {}.", clean(other)),
    })
}

/// Who paused its downstream, when and why; or until when it asked to be left alone.
fn paused(known: &Known<'_>, command: &str) -> String {
    let downstream = clean(&known.effect.downstream);
    let reason = |text: Option<&String>| text.map(|text| format!(": {}", clean(text))).unwrap_or_default();
    if let Some(PausedBy { at, who, reason: why }) = known.holder.and_then(|info| info.paused.as_ref()) {
        return format!(
            "The downstream {downstream} was paused by {} at {}{}.\nNothing is sent until somebody resumes it:\n{}",
            clean(who),
            utc_and_words(*at, known.now),
            reason(why.as_ref()),
            line(command, &format!("downstreams resume {downstream}")),
        );
    }
    if let Some((info, until)) = known.holder.and_then(|info| Some((info, info.paused_until?))) {
        return format!(
            "{} asked to be left alone until {}{}. It is sent after that.",
            clean(info.origin.as_deref().unwrap_or(&downstream)),
            utc_and_words(until, known.now),
            reason(info.hold_reason.as_ref())
        );
    }
    match known.holder.and_then(|info| info.rate.as_deref()) {
        Some(rate) => format!(
            "The calls that the fleet may make to {downstream} ({}) are used up for now; it is sent when it is its turn.",
            clean(rate)
        ),
        None => format!(
            "The downstream {downstream} is paused, asked for patience, or its rate is used up: `{command} downstreams list` \
             tells which. Nothing is sent until that ends."
        ),
    }
}

fn pending(effect: &Status, now: Timestamp) -> String {
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

fn in_doubt(known: &Known<'_>, command: &str) -> String {
    let Known { effect, quiet_at, now, .. } = *known;
    let id = effect.id;
    let why = effect.last_error.as_deref().unwrap_or("its outcome could not be known");
    let why = clean(why.trim_end_matches('.'));
    let probe = effect
        .due_at
        .filter(|due| *due > now)
        .map(|due| format!("The downstream is asked {}. ", relative(due, now)))
        .unwrap_or_default();
    let probe = match held(known, command) {
        Some(held) => format!("{held}\n"),
        None => probe,
    };
    let wait = quiet_at.filter(|until| *until > now).map_or_else(String::new, |until| {
        format!(
            "Its last request may still be travelling: nobody can resolve or resend it before {}.\n",
            utc_and_words(until, now)
        )
    });
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
         It may or may not have been applied; nothing is sent again on its own. {probe}{wait}\
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
    // A late row tells of an earlier attempt.
    let last = attempts.iter().rev().find(|attempt| !attempt.late);
    if last.is_some_and(|attempt| attempt.phase == RENDER) {
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
pub(super) mod tests;
