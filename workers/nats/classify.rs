//! What an answer to a publish shows.

use aftercommit::outcome::{About, Finding, Outcome, Phase, Response};
use async_nats::Message;
use serde::Deserialize;

use super::stream::ApiError;

/// More of an answer is not kept.
const KEPT: usize = 4096;
/// Longest description of the server's that a reason repeats.
const SAID_MAX: usize = 200;

/// An acknowledgement: one that stores, or one that says why not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PubAck {
    error: Option<ApiError>,
    stream: String,
    seq: u64,
    duplicate: bool,
}

/// What `answer` shows, of a message that `stream` was to take. The effect itself `named` the subject, or the configuration did.
pub(super) fn answer(answer: &Message, stream: &str, named: bool, place: &str) -> Outcome {
    let status = answer.status.map(|status| status.as_u16());
    let mut outcome = match serde_json::from_slice::<PubAck>(&answer.payload) {
        Ok(PubAck { error: Some(error), .. }) => refusal(&error, stream, named, place),
        Ok(ack) if ack.seq > 0 && ack.stream == stream => stored(&ack, place),
        Ok(_) | Err(_) => Outcome::new(
            Finding::Unknown,
            Phase::Done,
            format!(
                "{place} answered, but not with an acknowledgement of the stream {stream}: look whether somebody else listens on the subject, and whether the stream has the message"
            ),
        ),
    };
    let (body, truncated) = match answer.payload.get(..KEPT) {
        Some(kept) => (kept.to_vec(), answer.payload.len() > KEPT),
        None => (answer.payload.to_vec(), false),
    };
    let code = serde_json::from_slice::<PubAck>(&body).ok().and_then(|ack| ack.error).map(|error| error.code);
    outcome.response = Some(Response { status: code.or(status), body, truncated });
    outcome
}

fn stored(ack: &PubAck, place: &str) -> Outcome {
    if !ack.duplicate {
        return Outcome::new(Finding::Applied, Phase::Done, "");
    }
    // Where our log holds no earlier attempt, somebody else used this key: the mark makes that visible.
    Outcome {
        replayed: true,
        ..Outcome::new(
            Finding::AlreadyDone,
            Phase::Done,
            format!(
                "an earlier message with this id had been stored: {} {} at {place}; this one was dropped",
                ack.stream, ack.seq
            ),
        )
    }
}

/// JetStream's errors, by their numbers: <https://github.com/nats-io/nats-server/blob/main/server/errors.json>.
fn refusal(error: &ApiError, stream: &str, named: bool, place: &str) -> Outcome {
    let said = error.description.to_lowercase();
    // How the server's own words begin: <https://github.com/nats-io/nats-server/blob/main/server/store.go>. The system's, such as
    // "disk quota exceeded" or "resource temporarily unavailable", may come in the middle of a write.
    let full = ["maximum messages", "maximum bytes", "insufficient storage", "insufficient resources"];
    let (finding, refuses_us, next) = match error.err_code {
        10_158 => (Finding::InProgress, false, STILL_STORED),
        _ if said.contains("duplicate message id is in process") => {
            (Finding::InProgress, false, STILL_STORED)
        }
        // Another stream takes the subject that this one effect names: no other effect is concerned.
        10_060 if named => {
            (Finding::Rejected(About::ThisAttempt), false, "give the effect a target that this stream takes")
        }
        // Another stream takes the subject; the stream was sealed: for a person to mend.
        10_060 => (Finding::NotApplied, true, "another stream has the subject: correct stream or subject"),
        10_109 => (Finding::NotApplied, true, "it takes nothing any more: name another stream"),
        10_039 | 10_076 => (Finding::NotApplied, true, "give this account JetStream"),
        // Larger than the stream takes: body, headers.
        10_054 | 10_097 => {
            (Finding::Rejected(About::ThisAttempt), false, "send less, or raise the stream's largest message")
        }
        // No leader; insufficient resources; no memory; no storage.
        10_008 | 10_023 | 10_028 | 10_047 => {
            (Finding::NotApplied, false, "look at the memory, the disks and the servers there")
        }
        // The store refused it. What it says when it is full is known; anything else may have happened in the middle of a write.
        10_077 if full.iter().any(|words| said.starts_with(words)) => {
            (Finding::NotApplied, false, "make room in the stream, or raise its limits")
        }
        _ => (
            Finding::Unknown,
            false,
            "it may have been stored; look for its id in the stream, and at the server's log",
        ),
    };
    let description: String = error.description.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
    let reason = format!(
        "JetStream error {} ({}) of the stream {stream} at {place}, \"{description}\": {next}",
        error.err_code, error.code
    );
    Outcome { refuses_us, ..Outcome::new(finding, Phase::Done, reason) }
}

const STILL_STORED: &str = "a message with this id is still being stored";

/// The server says at once that nobody takes the subject.
pub(super) fn no_responders(subject: &str, place: &str) -> Outcome {
    let reason = format!(
        "no stream at {place} takes the subject {subject} now: correct subject, or the stream's subjects, unless its servers just start"
    );
    let response = Some(Response { status: Some(503), body: Vec::new(), truncated: false });
    Outcome { response, ..Outcome::new(Finding::NotApplied, Phase::Done, reason) }
}

/// The server does not let us publish. Where the effect itself `named` the subject, others may still go.
pub(super) fn denied(subject: &str, named: bool, place: &str) -> Outcome {
    Outcome {
        refuses_us: !named,
        ..Outcome::new(Finding::NotApplied, Phase::Done, not_permitted(subject, place))
    }
}

/// The server refuses the subject, but perhaps to another attempt of the same moment.
pub(super) fn perhaps_denied(subject: &str, named: bool, place: &str) -> Outcome {
    let reason = format!("no acknowledgement, and {}", not_permitted(subject, place));
    Outcome { refuses_us: !named, ..Outcome::new(Finding::Unknown, Phase::Send, reason) }
}

/// The server had just refused the subject to another attempt.
pub(super) fn not_begun(subject: &str, named: bool, place: &str) -> Outcome {
    let reason = format!("not begun: {}", not_permitted(subject, place));
    Outcome { refuses_us: !named, ..Outcome::new(Finding::NotApplied, Phase::Connect, reason) }
}

fn not_permitted(subject: &str, place: &str) -> String {
    format!("{place} does not let this account publish to {subject}: permit it there, or correct the subject")
}

/// It was handed over, and nobody said what became of it.
pub(super) fn unheard(place: &str, what: &str) -> Outcome {
    let reason = format!("{what} of {place}: it may have been stored; look for its id in the stream");
    Outcome::new(Finding::Unknown, Phase::Send, reason)
}

/// It was handed over, and what came was no answer.
pub(super) fn too_much(why: &str) -> Outcome {
    Outcome::new(Finding::Unknown, Phase::Answer, format!("{why}; the message may have been stored"))
}
