//! One effect as one AMQP message: what it says and where it goes. The same bytes at every attempt.
//!
//! What cannot be sent as it is written is refused here, before anybody connects: a broker answers a malformed message by
//! closing the channel or the connection, and then every other message on it is in doubt.

use std::collections::BTreeSet;

use aftercommit::effect::Effect;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};

use super::config::Amqp;
use crate::message::Message;

/// Changes when the same configuration and effect would be rendered to other bytes.
pub(super) const RENDERER_VERSION: u32 = 1;
/// A "short string" of the protocol has one byte for its length (AMQP 0-9-1, 4.2.5.3).
const SHORT_MAX: usize = 255;
/// Properties travel in one frame, which no library and no broker splits. RabbitMQ's frames hold 128 KiB unless it was told
/// otherwise; what the connection really takes is looked at before the message is sent.
const PROPERTIES_MAX: usize = 64 << 10;
/// On disk before it is confirmed (basic.properties, delivery-mode).
const PERSISTENT: u8 = 2;

/// Headers that an effect cannot set. `CC` and `BCC` would route a copy elsewhere, and a broker that does not like their
/// form closes the channel (<https://www.rabbitmq.com/docs/sender-selected>); the others would contradict the properties.
const OURS: [&str; 9] = [
    "traceparent",
    "message-id",
    "message_id",
    "content-type",
    "content_type",
    "delivery-mode",
    "delivery_mode",
    "cc",
    "bcc",
];

/// A message, ready to be published.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub(super) exchange: String,
    pub(super) routing_key: ShortString,
    /// The message id: the attempt's key.
    pub(super) key: String,
    pub(super) body: Vec<u8>,
    pub(super) properties: BasicProperties,
    /// What the properties take on the wire, at most.
    pub(super) properties_len: usize,
}

/// The message that `effect` is; an error is a sentence for people.
pub(super) fn render(amqp: &Amqp, effect: &Effect, key: &str) -> Result<Publication, String> {
    let route = amqp.route(effect.operation.as_deref());
    let routing_key = effect.target.as_deref().unwrap_or(&route.routing_key);
    let routing_key = short("target (the routing key)", routing_key)?;
    // The default exchange routes to the queue of that name, and there is none without a name.
    if route.exchange.is_empty() && routing_key.as_str().is_empty() {
        return Err("it has no target, and the configuration no routing_key: without an exchange of its own, that is \
                    the name of the queue"
            .to_owned());
    }
    let message = Message::enveloped(effect, key, amqp.envelope.as_ref())?;
    if message.body.len() > amqp.max_message_size {
        return Err(format!(
            "the body has {} bytes, and max_message_size is {}: a broker closes the channel on a larger one",
            message.body.len(),
            amqp.max_message_size
        ));
    }
    enclose(effect, key, route.exchange.clone(), routing_key, message)
}

/// Body, headers and an event's attributes as a message: <https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/amqp-protocol-binding.md>,
/// section 3.1.3.1, with a message's headers for AMQP 1.0's application properties.
fn enclose(
    effect: &Effect,
    key: &str,
    exchange: String,
    routing_key: ShortString,
    message: Message,
) -> Result<Publication, String> {
    let mut table = FieldTable::default();
    // A table's entry: a length, the name, a type, a length, the value.
    let mut properties_len = 6 * SHORT_MAX;
    let mut seen = BTreeSet::new();
    for (name, value) in &message.headers {
        if OURS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("the header {name:?} is not the effect's to set"));
        }
        if !seen.insert(name.as_str()) {
            return Err(format!("the header {name:?} stands there twice"));
        }
        properties_len += insert(&mut table, name, value)?;
    }
    for (name, value) in message.attributes_as("cloudEvents:")? {
        properties_len += insert(&mut table, &name, value)?;
    }
    if let Some(traceparent) = &message.traceparent {
        properties_len += insert(&mut table, "traceparent", traceparent)?;
    }
    if properties_len > PROPERTIES_MAX {
        return Err(format!("the headers have {properties_len} bytes, and {PROPERTIES_MAX} is the most"));
    }
    let seconds = effect.created_at.micros().div_euclid(1_000_000);
    let mut properties = BasicProperties::default()
        .with_content_type(short("content_type", &message.content_type)?)
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("the key with its prefix", key)?)
        .with_timestamp(u64::try_from(seconds).unwrap_or(0));
    if let Some(operation) = &effect.operation {
        properties = properties.with_type(short("operation", operation)?);
    }
    if !table.inner().is_empty() {
        properties = properties.with_headers(table);
    }
    Ok(Publication {
        exchange,
        routing_key,
        key: key.to_owned(),
        body: message.body,
        properties,
        properties_len,
    })
}

/// What the entry takes on the wire.
fn insert(table: &mut FieldTable, name: &str, value: &str) -> Result<usize, String> {
    if name.is_empty() {
        return Err("a header has an empty name".to_owned());
    }
    let name = short("a header's name", name)?;
    let len = name.as_str().len() + value.len() + 6;
    table.insert(name, AMQPValue::LongString(LongString::from(value.as_bytes().to_vec())));
    Ok(len)
}

fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_too_long| {
        format!("{what} has {} bytes, and the protocol takes {SHORT_MAX} at most", text.len())
    })
}
