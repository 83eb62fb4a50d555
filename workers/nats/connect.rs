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
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind,
    ServerAddr, ServerError,
};
use bytes::Bytes;
use tokio::{
    runtime::Runtime,
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::stream::{Asked, Stream};
use crate::{
    config::host_port,
    shared::{Connection, Refused},
};

/// Bounds of the time between two questions whether the server is still there; three without an answer end the connection.
const PING: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// So long before its deadline at most, an attempt asks whether its bytes were handed to the socket.
const FLUSH: Duration = Duration::from_millis(200);
/// How a server begins to refuse a publish. It names the subject, and nothing else.
const DENIED: &str = "Permissions Violation for Publish to ";

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
    login: Login,
    ping: Duration,
}

impl Access {
    /// The servers of `url` and `more`; `slowest` is the longest timeout of an attempt. The error is (key, problem).
    pub(super) fn new(
        url: &Url,
        more: &[String],
        login: Login,
        slowest: Duration,
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
        Ok(Self { servers, place, login, ping: (slowest / 4).clamp(PING.0, PING.1) })
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
        let (lost, heard) = (Arc::clone(signals), Arc::clone(signals));
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
                let lost = Arc::clone(&lost);
                async move {
                    if again {
                        lost.gone.cancel();
                        std::future::pending::<()>().await;
                    }
                    None
                }
            })
            .event_callback(move |event| {
                heard.hear(&event);
                async {}
            }))
    }
}

/// What the client's tasks tell us.
struct Signals {
    /// The connection is gone.
    gone: CancellationToken,
    /// It takes no more attempts.
    retired: AtomicBool,
    /// The subject that the server refused last.
    denied: watch::Sender<String>,
}

impl Signals {
    fn hear(&self, event: &Event) {
        match event {
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(subject) = text.strip_prefix(DENIED) {
                    self.denied.send_replace(subject.trim_matches('"').to_owned());
                }
            }
            // The server goes away soon: later attempts go to another, or to its successor.
            Event::LameDuckMode => self.retired.store(true, Ordering::SeqCst),
            Event::Disconnected | Event::Closed => self.gone.cancel(),
            Event::ServerError(ServerError::AuthorizationViolation | ServerError::SlowConsumer(_))
            | Event::Connected
            | Event::Draining
            | Event::SlowConsumer(_)
            | Event::ClientError(_) => {}
        }
    }
}

/// Where the client's tasks run: a place of their own, so that they can be ended at once, with all that they have queued.
struct Cage(Mutex<Option<Runtime>>);

impl Cage {
    fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nats")
            .enable_all()
            .build()?;
        Ok(Self(Mutex::new(Some(runtime))))
    }

    fn spawn<F>(&self, future: F) -> Option<tokio::task::JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|runtime| runtime.spawn(future))
    }

    /// Ends every task where it stands, without waiting: the socket is closed, and what was queued is gone.
    fn end(&self) {
        let runtime = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        self.end();
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
    /// It was not sent.
    TooLarge,
    /// The connection ended.
    Lost,
    /// The deadline passed.
    Silent,
}

/// A connection.
pub(super) struct Link {
    client: Client,
    stream: Stream,
    signals: Arc<Signals>,
    cage: Cage,
}

impl Connection for Link {
    fn is_usable(&self) -> bool {
        !self.signals.gone.is_cancelled() && !self.signals.retired.load(Ordering::SeqCst)
    }
}

impl Link {
    /// Connects, and asks what the stream is.
    pub(super) async fn open(access: &Access, stream: &str, deadline: Instant) -> Result<Self, Refused> {
        let mut link = Self::connect(access, deadline).await?;
        link.stream = link.ask(stream, &access.place()).await?;
        Ok(link)
    }

    /// Connects, and asks nothing.
    pub(super) async fn connect(access: &Access, deadline: Instant) -> Result<Self, Refused> {
        let place = access.place();
        let signals = Arc::new(Signals {
            gone: CancellationToken::new(),
            retired: AtomicBool::new(false),
            denied: watch::Sender::new(String::new()),
        });
        let cage = Cage::new()
            .map_err(|_error| Refused::unreachable("the system gave no thread for a connection"))?;
        let servers = access.servers.clone();
        // Each server gets its share of the time.
        let each = deadline.saturating_duration_since(Instant::now())
            / u32::try_from(servers.len()).unwrap_or(1).max(1);
        let options = access
            .options(&signals, each)
            .map_err(|_error| Refused::us("the text of creds cannot be read"))?;
        let connecting = cage
            .spawn(async_nats::connect_with_options(servers, options))
            .ok_or_else(|| Refused::unreachable("the connection was ended"))?;
        let client = match timeout_at(deadline, connecting).await {
            Ok(Ok(Ok(client))) => client,
            Ok(Ok(Err(error))) => return Err(why(&error, &place)),
            // A panic of the client stays in its cage.
            Ok(Err(_join)) => return Err(Refused::unreachable(format!("{place}: the client gave up"))),
            Err(_elapsed) => return Err(Refused::unreachable(format!("{place} did not answer in time"))),
        };
        Ok(Self { client, stream: Stream::default(), signals, cage })
    }

