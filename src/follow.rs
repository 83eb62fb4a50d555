//! What follows for an effect, in words: what happens on its own, and what a person can say. Pure.
//!
//! It names the ways out ([`Way`]) and leaves it to whoever shows them how they are taken: a command line writes commands, a page
//! has buttons. It decides nothing: what may follow is [`crate::decision`]'s and [`crate::verb`]'s.

mod doubt;

pub use doubt::{
    Asked, Why, asked, asking, is_of_a_used_key, key_protects, sent, sent_once_more, unknown_since,
    why_unknown,
};

use crate::{
    clock::{
        Timestamp,
        words::{relative, utc, utc_and_words},
    },
    contract::{Contract, Dedupe, OnUnknown},
    effect::EffectId,
    outcome::{Phase, Verdict},
    state::State,
    store::{Audited, DownstreamInfo, LoggedAttempt, PausedBy, Status},
    verb::{Verb, is_said_not_applied},
    visible::clean,
};

/// What is known of an effect when it is told what follows.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The effect.
    pub effect: &'a Status,
    /// Its attempts, oldest first.
    pub attempts: &'a [LoggedAttempt],
    /// Its downstream, where that holds it (`held_by`): who paused it, and why, is said only from this.
    pub holder: Option<&'a DownstreamInfo>,
    /// What its downstream promises today, as far as that is known here.
    pub contract: Option<&'a Contract>,
    /// What a person did to it last: that somebody asked to cancel it while it was in flight is said only from this.
    pub last_act: Option<&'a Audited>,
    /// The database's clock.
    pub now: Timestamp,
}

/// A piece of what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Words. What others wrote in them is [`clean`]; a line break begins another sentence.
    Says(String),
    /// A way that the sentence around it names.
    Names(Way),
    /// A way that a person may take now.
    Offers(Way),
}

/// What a person may do about an effect, or look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Run a worker.
    Work,
    /// Look at the downstreams.
    Downstreams,
    /// Go on sending to a downstream.
    Resume(String),
    /// Look at who did what to it.
    Audit(EffectId),
    /// Try a failed one again.
    Retry(EffectId),
    /// Send one in doubt once more.
    Resend(EffectId),
    /// Say that it was applied.
    ResolveApplied(EffectId),
    /// Say that it was not.
    ResolveNotApplied(EffectId),
    /// Put a new effect with a new key in its place.
    Reissue(EffectId),
    /// Say that one in doubt was not applied, and put a new effect with a new key in its place.
    ReissueNotApplied(EffectId),
}

/// What follows, and the ways that change it.
pub fn what_follows(known: &Known<'_>) -> Vec<Part> {
    let Known { effect, attempts, .. } = *known;
    match effect.state {
        State::Waiting => says("It waits for its prerequisites; nothing is sent before they succeeded."),
        State::Scheduled | State::Ready | State::Retrying => pending(known),
        State::InFlight => says(&in_flight(known)),
        State::InDoubt => in_doubt(known),
        State::Succeeded => succeeded(known),
        State::Failed => failed(effect, attempts),
        State::Cancelled => says("Nothing: it was called off before it was applied."),
        State::Expired => vec![
            Part::Says(
                "Nothing: it was not begun before it expired, and was never applied. If it is still wanted, a new effect with a \
                 new key:"
                    .to_owned(),
            ),
            Part::Offers(Way::Reissue(effect.id)),
        ],
    }
}

/// The parts as one text: a way that is named stands in its sentence, one that is offered on a line of its own.
pub fn text(parts: &[Part], name: impl Fn(&Way) -> String, offer: impl Fn(&Way) -> String) -> String {
    let mut text = String::new();
    let mut own_line = false;
    for part in parts {
        let offers = matches!(part, Part::Offers(_));
        if !text.is_empty() && (offers || own_line) && !text.ends_with('\n') {
            text.push('\n');
        }
        own_line = offers;
        match part {
            Part::Says(words) => text.push_str(words),
            Part::Names(way) => text.push_str(&name(way)),
            Part::Offers(way) => text.push_str(&offer(way)),
        }
    }
    text
}

