//! What became of one claim, as the store takes it: nothing was begun, or an attempt with what was decided after it.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Timestamp,
    contract::{Contract, Dedupe, Stores},
    decision::{self, Decision},
    downstream::Terms,
    engine::lease::Base,
    outcome::{About, Finding, Outcome, Response, Verdict},
    store::{AttemptLog, Claim, LateAnswer, Next, Settlement},
};

pub(super) struct Unstarted {
    pub(super) next: Next,
    /// Where it waits again, when the sweep must look at it.
    pub(super) sweep_at: Option<Timestamp>,
    pub(super) base: Base,
}

pub(super) struct Attempted {
    pub(super) terms: Terms,
    pub(super) outcome: Outcome,
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
    /// Decisions take times that are never behind the database's; the log takes this off, or it would tell an attempt as much
    /// too late as the claim waited for the database.
    pub(super) ahead: Duration,
    pub(super) decision: Decision,
}

/// What a claim says that is handed back unstarted when its lease is over, if a sweep took it for an attempt.
pub(super) fn not_begun(claim: &Claim, worker: &Arc<str>, now: Timestamp) -> LateAnswer {
    LateAnswer {
        id: claim.effect.id,
        token: claim.token(),
        attempt: AttemptLog::not_begun(claim.number, worker.clone(), claim.claimed_at, now),
        begun: false,
        response: None,
    }
}

pub(in crate::engine) fn unstarted(claim: &Claim, next: &Next, sweep_at: Option<Timestamp>) -> Settlement {
    Settlement {
        id: claim.effect.id,
        token: claim.token(),
        decision: next.clone(),
        attempt: None,
        counts: false,
        uncertain: claim.history.uncertain,
        quiet_at: None,
        // Whoever is given back keeps its place; the sweep looks when its expiry or its window says so.
        sweep_at: sweep_at.filter(|_| matches!(next, Next::Decided(Decision::RetryAt(_)))),
        response: None,
        refusal_stored: false,
    }
}

impl Attempted {
    /// Its log row, and what the downstream said of it.
    fn found(&self, claim: &Claim, worker: &Arc<str>) -> (AttemptLog, Option<Response>) {
        let (began, ended) = (self.started_at.minus(self.ahead), self.ended_at.minus(self.ahead));
        let attempt = AttemptLog::of(claim.number, worker.clone(), &self.outcome, began, ended);
        // The present attempt's answer is not the answer of the late one that was applied.
        let is_its_own = !claim.history.applied_late || self.outcome.verdict() == Verdict::Applied;
        (attempt, is_its_own.then(|| self.outcome.response.clone()).flatten())
    }

    /// What it says when its lease is over.
    pub(super) fn late_answer(&self, claim: &Claim, worker: &Arc<str>) -> LateAnswer {
        let (attempt, response) = self.found(claim, worker);
        LateAnswer { id: claim.effect.id, token: claim.token(), attempt, begun: true, response }
    }

    pub(super) fn settlement(&self, claim: &Claim, worker: &Arc<str>) -> Settlement {
        let Self { terms, outcome, started_at, decision, .. } = self;
        let (attempt, response) = self.found(claim, worker);
        let uncertain = decision::uncertain_after(&claim.history, outcome, decision);
        // Also after a whole answer: whoever says 504 may have passed the request on.
        let travelling = outcome.phase.may_have_reached() && outcome.verdict() == Verdict::Unknown;
        Settlement {
            id: claim.effect.id,
            token: claim.token(),
            decision: Next::Decided(decision.clone()),
            attempt: Some(attempt),
            // A pause burns nothing: the call is in the log and in no budget.
            counts: outcome.phase.may_have_reached() && !outcome.refuses_us,
            uncertain,
            quiet_at: travelling.then(|| started_at.plus(terms.timeout).plus(terms.contract.margin)),
            sweep_at: decision::sweep_at(&terms.contract, terms.timeout, &claim.history, uncertain),
            response,
            refusal_stored: refusal_stored(&terms.contract, outcome, decision),
        }
    }
}

/// Whether the vendor keeps this refusal, or this server error, under the key, so that a retry could only replay it.
fn refusal_stored(contract: &Contract, outcome: &Outcome, decision: &Decision) -> bool {
    let ended = match outcome.finding {
        // It came out of the store.
        Finding::Rejected(About::FirstRequest) => matches!(decision, Decision::Fail(_)),
        Finding::Rejected(About::StoredKind) => {
            contract.stores == Stores::Any && matches!(decision, Decision::Fail(_))
        }
        // Elsewhere it is one that freed the key: that is as good as new.
        Finding::StoredError => {
            contract.stores == Stores::Any && matches!(decision, Decision::ProbeAt(..) | Decision::Park(_))
        }
        Finding::Rejected(About::ThisAttempt)
        | Finding::Applied
        | Finding::AlreadyDone
        | Finding::KeyReused
        | Finding::NotApplied
        | Finding::Unknown
        | Finding::InProgress
        | Finding::LeaseEnded => false,
    };
    ended && contract.dedupe == Dedupe::Key
}
