//! What the library's errors say: of a channel or a connection that ended, and of a question that the broker refused.

use lapin::{Error, ErrorKind};

use super::classify::Fault;

/// Code and text of a broker's own word, whatever it ended.
pub(super) fn said(error: &Error) -> Option<(u16, String)> {
    let ErrorKind::ProtocolError(said) = error.kind() else { return None };
    Some((said.get_id(), said.get_message().to_string()))
}

/// Code and text of a broker that closed a channel, not the connection.
pub(super) fn channel_closed(error: &Error) -> Option<(u16, String)> {
    said(error).filter(|_said| error.is_amqp_soft_error())
}

/// RabbitMQ says "access to exchange '…' … refused", or of a topic permission "access to topic '…' in exchange '…' …".
pub(super) fn is_about_the_routing_key(text: &str) -> bool {
    text.split_once("access to ").is_some_and(|(_, what)| what.starts_with("topic "))
}

/// What is said of a connection that ended, in words of ours.
pub(super) fn lost(place: &str, error: &Error) -> String {
    if let ErrorKind::ProtocolError(said) = error.kind() {
        return format!("{place} closed the connection: {}", said.get_message());
    }
    if matches!(error.kind(), ErrorKind::MissingHeartbeatError) {
        return format!("{place} gave no sign of life for two heartbeats");
    }
    if matches!(error.kind(), ErrorKind::ParsingError(_)) {
        return format!("{place} sent something that is not AMQP");
    }
    format!("the connection to {place} was lost")
}

/// The connection ended before anything was sent on it.
pub(super) fn away(place: &str, error: &Error) -> Fault {
    Fault::Away(format!("{}: look whether the broker is up, and at its log", lost(place, error)))
}

/// Why what was queued on a channel to `exchange` was not sent.
pub(super) fn of_channel(place: &str, exchange: &str, error: &Error) -> Fault {
    let Some((code, text)) = channel_closed(error) else { return away(place, error) };
    let why = |next: &str| format!("{place} closed the channel to exchange {exchange:?} ({text}): {next}");
    match code {
        403 if is_about_the_routing_key(&text) => {
            Fault::Local(why("permit this user the routing key, or correct it"))
        }
        403 => Fault::Amiss(why("permit this user to write there, or correct exchange")),
        404 => Fault::Amiss(why("create it, correct exchange, or name it in declare.exchanges")),
        // On what one message held; the others go on.
        311 | 406 => Fault::Local(why("see what it says of the message")),
        _ => Fault::Away(why("look at its log")),
    }
}
