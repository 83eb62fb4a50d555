//! Effects and their parts: newtypes that parse, so that what exists is valid.

pub(crate) mod fingerprint;
mod recipients;
#[cfg(test)]
mod tests;

pub use recipients::{RECIPIENTS_MAX, is_quoted, recipients_of};

use std::{fmt, sync::Arc};

use serde_json::value::RawValue;

use crate::clock::Timestamp;

/// An effect's number in its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct EffectId(i64);

impl EffectId {
    /// From the number in the database.
    pub const fn new(id: i64) -> Self {
        Self(id)
    }

    /// The number in the database.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What identifies an effect at its downstream: 1 to 255 printable ASCII characters, no space at either end. It is never
/// cut, hashed or re-cased.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(String);

/// Longest idempotency key, in characters.
pub const KEY_LEN_MAX: usize = 255;
/// Deepest nesting of a payload that the library takes; JSON parsers elsewhere give up at the same depth.
pub const PAYLOAD_DEPTH_MAX: usize = 128;
/// Largest payload or body, in bytes, unless the database was told otherwise.
pub const PAYLOAD_LEN_MAX: usize = 1 << 20;

/// The columns that an effect is written with, as the databases' checks name them.
pub(crate) const COLUMNS: [&str; 12] = [
    "downstream",
    "operation",
    "idempotency_key",
    "payload",
    "body",
    "content_type",
    "headers",
    "target",
    "due_at",
    "expires_at",
    "metadata",
    "trace_context",
];

/// Why an effect cannot be written. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEffect {
    /// A column's value cannot be taken; the same words as the database's.
    #[error("{column}: {problem}")]
    Column {
        /// The column of `effects`.
        column: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
}

impl InvalidEffect {
    pub(crate) fn column(column: &'static str, problem: impl Into<String>) -> Self {
        Self::Column { column, problem: problem.into() }
    }
}

impl IdempotencyKey {
    /// Parses a key.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when it is empty, too long, not printable ASCII, or has a space at either end.
    pub fn parse(key: impl Into<String>) -> Result<Self, InvalidEffect> {
        let key = key.into();
        let printable = key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let spaced = key.starts_with(' ') || key.ends_with(' ');
        if key.is_empty() || key.len() > KEY_LEN_MAX || !printable || spaced {
            return Err(InvalidEffect::column(
                "idempotency_key",
                "must be 1 to 255 printable ASCII characters with no space at either end",
            ));
        }
        Ok(Self(key))
    }

    /// A random key: a UUIDv4. Every call gives another one, so a retry of the business transaction gives another effect;
    /// prefer a business identity.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An effect to be written into the caller's transaction: see [`crate::Outbox::enqueue`].
#[derive(Clone, Debug)]
pub struct NewEffect {
    pub(crate) downstream: String,
    pub(crate) operation: Option<String>,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) name: Option<String>,
    pub(crate) payload: Option<String>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) due_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) metadata: Option<String>,
    pub(crate) trace_context: Option<String>,
    /// It is one of several targets' effects.
    pub(crate) split: Option<recipients::Split>,
}

impl NewEffect {
    /// An effect for this downstream, with nothing in it and no key yet: in a guarded request it gets one that is derived from the
    /// request's, else a random one.
    pub fn to(downstream: impl Into<String>) -> Self {
        Self {
            downstream: downstream.into(),
            operation: None,
            key: None,
            name: None,
            payload: None,
            body: None,
            content_type: None,
            headers: None,
            target: None,
            due_at: None,
            expires_at: None,
            metadata: None,
            trace_context: None,
            split: None,
        }
    }

    /// A named operation of the downstream instead of its default.
    #[must_use]
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// The idempotency key.
    #[must_use]
    pub fn key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Tells it from another effect of the same guarded request, where the key is derived: without a name two effects for
    /// one downstream and operation would have the same one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The payload, serialised now; these bytes are what every attempt sends.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when the value does not serialise or nests deeper than [`PAYLOAD_DEPTH_MAX`].
    pub fn json(self, payload: &impl serde::Serialize) -> Result<Self, InvalidEffect> {
        let text = serde_json::to_string(payload).map_err(|error| {
            InvalidEffect::column("payload", format!("cannot be written as JSON: {error}"))
        })?;
        self.json_text(text)
    }

    /// The payload as JSON text: digits, order and spacing are kept.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when it is not JSON or nests deeper than [`PAYLOAD_DEPTH_MAX`].
    pub fn json_text(mut self, payload: impl Into<String>) -> Result<Self, InvalidEffect> {
        let text = payload.into();
        if depth(&text) > PAYLOAD_DEPTH_MAX {
            return Err(InvalidEffect::column("payload", "must not nest deeper than 128 levels"));
        }
        // A raw value is checked for its grammar only: no number is read, so none is rounded.
        serde_json::from_str::<&RawValue>(&text)
            .map_err(|error| InvalidEffect::column("payload", format!("is not JSON: {error}")))?;
        self.payload = Some(text);
        Ok(self)
    }

