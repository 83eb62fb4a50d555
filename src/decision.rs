//! What follows from an outcome: the heart. Pure: no clock, no I/O, no chance.
//!
//! [`decide`] is the table of the product's design, row by row; attempts, sweeps, late answers and probes all ask it.
//! It is the only place that decides about retries.

mod probe;

use std::time::Duration;

pub(crate) use probe::{ASKED, IN_VAIN};
pub use probe::{Doubt, Looked, decide_probe};

use crate::{
    clock::Timestamp,
    contract::{Contract, Dedupe, OnUnknown, Stores, Window},
    effect::EffectId,
    outcome::{About, Finding, Outcome},
    schedule::Policy,
};

/// Why an effect that somebody cancelled is in doubt instead.
pub(crate) const CANCELLED_UNCERTAIN: &str = "cancelled while its outcome was unknown";
/// How the note of an effect begins whose key the downstream knew before we ever sent it. A resend settles nothing then: it would
/// get the same answer or, once the downstream has forgotten the key, act a second time.
pub const KEY_USED_BEFORE: &str = "this key was used before";
/// Why an effect is in doubt, and neither sent nor probed: today's configuration is not that of its request.
pub(crate) const REQUEST_CHANGED: &str =
    "the request would differ from the one that was sent: the downstream's configuration changed";

/// Why a resend that nobody confirmed is in doubt again, unsent.
const RESEND_TOO_LATE: &str = "it was to be sent again only as long as its downstream certainly recognises the key, and that ends \
     before it could be: nothing was sent";

/// A person's one resend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// Only as long as the downstream certainly recognises the key: nobody said that it may be applied twice.
    Unconfirmed,
    /// Also later: a person said, word for word, that it may be applied twice.
    Confirmed,
}

impl Resend {
    /// As it is stored: two marks, of which a worker of an older version knows the first one only. To that one an unconfirmed resend is
    /// an effect like any other, which it does not send past the safe time either.
    pub(crate) const fn stored(confirmed: bool, unconfirmed: bool) -> Option<Self> {
        match (confirmed, unconfirmed) {
            (true, _) => Some(Self::Confirmed),
            (false, true) => Some(Self::Unconfirmed),
            (false, false) => None,
        }
    }
}

/// What is known of an effect when an outcome comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Which effect.
    pub id: EffectId,
    /// An earlier attempt of the present history ended unknown or without a settle.
    pub uncertain: bool,
    /// Our log holds an earlier attempt, of any history, that may have reached the downstream.
    pub sent_before: bool,
    /// Attempts of the present history that may have reached the downstream, the one being decided included.
    pub attempts: u32,
    /// Tries of the present history, the one being decided included; the schedule grows with it.
    pub tries: u32,
    /// First claim of the present history.
    pub started_at: Timestamp,
    /// When a request may first have been received, in the present history.
    pub first_sent_at: Option<Timestamp>,
    /// The window that held at `first_sent_at`.
    pub window_at_claim: Option<Window>,
    /// Not begun after this.
    pub expires_at: Option<Timestamp>,
    /// This attempt is a person's one resend, and of which kind.
    pub resend: Option<Resend>,
    /// Somebody asked to cancel while it was in flight.
    pub cancel_requested: bool,
    /// A worker that had lost its lease reported *applied* meanwhile.
    pub applied_late: bool,
    /// Until when its last request may still be travelling, if one may: its deadline, or the end of its lease.
    pub travels_until: Option<Timestamp>,
}

impl History {
    /// Until when an uncertain effect may be sent again; `None` when the key promises nothing.
    pub fn safe_until(&self, contract: &Contract) -> Option<Timestamp> {
        contract.safe_until(self.first_sent_at?, self.window_at_claim)
    }
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was applied.
    Succeed,
    /// It was never applied.
    Fail(String),
    /// Try again at this time.
    RetryAt(Timestamp),
    /// In doubt until a probe at this time says more.
    ProbeAt(Timestamp, String),
    /// In doubt until a person says more.
    Park(String),
    /// Called off: certainly never applied, and somebody asked.
    Cancel,
    /// Certainly never applied, and too late to begin.
    Expire,
}

