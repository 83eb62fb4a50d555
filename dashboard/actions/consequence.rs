//! What a verb does to the outside world, in plain words. Pure: it knows the effect as it is shown, and what its downstream promises.

use aftercommit::{
    clock::{
        Timestamp,
        words::{relative, span, utc},
    },
    contract::{Contract, Dedupe, Window},
    follow::is_of_a_used_key,
    state::State,
    store::Status,
    verb::{Resolved, Verb, is_said_not_applied, may_apply_twice},
    visible::clean,
};

/// What a verb does to the outside world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// In a sentence or two.
    pub(crate) sentence: String,
    /// It may change the outside world a second time.
    pub(crate) risky: bool,
    /// What has to be typed, word for word, before it is done.
    pub(crate) type_this: Option<String>,
}

/// What `verb` does. `contract` is what the downstream promises today, as far as anybody registered it.
pub(crate) fn consequence(
    effect: &Status,
    verb: &Verb,
    contract: Option<&Contract>,
    now: Timestamp,
) -> Consequence {
    let harmless = |sentence: String| Consequence { sentence, risky: false, type_this: None };
    match verb {
        Verb::Retry => retry(effect, contract, now),
        Verb::Resend => resend(effect, contract, now),
        Verb::Cancel => harmless(cancel(effect)),
        Verb::ResolveApplied { .. } => harmless(
            "You say that it was applied: it becomes succeeded, and nothing is sent any more.".to_owned(),
        ),
        Verb::ResolveNotApplied => harmless(
            "You say that it was not applied: it becomes failed, and nothing is sent until somebody retries it."
                .to_owned(),
        ),
        Verb::Redact => harmless(
            "What was sent and what was answered is dropped for good; the key, the state and the times are kept. It cannot be \
             sent again."
                .to_owned(),
        ),
        Verb::Reissue { resolve } => reissue(effect, *resolve),
    }
}

fn retry(effect: &Status, contract: Option<&Contract>, now: Timestamp) -> Consequence {
    let key = clean(&effect.idempotency_key);
    let said = effect.last_error.as_deref().is_some_and(is_said_not_applied);
    let sentence = match effect.state {
        State::Failed if said => {
            let name = clean(&effect.downstream);
            // Nobody but that person vouches for it.
            let wrong = match contract.map(|contract| contract.dedupe) {
                Some(Dedupe::Key) => format!("it is applied twice once {name} has forgotten the key"),
                Some(Dedupe::Lookup | Dedupe::None) => {
                    format!("it will be applied twice: {name} cannot tell a repeated request from a new one")
                }
                None => format!("it may be applied twice: nobody knows here what {name} promises about keys"),
            };
            format!(
                "A person said that it was not applied; no answer showed it. It is attempted again from the start, with the same key \
                 {key}. If that person was wrong, {wrong}."
            )
        }
        State::Scheduled | State::Retrying => {
            let instead = effect.due_at.map(|due| format!(" instead of {}", relative(due, now)));
            format!("It is due now{}; what is sent stays the same.", instead.unwrap_or_default())
        }
        State::Waiting
        | State::Ready
        | State::InFlight
        | State::InDoubt
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::Expired => {
            format!("It was never applied. It is attempted again from the start, with the same key {key}.")
        }
    };
    Consequence { sentence, risky: effect.state == State::Failed && said, type_this: None }
}

fn cancel(effect: &Status) -> String {
    if effect.state == State::InFlight {
        return "It is in flight, so this is a request: no further attempt is made after this one, and its outcome decides."
            .to_owned();
    }
    if effect.uncertain {
        return "An earlier attempt may have been applied, so it is not called off but parked in doubt; nothing more is sent."
            .to_owned();
    }
    "It is called off and never sent.".to_owned()
}

fn resend(effect: &Status, contract: Option<&Contract>, now: Timestamp) -> Consequence {
    let name = clean(&effect.downstream);
    let type_this = format!("resend {}", effect.id);
    if is_of_a_used_key(effect) {
        let sentence = format!(
            "{name} knew this key before the effect was ever sent. A resend would get the same answer or, once the key is forgotten \
             there, act a second time: better reissue it, with a new key."
        );
        return Consequence { sentence, risky: true, type_this: Some(type_this) };
    }
    let what = match &effect.operation {
        Some(operation) => format!("apply {} twice", clean(operation)),
        None => "apply it twice".to_owned(),
    };
    let sent = match effect.first_sent_at {
        Some(at) => format!("this one was first sent {} ago", span(now.since(at))),
        None => "nobody knows when this one was first sent".to_owned(),
    };
    let risky = may_apply_twice(effect, contract, now);
    let promise = match contract.map(|contract| (contract.dedupe, contract.window)) {
        None => format!("nobody knows here what {name} promises about keys"),
        Some((Dedupe::None, _)) => format!("{name} cannot tell a repeated request from a new one"),
        Some((Dedupe::Lookup, _)) => {
            format!("{name} cannot tell a repeated request from a new one; it can only be asked")
        }
        Some((Dedupe::Key, None)) => format!("{name} does not say how long it keeps keys"),
        Some((Dedupe::Key, Some(Window::Forever))) => format!("{name} keeps keys for ever"),
        Some((Dedupe::Key, Some(Window::For(length)))) => format!("{name} keeps keys for {}", span(length)),
    };
    // Not "now": its downstream may be paused, or served by nobody.
    let once =
        format!("The same request with the same key is sent once more, as soon as {name} can be called");
    let ends = match effect.safe_until {
        Some(until) if !risky && until != Timestamp::MAX => format!(
            "it recognises this one until {}, so that a resend by then applies nothing twice. {once}; if that is not by then, nothing \
             is sent and it is in doubt again.",
            utc(until)
        ),
        Some(_) if !risky => format!("so a resend applies nothing twice. {once}."),
        Some(_) | None => format!("a resend may {what}. {once}, however late that is."),
    };
    let sentence = format!("{promise}; {sent}: {ends}");
    Consequence { sentence, risky, type_this: risky.then_some(type_this) }
}

fn reissue(effect: &Status, resolve: Option<Resolved>) -> Consequence {
    let name = clean(&effect.downstream);
    let (sentence, risky) = match (effect.state, resolve) {
        (State::Succeeded, _) => (
            format!(
                "It was applied. A new effect with a new key does the same at {name} once more: it will be applied twice."
            ),
            true,
        ),
        (State::InDoubt, Some(Resolved::Applied)) => (
            format!(
                "You say that it was applied: it becomes succeeded. A new effect with a new key does the same at {name} once more: it \
                 will be applied twice."
            ),
            true,
        ),
        (State::InDoubt, Some(Resolved::NotApplied)) => (
            format!(
                "It may have been applied, and you say that it was not: it becomes failed. A new effect with a new key takes its place, \
                 and {name} cannot tell that the two are one: if the old one was applied after all, it will be applied twice."
            ),
            true,
        ),
        (State::InDoubt, None) => (
            format!(
                "It may have been applied. A new effect with a new key takes its place, and {name} cannot tell that the two are \
                 one: if the old one was applied, it will be applied twice."
            ),
            true,
        ),
        (
            State::Waiting
            | State::Scheduled
            | State::Ready
            | State::InFlight
            | State::Retrying
            | State::Failed
            | State::Cancelled
            | State::Expired,
            _,
        ) => (
            format!(
                "It was not applied. A new effect with a new key takes its place; {name} takes that for a new request."
            ),
            false,
        ),
    };
    Consequence { sentence, risky, type_this: Some(format!("reissue {}", effect.id)) }
}
