//! The connection: made once, shared by all attempts, never mended and never repeating anything.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, Value,
    aio::{AsyncPushSender, MultiplexedConnection},
};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::rustls::ClientConfig;
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};
use url::Url;

use super::metered::{ENTRIES, Meter, Metered, REPLY_MAX, SHORT};
use crate::{
    shared::{Connection, Refused},
    socket::{self, Place, Stream},
};

/// Where a Redis listens when nobody says.
const PORT: u16 = 6379;
/// Longest excerpt of a server's own words that a reason repeats.
const SAID_MAX: usize = 200;

/// Where the server is, and how it knows us. It never prints.
pub(super) struct Access {
    place: Place,
    greeting: RedisConnectionInfo,
    /// `None`: in the clear.
    tls: Option<Arc<ClientConfig>>,
}

impl Access {
    /// Of a URL with its credentials; `ca` is a file of certificates to trust besides the system's. The error is (key,
    /// problem), and never repeats the URL.
    pub(super) fn new(url: &Url, ca: Option<&str>) -> Result<Self, (String, String)> {
        let wrong = |problem: &str| ("url".to_owned(), problem.to_owned());
        if url.fragment().is_some() || url.query().is_some() {
            return Err(wrong("must not have parameters or a fragment (\"?…\", \"#…\")"));
        }
        let database = match url.path().trim_matches('/') {
            "" => 0,
            number => number
                .parse::<u32>()
                .map_err(|_error| wrong("must be redis://host:port/NUMBER (of the database)"))?,
        };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_error| wrong("is not UTF-8 where it is percent-encoded"))
        };
        // Only its third protocol tells a client that its connection ended.
        let mut greeting =
            RedisConnectionInfo::default().set_db(database.into()).set_protocol(ProtocolVersion::RESP3);
        if !url.username().is_empty() {
            greeting = greeting.set_username(decoded(url.username())?);
        }
        if let Some(password) = url.password() {
            greeting = greeting.set_password(decoded(password)?);
        }
        // A machine without root certificates can still speak without TLS.
        let tls = (url.scheme() == "rediss").then(|| socket::trust(ca)).transpose();
        let tls = tls.map_err(|problem| ("ca".to_owned(), problem))?;
        Ok(Self { place: Place::of(url, PORT), greeting, tls })
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.place.to_string()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    async fn stream(&self, deadline: Instant) -> Result<Box<dyn Stream>, String> {
        let stream = socket::connect(&self.place, deadline).await?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => socket::encrypt(stream, &self.place, (tls, socket::CA), deadline).await,
        }
    }
}

/// What came of a command.
pub(super) enum Heard {
    Value(Value),
    /// The server's own word.
    Error(RedisError),
    /// The connection ended.
    Lost,
    /// The server sent more than any reply has, and the connection was ended for that.
    TooMuch,
    /// The deadline passed.
    Silent,
}

/// A connection.
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// What reads and writes; ended, it closes the socket, and what it has queued is gone.
    driver: AbortOnDropHandle<()>,
    /// The connection is gone, or was given up: nobody waits for it any more.
    gone: CancellationToken,
    meter: Arc<Meter>,
    knows_script: AtomicBool,
    /// How long streams remember keys, as far as that was looked at.
    seen: Mutex<HashMap<String, Duration>>,
}

impl Connection for Link {
    fn is_usable(&self) -> bool {
        !self.gone.is_cancelled()
    }
}

/// Hears that the connection ended.
struct Gone(CancellationToken);

impl AsyncPushSender for Gone {
    fn send(&self, info: PushInfo) -> Result<(), ::redis::aio::SendError> {
        if info.kind == PushKind::Disconnection {
            self.0.cancel();
        }
        Ok(())
    }
}

