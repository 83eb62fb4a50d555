//! Settling: what attempts found is written in batches, fenced by the claim's token, until it is written.

mod found;

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) use self::found::unstarted;
use self::found::{Attempted, Unstarted, not_begun};
use super::{
    Counters, Outages, SETTLE_BATCH_MAX, SETTLE_LINGER, Shared, attempt::Holding, intake::Slot, late,
    lease::Held, memory::Trace,
};
use crate::{
    clock::Timestamp,
    contract::{Dedupe, OnUnknown},
    decision::{self, Decision},
    downstream::Terms,
    outcome::Outcome,
    store::{Claim, LateAnswer, Next, Settled, Settlement, Token},
};

/// A claim whose lease outlived all of its effects is dropped at the next settle, or after this long without one.
const FINISHED_LINGER: Duration = Duration::from_millis(100);
/// A batch that the database answered and refused this often is written one by one.
const REFUSALS_MAX: u32 = 3;
/// After being told to stop at once, a database that does not answer is waited for this long.
const ABORT_PATIENCE: Duration = Duration::from_secs(2);

/// One claim on its way into the database.
pub(super) struct Settling {
    claim: Claim,
    held: Arc<Held>,
    found: Found,
    /// Given back when this is written; see [`Self::keep_slot`].
    slot: Option<Slot>,
}

enum Found {
    /// Not attempted: given back, or decided without an attempt (parked, expired, cancelled, put off).
    Unstarted(Unstarted),
    Attempted(Box<Attempted>),
}

impl Settling {
    pub(super) fn unstarted(holding: Holding, next: Next, sweep_at: Option<Timestamp>) -> Self {
        let found = Found::Unstarted(Unstarted { next, sweep_at, base: holding.base });
        Self { claim: holding.claim, held: holding.held, found, slot: None }
    }

    pub(super) fn is_unstarted(&self) -> bool {
        matches!(self.found, Found::Unstarted(_))
    }

    pub(super) fn attempted(
        holding: Holding,
        terms: Terms,
        outcome: Outcome,
        (started_at, ended_at): (Timestamp, Timestamp),
        decision: Decision,
    ) -> Self {
        let ahead = holding.base.ahead;
        let attempted = Attempted { terms, outcome, started_at, ended_at, ahead, decision };
        let found = Found::Attempted(Box::new(attempted));
        Self { claim: holding.claim, held: holding.held, found, slot: None }
    }

    /// Keeps the slot until the outcome is written where a worker that dies before that would leave the effect in doubt
    /// (`hold`): no more are then in danger at one time than may be called at one time. Else gives it back to the caller.
    pub(super) fn keep_slot(mut self, slot: Slot) -> (Self, Option<Slot>) {
        let contract = match &self.found {
            Found::Attempted(attempted) => &attempted.terms.contract,
            Found::Unstarted(_) => return (self, Some(slot)),
        };
        if (contract.dedupe, contract.on_unknown) != (Dedupe::None, OnUnknown::Hold) {
            return (self, Some(slot));
        }
        self.slot = Some(slot);
        (self, None)
    }

    fn settlement(&self, worker: &Arc<str>) -> Settlement {
        match &self.found {
            Found::Unstarted(of) => unstarted(&self.claim, &of.next, of.sweep_at),
            Found::Attempted(attempted) => attempted.settlement(&self.claim, worker),
        }
    }

    /// Decides again, knowing what happened while the call was open.
    fn reconsider(&mut self, shared: &Shared, (cancel_requested, applied_late): (bool, bool)) {
        let history = &mut self.claim.history;
        history.cancel_requested |= cancel_requested;
        history.applied_late |= applied_late;
        match &mut self.found {
            Found::Attempted(attempted) => {
                attempted.decision = decision::decide(
                    &attempted.terms.policy,
                    &attempted.terms.contract,
                    attempted.terms.timeout,
                    history,
                    &attempted.outcome,
                    attempted.ended_at,
                );
            }
            Found::Unstarted(of) => {
                let served = &shared.served[&self.claim.effect.downstream].served;
                let terms = served.terms_of(self.claim.effect.operation.as_deref()).unwrap_or(&served.terms);
                let now = self.claim.claimed_at;
                of.next = Next::Decided(decision::after_meanwhile(&terms.contract, history, now));
            }
        }
    }

