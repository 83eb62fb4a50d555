//! Why there is no connection, or no stream: who must be asked to mend it, a person or time.

use std::io;

use async_nats::{ConnectErrorKind, ServerError};

use super::stream::ApiError;
use crate::shared::Refused;

/// The server answered, and did not say what the stream is. Only what a person must mend refuses us: anything else passes.
pub(super) fn of_stream(error: &ApiError, name: &str, place: &str) -> Refused {
    if error.err_code == 10_059 {
        return Refused::us(format!("there is no stream {name} at {place}: make it, or correct stream"));
    }
    let reason = format!("{place} does not say what stream {name} is (JetStream error {})", error.err_code);
    // Without JetStream, for this account or at all; not permitted.
    if matches!(error.err_code, 10_039 | 10_076) || matches!(error.code, 401 | 403) {
        return Refused::us(reason);
    }
    Refused::unreachable(reason)
}

/// Why no connection was made, in our words: the client's own may hold an address.
pub(super) fn of_connection(error: &async_nats::ConnectError, place: &str) -> Refused {
    let said = source_of::<ServerError>(error).map(ToString::to_string).unwrap_or_default().to_lowercase();
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => {
            Refused::us(format!("{place} did not accept the credentials"))
        }
        ConnectErrorKind::Authentication => {
            Refused::us("the nkey or creds cannot sign what the server asks for")
        }
        // A server that is busy gives up on us with "Authentication Timeout": no credential was looked at.
        ConnectErrorKind::Io if said.contains("timeout") => {
            Refused::unreachable(format!("{place} did not wait for our login"))
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
