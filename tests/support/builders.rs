//! Builders: registrations, wants, settlements, with values that a test need not care about.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    contract::{Contract, OnUnknown, Window},
    decision::Decision,
    downstream::{Downstream, Served, Terms},
    outcome::{Finding, Outcome, Phase, Response},
    schedule::Policy,
    store::{
        AttemptLog, Claim, Database, Expired, Next, Overdue, RegisteredDownstream, RegisteredTerms,
        Registration, Settlement, TermsIds, Want,
    },
};

/// How long one attempt may take, unless a test says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// The lease of a claim, unless a test says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// How long the downstream of [`key_terms`] remembers a key.
pub(crate) const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Terms with this contract.
pub(crate) fn terms(contract: Contract) -> RegisteredTerms {
    RegisteredTerms { contract, policy: Policy::default(), timeout: TIMEOUT }
}

/// Terms of a downstream that deduplicates by our key for a day.
pub(crate) fn key_terms() -> RegisteredTerms {
    terms(Contract::key(Some(Window::For(WINDOW))))
}

/// Terms of a downstream that cannot deduplicate.
pub(crate) fn none_terms(on_unknown: OnUnknown) -> RegisteredTerms {
    terms(Contract::none(on_unknown))
}

/// Terms of a downstream that can be asked.
pub(crate) fn lookup_terms() -> RegisteredTerms {
    let contract = Contract {
        dedupe: aftercommit::contract::Dedupe::Lookup,
        can_probe: true,
        absent_after: Duration::from_secs(600),
        ..Contract::none(OnUnknown::Hold)
    };
    terms(contract)
}

/// A downstream with its default operation only.
pub(crate) fn registered(name: &str, terms: RegisteredTerms) -> RegisteredDownstream {
    RegisteredDownstream {
        name: name.into(),
        kind: "http",
        key_prefix: String::new(),
        key: terms.contract.key,
        operations: vec![(None, terms, [7; 32])],
        kept: Vec::new(),
        rate: None,
        origin: None,
    }
}

/// A worker's registration.
pub(crate) fn registration(worker: &str, downstreams: Vec<RegisteredDownstream>) -> Registration {
    Registration { worker: Some(worker.into()), version: "0.0.0-test", downstreams, requests: None }
}

/// Up to `slots` effects of `downstream`, with the numbers that its terms were given.
pub(crate) fn want(downstream: &str, slots: u32, ids: &TermsIds) -> Want {
    want_leased(downstream, slots, ids, LEASE)
}

/// [`want`] with a lease of its own.
pub(crate) fn want_leased(downstream: &str, slots: u32, ids: &TermsIds, lease: Duration) -> Want {
    let terms = ids
        .iter()
        .filter(|(name, ..)| &**name == downstream)
        .map(|(_, operation, number)| (operation.clone(), *number))
        .collect();
    Want { downstream: downstream.into(), slots, lease, terms, origin: None, trial: false }
}

/// A registered worker at a store.
pub(crate) struct Worker {
    /// Its name.
    pub(crate) name: String,
    /// Its connection.
    pub(crate) store: Arc<dyn Database>,
    /// The numbers of its terms.
    pub(crate) ids: TermsIds,
    /// Where its downstreams are.
    origins: BTreeMap<Arc<str>, Arc<str>>,
}

impl Worker {
    /// Registers a worker.
    pub(crate) async fn start(
        store: &Arc<dyn Database>,
        name: &str,
        downstreams: Vec<RegisteredDownstream>,
    ) -> Self {
        let origins =
            downstreams.iter().filter_map(|of| Some((of.name.clone(), of.origin.clone()?))).collect();
        let ids = store.register(&registration(name, downstreams)).await.expect("the worker registers");
        Self { name: name.to_owned(), store: Arc::clone(store), ids, origins }
    }

    /// Claims up to `slots` effects of one downstream.
    pub(crate) async fn claim(&self, downstream: &str, slots: u32) -> Vec<Claim> {
        let origin = self.origins.get(downstream).cloned();
        let want = Want { origin, ..want(downstream, slots, &self.ids) };
        self.store.claim(&self.name, &[want]).await.expect("claiming works")
    }

    /// Claims exactly one effect.
    pub(crate) async fn claim_one(&self, downstream: &str) -> Claim {
        let mut claims = self.claim(downstream, 1).await;
        assert_eq!(claims.len(), 1, "one effect of {downstream} was expected to be due");
        claims.remove(0)
    }

    /// Settles one claim.
    pub(crate) async fn settle(&self, settlement: Settlement) -> aftercommit::store::Settled {
        let settled = self.store.settle(&[settlement], &[]).await.expect("settling works");
        assert_eq!(settled.len(), 1, "one answer per settlement");
        settled[0]
    }
}

/// An applied outcome with this answer.
pub(crate) fn answer(status: u16, body: impl Into<Vec<u8>>) -> Outcome {
    Outcome {
        response: Some(Response { status: Some(status), body: body.into(), truncated: false }),
        ..Outcome::new(Finding::Applied, Phase::Done, "")
    }
}

