//! The connection: made once, shared, never mended. The client would republish what is queued when it reconnects; here one that
//! lost its server never reconnects, and all that it had is dropped with it.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ConnectOptions, HeaderMap, Message, Request, RequestError, RequestErrorKind, ServerAddr,
};
use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use super::{
    cage::Cage,
    refusals,
    signals::{Ends, Signals},
    stream::{Asked, Stream},
};
use crate::{
    config::host_port,
    shared::{Connection, Refused},
};

/// Bounds of the time between two questions whether the server is still there; three without an answer end the connection.
const PING: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// So long before its deadline at most, an attempt asks whether its bytes were handed to the socket.
const FLUSH: Duration = Duration::from_millis(200);

/// Bytes of a ping's answer.
const PONG: u64 = "PONG\r\n".len() as u64;
/// No answer that we ask for is as long, not even the description of a stream with many subjects.
const ANSWER_MAX: u64 = 8 << 20;
/// So often an attempt that waits looks how much has come. The client itself reads whatever a server sends.
const LOOK: Duration = Duration::from_millis(50);

/// How the server knows us. It never prints.
pub(super) enum Login {
    None,
    User { user: String, password: String },
    Token(String),
    Nkey(String),
    Creds(String),
}

/// Where the servers are, and how they know us.
pub(super) struct Access {
    servers: Vec<ServerAddr>,
    place: String,
    /// It is written that TLS is used.
    encrypted: bool,
    /// Whom TLS trusts; `None`: whom the client would.
    trust: Option<Arc<ClientConfig>>,
    login: Login,
    ping: Duration,
}

impl Access {
    /// The servers of `url` and `more`; `fastest` is the shortest timeout of an attempt. The error is (key, problem).
    pub(super) fn new(
        url: &Url,
        more: &[String],
        (login, trust): (Login, Option<Arc<ClientConfig>>),
        fastest: Duration,
    ) -> Result<Self, (String, String)> {
        let mut bare = url.clone();
        // The client gets them by its options, so that no address that it may print holds any.
        if bare.set_username("").is_err() || bare.set_password(None).is_err() {
            return Err(("url".to_owned(), "must name a host".to_owned()));
        }
        let texts = std::iter::once(bare.as_str()).chain(more.iter().map(String::as_str));
        let servers = texts
            .map(|text| text.parse::<ServerAddr>())
            .collect::<Result<_, _>>()
            .map_err(|_error| ("url".to_owned(), "is no address of a NATS server".to_owned()))?;
        let place = host_port(url);
        let encrypted = url.scheme() == "tls";
        Ok(Self { servers, place, encrypted, trust, login, ping: (fastest / 4).clamp(PING.0, PING.1) })
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.place.clone()
    }

    fn options(&self, signals: &Arc<Signals>, each: Duration) -> io::Result<ConnectOptions> {
        let options = match &self.login {
            Login::None => ConnectOptions::new(),
            Login::User { user, password } => {
                ConnectOptions::with_user_and_password(user.clone(), password.clone())
            }
            Login::Token(token) => ConnectOptions::with_token(token.clone()),
            Login::Nkey(seed) => ConnectOptions::with_nkey(seed.clone()),
            Login::Creds(text) => ConnectOptions::with_credentials(text)?,
        };
        let options = match &self.trust {
            Some(trust) => options.tls_client_config(ClientConfig::clone(trust)),
            None => options,
        };
        let (lost, heard) = (Ends(Arc::clone(signals)), Ends(Arc::clone(signals)));
        let began = AtomicBool::new(false);
        Ok(options
            .name("aftercommit")
            .connection_timeout(each)
            .request_timeout(None)
            .ping_interval(self.ping)
            .ignore_discovered_servers()
            // Asked before every connection, by the task that holds what is queued: the second one never comes.
            .reconnect_to_server_callback(move |_servers, _info| {
                let again = began.swap(true, Ordering::SeqCst);
                let lost = Arc::clone(&lost.0);
                async move {
                    if again {
                        lost.gone.cancel();
                        std::future::pending::<()>().await;
                    }
                    None
                }
            })
            .event_callback(move |event| {
                heard.0.hear(&event);
                async {}
            }))
    }
}

