//! An effect that comes in as JSON: by the API, and from the command line.

use std::time::Duration;

use aftercommit::{
    Enqueued, IdempotencyKey, NewEffect,
    clock::Timestamp,
    effect::{EffectId, InvalidEffect},
    error::{EnqueueError, StoreError, said_against},
    store::{Look, Status},
    visible::clean,
};
use axum::http::StatusCode;
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::json::{EnqueueJson, shown_target};
use crate::{access::Visitor, actions, problem::Problem, shared::Shared};

/// Why an effect cannot be written as it is described.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// A column cannot take its value.
    #[error(transparent)]
    Invalid(#[from] InvalidEffect),
    /// What is said does not go together, or means nothing.
    #[error("{0}")]
    Wrong(String),
}

impl EnqueueJson {
    /// The effect that is described, at the time `now` of the database.
    ///
    /// # Errors
    ///
    /// [`Unwritable`], which names the member.
    pub fn into_effect(self, now: Timestamp) -> Result<NewEffect, Unwritable> {
        let wrong = |what: &str| Unwritable::Wrong(what.to_owned());
        let mut effect = NewEffect::to(self.downstream);
        if let Some(operation) = self.operation {
            effect = effect.operation(operation);
        }
        if let Some(key) = self.idempotency_key {
            effect = effect.key(IdempotencyKey::parse(key)?);
        }
        if self.content_type.is_some() && self.body_base64.is_none() {
            return Err(wrong("content_type goes with body_base64; a payload is JSON"));
        }
        match (self.payload, self.body_base64) {
            (Some(_), Some(_)) => return Err(wrong("body_base64 goes instead of a payload, not with one")),
            (Some(payload), None) => effect = effect.json_text(payload.get())?,
            (None, Some(body)) => {
                let body = STANDARD.decode(body).map_err(|_garbled| wrong("body_base64 is no base64"))?;
                let kind = self.content_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                effect = effect.body(kind, body);
            }
            (None, None) => {}
        }
        if let Some(headers) = self.headers.filter(|headers| !headers.is_empty()) {
            effect = effect.headers(&headers)?;
        }
        if let Some(target) = self.target {
            effect = effect.target(target);
        }
        if let Some(metadata) = self.metadata {
            effect = effect.metadata_text(metadata.get())?;
        }
        if let Some(trace_context) = self.trace_context {
            effect = effect.trace_context(trace_context);
        }
        match (self.due_at, self.delay_ms) {
            (Some(_), Some(_)) => return Err(wrong("delay_ms goes instead of due_at, not with it")),
            (Some(due_at), None) => effect = effect.due_at(due_at.0),
            (None, Some(delay)) => effect = effect.due_at(now.plus(Duration::from_millis(delay))),
            (None, None) => {}
        }
        if let Some(expires_at) = self.expires_at {
            if expires_at.0 <= now {
                return Err(Unwritable::Wrong(format!(
                    "expires_at {} has passed already: it would never be sent",
                    expires_at.0
                )));
            }
            effect = effect.expires_at(expires_at.0);
        }
        Ok(effect)
    }
}

/// An effect that was written, or found.
pub(super) struct Written {
    /// As it stands now.
    pub(super) effect: Status,
    /// Whether it was written now.
    pub(super) inserted: bool,
    /// Whose effect it is, where it is one of several; as far as it may be shown.
    pub(super) target: Option<String>,
}

/// Writes it in a transaction of its own.
pub(super) async fn enqueue(
    shared: &Shared,
    visitor: &Visitor,
    wish: EnqueueJson,
) -> Result<Vec<Written>, Problem> {
    let database = shared.database();
    let now = database.now().await?;
    let effect = wish.into_effect(now).map_err(|problem| actions::unusable(format!("{problem}.")))?;
    let enqueued = database.enqueue(&effect, &actions::actor(visitor, None)).await.map_err(refused)?;
    let several = enqueued.len() > 1;
    let mut written = Vec::with_capacity(enqueued.len());
    for one in &enqueued {
        let id = one.receipt().id;
        let effect = shared.eyes().effect(id).await?.ok_or_else(|| actions::absent(id))?;
        let target = if several { target(shared, id).await? } else { None };
        written.push(Written { effect, inserted: matches!(one, Enqueued::Inserted(_)), target });
    }
    Ok(written)
}

async fn target(shared: &Shared, id: EffectId) -> Result<Option<String>, Problem> {
    let intent = shared.eyes().intent(id, Look::Size).await?;
    Ok(intent.and_then(|intent| intent.target).map(|target| shown_target(&target, Look::Size)))
}

pub(crate) fn refused(problem: EnqueueError) -> Problem {
    match problem {
        EnqueueError::OtherRequest { .. } | EnqueueError::NeedsName { .. } => {
            let detail = format!("{}.", clean(&problem.to_string()));
            Problem::new(StatusCode::CONFLICT, "key-taken", "The key stands for another request", detail)
        }
        EnqueueError::Invalid(problem) => actions::unusable(format!("{problem}.")),
        EnqueueError::Database(problem) => {
            let said = problem
                .as_database_error()
                .map(|said| clean(&said_against(said)).trim_end_matches('.').to_owned());
            let problem = StoreError::during("enqueueing")(problem);
            match said.filter(|_| problem.is_refused_by_a_check()) {
                Some(said) => actions::unusable(format!("The effect was refused: {said}.")),
                None => problem.into(),
            }
        }
        other => {
            tracing::error!(problem = %other, "an effect cannot be written");
            Problem::failed()
        }
    }
}
