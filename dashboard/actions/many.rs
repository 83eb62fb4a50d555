//! One verb for many effects: which ones is frozen on the server, once, with the state and the token of each; then
//! [`crate::bulk`] works through the list.

mod frozen;

use aftercommit::{
    clock::Timestamp,
    state::State,
    store::{Filter, NewBulk},
    verb::{Outlook, Verb},
    visible::clean,
};

use self::frozen::freeze;
use super::{Consequence, actor, confirmed, reasonless, unusable};
use crate::{access::Visitor, bulk::RATE_MAX, problem::Problem, shared::Shared};

/// What somebody wants done to many.
#[derive(Clone, Debug)]
pub(crate) struct BulkWish {
    /// Which effects. No states: all that the verb takes.
    pub(crate) filter: Filter,
    /// Of these only the ones of this group: see [`crate::causes::members`].
    pub(crate) cause: Option<String>,
    /// When ages are counted from; `None`: now.
    pub(crate) at: Option<Timestamp>,
    /// What is to be done.
    pub(crate) verb: Verb,
    /// Why.
    pub(crate) reason: Option<String>,
    /// At most this many a second; `None`: as configured.
    pub(crate) rate: Option<u32>,
    /// At most this many, the oldest first; `None`: as configured.
    pub(crate) limit: Option<u32>,
    /// What they typed, where something has to be typed.
    pub(crate) confirmation: Option<String>,
    /// [`Preview::digest`] of the list that they looked at; `None`: they decided on a filter, whatever it finds.
    pub(crate) digest: Option<String>,
}

/// What a bulk would do.
#[derive(Clone, Debug)]
pub(crate) struct Preview {
    /// What is told of the list, and of what matches and is not on it.
    pub(crate) outlook: Outlook,
    /// Stands for the list and for the state and the token of each effect on it, and for the verb.
    pub(crate) digest: String,
    /// What it does to the outside world.
    pub(crate) consequence: Consequence,
}

/// What `wish` would do now. Nothing is done.
///
/// # Errors
///
/// 422 when the verb does not take one of the filter's states, the rate is none, or too many match.
pub(crate) async fn preview(shared: &Shared, wish: &BulkWish) -> Result<Preview, Problem> {
    rate(shared, wish.rate)?;
    let frozen = freeze(shared, wish).await?;
    Ok(frozen.preview(wish))
}

/// Freezes what matches and starts the bulk; its number.
///
/// # Errors
///
/// 404 when nothing matches, 409 when the list is not the one that was looked at, or the verb is refused for all that match, 422 when a
/// confirmation or a reason is missing, the verb does not take one of the filter's states, the rate is none, or too many match.
pub(crate) async fn bulk(shared: &Shared, visitor: &Visitor, wish: BulkWish) -> Result<i64, Problem> {
    let reason = wish.reason.clone().filter(|reason| !reason.trim().is_empty());
    if wish.verb.needs_reason() && reason.is_none() {
        return Err(reasonless(wish.verb.as_str()));
    }
    let rate = rate(shared, wish.rate)?;
    let frozen = freeze(shared, &wish).await?;
    let preview = frozen.preview(&wish);
    if frozen.items.is_empty() {
        return Err(nothing_to_do(&preview));
    }
    // What is confirmed is what was looked at.
    if wish.digest.as_ref().is_some_and(|looked_at| *looked_at != preview.digest) {
        return Err(another_list(&preview));
    }
    confirmed(&preview.consequence, &wish.confirmation, &reason)?;
    let bulk = NewBulk {
        verb: wish.verb.as_str().to_owned(),
        what: in_words(&wish.filter, frozen.cause.as_deref()),
        rate,
        actor: actor(visitor, reason),
    };
    let id = shared.database().start_bulk(&bulk, &frozen.items).await?;
    crate::bulk::ring(shared);
    Ok(id)
}

/// Nothing matches, or nothing of what does can be acted on.
fn nothing_to_do(preview: &Preview) -> Problem {
    match preview.outlook.refused_in_words() {
        None => Problem::not_found("No effect matches: there is nothing to do."),
        Some((sentence, lines)) => {
            let detail = format!("Nothing was done. {sentence} {}.", lines.join("; "));
            Problem::conflict("state-forbids", detail)
        }
    }
}

