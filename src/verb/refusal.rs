//! Why a verb changes nothing, in words that say what to do instead.

use crate::{clock::Timestamp, state::State};

/// Why a verb changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The effect is in a state that the verb does not take.
    #[error("{verb} takes {takes}; effect is {state}. {hint}")]
    State {
        /// The verb.
        verb: &'static str,
        /// What it takes.
        takes: &'static str,
        /// What it found.
        state: State,
        /// What to do instead.
        hint: &'static str,
    },
    /// It changed since the person looked.
    #[error("the effect changed since you looked: it is {state} now (token {token})")]
    Stale {
        /// Its state now.
        state: State,
        /// Its token now.
        token: i64,
    },
    /// The last request may still be travelling.
    #[error("the last request may still be travelling until {until}; try again then")]
    StillTravelling {
        /// When it cannot be any more.
        until: Timestamp,
    },
    /// The request would not be the one that was sent.
    #[error(
        "the request would differ from the one that was sent (its downstream's configuration changed): restore the configuration, or resolve the effect"
    )]
    RequestChanged,
    /// A resend may be applied twice, and nobody confirmed that it may.
    #[error(
        "its downstream does not, or not any more, certainly recognise the key, so that a resend may be applied twice, which was not confirmed: look at it again"
    )]
    Unconfirmed,
    /// `expires_at` has passed: nothing may begin any more, not even a resend.
    #[error("it was not to be begun after {at}, so it cannot be sent again: resolve it")]
    Expired {
        /// When it expired.
        at: Timestamp,
    },
    /// A new effect took its place.
    #[error("a new effect superseded this one")]
    Superseded,
    /// The vendor stored the refusal.
    #[error(
        "the downstream has stored an answer under this key, so a retry could only replay it: reissue it, with a new key"
    )]
    RefusalStored,
    /// The payload is gone.
    #[error(
        "its payload was dropped (retention.payloads, or a redaction), so it cannot be sent again: write a new effect with a new key"
    )]
    PayloadDropped,
    /// The attempt log is gone.
    #[error(
        "its attempt log was dropped (retention.history), so what the downstream saw is not known here any more and it cannot be sent again under its key: reissue it, with a new key"
    )]
    LogDropped,
    /// No reason was given.
    #[error("{verb} needs a reason")]
    NeedsReason {
        /// The verb.
        verb: &'static str,
    },
    /// The new effect of a reissue is one that the database refuses.
    #[error("the new effect cannot be written: {why}")]
    NotWritten {
        /// In the words of the database's check.
        why: String,
    },
    /// As part of a bulk that does not run any more, or a second time.
    #[error("bulk {bulk} is paused, cancelled or over, or has dealt with this effect already")]
    NotInBulk {
        /// Which bulk.
        bulk: i64,
    },
}

impl Refusal {
    /// A word for programs: it does not change.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::Stale { .. } => "stale",
            Self::StillTravelling { .. } => "still_travelling",
            Self::RequestChanged => "request_changed",
            Self::Unconfirmed => "unconfirmed",
            Self::Expired { .. } => "expired",
            Self::Superseded => "superseded",
            Self::RefusalStored => "refusal_stored",
            Self::PayloadDropped => "payload_dropped",
            Self::LogDropped => "log_dropped",
            Self::NeedsReason { .. } => "needs_reason",
            Self::NotWritten { .. } => "not_written",
            Self::NotInBulk { .. } => "not_in_bulk",
        }
    }

    /// Of many that are refused for it: without what differs from one to the other.
    pub fn of_many(&self) -> String {
        let words = match self {
            Self::State { verb, takes, state, .. } => {
                return format!("{verb} takes {takes}, and these are {}", state.as_str().replace('_', " "));
            }
            Self::Stale { .. } => "changed since they were listed, and left alone",
            Self::StillTravelling { .. } => "their last request may still be travelling: try again later",
            Self::RequestChanged => {
                "their request would differ from the one that was sent: restore the configuration, or resolve them"
            }
            Self::Expired { .. } => "not to be begun after a time that has passed: resolve them",
            Self::Superseded => "superseded by a new effect",
            Self::RefusalStored => {
                "the downstream has stored an answer under their key, so a retry could only replay it: reissue them"
            }
            Self::PayloadDropped => "their payload was dropped, so they cannot be sent again",
            Self::LogDropped => {
                "their attempt log was dropped, so what the downstream saw is not known any more: reissue them"
            }
            Self::Unconfirmed
            | Self::NeedsReason { .. }
            | Self::NotWritten { .. }
            | Self::NotInBulk { .. } => {
                return self.to_string();
            }
        };
        words.to_owned()
    }
}