/// What follows from `outcome` for an effect with `history`, under `contract` and `policy`, at `now` (the database's
/// clock). `timeout` is how long one more attempt may take.
///
/// The first row of the table that fits counts. It never turns an uncertain effect into failed, cancelled or expired
/// without proof, and never retries one past its safe time.
pub fn decide(
    policy: &Policy,
    contract: &Contract,
    timeout: Duration,
    history: &History,
    outcome: &Outcome,
    now: Timestamp,
) -> Decision {
    let case = Case { policy, contract, timeout, history, outcome, now };
    if history.applied_late {
        return Decision::Succeed;
    }
    if outcome.replayed && !history.sent_before && !history.uncertain {
        return Decision::Park(case.because(&format!(
            "{KEY_USED_BEFORE}, as our log holds no attempt before this answer: see what stands there under the key; if it is \
             this effect, resolve it as applied, else reissue it, with a new key"
        )));
    }
    match outcome.finding {
        Finding::KeyReused if history.uncertain || history.sent_before => Decision::Park(
            case.because("the downstream holds another request under this key: an earlier body was accepted"),
        ),
        Finding::KeyReused => Decision::Fail(case.because("another request holds this key")),
        Finding::StoredError => case.probe_or_park("a server error that no repetition can settle"),
        Finding::Applied | Finding::AlreadyDone => Decision::Succeed,
        Finding::Rejected(about) if !history.uncertain || case.proves_the_first(about) => {
            Decision::Fail(outcome.reason.clone())
        }
        Finding::Rejected(_) => case
            .probe_or_park("refused, which proves nothing about an earlier attempt with an unknown outcome"),
        Finding::NotApplied if history.uncertain => case.uncertain_not_applied(),
        Finding::NotApplied => case.certain_not_applied(),
        Finding::Unknown | Finding::InProgress | Finding::LeaseEnded => case.unknown(),
    }
}

/// The arguments of [`decide`], so that its rows need not repeat them.
struct Case<'a> {
    policy: &'a Policy,
    contract: &'a Contract,
    timeout: Duration,
    history: &'a History,
    outcome: &'a Outcome,
    now: Timestamp,
}

impl Case<'_> {
    fn because(&self, meaning: &str) -> String {
        if self.outcome.reason.is_empty() {
            return meaning.to_owned();
        }
        format!("{meaning} ({})", self.outcome.reason)
    }

    /// Whether a refusal is about the first request, so that nothing was ever applied.
    fn proves_the_first(&self, about: About) -> bool {
        match about {
            // A resend past the window may replay the refusal of an earlier resend, executed anew by a downstream that had
            // forgotten the first request.
            About::FirstRequest => {
                self.history.resend.is_none()
                    || self.history.safe_until(self.contract).is_none_or(|safe_until| self.now <= safe_until)
            }
            About::ThisAttempt => false,
            // Only where every answer is stored: a downstream that stores successes alone would refuse a second time
            // although the first request had been applied and forgotten, or was still being worked on.
            About::StoredKind => {
                self.contract.stores == Stores::Any
                    && self.history.safe_until(self.contract).is_some_and(|safe_until| self.now <= safe_until)
            }
        }
    }

    fn certain_not_applied(&self) -> Decision {
        if self.budget_used_up() {
            return Decision::Fail(self.because("the retry budget is used up; it was never applied"));
        }
        // Where the table says *fail* it fails, asked to cancel or not: only a retry is called off.
        if self.history.cancel_requested {
            return Decision::Cancel;
        }
        // A certain effect has no window to keep; the sweep expires it should the next try come too late to begin.
        Decision::RetryAt(self.next_try())
    }

    fn uncertain_not_applied(&self) -> Decision {
        match (self.contract.dedupe, self.contract.on_unknown) {
            (Dedupe::Key, _) | (Dedupe::None, OnUnknown::Retry) => self.retry_uncertain(),
            (Dedupe::Lookup, _) => {
                self.probe_or_park("not applied, which proves nothing about an earlier attempt")
            }
            (Dedupe::None, OnUnknown::Hold) => {
                self.probe_or_park("not applied, which proves nothing about an earlier attempt")
            }
        }
    }

    fn unknown(&self) -> Decision {
        match (self.contract.dedupe, self.contract.on_unknown) {
            (Dedupe::Key, _) | (Dedupe::None, OnUnknown::Retry) => self.retry_uncertain(),
            (Dedupe::Lookup, _) => self.probe_or_park("the outcome is unknown"),
            (Dedupe::None, OnUnknown::Hold) => {
                self.probe_or_park("the outcome is unknown and the downstream cannot deduplicate")
            }
        }
    }

    /// A retry of an effect that may have been applied: only where the contract makes it safe, and only once for a
    /// person's resend.
    fn retry_uncertain(&self) -> Decision {
        if self.history.cancel_requested {
            return self.probe_or_park(CANCELLED_UNCERTAIN);
        }
        if self.history.resend.is_some() {
            return self.probe_or_park("the one resend did not settle it");
        }
        if self.budget_used_up() {
            return self.probe_or_park("the retry budget is used up and the outcome is unknown");
        }
        let next = self.next_try();
        match may_send_uncertain(self.contract, self.timeout, self.history, next) {
            Ok(()) => Decision::RetryAt(next),
            Err(why) => self.probe_or_park(why),
        }
    }

    fn probe_or_park(&self, why: &str) -> Decision {
        park(self.contract, self.history, self.now, &self.because(why))
    }

    fn budget_used_up(&self) -> bool {
        // The claim counted this attempt before anybody knew how far it would get; one that never left the process or the
        // connection phase is given back by its settle, so it must not use up the budget here either.
        let counted = if self.outcome.phase.may_have_reached() {
            self.history.attempts
        } else {
            self.history.attempts.saturating_sub(1)
        };
        counted >= self.policy.max_attempts || self.now >= self.history.started_at.plus(self.policy.max_age)
    }

    fn next_try(&self) -> Timestamp {
        let delay = self.policy.delay(self.history.id, self.history.tries, self.outcome.retry_after);
        self.now.plus(delay)
    }
}

