//! An effect, its attempts, and what can be done with it.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    outcome::Verdict,
    state::State,
    store::{Page, Status},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{AttemptJson, SentJson, Time, VerbJson, maybe_time, maybe_verdict, state, time};

/// An effect. The response and the metadata are as they are stored, digit by digit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectJson {
    /// Its number.
    #[schema(value_type = i64, minimum = 1)]
    pub id: EffectId,
    /// The downstream's name.
    pub downstream: String,
    /// The named operation.
    pub operation: Option<String>,
    /// The key, without the downstream's prefix.
    pub idempotency_key: String,
    /// Where it stands.
    #[schema(schema_with = state)]
    pub state: State,
    /// Why it does not move.
    pub held_by: Option<String>,
    /// Attempts in the log, and the one in flight.
    pub attempts: u32,
    /// Not attempted before this.
    #[schema(schema_with = maybe_time)]
    pub due_at: Option<Time>,
    /// When a request may first have been received, in the present history.
    #[schema(schema_with = maybe_time)]
    pub first_sent_at: Option<Time>,
    /// Until when it may be sent again while nobody knows whether it was applied.
    #[schema(schema_with = maybe_time)]
    pub safe_until: Option<Time>,
    /// When the present claim ends.
    #[schema(schema_with = maybe_time)]
    pub lease_until: Option<Time>,
    /// Before this its last request may still be travelling: nobody can resolve or resend it.
    #[serde(default)]
    #[schema(schema_with = maybe_time)]
    pub quiet_at: Option<Time>,
    /// An attempt of its present history ended without an answer about that first request.
    #[serde(default)]
    pub uncertain: bool,
    /// Who holds the present claim, or made the last attempt.
    pub worker: Option<String>,
    /// What the last attempt showed.
    #[schema(schema_with = maybe_verdict)]
    pub last_outcome: Option<Verdict>,
    /// What the last attempt, or the decision to park, said.
    pub last_error: Option<String>,
    /// The protocol's status of the final answer.
    pub response_status: Option<u16>,
    /// The final answer, where it was JSON. Never shown to viewers.
    #[schema(value_type = serde_json::Value)]
    pub response: Option<Box<RawValue>>,
    /// Business references.
    #[schema(value_type = serde_json::Value)]
    pub metadata: Option<Box<RawValue>>,
    /// The downstream has stored an answer under the key: a retry could only replay it.
    #[serde(default)]
    pub refusal_stored: bool,
    /// Its payload was dropped: it cannot be sent again.
    pub payload_dropped: bool,
    /// Its attempt log was dropped.
    pub log_dropped: bool,
    /// The effect that took its place.
    #[schema(value_type = Option<i64>)]
    pub superseded_by: Option<EffectId>,
    /// When it was written.
    #[schema(schema_with = time)]
    pub created_at: Time,
    /// When it ended.
    #[schema(schema_with = maybe_time)]
    pub finished_at: Option<Time>,
    /// Its fencing token: an action carries the state and the token that it was decided on.
    pub token: i64,
    /// Only where an effect was enqueued: whether it was written, or existed already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub inserted: Option<bool>,
    /// Only where a mail to several was enqueued: whose effect this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub target: Option<String>,
    /// Only where one effect is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempt_log: Option<Vec<AttemptJson>>,
    /// Only where one effect is shown: what is sent; null for whoever may not read it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = Option<SentJson>)]
    pub request: Option<Option<Box<SentJson>>>,
    /// Only where one effect is shown: what follows, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub what_follows: Option<String>,
    /// Only where the API shows one effect: what each verb would do now, or why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub verbs: Option<Vec<VerbJson>>,
}

impl From<&Status> for EffectJson {
    fn from(status: &Status) -> Self {
        Self {
            id: status.id,
            downstream: status.downstream.clone(),
            operation: status.operation.clone(),
            idempotency_key: status.idempotency_key.clone(),
            state: status.state,
            held_by: status.held_by.clone(),
            attempts: status.attempts,
            due_at: status.due_at.map(Time),
            first_sent_at: status.first_sent_at.map(Time),
            safe_until: status.safe_until.map(Time),
            lease_until: status.lease_until.map(Time),
            quiet_at: status.quiet_at.map(Time),
            uncertain: status.uncertain,
            worker: status.worker.clone(),
            last_outcome: status.last_outcome,
            last_error: status.last_error.clone(),
            response_status: status.response_status,
            response: status.response.clone(),
            metadata: status.metadata.clone(),
            refusal_stored: status.refusal_stored,
            payload_dropped: status.payload_dropped,
            log_dropped: status.log_dropped,
            superseded_by: status.superseded_by,
            created_at: Time(status.created_at),
            finished_at: status.finished_at.map(Time),
            token: status.token,
            inserted: None,
            target: None,
            attempt_log: None,
            request: None,
            what_follows: None,
            verbs: None,
        }
    }
}

impl From<EffectJson> for Status {
    fn from(json: EffectJson) -> Self {
        let at = |time: Option<Time>| time.map(|time| time.0);
        Self {
            id: json.id,
            downstream: json.downstream,
            operation: json.operation,
            idempotency_key: json.idempotency_key,
            state: json.state,
            held_by: json.held_by,
            attempts: json.attempts,
            due_at: at(json.due_at),
            first_sent_at: at(json.first_sent_at),
            safe_until: at(json.safe_until),
            lease_until: at(json.lease_until),
            quiet_at: at(json.quiet_at),
            uncertain: json.uncertain,
            worker: json.worker,
            last_outcome: json.last_outcome,
            last_error: json.last_error,
            response_status: json.response_status,
            response: json.response,
            metadata: json.metadata,
            refusal_stored: json.refusal_stored,
            payload_dropped: json.payload_dropped,
            log_dropped: json.log_dropped,
            superseded_by: json.superseded_by,
            created_at: json.created_at.0,
            finished_at: at(json.finished_at),
            token: json.token,
        }
    }
}

/// A page of effects, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectsJson {
    /// The effects.
    pub effects: Vec<EffectJson>,
    /// `before` of the next page; null: this was the last one.
    #[schema(value_type = Option<i64>)]
    pub next: Option<EffectId>,
    /// How many of the newest candidates this page looked at, where it had to search; null: an index served it.
    pub searched: Option<u64>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

impl EffectsJson {
    /// Of a page.
    pub fn of(page: &Page, now: Timestamp) -> Self {
        let effects = page.effects.iter().map(EffectJson::from).collect();
        Self { effects, next: page.next, searched: page.searched, now: Time(now) }
    }
}

/// What enqueueing wrote or found: one effect, or one per recipient of a mail.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EnqueuedJson {
    /// Each with `inserted`.
    pub effects: Vec<EffectJson>,
}

/// A member that is there is `Some`, also where it is null.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