fn says(words: &str) -> Vec<Part> {
    vec![Part::Says(words.to_owned())]
}

/// What holds it, and how that ends; nothing where nothing does.
fn held(known: &Known<'_>) -> Option<Vec<Part>> {
    let downstream = clean(&known.effect.downstream);
    Some(match known.effect.held_by.as_deref()? {
        "unserved" => vec![
            Part::Says(format!("No live worker serves {downstream}: start ")),
            Part::Names(Way::Work),
            Part::Says(" with a configuration that has it.".to_owned()),
        ],
        "pause" => paused(known),
        "breaker" => vec![
            Part::Says(format!(
                "The downstream {downstream} does not answer; one call at a time finds out when it does again: "
            )),
            Part::Names(Way::Downstreams),
            Part::Says(".".to_owned()),
        ],
        other => says(&format!("It is held by {}.", clean(other))),
    })
}

/// Who paused its downstream, when and why; or until when it asked to be left alone.
fn paused(known: &Known<'_>) -> Vec<Part> {
    let downstream = clean(&known.effect.downstream);
    let reason = |text: Option<&String>| text.map(|text| format!(": {}", clean(text))).unwrap_or_default();
    if let Some(PausedBy { at, who, reason: why }) = known.holder.and_then(|info| info.paused.as_ref()) {
        return vec![
            Part::Says(format!(
                "The downstream {downstream} was paused by {} at {}{}.\nNothing is sent until somebody resumes it:",
                clean(who),
                utc_and_words(*at, known.now),
                reason(why.as_ref())
            )),
            Part::Offers(Way::Resume(known.effect.downstream.clone())),
        ];
    }
    if let Some((info, until)) = known.holder.and_then(|info| Some((info, info.paused_until?))) {
        return says(&format!(
            "{} asked to be left alone until {}{}. It is sent after that.",
            clean(info.origin.as_deref().unwrap_or(&known.effect.downstream)),
            utc_and_words(until, known.now),
            reason(info.hold_reason.as_ref())
        ));
    }
    match known.holder.and_then(|info| info.rate.as_deref()) {
        Some(rate) => says(&format!(
            "The calls that the fleet may make to {downstream} ({}) are used up for now; it is sent when it is its turn.",
            clean(rate)
        )),
        None => vec![
            Part::Says(format!(
                "The downstream {downstream} is paused, asked for patience, or its rate is used up: "
            )),
            Part::Names(Way::Downstreams),
            Part::Says(" tells which. Nothing is sent until that ends.".to_owned()),
        ],
    }
}

fn pending(known: &Known<'_>) -> Vec<Part> {
    let Known { effect, attempts, now, .. } = *known;
    let mut parts = held(known).unwrap_or_else(|| says(&next(effect, attempts, now)));
    if effect.uncertain {
        // An offer ends its line by itself.
        let apart = if matches!(parts.last(), Some(Part::Offers(_))) { "" } else { "\n" };
        parts.extend(says(&format!("{apart}An earlier attempt may have been applied; {}", what_then(known))));
    }
    joined(parts)
}

/// What it means for the next attempt that an earlier one may have been applied.
fn what_then(known: &Known<'_>) -> String {
    let Known { effect, contract, now, .. } = *known;
    if let Some(until) = effect.safe_until.filter(|_| key_protects(effect, now)) {
        return match until {
            Timestamp::MAX => "the same key makes the next one safe.".to_owned(),
            until => format!("the same key makes the next one safe until {}.", utc(until)),
        };
    }
    match contract.map(|contract| (contract.dedupe, contract.on_unknown)) {
        Some((Dedupe::None, OnUnknown::Retry)) => {
            "the next one may be applied as well: duplicates are accepted here.".to_owned()
        }
        Some(_) => "no key keeps the next one from being applied as well. It is sent only where a person asked for one resend; else \
                    it is asked about, or parked in doubt."
            .to_owned(),
        None => "the next one carries the same key, and what that is worth there is not known here.".to_owned(),
    }
}

