//! The connection: made once, shared by all attempts, never mended and never repeating anything.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
    aio::{AsyncPushSender, MultiplexedConnection},
};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::{
    config::host_port,
    shared::{Connection, Refused},
};

/// Where the server is, and how it knows us. It never prints.
pub(super) struct Access {
    info: ConnectionInfo,
    place: String,
}

impl Access {
    /// The error never repeats the URL.
    pub(super) fn new(url: &Url) -> Result<Self, String> {
        // "#insecure" would turn the check of certificates off, and parameters would change the protocol.
        if url.fragment().is_some() || url.query().is_some() {
            return Err("must not have parameters or a fragment (\"?…\", \"#…\")".to_owned());
        }
        let info = url
            .as_str()
            .into_connection_info()
            .map_err(|_error| "must be redis://host:port/NUMBER (of the database)".to_owned())?;
        // Only its third protocol tells a client that its connection ended.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        Ok(Self { info: info.set_redis_settings(settings), place: host_port(url) })
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.place.clone()
    }
}

/// What came of a command.
pub(super) enum Heard {
    Value(Value),
    /// The server's own word.
    Error(RedisError),
    /// The connection ended.
    Lost,
    /// The deadline passed.
    Silent,
}

/// A connection. Its task ends with the last clone of the client's handle, and with it what is queued.
pub(super) struct Link {
    /// `None` once it was given up.
    connection: Mutex<Option<MultiplexedConnection>>,
    /// The connection is gone, or was given up: nobody waits for it any more.
    gone: CancellationToken,
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
        let place = access.place();
        let client = Client::open(access.info.clone())
            .map_err(|_error| Refused::us("url is no address of a Redis"))?;
        let gone = CancellationToken::new();
        // The client's own times would end attempts earlier than theirs.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(Gone(gone.clone()));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = match timeout_at(deadline, connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(why(&error, &place)),
            Err(_elapsed) => return Err(Refused::unreachable(format!("{place} did not answer in time"))),
        };
        let (knows_script, seen) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { connection: Mutex::new(Some(connection)), gone, knows_script, seen })
    }

    /// Sends one command and waits for its reply until `deadline`.
    ///
    /// Replies come in the order of the commands: one that does not come in time keeps all the others behind it, so the
    /// connection is given up with all that it has queued, and nothing of it leaves later.
    pub(super) async fn ask(&self, command: &Cmd, deadline: Instant) -> Heard {
        let Some(mut connection) = self.connection() else { return Heard::Lost };
        tokio::select! {
            biased;
            reply = command.query_async::<Value>(&mut connection) => match reply {
                Ok(value) => Heard::Value(value),
                Err(error) if is_said_by_server(&error) => Heard::Error(error),
                Err(_broken) => {
                    self.give_up();
                    Heard::Lost
                }
            },
            () = self.gone.cancelled() => {
                self.give_up();
                Heard::Lost
            }
            () = sleep_until(deadline) => {
                self.give_up();
                Heard::Silent
            }
        }
    }

    fn connection(&self) -> Option<MultiplexedConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whoever waits hears it and lets go of the connection; its task ends with the last of them, not with the next attempt.
    fn give_up(&self) {
        self.gone.cancel();
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
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

/// Why no connection was made, in our words: the client's own may hold an address.
fn why(error: &RedisError, place: &str) -> Refused {
    if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        || error.kind() == ErrorKind::AuthenticationFailed
    {
        return Refused::us(format!("{place} did not accept the credentials"));
    }
    if error.kind() == ErrorKind::RESP3NotSupported {
        return Refused::us(format!("{place} is older than Redis 6, or something in front of it is"));
    }
    let said = if let Some(code) = error.code() {
        let code: String = code.chars().filter(char::is_ascii_uppercase).take(32).collect();
        format!(": {code}")
    } else if error.is_connection_refusal() {
        ": connection refused".to_owned()
    } else if error.is_timeout() {
        ": timed out".to_owned()
    } else {
        String::new()
    };
    Refused::unreachable(format!("no connection to {place}{said}"))
}
