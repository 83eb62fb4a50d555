//! Making a connection: TCP, TLS, login, virtual host, all within a limit, and no thread left behind when it is given up.

use std::{
    net::{Shutdown, TcpStream as Plain},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties, Error, ErrorKind,
    tcp::OwnedTLSConfig,
    types::LongString,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use url::Url;

use super::classify::Fault;
use crate::{
    config::{host_port, secrets_of},
    socket,
};

/// What an orderly end of a connection gets before its socket is shut.
const FAREWELL: Duration = Duration::from_secs(2);
/// The account that a broker has from the start, where the URL names none (the URI specification's default).
const GUEST: &str = "guest";

/// Where a broker is and how it is greeted. It never prints.
pub(super) struct Address {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    /// `host:port`, for people.
    pub(super) place: String,
    /// How the broker's operators see us.
    name: String,
    /// What must never be shown.
    pub(super) secrets: Vec<String>,
}

impl Address {
    /// Of a URL with its credentials; the error repeats nothing of it.
    pub(super) fn new(
        url: &Url,
        ca: Option<String>,
        heartbeat: Duration,
        name: &str,
    ) -> Result<Self, String> {
        let (scheme, usual) = match url.scheme() {
            "amqps" => (AMQPScheme::AMQPS, 5671),
            _ => (AMQPScheme::AMQP, 5672),
        };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_error| "is not UTF-8 where it is percent-encoded".to_owned())
        };
        let host = url.host_str().unwrap_or_default();
        let username = match url.username() {
            "" => GUEST.to_owned(),
            user => decoded(user)?,
        };
        let uri = AMQPUri {
            scheme,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username,
                    password: url.password().map_or(Ok(GUEST.to_owned()), decoded)?,
                },
                // lapin's own reading of a URL takes an IPv6 address for "localhost".
                host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
                port: url.port().unwrap_or(usual),
            },
            vhost: url.path().get(1..).map_or(Ok("/".to_owned()), decoded)?,
            query: AMQPQueryString {
                heartbeat: Some(u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX)),
                ..AMQPQueryString::default()
            },
        };
        let place = if url.port().is_some() { host_port(url) } else { format!("{host}:{usual}") };
        let tls = OwnedTLSConfig { identity: None, cert_chain: ca };
        Ok(Self { uri, tls, place, name: format!("aftercommit {name}"), secrets: secrets_of(url) })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    pub(super) fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    pub(super) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Connects and logs in.
    pub(super) async fn open(&self, limit: Duration) -> Result<(Connection, Arc<Socket>), Fault> {
        let long = |text: &str| LongString::from(text.as_bytes().to_vec());
        // Recovery stays off: what a library sends again behind our back is an attempt that nobody decided.
        let properties = ConnectionProperties::default()
            .with_connection_name(long(&self.name))
            .with_client_property("product".into(), long("aftercommit"))
            .with_client_property("version".into(), long(env!("CARGO_PKG_VERSION")));
        let runtime = lapin::runtime::default_runtime().map_err(|error| self.fault(&error))?;
        let socket = Arc::new(Socket::default());
        let (kept, tls) = (Arc::clone(&socket), self.tls.clone());
        // Dropped with this future, too: lapin's thread would otherwise wait for a silent broker for ever.
        let unfinished = Unfinished(Some(Arc::clone(&socket)));
        let connecting = Connection::connector(
            self.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let names = runtime.to_socket_addrs((uri.authority.host.clone(), uri.authority.port));
                let connected = timeout(limit, AsyncTcpStream::connect(&runtime, names));
                let stream = connected.await.map_err(|_elapsed| too_late())??;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    kept.keep(plain.get_ref().as_fd())?;
                }
                if uri.scheme == AMQPScheme::AMQP {
                    return Ok(stream);
                }
                let encrypted = timeout(limit, stream.into_tls(&uri.authority.host, tls.as_ref()));
                Ok(encrypted.await.map_err(|_elapsed| too_late())??)
            },
            properties,
        );
        match timeout(limit, connecting).await {
            Ok(Ok(connection)) => {
                unfinished.finished();
                Ok((connection, socket))
            }
            Ok(Err(error)) => Err(self.fault(&error)),
            Err(_elapsed) => Err(Fault::Away(format!(
                "{} did not let us in within {limit:?}: look what answers there, and whether it still starts",
                self.place
            ))),
        }
    }

    /// Why there is no connection, without the library's words: they may hold what it was given.
    fn fault(&self, error: &Error) -> Fault {
        let place = &self.place;
        let kind = error.kind();
        if let ErrorKind::ProtocolError(said) = kind {
            let text = said.get_message();
            return match said.get_id() {
                403 => Fault::Refuses(format!(
                    "{place} does not let {} in: {text}; correct url or auth, or the user there",
                    self.user()
                )),
                // A limit of connections is no matter of configuration: the next one may be let in.
                530 if text.as_str().contains("limit") => {
                    Fault::Away(format!("{place}: {text}; end some connections, or raise the limit"))
                }
                402 | 530 => Fault::Refuses(format!(
                    "{place} refuses the virtual host {:?}: {text}; correct url, or let the user in there",
                    self.vhost()
                )),
                _ => Fault::Away(format!("{place} refuses the connection: {text}; look at its log")),
            };
        }
        if let ErrorKind::IOError(error) = kind {
            let eof = self.is_tls() && error.kind() == std::io::ErrorKind::UnexpectedEof;
            return Fault::Away(if eof || socket::is_of_tls(error) {
                socket::no_tls(error, place, socket::CA)
            } else {
                format!(
                    "no connection to {place}: {}; look whether it is up, and whether host and port are right",
                    error.kind()
                )
            });
        }
        Fault::Away(if matches!(kind, ErrorKind::ParsingError(_) | ErrorKind::InvalidProtocolVersion(_)) {
            format!(
                "{place} does not speak AMQP 0-9-1: compare scheme and port (does it speak TLS, amqps://?)"
            )
        } else {
            format!("no connection to {place}: it broke off the greeting; look at its log")
        })
    }
}

fn too_late() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

/// A second handle on a connection's socket: the one way to end a connection that lapin waits for.
#[derive(Default)]
pub(super) struct Socket(Mutex<Handle>);

#[derive(Default)]
enum Handle {
    #[default]
    None,
    Open(Plain),
    Shut,
}

impl Socket {
    fn keep(&self, socket: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        let mut handle = self.lock();
        if matches!(*handle, Handle::Shut) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        *handle = Handle::Open(Plain::from(socket.try_clone_to_owned()?));
        Ok(())
    }

    /// Ends the connection at once. What lapin has not written yet is never written.
    pub(super) fn shut(&self) {
        if let Handle::Open(socket) = std::mem::replace(&mut *self.lock(), Handle::Shut) {
            // One that the other side closed already cannot be shut again.
            socket.shutdown(Shutdown::Both).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Handle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last owner is gone, and lapin has been asked to take its leave: a broker that does not answer is left anyway.
impl Drop for Socket {
    fn drop(&mut self) {
        let handle = std::mem::replace(&mut *self.lock(), Handle::Shut);
        let (Handle::Open(socket), Ok(runtime)) = (handle, tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep(FAREWELL).await;
            socket.shutdown(Shutdown::Both).ok();
        });
    }
}

/// A connection that is being made: given up, its socket is shut.
struct Unfinished(Option<Arc<Socket>>);

impl Unfinished {
    fn finished(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.shut();
        }
    }
}
