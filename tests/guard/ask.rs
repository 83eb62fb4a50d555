//! Requests as clients send them, and what they are told.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue},
    response::Response,
};

/// A request.
#[derive(Clone)]
pub(super) struct Ask {
    method: &'static str,
    path: String,
    tenant: Option<&'static str>,
    headers: Vec<(&'static str, Vec<u8>)>,
    body: Vec<u8>,
}

impl Ask {
    pub(super) fn to(method: &'static str, path: &str) -> Self {
        let (path, body) = (path.to_owned(), b"A".to_vec());
        Self { method, path, tenant: Some("shop"), headers: Vec::new(), body }
    }

    /// POST /orders with this key, for the order A.
    pub(super) fn order(key: &str) -> Self {
        Self::to("POST", "/orders").key(key)
    }

    pub(super) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(super) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    pub(super) fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    pub(super) fn tenant(self, tenant: Option<&'static str>) -> Self {
        Self { tenant, ..self }
    }

    pub(super) fn into_request(self) -> Request {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers.iter().map(|(name, value)| (*name, value.as_slice())) {
            request = request
                .header(HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"));
        }
        if let Some(tenant) = self.tenant {
            request = request.header("x-tenant", tenant);
        }
        request.body(Body::from(self.body)).expect("a request")
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: String,
}

impl Told {
    pub(super) async fn read(answer: Response) -> Self {
        let (head, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("an answer has a whole body");
        let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        let body = body.iter().map(|byte| char::from(*byte)).collect();
        Self { status: head.status.as_u16(), headers: headers.collect(), body }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value).ok()
    }

    pub(super) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// As it was told the first time.
    pub(super) fn first(mut self) -> Self {
        self.headers.retain(|(name, _)| name != "idempotent-replayed");
        self
    }

    /// Status, and the last part of the problem's type.
    pub(super) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body: serde_json::Value = serde_json::from_str(&self.body).expect("a problem is JSON");
        let name = body["type"].as_str().expect("a problem has a type");
        (self.status, name.rsplit(':').next().unwrap_or_default().to_owned())
    }

    /// Asserts that it is this problem.
    #[track_caller]
    pub(super) fn is_problem(&self, status: u16, name: &str) {
        assert_eq!(self.problem(), (status, name.to_owned()), "{self:?}");
    }
}
