//! A resend: one more attempt of what may have been applied. Where that may be applied twice a person has confirmed it, or it is not
//! done; where it may not be now, what makes that so still holds when it is sent.

use super::{Actor, Change, Pinned, Refusal, Subject, Verb, in_doubt_and_quiet};
use crate::{
    clock::Timestamp,
    contract::{Contract, Dedupe},
    decision::{History, Resend, sweep_at},
    follow::is_of_a_used_key,
    store::Status,
};

/// Whether a resend of an effect, as people see it, may be applied a second time: then it has to be confirmed word for word.
pub fn may_apply_twice(effect: &Status, contract: Option<&Contract>, now: Timestamp) -> bool {
    let deduplicates = contract.is_some_and(|contract| contract.dedupe == Dedupe::Key);
    // A key that was used before us protects nothing of ours.
    is_of_a_used_key(effect) || !(deduplicates && effect.safe_until.is_some_and(|until| now < until))
}

/// Whether it may be sent once more, and how late.
pub(super) fn judge(subject: &Subject, actor: &Actor, now: Timestamp) -> Result<Change, Refusal> {
    in_doubt_and_quiet(&Verb::Resend, subject, now)?;
    if subject.superseded {
        return Err(Refusal::Superseded);
    }
    let expires_at = subject.history.as_ref().and_then(|history| history.expires_at);
    if let Some(at) = expires_at.filter(|at| now >= *at) {
        return Err(Refusal::Expired { at });
    }
    // An operation that is gone would not be rendered as it was either.
    if subject.pinned.as_ref().is_some_and(|Pinned { sent, today }| today.as_ref() != Some(sent)) {
        return Err(Refusal::RequestChanged);
    }
    let resend = if actor.confirmed {
        Resend::Confirmed
    } else if subject.is_recognised(now) {
        Resend::Unconfirmed
    } else {
        return Err(Refusal::Unconfirmed);
    };
    Ok(Change::OneResend { resend, sweep_at: subject.resent(resend).or(expires_at) })
}

impl Subject {
    /// Whether its downstream certainly recognises the key of a request that is sent again at `now`.
    fn is_recognised(&self, now: Timestamp) -> bool {
        let (Some(history), Some(contract)) = (&self.history, &self.contract) else { return false };
        !self.key_used_before && history.safe_until(contract).is_some_and(|safe_until| now < safe_until)
    }

    /// When the sweep must look at its resend.
    fn resent(&self, resend: Resend) -> Option<Timestamp> {
        let history = History { resend: Some(resend), ..self.history.clone()? };
        sweep_at(self.contract.as_ref()?, self.timeout, &history, true)
    }
}