/// What came of a publish.
#[derive(Debug)]
pub(super) enum Heard {
    Answer(Box<Message>),
    /// Nobody listens on the subject: the server says so at once.
    NobodyListens,
    /// The server does not let us publish to the subject.
    Denied,
    /// The server refuses the subject, and nobody can say whether it meant this publish: it was not answered.
    PerhapsDenied,
    /// Not sent: the server had just refused the subject to another attempt.
    NotBegun,
    /// It was not sent.
    TooLarge,
    /// The connection ended.
    Lost,
    /// The server sent more than any answer has, and the connection was ended for that.
    TooMuch,
    /// The deadline passed.
    Silent,
}

/// A connection.
pub(super) struct Link {
    client: Client,
    stream: Mutex<Stream>,
    signals: Arc<Signals>,
    cage: Cage,
}

impl Connection for Link {
    fn is_usable(&self) -> bool {
        self.signals.is_usable()
    }
}

impl Link {
    /// Connects, and asks what the stream is.
    pub(super) async fn open(access: &Access, stream: &str, deadline: Instant) -> Result<Self, Refused> {
        let link = Self::connect(access, deadline).await?;
        link.look_again(stream, &access.place()).await?;
        Ok(link)
    }

    /// Asks what the stream is now.
    pub(super) async fn look_again(&self, stream: &str, place: &str) -> Result<(), Refused> {
        let stream = self.ask(stream, place).await?;
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        Ok(())
    }

    /// Connects, and asks nothing.
    pub(super) async fn connect(access: &Access, deadline: Instant) -> Result<Self, Refused> {
        let place = access.place();
        let signals = Arc::new(Signals::new());
        let cage = Cage::new().map_err(|_error| {
            Refused::unreachable("the system gave no thread for a connection: look at its limits")
        })?;
        let servers = access.servers.clone();
        // Each server gets its share of the time.
        let each = deadline.saturating_duration_since(Instant::now())
            / u32::try_from(servers.len()).unwrap_or(1).max(1);
        let options = access
            .options(&signals, each)
            .map_err(|_error| Refused::us("the text of creds cannot be read: write the whole .creds file"))?;
        let connecting = cage
            .spawn(async_nats::connect_with_options(servers, options))
            .ok_or_else(|| Refused::unreachable(format!("the connection to {place} was ended")))?;
        let client = match timeout_at(deadline, connecting).await {
            Ok(Ok(Ok(client))) => client,
            Ok(Ok(Err(error))) => return Err(refusals::of_connection(&error, &place, access.encrypted)),
            // A panic of the client stays in its cage.
            Ok(Err(_join)) => {
                let why = format!("{place} sent something that is not NATS: look what answers there");
                return Err(Refused::unreachable(why));
            }
            Err(_elapsed) => {
                let why = format!("{place} did not answer in time: look whether it is up, and at its load");
                return Err(Refused::unreachable(why));
            }
        };
        Ok(Self { client, stream: Mutex::default(), signals, cage })
    }

