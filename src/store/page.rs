//! What inspection asks and is told about effects and who carries them out. What people did, and what came in, is in `record`;
//! causes and charts are in `chart`.

use super::{Breaker, PausedBy};
use crate::{clock::Timestamp, effect::EffectId, outcome::Verdict, state::State};

/// Longest page.
pub const PAGE_MAX: u32 = 1000;

/// How many of the newest candidates one page looks through for what no index serves.
pub const SEARCH_WINDOW: u32 = 10_000;

/// How many of the newest effects have their causes told. Each is read with its last attempt, and grouped: twice as many would
/// let people wait at ten million effects.
pub const CAUSES_WINDOW: u32 = 5_000;

/// Which effects to list: newest first, by id. What is `None` or empty does not narrow.
///
/// `states`, `downstream`, `key`, `metadata`, `ids` and `before` are served by indexes, and times by a search by halves over the
/// ids (so what a clock wrote that was set back meanwhile may be missed at the edges). `operation` and `error` are looked for among
/// the newest [`SEARCH_WINDOW`] of what is left: see [`Page::searched`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In any of these states.
    pub states: Vec<State>,
    /// Only this downstream.
    pub downstream: Option<String>,
    /// Only this operation.
    pub operation: Option<String>,
    /// Only this key.
    pub key: Option<String>,
    /// Whose metadata contains this JSON object: `{"order":"A-17"}`.
    pub metadata: Option<String>,
    /// In whose `last_error` this stands, in upper or lower case.
    pub error: Option<String>,
    /// Written before this.
    pub created_before: Option<Timestamp>,
    /// Written at this time or after it.
    pub created_after: Option<Timestamp>,
    /// Only these; [`PAGE_MAX`] at most.
    pub ids: Option<Vec<EffectId>>,
    /// Only effects whose id is lower: the keyset of the next page.
    pub before: Option<EffectId>,
    /// At most this many; [`PAGE_MAX`] at most.
    pub limit: u32,
}

/// A page of effects.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Newest first.
    pub effects: Vec<Status>,
    /// [`Filter::before`] of the next page; `None`: this is the last. A page that searched may be short, or empty, and not the
    /// last.
    pub next: Option<EffectId>,
    /// Where a part of the filter is served by no index: how many of the newest candidates were looked at. `None`: everything was
    /// found by indexes.
    pub searched: Option<u64>,
}

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
    /// The downstream has stored an answer under the key: a retry could only replay it.
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
    /// Before this its last request may still be travelling, and resend, resolve and reissue are refused.
    pub quiet_at: Option<Timestamp>,
    /// An attempt of the present history ended unknown, or without a settle.
    pub uncertain: bool,
}

/// What the application asked for, besides what [`Status`] shows. Who may only view is refused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Path, routing key, subject or stream within the downstream.
    pub target: Option<String>,
    /// The body's type.
    pub content_type: Option<String>,
    /// More headers or message properties, as JSON text.
    pub headers: Option<String>,
    /// Effects of one ordering key run one at a time.
    pub ordering_key: Option<String>,
    /// The W3C traceparent of the business transaction.
    pub trace_context: Option<String>,
    /// Which login wrote it; a file has none.
    pub enqueued_by: Option<String>,
    /// Which guarded request wrote it: see [`super::RequestInfo::id`].
    pub request_id: Option<i64>,
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
    /// A JSON text; the text when it was asked for.
    Json(Option<String>),
    /// Bytes; they themselves when they were asked for.
    Bytes(Option<Vec<u8>>),
}

/// How much of an effect's content is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Whether there is some, and how long it is.
    Size,
    /// All of it, where it is no longer than so many bytes: of many effects, long ones would cost more than a page is worth.
    UpTo(u32),
    /// All of it.
    Whole,
}

impl Look {
    /// The longest content that is read, in bytes; negative: none.
    pub(crate) const fn longest(self) -> i64 {
        match self {
            Self::Size => -1,
            // No loss: every u32 is an i64.
            Self::UpTo(bytes) => bytes as i64,
            Self::Whole => i64::MAX,
        }
    }
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
    /// Effects that it holds.
    pub in_flight: u64,
    /// Leases under which it holds them: one per claim of several.
    pub leases: u64,
    /// When the first of these ends, unless it is renewed.
    pub lease_until: Option<Timestamp>,
    /// Its version.
    pub version: String,
}

impl WorkerInfo {
    /// The host and the process id, where its name says them; a name that somebody chose says neither.
    pub fn process(&self) -> Option<(&str, u32)> {
        let (rest, epoch) = self.name.rsplit_once('-')?;
        let (host, process) = rest.rsplit_once('-')?;
        let is_epoch = !epoch.is_empty() && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
        process.parse().ok().filter(|_| is_epoch && !host.is_empty()).map(|process| (host, process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_told_by_its_host_and_process() {
        let process = |name: &str| {
            let at = Timestamp::from_micros(0);
            let worker = WorkerInfo {
                name: name.to_owned(),
                started_at: at,
                seen_at: at,
                live: true,
                downstreams: Vec::new(),
                in_flight: 0,
                leases: 0,
                lease_until: None,
                version: String::new(),
            };
            worker.process().map(|(host, process)| (host.to_owned(), process))
        };
        assert_eq!(process("app-3.example-4711-19a0c3f2"), Some(("app-3.example".to_owned(), 4711)));
        for chosen in ["w1", "", "-1-f", "worker-one-f", "a-1-", "a-1-night"] {
            assert_eq!(process(chosen), None, "{chosen}");
        }
    }
}
