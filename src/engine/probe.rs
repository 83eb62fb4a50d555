//! Probes: effects in doubt are asked about where their downstream can answer. They send nothing, take no slot of the attempts,
//! and cost nothing where no downstream can be asked: then nobody runs this loop.
//!
//! A probe is claimed like an attempt, by putting its time off: a worker that is killed loses nothing, since its probes are due
//! again then. What it says is refused once a person, a late answer or another probe was there first.
//!
//! Probes keep to pauses and breakers like calls, and tell the fleet what they show of their origin; one that is due may be the
//! call that finds out whether an open origin answers again, since there may be nothing else left to send to it. They are not
//! counted in a rate: so few at one time, each put off by its policy, that a rate which is worth the name has room for them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;

use super::{
    Counters, LEASE_MARGIN, Outages, Shared, Stop, budget,
    held_by::{Budgets, Hold, Pass},
    idle::UnderWay,
    lease::Base,
};
use crate::{
    clock::{Boot, Clock},
    decision::{Decision, Looked, REQUEST_CHANGED, decide_probe},
    downstream::{Closed, Gate, Probe, Served, Terms},
    error::StoreError,
    outcome::{Contact, Probed, Sighting},
    store::{DueProbe, Next, ProbeSettlement, ProbeWant, Settled},
};

/// Probes at one time per downstream and worker: few, since what they find is never urgent, and their slots are not the attempts'.
const PROBES_AT_ONCE: u32 = 4;

/// A list is read page by page, and each page may take as long as an attempt: a whole probe may take as long as so many.
const EXCHANGES: u32 = 5;

/// The probing side of a running worker.
pub(super) struct Prober {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    stop: Stop,
    /// Free places by downstream, of those that can be asked. Only the prober takes them; probes give them back.
    slots: BTreeMap<Arc<str>, Arc<Semaphore>>,
    freed: Arc<Notify>,
}

impl Prober {
    /// `None` where no downstream can be asked.
    pub(super) fn of(shared: &Arc<Shared>, tracker: &TaskTracker, stop: &Stop) -> Option<Self> {
        let slots: BTreeMap<_, _> = asked(shared)
            .into_iter()
            .map(|name| (name, Arc::new(Semaphore::new(PROBES_AT_ONCE as usize))))
            .collect();
        (!slots.is_empty()).then(|| Self {
            shared: shared.clone(),
            tracker: tracker.clone(),
            stop: stop.clone(),
            slots,
            freed: Arc::default(),
        })
    }

    /// Claims and hands out until told to drain. An outage is waited out.
    pub(super) async fn run(self) {
        let mut outages = Outages::default();
        while !self.stop.drain.is_cancelled() {
            let pause = match self.round().await {
                Ok(claimed) => {
                    outages.over();
                    // Found some: there may be more behind them, as soon as there is room.
                    if claimed > 0 { Duration::ZERO } else { self.shared.config.poll }
                }
                Err(error) => {
                    outages.report("claiming probes", &error);
                    self.shared.config.poll.max(Duration::from_secs(1))
                }
            };
            tokio::select! {
                () = self.room_after(pause) => {}
                () = self.stop.drain.cancelled() => {}
            }
        }
    }

    /// One claim; its probes run on.
    pub(super) async fn round(&self) -> Result<usize, StoreError> {
        let wants: Vec<ProbeWant> = self
            .slots
            .iter()
            .filter(|(_, slots)| slots.available_permits() > 0)
            .map(|(name, slots)| ProbeWant {
                downstream: name.clone(),
                slots: u32::try_from(slots.available_permits()).unwrap_or(u32::MAX),
                // Room to write down what was seen within the limit.
                lease: limit(&self.shared.served[name].served) + LEASE_MARGIN,
                origin: self.shared.served[name].served.origin.clone(),
                trial: false,
            })
            .collect();
        if wants.is_empty() {
            return Ok(0);
        }
        // From before the claim until its probes count by themselves: the database has put them off before we hear of them.
        let _round = UnderWay::begin(&self.shared);
        let boot = self.shared.clock.boot();
        // In a task of its own, since a database future must not be dropped half-way.
        let shared = self.shared.clone();
        let asked = self.tracker.spawn(async move { claim(&shared, wants).await });
        let due = asked
            .await
            .map_err(|error| StoreError::Unsupported(format!("the claim's task ended badly: {error}")))??;
        let ahead = self.shared.clock.boot() - boot;
        let claimed = due.len();
        for (probe, pass) in due {
            self.hand_out(probe, pass, (boot, ahead));
        }
        Ok(claimed)
    }

    fn hand_out(&self, due: DueProbe, pass: Pass, (boot, ahead): (Boot, Duration)) {
        let permit = self.slots[&due.effect.downstream]
            .clone()
            .try_acquire_owned()
            .expect("only the prober takes slots, and it claimed no more than were free");
        let (shared, stop, freed) = (self.shared.clone(), self.stop.clone(), self.freed.clone());
        let base = Base { boot, at: due.claimed_at, ahead };
        let under_way = UnderWay::begin(&self.shared);
        self.tracker.spawn(async move {
            ask(&shared, &due, (base, pass), &stop).await;
            drop(under_way);
            drop(permit);
            freed.notify_one();
        });
    }

