//! What is sent to act. Members that are not known are refused: a wish that is misspelt must not be half granted.

use std::collections::BTreeMap;

use aftercommit::{effect::EffectId, state::State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Time, maybe_time, state, time};

/// An action on an effect, and what it was decided on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActJson {
    /// The state that was seen.
    #[schema(schema_with = state)]
    pub state: State,
    /// The token that was seen.
    pub token: i64,
    /// Why, for the audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An action that may change the outside world a second time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmedJson {
    /// The state that was seen.
    #[schema(schema_with = state)]
    pub state: State,
    /// The token that was seen.
    pub token: i64,
    /// Why, for the audit; needed where a confirmation is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The words that `GET effects/{id}` names, where it names some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<String>,
}

/// What a person found out about an effect in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// It was applied.
    Applied,
    /// It was not.
    NotApplied,
}

/// What a person found out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveJson {
    /// The state that was seen.
    #[schema(schema_with = state)]
    pub state: State,
    /// The token that was seen.
    pub token: i64,
    /// What was found.
    #[serde(rename = "as")]
    pub found: Resolution,
    /// How it was found out, for the audit.
    pub reason: String,
    /// What the downstream said; with `applied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub response: Option<Box<RawValue>>,
}

/// A new effect with a new key, in the place of an old one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReissueJson {
    /// The state that was seen.
    #[schema(schema_with = state)]
    pub state: State,
    /// The token that was seen.
    pub token: i64,
    /// Why, for the audit.
    pub reason: String,
    /// The words that `GET effects/{id}` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<String>,
    /// What became of the old one; needed where that is in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolve: Option<Resolution>,
}

/// Why, for the audit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasonJson {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The end of a pause, and which.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeJson {
    /// When the pause that was seen began: `paused_at` of `GET downstreams`. Another one is left alone.
    #[schema(schema_with = time)]
    pub paused_at: Time,
    /// Why, for the audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An effect to be written.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueJson {
    /// The downstream's name.
    pub downstream: String,
    /// A named operation of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The key; left out, a random one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub idempotency_key: Option<String>,
    /// The payload: sent exactly as it is written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Option<Box<RawValue>>,
    /// Instead of a payload: bytes, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Of what type the bytes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// More headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Path, routing key, subject or stream within the downstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Not attempted before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = maybe_time)]
    pub due_at: Option<Time>,
    /// Not attempted before so many milliseconds have passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Not begun after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = maybe_time)]
    pub expires_at: Option<Time>,
    /// Business references, a JSON object: searchable, never sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub metadata: Option<Box<RawValue>>,
    /// The W3C traceparent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<String>,
}

/// Which effects. What is left out leaves nothing out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterJson {
    /// Any of these states; empty: all that the verb takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = states)]
    pub states: Vec<State>,
    /// Of this downstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downstream: Option<String>,
    /// Of this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// With this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose metadata contains this JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub metadata: Option<Box<RawValue>>,
    /// In whose last error this stands, whatever the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With this cause: the `id` that `GET causes` told, for the same downstream where that was asked for one. With `-1h`, `-24h` or
    /// `-7d` behind it: only those that ended, or were parked, so lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Written before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = maybe_time)]
    pub created_before: Option<Time>,
    /// Written after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = maybe_time)]
    pub created_after: Option<Time>,
    /// Only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<i64>>, max_items = 1000)]
    pub ids: Option<Vec<EffectId>>,
}

/// A verb for many effects: which ones is listed once, and each is acted on only as long as it is as it was listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkWishJson {
    /// The verb.
    #[schema(schema_with = verb)]
    pub verb: String,
    /// With `resolve`: what was found out about all of them.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub found: Option<Resolution>,
    /// Which effects.
    pub filter: FilterJson,
    /// Why, for the audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// At most this many a second; left out: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 10000)]
    pub rate: Option<u32>,
    /// At most this many, the oldest first; left out: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub limit: Option<u32>,
    /// The words that a dry run names, where it names some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<String>,
    /// The digest that a dry run told: nothing is begun unless the list, with the state and the token of each effect, is still the one
    /// that it stands for. Left out, the list is whatever matches now: whoever decides on a dry run sends it, with `limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

fn verb() -> utoipa::openapi::schema::ObjectBuilder {
    super::word(["retry", "resend", "cancel", "resolve", "reissue", "redact"])
}

fn states() -> utoipa::openapi::schema::ArrayBuilder {
    utoipa::openapi::schema::ArrayBuilder::new().items(state())
}
