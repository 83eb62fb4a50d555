//! An effect as a message: subject, headers, body, and how many bytes that is on the wire.

use aftercommit::effect::Effect;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

use super::config::Call;
use crate::{cloudevents::header_value, message::Message};

/// Longest subject that is sent, in bytes: a server's own limit of a control line is 4096.
const SUBJECT_MAX: usize = 1024;

/// A message, ready to be published.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    pub(super) subject: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Bytes that the server counts against its `max_payload`: the headers and the body.
    pub(super) size: usize,
}

/// The message that `effect` is; the error says what about the effect cannot be sent.
pub(super) fn render(stream: &str, call: &Call, effect: &Effect, key: &str) -> Result<Rendered, String> {
    let Some(subject) = effect.target.as_ref().or(call.subject.as_ref()) else {
        return Err(
            "there is no subject: give the effect a target, or the configuration a subject".to_owned()
        );
    };
    check_subject(subject).map_err(|problem| format!("the subject {problem}"))?;
    let message = Message::enveloped(effect, key, call.envelope.as_ref())?;
    let mut headers = Headers::default();
    for (name, value) in &message.headers {
        if is_ours(name) {
            return Err(format!("the header {name} is not the effect's to set"));
        }
        headers.add(name, value)?;
    }
    for (name, value) in message.attributes_as("ce-")? {
        headers.add(&name, &header_value(value))?;
    }
    // The binding for NATS has it among the event's own headers; other readers look at the usual one.
    if !message.attributes.is_empty() {
        headers.add("ce-datacontenttype", &message.content_type)?;
    }
    headers.add("Content-Type", &message.content_type)?;
    if let Some(traceparent) = &message.traceparent {
        headers.add("traceparent", traceparent)?;
    }
    headers.add("Nats-Msg-Id", key)?;
    // A subject that another stream takes is refused, not stored where nobody reads it.
    headers.add("Nats-Expected-Stream", stream)?;
    let size = headers.size() + message.body.len();
    Ok(Rendered { subject: subject.clone(), headers: headers.map, body: message.body.into(), size })
}

/// Names that the protocol, the contract or this kind own.
fn is_ours(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("nats-") || matches!(name.as_str(), "content-type" | "traceparent" | "tracestate")
}

/// Whether a message may be published to `subject`; the error says why not.
pub(super) fn check_subject(subject: &str) -> Result<(), String> {
    if subject.len() > SUBJECT_MAX {
        return Err(format!("must not be longer than {SUBJECT_MAX} bytes"));
    }
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("must not hold spaces or control characters".to_owned());
    }
    if subject.split('.').any(str::is_empty) {
        return Err("must be words with single dots between them, such as \"orders.new\"".to_owned());
    }
    if subject.split('.').any(|word| matches!(word, "*" | ">")) {
        return Err("must not hold a wildcard".to_owned());
    }
    // Those are commands to the server, or answers to somebody.
    if subject.starts_with('$') || subject.starts_with("_INBOX.") {
        return Err("must not be one of the server's own ($… or _INBOX.…)".to_owned());
    }
    Ok(())
}

/// Headers and their size. A map of this client has no order: the names' order on the wire is not part of the message.
#[derive(Default)]
struct Headers {
    map: HeaderMap,
    bytes: usize,
}

impl Headers {
    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_graphic() && c != ':';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("{name:?} is no name of a header"));
        }
        if value.chars().any(char::is_control) || value != value.trim() {
            return Err(format!(
                "the header {name} must hold no control characters and no space at either end"
            ));
        }
        self.bytes += name.len() + value.len() + ": \r\n".len();
        let wrong = |_error| format!("the header {name} cannot be sent");
        let value: HeaderValue = value.parse().map_err(wrong)?;
        let name: HeaderName = name.parse().map_err(|_error| format!("{name:?} is no name of a header"))?;
        self.map.append(name, value);
        Ok(())
    }

    fn size(&self) -> usize {
        "NATS/1.0\r\n\r\n".len() + self.bytes
    }
}
