//! A person's verbs: what each takes, what it does, and why it is refused. Pure; the store applies the change in the
//! transaction that judged it, with its audit row.

mod outlook;
mod refusal;
mod resend;
mod said;

pub use outlook::{Listed, Outlook, Refused, foresee, looks_beside};
pub use refusal::Refusal;
pub use resend::may_apply_twice;
pub(crate) use said::not_applied;
pub use said::{SAID_NOT_APPLIED, is_said_not_applied};

use std::time::Duration;

use crate::{
    clock::Timestamp,
    contract::Contract,
    decision::{CANCELLED_UNCERTAIN, History, Resend},
    state::State,
};

/// What a person may do to an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A failed effect again, in a new history; a scheduled or retrying one: due now.
    Retry,
    /// An in-doubt effect again, same key, exactly one attempt: past `safe_until`, and where the key promises nothing, only if it was
    /// confirmed ([`Actor::confirmed`]).
    Resend,
    /// Call it off; in flight, a request.
    Cancel,
    /// An in-doubt effect was applied; `response` is what the downstream said, if somebody knows, as JSON text.
    ResolveApplied {
        /// The response to store, as JSON text.
        response: Option<String>,
    },
    /// An in-doubt effect was not applied: nothing is sent until somebody says `retry`.
    ResolveNotApplied,
    /// Payload, body, headers, response and what the log quotes of the downstream go; key, fingerprint and outcome stay.
    Redact,
    /// A new effect with a new key takes its place: the same request, due now. It takes what has ended, or, with `resolve`, what is
    /// in doubt. A new effect is not begun after the old one's `expires_at`, unless that has passed: then the person's word counts.
    Reissue {
        /// What became of an effect in doubt; `None` where it has ended.
        resolve: Option<Resolved>,
    },
}

/// What a person says of an effect in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It was applied.
    Applied,
    /// It was not applied.
    NotApplied,
}

impl Resolved {
    /// The state that it ends in.
    pub const fn state(self) -> State {
        match self {
            Self::Applied => State::Succeeded,
            Self::NotApplied => State::Failed,
        }
    }
}

impl Verb {
    /// The word used on the command line and in the audit.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Resend => "resend",
            Self::Cancel => "cancel",
            Self::ResolveApplied { .. } => "resolve applied",
            Self::ResolveNotApplied => "resolve not-applied",
            Self::Redact => "redact",
            Self::Reissue { resolve: None } => "reissue",
            Self::Reissue { resolve: Some(Resolved::Applied) } => "reissue applied",
            Self::Reissue { resolve: Some(Resolved::NotApplied) } => "reissue not-applied",
        }
    }

    /// The verb that a word stands for; of those that may carry more, the plain one.
    pub fn of_word(word: &str) -> Option<Self> {
        let verbs = [
            Self::Retry,
            Self::Resend,
            Self::Cancel,
            Self::ResolveApplied { response: None },
            Self::ResolveNotApplied,
            Self::Redact,
            Self::Reissue { resolve: None },
            Self::Reissue { resolve: Some(Resolved::Applied) },
            Self::Reissue { resolve: Some(Resolved::NotApplied) },
        ];
        verbs.into_iter().find(|verb| verb.as_str() == word)
    }

    /// Whether a reason must be given: where a person changes the outcome or the key, or takes away what others may look for. A
    /// resend does none of these; what it risks is asked for by a typed confirmation, which wants a reason of its own.
    pub const fn needs_reason(&self) -> bool {
        match self {
            Self::ResolveApplied { .. } | Self::ResolveNotApplied | Self::Redact | Self::Reissue { .. } => {
                true
            }
            Self::Retry | Self::Resend | Self::Cancel => false,
        }
    }
}

/// Who acts, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// Who: a login, a token's name.
    pub who: String,
    /// The reason given.
    pub reason: Option<String>,
    /// From where: an address, or "command line".
    pub from: Option<String>,
    /// As part of which bulk: it is marked done in the transaction that acts, and nothing is done where the bulk is not running any
    /// more or the item was dealt with before.
    pub bulk: Option<BulkItem>,
    /// They were told that it may be applied twice, and confirmed it word for word. Whoever was told that it may not be has confirmed
    /// nothing: what makes it safe must then still hold when it is sent.
    pub confirmed: bool,
}

/// An item of a bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkItem {
    /// Which bulk.
    pub bulk: i64,
    /// Its place in the list, from 1.
    pub n: u32,
}

/// What the decision was made on: an action on anything newer is refused as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The state that the person saw.
    pub state: State,
    /// The token that the person saw.
    pub token: i64,
}

