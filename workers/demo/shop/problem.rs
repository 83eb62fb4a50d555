//! Why a request was not carried out, as RFC 9457 has it. Nothing was written, and the key is free.

use aftercommit::error::EnqueueError;
use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An answer that is none of business.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, title, detail: detail.into() }
    }

    /// The body cannot be read.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "The body cannot be read", detail)
    }

    /// The body can be read, and is no order.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "This is not an order", detail)
    }

    /// The body is of a kind that is not read here.
    pub(super) fn unsupported() -> Self {
        let detail = "Send application/json or application/x-www-form-urlencoded.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "This kind of body is not read here", detail)
    }

    /// Credentials that are none.
    pub(super) fn stranger() -> Self {
        let detail =
            "Authorization must be Bearer or Basic with a credential; without it you are one of anybody.";
        Self::new(StatusCode::UNAUTHORIZED, "These are no credentials", detail)
    }

    /// There is no key; the guard refuses that before.
    pub(super) fn keyless() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "There is no key", "Send Idempotency-Key.")
    }

    /// There is no such order, or it is somebody else's.
    pub(super) fn missing(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is no such order", format!("You have no order {id}."))
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.status.as_u16()
    }
}

impl From<sqlx::Error> for Problem {
    fn from(problem: sqlx::Error) -> Self {
        tracing::warn!(%problem, "the order service cannot use its database");
        let detail = "Nothing was written: ask again with the same key.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "The database cannot be used", detail)
    }
}

impl From<EnqueueError> for Problem {
    fn from(error: EnqueueError) -> Self {
        match error {
            // The answer under this key was forgotten long ago; its effects were not.
            EnqueueError::OtherRequest { .. } | EnqueueError::NeedsName { .. } => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "This key stands for another order",
                "Use a new key for a new order.",
            ),
            EnqueueError::Invalid(problem) => Self::invalid(problem.to_string()),
            EnqueueError::Database(problem) => problem.into(),
            other => {
                tracing::error!(problem = %other, "an effect of an order cannot be written");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Something is wrong here", other.to_string())
            }
        }
    }
}

impl From<aftercommit::effect::InvalidEffect> for Problem {
    fn from(problem: aftercommit::effect::InvalidEffect) -> Self {
        Self::invalid(problem.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank", "title": self.title, "status": self.status.as_u16(), "detail": self.detail,
        });
        let form = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, form, Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, 1.into());
        }
        response
    }
}