/// When it is sent, and why then.
fn next(effect: &Status, attempts: &[LoggedAttempt], now: Timestamp) -> String {
    let Some(due) = effect.due_at.filter(|due| *due > now) else {
        return "A worker sends it next.".to_owned();
    };
    let when = format!("at {} ({})", utc(due), relative(due, now));
    let last = attempts.iter().rfind(|attempt| !attempt.late && attempt.ended_at.is_some());
    match last.filter(|_| effect.state == State::Retrying) {
        Some(last) => {
            let why = last.error.as_deref().map(|why| format!(": {}", clean(why.trim_end_matches('.'))));
            format!(
                "It is sent again {when}, because attempt {} ended {}{}.",
                last.attempt,
                last.outcome.as_str().replace('_', " "),
                why.unwrap_or_default()
            )
        }
        None => format!("It is sent {when}."),
    }
}

fn in_flight(known: &Known<'_>) -> String {
    let Known { effect, now, .. } = *known;
    let worker = clean(effect.worker.as_deref().unwrap_or("a worker"));
    let mut words = match effect.lease_until {
        Some(until) if until > now => {
            format!("{worker} is carrying it out; its lease ends {}.", relative(until, now))
        }
        _ => format!(
            "The lease of {worker} has ended and it has not said what happened; the next sweep of a live worker decides."
        ),
    };
    if let Some(asked) = asked_to_cancel(known) {
        words.push_str(&format!(
            "\n{asked}. That is a request: what is being sent is not called back. No further attempt is made after this one, and its \
             outcome decides."
        ));
    }
    words
}

/// Who asked to cancel it while it was in flight, and when. The request holds until the attempt has ended; whatever a person does after
/// that is another act.
fn asked_to_cancel(known: &Known<'_>) -> Option<String> {
    let act = known.last_act.filter(|act| {
        act.verb == Verb::Cancel.as_str() && act.from_state.as_deref() == Some(State::InFlight.as_str())
    })?;
    Some(format!("{} asked to cancel it at {}", clean(&act.who), utc_and_words(act.at, known.now)))
}

fn in_doubt(known: &Known<'_>) -> Vec<Part> {
    let Known { effect, now, .. } = *known;
    let id = effect.id;
    let (why, _) = asked(effect);
    let why = if why.is_empty() { "its outcome could not be known" } else { why };
    let why = clean(why.trim_end_matches('.'));
    let mut parts = says(&format!(
        "In doubt because {why}.\nIt may or may not have been applied; nothing is sent again on its own.\n"
    ));
    if let Some(held) = held(known) {
        parts.extend(held);
        // An offer ends its line by itself.
        if !matches!(parts.last(), Some(Part::Offers(_))) {
            parts.extend(says("\n"));
        }
    }
    if let Some(asking) = asking(effect, now) {
        parts.extend(says(&format!("{asking}\n")));
    }
    let (place, key) = (clean(&effect.downstream), clean(&effect.idempotency_key));
    if let Some(until) = effect.quiet_at.filter(|until| *until > now) {
        // Nothing is offered that would be refused.
        parts.extend(says(&format!(
            "Its last request may still be travelling: nobody can resolve, resend or reissue it before {}.\nLook at {place} for the key \
             {key} meanwhile, and say then what you found.",
            utc_and_words(until, now)
        )));
        return joined(parts);
    }
    parts.extend([
        Part::Says(format!("Look at {place} for the key {key}, then say what you found:")),
        Part::Offers(Way::ResolveApplied(id)),
        Part::Offers(Way::ResolveNotApplied(id)),
    ]);
    if is_of_a_used_key(effect) {
        // As long as its key is remembered there, whatever comes under it is dropped: also its own first request.
        parts.extend(says(
            "A resend settles nothing: it would get the same answer or, once the downstream has forgotten the key, act a second \
             time. What is not there and still wanted needs a new key:",
        ));
        parts.push(Part::Offers(Way::ReissueNotApplied(id)));
    } else {
        parts.extend(says(&format!("or send it once more, {}:", sent_once_more(effect, now))));
        parts.push(Part::Offers(Way::Resend(id)));
    }
    joined(parts)
}

