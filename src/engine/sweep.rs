//! Sweeps: leases that ended without a settle, and effects whose time passed while nobody held them. The same
//! [`decide`](crate::decision::decide) judges them; the store writes only what still stands.

use std::{sync::Arc, time::Duration};

use super::{Counters, Outages, Shared, Stop};
use crate::{
    clock::Timestamp,
    decision::{self, Decision, History},
    error::StoreError,
    outcome::Outcome,
    store::{AttemptLog, Expired, Next, Overdue, RegisteredTerms, Settled, Settlement},
};

/// Effects per statement.
const SWEEP_BATCH: u32 = 500;
/// An overdue effect that may still be sent is looked at again no sooner than this.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Rounds of upkeep (folding counters, forgetting dead workers) happen at every n-th sweep.
const MAINTAIN_EVERY: u32 = 10;

/// Sweeps until told to drain.
pub(super) async fn run(shared: Arc<Shared>, stop: Stop) {
    let mut outages = Outages::default();
    let mut round = 0u32;
    loop {
        tokio::select! {
            () = tokio::time::sleep(shared.config.sweep_interval) => {}
            () = stop.drain.cancelled() => return,
        }
        let from = *shared.sweep_from.lock().expect("no holder of this lock panics");
        if shared.clock.boot() < from {
            continue;
        }
        round = round.wrapping_add(1);
        let swept = once(&shared, Duration::ZERO).await;
        let maintained =
            if round.is_multiple_of(MAINTAIN_EVERY) { shared.store.maintain().await } else { Ok(()) };
        match swept.and(maintained) {
            Ok(()) => outages.over(),
            Err(error) => {
                outages.report("sweeping", &error);
                if error.is_outage() {
                    shared.sweep_later();
                }
            }
        }
    }
}

/// One look at everything that is over; of leases at those that have been for `patience`.
pub(super) async fn once(shared: &Shared, patience: Duration) -> Result<(), StoreError> {
    // What looks unsent may have been sent, where the database went back: it must not expire before that is written.
    if !shared.is_clear().await? {
        return Ok(());
    }
    loop {
        let expired = shared.store.expired(SWEEP_BATCH).await?;
        let written = sweep_expired(shared, &expired, patience).await?;
        if written == 0 || expired.len() < SWEEP_BATCH as usize {
            break;
        }
    }
    loop {
        let overdue = shared.store.overdue(SWEEP_BATCH).await?;
        let written = sweep_overdue(shared, &overdue).await?;
        if written == 0 || overdue.len() < SWEEP_BATCH as usize {
            return Ok(());
        }
    }
}

async fn sweep_expired(
    shared: &Shared,
    expired: &[Expired],
    patience: Duration,
) -> Result<usize, StoreError> {
    if expired.is_empty() {
        return Ok(0);
    }
    let now = shared.store.now().await?;
    let mut batch = Vec::with_capacity(expired.len());
    // Nobody could have renewed what nobody holds (a claimed effect without its claim).
    let over = |lost: &&Expired| lost.worker.is_empty() || lost.lease_until.plus(patience) <= now;
    for lost in expired.iter().filter(over) {
        match terms(shared, &lost.downstream, lost.operation.as_deref()).await? {
            Some(terms) => batch.push(judge_expired(lost, &terms, now)),
            None => tracing::error!(effect = %lost.id, downstream = %lost.downstream,
                "its lease ended and no worker ever registered its downstream: it stays in flight"),
        }
    }
    let settled = shared.store.sweep_expired(&batch).await?;
    let written = done(&settled);
    Counters::add(&shared.counters.swept, written);
    Counters::add(&shared.counters.leases_ended, written);
    for (settlement, _) in batch.iter().zip(&settled).filter(|(_, settled)| **settled == Settled::Done) {
        if let Some(lost) = expired.iter().find(|lost| lost.id == settlement.id) {
            shared.figures.lease_ended(&lost.downstream);
        }
    }
    if written > 0 {
        tracing::warn!(effects = written, "swept effects whose lease had ended without an outcome");
    }
    Ok(written)
}