    /// What it says when its lease is over.
    fn late_answer(&self, shared: &Shared) -> (Arc<str>, LateAnswer) {
        let answer = match &self.found {
            Found::Unstarted(of) => {
                let now = of.base.now(&*shared.clock).minus(of.base.ahead);
                not_begun(&self.claim, &shared.config.worker, now)
            }
            Found::Attempted(attempted) => attempted.late_answer(&self.claim, &shared.config.worker),
        };
        (self.claim.effect.downstream.clone(), answer)
    }

    /// A sweep may have parked it as if it had been sent, under the token that stands: then the hand-back is written, and would
    /// leave no trace beside the sweep's row.
    fn is_handed_back_late(&self, shared: &Shared) -> bool {
        self.is_unstarted() && !self.held.covers(&*shared.clock, Duration::ZERO)
    }
}

/// Writes what comes in until the last sender is gone.
pub(super) async fn run(shared: Arc<Shared>, mut inbox: mpsc::Receiver<Settling>, abort: CancellationToken) {
    let mut finished: Vec<Token> = Vec::new();
    loop {
        let first = if finished.is_empty() {
            inbox.recv().await
        } else {
            match tokio::time::timeout(FINISHED_LINGER, inbox.recv()).await {
                Ok(first) => first,
                Err(_) => {
                    drop_claims(&shared, &mut finished).await;
                    continue;
                }
            }
        };
        let Some(first) = first else { break };
        let batch = gather(first, &mut inbox).await;
        write(&shared, batch, &mut finished, &abort).await;
    }
    drop_claims(&shared, &mut finished).await;
}

