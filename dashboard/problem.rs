//! What the dashboard refuses and what fails, as one type: told as problem details (RFC 9457) to programs and as a small page to
//! people. It says what happened and what to do next; nothing that the database or a panic said is in it.

use std::borrow::Cow;

use aftercommit::error::StoreError;
use askama::Template;
use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::{redaction::Redaction, routes::Root};

/// A problem that whoever asks is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    status: StatusCode,
    /// The last part of the problem's type.
    name: &'static str,
    title: Cow<'static, str>,
    detail: Cow<'static, str>,
    /// Members of the problem's own, such as the state that an effect has now.
    more: Map<String, Value>,
    /// Seconds.
    retry_after: Option<u64>,
    /// A credential would help.
    challenge: bool,
}

impl Problem {
    /// One with a type, a title of a few words, and a detail that says what happened and what to do next.
    pub(crate) fn new(
        status: StatusCode,
        name: &'static str,
        title: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            name,
            title: title.into(),
            detail: detail.into(),
            more: Map::new(),
            retry_after: None,
            challenge: false,
        }
    }

    /// With one more member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// To be tried again after so many seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// With the word that credentials are asked for.
    pub(crate) fn challenge(self) -> Self {
        Self { challenge: true, ..self }
    }

    /// Its status.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether it is of this kind.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Its title.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// What happened and what to do next.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// What was asked for cannot be read.
    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request-malformed", "The request cannot be read", detail)
    }

    /// There is no such effect, downstream, bulk action.
    pub(crate) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    /// What is there forbids it.
    pub(crate) fn conflict(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, name, "Not as it stands", detail)
    }

    /// The visitor may not.
    pub(crate) fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// No route has that path.
    pub(crate) fn no_page() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no-such-page",
            "Not found",
            "There is nothing at this address. Check it, or go to the overview.",
        )
    }

    /// The path has no such method.
    pub(crate) fn method_not_allowed() -> Self {
        let detail =
            "What is at this address cannot be asked for in this way. The header Allow says how it can.";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Not in this way", detail)
    }

    /// It was called by a name that is not ours.
    pub(crate) fn misdirected() -> Self {
        let detail = "The dashboard does not know the host name that it was called by. Call it by a name of its own, or add this one to \
                      `hosts` in [dashboard].";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "host-unknown", "Called by a strange name", detail)
    }

    /// We failed. What about is in the log.
    pub(crate) fn failed() -> Self {
        let detail = "The dashboard failed, and its log says at what. If you were acting on an effect, look at it before you repeat it.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "The dashboard failed", detail)
    }

    /// As many requests as may be are being answered.
    pub(crate) fn crowded() -> Self {
        let detail =
            "The dashboard answers as many requests as it can. Nothing was done. Try again in a moment.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-requests", "Too many at one time", detail)
            .retry_after(1)
    }

    /// The database does not answer.
    pub(crate) fn unavailable() -> Self {
        let detail = "The database did not answer in time. Effects are not touched by that. Try again in a moment; if you were acting on \
                      an effect, look at it first.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "database-away", "The database does not answer", detail)
            .retry_after(2)
    }

    /// What somebody else answered with this status, said in our form.
    fn of_status(status: StatusCode, detail: String) -> Self {
        let (name, title) = match status {
            StatusCode::PAYLOAD_TOO_LARGE => ("body-too-large", "The body is too large"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ("media-type", "The body is of another type"),
            StatusCode::UNPROCESSABLE_ENTITY => ("request-unusable", "The request cannot be used"),
            _ => ("request-malformed", status.canonical_reason().unwrap_or("The request was refused")),
        };
        Self::new(status, name, title, detail)
    }

    /// As problem details.
    fn json(&self) -> String {
        let mut body = json!({
            "type": format!("urn:aftercommit:problem:{}", self.name),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Value::Object(body) = &mut body {
            body.extend(self.more.clone());
        }
        body.to_string()
    }

    fn page(&self, root: &Root) -> String {
        let page = ProblemPage { root, problem: self };
        page.render().unwrap_or_else(|_| self.title.clone().into_owned())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let form = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, form, self.json()).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.challenge {
            let scheme = HeaderValue::from_static("Bearer realm=\"aftercommit\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if error.is_outage() {
            tracing::warn!(%error, cause = cause(&error), "the database did not do what the dashboard asked");
            return Self::unavailable();
        }
        if matches!(error, StoreError::Invalid { .. }) {
            return Self::bad_request(format!("{error}."));
        }
        if matches!(error, StoreError::TooSlow { .. }) {
            let detail = format!("{error}. It was stopped so that it takes nothing from the work.");
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, "too-slow", "It took too long", detail)
                .retry_after(5);
        }
        if error.is_forbidden() {
            tracing::warn!(%error, cause = cause(&error), "the dashboard's login may not do that");
            return Self::forbidden(
                "The dashboard's own login to the database may not do that. Give it the role aftercommit_operator, or use another login.",
            );
        }
        if error.is_refusal() {
            tracing::info!(%error, cause = cause(&error), "the database refused a value");
            return Self::bad_request("The database refused a value of the request. Ask in plainer words.");
        }
        tracing::error!(%error, cause = cause(&error), "the database failed");
        Self::failed()
    }
}

fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// How a refusal is told.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    root: Root,
    /// A browser shows what we answer; everybody else reads it.
    pub(crate) shows: bool,
}

/// Longer than any refusal of axum's.
const WORDS_MAX: usize = 4096;

impl Teller {
    /// To whoever sent this request.
    pub(crate) fn of(request: &Request, root: Root) -> Self {
        let accepts =
            request.headers().get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let api = request.uri().path().starts_with("/api/");
        let shows =
            !api && accepts.into_iter().any(|accept| accept.to_ascii_lowercase().contains("text/html"));
        Self { root, shows }
    }

    /// The answer, with what is refused in it in the right form: also what an extractor refused in words of its own. What nobody is shown
    /// is shown by no refusal that quotes others.
    pub(crate) async fn tell(&self, mut answer: Response, redaction: &Redaction) -> Response {
        if answer.status().as_u16() < 400 {
            return answer;
        }
        let problem = match answer.extensions_mut().remove::<Problem>() {
            Some(problem) => problem,
            None if is_bare(&answer) => {
                let (parts, body) = answer.into_parts();
                let problem = bare(parts.status, body).await;
                answer = (parts, Body::empty()).into_response();
                problem
            }
            None => return answer,
        };
        let problem = Problem { detail: redaction.words(&problem.detail).into_owned().into(), ..problem };
        let (mut parts, _) = answer.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::CONTENT_TYPE);
        if self.shows {
            return (parts, Html(problem.page(&self.root))).into_response();
        }
        let mut told = problem.into_response();
        told.headers_mut().extend(parts.headers);
        told
    }
}

/// Nobody gave it a form.
fn is_bare(answer: &Response) -> bool {
    let form = answer.headers().get(header::CONTENT_TYPE).and_then(|form| form.to_str().ok());
    form.is_none_or(|form| form.starts_with("text/plain"))
}

async fn bare(status: StatusCode, body: Body) -> Problem {
    if status.is_server_error() {
        return Problem { status, ..Problem::failed() };
    }
    let words = to_bytes(body, WORDS_MAX).await.unwrap_or_default();
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    let detail =
        if words.is_empty() { "The request was refused. Check what it asks for.".to_owned() } else { words };
    Problem::of_status(status, detail)
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    root: &'a Root,
    problem: &'a Problem,
}
