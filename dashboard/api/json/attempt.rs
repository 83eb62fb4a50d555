//! What one effect sends, what became of it, and what can be done with it.

use aftercommit::{
    effect::EffectId,
    outcome::Verdict,
    store::{Content, Intent, LoggedAttempt, Look},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Time, maybe_time, time, verdict};

/// An attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AttemptJson {
    /// Which effect.
    #[schema(value_type = i64)]
    pub effect_id: EffectId,
    /// Number, from 1.
    pub attempt: u32,
    /// The claim's token.
    pub token: i64,
    /// Who tried.
    pub worker: Option<String>,
    /// When it began.
    #[schema(schema_with = time)]
    pub started_at: Time,
    /// When it ended.
    #[schema(schema_with = maybe_time)]
    pub ended_at: Option<Time>,
    /// How far the request got.
    pub phase: String,
    /// What it showed.
    #[schema(schema_with = verdict)]
    pub outcome: Verdict,
    /// The protocol's status.
    pub response_status: Option<u16>,
    /// A sentence for people.
    pub error: Option<String>,
    /// It came in after its lease had ended.
    pub late: bool,
}

impl From<&LoggedAttempt> for AttemptJson {
    fn from(attempt: &LoggedAttempt) -> Self {
        Self {
            effect_id: attempt.effect_id,
            attempt: attempt.attempt,
            token: attempt.token,
            worker: attempt.worker.clone(),
            started_at: Time(attempt.started_at),
            ended_at: attempt.ended_at.map(Time),
            phase: attempt.phase.clone(),
            outcome: attempt.outcome,
            response_status: attempt.response_status,
            error: attempt.error.clone(),
            late: attempt.late,
        }
    }
}

impl From<AttemptJson> for LoggedAttempt {
    fn from(json: AttemptJson) -> Self {
        Self {
            effect_id: json.effect_id,
            attempt: json.attempt,
            token: json.token,
            worker: json.worker,
            started_at: json.started_at.0,
            ended_at: json.ended_at.map(|time| time.0),
            phase: json.phase,
            outcome: json.outcome,
            response_status: json.response_status,
            error: json.error,
            late: json.late,
        }
    }
}

/// The attempts of an effect, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AttemptsJson {
    /// The attempts.
    pub attempts: Vec<AttemptJson>,
}

/// What one effect sends.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SentJson {
    /// Path, routing key, subject or stream within the downstream, as far as it may be shown.
    pub target: Option<String>,
    /// The body's type.
    pub content_type: Option<String>,
    /// Not begun after this.
    #[schema(schema_with = maybe_time)]
    pub expires_at: Option<Time>,
    /// How many bytes are to be sent; null: no content.
    pub bytes: Option<u64>,
    /// Whether retention or a person dropped the content.
    pub dropped: bool,
    /// More headers, as a JSON object; only with `payload=true`.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    pub headers: Option<Box<RawValue>>,
    /// Effects of one (downstream, ordering key) run one at a time.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// The W3C traceparent that it was written with.
    #[serde(default)]
    pub trace_context: Option<String>,
    /// The database role that wrote it.
    #[serde(default)]
    pub enqueued_by: Option<String>,
    /// The guarded request that wrote it.
    #[serde(default)]
    pub request_id: Option<i64>,
    /// The payload, as the text that was written; only with `payload=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub payload: Option<String>,
    /// The body, in base64; only with `payload=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub body_base64: Option<String>,
}