/// Whether an *uncertain* effect may be sent at `at`, taking up to `timeout`; else why not. Asked when a retry is decided,
/// at the claim, right before the first byte, and by the sweep.
///
/// # Errors
///
/// The reason, as a sentence, when it must not be sent on its own.
pub fn may_send_uncertain(
    contract: &Contract,
    timeout: Duration,
    history: &History,
    at: Timestamp,
) -> Result<(), &'static str> {
    if history.expires_at.is_some_and(|expires_at| at >= expires_at) {
        return Err("it expired, and an earlier attempt may have been applied");
    }
    let accepted = contract.dedupe == Dedupe::None && contract.on_unknown == OnUnknown::Retry;
    if accepted || history.resend == Some(Resend::Confirmed) {
        return Ok(());
    }
    let why = match (contract.dedupe, history.safe_until(contract)) {
        (Dedupe::Key, Some(safe_until)) if at.plus(timeout) <= safe_until => return Ok(()),
        (Dedupe::Key, Some(_)) => {
            "the downstream may have forgotten the key: its window ends before a retry could"
        }
        (Dedupe::Key, None) => "the downstream does not say how long it remembers a key",
        (Dedupe::Lookup | Dedupe::None, _) => "the downstream cannot deduplicate",
    };
    Err(if history.resend.is_some() { RESEND_TOO_LATE } else { why })
}

/// Until when an *uncertain* effect must have been begun, taking up to `timeout`; `None`: at any time, or never (see
/// [`may_send_uncertain`]). A person who confirmed a resend said that it may be later.
pub(crate) fn begin_by(contract: &Contract, timeout: Duration, history: &History) -> Option<Timestamp> {
    (history.resend != Some(Resend::Confirmed))
        .then(|| history.safe_until(contract))
        .flatten()
        .filter(|safe_until| *safe_until != Timestamp::MAX)
        .map(|safe_until| safe_until.minus(timeout))
}

/// When the sweep must look at an effect that nobody claims: once it could not be sent any more.
pub(crate) fn sweep_at(
    contract: &Contract,
    timeout: Duration,
    history: &History,
    uncertain: bool,
) -> Option<Timestamp> {
    let begin_by = uncertain.then(|| begin_by(contract, timeout, history)).flatten();
    [begin_by, history.expires_at].into_iter().flatten().min()
}

/// What becomes of a claimed effect that must not be sent, or of an unclaimed one that the sweep looks at; `None` when it
/// may be sent. Nothing was sent: the claim is given back unstarted.
pub fn before_sending(
    contract: &Contract,
    timeout: Duration,
    history: &History,
    at: Timestamp,
) -> Option<Decision> {
    if !history.uncertain {
        if history.cancel_requested {
            return Some(Decision::Cancel);
        }
        return history.expires_at.is_some_and(|expires_at| at >= expires_at).then_some(Decision::Expire);
    }
    let why = if history.cancel_requested {
        CANCELLED_UNCERTAIN
    } else {
        may_send_uncertain(contract, timeout, history, at).err()?
    };
    Some(park(contract, history, at, why))
}

/// What becomes of a claimed effect that was not sent, now that something happened meanwhile: a late *applied* came in, or
/// somebody asked to cancel it.
pub fn after_meanwhile(contract: &Contract, history: &History, now: Timestamp) -> Decision {
    if history.applied_late {
        Decision::Succeed
    } else if history.uncertain {
        park(contract, history, now, CANCELLED_UNCERTAIN)
    } else {
        Decision::Cancel
    }
}

/// In doubt: with a probe where there is one, else for a person. The first probe waits until no request can be travelling any
/// more; it may find what was applied, while *absent* counts only [`Contract::absent_after`] later.
pub fn park(contract: &Contract, history: &History, now: Timestamp, why: &str) -> Decision {
    if contract.can_probe {
        // Also a time that has passed: it is due at once, and an absence counts from when the request ceased to travel.
        Decision::ProbeAt(history.travels_until.unwrap_or(now), why.to_owned())
    } else {
        Decision::Park(why.to_owned())
    }
}

/// Whether an effect with `history` is uncertain after `outcome`.
pub fn uncertain_after(history: &History, outcome: &Outcome, decision: &Decision) -> bool {
    let by_outcome = match outcome.finding {
        Finding::Unknown | Finding::InProgress | Finding::LeaseEnded | Finding::StoredError => true,
        Finding::NotApplied
        | Finding::Rejected(_)
        | Finding::Applied
        | Finding::AlreadyDone
        | Finding::KeyReused => history.uncertain,
    };
    by_outcome || matches!(decision, Decision::Park(_) | Decision::ProbeAt(..))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