fn judge_expired(lost: &Expired, terms: &RegisteredTerms, now: Timestamp) -> Settlement {
    let outcome = Outcome::lease_ended();
    // Whoever held it may have sent it until the very end of the lease.
    let travels_until = lost.history.travels_until.max(Some(lost.lease_until));
    let history = History { travels_until, ..lost.history.clone() };
    let decision = decision::decide(&terms.policy, &terms.contract, terms.timeout, &history, &outcome, now);
    let uncertain = decision::uncertain_after(&history, &outcome, &decision);
    Settlement {
        id: lost.id,
        token: lost.token,
        decision: Next::Decided(decision),
        attempt: Some(AttemptLog::of(
            lost.number,
            lost.worker.clone(),
            &outcome,
            lost.claimed_at,
            lost.lease_until,
        )),
        counts: true,
        uncertain,
        quiet_at: Some(lost.lease_until.plus(terms.contract.margin)),
        sweep_at: decision::sweep_at(&terms.contract, terms.timeout, &lost.history, uncertain),
        response: None,
        refusal_stored: false,
    }
}

async fn sweep_overdue(shared: &Shared, overdue: &[Overdue]) -> Result<usize, StoreError> {
    if overdue.is_empty() {
        return Ok(0);
    }
    let now = shared.store.now().await?;
    let mut batch = Vec::with_capacity(overdue.len());
    for late in overdue {
        let Some(terms) = terms(shared, &late.downstream, late.operation.as_deref()).await? else {
            // Certain effects of a downstream that nobody serves still expire; uncertain ones had terms once.
            let expired = late.history.expires_at.is_some_and(|at| now >= at) && !late.history.uncertain;
            batch.extend(expired.then(|| judge_overdue(late, Next::Decided(Decision::Expire))));
            continue;
        };
        batch.push(match decision::before_sending(&terms.contract, terms.timeout, &late.history, now) {
            Some(decision) => judge_overdue(late, Next::Decided(decision)),
            // A window that was narrowed was widened again: it is looked at when it passes now, and not before, or a few
            // such effects would stand at the head of every look.
            None => Settlement {
                sweep_at: decision::sweep_at(
                    &terms.contract,
                    terms.timeout,
                    &late.history,
                    late.history.uncertain,
                )
                .map(|at| at.max(now.plus(LOOK_AGAIN)))
                .or(Some(now.plus(LOOK_AGAIN))),
                ..judge_overdue(late, Next::GiveBack)
            },
        });
    }
    let written = done(&shared.store.sweep_overdue(&batch).await?);
    Counters::add(&shared.counters.swept, written);
    Ok(written)
}

fn judge_overdue(late: &Overdue, decision: Next) -> Settlement {
    Settlement {
        id: late.id,
        token: late.token,
        decision,
        attempt: None,
        counts: false,
        uncertain: late.history.uncertain,
        quiet_at: None,
        sweep_at: None,
        response: None,
        refusal_stored: false,
    }
}

/// The terms that hold today: ours, or what another worker registered.
async fn terms(
    shared: &Shared,
    downstream: &str,
    operation: Option<&str>,
) -> Result<Option<RegisteredTerms>, StoreError> {
    if let Some(serving) = shared.served.get(downstream) {
        let terms = serving.served.terms_of(operation).unwrap_or(&serving.served.terms);
        return Ok(Some(RegisteredTerms {
            contract: terms.contract.clone(),
            policy: terms.policy.clone(),
            timeout: terms.timeout,
        }));
    }
    match shared.store.terms(downstream, operation).await? {
        Some(terms) => Ok(Some(terms)),
        None => shared.store.terms(downstream, None).await,
    }
}

fn done(settled: &[Settled]) -> usize {
    settled.iter().filter(|settled| **settled == Settled::Done).count()
}
