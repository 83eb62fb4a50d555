//! One exchange: the request goes out once, and how far it got is proved, not guessed.

use std::{
    error::Error as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use aftercommit::downstream::Closed;
use base64::Engine as _;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use reqwest::{
    Client, ClientBuilder,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::{Instant, timeout_at};

use super::{classify::Answer, config::Auth, egress::Refused, request::Rendered};
use crate::{config::Secrets, socket};

/// A connection that does not come about in this time will not help an attempt.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// Shorter than the idle timeouts of common load balancers, so that we close before they do.
const POOL_IDLE: Duration = Duration::from_secs(30);
/// Without a version: the request must not change with a deployment.
const USER_AGENT: &str = "aftercommit";

/// The client of one downstream: it follows nothing, resends nothing, goes through no proxy, decodes nothing.
pub(super) fn client(tls: bool, fastest: Duration, concurrency: u32) -> Result<Client, String> {
    builder(tls, fastest, concurrency).build().map_err(|_error| NO_CLIENT.to_owned())
}

/// Why there is no client.
pub(crate) const NO_CLIENT: &str =
    "no HTTP client could be built: are the system's root certificates installed?";

/// The client's settings; tests speak HTTP/2 without TLS with them.
pub(crate) fn builder(tls: bool, fastest: Duration, concurrency: u32) -> ClientBuilder {
    let builder = Client::builder();
    // A machine without root certificates can still speak plain HTTP.
    let builder = if tls { builder } else { builder.tls_certs_only([]) };
    builder
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .user_agent(USER_AGENT)
        .connect_timeout((fastest / 2).min(CONNECT_TIMEOUT_MAX))
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(usize::try_from(concurrency).unwrap_or(usize::MAX))
}

/// The header that carries the secret, resolved.
pub(super) fn credential(
    auth: &Auth,
    secrets: &Secrets,
) -> Result<Option<(HeaderName, HeaderValue)>, String> {
    let (name, text) = match auth {
        Auth::None => return Ok(None),
        Auth::Bearer(secret) => (AUTHORIZATION, format!("Bearer {}", secrets.resolve(secret)?)),
        Auth::Basic { user, password } => {
            let pair = format!("{user}:{}", secrets.resolve(password)?);
            (AUTHORIZATION, format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
        }
        Auth::Header { name, value } => (name.clone(), secrets.resolve(value)?),
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_error| "the secret has a character that cannot stand in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// Our secrets, in the forms in which they are sent; they have been resolved before.
pub(super) fn secrets(auth: &Auth, secrets: &Secrets) -> Vec<String> {
    let resolved = |reference| secrets.resolve(reference).unwrap_or_default();
    match auth {
        Auth::None => Vec::new(),
        Auth::Bearer(secret) => vec![resolved(secret)],
        Auth::Header { value, .. } => vec![resolved(value)],
        Auth::Basic { user, password } => {
            let password = resolved(password);
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            vec![password, pair]
        }
    }
}

/// How an exchange ended without a whole answer. The sentences hold no text of the client's: it would hold the URL.
#[derive(Debug)]
pub(super) enum Failure {
    /// Certainly nothing was sent.
    NotBegun(String),
    /// Something may have been sent, and no answer came.
    NoAnswer(String),
    /// An answer was begun and not finished.
    Cut(Box<Answer>, String),
}

/// Sends the request and reads the answer, up to `max_response` bytes, all before `deadline`.
pub(super) async fn exchange(
    client: &Client,
    rendered: Rendered,
    place: &str,
    deadline: Instant,
    max_response: usize,
) -> Result<Answer, Failure> {
    let progress = Progress::default();
    let mut request = reqwest::Request::new(rendered.method, rendered.url);
    *request.headers_mut() = rendered.headers;
    *request.body_mut() =
        Some(reqwest::Body::wrap(Marked { bytes: Some(rendered.body), progress: progress.clone() }));
    // The future is dropped by the time the mark is read: nothing begins behind our back.
    let answered = timeout_at(deadline, client.execute(request)).await;
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let begun = !progress.seal();
            return Err(if !begun {
                // A name may lead elsewhere in a minute, also one whose answer the egress guard refused.
                Failure::NotBegun(match Refused::behind(&error) {
                    Some(refused) => format!("not sent: {refused}"),
                    None => connect_failure(&error, place),
                })
            } else {
                Failure::NoAnswer(format!(
                    "{place} broke the connection before it answered; the request may have arrived: look there for the key"
                ))
            });
        }
        Err(_elapsed) if progress.seal() => {
            return Err(Failure::NotBegun(late(place)));
        }
        Err(_elapsed) => {
            return Err(Failure::NoAnswer(format!(
                "no answer from {place} in time; the request may have arrived: look there for the key"
            )));
        }
    };
    read(response, place, deadline, max_response).await
}

async fn read(
    mut response: reqwest::Response,
    place: &str,
    deadline: Instant,
    max_response: usize,
) -> Result<Answer, Failure> {
    let mut answer = Answer {
        status: response.status().as_u16(),
        headers: std::mem::take(response.headers_mut()),
        body: Vec::new(),
        truncated: false,
    };
    loop {
        match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                let room = max_response - answer.body.len();
                answer.body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() > room {
                    answer.truncated = true;
                    return Ok(answer);
                }
            }
            Ok(Ok(None)) => return Ok(answer),
            Ok(Err(_error)) => {
                answer.truncated = true;
                return Err(Failure::Cut(
                    Box::new(answer),
                    format!("{place} broke off its answer: look there for the key"),
                ));
            }
            Err(_elapsed) => {
                answer.truncated = true;
                return Err(Failure::Cut(
                    Box::new(answer),
                    format!("{place} did not finish its answer in time: look there for the key"),
                ));
            }
        }
    }
}

/// Where a private authority is named: there is no key for it here.
pub(crate) const AUTHORITY: &str =
    "add its authority's certificate to the system's (or name it in SSL_CERT_FILE)";

fn late(place: &str) -> String {
    format!("no connection to {place} in time: look whether it is up, and whether a firewall lets us there")
}

fn connect_failure(error: &reqwest::Error, place: &str) -> String {
    if error.is_dns() {
        return format!(
            "the name of {place} cannot be resolved: correct the host, or look at this machine's name service"
        );
    }
    let mut source = error.source();
    let mut below: Option<&std::io::Error> = None;
    while let Some(error) = source {
        below = error.downcast_ref().or(below);
        source = error.source();
    }
    match below {
        Some(error) if socket::is_of_tls(error) => socket::no_tls(error, place, AUTHORITY),
        Some(error) => {
            format!("no connection to {place}: {}; look whether it is up", error.kind())
        }
        None if error.is_timeout() => late(place),
        None => format!("no connection to {place}; nothing was sent: look whether it is up"),
    }
}

/// Adds the credential: the one part of a request that is not pinned.
pub(super) fn authenticate(headers: &mut HeaderMap, credential: Option<&(HeaderName, HeaderValue)>) {
    if let Some((name, value)) = credential {
        headers.insert(name.clone(), value.clone());
    }
}

/// Why nothing was sent.
pub(crate) fn not_begun(closed: Closed) -> String {
    format!("not sent: {closed}")
}

/// Whether the request was begun. Shared by the body, which the connection's task asks, and the attempt.
#[derive(Clone, Debug, Default)]
struct Progress(Arc<AtomicU8>);

const IDLE: u8 = 0;
const BEGUN: u8 = 1;
const SEALED: u8 = 2;

impl Progress {
    /// The connection takes the request up. `false` when the attempt was given up before: then nothing may be sent.
    fn begin(&self) -> bool {
        match self.0.compare_exchange(IDLE, BEGUN, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(now) => now == BEGUN,
        }
    }

    /// Gives the attempt up. `true` proves that the request was never begun, and never will be.
    fn seal(&self) -> bool {
        self.0.compare_exchange(IDLE, SEALED, Ordering::SeqCst, Ordering::SeqCst) != Err(BEGUN)
    }
}

/// A body of known length that notes the moment its request is taken up: a connection (HTTP/1 and 2) asks a body whether
/// it is at its end before it writes the head, empty bodies included. Whoever asked earlier would only make us careful.
struct Marked {
    bytes: Option<Bytes>,
    progress: Progress,
}

impl Body for Marked {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        if !self.progress.begin() {
            return Poll::Ready(Some(Err(GivenUp)));
        }
        let rest = self.bytes.take().filter(|bytes| !bytes.is_empty());
        Poll::Ready(rest.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        // An empty body says so only once it was asked for its frame: HTTP/1 then writes `content-length: 0`. One that was
        // given up never says so: the connection then asks for a frame, and gets the error.
        self.progress.begin() && self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let sealed = self.progress.0.load(Ordering::SeqCst) == SEALED;
        SizeHint::with_exact(if sealed { length.max(1) } else { length })
    }
}

/// The attempt ended before the connection took the request up.
#[derive(Debug, thiserror::Error)]
#[error("the attempt was given up before its request was begun")]
struct GivenUp;