impl SentJson {
    /// Of an intent that was read by `look`.
    pub fn of(intent: &Intent, look: Look) -> Self {
        let (payload, body) = match &intent.content {
            // As text: a number with many digits must come out as it went in.
            Content::Json(text) => (text.clone(), None),
            Content::Bytes(bytes) => (None, bytes.as_ref().map(|bytes| STANDARD.encode(bytes))),
            Content::None | Content::Dropped => (None, None),
        };
        let headers = intent.headers.clone().filter(|_| look == Look::Whole);
        Self {
            target: intent.target.as_deref().map(|target| shown_target(target, look)),
            content_type: intent.content_type.clone(),
            expires_at: intent.expires_at.map(Time),
            bytes: intent.bytes,
            dropped: intent.content == Content::Dropped,
            headers: headers.and_then(|text| RawValue::from_string(text).ok()),
            ordering_key: intent.ordering_key.clone(),
            trace_context: intent.trace_context.clone(),
            enqueued_by: intent.enqueued_by.clone(),
            request_id: intent.request_id,
            payload,
            body_base64: body,
        }
    }
}

/// A target as far as it may be shown unasked. A path, or a name (a recipient, an endpoint, a subject, a stream, a routing key)
/// says whose effect this is. What follows the host of a whole URL may be as secret as a password (webhook URLs are), and so may a
/// query: they belong to the content, and so does what looks like neither.
pub fn shown_target(target: &str, look: Look) -> String {
    if look == Look::Whole {
        return target.to_owned();
    }
    // What was cut already, by a dashboard in between, is not cut again.
    if target.split_once(' ').is_some_and(|(n, word)| n.parse::<u32>().is_ok() && is_characters(word)) {
        return target.to_owned();
    }
    if let Some(url) = url::Url::parse(target).ok().filter(url::Url::has_host) {
        return format!("{}/…", url.origin().ascii_serialization());
    }
    let (path, query) = target.split_once('?').map_or((target, ""), |(path, _)| (path, "?…"));
    let is_plain = |text: &str| !text.chars().any(|c| c.is_whitespace() || "?#\\".contains(c));
    let is_name =
        || is_plain(target) && !target.contains("://") && !(target.contains('@') && target.contains(':'));
    if (path.starts_with('/') && is_plain(path)) || is_name() {
        return format!("{path}{query}");
    }
    match target.chars().count() {
        1 => "1 character".to_owned(),
        more => format!("{more} characters"),
    }
}

fn is_characters(word: &str) -> bool {
    matches!(word, "character" | "characters")
}

/// What a verb would do to an effect now, or why it is refused. What only the transaction of the action can see (whether the
/// request is still the one that was sent) is judged there.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerbJson {
    /// The verb, as a path takes it.
    pub verb: String,
    /// What it would do, in words; null where it is refused.
    pub consequence: Option<String>,
    /// Why it is refused; null where it is not.
    pub refused: Option<String>,
    /// It may change the outside world a second time.
    pub risky: bool,
    /// The words that have to be sent as `confirmation`.
    pub confirmation: Option<String>,
    /// Whether a reason has to be sent.
    pub reason_required: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shows_whose_effect_it_is_and_nothing_that_may_be_secret() {
        for (target, wanted) in [
            ("/orders/17", "/orders/17"),
            ("/hooks/17?token=sesame", "/hooks/17?…"),
            ("ann@shop.test", "ann@shop.test"),
            ("orders.eu.placed", "orders.eu.placed"),
            ("acme", "acme"),
            ("https://hooks.test:8443/T0/sesame?t=sesame", "https://hooks.test:8443/…"),
            ("http://me:sesame@hooks.test/", "http://hooks.test/…"),
            ("a sesame", "8 characters"),
            ("#", "1 character"),
        ] {
            let shown = shown_target(target, Look::Size);
            assert_eq!(shown, wanted);
            assert_eq!(shown_target(&shown, Look::Size), wanted, "what a dashboard showed is shown as it is");
            assert_eq!(shown_target(target, Look::Whole), target);
        }
        for strange in ["https://hooks.test1:99999/sesame", "me:sesame@hooks", "x?sesame", "a\\sesame"] {
            let shown = shown_target(strange, Look::Size);
            assert!(shown.ends_with(" characters"), "{strange}: {shown}");
        }
    }
}
