//! Intake: how much to claim, the claim, and handing each effect to its attempt.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::task::TaskTracker;

use super::{
    Counters, Outages, Serving, Shared, Stop,
    attempt::{self, Holding},
    budget::{self, Admitted},
    figures::Beat,
    held_by::Pass,
    lease::Base,
    settle::Settling,
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{Claim, Want},
};

/// After a hint or a find, look again after these before falling back to the slow poll: a producer that found the wake-up
/// lock taken commits without a hint.
const FOLLOW_UPS: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
];
/// With a backlog, wait this long for half of the slots rather than claim a handful.
const FILL_WAIT: Duration = Duration::from_millis(5);
/// A budget that has room again is asked no sooner than this.
const WAKE_MIN: Duration = Duration::from_millis(1);

/// The claiming side of a running worker.
pub(super) struct Intake {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    outcomes: mpsc::Sender<Settling>,
    stop: Stop,
    /// Which downstream is asked first: turns by one each round, so that scarce slots are shared.
    turn: usize,
    /// Empty looks since something was found.
    looks: usize,
}

/// A place for one attempt, over all and at its downstream; given back when dropped.
pub(super) struct Slot {
    permits: Option<[OwnedSemaphorePermit; 2]>,
    shared: Arc<Shared>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // First free, then told: whoever is woken looks at once.
        self.permits = None;
        self.shared.slot_freed.notify_one();
    }
}

/// What a round of claiming came to.
struct Round {
    claimed: usize,
    /// Downstreams that could use more slots: theirs were all taken, or all that were asked for were filled.
    hungry: Vec<Arc<str>>,
    /// When a budget may have room again for what it left out.
    wake_in: Option<Duration>,
}

impl Intake {
    pub(super) fn new(
        shared: Arc<Shared>,
        tracker: TaskTracker,
        outcomes: mpsc::Sender<Settling>,
        stop: Stop,
    ) -> Self {
        Self { shared, tracker, outcomes, stop, turn: 0, looks: 0 }
    }