    async fn ask(&self, name: &str, place: &str) -> Result<Stream, Refused> {
        let subject = format!("$JS.API.STREAM.INFO.{name}");
        let request = Request::new().timeout(None);
        let asked = tokio::select! {
            asked = self.client.send_request(subject, request) => asked,
            () = self.flooded() => return Err(Refused::unreachable(too_much(place))),
            () = self.signals.gone.cancelled() => {
                return Err(Refused::unreachable(format!("{place} closed the connection: its log says why")));
            }
        };
        let answer = match asked {
            Ok(answer) => answer,
            // Also while an account's JetStream starts, or its leader is elected.
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(Refused::unreachable(format!(
                    "{place} has no JetStream now, or this account may not use it: look at the server's log"
                )));
            }
            Err(error) => {
                self.end_if_dead(error.kind());
                return Err(Refused::unreachable(unsaid(name, place)));
            }
        };
        let asked = serde_json::from_slice::<Asked>(&answer.payload).unwrap_or_default();
        match (asked.error, asked.config) {
            (Some(error), _) => Err(refusals::of_stream(&error, name, place)),
            (None, Some(stream)) if stream.no_ack => Err(Refused::us(format!(
                "the stream {name} acknowledges nothing, so nobody could say whether a message was stored: take no_ack from it"
            ))),
            (None, Some(stream)) => Ok(stream),
            (None, None) => Err(Refused::unreachable(unsaid(name, place))),
        }
    }

    /// The client's tasks drop what they owe an answer for when they end, if only by a panic.
    fn end_if_dead(&self, kind: RequestErrorKind) {
        if kind == RequestErrorKind::Other {
            self.signals.gone.cancel();
            self.cage.end();
        }
    }

    /// What the stream said when it was asked last.
    pub(super) fn stream(&self) -> Stream {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that the server takes as one message.
    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Whether it is TLS: because the URL says so, or the server insists.
    pub(super) fn is_encrypted(&self, access: &Access) -> bool {
        access.encrypted || self.client.server_info().tls_required
    }

    /// The server's version.
    pub(super) fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Publishes once, and waits for what the server says until `deadline`.
    pub(super) async fn publish(
        &self,
        subject: &str,
        headers: HeaderMap,
        body: Bytes,
        deadline: Instant,
    ) -> Heard {
        if !self.signals.begins(subject) {
            return Heard::NotBegun;
        }
        let statistics = self.client.statistics();
        let before = statistics.in_bytes.load(Ordering::Relaxed);
        let request = Request::new().headers(headers).payload(body).timeout(None);
        let answer = self.client.send_request(subject.to_owned(), request);
        let heard = tokio::select! {
            biased;
            answer = answer => self.heard(answer),
            () = self.signals.all_refused(subject) => Heard::Denied,
            () = self.flooded() => Heard::TooMuch,
            () = self.signals.gone.cancelled() => Heard::Lost,
            () = self.flushed_by(deadline) => Heard::Silent,
        };
        match &heard {
            Heard::Answer(_) | Heard::NobodyListens | Heard::TooLarge => self.signals.answered(subject),
            Heard::Silent | Heard::Lost if self.signals.refused(subject) => return Heard::PerhapsDenied,
            // Nothing was heard, but perhaps the answer to a ping of before: the next attempt gets another connection, and no
            // doubt of this one's.
            Heard::Silent if statistics.in_bytes.load(Ordering::Relaxed) <= before + PONG => {
                self.signals.retire()
            }
            Heard::Silent
            | Heard::Lost
            | Heard::TooMuch
            | Heard::Denied
            | Heard::PerhapsDenied
            | Heard::NotBegun => {}
        }
        heard
    }

    fn heard(&self, answer: Result<Message, RequestError>) -> Heard {
        match answer {
            Ok(message) => Heard::Answer(Box::new(message)),
            Err(error) => match error.kind() {
                RequestErrorKind::NoResponders => Heard::NobodyListens,
                RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => Heard::TooLarge,
                // It may have been handed to the socket or not: nobody knows.
                kind @ (RequestErrorKind::TimedOut | RequestErrorKind::Other) => {
                    self.end_if_dead(kind);
                    Heard::Lost
                }
            },
        }
    }

    /// Ready when the server has sent more than any answer has, without one having become whole: the client holds all of it, so
    /// the connection is ended. (What comes while nobody waits, or while a connection is made, is looked at by nobody.)
    async fn flooded(&self) {
        let statistics = self.client.statistics();
        let now =
            || (statistics.in_messages.load(Ordering::Relaxed), statistics.in_bytes.load(Ordering::Relaxed));
        let mut since = now();
        loop {
            sleep(LOOK).await;
            let (messages, bytes) = now();
            if messages != since.0 {
                since = (messages, bytes);
            } else if bytes.saturating_sub(since.1) > ANSWER_MAX {
                self.signals.gone.cancel();
                self.cage.end();
                return;
            }
        }
    }

    /// Waits until `deadline`. What was not handed to the socket by then never will be: the connection ends with it.
    async fn flushed_by(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        sleep_until(deadline - FLUSH.min(left / 10)).await;
        match timeout_at(deadline, self.client.flush()).await {
            Ok(Ok(())) => sleep_until(deadline).await,
            Ok(Err(_)) | Err(_) => {
                self.signals.gone.cancel();
                self.cage.end();
            }
        }
    }
}

/// Why a connection was ended.
pub(super) fn too_much(place: &str) -> String {
    format!(
        "{place} sent more than {} MiB without an end, which no NATS server does here, so the connection was ended: look what answers there",
        ANSWER_MAX >> 20
    )
}

fn unsaid(stream: &str, place: &str) -> String {
    format!("{place} did not say what stream {stream} is: look at its log, and at what this account may ask")
}