/// An effect as a verb judges it, read under a lock in the transaction that will change it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its state now.
    pub state: State,
    /// Its token now.
    pub token: i64,
    /// What is known of it; `None` once it has ended.
    pub history: Option<History>,
    /// The contract that its downstream registered, if any worker ever did.
    pub contract: Option<Contract>,
    /// How long a call to it may take, as registered with the contract.
    pub timeout: Duration,
    /// Its downstream knew the key before we ever sent it: the key protects nothing of ours.
    pub key_used_before: bool,
    /// Before this, the last request may still be travelling.
    pub quiet_at: Option<Timestamp>,
    /// The request hash of its last attempt, and of what would be sent today; `None` where unknown.
    pub pinned: Option<Pinned>,
    /// A new effect took its place.
    pub superseded: bool,
    /// The vendor has stored a refusal or a server error under the key: a retry could only replay it.
    pub refusal_stored: bool,
    /// Retention or a person dropped its payload; only a fingerprint tells what the request was.
    pub payload_dropped: bool,
    /// Retention dropped its attempt log. The log of what may still be sent holds every call that the downstream saw.
    pub log_dropped: bool,
}

/// Two hashes of a request: as it was sent, and as it would be rendered today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// As it was sent.
    pub sent: Vec<u8>,
    /// As the registered configuration would render it today; `None` when it no longer has the operation.
    pub today: Option<Vec<u8>>,
}

/// What the store writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Back into the queue, due now, with a new history: attempts, tries, first sending and uncertainty start anew.
    NewHistory,
    /// Due now; nothing else changes.
    DueNow,
    /// Into the queue for exactly one attempt.
    OneResend {
        /// Whether `safe_until` still holds.
        resend: Resend,
        /// When the sweep looks whether it may still be sent.
        sweep_at: Option<Timestamp>,
    },
    /// A mark for the next settle or sweep.
    RequestCancel,
    /// Out of the queue with this state; for *succeeded* with the response given.
    End(State),
    /// In doubt: cancelled while its outcome was unknown.
    Park(String),
    /// The fingerprint takes the place of the payload; the response, and what note and log say, go.
    Redact,
    /// A new effect supersedes it: `superseded_by` of the status. In doubt until now, it ends in this state first.
    Reissue(Option<State>),
    /// The same, until a probe at this time says more.
    Probe(Timestamp, String),
}

/// What `verb` does to `subject` at `now`, or why it is refused.
///
/// # Errors
///
/// [`Refusal`]; then nothing may be written.
pub fn judge(
    verb: &Verb,
    actor: &Actor,
    seen: Option<Seen>,
    subject: &Subject,
    now: Timestamp,
) -> Result<Change, Refusal> {
    if let Some(seen) = seen
        && (seen.state != subject.state || seen.token != subject.token)
    {
        return Err(Refusal::Stale { state: subject.state, token: subject.token });
    }
    if verb.needs_reason() && actor.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
        return Err(Refusal::NeedsReason { verb: verb.as_str() });
    }
    match verb {
        Verb::Retry => retry(subject),
        Verb::Resend => resend::judge(subject, actor, now),
        Verb::Cancel => cancel(subject, now),
        Verb::ResolveApplied { .. } => {
            in_doubt_and_quiet(verb, subject, now).map(|()| Change::End(State::Succeeded))
        }
        Verb::ResolveNotApplied => {
            in_doubt_and_quiet(verb, subject, now).map(|()| Change::End(State::Failed))
        }
        Verb::Redact => redact(subject),
        Verb::Reissue { resolve } => reissue(verb, *resolve, subject, now),
    }
}

fn retry(subject: &Subject) -> Result<Change, Refusal> {
    match subject.state {
        State::Failed if subject.superseded => Err(Refusal::Superseded),
        State::Failed if subject.refusal_stored || subject.key_used_before => Err(Refusal::RefusalStored),
        State::Failed if subject.payload_dropped => Err(Refusal::PayloadDropped),
        State::Failed if subject.log_dropped => Err(Refusal::LogDropped),
        State::Failed => Ok(Change::NewHistory),
        State::Scheduled | State::Retrying => Ok(Change::DueNow),
        State::InDoubt if subject.key_used_before => Err(wrong(
            "retry",
            "failed, scheduled or retrying effects",
            subject,
            "Its downstream knew the key before: resolve it, or reissue it with a new key.",
        )),
        State::InDoubt => Err(wrong(
            "retry",
            "failed, scheduled or retrying effects",
            subject,
            "It may have been applied: resend or resolve it.",
        )),
        State::Ready => {
            Err(wrong("retry", "failed, scheduled or retrying effects", subject, "It is due already."))
        }
        State::Waiting => Err(wrong(
            "retry",
            "failed, scheduled or retrying effects",
            subject,
            "It waits for its prerequisites.",
        )),
        State::InFlight => Err(wrong(
            "retry",
            "failed, scheduled or retrying effects",
            subject,
            "Wait for the attempt to end.",
        )),
        State::Succeeded | State::Cancelled | State::Expired => Err(wrong(
            "retry",
            "failed, scheduled or retrying effects",
            subject,
            "Reissue it: a new effect with a new key.",
        )),
    }
}

