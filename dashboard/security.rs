//! What holds for every answer and every request, whatever the route: headers, names that we are called by, where a write may come
//! from, and that a handler's panic or a client that hangs up harms nobody else.

#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest as _, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::timeout;

use crate::{
    access::{self, Client, Via},
    bulk, operations,
    problem::{Problem, Teller},
    routes::{Right, Root, slashed, writes},
    settings::Settings,
    shared::Shared,
    slow::{Patience, Timed},
};

/// The longest body, unless a route says otherwise: more than any form of ours.
pub(crate) const BODY_MAX: usize = 64 * 1024;

/// Nothing is loaded from elsewhere, nothing inline runs, nobody frames it. `Referrer-Policy: no-referrer` would make browsers send
/// `Origin: null` with our own forms, and over plain HTTP the origin is all that tells them from forged ones.
const HEADERS: [(HeaderName, &str); 8] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), payment=()"),
    (HeaderName::from_static("x-robots-tag"), "noindex, nofollow"),
];

/// What stands around everything.
#[derive(Clone)]
pub(crate) struct Around {
    shared: Shared,
    patience: Patience,
}

impl Around {
    pub(crate) fn new(shared: Shared, patience: Patience) -> Self {
        Self { shared, patience }
    }

    /// Whoever serves us: a body comes in time.
    fn timed(&self, request: Request) -> Request {
        request.map(|body| Body::new(Timed::new(body, self.patience.body)))
    }
}

/// Around every route, and around what has none.
pub(crate) async fn around(State(around): State<Around>, request: Request, next: Next) -> Response {
    let shared = &around.shared;
    let teller = Teller::of(&request, Root::of_request(&request));
    let answer = if !is_ours(request.headers(), request.uri(), shared.settings()) {
        Problem::misdirected().into_response()
    } else if let Some(to) = slashed(&request) {
        redirect(StatusCode::PERMANENT_REDIRECT, &to)
    } else {
        bulk::begin(shared);
        next.run(around.timed(request)).await
    };
    safe(teller.tell(answer, shared.redaction()).await)
}

/// Around what somebody puts beside the pages: it too is called by our names only, and no page of somebody else's changes anything there.
/// Programs that do not say where they come from are let through.
pub(crate) async fn beside(State(around): State<Around>, request: Request, next: Next) -> Response {
    let (headers, uri) = (request.headers(), request.uri());
    let answer = if !is_ours(headers, uri, around.shared.settings()) {
        Problem::misdirected().into_response()
    } else if !request.method().is_safe() && sender(headers, uri) == Sender::Strange {
        strange().into_response()
    } else {
        next.run(around.timed(request)).await
    };
    safe(answer)
}

fn safe(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What never changes says so itself.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// After a POST: `to`, relative to the address that was asked for, is to be shown.
pub(crate) fn see_other(to: &str) -> Response {
    redirect(StatusCode::SEE_OTHER, to)
}

fn redirect(status: StatusCode, to: &str) -> Response {
    match HeaderValue::from_str(to) {
        Ok(to) => (status, [(header::LOCATION, to)]).into_response(),
        Err(_) => Problem::failed().into_response(),
    }
}

/// Names that always lead to this machine and cannot be made to lead elsewhere.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Whether we are called by a name of our own. A page of somebody else's whose name was made to lead here (DNS rebinding) calls us by
/// that name. A literal address cannot be rebound, so health and metrics answer to any: probes and scrapers call by address.
fn is_ours(headers: &HeaderMap, uri: &Uri, settings: &Settings) -> bool {
    let Some(host) = host(headers, uri) else { return false };
    let host = host.host().to_ascii_lowercase();
    let named = LOOPBACK.contains(&host.as_str())
        || settings.hosts.iter().any(|name| name.eq_ignore_ascii_case(&host));
    named || (operations::PATHS.contains(&uri.path()) && is_literal(&host))
}

fn is_literal(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<std::net::IpAddr>().is_ok()
}

/// The one host that the request is for. None when it names none, several, or what is no host.
pub(crate) fn host(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    let mut named = headers.get_all(header::HOST).iter();
    let header = match (named.next(), named.next()) {
        (Some(host), None) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
        (None, _) => None,
        (Some(_), Some(_)) => return None,
    };
    let host = match (header, uri.authority().cloned()) {
        (Some(header), Some(line)) if header != line => return None,
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) => return None,
    };
    // No user belongs before a host here.
    (!host.as_str().contains('@')).then_some(host)
}

/// Where a request comes from, as far as a browser says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// A page of ours, or a person who typed the address.
    Ours,
    /// Somebody else's page.
    Strange,
    /// It does not say. Browsers do.
    Unsaid,
}

/// Judges by what no script can set: `Sec-Fetch-Site`, which browsers send where the connection is secure or local, else `Origin`.
fn sender(headers: &HeaderMap, uri: &Uri) -> Sender {
    match single(headers, "sec-fetch-site") {
        Some(Some("same-origin" | "none")) => return Sender::Ours,
        Some(_) => return Sender::Strange,
        None => {}
    }
    match single(headers, "origin") {
        None => Sender::Unsaid,
        Some(Some(origin)) if host(headers, uri).is_some_and(|host| is_same(origin, &host)) => Sender::Ours,
        Some(_) => Sender::Strange,
    }
}

/// The header's value: none when it is not there, `Some(None)` when it is there twice or no text.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(if values.next().is_some() { None } else { first.to_str().ok() })
}

