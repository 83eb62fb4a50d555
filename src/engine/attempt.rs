//! One attempt: check, deliver, decide. It writes nothing; what it found goes to the settler.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;

use super::{
    Counters, Shared, Stop, budget,
    crowd::Place,
    held_by::{self, Budgets, Hold, Pass, Whose},
    lease::{Base, Held},
    settle::Settling,
};
use crate::{
    clock::{Boot, Clock, Timestamp},
    decision::{self, Decision},
    downstream::{Attempt, Closed, Gate, Served, Terms},
    outcome::{About, Finding, Outcome, Phase},
    schedule::unit,
    store::{Claim, Next},
};

/// A downstream stops by itself at its deadline; one that does not is stopped this much later.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// A claim with its lease, and the database's time at the claim.
pub(super) struct Holding {
    pub(super) claim: Claim,
    pub(super) held: Arc<Held>,
    pub(super) base: Base,
    pub(super) pass: Pass,
}

/// What came of the call.
enum Called {
    /// The downstream (or its absence) said something.
    Outcome(Outcome),
    /// Nothing left this process, and nothing may any more: the claim is given back.
    NotBegun(Closed),
    /// Stopped or out of lease with the call open: the sweep will judge it.
    Abandoned,
}

/// Carries one claim out. `None`: it was left to the sweep.
pub(super) async fn run(shared: &Shared, mut holding: Holding, stop: &Stop) -> Option<Settling> {
    let serving = &shared.served[&holding.claim.effect.downstream].served;
    let Some(terms) = serving.terms_of(holding.claim.effect.operation.as_deref()) else {
        let outcome = unknown_operation(&holding.claim);
        spare(shared, &holding);
        return Some(decided(shared, holding, serving.terms.clone(), outcome, None));
    };
    budget::pass(shared, serving, &mut holding).await;
    let trial = holding.pass.trial.then(|| holding.pass.origin.clone()).flatten();
    let settling = tried(shared, serving, terms, holding, stop).await;
    if settling.as_ref().is_some_and(Settling::is_unstarted) {
        shared.budgets.end_trial(trial.as_ref());
    }
    settling
}

/// A call that a rate granted and that was not made is somebody else's: what is put off must not spend what the others wait for.
fn spare(shared: &Shared, holding: &Holding) {
    let downstream = &holding.claim.effect.downstream;
    if shared.served[downstream].served.rate.is_some() {
        shared.budgets.spare(downstream);
    }
}

async fn tried(
    shared: &Shared,
    serving: &Served,
    terms: &Terms,
    holding: Holding,
    stop: &Stop,
) -> Option<Settling> {
    let now = holding.base.now(&*shared.clock);
    if let Some(decision) = must_not_send(&holding.claim, terms, now) {
        return Some(unstarted(shared, holding, Next::Decided(decision), None));
    }
    let _place = match place(shared, serving, &holding) {
        Ok(place) => place,
        Err(wait) => return Some(put_off(shared, holding, terms, wait)),
    };
    let started = now;
    match call(shared, serving, terms, &holding, stop).await {
        Called::Outcome(outcome) => Some(answered(shared, holding, terms.clone(), outcome, started).await),
        Called::NotBegun(Closed::Stopping) => Some(unstarted(shared, holding, Next::GiveBack, None)),
        Called::NotBegun(Closed::Held) => Some(held_back(shared, holding, terms)),
        Called::NotBegun(Closed::TooLate) => Some(too_late(shared, holding, terms)),
        Called::Abandoned => {
            tracing::warn!(effect = %holding.claim.effect.id, downstream = %holding.claim.effect.downstream,
                "the call was open when the lease ended or the worker was stopped; the sweep will judge it");
            shared.leases.abandon(&holding.held);
            None
        }
    }
}

fn unstarted(shared: &Shared, holding: Holding, next: Next, sweep_at: Option<Timestamp>) -> Settling {
    spare(shared, &holding);
    Settling::unstarted(holding, next, sweep_at)
}

/// A place among the calls to the endpoint that the effect goes to, where there is one; else by how much it is put off.
fn place(shared: &Shared, serving: &Served, holding: &Holding) -> Result<Option<Place>, Duration> {
    let effect = &holding.claim.effect;
    let Some((endpoint, limit)) = serving.downstream.share(effect) else { return Ok(None) };
    let name = (effect.downstream.clone(), endpoint);
    shared.crowds.enter(name, limit, shared.clock.boot()).map(Some)
}

