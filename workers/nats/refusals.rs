//! Why there is no connection, or no stream: who must be asked to mend it, a person or time.

use std::io;

use async_nats::{ConnectErrorKind, ServerError};

use super::stream::ApiError;
use crate::{shared::Refused, socket};

/// The server answered, and did not say what the stream is. Only what a person must mend refuses us: anything else passes.
pub(super) fn of_stream(error: &ApiError, name: &str, place: &str) -> Refused {
    if error.err_code == 10_059 {
        return Refused::us(format!("there is no stream {name} at {place}: make it, or correct stream"));
    }
    let reason = format!("{place} does not say what stream {name} is (JetStream error {})", error.err_code);
    // Without JetStream, for this account or at all; not permitted.
    if matches!(error.err_code, 10_039 | 10_076) || matches!(error.code, 401 | 403) {
        return Refused::us(format!("{reason}: give this account JetStream, and let it ask for the stream"));
    }
    Refused::unreachable(format!("{reason}: look at the server's log"))
}

/// Why no connection was made, in our words: the client's own may hold an address. `encrypted`: it was to be TLS.
pub(super) fn of_connection(error: &async_nats::ConnectError, place: &str, encrypted: bool) -> Refused {
    let said = source_of::<ServerError>(error).map(ToString::to_string).unwrap_or_default().to_lowercase();
    let below = source_of::<io::Error>(error);
    let no_tls = |error: &&io::Error| {
        socket::is_of_tls(error) || (encrypted && error.kind() == io::ErrorKind::UnexpectedEof)
    };
    let credentials = || {
        Refused::us(format!(
            "{place} did not accept the credentials: correct auth, token, nkey or creds, or what the server knows"
        ))
    };
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => credentials(),
        ConnectErrorKind::Authentication => {
            Refused::us("the nkey or creds cannot sign what the server asks for: correct the secret")
        }
        // A server that is busy gives up on us with "Authentication Timeout": no credential was looked at.
        ConnectErrorKind::Io if said.contains("timeout") => {
            Refused::unreachable(format!("{place} did not wait for our login: look at its load"))
        }
        ConnectErrorKind::Io if said.contains("authentication") || said.contains("authorization") => {
            credentials()
        }
        ConnectErrorKind::Io if said.contains("maximum connections") => Refused::unreachable(format!(
            "{place} has as many connections as it takes: raise max_connections, or end some"
        )),
        ConnectErrorKind::Dns => Refused::unreachable(format!(
            "the name {place} could not be resolved: correct the host, or look at this machine's name service"
        )),
        ConnectErrorKind::TimedOut => Refused::unreachable(format!(
            "{place} did not answer in time: look whether it is up, and whether a firewall lets us there"
        )),
        ConnectErrorKind::Tls => Refused::unreachable(format!(
            "no TLS with {place}: look at the host's name, and at this machine's root certificates"
        )),
        ConnectErrorKind::Io | ConnectErrorKind::ServerParse | ConnectErrorKind::MaxReconnects => {
            Refused::unreachable(match below {
                Some(error) if no_tls(&error) => socket::no_tls(error, place, socket::CA),
                Some(error) => format!(
                    "no connection to {place}: {}; look whether it is up, and whether host and port are right",
                    error.kind()
                ),
                None => format!("no connection to {place}: look whether it is a NATS server, and at its log"),
            })
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
