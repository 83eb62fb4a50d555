//! A store that fails on request: before the operation (nothing happened) or after it (it happened, and nobody was told).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use aftercommit::{
    EffectId,
    clock::Timestamp,
    downstream::{
        Rate,
        endpoint::{Called, Change, Endpoint},
    },
    error::StoreError,
    store::{
        Batch, Budget, Claim, Database, DueProbe, Endpoints, Expired, Granted, Holds, Late, LateAnswer,
        Origin, Overdue, ProbeSettlement, ProbeWant, Probes, RegisteredTerms, Registration, Report, Retain,
        Retention, Settled, Settlement, Step, Store, TermsIds, Token, Want,
        identity::{Hold, Identify, Identity, Lifted, Mismatch},
    },
    verb::Actor,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// An operation of the store, as a test names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Register,
    Renew,
    Claim,
    Settle,
    Expired,
    Budget,
    ClaimProbes,
    SettleProbe,
    ProbeIsDue,
}

/// When an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing happens.
    Before,
    /// It happens, and the answer is lost.
    After,
    /// Nothing happens, for a reason that is neither an outage nor a refusal.
    Strange,
}

#[derive(Default)]
struct Plan {
    faults: HashMap<Op, Vec<Fault>>,
    down: bool,
    refused: Vec<EffectId>,
    hold: HashMap<Op, Arc<Notify>>,
    answers: HashMap<Op, CancellationToken>,
    calls: HashMap<Op, usize>,
    faults_hit: usize,
    moves: HashMap<Op, usize>,
    connections: u64,
}

/// The wrapper.
pub(super) struct FaultyStore {
    inner: Arc<dyn Database>,
    plan: Mutex<Plan>,
}

impl FaultyStore {
    pub(super) fn over(inner: Arc<dyn Database>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::default() })
    }

    /// The next calls of `op` fail so, one fault each.
    pub(super) fn fail(&self, op: Op, faults: &[Fault]) {
        self.plan.lock().unwrap().faults.entry(op).or_default().extend_from_slice(faults);
    }

    /// Every operation fails until told otherwise.
    pub(super) fn down(&self, down: bool) {
        self.plan.lock().unwrap().down = down;
    }

    /// Settles that write this effect are refused, as by a constraint: no outage, and no repetition helps.
    pub(super) fn refuse(&self, id: EffectId) {
        self.plan.lock().unwrap().refused.push(id);
    }

    /// Calls of `op` wait until the returned handle is notified (each notification lets one go on).
    pub(super) fn hold(&self, op: Op) -> Arc<Notify> {
        self.plan.lock().unwrap().hold.entry(op).or_default().clone()
    }

    /// Calls of `op` happen, and their answers wait until the returned token is cancelled.
    pub(super) fn hold_answers(&self, op: Op) -> CancellationToken {
        self.plan.lock().unwrap().answers.entry(op).or_default().clone()
    }

    /// The next `times` calls of `op` that happen run on connections that are new, as is known by the time of their answers.
    pub(super) fn move_during(&self, op: Op, times: usize) {
        self.plan.lock().unwrap().moves.insert(op, times);
    }

    /// How often `op` was called.
    pub(super) fn calls(&self, op: Op) -> usize {
        self.plan.lock().unwrap().calls.get(&op).copied().unwrap_or(0)
    }

    /// How many faults fired: a test that hit nothing proves nothing.
    pub(super) fn faults_hit(&self) -> usize {
        self.plan.lock().unwrap().faults_hit
    }

    async fn enter(&self, op: Op) -> Option<Fault> {
        let held = {
            let mut plan = self.plan.lock().unwrap();
            *plan.calls.entry(op).or_default() += 1;
            plan.hold.get(&op).cloned()
        };
        if let Some(held) = held {
            held.notified().await;
        }
        let mut plan = self.plan.lock().unwrap();
        let fault = if plan.down {
            Some(Fault::Before)
        } else {
            plan.faults.get_mut(&op).and_then(|faults| (!faults.is_empty()).then(|| faults.remove(0)))
        };
        plan.faults_hit += usize::from(fault.is_some());
        fault
    }

    /// It happened; before whoever called is told.
    async fn leave(&self, op: Op) {
        let held = self.plan.lock().unwrap().answers.get(&op).cloned();
        if let Some(held) = held {
            held.cancelled().await;
        }
        let mut plan = self.plan.lock().unwrap();
        if let Some(left) = plan.moves.get_mut(&op).filter(|left| **left > 0) {
            *left -= 1;
            plan.connections += 1;
            plan.faults_hit += 1;
        }
    }

    fn lost() -> StoreError {
        StoreError::during("a planned fault")(sqlx::Error::Io(std::io::Error::other("planned")))
    }

    async fn around<T: Send>(
        &self,
        op: Op,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.enter(op).await {
            None => {
                let answer = call.await;
                self.leave(op).await;
                answer
            }
            Some(Fault::Before) => Err(Self::lost()),
            Some(Fault::Strange) => Err(StoreError::during("a planned fault")(sqlx::Error::RowNotFound)),
            Some(Fault::After) => {
                call.await?;
                self.leave(op).await;
                Err(Self::lost())
            }
        }
    }
}

