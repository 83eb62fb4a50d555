//! Budgets that the fleet shares: rates, pauses and breakers, asked before a claim, told after a call.
//!
//! The copy in [`super::hold`] is refreshed once a second, and at once by what this worker's own calls show. The claim asks the
//! database itself: what was claimed was held by nothing then. Settles have no part in any of it, and a downstream without a
//! rate whose origin answers costs nothing but the look once a second.

use std::{sync::Arc, time::Duration};

use tokio::task::{JoinError, JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Outages, Shared,
    attempt::Holding,
    held_by::{Hold, Pass, Whose},
};
use crate::{
    clock::Timestamp,
    downstream::Served,
    error::StoreError,
    schedule::unit,
    store::{DueProbe, ProbeWant, Want},
};

/// How old the copy may become.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// What was found is told with what is found in this time after it: a dead origin fails many calls at once.
const TELL_LINGER: Duration = Duration::from_millis(5);
/// A call that a rate granted must begin within this of its claim's answer, or a stalled worker's would fall into somebody else's
/// second. Not of its grant: a claim that is slower than this would spend the rate and send nothing, for ever. So in any time
/// the fleet begins at most a burst, and what the rate gives in that time, this, and as long as the slowest claim took; no call
/// begins after its lease.
pub(super) const GRANT_VALID: Duration = Duration::from_secs(1);
/// A trial whose worker does not report is over this long after its call must have ended.
const TRIAL_MARGIN: Duration = Duration::from_secs(2);
/// When somebody else tries, look again after this.
const TRIAL_LOOK: Duration = Duration::from_millis(500);
/// The claims that budgets leave room for.
#[derive(Default)]
pub(super) struct Admitted {
    pub(super) wants: Vec<Want>,
    /// When there may be room for what was left out.
    pub(super) wake_in: Option<Duration>,
}

impl Admitted {
    fn wake(&mut self, wait: Duration) {
        self.wake_in = Some(self.wake_in.map_or(wait, |other| other.min(wait)));
    }
}

/// Leaves out what is held, and asks the fleet's budgets for the rest.
pub(super) async fn admit(shared: &Shared, wants: Vec<Want>) -> Result<Admitted, StoreError> {
    let mut admitted = Admitted::default();
    for mut want in wants {
        let served = &shared.served[&want.downstream].served;
        let now = shared.clock.boot();
        match shared.budgets.hold(&want.downstream, served.origin.as_deref(), now) {
            Hold::Free => {}
            Hold::Paused => continue,
            Hold::Until(at) => {
                admitted.wake(now.until(at));
                continue;
            }
            Hold::Trial => {
                let origin = served.origin.as_deref().unwrap_or_default();
                if !shared.store.begin_trial(origin, trial_length(served)).await? {
                    admitted.wake(TRIAL_LOOK);
                    continue;
                }
                (want.slots, want.trial) = (1, true);
            }
        }
        if let Some(rate) = served.rate {
            let granted = shared.store.take(&want.downstream, rate, want.slots).await?;
            if granted.calls == 0 {
                if want.trial {
                    shared.budgets.end_trial(served.origin.as_ref());
                }
                granted.more_in.into_iter().for_each(|wait| admitted.wake(wait));
                continue;
            }
            want.slots = want.slots.min(granted.calls);
        }
        admitted.wants.push(want);
    }
    Ok(admitted)
}

