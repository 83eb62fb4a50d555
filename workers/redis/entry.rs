//! An effect as an entry of a stream. The names of its fields are what consumers rely on.

use aftercommit::effect::Effect;

use super::config::Call;
use crate::message::Message;

/// Longest name of a stream that is written to, in bytes.
const STREAM_MAX: usize = 512;

/// An entry, ready to be added: its fields in this order. What an effect does not have is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stream: String,
    pub(super) fields: Vec<(String, Vec<u8>)>,
}

/// The entry that `effect` is; the error says what about the effect cannot be sent.
pub(super) fn render(call: &Call, effect: &Effect, key: &str) -> Result<Entry, String> {
    let Some(stream) = effect.target.as_ref().or(call.stream.as_ref()) else {
        return Err("there is no stream: give the effect a target, or the configuration a stream".to_owned());
    };
    check_stream(stream).map_err(|problem| format!("the stream's name {problem}"))?;
    let message = Message::enveloped(effect, key, call.envelope.as_ref())?;
    let mut fields = vec![("key".to_owned(), key.as_bytes().to_vec())];
    if let Some(operation) = &effect.operation {
        fields.push(("type".to_owned(), operation.as_bytes().to_vec()));
    }
    for (name, value) in message.attributes_as("ce_")? {
        fields.push((name, value.as_bytes().to_vec()));
    }
    fields.push(("content_type".to_owned(), message.content_type.into_bytes()));
    if let Some(headers) = headers(&message.headers)? {
        fields.push(("headers".to_owned(), headers.into_bytes()));
    }
    if let Some(traceparent) = message.traceparent {
        fields.push(("traceparent".to_owned(), traceparent.into_bytes()));
    }
    fields.push(("body".to_owned(), message.body));
    Ok(Entry { stream: stream.clone(), fields })
}

/// One JSON object, the effect's own, in the order in which it was written; a name that stands there twice is refused, since
/// readers of JSON disagree about it.
fn headers(headers: &[(String, String)]) -> Result<Option<String>, String> {
    let mut object = serde_json::Map::new();
    for (name, value) in headers {
        if object.insert(name.clone(), value.clone().into()).is_some() {
            return Err(format!("the header {name} stands there twice"));
        }
    }
    if object.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::Value::Object(object).to_string()))
}

/// Whether entries may be added to `stream`; the error says why not.
pub(super) fn check_stream(stream: &str) -> Result<(), String> {
    if stream.is_empty() || stream.len() > STREAM_MAX {
        return Err(format!("must have 1 to {STREAM_MAX} bytes"));
    }
    if stream.chars().any(char::is_control) {
        return Err("must not hold control characters".to_owned());
    }
    if tag_of(stream).is_none() && stream.contains('}') {
        return Err("must not hold a } outside of a {tag}: its marker could not stand in its slot".to_owned());
    }
    Ok(())
}

/// What a cluster makes the slot of: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>.
pub(super) fn slot_tag(stream: &str) -> &str {
    tag_of(stream).unwrap_or(stream)
}

fn tag_of(stream: &str) -> Option<&str> {
    let (_, rest) = stream.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}
