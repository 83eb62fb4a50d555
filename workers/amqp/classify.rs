//! What became of a message, as an outcome.
//!
//! Only a confirm without a return is *applied*. What was certainly not written, or what the broker certainly did not take,
//! is *not applied*; all else that left is *unknown*.

use std::time::Duration;

use aftercommit::{
    downstream::Closed,
    outcome::{About, Finding, Outcome, Phase, Response},
};

/// How long a broker that blocks its publishers is left alone: alarms last for minutes, and a look costs nothing.
const BLOCKED_PAUSE: Duration = Duration::from_secs(5);

/// Why nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The broker is not there, or not in order: another time.
    Away(String),
    /// It does not take us, whatever we bring.
    Refuses(String),
    /// This exchange or queue is not what the configuration says; others may be.
    Amiss(String),
    /// Only this message's own queue is amiss, or the channel was closed for another message: the rest goes on.
    Local(String),
    /// It is short of memory or disk and takes no messages from anybody.
    Blocked(String),
}

impl Fault {
    /// What it is, and what to do about it.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Away(text)
            | Self::Refuses(text)
            | Self::Amiss(text)
            | Self::Local(text)
            | Self::Blocked(text) => text,
        }
    }
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The gate was closed.
    Closed(Closed),
    /// It was never given to the library, or the library certainly did not write it whole.
    NotSent(Fault),
    /// It can never be sent on this connection.
    TooLong(String),
    /// An earlier attempt with this key still waits for its confirm.
    StillWaiting,
    /// Confirmed, and not returned.
    Acked,
    /// Returned: no queue took it.
    Returned(u16, String),
    /// A queue refused it.
    Nacked,
    /// The broker closed the channel on this very message.
    Refused(Fault),
    /// The broker closed the channel on this very message, for its routing key.
    Forbidden(String),
    /// The broker closed the channel on this very message, for what it holds.
    Malformed(String),
    /// Written, and the connection or the channel ended before a confirm.
    Lost(String),
    /// The channel was not in confirm mode: a bug, and never a success.
    NotRequested,
}

/// How a downstream's configuration bears on outcomes.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    /// A nack is the answer of the one queue there is.
    pub(super) single_queue: bool,
    /// Every message goes to the same exchange: what is amiss there is amiss for all.
    pub(super) single_exchange: bool,
    /// The effect named its routing key itself: what is said of it is said of nobody else.
    pub(super) own_routing_key: bool,
    /// `host:port`.
    pub(super) place: &'a str,
}

impl Reading<'_> {
    /// The outcome of what became of a message.
    pub(super) fn outcome(self, told: Told) -> Outcome {
        let place = self.place;
        match told {
            Told::Closed(closed) => {
                Outcome::new(Finding::NotApplied, Phase::Connect, format!("not sent: {closed}"))
            }
            Told::NotSent(fault) => self.not_sent(fault),
            Told::TooLong(why) => {
                Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, format!("not sent: {why}"))
            }
            // It says nothing of the broker.
            Told::StillWaiting => Outcome::new(
                Finding::NotApplied,
                Phase::Render,
                "not sent: an earlier attempt with this key still waits for its confirm, and goes first",
            ),
            Told::Acked => Outcome::new(Finding::Applied, Phase::Done, format!("{place} confirmed it")),
            Told::Returned(code, text) => Outcome {
                response: Some(Response {
                    status: Some(code),
                    body: text.clone().into_bytes(),
                    truncated: false,
                }),
                ..Outcome::new(
                    Finding::Rejected(About::ThisAttempt),
                    Phase::Done,
                    format!(
                        "unroutable: {place} returned it ({code} {text}): bind a queue for its routing key, then retry it"
                    ),
                )
            },
            Told::Nacked if self.single_queue => Outcome::new(
                Finding::NotApplied,
                Phase::Done,
                format!(
                    "{place} did not take it (nack): the queue is full, or failed; look at its limits, and at its log"
                ),
            ),
            Told::Nacked => Outcome::new(
                Finding::Unknown,
                Phase::Done,
                format!(
                    "{place} nacked it: at least one queue did not take it, another may have; look at their limits, and ask their consumers for its message id"
                ),
            ),
            // The channel is gone before anything was stored; the reply is about this message alone.
            Told::Refused(fault) => Outcome { phase: Phase::Done, ..self.not_sent(fault) },
            Told::Forbidden(why) => Outcome {
                refuses_us: self.single_exchange && !self.own_routing_key,
                ..Outcome::new(Finding::NotApplied, Phase::Done, why)
            },
            Told::Malformed(text) => Outcome::new(
                Finding::Rejected(About::ThisAttempt),
                Phase::Done,
                format!(
                    "{place} refused it: {text}; write a new effect without what it names, or change the limit there and retry this one"
                ),
            ),
            Told::Lost(why) => Outcome::new(
                Finding::Unknown,
                Phase::Send,
                format!("{why}; the message may have arrived: its consumers know its message id"),
            ),
            Told::NotRequested => Outcome::new(
                Finding::Unknown,
                Phase::Send,
                "the channel was not in confirm mode, so nobody knows: please report this as a bug",
            ),
        }
    }

    /// The outcome where nothing was sent.
    pub(super) fn not_sent(self, fault: Fault) -> Outcome {
        let not_applied = |phase, why| Outcome::new(Finding::NotApplied, phase, why);
        match fault {
            Fault::Away(why) => not_applied(Phase::Connect, why),
            Fault::Refuses(why) => Outcome { refuses_us: true, ..not_applied(Phase::Connect, why) },
            Fault::Amiss(why) if self.single_exchange => {
                Outcome { refuses_us: true, ..not_applied(Phase::Connect, why) }
            }
            // Not a word of the broker's health: what goes elsewhere goes on.
            Fault::Amiss(why) | Fault::Local(why) => not_applied(Phase::Render, why),
            Fault::Blocked(why) => Outcome {
                retry_after: Some(BLOCKED_PAUSE),
                ..not_applied(
                    Phase::Connect,
                    format!(
                        "{} takes no messages at present (connection.blocked: {why}): free memory or disk there",
                        self.place
                    ),
                )
            },
        }
    }
}