#[async_trait::async_trait]
impl Budget for FaultyStore {
    async fn holds(&self, downstreams: &[Arc<str>]) -> Result<Holds, StoreError> {
        self.around(Op::Budget, self.inner.holds(downstreams)).await
    }

    async fn take(&self, downstream: &str, rate: Rate, wanted: u32) -> Result<Granted, StoreError> {
        self.around(Op::Budget, self.inner.take(downstream, rate, wanted)).await
    }

    async fn give_back(&self, downstream: &str, rate: Rate, calls: u32) -> Result<(), StoreError> {
        self.around(Op::Budget, self.inner.give_back(downstream, rate, calls)).await
    }

    async fn begin_trial(&self, origin: &str, length: Duration) -> Result<bool, StoreError> {
        self.around(Op::Budget, self.inner.begin_trial(origin, length)).await
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<(Arc<str>, Origin)>, StoreError> {
        self.around(Op::Budget, self.inner.report(reports)).await
    }

    async fn pause_refused(&self, downstream: &str, worker: &str, reason: &str) -> Result<bool, StoreError> {
        self.around(Op::Budget, self.inner.pause_refused(downstream, worker, reason)).await
    }
}

#[async_trait::async_trait]
impl Endpoints for FaultyStore {
    async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError> {
        self.inner.endpoints(downstream).await
    }

    async fn note_endpoint(
        &self,
        downstream: &str,
        called: &Called,
        change: &Change,
        worker: &str,
    ) -> Result<bool, StoreError> {
        self.inner.note_endpoint(downstream, called, change, worker).await
    }

    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        self.inner.switch_endpoint(downstream, name, disable, actor).await
    }
}

#[async_trait::async_trait]
impl Retain for FaultyStore {
    async fn drop_batch(&self, step: Step, age: Duration, limit: u32) -> Result<Batch, StoreError> {
        self.inner.drop_batch(step, age, limit).await
    }

    async fn believe_clock(&self) -> Result<(), StoreError> {
        self.inner.believe_clock().await
    }

    async fn due(&self, step: Step, retention: &Retention) -> Result<u64, StoreError> {
        self.inner.due(step, retention).await
    }

    async fn forget_unused(&self, keys: Duration) -> Result<u64, StoreError> {
        self.inner.forget_unused(keys).await
    }
}

#[async_trait::async_trait]
impl Store for FaultyStore {
    async fn register(&self, registration: &Registration) -> Result<TermsIds, StoreError> {
        self.around(Op::Register, self.inner.register(registration)).await
    }

    async fn renew(&self, worker: &str, tokens: &[(Token, Duration)]) -> Result<Vec<Token>, StoreError> {
        self.around(Op::Renew, self.inner.renew(worker, tokens)).await
    }