/// The endpoint has as many calls open as it gets: nothing was sent. Each effect is put off by another part of the time.
fn put_off(shared: &Shared, holding: Holding, terms: &Terms, wait: Duration) -> Settling {
    let now = holding.base.now(&*shared.clock);
    let until = now.plus(wait.mul_f64(0.5 + unit(holding.claim.effect.id, holding.claim.number)));
    let history = &holding.claim.history;
    let next = held_by::held(terms, history, (now, Some(until)), Whose::Effect);
    let sweep_at = decision::sweep_at(&terms.contract, terms.timeout, history, history.uncertain);
    unstarted(shared, holding, next, sweep_at)
}

/// Asked with the claim in hand: what the claim statement cannot know.
fn must_not_send(claim: &Claim, terms: &Terms, now: Timestamp) -> Option<Decision> {
    // An uncertain effect without a pin cannot be shown to be sent as it was.
    if claim.history.uncertain && claim.pinned != Some(terms.request_sha256) {
        // Sent once, possibly applied, and what would be sent now is another request: a person must look.
        // Nor is it probed: what another account or path shows says nothing about what was sent to the first.
        return Some(Decision::Park(decision::REQUEST_CHANGED.to_owned()));
    }
    decision::before_sending(&terms.contract, terms.timeout, &claim.history, now)
}

/// The gate closed between the check and the first byte.
fn too_late(shared: &Shared, holding: Holding, terms: &Terms) -> Settling {
    let now = holding.base.now(&*shared.clock);
    let next = must_not_send(&holding.claim, terms, now).map_or(Next::GiveBack, Next::Decided);
    unstarted(shared, holding, next, None)
}

/// The downstream is paused, or its origin wants to be left alone: nothing was sent.
fn held_back(shared: &Shared, holding: Holding, terms: &Terms) -> Settling {
    let now = holding.base.now(&*shared.clock);
    let history = &holding.claim.history;
    let until = budget::held_until(shared, &holding, now);
    let next = must_not_send(&holding.claim, terms, now)
        .map_or_else(|| held_by::held(terms, history, (now, until), holding.pass.whose), Next::Decided);
    let sweep_at = decision::sweep_at(&terms.contract, terms.timeout, history, history.uncertain);
    unstarted(shared, holding, next, sweep_at)
}

/// The fleet hears what the call showed; then it is decided upon.
async fn answered(
    shared: &Shared,
    holding: Holding,
    mut terms: Terms,
    outcome: Outcome,
    started: Timestamp,
) -> Settling {
    if outcome.phase == Phase::Render {
        spare(shared, &holding);
    }
    shared.budgets.observe(&holding.pass, &outcome, terms.policy.max_pause, shared.clock.boot());
    if outcome.refuses_us {
        budget::pause_refused(shared, &holding.claim.effect.downstream, &outcome.reason).await;
        terms.policy = terms.policy.after_being_refused();
    }
    decided(shared, holding, terms, outcome, Some(started))
}

fn unknown_operation(claim: &Claim) -> Outcome {
    let operation = claim.effect.operation.as_deref().unwrap_or("");
    let reason = format!(
        "downstream {} has no operation {operation:?} in this worker's configuration",
        claim.effect.downstream
    );
    Outcome::new(Finding::NotApplied, Phase::Render, reason)
}