fn cancel(subject: &Subject, now: Timestamp) -> Result<Change, Refusal> {
    let uncertain = subject.history.as_ref().is_some_and(|history| history.uncertain);
    match subject.state {
        State::InFlight => Ok(Change::RequestCancel),
        State::Waiting | State::Scheduled | State::Ready | State::Retrying if uncertain => {
            let why = CANCELLED_UNCERTAIN.to_owned();
            let can_probe = subject.contract.as_ref().is_some_and(|contract| contract.can_probe);
            Ok(if can_probe {
                Change::Probe(subject.quiet_at.map_or(now, |until| until.max(now)), why)
            } else {
                Change::Park(why)
            })
        }
        State::Waiting | State::Scheduled | State::Ready | State::Retrying => {
            Ok(Change::End(State::Cancelled))
        }
        State::InDoubt => Err(wrong(
            "cancel",
            "pending effects, and in-flight ones as a request",
            subject,
            "It may have been applied: resolve it.",
        )),
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => {
            Err(wrong("cancel", "pending effects, and in-flight ones as a request", subject, "It has ended."))
        }
    }
}

/// What is in doubt is resolved in the same action, or nobody would know what became of the old effect.
fn reissue(
    verb: &Verb,
    resolve: Option<Resolved>,
    subject: &Subject,
    now: Timestamp,
) -> Result<Change, Refusal> {
    let takes = "effects that have ended, and in-doubt ones that are resolved with it";
    let wrong = |hint| Err(wrong(verb.as_str(), takes, subject, hint));
    match (subject.state, resolve) {
        (State::InDoubt, Some(_)) => in_doubt_and_quiet(verb, subject, now)?,
        (State::InDoubt, None) => return wrong("Say with it whether it was applied."),
        (State::Succeeded | State::Failed | State::Cancelled | State::Expired, None) => {}
        (State::Succeeded | State::Failed | State::Cancelled | State::Expired, Some(_)) => {
            return wrong("It has ended: there is nothing to resolve.");
        }
        (State::Waiting | State::Scheduled | State::Ready | State::Retrying, _) => {
            return wrong("It is still to be sent: cancel it first.");
        }
        (State::InFlight, _) => return wrong("Wait for the attempt to end."),
    }
    if subject.superseded {
        return Err(Refusal::Superseded);
    }
    if subject.payload_dropped {
        return Err(Refusal::PayloadDropped);
    }
    Ok(Change::Reissue(resolve.map(Resolved::state)))
}

/// What may still be sent must stay as it was written.
fn redact(subject: &Subject) -> Result<Change, Refusal> {
    match subject.state {
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => Ok(Change::Redact),
        State::InDoubt => Err(wrong(
            "redact",
            "effects that have ended",
            subject,
            "A resend would need its payload: resolve it first.",
        )),
        State::Waiting | State::Scheduled | State::Ready | State::Retrying => Err(wrong(
            "redact",
            "effects that have ended",
            subject,
            "Its payload is still to be sent: cancel it first.",
        )),
        State::InFlight => Err(wrong(
            "redact",
            "effects that have ended",
            subject,
            "Its payload may be sent again: wait for the attempt to end.",
        )),
    }
}

fn in_doubt_and_quiet(verb: &Verb, subject: &Subject, now: Timestamp) -> Result<(), Refusal> {
    if subject.state != State::InDoubt {
        return Err(wrong(verb.as_str(), "in-doubt effects", subject, "Nothing about it is in doubt now."));
    }
    match subject.quiet_at {
        Some(until) if now < until => Err(Refusal::StillTravelling { until }),
        _ => Ok(()),
    }
}

fn wrong(verb: &'static str, takes: &'static str, subject: &Subject, hint: &'static str) -> Refusal {
    Refusal::State { verb, takes, state: subject.state, hint }
}

#[cfg(test)]
pub(crate) mod tests;