async fn gather(first: Settling, inbox: &mut mpsc::Receiver<Settling>) -> Vec<Settling> {
    let mut batch = vec![first];
    let until = tokio::time::Instant::now() + SETTLE_LINGER;
    while batch.len() < SETTLE_BATCH_MAX {
        let room = SETTLE_BATCH_MAX - batch.len();
        match tokio::time::timeout_at(until, inbox.recv_many(&mut batch, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    batch
}

/// Tries until the batch is written: the token fences it, so that trying again can do no harm. What the database refuses
/// again and again, alone, is left to the sweep, so that nothing behind it waits for ever.
async fn write(
    shared: &Shared,
    mut batch: Vec<Settling>,
    finished: &mut Vec<Token>,
    abort: &CancellationToken,
) {
    let mut outages = Outages::default();
    let mut refusals = 0;
    let mut aborted_at = None;
    while !batch.is_empty() {
        let settlements: Vec<Settlement> =
            batch.iter().map(|settling| settling.settlement(&shared.config.worker)).collect();
        let error = match shared.store.settle(&settlements, finished).await {
            Ok(settled) => {
                outages.over();
                refusals = 0;
                finished.clear();
                batch = sort_out(shared, batch, &settlements, settled, finished).await;
                continue;
            }
            Err(error) => error,
        };
        outages.report("settling", &error);
        if abort.is_cancelled() {
            let since = *aborted_at.get_or_insert_with(|| shared.clock.boot());
            if shared.clock.boot() - since > ABORT_PATIENCE {
                tracing::error!(
                    effects = batch.len(),
                    "stopped with outcomes unwritten; the sweep will judge them"
                );
                batch.iter().for_each(|settling| shared.leases.abandon(&settling.held));
                return;
            }
        }
        outages.wait().await;
        refusals += u32::from(error.is_refusal());
        if refusals >= REFUSALS_MAX {
            refusals = 0;
            batch = write_one_by_one(shared, batch, finished).await;
        }
    }
}

/// Returns what is still to be written.
async fn write_one_by_one(shared: &Shared, batch: Vec<Settling>, finished: &mut Vec<Token>) -> Vec<Settling> {
    let mut left = Vec::new();
    for settling in batch {
        let settlement = [settling.settlement(&shared.config.worker)];
        match shared.store.settle(&settlement, &[]).await {
            Ok(settled) => {
                left.extend(sort_out(shared, vec![settling], &settlement, settled, finished).await)
            }
            // Anything but a refusal of this very outcome may pass: what we know is kept until it is written.
            Err(error) if !error.is_refusal() => left.push(settling),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(effect = %settlement[0].id, %error, cause,
                    "the database refuses this outcome; the effect is left to the sweep");
                shared.leases.abandon(&settling.held);
            }
        }
    }
    left
}

/// Takes out what was written, reports what was lost, and returns what must be decided again.
async fn sort_out(
    shared: &Shared,
    batch: Vec<Settling>,
    settlements: &[Settlement],
    settled: Vec<Settled>,
    finished: &mut Vec<Token>,
) -> Vec<Settling> {
    let mut again = Vec::new();
    let mut late_answers = Vec::new();
    for ((mut settling, settlement), settled) in batch.into_iter().zip(settlements).zip(settled) {
        match settled {
            Settled::Reconsider { cancel_requested, applied_late } => {
                settling.reconsider(shared, (cancel_requested, applied_late));
                again.push(settling);
                continue;
            }
            Settled::Done => {
                Counters::add(&shared.counters.settled, 1);
                let trace = if settling.is_unstarted() { Trace::None } else { Trace::Logged };
                shared.note_settled(settlement, trace);
                say(&settling, settlement);
                measure(shared, &settling, settlement);
                late_answers
                    .extend(settling.is_handed_back_late(shared).then(|| settling.late_answer(shared)));
                if let Next::Decided(Decision::RetryAt(due)) = &settlement.decision {
                    shared.look_again_at(*due);
                }
            }
            Settled::Lost => {
                Counters::add(&shared.counters.fenced, 1);
                shared.note_settled(settlement, Trace::None);
                tracing::warn!(effect = %settlement.id, token = settlement.token.get(), "the lease was lost: the settle was refused");
                late_answers.push(settling.late_answer(shared));
            }
        }
        if shared.leases.settled(settlement.token) {
            finished.push(settlement.token);
        }
    }
    late::report(shared, late_answers).await;
    again
}

fn say(settling: &Settling, settlement: &Settlement) {
    let effect = settling.claim.effect.id;
    let downstream = &settling.claim.effect.downstream;
    let attempt = settling.claim.number;
    match &settlement.decision {
        Next::Decided(Decision::Park(why) | Decision::ProbeAt(_, why)) => {
            tracing::warn!(%effect, %downstream, attempt, why, "in doubt");
        }
        Next::Decided(Decision::Fail(why)) => tracing::warn!(%effect, %downstream, attempt, why, "failed"),
        Next::Decided(Decision::RetryAt(due)) => {
            let error = settlement.attempt.as_ref().map_or("", |attempt| attempt.error.as_str());
            tracing::info!(%effect, %downstream, attempt, %due, error, "will retry");
        }
        Next::Decided(Decision::Succeed | Decision::Cancel | Decision::Expire) | Next::GiveBack => {
            tracing::debug!(%effect, %downstream, attempt, decision = ?settlement.decision, "settled");
        }
    }
}

/// How long a success took from the effect's row.
fn measure(shared: &Shared, settling: &Settling, settlement: &Settlement) {
    if let (Next::Decided(Decision::Succeed), Some(attempt)) = (&settlement.decision, &settlement.attempt) {
        let effect = &settling.claim.effect;
        shared.figures.delivered(&effect.downstream, attempt.ended_at.since(effect.created_at));
    }
}

async fn drop_claims(shared: &Shared, finished: &mut Vec<Token>) {
    if finished.is_empty() {
        return;
    }
    if let Err(error) = shared.store.settle(&[], finished).await {
        // Not worth a retry: the sweep drops claims that no effect carries any more.
        tracing::debug!(%error, "finished claims were not dropped");
    }
    finished.clear();
}