    /// Claims and hands out until told to drain. An outage is waited out; then the worker registers again.
    pub(super) async fn run(mut self) -> Result<(), StoreError> {
        let mut outages = Outages::default();
        while !self.stop.drain.is_cancelled() {
            match self.claim().await {
                Ok(round) => {
                    outages.over();
                    self.pause_after(&round).await;
                }
                Err(error) => {
                    outages.report("claiming", &error);
                    tokio::select! {
                        () = outages.wait() => {}
                        () = self.stop.drain.cancelled() => return Ok(()),
                    }
                    if error.is_outage() {
                        self.shared.register(&self.stop).await.or_else(|error| {
                            if self.stop.drain.is_cancelled() { Ok(()) } else { Err(error) }
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One claim; its attempts run on.
    pub(super) async fn round(mut self) -> Result<usize, StoreError> {
        self.claim().await.map(|round| round.claimed)
    }

    async fn claim(&mut self) -> Result<Round, StoreError> {
        let wants = self.wants();
        if wants.is_empty() {
            let hungry = self.shared.served.keys().cloned().collect();
            return Ok(Round { claimed: 0, hungry, wake_in: None });
        }
        let mut hungry: Vec<Arc<str>> = self
            .shared
            .served
            .keys()
            .filter(|name| !wants.iter().any(|want| want.downstream == **name))
            .cloned()
            .collect();
        let Admitted { wants, wake_in } = self.admit(wants).await?;
        if wants.is_empty() {
            return Ok(Round { claimed: 0, hungry, wake_in });
        }
        let boot = self.shared.clock.boot();
        let claims = self.ask(wants.clone()).await?;
        let answered = self.shared.clock.boot();
        let ahead = answered - boot;
        self.shared.figures.beat(Beat::Claim, boot);
        let claimed = claims.len();
        Counters::add(&self.shared.counters.claimed, claimed);
        for want in &wants {
            let mine: Vec<&Claim> =
                claims.iter().filter(|claim| claim.effect.downstream == want.downstream).collect();
            if mine.len() >= want.slots as usize {
                hungry.push(want.downstream.clone());
            }
            self.give_up(want, mine.len());
            let Some(first) = mine.first() else { continue };
            let base = Base { boot, at: first.claimed_at, ahead };
            let held = self.shared.leases.hold(first.token(), want.lease, boot, mine.len());
            let send_by =
                self.shared.served[&want.downstream].served.rate.map(|_| answered.plus(budget::GRANT_VALID));
            for claim in mine {
                let pass =
                    Pass { trial: want.trial, send_by, origin: want.origin.clone(), ..Pass::default() };
                self.hand_out(Holding { claim: claim.clone(), held: held.clone(), base, pass });
            }
        }
        Ok(Round { claimed, hungry, wake_in })
    }

    /// What budgets leave of `wants`. Like the claim, in a task of its own; not at all where no budget has a say.
    async fn admit(&self, wants: Vec<Want>) -> Result<Admitted, StoreError> {
        if !budget::concern(&self.shared, &wants) {
            return Ok(Admitted { wants, ..Admitted::default() });
        }
        let shared = self.shared.clone();
        self.tracker
            .spawn(async move { budget::admit(&shared, wants).await })
            .await
            .map_err(|error| StoreError::Unsupported(format!("a budget's task ended badly: {error}")))?
    }

    /// Fewer were due than a budget had granted.
    fn give_up(&self, want: &Want, claimed: usize) {
        let granted = want.trial || self.shared.served[&want.downstream].served.rate.is_some();
        let left = want.slots.saturating_sub(u32::try_from(claimed).unwrap_or(u32::MAX));
        if granted && left > 0 {
            let (shared, want) = (self.shared.clone(), want.clone());
            self.tracker.spawn(async move { budget::unused(&shared, &want, left).await });
        }
    }

    /// Runs the claim in a task of its own: a database future that is dropped half-way can leave its connection inside a
    /// transaction (sqlx 0.9.0).
    async fn ask(&self, wants: Vec<Want>) -> Result<Vec<Claim>, StoreError> {
        let shared = self.shared.clone();
        self.tracker
            .spawn(async move { shared.claim_compared(&wants).await })
            .await
            .map_err(|error| StoreError::Unsupported(format!("the claim's task ended badly: {error}")))?
    }

    /// Free slots, downstream by downstream, beginning with the next one in turn.
    fn wants(&mut self) -> Vec<Want> {
        let mut left = free(&self.shared.slots);
        let terms = self.shared.terms.lock().expect("no holder of this lock panics");
        let names: Vec<&Arc<str>> = self.shared.served.keys().collect();
        let Some(first) = self.turn.checked_rem(names.len()) else { return Vec::new() };
        self.turn = self.turn.wrapping_add(1);
        let mut wants = Vec::with_capacity(names.len());
        // A fair share each first, so that one downstream's backlog cannot take every slot; the rest goes round again.
        let share = (left / u32::try_from(names.len()).unwrap_or(u32::MAX)).max(1);
        for round in [share, u32::MAX] {
            for name in names.iter().cycle().skip(first).take(names.len()) {
                let serving = &self.shared.served[*name];
                let asked = wants.iter_mut().find(|want: &&mut Want| want.downstream == **name);
                let already = asked.as_ref().map_or(0, |want| want.slots);
                let slots = free(&serving.slots).saturating_sub(already).min(left).min(round);
                left -= slots;
                match asked {
                    Some(want) => want.slots += slots,
                    None if slots > 0 => wants.push(Want {
                        downstream: (*name).clone(),
                        slots,
                        lease: serving.served.lease,
                        terms: terms.get(*name).cloned().unwrap_or_default(),
                        origin: serving.served.origin.clone(),
                        trial: false,
                    }),
                    None => {}
                }
            }
        }
        wants
    }

    fn hand_out(&self, holding: Holding) {
        let serving: &Serving = &self.shared.served[&holding.claim.effect.downstream];
        let permits = [take(&self.shared.slots), take(&serving.slots)];
        let slot = Slot { permits: Some(permits), shared: self.shared.clone() };
        let shared = self.shared.clone();
        let outcomes = self.outcomes.clone();
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            if let Some(settling) = attempt::run(&shared, holding, &stop).await {
                // The slot is kept until the settler has room, so that a slow database slows the claims instead of filling
                // the memory; where an unrecorded answer would be in doubt, until it is recorded.
                let (settling, slot) = settling.keep_slot(slot);
                // The settler outlives every attempt: it ends when the last sender is gone.
                let sent = outcomes.send(settling).await;
                debug_assert!(sent.is_ok(), "the settler ended before its senders");
                drop(slot);
            }
        });
    }

    async fn pause_after(&mut self, round: &Round) {
        if round.claimed > 0 {
            self.looks = 0;
        }
        let drained = self.stop.drain.clone();
        let shared = self.shared.clone();
        let room = async {
            match round.wake_in {
                Some(wait) => tokio::time::sleep(wait.max(WAKE_MIN)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = room => {}
            () = wait_for_slots(&shared, &round.hungry) => self.looks = 0,
            () = self.look_again() => {}
            () = drained.cancelled() => {}
        }
    }

    /// Nothing more is known to be due: short looks first, then the poll. A hint ends either.
    async fn look_again(&mut self) {
        let next_due = Timestamp::from_micros(self.shared.next_due.swap(i64::MAX, Ordering::Relaxed));
        let until_due = next_due.since(self.shared.clock.wall()).max(Duration::from_millis(1));
        let pause = FOLLOW_UPS.get(self.looks).copied().unwrap_or(self.shared.config.poll);
        let at_most = pause.min(until_due);
        self.looks += 1;
        let asked = self.shared.clock.boot();
        self.shared.store.work_arrived(at_most).await;
        if self.shared.clock.boot() - asked < at_most {
            self.looks = 0;
        }
        if next_due != Timestamp::MAX && next_due > self.shared.clock.wall() {
            self.shared.look_again_at(next_due);
        }
    }
}

/// Until a hungry downstream has free slots: half of them, or some and little time passed. Never, when none is hungry.
async fn wait_for_slots(shared: &Shared, hungry: &[Arc<str>]) {
    let any = |part: u32| {
        free(&shared.slots) > 0
            && hungry.iter().any(|name| {
                let serving = &shared.served[name];
                free(&serving.slots) >= (serving.served.concurrency / part).max(1)
            })
    };
    if hungry.is_empty() {
        std::future::pending::<()>().await;
    }
    while !any(u32::MAX) {
        shared.slot_freed.notified().await;
    }
    let half = async {
        while !any(2) {
            shared.slot_freed.notified().await;
        }
    };
    // Some are free: that is enough when half of them do not follow at once.
    tokio::time::timeout(FILL_WAIT, half).await.unwrap_or(());
}

fn free(slots: &tokio::sync::Semaphore) -> u32 {
    u32::try_from(slots.available_permits()).unwrap_or(u32::MAX)
}

fn take(slots: &Arc<tokio::sync::Semaphore>) -> OwnedSemaphorePermit {
    slots
        .clone()
        .try_acquire_owned()
        .expect("only the intake takes slots, and it claimed no more than were free")
}