/// Settlements of one claim (or swept effect): `Settling::of(&claim).succeed(&outcome)`.
pub(crate) struct Settling {
    id: aftercommit::EffectId,
    token: aftercommit::store::Token,
    number: u32,
    at: Timestamp,
    worker: Arc<str>,
    uncertain: bool,
    unknown: Outcome,
}

impl Settling {
    /// Of a claim.
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            id: claim.effect.id,
            token: claim.token(),
            number: claim.number,
            at: claim.claimed_at,
            worker: "w1".into(),
            uncertain: claim.history.uncertain,
            unknown: Outcome::new(Finding::Unknown, Phase::Send, "no answer within 20 s"),
        }
    }

    /// Of a claim whose lease ended.
    pub(crate) fn of_expired(expired: &Expired) -> Self {
        Self {
            id: expired.id,
            token: expired.token,
            number: expired.number,
            at: expired.claimed_at,
            worker: Arc::clone(&expired.worker),
            uncertain: expired.history.uncertain,
            unknown: Outcome::lease_ended(),
        }
    }

    /// Of an overdue effect: nothing was attempted.
    pub(crate) fn of_overdue(overdue: &Overdue, decision: Decision) -> Settlement {
        Settlement {
            id: overdue.id,
            token: overdue.token,
            decision: Next::Decided(decision),
            attempt: None,
            counts: true,
            uncertain: overdue.history.uncertain,
            quiet_at: None,
            sweep_at: None,
            response: None,
            refusal_stored: false,
        }
    }

    /// The log row of an attempt with this outcome, a millisecond long.
    pub(crate) fn attempt(&self, outcome: &Outcome) -> AttemptLog {
        let ended = self.at.plus(Duration::from_millis(1));
        AttemptLog::of(self.number, Arc::clone(&self.worker), outcome, self.at, ended)
    }

    /// This decision, after this outcome.
    pub(crate) fn decided(&self, decision: Decision, outcome: &Outcome) -> Settlement {
        Settlement {
            id: self.id,
            token: self.token,
            decision: Next::Decided(decision),
            attempt: Some(self.attempt(outcome)),
            counts: true,
            uncertain: self.uncertain,
            quiet_at: None,
            sweep_at: None,
            response: outcome.response.clone(),
            refusal_stored: false,
        }
    }

    /// It was applied.
    pub(crate) fn succeed(&self) -> Settlement {
        self.decided(Decision::Succeed, &answer(200, r#"{"ok":true}"#))
    }

    /// It was rejected.
    pub(crate) fn fail(&self, why: &str) -> Settlement {
        let outcome =
            Outcome::new(Finding::Rejected(aftercommit::outcome::About::ThisAttempt), Phase::Done, why);
        self.decided(Decision::Fail(why.to_owned()), &outcome)
    }

    /// Certainly not applied, again at `at`.
    pub(crate) fn retry_not_applied(&self, at: Timestamp) -> Settlement {
        let outcome = Outcome::new(Finding::NotApplied, Phase::Connect, "connection refused");
        Settlement { counts: false, ..self.decided(Decision::RetryAt(at), &outcome) }
    }

    /// Unknown, again at `at` with the same key.
    pub(crate) fn retry_unknown(&self, at: Timestamp) -> Settlement {
        Settlement { uncertain: true, ..self.decided(Decision::RetryAt(at), &self.unknown) }
    }

    /// Unknown, in doubt for a person.
    pub(crate) fn park(&self, why: &str) -> Settlement {
        Settlement { uncertain: true, ..self.decided(Decision::Park(why.to_owned()), &self.unknown) }
    }

    /// Unknown, in doubt until a probe.
    pub(crate) fn probe_at(&self, at: Timestamp, why: &str) -> Settlement {
        Settlement { uncertain: true, ..self.decided(Decision::ProbeAt(at, why.to_owned()), &self.unknown) }
    }

    /// Not begun; ends cancelled or expired.
    pub(crate) fn unsent(&self, decision: Decision) -> Settlement {
        Settlement { decision: Next::Decided(decision), ..self.give_back() }
    }

    /// Not begun; as it was before the claim.
    pub(crate) fn give_back(&self) -> Settlement {
        Settlement {
            id: self.id,
            token: self.token,
            decision: Next::GiveBack,
            attempt: None,
            counts: false,
            uncertain: self.uncertain,
            quiet_at: None,
            sweep_at: None,
            response: None,
            refusal_stored: false,
        }
    }
}

/// A downstream as the engine is given it.
pub(crate) fn served(name: &str, downstream: Arc<dyn Downstream>, terms: RegisteredTerms) -> Served {
    Served {
        name: name.into(),
        kind: "scripted",
        downstream,
        key_prefix: String::new(),
        concurrency: 16,
        terms: Terms {
            contract: terms.contract,
            policy: terms.policy,
            timeout: terms.timeout,
            request_sha256: [7; 32],
        },
        operations: std::collections::BTreeMap::new(),
        lease: LEASE,
        rate: None,
        origin: None,
    }
}
