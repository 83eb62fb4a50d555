//! What a visitor is shown of an effect: payloads, answers and headers to those who may see them, and to nobody what is redacted.

use serde_json::value::RawValue;

use super::json::{AttemptJson, EffectJson, SentJson};
use crate::{access::Visitor, redaction::Redaction, shared::Shared};

/// The eyes of one visitor.
pub(super) struct Shown<'a> {
    redaction: &'a Redaction,
    sees_content: bool,
}

impl<'a> Shown<'a> {
    /// To this visitor.
    pub(super) fn to(shared: &'a Shared, visitor: &Visitor) -> Self {
        Self { redaction: shared.redaction(), sees_content: visitor.sees_content() }
    }

    /// Takes away what they are not shown of an effect.
    pub(super) fn effect(&self, effect: &mut EffectJson) {
        if self.sees_content {
            effect.response = effect.response.take().and_then(|response| self.raw(&response));
            if let Some(Some(sent)) = &mut effect.request {
                self.sent(sent);
            }
        } else {
            effect.response = None;
            effect.target = None;
            effect.request = effect.request.take().map(|_hidden| None);
        }
        effect.metadata = effect.metadata.take().and_then(|metadata| self.raw(&metadata));
        self.words(&mut effect.target);
        self.words(&mut effect.last_error);
        self.words(&mut effect.what_follows);
        effect.attempt_log.iter_mut().flatten().for_each(|attempt| self.attempt(attempt));
    }

    /// Takes away what they are not shown of an attempt.
    pub(super) fn attempt(&self, attempt: &mut AttemptJson) {
        self.words(&mut attempt.error);
    }

    fn sent(&self, sent: &mut SentJson) {
        self.words(&mut sent.target);
        sent.headers = sent.headers.take().and_then(|headers| self.headers(&headers));
        if let Some(payload) = &mut sent.payload {
            *payload = self.redaction.content(payload).into_owned();
        }
    }

    fn words(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            *text = self.redaction.words(text).into_owned();
        }
    }

    /// JSON stays JSON, digit by digit.
    fn raw(&self, json: &RawValue) -> Option<Box<RawValue>> {
        RawValue::from_string(self.redaction.content(json.get()).into_owned()).ok()
    }

    fn headers(&self, headers: &RawValue) -> Option<Box<RawValue>> {
        let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(headers.get()).ok()?;
        let shown = parsed.into_iter().map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = self.redaction.header(&name, &text).into_owned();
            (name, serde_json::Value::String(text))
        });
        serde_json::value::to_raw_value(&shown.collect::<serde_json::Map<_, _>>()).ok()
    }
}