async fn call(shared: &Shared, serving: &Served, terms: &Terms, holding: &Holding, stop: &Stop) -> Called {
    let key = format!("{}{}", serving.key_prefix, holding.claim.effect.key);
    if let Some(why) = terms.contract.key.refuses(&key) {
        return Called::Outcome(Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, why));
    }
    let gate = Arc::new(Door::new(shared, terms, holding, stop));
    let attempt = Attempt {
        effect: holding.claim.effect.clone(),
        key,
        number: holding.claim.number,
        timeout: terms.timeout,
        gate: gate.clone(),
    };
    if let Err(closed) = gate.may_begin() {
        return Called::NotBegun(closed);
    }
    Counters::add(&shared.counters.attempted, 1);
    let delivery = AssertUnwindSafe(serving.downstream.deliver(&attempt)).catch_unwind();
    let delivered = tokio::select! {
        delivered = tokio::time::timeout(terms.timeout + DEADLINE_GRACE, delivery) => delivered,
        () = holding.held.over(&*shared.clock) => return Called::Abandoned,
        () = stop.abort.cancelled() => return Called::Abandoned,
    };
    match delivered {
        Ok(Ok(outcome)) => gate.refused(&outcome).map_or(Called::Outcome(outcome), Called::NotBegun),
        Ok(Err(panic)) => {
            Counters::add(&shared.counters.panics, 1);
            let reason = format!("the downstream's code panicked: {}", panic_text(&*panic));
            tracing::error!(effect = %holding.claim.effect.id, reason);
            Called::Outcome(Outcome::new(Finding::Unknown, Phase::Send, reason))
        }
        Err(_) => {
            let reason = format!("no outcome within {:?}", terms.timeout);
            Called::Outcome(Outcome::new(Finding::Unknown, Phase::Send, reason))
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

fn decided(
    shared: &Shared,
    mut holding: Holding,
    terms: Terms,
    outcome: Outcome,
    started: Option<Timestamp>,
) -> Settling {
    let now = holding.base.now(&*shared.clock);
    let started_at = started.unwrap_or(now);
    if started.is_some() {
        let downstream = &holding.claim.effect.downstream;
        shared.figures.attempted(downstream, &outcome, now.since(started_at));
    }
    if outcome.phase.may_have_reached() {
        let history = &mut holding.claim.history;
        history.travels_until = history.travels_until.max(Some(started_at.plus(terms.timeout)));
    }
    let decision = decision::decide(
        &terms.policy,
        &terms.contract,
        terms.timeout,
        &holding.claim.history,
        &outcome,
        now,
    );
    Settling::attempted(holding, terms, outcome, (started_at, now), decision)
}

/// What is asked right before the first byte.
struct Door {
    clock: Arc<dyn Clock>,
    held: Arc<Held>,
    drain: tokio_util::sync::CancellationToken,
    /// The call must have begun by then: expiry, and the safe window less the timeout.
    begin_by: Option<Boot>,
    timeout: Duration,
    budgets: Arc<Budgets>,
    downstream: Arc<str>,
    pass: Pass,
    /// Why it refused, last: whatever the downstream makes of that, nothing was sent.
    shut: Mutex<Option<Closed>>,
}

impl Door {
    fn new(shared: &Shared, terms: &Terms, holding: &Holding, stop: &Stop) -> Self {
        let history = &holding.claim.history;
        let begin_by = decision::sweep_at(&terms.contract, terms.timeout, history, history.uncertain);
        Self {
            clock: shared.clock.clone(),
            held: holding.held.clone(),
            drain: stop.drain.clone(),
            begin_by: begin_by.map(|by| holding.base.boot.plus(by.since(holding.base.at))),
            timeout: terms.timeout,
            budgets: shared.budgets.clone(),
            downstream: holding.claim.effect.downstream.clone(),
            pass: holding.pass.clone(),
            shut: Mutex::new(None),
        }
    }

    /// Why it was shut, if it was and the outcome agrees that nothing was sent.
    fn refused(&self, outcome: &Outcome) -> Option<Closed> {
        let shut = *self.shut.lock().expect("no holder of this lock panics");
        shut.filter(|_| !outcome.phase.may_have_reached())
    }

    fn is_held(&self) -> bool {
        let now = self.clock.boot();
        let hold = self.budgets.hold(&self.downstream, self.pass.origin.as_deref(), now);
        let granted = self.pass.send_by.is_none_or(|by| now < by);
        !granted || !(hold == Hold::Free || (hold == Hold::Trial && self.pass.trial))
    }
}

impl Gate for Door {
    fn may_begin(&self) -> Result<(), Closed> {
        let late = self.begin_by.is_some_and(|by| self.clock.boot() >= by);
        let closed = if self.drain.is_cancelled() {
            Closed::Stopping
        } else if late || !self.held.covers(&*self.clock, self.timeout) {
            Closed::TooLate
        } else if self.is_held() {
            Closed::Held
        } else {
            return Ok(());
        };
        *self.shut.lock().expect("no holder of this lock panics") = Some(closed);
        Err(closed)
    }
}
