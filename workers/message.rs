//! What every kind makes of an effect before its own protocol begins: body, content type, headers, trace context.
//!
//! Nothing is cut, re-cased or guessed: what cannot be sent as it is written is an error with a sentence for people.

use aftercommit::{
    effect::{Effect, PAYLOAD_DEPTH_MAX, depth},
    outcome::{Finding, Outcome, Phase},
};

use crate::{cloudevents::Envelope, json};

/// An effect whose operation this worker's configuration does not have: nothing was sent.
pub(crate) fn unconfigured(effect: &Effect) -> Outcome {
    let (downstream, operation) = (&effect.downstream, effect.operation.as_deref().unwrap_or_default());
    let why = format!(
        "the configuration of {downstream} has no operation {operation:?}: write it under [downstream.{downstream}.operations], and restart the worker"
    );
    Outcome::new(Finding::NotApplied, Phase::Render, why)
}

/// An effect as a broker is given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The payload exactly as it was written, or the body; empty where the effect has neither.
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: String,
    /// The effect's own headers, in the order in which they were written. Names may differ by case only.
    pub(crate) headers: Vec<(String, String)>,
    /// W3C trace context.
    pub(crate) traceparent: Option<String>,
    /// Attributes of a binary CloudEvent, which the kind carries under its own prefix; none where it is no event.
    pub(crate) attributes: Vec<(&'static str, String)>,
}

impl Message {
    /// The message that `effect` is.
    pub(crate) fn of(effect: &Effect) -> Result<Self, String> {
        check_depth(effect)?;
        let (body, usual) = match (&effect.payload, &effect.body) {
            (Some(_), Some(_)) => return Err("the effect has both a payload and a body".to_owned()),
            (Some(payload), None) => (payload.clone().into_bytes(), "application/json"),
            (None, Some(body)) => (body.clone(), "application/octet-stream"),
            (None, None) => (Vec::new(), "application/octet-stream"),
        };
        let content_type = effect.content_type.clone().unwrap_or_else(|| usual.to_owned());
        if content_type.is_empty() || !content_type.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err("content_type must be printable ASCII".to_owned());
        }
        Ok(Self {
            body,
            content_type,
            headers: headers(effect)?,
            traceparent: traceparent(effect),
            attributes: Vec::new(),
        })
    }

    /// The message that `effect` is, as an event where an envelope is configured; `key` as it is sent.
    pub(crate) fn enveloped(effect: &Effect, key: &str, envelope: Option<&Envelope>) -> Result<Self, String> {
        match envelope {
            Some(envelope) => envelope.message(effect, key),
            None => Self::of(effect),
        }
    }

    /// The attributes with `prefix` before their names. What carries that prefix already is not the effect's to set.
    pub(crate) fn attributes_as(&self, prefix: &str) -> Result<Vec<(String, &str)>, String> {
        let taken =
            |name: &&String| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        if let Some(name) = self.headers.iter().map(|(name, _)| name).find(taken)
            && !self.attributes.is_empty()
        {
            return Err(format!("headers must not set {name}: it belongs to the event, not the effect"));
        }
        Ok(self.attributes.iter().map(|(name, value)| (format!("{prefix}{name}"), value.as_str())).collect())
    }
}

/// No JSON of an effect is nested so deep that reading it would be dangerous.
pub(crate) fn check_depth(effect: &Effect) -> Result<(), String> {
    for (column, text) in
        [("payload", &effect.payload), ("headers", &effect.headers), ("metadata", &effect.metadata)]
    {
        if text.as_ref().is_some_and(|text| depth(text) > PAYLOAD_DEPTH_MAX) {
            return Err(format!("{column} nests deeper than {PAYLOAD_DEPTH_MAX} levels"));
        }
    }
    Ok(())
}

/// An effect's headers, in the order in which they were written.
pub(crate) fn headers(effect: &Effect) -> Result<Vec<(String, String)>, String> {
    const FORM: &str = "headers must be an object of strings";
    let Some(text) = effect.headers.as_deref() else { return Ok(Vec::new()) };
    let wrong = |problem: String| format!("headers {problem}");
    let json::Shape::Object(members) = json::value(text).and_then(json::shape).map_err(wrong)? else {
        return Err(FORM.to_owned());
    };
    members
        .into_iter()
        .map(|(name, value)| match json::shape(value).map_err(wrong)? {
            json::Shape::Text(value) => Ok((name, value)),
            json::Shape::Object(_) | json::Shape::Array(_) | json::Shape::Plain(_) | json::Shape::Null => {
                Err(FORM.to_owned())
            }
        })
        .collect()
}

/// An effect's trace context. What is none is not sent: a trace never fails an effect.
pub(crate) fn traceparent(effect: &Effect) -> Option<String> {
    effect.trace_context.clone().filter(|trace| is_traceparent(trace))
}

/// A W3C traceparent of version 00.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    matches!(parts.as_slice(), [version, trace, span, flags]
        if *version == "00" && hex(trace, 32) && hex(span, 16) && hex(flags, 2))
}
