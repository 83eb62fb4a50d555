//! What is known of an effect when it is shown, or decided about.

use aftercommit::{
    clock::Timestamp,
    contract::Contract,
    effect::{Effect, EffectId},
    store::{AuditFilter, Audited, Content, Intent, LoggedAttempt, Look, RegisteredTerms, Status},
};

use crate::{
    actions::{self, Choice},
    pages::{
        frame::Frame,
        parts::{Text, text},
    },
    problem::Problem,
    redaction::MASK,
    shared::Shared,
};

/// Audit rows of an effect that are shown.
const ACTS: u32 = 100;

/// An effect with what is known of it.
pub(in crate::pages) struct Known {
    pub(in crate::pages) effect: Status,
    pub(in crate::pages) attempts: Vec<LoggedAttempt>,
    pub(in crate::pages) audit: Vec<Audited>,
    pub(in crate::pages) intent: Option<Intent>,
    pub(in crate::pages) contract: Option<Contract>,
    /// Attempts that may have reached the downstream, of one history, at most.
    pub(in crate::pages) attempts_max: Option<u32>,
    pub(in crate::pages) alias: Option<Alias>,
    pub(in crate::pages) now: Timestamp,
}

/// What its downstream knows it by.
#[derive(Clone)]
pub(in crate::pages) struct Alias {
    pub(in crate::pages) name: &'static str,
    pub(in crate::pages) value: Text,
    /// As it is copied.
    pub(in crate::pages) raw: String,
}

impl Known {
    /// Reads it. What it carries is read for nobody who is not shown it.
    pub(in crate::pages) async fn read(
        shared: &Shared,
        frame: &Frame,
        id: EffectId,
    ) -> Result<Self, Problem> {
        let eyes = shared.eyes();
        let effect = eyes.effect(id).await?.ok_or_else(|| actions::absent(id))?;
        let filter = AuditFilter { effect: Some(id), limit: ACTS, ..AuditFilter::default() };
        let look = if frame.visitor.sees_content() { Look::Whole } else { Look::Size };
        let (attempts, audit) = (eyes.attempts(id).await?, eyes.audit(&filter).await?);
        let intent = eyes.intent(id, look).await?;
        let terms = actions::terms(shared, &effect).await?;
        Ok(Self { audit, ..Self::of(shared, effect, (attempts, intent), terms, frame.now) })
    }

    /// Of an effect that was read, without what people did.
    pub(in crate::pages) fn of(
        shared: &Shared,
        effect: Status,
        (attempts, intent): (Vec<LoggedAttempt>, Option<Intent>),
        terms: Option<RegisteredTerms>,
        now: Timestamp,
    ) -> Self {
        let alias = alias(shared, &effect, intent.as_ref());
        let attempts_max = terms.as_ref().map(|terms| terms.policy.max_attempts);
        let contract = terms.map(|terms| terms.contract);
        Self { effect, attempts, audit: Vec::new(), intent, contract, attempts_max, alias, now }
    }

    /// What each verb would do at `at`, or why it is refused.
    pub(in crate::pages) fn choices(&self, at: Timestamp) -> Vec<Choice> {
        let expires_at = self.intent.as_ref().and_then(|intent| intent.expires_at);
        actions::choices(&self.effect, self.contract.as_ref(), expires_at, at)
    }

    /// How often it was attempted, and how often it is at most.
    pub(in crate::pages) fn tries(&self) -> String {
        let n = self.effect.attempts;
        let Some(max) = self.attempts_max.filter(|max| *max < u32::MAX) else { return n.to_string() };
        // Where a person or a probe had it begun anew, the log holds more than is counted.
        let anew = self.audit.iter().any(|row| row.verb == "retry")
            || self.effect.first_sent_at.is_some_and(|began| {
                self.attempts.iter().filter_map(|attempt| attempt.ended_at).any(|ended| ended < began)
            });
        if anew || n > max {
            return format!("{n} in all; at most {max} in one go");
        }
        format!("{n} of at most {max}")
    }
}

/// What its downstream knows it by, as far as what is shown of the effect tells.
fn alias(shared: &Shared, effect: &Status, intent: Option<&Intent>) -> Option<Alias> {
    let given = given(effect, intent);
    let (name, value) = (shared.settings().known_as)(&given)?;
    // Made of something that nobody is shown it would be another one.
    (!value.contains(MASK)).then(|| Alias { name, value: text(&value), raw: value })
}

/// The effect as its downstream is given it, as far as it is shown.
fn given(effect: &Status, intent: Option<&Intent>) -> Effect {
    let (downstream, key) = (effect.downstream.as_str(), effect.idempotency_key.as_str());
    let payload = intent.and_then(|intent| match &intent.content {
        Content::Json(text) => text.clone(),
        Content::Bytes(_) | Content::Dropped | Content::None => None,
    });
    Effect {
        operation: effect.operation.clone(),
        payload,
        target: intent.and_then(|intent| intent.target.clone()),
        ..Effect::new(effect.id, downstream, key, effect.created_at)
    }
}
