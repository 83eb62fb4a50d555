//! What inspection asks and is told.

use super::{Breaker, PausedBy};
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

/// Which guarded requests to list.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Only of this scope.
    pub scope: Option<String>,
    /// Only with this key.
    pub key: Option<String>,
    /// At most this many.
    pub limit: u32,
}

/// A guarded request that was answered. What with is shown to nobody but whoever repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// In whose space its key is unique.
    pub scope: String,
    /// The key that the client chose.
    pub key: String,
    /// When it began.
    pub created_at: Timestamp,
    /// Until when its answer is kept, besides as long as its effects are unfinished.
    pub expires_at: Timestamp,
    /// The answer's status.
    pub status: u16,
    /// Effects that it wrote.
    pub effects: u64,
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
    /// Retention dropped its attempt log: what the downstream saw is not known here any more, and it cannot be sent again.
    pub log_dropped: bool,
    /// The effect that took its place.
    pub superseded_by: Option<EffectId>,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Its fencing token: an action carries the state and token it was decided on.
    pub token: i64,
}

/// What the application asked for, besides what [`Status`] shows. Who may only view is refused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Path, routing key, subject or stream within the downstream.
    pub target: Option<String>,
    /// The body's type.
    pub content_type: Option<String>,
    /// Not begun after this.
    pub expires_at: Option<Timestamp>,
    /// How many bytes are to be sent; `None` when there is no content.
    pub bytes: Option<u64>,
    /// What is to be sent.
    pub content: Content,
}

/// What an effect carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    None,
    /// Nothing any more: retention, or a person, dropped it.
    Dropped,
    /// A JSON text; the text when the whole was asked for.
    Json(Option<String>),
    /// Bytes; they themselves when the whole was asked for.
    Bytes(Option<Vec<u8>>),
}

/// How much of an effect's content is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Whether there is some, and how long it is.
    Size,
    /// All of it.
    Whole,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
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
    /// Who paused it, by hand or because its credentials were refused.
    pub paused: Option<PausedBy>,
    /// Where its calls go.
    pub origin: Option<String>,
    /// Its origin asked to be left alone until then.
    pub paused_until: Option<Timestamp>,
    /// Whether its origin answers.
    pub breaker: Breaker,
    /// What went wrong at its origin last, while it is held.
    pub hold_reason: Option<String>,
    /// Calls that the fleet may make.
    pub rate: Option<String>,
}

impl DownstreamInfo {
    /// Where effects wait and no live worker serves them: that, how many, and for how long, as a sentence without its end.
    pub fn unserved(&self, now: Timestamp) -> Option<String> {
        let waiting = self.pending + self.in_flight;
        if self.workers > 0 || waiting == 0 {
            return None;
        }
        let oldest = match self.oldest_due_at.map(|due| now.since(due).as_secs()) {
            None => String::new(),
            Some(seconds @ 0..=119) => format!(", the oldest due for {seconds} s"),
            Some(seconds @ 120..=7_199) => format!(", the oldest due for {} min", seconds / 60),
            Some(seconds) => format!(", the oldest due for {} h", seconds / 3_600),
        };
        Some(format!("no live worker for downstream {}: {waiting} pending{oldest}", self.name))
    }
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
    /// Which downstream, where it was about no effect.
    pub downstream: Option<String>,
    /// From which state.
    pub from_state: Option<String>,
    /// To which state.
    pub to_state: Option<String>,
    /// The reason given.
    pub reason: Option<String>,
}
