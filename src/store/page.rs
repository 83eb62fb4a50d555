//! What inspection asks and is told.

use crate::{clock::Timestamp, effect::EffectId, outcome::Verdict, state::State};

/// Which effects to list. Newest first, by id.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this state.
    pub state: Option<State>,
    /// Only this downstream.
    pub downstream: Option<String>,
    /// Only this key.
    pub key: Option<String>,
    /// Only effects whose id is lower: the keyset of the next page.
    pub before: Option<EffectId>,
    /// At most this many; [`PAGE_MAX`] at most.
    pub limit: u32,
}

/// Longest page.
pub const PAGE_MAX: u32 = 1000;

/// An effect as `status` shows it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Status {
    /// Its number.
    pub id: EffectId,
    /// The downstream's name.
    pub downstream: String,
    /// The named operation.
    pub operation: Option<String>,
    /// The key, without the downstream's prefix.
    pub idempotency_key: String,
    /// Where it stands.
    pub state: State,
    /// Why it does not move: `pause`, `breaker`, `order`, `unserved`.
    pub held_by: Option<String>,
    /// Attempts in the log, and the one in flight.
    pub attempts: u32,
    /// Not attempted before this.
    pub due_at: Option<Timestamp>,
    /// When a request may first have been received, in the present history.
    pub first_sent_at: Option<Timestamp>,
    /// Until when an uncertain effect may be sent again.
    pub safe_until: Option<Timestamp>,
    /// When the present claim ends.
    pub lease_until: Option<Timestamp>,
    /// Who holds the present claim, or made the last attempt.
    pub worker: Option<String>,
    /// What the last attempt showed.
    pub last_outcome: Option<Verdict>,
    /// What the last attempt, or the decision to park, said.
    pub last_error: Option<String>,
    /// The protocol's status of the final answer.
    pub response_status: Option<u16>,
    /// The final answer, when it was whole and valid JSON; JSON text.
    pub response: Option<Box<serde_json::value::RawValue>>,
    /// Business references; JSON text.
    pub metadata: Option<Box<serde_json::value::RawValue>>,
    /// The downstream stored its refusal under the key: a retry could only replay it.
    pub refusal_stored: bool,
    /// Retention, or a person, dropped its payload: it cannot be sent again.
    pub payload_dropped: bool,
    /// The effect that took its place.
    pub superseded_by: Option<EffectId>,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Its fencing token: an action carries the state and token it was decided on.
    pub token: i64,
}

/// An attempt as `attempt_log` shows it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LoggedAttempt {
    /// Which effect.
    pub effect_id: EffectId,
    /// Number, from 1.
    pub attempt: u32,
    /// The claim's token.
    pub token: i64,
    /// Who tried.
    pub worker: Option<String>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How far the request got.
    pub phase: String,
    /// What it showed.
    pub outcome: Verdict,
    /// The protocol's status.
    pub response_status: Option<u16>,
    /// A sentence for people.
    pub error: Option<String>,
    /// It came in after its lease had ended.
    pub late: bool,
}

/// How many effects of a downstream are in a state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// The downstream.
    pub downstream: String,
    /// The state.
    pub state: State,
    /// How many.
    pub effects: u64,
}

/// A downstream as registered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DownstreamInfo {
    /// Its name.
    pub name: String,
    /// Its kind; `None` when an effect names it but nobody ever registered it.
    pub kind: Option<String>,
    /// The contract in words.
    pub contract: Option<String>,
    /// Live workers that serve it.
    pub workers: u32,
    /// Due or pending effects.
    pub pending: u64,
    /// In flight.
    pub in_flight: u64,
    /// In doubt.
    pub in_doubt: u64,
    /// Failed.
    pub failed: u64,
    /// When its oldest due effect became due.
    pub oldest_due_at: Option<Timestamp>,
}

/// A worker as it last reported.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WorkerInfo {
    /// Its name: host, process id and epoch.
    pub name: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last reported.
    pub seen_at: Timestamp,
    /// Whether it reported lately.
    pub live: bool,
    /// What it serves.
    pub downstreams: Vec<String>,
    /// Claims it holds.
    pub in_flight: u64,
    /// Its version.
    pub version: String,
}

/// An audit row.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Audited {
    /// Number.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub who: String,
    /// Which verb.
    pub verb: String,
    /// Which effect.
    pub effect_id: Option<EffectId>,
    /// From which state.
    pub from_state: Option<String>,
    /// To which state.
    pub to_state: Option<String>,
    /// The reason given.
    pub reason: Option<String>,
}