    async fn leave(&self, worker: &str) -> Result<(), StoreError> {
        self.inner.leave(worker).await
    }

    async fn claim(&self, worker: &str, wants: &[Want]) -> Result<Vec<Claim>, StoreError> {
        self.around(Op::Claim, self.inner.claim(worker, wants)).await
    }

    async fn settle(&self, batch: &[Settlement], finished: &[Token]) -> Result<Vec<Settled>, StoreError> {
        let refused = self.plan.lock().unwrap().refused.clone();
        if batch.iter().any(|settlement| refused.contains(&settlement.id)) {
            self.plan.lock().unwrap().faults_hit += 1;
            let problem = "a planned refusal".to_owned();
            return Err(StoreError::Corrupt { table: "outcomes", column: "response", row: 0, problem });
        }
        self.around(Op::Settle, self.inner.settle(batch, finished)).await
    }

    async fn late(&self, answers: &[LateAnswer]) -> Result<Vec<Late>, StoreError> {
        self.inner.late(answers).await
    }

    async fn expired(&self, limit: u32) -> Result<Vec<Expired>, StoreError> {
        self.around(Op::Expired, self.inner.expired(limit)).await
    }

    async fn sweep_expired(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.inner.sweep_expired(batch).await
    }

    async fn overdue(&self, limit: u32) -> Result<Vec<Overdue>, StoreError> {
        self.inner.overdue(limit).await
    }

    async fn sweep_overdue(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.inner.sweep_overdue(batch).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.inner.maintain().await
    }

    async fn terms(
        &self,
        downstream: &str,
        operation: Option<&str>,
    ) -> Result<Option<RegisteredTerms>, StoreError> {
        self.inner.terms(downstream, operation).await
    }

    async fn is_idle(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        self.inner.is_idle(downstreams).await
    }

    async fn work_arrived(&self, at_most: Duration) {
        self.inner.work_arrived(at_most).await;
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }
}

/// Faults are planned for what is worked with; whoever looks only fails while everything is down.
#[async_trait::async_trait]
impl Identify for FaultyStore {
    fn reconnects(&self) -> u64 {
        self.inner.reconnects() + self.plan.lock().unwrap().connections
    }

    async fn identity(&self) -> Result<Identity, StoreError> {
        let down = self.plan.lock().unwrap().down;
        if down { Err(Self::lost()) } else { self.inner.identity().await }
    }

    async fn has_claim(&self, token: Token, effect: EffectId) -> Result<bool, StoreError> {
        self.inner.has_claim(token, effect).await
    }

    async fn accept(&self, found: &Identity) -> Result<(), StoreError> {
        self.inner.accept(found).await
    }

    async fn enter_hold(&self, found_by: &str, mismatch: &Mismatch) -> Result<(), StoreError> {
        self.inner.enter_hold(found_by, mismatch).await
    }

    async fn hold(&self) -> Result<Option<Hold>, StoreError> {
        self.inner.hold().await
    }

    async fn mark_uncertain(&self, lease: Duration) -> Result<bool, StoreError> {
        self.inner.mark_uncertain(lease).await
    }

    async fn lift_hold(&self, actor: &Actor) -> Result<Lifted, StoreError> {
        self.inner.lift_hold(actor).await
    }
}

#[async_trait::async_trait]
impl Probes for FaultyStore {
    async fn claim_probes(&self, wants: &[ProbeWant]) -> Result<Vec<DueProbe>, StoreError> {
        self.around(Op::ClaimProbes, self.inner.claim_probes(wants)).await
    }

    async fn settle_probe(&self, settlement: &ProbeSettlement) -> Result<Settled, StoreError> {
        self.around(Op::SettleProbe, self.inner.settle_probe(settlement)).await
    }

    async fn probe_is_due(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError> {
        self.around(Op::ProbeIsDue, self.inner.probe_is_due(downstreams)).await
    }
}
