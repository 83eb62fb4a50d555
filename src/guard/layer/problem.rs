//! What the guard answers by itself: problem details (RFC 9457), which say what happened and what to do next. Nothing that
//! the database says goes to a client.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::guard::protocol::MalformedKey;

/// Seconds: in most cases the other request has committed by then, or the database has a connection again.
const SOON: u64 = 1;

/// A problem that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    /// The last part of the problem's type.
    name: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    retry_after: Option<u64>,
}

const LOST: &str = "transaction-lost";
const SAME_KEY: &str = "Send the request again with the same Idempotency-Key: it is safe.";

impl Problem {
    fn new(
        status: StatusCode,
        name: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, name, title, detail: detail.into(), retry_after: None }
    }

    pub(super) fn missing() -> Self {
        let detail = "This request changes something and has no Idempotency-Key. Send the header with a value of your own that no other \
                      request of yours has, a UUID for example, and the same value whenever you send this request again.";
        Self::new(StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing", detail)
    }

    pub(super) fn malformed(why: MalformedKey) -> Self {
        let detail = format!("{why}. Nothing was done. Send a key of that form.");
        Self::new(StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed", detail)
    }

    pub(super) fn twice() -> Self {
        let detail =
            "The request has more than one Idempotency-Key header. Nothing was done. Send exactly one.";
        Self::new(StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is given twice", detail)
    }

    pub(super) fn unreadable() -> Self {
        let detail = "The body of the request did not arrive as a whole. Nothing was done. Send it again.";
        Self::new(StatusCode::BAD_REQUEST, "body-unreadable", "The body could not be read", detail)
    }

    /// Without a `WWW-Authenticate`: which scheme the application has is not known here. A layer that answers by itself in front
    /// of the guard says it better.
    pub(super) fn nobody() -> Self {
        let detail = "An Idempotency-Key belongs to whoever sends it, and this request does not say who that is. Nothing was done. Send \
                      your credentials.";
        Self::new(StatusCode::UNAUTHORIZED, "sender-unknown", "Nobody is known to have sent this", detail)
    }

    pub(super) fn request_too_large(limit: usize) -> Self {
        let detail = format!("The body is longer than {limit} bytes. Nothing was done. Send a shorter one.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large", detail)
    }

    pub(super) fn in_progress() -> Self {
        let detail = "A request with this Idempotency-Key is being worked on. Send it again with the same key after the time in \
                      Retry-After: then you get its answer.";
        Self::new(StatusCode::CONFLICT, "in-progress", "The request is in progress", detail).retry_after(SOON)
    }

    pub(super) fn mismatch() -> Self {
        let detail = "This Idempotency-Key was used for a request with another method, path, query, body or chosen header. Nothing was done. \
                      If you mean another request, send it with a new key; if you mean the same one, send exactly the same.";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "key-reused",
            "Idempotency-Key was used for another request",
            detail,
        )
    }

    /// Nothing was done, since the store could not be asked or told.
    pub(super) fn unavailable() -> Self {
        Self::service(
            "store-unavailable",
            format!("The database could not be used, and nothing was done. {SAME_KEY}"),
            SOON,
        )
    }

    pub(super) fn busy() -> Self {
        Self::service(
            "store-busy",
            format!("The database had no time for this request, and nothing was done. {SAME_KEY}"),
            SOON,
        )
    }

    pub(super) fn conflict() -> Self {
        Self::service(
            "conflict",
            format!("Another transaction came in between, and nothing was done. {SAME_KEY}"),
            0,
        )
    }

    /// As many requests as may be are in flight.
    pub(super) fn crowded() -> Self {
        Self::service(
            "too-many-in-flight",
            format!("This service works on as many requests as it can, and nothing was done. {SAME_KEY}"),
            SOON,
        )
    }

    /// The COMMIT was sent, and its answer is lost, or says nothing for certain.
    pub(super) fn unknown() -> Self {
        let detail = "The database did not say whether the request was committed. Send it again with the same Idempotency-Key to learn what \
                      happened: you get its answer if it was, and it runs if it was not.";
        Self::service("outcome-unknown", detail, SOON)
    }

    /// The same, of a request without a key.
    pub(super) fn unknown_without_key() -> Self {
        let detail = "The database did not say whether the request was committed, and the request had no Idempotency-Key: look whether it was \
                      done before you send it again.";
        Self::service("outcome-unknown", detail, SOON)
    }

    pub(super) fn too_long() -> Self {
        let detail = format!("The request took too long and was stopped. Nothing was done. {SAME_KEY}");
        Self::service("too-long", detail, SOON)
    }

    /// The handler panicked.
    pub(super) fn panicked() -> Self {
        Self::failed("handler-failed", format!("The request failed, and nothing was done. {SAME_KEY}"))
    }

    pub(super) fn answer_too_large(limit: usize) -> Self {
        let detail = format!(
            "The answer would be longer than the {limit} bytes that are stored, so nothing was done. Sending the request again does not \
             help; tell whoever runs this service (answer_limit)."
        );
        Self::failed("answer-too-large", detail)
    }

    pub(super) fn answer_broken() -> Self {
        Self::failed(
            "answer-broken",
            format!("The answer broke off while it was made, and nothing was done. {SAME_KEY}"),
        )
    }

    /// The handler has answered and still holds the transaction.
    pub(super) fn kept() -> Self {
        let detail = "The request's handler answered and went on using its transaction, so nothing was done. Tell whoever runs this service: \
                      Guarded must be dropped before the answer ends.";
        Self::failed("transaction-kept", detail)
    }

    /// The transaction was not there any more when its answer was to be stored.
    pub(super) fn lost() -> Self {
        let detail = "The transaction ended under the request's handler: what it wrote afterwards may be kept, what it wrote before is not. Look \
                      what was done before you send the request again, and tell whoever runs this service: its log has the cause.";
        Self::failed(LOST, detail)
    }

    /// Whether the transaction was lost, so that a repeat would act again.
    pub(super) fn is_lost(&self) -> bool {
        self.name == LOST
    }

    /// The database refused to store the answer.
    pub(super) fn refused() -> Self {
        let detail = format!(
            "The database refused to commit the request, and nothing was done. {SAME_KEY} If it fails again, tell whoever runs this \
             service: its log has the cause."
        );
        Self::failed("commit-refused", detail)
    }

    /// The database refused to begin.
    pub(super) fn unusable() -> Self {
        let detail = "The record of requests could not be used, and nothing was done. Tell whoever runs this service: its log has the cause.";
        Self::failed("store-unusable", detail)
    }

    pub(super) fn corrupt() -> Self {
        let detail = "This request was answered, and the stored answer cannot be read. It was not done again. Tell whoever runs this \
                      service: its log has the cause.";
        Self::failed("answer-unreadable", detail)
    }

    /// A handler asks for a transaction where none can be.
    pub(super) fn no_transaction(why: &'static str) -> Self {
        Self::failed("no-transaction", why)
    }

    fn failed(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, name, "The request failed", detail)
    }

    fn service(name: &'static str, detail: impl Into<Cow<'static, str>>, seconds: u64) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, name, "The request cannot be served now", detail)
            .retry_after(seconds)
    }

    fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// As it is sent.
    pub(super) fn response(&self) -> http::Response<Bytes> {
        let body = serde_json::json!({
            "type": format!("urn:aftercommit:problem:{}", self.name),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = http::Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_to_do_next() {
        let problems = [
            Problem::missing(),
            Problem::malformed(MalformedKey::Syntax),
            Problem::twice(),
            Problem::unreadable(),
            Problem::nobody(),
            Problem::request_too_large(10),
            Problem::in_progress(),
            Problem::mismatch(),
            Problem::unavailable(),
            Problem::busy(),
            Problem::conflict(),
            Problem::crowded(),
            Problem::lost(),
            Problem::unknown(),
            Problem::unknown_without_key(),
            Problem::too_long(),
            Problem::panicked(),
            Problem::answer_too_large(10),
            Problem::answer_broken(),
            Problem::kept(),
            Problem::refused(),
            Problem::unusable(),
            Problem::corrupt(),
        ];
        for problem in problems {
            let response = problem.response();
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["status"], response.status().as_u16(), "{body}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
            let detail = body["detail"].as_str().unwrap();
            assert!(["Send", "send", "Tell", "tell"].iter().any(|word| detail.contains(word)), "{detail}");
            let asks_to_wait = [409, 503].contains(&response.status().as_u16());
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), asks_to_wait, "{body}");
        }
    }
}