/// What was looked at is not what would be acted on.
pub(crate) fn another_list(now: &Preview) -> Problem {
    let effects = effects(usize::try_from(now.outlook.effects).unwrap_or(usize::MAX));
    let detail = format!(
        "What would be acted on is not what you looked at any more: it is {effects} now, and at least one of them came in, went, or \
         changed. Nothing was done. Look at it again, and decide on what it is."
    );
    Problem::conflict("stale", detail)
        .with("effects", now.outlook.effects)
        .with("digest", now.digest.as_str())
}

/// Effects a second, of those that were asked for; 0: as fast as it goes.
fn rate(shared: &Shared, asked: Option<u32>) -> Result<u32, Problem> {
    // What is configured is a limit, as far as there is one.
    let limit = Some(shared.settings().bulk.rate).filter(|limit| (1..=RATE_MAX).contains(limit));
    match asked {
        Some(asked) if asked > RATE_MAX => Err(unusable(rate_words())),
        None | Some(0) => Ok(limit.unwrap_or(0)),
        Some(asked) => Ok(limit.map_or(asked, |limit| asked.min(limit))),
    }
}

/// What a rate may be.
pub(crate) fn rate_words() -> String {
    format!("rate: write a number from 1 to {RATE_MAX}; left out, it goes as configured.")
}

/// The states that a verb takes of an effect.
pub(crate) const fn takes(verb: &Verb) -> &'static [State] {
    match verb {
        Verb::Retry => &[State::Failed, State::Scheduled, State::Retrying],
        Verb::Resend | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied => &[State::InDoubt],
        Verb::Reissue { resolve: Some(_) } => &[State::InDoubt],
        Verb::Redact | Verb::Reissue { resolve: None } => {
            &[State::Succeeded, State::Failed, State::Cancelled, State::Expired]
        }
        Verb::Cancel => &[State::Waiting, State::Scheduled, State::Ready, State::Retrying, State::InFlight],
    }
}

/// What it means for so many effects, in words.
fn consequence(verb: &Verb, n: usize) -> Consequence {
    let effects = effects(n);
    let sentence = match verb {
        Verb::Retry => format!(
            "{effects} will be attempted again, each with its own key: failed ones from the start, the others now instead of later."
        ),
        Verb::Resend => format!(
            "{effects} may have been applied already. A resend sends each request once more; unless its downstream still recognises \
             the key, it may be applied a second time."
        ),
        Verb::Cancel => format!(
            "{effects} will be called off; what is in flight or may have been applied is not attempted again, and its outcome decides."
        ),
        Verb::ResolveApplied { .. } => {
            format!(
                "{effects} in doubt will be said to have been applied: they succeed, and nothing is sent."
            )
        }
        Verb::ResolveNotApplied => format!(
            "{effects} in doubt will be said not to have been applied: they fail, and nothing is sent until somebody retries them."
        ),
        Verb::Reissue { .. } => format!(
            "{effects} get a new effect with a new key in their place. Their downstreams take those for new requests: what was applied \
             is applied a second time."
        ),
        Verb::Redact => format!(
            "Of {effects} what was sent and what was answered will be dropped for good; keys and outcomes are kept."
        ),
    };
    let word = match verb {
        Verb::Resend => Some("resend"),
        Verb::Reissue { .. } => Some("reissue"),
        Verb::Retry | Verb::Cancel | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied | Verb::Redact => {
            None
        }
    };
    Consequence { sentence, risky: word.is_some(), type_this: word.map(|word| format!("{word} {n}")) }
}

/// "1 effect", "1,204 effects".
fn effects(n: usize) -> String {
    format!("{} {}", grouped(n), if n == 1 { "effect" } else { "effects" })
}

/// A filter in words, for whoever looks at the bulk later.
fn in_words(filter: &Filter, cause: Option<&str>) -> String {
    let mut words = Vec::new();
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    if !states.is_empty() {
        words.push(format!("state {}", states.join(" or ")));
    }
    let mut with = |name: &str, value: &Option<String>| {
        words.extend(value.as_deref().map(|value| format!("{name} {}", clean(value))));
    };
    with("downstream", &filter.downstream);
    with("operation", &filter.operation);
    with("key", &filter.key);
    with("metadata", &filter.metadata);
    with("error with", &filter.error);
    words.extend(cause.map(|cause| format!("of one cause: {cause}")));
    words.extend(filter.created_before.map(|at| format!("written before {at}")));
    words.extend(filter.created_after.map(|at| format!("written after {at}")));
    words.extend(filter.ids.as_ref().map(|ids| format!("{} chosen by hand", grouped(ids.len()))));
    if words.is_empty() { "all that the verb takes".to_owned() } else { words.join(", ") }
}

/// A number with its thousands apart.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