/// Claims the probes that no budget holds, as far as this worker knows; the claim asks the database itself.
pub(super) async fn claim_probes(
    shared: &Shared,
    wants: Vec<ProbeWant>,
) -> Result<Vec<(DueProbe, Pass)>, StoreError> {
    let mut admitted = Vec::with_capacity(wants.len());
    for mut want in wants {
        match shared.budgets.hold(&want.downstream, want.origin.as_deref(), shared.clock.boot()) {
            Hold::Free => {}
            Hold::Paused | Hold::Until(_) => continue,
            Hold::Trial => {
                let origin = want.origin.as_deref().unwrap_or_default();
                if !shared.store.begin_trial(origin, want.lease + TRIAL_MARGIN).await? {
                    continue;
                }
                (want.slots, want.trial) = (1, true);
            }
        }
        admitted.push(want);
    }
    if admitted.is_empty() {
        return Ok(Vec::new());
    }
    let claimed = shared.store.claim_probes(&admitted).await;
    let due = claimed.as_deref().unwrap_or_default();
    for want in admitted.iter().filter(|want| want.trial) {
        if !due.iter().any(|probe| probe.effect.downstream == want.downstream) {
            shared.budgets.end_trial(want.origin.as_ref());
        }
    }
    let with_pass = |probe: DueProbe| {
        let want = admitted.iter().find(|want| want.downstream == probe.effect.downstream);
        let pass =
            want.map(|want| Pass { trial: want.trial, origin: want.origin.clone(), ..Pass::default() });
        (probe, pass.unwrap_or_default())
    };
    Ok(claimed?.into_iter().map(with_pass).collect())
}

/// Whether a claim for `wants` needs more than the claim.
pub(super) fn concern(shared: &Shared, wants: &[Want]) -> bool {
    shared.budgets.troubled()
        || wants.iter().any(|want| shared.served[&want.downstream].served.rate.is_some())
}

/// Gives back what a claim under `want` did not use.
pub(super) async fn unused(shared: &Shared, want: &Want, calls: u32) {
    if want.trial {
        shared.budgets.end_trial(shared.served[&want.downstream].served.origin.as_ref());
    }
    give_back(shared, &want.downstream, calls).await;
}

async fn give_back(shared: &Shared, downstream: &Arc<str>, calls: u32) {
    let Some(rate) = shared.served[downstream].served.rate else { return };
    if let Err(error) = shared.store.give_back(downstream, rate, calls).await {
        tracing::debug!(%error, "calls that were not made were not given back: the rate makes up for them");
    }
}

/// Finds out where a claimed effect goes, and whether it may try an origin that the claim could not ask about.
pub(super) async fn pass(shared: &Shared, served: &Served, holding: &mut Holding) {
    let Some(origin) = served.downstream.origin(&holding.claim.effect) else { return };
    holding.pass.whose = Whose::Effect;
    let now = shared.clock.boot();
    if shared.budgets.hold(&served.name, Some(&origin), now) == Hold::Trial {
        holding.pass.trial =
            shared.store.begin_trial(&origin, trial_length(served)).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "no trial was begun");
                false
            });
    }
    holding.pass.origin = Some(origin);
}

/// Until when what holds this call will hold it; on the database's clock. What an effect's own origin holds is put off by a part
/// of a trial more, each by another: a backlog that is due at one time would be claimed as a whole to find out that one may try.
pub(super) fn held_until(shared: &Shared, holding: &Holding, now: Timestamp) -> Option<Timestamp> {
    let boot = shared.clock.boot();
    let downstream = &holding.claim.effect.downstream;
    match shared.budgets.hold(downstream, holding.pass.origin.as_deref(), boot) {
        Hold::Free | Hold::Paused => None,
        Hold::Until(at) => Some(now.plus(boot.until(at)).plus(apart(shared, holding))),
        Hold::Trial => Some(now.plus(TRIAL_LOOK).plus(apart(shared, holding))),
    }
}

fn apart(shared: &Shared, holding: &Holding) -> Duration {
    let effect = &holding.claim.effect;
    match holding.pass.whose {
        // It keeps its place: nothing of it is claimed meanwhile.
        Whose::Downstream => Duration::ZERO,
        Whose::Effect => {
            let length = trial_length(&shared.served[&effect.downstream].served);
            length.mul_f64(unit(effect.id, holding.claim.number))
        }
    }
}