/// Words that follow words are one piece.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        if let Part::Says(words) = &part
            && let Some(Part::Says(before)) = joined.last_mut()
        {
            before.push_str(words);
        } else {
            joined.push(part);
        }
    }
    joined
}

fn succeeded(known: &Known<'_>) -> Vec<Part> {
    let effect = known.effect;
    match effect.last_outcome {
        Some(Verdict::Applied) | None => match asked_to_cancel(known) {
            Some(asked) => says(&format!(
                "Nothing: it was applied. {asked}: it was in flight by then, which was too late."
            )),
            None => says("Nothing: it was applied."),
        },
        Some(Verdict::Rejected | Verdict::NotApplied | Verdict::Unknown) => vec![
            Part::Says(
                "Nothing: it counts as applied, though its last attempt did not show it. Who said so:"
                    .to_owned(),
            ),
            Part::Offers(Way::Audit(effect.id)),
        ],
    }
}

fn failed(effect: &Status, attempts: &[LoggedAttempt]) -> Vec<Part> {
    if let Some(by) = effect.superseded_by {
        return says(&format!("Nothing: effect {by} took its place."));
    }
    let lost = [
        (effect.refusal_stored, STORED),
        (effect.payload_dropped, DROPPED),
        (effect.log_dropped, LOG_DROPPED),
    ];
    if let Some((_, why)) = lost.into_iter().find(|(is_so, _)| *is_so) {
        let mut parts = says(&format!("Nothing: it was never applied. {why}"));
        // What was dropped cannot be sent under another key either.
        if !effect.payload_dropped {
            parts.push(Part::Offers(Way::Reissue(effect.id)));
        }
        return parts;
    }
    let retry = Part::Offers(Way::Retry(effect.id));
    // A late row tells of an earlier attempt.
    let last = attempts.iter().rfind(|attempt| !attempt.late);
    if last.is_some_and(|attempt| attempt.phase == Phase::Render.as_str()) {
        return vec![
            Part::Says(
                "Nothing on its own: no request could be made of it, and nothing was sent. The effect itself cannot be \
                 changed: a retry can only help if the configuration was the cause and was corrected:"
                    .to_owned(),
            ),
            retry,
            Part::Says("else enqueue a new effect with a new key.".to_owned()),
        ];
    }
    if last.is_some_and(|attempt| attempt.outcome == Verdict::Applied) {
        return vec![Part::Says(ANSWERED.to_owned()), Part::Offers(Way::Reissue(effect.id))];
    }
    let nothing = if effect.last_error.as_deref().is_some_and(is_said_not_applied) {
        "Nothing on its own: a person said that it was not applied. If it was after all, a retry may apply it twice; if not, once the \
         cause is removed:"
    } else {
        "Nothing on its own: it was never applied. Once the cause is removed:"
    };
    vec![Part::Says(nothing.to_owned()), retry]
}

const ANSWERED: &str = "Nothing: somebody said that it was not applied, although its downstream answered as if it had been. As long as \
                        the key is remembered there, a retry gets that answer again, and counts as applied. A new effect with a new key:";
const STORED: &str = "The downstream has stored an answer under the key, so a retry could only replay it. A new effect with a new key:";
const DROPPED: &str = "Its payload was dropped (retention.payloads, or a redaction), so it cannot be sent again: enqueue a new effect with a new key.";
const LOG_DROPPED: &str = "Its attempt log was dropped (retention.history), so what the downstream saw is not known here any more and it cannot be sent again. A new effect with a new key:";

#[cfg(test)]
mod tests;