    /// A body that is not JSON, with its content type.
    #[must_use]
    pub fn body(mut self, content_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self.content_type = Some(content_type.into());
        self
    }

    /// More headers or message properties, as a JSON object of strings.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when they do not serialise to an object.
    pub fn headers(mut self, headers: &impl serde::Serialize) -> Result<Self, InvalidEffect> {
        self.headers = Some(object("headers", headers)?);
        Ok(self)
    }

    /// Path, routing key, subject or stream within the downstream.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Not attempted before this.
    #[must_use]
    pub fn due_at(mut self, due_at: Timestamp) -> Self {
        self.due_at = Some(due_at);
        self
    }

    /// Not begun after this.
    #[must_use]
    pub fn expires_at(mut self, expires_at: Timestamp) -> Self {
        self.expires_at = Some(expires_at);
        self
    }

    /// Business references, searchable, never sent.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when they do not serialise to an object, or hold U+0000.
    pub fn metadata(mut self, metadata: &impl serde::Serialize) -> Result<Self, InvalidEffect> {
        let text = object("metadata", metadata)?;
        if holds_nul(&text) {
            return Err(InvalidEffect::column("metadata", "must not contain U+0000"));
        }
        self.metadata = Some(text);
        Ok(self)
    }

    /// The same as JSON text: no number is read, so none is rounded.
    ///
    /// # Errors
    ///
    /// [`InvalidEffect`] when it is no JSON object, or holds U+0000.
    pub fn metadata_text(mut self, metadata: impl Into<String>) -> Result<Self, InvalidEffect> {
        let text = metadata.into();
        if !text.trim_start().starts_with('{') || serde_json::from_str::<&RawValue>(&text).is_err() {
            return Err(InvalidEffect::column("metadata", "must be a JSON object"));
        }
        if holds_nul(&text) {
            return Err(InvalidEffect::column("metadata", "must not contain U+0000"));
        }
        self.metadata = Some(text);
        Ok(self)
    }

    /// The W3C traceparent of the business transaction.
    #[must_use]
    pub fn trace_context(mut self, traceparent: impl Into<String>) -> Self {
        self.trace_context = Some(traceparent.into());
        self
    }
}

/// Whether U+0000 stands somewhere in this JSON. Escaped backslashes are taken out in pairs: `"\\u0000"` is a backslash and five
/// characters.
fn holds_nul(json: &str) -> bool {
    json.contains("\\u0000") && json.replace("\\\\", "").contains("\\u0000")
}

fn object(column: &'static str, value: &impl serde::Serialize) -> Result<String, InvalidEffect> {
    match serde_json::to_value(value) {
        Ok(value) if value.is_object() => Ok(value.to_string()),
        Ok(_) => Err(InvalidEffect::column(column, "must be a JSON object")),
        Err(error) => Err(InvalidEffect::column(column, format!("cannot be written as JSON: {error}"))),
    }
}

/// How deep the brackets of a JSON text nest, without reading it into a tree: a text may nest deeper than a stack.
pub fn depth(json: &str) -> usize {
    let (mut now, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in json.bytes() {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte == b'"' {
            in_string = true;
        } else if matches!(byte, b'[' | b'{') {
            now += 1;
            deepest = deepest.max(now);
        } else if matches!(byte, b']' | b'}') {
            now = now.saturating_sub(1);
        }
    }
    deepest
}

/// An effect as a downstream is given it: identity and intent, exactly as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Its number.
    pub id: EffectId,
    /// The downstream's name.
    pub downstream: Arc<str>,
    /// The named operation; `None` is the default one.
    pub operation: Option<String>,
    /// The key as stored, without the downstream's prefix.
    pub key: String,
    /// The payload's text, byte for byte.
    pub payload: Option<String>,
    /// The body, where there is no payload.
    pub body: Option<Vec<u8>>,
    /// The body's type.
    pub content_type: Option<String>,
    /// More headers, as JSON text. Unparsed: a malformed one must end this effect, not the batch it was claimed in.
    pub headers: Option<String>,
    /// Path, routing key, subject or stream.
    pub target: Option<String>,
    /// Business references, as JSON text.
    pub metadata: Option<String>,
    /// W3C traceparent.
    pub trace_context: Option<String>,
    /// When it was written.
    pub created_at: Timestamp,
}

impl Effect {
    /// An effect with nothing in it but its identity: for whoever makes one that no database has, and for tests of a kind. The
    /// rest is set where it is needed: `Effect { payload: Some(text), ..Effect::new(id, "shop", "order-17", now) }`.
    pub fn new(
        id: EffectId,
        downstream: impl Into<Arc<str>>,
        key: impl Into<String>,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            downstream: downstream.into(),
            operation: None,
            key: key.into(),
            payload: None,
            body: None,
            content_type: None,
            headers: None,
            target: None,
            metadata: None,
            trace_context: None,
            created_at,
        }
    }
}
