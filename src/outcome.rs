//! What an attempt showed. A downstream that fails is not an `Err`: it is an [`Outcome`].

use std::{fmt, time::Duration};

/// What an attempt showed: the evidence, not yet what follows from it ([`crate::decision`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it showed.
    pub finding: Finding,
    /// How far the request got.
    pub phase: Phase,
    /// The downstream marked its answer as the replay of a stored one.
    pub replayed: bool,
    /// The downstream asked not to be called before this much time has passed.
    pub retry_after: Option<Duration>,
    /// The downstream refuses us, not this effect: it did not accept the credentials that we sent, or none where it should have
    /// had some; it greets us with a refusal; or it is not what the configuration says. No effect will fare better until a
    /// person mended that. Never of a place that an effect named and that gets no credentials: only that effect wanted it.
    pub refuses_us: bool,
    /// A sentence for people: what happened, without secrets. At most [`REASON_MAX`] bytes are stored.
    pub reason: String,
    /// What the downstream said, if it said anything.
    pub response: Option<Response>,
}

/// Longest stored reason, in bytes: enough for a sentence and an excerpt, small enough for a list.
pub const REASON_MAX: usize = 1000;

/// What an attempt showed, as finely as the decision table asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The effect was applied, or the broker or server took it over.
    Applied,
    /// The downstream says that it had been applied before: success.
    AlreadyDone,
    /// The downstream decided against it.
    Rejected(About),
    /// The downstream holds another request under this key.
    KeyReused,
    /// A server error that no repetition can settle: stored under the key, it will never change; or it freed the key, and
    /// a repetition would be another request.
    StoredError,
    /// Certainly not applied by this attempt.
    NotApplied,
    /// The request may have been applied.
    Unknown,
    /// The downstream says that a request with this key is still being worked on.
    InProgress,
    /// The claim's lease ended and no worker said what happened.
    LeaseEnded,
}

/// Which request a rejection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// This attempt only: it proves nothing about an earlier one.
    ThisAttempt,
    /// An answer of a kind that the contract stores, without the replay marker: had an earlier request been executed, this
    /// would have been its replay. Proof inside the window only.
    StoredKind,
    /// The stored final answer to the first request: a replay, or a stored result.
    FirstRequest,
}

/// The four words of the attempt log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Applied.
    Applied,
    /// Refused for good.
    Rejected,
    /// Certainly not applied.
    NotApplied,
    /// May have been applied.
    Unknown,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 4] = [Self::Applied, Self::Rejected, Self::NotApplied, Self::Unknown];

    /// The word used in SQL, JSON, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::NotApplied => "not_applied",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far the request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It was never rendered or never left this process: bad configuration, a key that cannot be taken.
    Render,
    /// Name resolution, connection, TLS: no byte of the request left.
    Connect,
    /// Some byte of the request may have left.
    Send,
    /// An answer was begun.
    Answer,
    /// An answer was received whole (or up to the size limit).
    Done,
    /// Nobody knows: the worker did not come back.
    Lease,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 6] =
        [Self::Render, Self::Connect, Self::Send, Self::Answer, Self::Done, Self::Lease];

    /// The phase that a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// The word used in the attempt log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Render => "render",
            Self::Connect => "connect",
            Self::Send => "send",
            Self::Answer => "answer",
            Self::Done => "done",
            Self::Lease => "lease",
        }
    }

    /// Whether the downstream may have heard of the request.
    pub const fn may_have_reached(self) -> bool {
        match self {
            Self::Render | Self::Connect => false,
            Self::Send | Self::Answer | Self::Done | Self::Lease => true,
        }
    }
}

/// What a downstream said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status of the protocol: an HTTP status, an SMTP reply code.
    pub status: Option<u16>,
    /// The body, up to the size limit.
    pub body: Vec<u8>,
    /// The body was longer than the limit.
    pub truncated: bool,
}

/// What a probe showed of an effect in doubt. It is no attempt: it applies nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// What was seen.
    pub sighting: Sighting,
    /// What that says of the origin which was asked.
    pub contact: Contact,
    /// The downstream asked not to be called before this much time has passed.
    pub retry_after: Option<Duration>,
    /// A sentence for people: what was seen, without secrets.
    pub reason: String,
    /// The object that was found, as the downstream showed it: stored when the effect succeeds.
    pub response: Option<Response>,
}