impl Link {
    /// Connects and logs in.
    pub(super) async fn open(access: &Access, deadline: Instant) -> Result<Self, Refused> {
        let stream = access.stream(deadline).await.map_err(Refused::unreachable)?;
        let (gone, meter) = (CancellationToken::new(), Arc::new(Meter::default()));
        // The client's own time would end attempts earlier than theirs.
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(Gone(gone.clone()));
        let metered = Metered::new(stream, Arc::clone(&meter));
        let greeted = MultiplexedConnection::new_with_config(&access.greeting, metered, config);
        let (connection, driver) = match timeout_at(deadline, greeted).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(_broken)) if meter.is_exceeded() => {
                return Err(Refused::unreachable(too_much(&access.place())));
            }
            Ok(Err(error)) => return Err(why(&error, &access.place())),
            Err(_elapsed) => {
                return Err(Refused::unreachable(format!(
                    "{} did not answer in time: look whether it is a Redis, and at its load",
                    access.place
                )));
            }
        };
        meter.heard();
        let driver = AbortOnDropHandle::new(TaskTracker::new().spawn(driver));
        let (knows_script, seen) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { connection, driver, gone, meter, knows_script, seen })
    }

    /// Sends one command and waits for its reply until `deadline`.
    ///
    /// Replies come in the order of the commands: one that does not come in time keeps all the others behind it, so the
    /// connection is given up with all that it has queued, and nothing of it leaves later.
    pub(super) async fn ask(&self, command: &Cmd, deadline: Instant) -> Heard {
        self.ask_for(SHORT, command, deadline).await
    }

    /// The same, of a command whose reply repeats entries whole.
    pub(super) async fn ask_for_entries(&self, command: &Cmd, deadline: Instant) -> Heard {
        self.ask_for(ENTRIES, command, deadline).await
    }

    async fn ask_for(&self, bytes: usize, command: &Cmd, deadline: Instant) -> Heard {
        let _expected = self.meter.expect(bytes);
        let mut connection = self.connection.clone();
        tokio::select! {
            biased;
            reply = command.query_async::<Value>(&mut connection) => match reply {
                Ok(value) => {
                    self.meter.heard();
                    Heard::Value(value)
                }
                Err(error) if is_said_by_server(&error) => {
                    self.meter.heard();
                    Heard::Error(error)
                }
                Err(_broken) => self.lost(),
            },
            () = self.gone.cancelled() => self.lost(),
            () = sleep_until(deadline) => {
                self.give_up();
                Heard::Silent
            }
        }
    }

    fn lost(&self) -> Heard {
        self.give_up();
        if self.meter.is_exceeded() { Heard::TooMuch } else { Heard::Lost }
    }

    /// Whoever waits hears it, and nothing that is queued leaves any more.
    fn give_up(&self) {
        self.gone.cancel();
        self.driver.abort();
    }

    /// Whether the server was given the script on this connection.
    pub(super) fn knows_script(&self) -> bool {
        self.knows_script.load(Ordering::Relaxed)
    }

    pub(super) fn learnt_script(&self) {
        self.knows_script.store(true, Ordering::Relaxed);
    }

    /// Whether `stream` was seen to remember keys for `window`.
    pub(super) fn has_seen(&self, stream: &str, window: Duration) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(stream).is_some_and(|memory| *memory >= window)
    }

    pub(super) fn saw(&self, stream: &str, memory: Duration) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(stream.to_owned(), memory);
    }
}

/// A reply as text, whichever protocol it came in.
pub(super) fn plain(value: &Value) -> Option<String> {
    if let Value::BulkString(bytes) = value {
        return String::from_utf8(bytes.clone()).ok();
    }
    if let Value::Int(number) = value {
        return Some(number.to_string());
    }
    let (Value::SimpleString(text) | Value::VerbatimString { text, .. }) = value else { return None };
    Some(text.clone())
}

/// Whether an error is a reply, and not what the client thinks of a broken connection.
fn is_said_by_server(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// An error as the server said it: its code and its own words, on one line, without our arguments where it repeats them.
pub(super) fn said(error: &RedisError) -> String {
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let code: String = error.code().unwrap_or("ERR").chars().filter(|c| word(*c)).take(32).collect();
    let words = error.detail().unwrap_or_default();
    let words = words.split_once(", with args beginning with").map_or(words, |(before, _ours)| before);
    let words: String = words.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
    if words.is_empty() { code } else { format!("{code} {}", words.trim_end_matches('.')) }
}

/// Why a connection was ended.
pub(super) fn too_much(place: &str) -> String {
    format!(
        "{place} sent more than {} MiB in reply, which no Redis does here, so the connection was ended: look what answers there",
        REPLY_MAX >> 20
    )
}

/// Why no connection was made, in our words and the server's: the client's own may hold an address.
fn why(error: &RedisError, place: &str) -> Refused {
    if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        || error.kind() == ErrorKind::AuthenticationFailed
    {
        let said = error.code().map(|_code| format!(" ({})", said(error))).unwrap_or_default();
        return Refused::us(format!("{place} did not accept the credentials{said}: correct url or auth"));
    }
    if error.kind() == ErrorKind::RESP3NotSupported {
        return Refused::us(format!(
            "{place} is older than Redis 6, or something in front of it is: use a newer one, or name it in url without what is in front"
        ));
    }
    if error.code().is_some() {
        let said = said(error);
        if said.contains("DB index") {
            return Refused::us(format!("{place} refuses the database: {said}; correct the number in url"));
        }
        return Refused::unreachable(format!("{place} refuses the connection: {said}; look at its log"));
    }
    let what =
        if error.is_io_error() { "broke off the greeting" } else { "did not greet us as a Redis does" };
    Refused::unreachable(format!(
        "{place} {what}: look whether it is a Redis, whether it speaks TLS (rediss://), and at its log"
    ))
}
