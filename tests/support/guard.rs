//! Guarding through the library on either database.

use std::time::Duration;

use aftercommit::guard::{
    Answer, Begun, Fingerprint, GuardError, Inbox as _, Request, RequestKey, Requests as _, Scope,
};

use super::Tx;

/// A request of `scope` whose body is `body`.
pub(crate) fn request(scope: &str, key: &str, body: &str) -> Request {
    Request {
        scope: Scope::parse(scope).expect("a scope"),
        key: RequestKey::parse(key).expect("a key"),
        fingerprint: Fingerprint::of("POST", "/orders", [], body.as_bytes()),
        ttl: None,
    }
}

/// An answer with this status and body, without headers.
pub(crate) fn answered(status: u16, body: &str) -> Answer {
    Answer { status, headers: Vec::new(), body: body.as_bytes().to_vec() }
}

impl Tx {
    /// Begins a request through the library.
    pub(crate) async fn begin_request(&mut self, request: &Request) -> Result<Begun, GuardError> {
        match self {
            Self::Postgres(tx) => tx.begin_request(request).await,
            Self::Sqlite(tx) => tx.begin_request(request).await,
        }
    }

    /// Finishes a request through the library.
    pub(crate) async fn finish_request(
        &mut self,
        request: &Request,
        answer: &Answer,
    ) -> Result<(), GuardError> {
        match self {
            Self::Postgres(tx) => tx.finish_request(request, answer).await,
            Self::Sqlite(tx) => tx.finish_request(request, answer).await,
        }
    }

    /// Accepts a message through the library.
    pub(crate) async fn accept(
        &mut self,
        consumer: &str,
        key: &str,
        keep: Duration,
    ) -> Result<bool, GuardError> {
        match self {
            Self::Postgres(tx) => tx.accept(consumer, key, keep).await,
            Self::Sqlite(tx) => tx.accept(consumer, key, keep).await,
        }
    }
}