/// What a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The object, and it shows that it was applied.
    Applied,
    /// The object, and it does not show that it was applied: it is pending, or it failed.
    Unproven,
    /// Everything where the object would stand, whole, and it does not stand there.
    Absent,
    /// Nothing that can be relied on: no answer, an unknown one, a list that was not read whole.
    Unknown,
    /// The effect cannot be asked about, and asking again will not change that.
    Impossible,
}

impl Probed {
    /// A sighting without a response.
    pub fn new(sighting: Sighting, reason: impl Into<String>) -> Self {
        let contact = match sighting {
            Sighting::Applied | Sighting::Unproven | Sighting::Absent => Contact::Answered,
            Sighting::Unknown | Sighting::Impossible => Contact::None,
        };
        Self { sighting, contact, retry_after: None, reason: reason.into(), response: None }
    }
}

/// What a probe showed of the origin that it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Nothing: nobody was asked.
    None,
    /// It answered, whatever it said of the effect.
    Answered,
    /// It answered that it does not take our credentials.
    Refused,
    /// It did not answer, or only that it is broken.
    Failed,
}

impl Outcome {
    /// An outcome without a response.
    pub fn new(finding: Finding, phase: Phase, reason: impl Into<String>) -> Self {
        Self {
            finding,
            phase,
            replayed: false,
            retry_after: None,
            refuses_us: false,
            reason: reason.into(),
            response: None,
        }
    }

    /// The outcome of a claim whose lease ended.
    pub fn lease_ended() -> Self {
        Self::new(Finding::LeaseEnded, Phase::Lease, "the worker's lease ended before it said what happened")
    }

    /// The word for the attempt log.
    pub fn verdict(&self) -> Verdict {
        match self.finding {
            Finding::Applied | Finding::AlreadyDone => Verdict::Applied,
            Finding::Rejected(_) | Finding::KeyReused => Verdict::Rejected,
            Finding::NotApplied => Verdict::NotApplied,
            Finding::StoredError | Finding::Unknown | Finding::InProgress | Finding::LeaseEnded => {
                Verdict::Unknown
            }
        }
    }

    /// The status of the protocol, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        self.response.as_ref().and_then(|response| response.status)
    }

    /// The reason as stored: NUL replaced, cut at a character boundary to [`REASON_MAX`] bytes.
    pub fn stored_reason(&self) -> String {
        stored_text(&self.reason, REASON_MAX)
    }
}

/// `text` as it may be stored on every database: U+0000 replaced, cut to at most `limit` bytes at a character boundary.
pub fn stored_text(text: &str, limit: usize) -> String {
    // Replaced before it is cut: the replacement is longer than what it replaces.
    let text = text.replace('\0', "\u{fffd}");
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters_and_holds_no_nul() {
        for offset in 0..4 {
            let text = format!("{}€ and more", "a".repeat(REASON_MAX - offset));
            let outcome = Outcome::new(Finding::Unknown, Phase::Answer, text);
            assert!(outcome.stored_reason().len() <= REASON_MAX);
        }
        assert_eq!(stored_text("a\0b", 10), "a\u{fffd}b");
        assert_eq!(stored_text(&"\0".repeat(10), 10), "\u{fffd}".repeat(3));
        assert_eq!(stored_text("any", 0), "");
    }

    #[test]
    fn each_finding_is_one_of_four_words_in_the_log() {
        let word = |finding| Outcome::new(finding, Phase::Done, "").verdict().as_str();
        assert_eq!([Finding::Applied, Finding::AlreadyDone].map(word), ["applied"; 2]);
        let refusals = [
            Finding::Rejected(About::ThisAttempt),
            Finding::Rejected(About::StoredKind),
            Finding::Rejected(About::FirstRequest),
            Finding::KeyReused,
        ];
        assert_eq!(refusals.map(word), ["rejected"; 4]);
        assert_eq!(word(Finding::NotApplied), "not_applied");
        let unknown = [Finding::StoredError, Finding::Unknown, Finding::InProgress, Finding::LeaseEnded];
        assert_eq!(unknown.map(word), ["unknown"; 4]);
    }

    #[test]
    fn only_what_never_left_certainly_did_not_reach_the_downstream() {
        for phase in [Phase::Render, Phase::Connect] {
            assert!(!phase.may_have_reached(), "{phase:?}");
        }
        for phase in [Phase::Send, Phase::Answer, Phase::Done, Phase::Lease] {
            assert!(phase.may_have_reached(), "{phase:?}");
        }
    }
}