fn trial_length(served: &Served) -> Duration {
    let timeouts = served.operations.values().map(|terms| terms.timeout);
    timeouts.fold(served.terms.timeout, Duration::max) + TRIAL_MARGIN
}

/// Pauses a downstream that refused our credentials, before the outcome is written: once that is due again, nobody sends it.
pub(super) async fn pause_refused(shared: &Shared, downstream: &Arc<str>, reason: &str) {
    shared.budgets.refuse(downstream, reason);
    if let Err(error) = write_refusal(shared, downstream, reason).await {
        tracing::warn!(%downstream, %error, "the pause is not written yet; this worker keeps to it and tries again");
        shared.budgets.tell_again();
    }
}

async fn write_refusal(shared: &Shared, downstream: &Arc<str>, reason: &str) -> Result<(), StoreError> {
    if shared.store.pause_refused(downstream, &shared.config.worker, reason).await? {
        tracing::error!(%downstream, reason,
            "the downstream refuses us and is paused: mend its credentials or configuration, then resume it with `aftercommit downstreams resume`");
    }
    shared.budgets.refusal_written(downstream);
    Ok(())
}

/// The task that tells the fleet and asks it.
pub(super) struct Sharing {
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Sharing {
    /// Asks once before anything is claimed; an outage is waited out elsewhere.
    pub(super) async fn start(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        refresh(shared).await.or_else(|error| if error.is_outage() { Ok(()) } else { Err(error) })?;
        let end = CancellationToken::new();
        let task = TaskTracker::new().spawn(run(shared.clone(), end.clone()));
        Ok(Self { end, task })
    }

    /// Tells what is left to tell.
    pub(super) async fn stop(self) -> Result<(), JoinError> {
        self.end.cancel();
        self.task.await
    }
}

/// Tells and asks until `end`; then tells once more.
async fn run(shared: Arc<Shared>, end: CancellationToken) {
    let mut outages = Outages::default();
    let mut refreshed = shared.clock.boot();
    loop {
        let left = REFRESH_EVERY.saturating_sub(shared.clock.boot() - refreshed);
        tokio::select! {
            () = shared.budgets.found() => tokio::time::sleep(TELL_LINGER).await,
            () = tokio::time::sleep(left) => {}
            () = end.cancelled() => break,
        }
        let mut done = tell(&shared).await;
        if shared.clock.boot() - refreshed >= REFRESH_EVERY {
            refreshed = shared.clock.boot();
            done = done.and(refresh(&shared).await);
        }
        match done {
            Ok(()) => outages.over(),
            Err(error) => {
                outages.report("sharing budgets", &error);
                tokio::select! {
                    () = outages.wait() => {}
                    () = end.cancelled() => break,
                }
            }
        }
    }
    if let Err(error) = tell(&shared).await {
        tracing::debug!(%error, "the last calls' news were not told: others find out by themselves");
    }
}

/// Takes the database's word for what holds calls back.
async fn refresh(shared: &Shared) -> Result<(), StoreError> {
    let names: Vec<Arc<str>> = shared.served.keys().cloned().collect();
    let version = shared.budgets.version();
    let holds = shared.store.holds(&names).await?;
    shared.budgets.replace(holds, version, shared.clock.boot());
    Ok(())
}

async fn tell(shared: &Shared) -> Result<(), StoreError> {
    for (downstream, calls) in shared.budgets.take_unmade() {
        give_back(shared, &downstream, calls).await;
    }
    for (downstream, reason) in shared.budgets.refusals() {
        write_refusal(shared, &downstream, &reason).await?;
    }
    let reports = shared.budgets.take_reports();
    if reports.is_empty() {
        return Ok(());
    }
    let told = match shared.store.report(&reports).await {
        Ok(told) => told,
        Err(error) => {
            shared.budgets.put_back(reports);
            return Err(error);
        }
    };
    let now = shared.store.now().await?;
    shared.budgets.learn(told, now, shared.clock.boot());
    Ok(())
}