    async fn ask(&self, name: &str, place: &str) -> Result<Stream, Refused> {
        let subject = format!("$JS.API.STREAM.INFO.{name}");
        let request = Request::new().timeout(None);
        let asked = tokio::select! {
            asked = self.client.send_request(subject, request) => asked,
            () = self.signals.gone.cancelled() => {
                return Err(Refused::unreachable(format!("{place} closed the connection")));
            }
        };
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(Refused::us(format!("{place} has no JetStream, or this account may not use it")));
            }
            Err(_other) => {
                return Err(Refused::unreachable(format!("{place} did not say what stream {name} is")));
            }
        };
        let asked = serde_json::from_slice::<Asked>(&answer.payload)
            .map_err(|_error| Refused::us(format!("{place} did not say what stream {name} is")))?;
        match (asked.error, asked.config) {
            (Some(error), _) if error.err_code == 10_059 => {
                Err(Refused::us(format!("there is no stream {name} at {place}: make it, or correct stream")))
            }
            (Some(error), _) if error.code == 503 => Err(Refused::unreachable(format!(
                "{place} cannot say what stream {name} is (JetStream error {})",
                error.err_code
            ))),
            (Some(error), _) => Err(Refused::us(format!(
                "{place} does not say what stream {name} is (JetStream error {})",
                error.err_code
            ))),
            (None, Some(stream)) if stream.no_ack => Err(Refused::us(format!(
                "the stream {name} acknowledges nothing (no_ack): nobody could say whether a message was stored"
            ))),
            (None, Some(stream)) => Ok(stream),
            (None, None) => Err(Refused::us(format!("{place} did not say what stream {name} is"))),
        }
    }

    /// What the stream said when the connection was made.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes that the server takes as one message.
    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
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
        let mut denied = self.signals.denied.subscribe();
        let request = Request::new().headers(headers).payload(body).timeout(None);
        let answer = self.client.send_request(subject.to_owned(), request);
        let refused = async {
            // The server names only the subject: what it refuses once on a connection it refuses every time.
            if denied.wait_for(|refused| refused == subject).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(message) => Heard::Answer(Box::new(message)),
                Err(error) => match error.kind() {
                    RequestErrorKind::NoResponders => Heard::NobodyListens,
                    RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => Heard::TooLarge,
                    // It may have been handed to the socket or not: nobody knows.
                    RequestErrorKind::TimedOut | RequestErrorKind::Other => Heard::Lost,
                },
            },
            () = refused => Heard::Denied,
            () = self.signals.gone.cancelled() => Heard::Lost,
            () = self.flushed_by(deadline) => Heard::Silent,
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

/// Why no connection was made, in our words: the client's own may hold an address.
fn why(error: &async_nats::ConnectError, place: &str) -> Refused {
    let said = source_of::<ServerError>(error).map(ToString::to_string).unwrap_or_default().to_lowercase();
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => {
            Refused::us(format!("{place} did not accept the credentials"))
        }
        ConnectErrorKind::Authentication => {
            Refused::us("the nkey or creds cannot sign what the server asks for")
        }
        ConnectErrorKind::Io if said.contains("authentication") || said.contains("authorization") => {
            Refused::us(format!("{place} did not accept the credentials"))
        }
        ConnectErrorKind::Io if said.contains("maximum connections") => {
            Refused::unreachable(format!("{place} has as many connections as it takes"))
        }
        ConnectErrorKind::Dns => Refused::unreachable(format!("the name {place} could not be resolved")),
        ConnectErrorKind::TimedOut => Refused::unreachable(format!("{place} did not answer in time")),
        ConnectErrorKind::Tls => Refused::unreachable(format!("no TLS connection to {place}")),
        ConnectErrorKind::Io | ConnectErrorKind::ServerParse | ConnectErrorKind::MaxReconnects => {
            let kind = source_of::<io::Error>(error).map(|error| format!(": {}", error.kind()));
            Refused::unreachable(format!("no connection to {place}{}", kind.unwrap_or_default()))
        }
    }
}

fn source_of<E: std::error::Error + 'static>(error: &async_nats::ConnectError) -> Option<&E> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}