    async fn room_after(&self, pause: Duration) {
        tokio::time::sleep(pause).await;
        while self.slots.values().all(|slots| slots.available_permits() == 0) {
            self.freed.notified().await;
        }
    }
}

/// Claims probes from a database that was compared; else gives them back unmade.
async fn claim(shared: &Shared, wants: Vec<ProbeWant>) -> Result<Vec<(DueProbe, Pass)>, StoreError> {
    let Some(connections) = shared.compared().await? else { return Ok(Vec::new()) };
    let due = budget::claim_probes(shared, wants).await?;
    if shared.store.reconnects() == connections || matches!(shared.compared().await, Ok(Some(_))) {
        return Ok(due);
    }
    for (probe, pass) in &due {
        if pass.trial {
            shared.budgets.end_trial(pass.origin.as_ref());
        }
        shared.store.settle_probe(&probe.settlement(Next::GiveBack)).await?;
    }
    Ok(Vec::new())
}

/// Whether a probe that this worker could make is due. One that is claimed is put off, and not due.
pub(super) async fn is_due(shared: &Shared) -> Result<bool, StoreError> {
    let names = asked(shared);
    if names.is_empty() {
        return Ok(false);
    }
    shared.store.probe_is_due(&names).await
}

/// The downstreams some operation of which can be asked.
fn asked(shared: &Shared) -> Vec<Arc<str>> {
    let can_probe = |served: &Served| {
        std::iter::once(&served.terms).chain(served.operations.values()).any(|terms| terms.contract.can_probe)
    };
    let served = shared.served.iter().filter(|(_, serving)| can_probe(&serving.served));
    served.map(|(name, _)| name.clone()).collect()
}

/// How long a whole probe may take.
fn limit(served: &Served) -> Duration {
    let operations = served.operations.values().map(|terms| terms.timeout);
    operations.fold(served.terms.timeout, Duration::max).saturating_mul(EXCHANGES)
}

/// Asks, decides, and writes it down. Stopped at once, it writes nothing: the probe is due again when its lease ends.
async fn ask(shared: &Shared, due: &DueProbe, (base, pass): (Base, Pass), stop: &Stop) {
    let served = &shared.served[&due.effect.downstream].served;
    let until = base.boot.plus(limit(served) + LEASE_MARGIN);
    let terms = match sensible(due, served.terms_of(due.effect.operation.as_deref())) {
        Ok(terms) => terms,
        Err(why) => {
            if pass.trial {
                shared.budgets.end_trial(pass.origin.as_ref());
            }
            let why = format!("{}; it is not probed: {why}", due.doubt.why);
            let settlement = due.settlement(Next::Decided(Decision::Park(why)));
            return write(shared, due, settlement, (until, stop)).await;
        }
    };
    let gate = Arc::new(Door {
        clock: shared.clock.clone(),
        drain: stop.drain.clone(),
        until: base.boot.plus(limit(served)),
        budgets: shared.budgets.clone(),
        downstream: due.effect.downstream.clone(),
        pass: pass.clone(),
        shut: AtomicBool::new(false),
    });
    let probe = Probe {
        effect: due.effect.clone(),
        key: format!("{}{}", served.key_prefix, due.effect.key),
        timeout: limit(served),
        gate: gate.clone(),
    };
    let asking = AssertUnwindSafe(served.downstream.probe(&probe)).catch_unwind();
    let failed = |why: String| Probed { contact: Contact::Failed, ..Probed::new(Sighting::Unknown, why) };
    let mut probed = tokio::select! {
        answered = tokio::time::timeout(limit(served), asking) => match answered {
            Ok(Ok(probed)) => probed,
            Ok(Err(_panic)) => {
                Counters::add(&shared.counters.panics, 1);
                failed("the downstream's code panicked".to_owned())
            }
            Err(_) => failed(format!("no answer within {:?}", limit(served))),
        },
        () = stop.abort.cancelled() => return,
    };
    let settlement = if gate.shut.load(Ordering::SeqCst) {
        probed.contact = Contact::None;
        shared.budgets.observe_probe(&pass, &probed, Duration::ZERO, shared.clock.boot());
        due.settlement(Next::GiveBack)
    } else {
        Counters::add(&shared.counters.probed, 1);
        let terms = heard(shared, due, terms, (&probed, &pass)).await;
        settlement(shared, due, &terms, probed, base)
    };
    write(shared, due, settlement, (until, stop)).await;
}

/// The terms to ask under; else why what would be seen means nothing.
fn sensible<'t>(due: &DueProbe, terms: Option<&'t Terms>) -> Result<&'t Terms, &'static str> {
    let terms = terms.ok_or("the configuration no longer has its operation")?;
    if !terms.contract.can_probe {
        return Err("its operation has no probe any more");
    }
    // Another account, origin or path would show an absence that says nothing about what was sent.
    if due.pinned != Some(terms.request_sha256) {
        return Err(REQUEST_CHANGED);
    }
    Ok(terms)
}

