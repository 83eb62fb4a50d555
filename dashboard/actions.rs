//! What people do, from a page or through the API: one verb on one effect ([`act`]), one verb on many ([`bulk`]), and what it does
//! to the outside world before it is done ([`consequence`]).
//!
//! Nothing is decided here about effects: the store judges, in the transaction that acts, by the state and the token that the
//! person saw. What is asked for besides is a confirmation, word for word, where the outside world may change twice.

mod consequence;
mod many;
mod switch;
#[cfg(test)]
mod tests;

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    contract::Contract,
    decision::History,
    effect::EffectId,
    follow::is_of_a_used_key,
    state::State,
    store::{Acted, RegisteredTerms, Status},
    verb::{Actor, Refusal, Resolved, Seen, Subject, Verb, judge},
};
use axum::http::StatusCode;

pub(crate) use consequence::{Consequence, consequence};
pub(crate) use many::{BulkWish, Preview, another_list, bulk, preview, rate_words, takes};
pub(crate) use switch::{absent_bulk, absent_downstream, by_whom, control_bulk, pause, resume};

use crate::{access::Visitor, api::json::VerbJson, problem::Problem, shared::Shared};

/// What somebody wants done, and what they decided on.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// What is to be done.
    pub(crate) verb: Verb,
    /// The state and the token that they saw.
    pub(crate) seen: Seen,
    /// Why.
    pub(crate) reason: Option<String>,
    /// What they typed, where something has to be typed.
    pub(crate) confirmation: Option<String>,
}

/// Carries it out. What comes back is [`Acted::Done`]; everything else is a problem that says what happened.
///
/// # Errors
///
/// 404 when there is no such effect, 409 when it changed since (with its present `state` and `token`) or its state forbids it, 422
/// when a confirmation or a reason is missing or differs.
pub(crate) async fn act(
    shared: &Shared,
    visitor: &Visitor,
    id: EffectId,
    wish: Wish,
) -> Result<Acted, Problem> {
    let Wish { verb, seen, reason, confirmation } = wish;
    let reason = reason.filter(|reason| !reason.trim().is_empty());
    let mut actor = actor(visitor, reason.clone());
    if matches!(verb, Verb::Resend | Verb::Reissue { .. }) {
        let effect = shared.database().effect(id).await?.ok_or_else(|| absent(id))?;
        let contract = contract(shared, &effect).await?;
        let now = shared.database().now().await?;
        // What is stale or forbidden is told as that: nobody need confirm what will not be done.
        if judge(&verb, &anybody(), Some(seen), &subject(&effect, contract.as_ref(), None), now).is_ok() {
            let told = consequence(&effect, &verb, contract.as_ref(), now);
            confirmed(&told, &confirmation, &reason)?;
            // Whoever is told that nothing is applied twice confirms nothing: it is sent only as long as that is so.
            actor.confirmed = told.type_this.is_some();
        }
    }
    match shared.database().act(id, &verb, &actor, Some(seen)).await? {
        Acted::Done(change, effect) => Ok(Acted::Done(change, effect)),
        Acted::NotFound => Err(absent(id)),
        Acted::Refused(Refusal::Stale { state, token }) => Err(stale(id, state, token)),
        Acted::Refused(Refusal::NeedsReason { .. }) => Err(reasonless(verb.as_str())),
        // The time until which it was safe ended a moment ago.
        Acted::Refused(refusal @ Refusal::Unconfirmed) => {
            Err(unconfirmed(&format!("{refusal}."), &format!("resend {id}")))
        }
        Acted::Refused(refusal @ Refusal::NotWritten { .. }) => Err(unusable(format!("{refusal}."))),
        Acted::Refused(refusal) => match shared.database().effect(id).await? {
            Some(effect) => Err(forbidden(&effect, &refusal.to_string())),
            None => Err(absent(id)),
        },
    }
}

/// Who acts, for the audit.
pub(crate) fn actor(visitor: &Visitor, reason: Option<String>) -> Actor {
    Actor { who: visitor.who.clone(), reason, from: Some(visitor.from.clone()), ..Actor::default() }
}

/// Refuses what was not confirmed word for word, or has no reason although it is risky.
pub(crate) fn confirmed(
    consequence: &Consequence,
    confirmation: &Option<String>,
    reason: &Option<String>,
) -> Result<(), Problem> {
    let Some(words) = &consequence.type_this else { return Ok(()) };
    if confirmation.as_deref().map(str::trim) != Some(words) {
        return Err(unconfirmed(&consequence.sentence, words));
    }
    if reason.is_none() {
        return Err(reasonless(words.split(' ').next().unwrap_or_default()));
    }
    Ok(())
}

fn unconfirmed(sentence: &str, words: &str) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "confirmation-needed",
        "It has to be confirmed word for word",
        format!("{sentence} To confirm it, say \"{words}\" word for word, and why."),
    )
    .with("confirmation", words)
}

/// What its operation is called with today, as far as anybody registered it.
pub(crate) async fn terms(shared: &Shared, effect: &Status) -> Result<Option<RegisteredTerms>, Problem> {
    match shared.database().terms(&effect.downstream, effect.operation.as_deref()).await {
        // A login at the database that may only view is told less, and still sees the page.
        Err(error) if error.is_forbidden() => Ok(None),
        found => Ok(found?),
    }
}