/// Whether `origin`, or an address below it, is of `host`, with the port that its scheme has by itself.
pub(crate) fn is_same(origin: &str, host: &Authority) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    authority.host().eq_ignore_ascii_case(host.host())
        && authority.port_u16().unwrap_or(port) == host.port_u16().unwrap_or(port)
}

/// What stands before one route.
#[derive(Clone)]
pub(crate) struct Gate {
    shared: Shared,
    right: Right,
    patience: Patience,
    /// Whether it is found out who comes though anybody may.
    recognizes: bool,
}

impl Gate {
    pub(crate) fn new(shared: Shared, right: Right, patience: Patience) -> Self {
        Self { shared, right, patience, recognizes: false }
    }

    /// Before a route that anybody may ask, and that tells more to whom it knows.
    pub(crate) fn recognizing(shared: Shared, patience: Patience) -> Self {
        Self { recognizes: true, ..Self::new(shared, Right::Public, patience) }
    }

    /// Why this request goes no further. Who brings it is put into it, where that was found out.
    fn refusal(&self, client: &Client, request: &mut Request) -> Option<Response> {
        let Self { shared, right, .. } = self;
        let sender =
            if request.method().is_safe() { Sender::Ours } else { sender(request.headers(), request.uri()) };
        if sender == Sender::Strange {
            return Some(strange().into_response());
        }
        if *right == Right::Public {
            if let Some(Ok(visitor)) = self.recognizes.then(|| access::identify(shared, client, request)) {
                request.extensions_mut().insert(visitor);
            }
            return (sender == Sender::Unsaid).then(|| unsaid().into_response());
        }
        let visitor = match access::identify(shared, client, request) {
            Ok(visitor) => visitor,
            Err(stranger) => return Some(stranger.answer(shared, request)),
        };
        if sender == Sender::Unsaid && visitor.via != Via::Token {
            return Some(unsaid().into_response());
        }
        if !visitor.role.has(*right) {
            return Some(lacks(visitor.role, *right).into_response());
        }
        if visitor.read_only && writes(request.method(), *right) {
            return Some(read_only().into_response());
        }
        request.extensions_mut().insert(visitor);
        None
    }
}

/// Lets through who has the route's right. The handler runs in a task of its own: a client that hangs up must not drop a database call in
/// the middle of its transaction.
pub(crate) async fn pass(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let Gate { shared, right, patience, .. } = &gate;
    let client = Client::of(&request, shared.settings());
    if let Some(refusal) = gate.refusal(&client, &mut request) {
        return refusal;
    }
    if *right == Right::Public && !request.method().is_safe() {
        // Nothing that others wait for is held while it comes.
        request = match whole(request, patience.of_strangers).await {
            Ok(request) => request,
            Err(refusal) => return *refusal,
        };
    }
    request.extensions_mut().insert(client);
    access::strip(request.headers_mut(), shared.settings());
    let (changes, of) = (writes(request.method(), *right), shared.clone());
    let handled = async move {
        let answer = next.run(request).await;
        if changes {
            // Whoever did something is shown what became of it, and not what was counted a moment before.
            of.outdate();
        }
        answer
    };
    shared.run(*right, handled).await.unwrap_or_else(IntoResponse::into_response)
}

/// The request, once its body is here.
async fn whole(request: Request, within: Duration) -> Result<Request, Box<Response>> {
    let (parts, body) = request.into_parts();
    let read = Bytes::from_request(Request::from_parts(parts.clone(), body), &());
    match timeout(within, read).await {
        Ok(Ok(body)) => Ok(Request::from_parts(parts, Body::from(body))),
        Ok(Err(refusal)) => Err(Box::new(refusal.into_response())),
        Err(_late) => Err(Box::new(late().into_response())),
    }
}

fn late() -> Problem {
    let detail = "The body of this request did not come in time. Nothing was done. Send it again.";
    Problem::new(StatusCode::REQUEST_TIMEOUT, "body-too-slow", "The body came too slowly", detail)
}

fn strange() -> Problem {
    let detail = "This request comes from a page of somebody else, and it would change something. Nothing was done. Do it on the \
                  dashboard's own pages.";
    Problem::new(StatusCode::FORBIDDEN, "cross-site", "Sent by another site", detail)
}

fn unsaid() -> Problem {
    let detail = "This request would change something and does not say where it comes from. Nothing was done. A program sends a bearer \
                  token, or the header `Sec-Fetch-Site: none`; a browser is old and should be renewed.";
    Problem::new(StatusCode::FORBIDDEN, "origin-unsaid", "From nowhere", detail)
}

fn lacks(role: access::Role, right: Right) -> Problem {
    let needed = match right {
        Right::Public | Right::View => access::Role::Viewer,
        Right::Operate => access::Role::Operator,
        Right::Administer => access::Role::Admin,
    };
    let detail = format!(
        "You are let in as {}, and this takes {}. Nothing was done. Ask whoever runs the dashboard for that role.",
        role.as_str(),
        needed.as_str()
    );
    Problem::forbidden(detail).with("role", role.as_str()).with("needs", needed.as_str())
}

fn read_only() -> Problem {
    let detail = "The dashboard is read-only (`read_only` in [dashboard]), so nothing can be changed through it. Use the command line at \
                  the database itself, or ask whoever runs the dashboard.";
    Problem::new(StatusCode::FORBIDDEN, "read-only", "Read-only", detail)
}