/// The fleet hears what the probe showed of its origin, like what a call shows. The terms to decide under.
async fn heard<'t>(
    shared: &Shared,
    due: &DueProbe,
    terms: &'t Terms,
    (probed, pass): (&Probed, &Pass),
) -> Cow<'t, Terms> {
    shared.budgets.observe_probe(pass, probed, terms.policy.max_pause, shared.clock.boot());
    if probed.contact != Contact::Refused {
        return Cow::Borrowed(terms);
    }
    budget::pause_refused(shared, &due.effect.downstream, &probed.reason).await;
    let policy = terms.policy.after_being_refused();
    Cow::Owned(Terms { policy, ..terms.clone() })
}

fn settlement(shared: &Shared, due: &DueProbe, terms: &Terms, probed: Probed, base: Base) -> ProbeSettlement {
    let now = base.now(&*shared.clock);
    // The look counts from when it was claimed, which is no later than when it was begun.
    let Looked { decision, absent_at } =
        decide_probe(&terms.policy, &terms.contract, &due.doubt, &probed, (due.claimed_at, now));
    let number = due.doubt.made.saturating_add(1);
    let note = match &decision {
        Decision::Succeed => Some(format!("probe {number} found that it was applied: {}", probed.reason)),
        Decision::RetryAt(_) => Some(format!("probe {number} found it absent again: it was not applied")),
        Decision::ProbeAt(..)
        | Decision::Park(_)
        | Decision::Fail(_)
        | Decision::Cancel
        | Decision::Expire => None,
    };
    let response = probed.response.filter(|_| decision == Decision::Succeed);
    ProbeSettlement { absent_at, note, response, ..due.settlement(Next::Decided(decision)) }
}

/// Tries until it is written, or the lease of the probe ended: then it is made again.
async fn write(shared: &Shared, due: &DueProbe, settlement: ProbeSettlement, (until, stop): (Boot, &Stop)) {
    let mut outages = Outages::default();
    loop {
        match shared.store.settle_probe(&settlement).await {
            Ok(Settled::Done) => return say(shared, due, &settlement),
            Ok(Settled::Lost | Settled::Reconsider { .. }) => {
                Counters::add(&shared.counters.fenced, 1);
                tracing::info!(effect = %due.effect.id, "what a probe showed came too late: the effect was settled, or the fleet put on HOLD, meanwhile");
                return;
            }
            Err(error) => outages.report("settling a probe", &error),
        }
        if shared.clock.boot() >= until || stop.abort.is_cancelled() {
            tracing::warn!(effect = %due.effect.id, "what a probe showed could not be written; it is made again");
            return;
        }
        outages.wait().await;
    }
}

fn say(shared: &Shared, due: &DueProbe, settlement: &ProbeSettlement) {
    let (effect, downstream) = (due.effect.id, &due.effect.downstream);
    match &settlement.decision {
        Next::Decided(Decision::Succeed) => {
            tracing::info!(%effect, %downstream, note = settlement.note, "a probe settled it: succeeded");
        }
        Next::Decided(Decision::RetryAt(at)) => {
            shared.look_again_at(*at);
            tracing::warn!(%effect, %downstream, due = %at, note = settlement.note, "a probe settled it: not applied, a new history begins");
        }
        Next::Decided(Decision::Fail(why)) => tracing::warn!(%effect, %downstream, why, "failed"),
        Next::Decided(Decision::Park(why)) => {
            tracing::warn!(%effect, %downstream, why, "in doubt for a person")
        }
        Next::Decided(Decision::ProbeAt(at, why)) => {
            tracing::debug!(%effect, %downstream, due = %at, why, "will be probed again");
        }
        Next::Decided(Decision::Cancel | Decision::Expire) | Next::GiveBack => {
            tracing::debug!(%effect, %downstream, decision = ?settlement.decision, "a probe ended");
        }
    }
}

/// What is asked right before each exchange of a probe.
struct Door {
    clock: Arc<dyn Clock>,
    drain: tokio_util::sync::CancellationToken,
    until: Boot,
    budgets: Arc<Budgets>,
    downstream: Arc<str>,
    pass: Pass,
    /// It refused: what the downstream makes of that shows nothing.
    shut: AtomicBool,
}

impl Gate for Door {
    fn may_begin(&self) -> Result<(), Closed> {
        let closed = if self.drain.is_cancelled() {
            Some(Closed::Stopping)
        } else {
            let now = self.clock.boot();
            let hold = self.budgets.hold(&self.downstream, self.pass.origin.as_deref(), now);
            let free = hold == Hold::Free || (hold == Hold::Trial && self.pass.trial);
            if now >= self.until { Some(Closed::TooLate) } else { (!free).then_some(Closed::Held) }
        };
        match closed {
            None => Ok(()),
            Some(closed) => {
                self.shut.store(true, Ordering::SeqCst);
                Err(closed)
            }
        }
    }
}