/// What the downstream promises today, as far as anybody registered it.
pub(crate) async fn contract(shared: &Shared, effect: &Status) -> Result<Option<Contract>, Problem> {
    Ok(terms(shared, effect).await?.map(|terms| terms.contract))
}

/// A verb, and what it would do now or why it is refused.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The verb.
    pub(crate) verb: Verb,
    /// What it would do; or why it is refused.
    pub(crate) outlook: Result<Consequence, Refusal>,
}

/// What each verb would do to `effect` now. What only the transaction of the action sees (whether the request would still be the one
/// that was sent) is judged there.
pub(crate) fn choices(
    effect: &Status,
    contract: Option<&Contract>,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Vec<Choice> {
    let subject = subject(effect, contract, expires_at);
    let resolve = (effect.state == State::InDoubt).then_some(Resolved::NotApplied);
    let verbs = [
        Verb::Retry,
        Verb::Resend,
        Verb::Cancel,
        Verb::ResolveApplied { response: None },
        Verb::ResolveNotApplied,
        Verb::Reissue { resolve },
        Verb::Redact,
    ];
    verbs
        .into_iter()
        .map(|verb| {
            let judged = judge(&verb, &anybody(), None, &subject, now);
            let outlook = judged.map(|_change| consequence(effect, &verb, contract, now));
            Choice { verb, outlook }
        })
        .collect()
}

/// A reason and a confirmation are asked for when it is done; before that the question is whether it could be.
fn anybody() -> Actor {
    Actor { reason: Some("a reason".to_owned()), confirmed: true, ..Actor::default() }
}

/// An effect as far as it is shown: without what only the transaction of the action sees.
fn subject(effect: &Status, contract: Option<&Contract>, expires_at: Option<Timestamp>) -> Subject {
    let history = History {
        id: effect.id,
        uncertain: effect.uncertain,
        sent_before: effect.attempts > 0,
        attempts: effect.attempts,
        tries: effect.attempts,
        started_at: effect.created_at,
        first_sent_at: effect.first_sent_at,
        window_at_claim: None,
        expires_at,
        resend: None,
        cancel_requested: false,
        applied_late: false,
        travels_until: effect.quiet_at,
    };
    Subject {
        state: effect.state,
        token: effect.token,
        history: (!effect.state.is_terminal()).then_some(history),
        contract: contract.cloned(),
        timeout: Duration::ZERO,
        key_used_before: is_of_a_used_key(effect),
        quiet_at: effect.quiet_at,
        pinned: None,
        superseded: effect.superseded_by.is_some(),
        refusal_stored: effect.refusal_stored,
        payload_dropped: effect.payload_dropped,
        log_dropped: effect.log_dropped,
    }
}

impl From<Choice> for VerbJson {
    fn from(choice: Choice) -> Self {
        let verb = match &choice.verb {
            Verb::ResolveApplied { .. } => "resolve, as applied",
            Verb::ResolveNotApplied => "resolve, as not_applied",
            Verb::Retry | Verb::Resend | Verb::Cancel | Verb::Redact | Verb::Reissue { .. } => {
                choice.verb.as_str()
            }
        };
        let needs_reason = choice.verb.needs_reason();
        match choice.outlook {
            Ok(Consequence { sentence, risky, type_this }) => Self {
                verb: verb.to_owned(),
                consequence: Some(sentence),
                refused: None,
                risky,
                reason_required: needs_reason || type_this.is_some(),
                confirmation: type_this,
            },
            Err(refusal) => Self {
                verb: verb.to_owned(),
                consequence: None,
                refused: Some(refusal.to_string()),
                risky: false,
                reason_required: needs_reason,
                confirmation: None,
            },
        }
    }
}

/// There is no such effect.
pub(crate) fn absent(id: EffectId) -> Problem {
    Problem::not_found(format!("There is no effect {id}. It was never written, or retention dropped it."))
}

/// The effect changed since the person looked.
fn stale(id: EffectId, state: State, token: i64) -> Problem {
    let detail = format!(
        "Effect {id} changed since you looked: it is {} now. Nothing was done. Look at it again, and decide on what it is.",
        state.as_str().replace('_', " ")
    );
    Problem::conflict("stale", detail).with("state", state.as_str()).with("token", token)
}

/// The state of the effect forbids it, for this reason.
pub(crate) fn forbidden(effect: &Status, why: &str) -> Problem {
    Problem::conflict("state-forbids", format!("Effect {}: {why}.", effect.id).replace("..", "."))
        .with("state", effect.state.as_str())
        .with("token", effect.token)
}

/// A reason is missing.
pub(crate) fn reasonless(verb: &str) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "reason-needed",
        "A reason is needed",
        format!("{verb} needs a reason, for the audit. Say why."),
    )
}

/// What was sent can be read, and cannot be done.
pub(crate) fn unusable(detail: impl Into<String>) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "request-unusable",
        "The request cannot be used",
        detail.into(),
    )
}
