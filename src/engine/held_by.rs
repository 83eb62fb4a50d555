//! What holds calls back, as this worker knows it: a copy of what the fleet shares, and what is still to be told.
//!
//! The copy is asked right before every first byte, so it costs no round trip. Where no origin is in trouble and no downstream
//! is paused, all this is one atomic load. It does no I/O: [`super::budget`] does.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    clock::{Boot, Timestamp},
    decision::{self, Decision, History},
    downstream::Terms,
    outcome::{Contact, Finding, Outcome, Phase, Probed, Sighting},
    store::{Holds, Next, Origin, Report, Sign},
};

/// Older reports are dropped while the database is away: the newest say how an origin is.
const REPORTS_MAX: usize = 1000;

/// What holds a call back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nothing.
    Free,
    /// Its downstream is paused, until somebody resumes it.
    Paused,
    /// Its origin, until then.
    Until(Boot),
    /// Its origin's breaker: one call may find out whether it is still needed.
    Trial,
}

/// Under what an effect was claimed.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    /// It is the one call that an open breaker lets through.
    pub(super) trial: bool,
    /// It must have begun by then.
    pub(super) send_by: Option<Boot>,
    /// Where it goes.
    pub(super) origin: Option<Arc<str>>,
    /// Whose origin that is.
    pub(super) whose: Whose,
}

/// Whether the claim could ask for the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Whose {
    /// The downstream's own: while it is held nothing of it is claimed.
    #[default]
    Downstream,
    /// One that the effect names: known only once it is claimed.
    Effect,
}

/// This worker's copy.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    local: Mutex<Local>,
    /// Anything is paused or in trouble; else nobody needs the lock.
    troubled: AtomicBool,
    /// There is something to tell.
    found: Notify,
}

#[derive(Debug, Default)]
struct Local {
    paused: HashSet<Arc<str>>,
    origins: HashMap<Arc<str>, Trouble>,
    /// Not told yet.
    reports: Vec<Report>,
    /// Downstreams to be paused, with the reason.
    refusals: BTreeMap<Arc<str>, String>,
    /// How many of them were written: a copy that was read before one was is too old.
    refusals_written: u64,
    /// Calls that rates granted and nobody made, by downstream.
    unmade: BTreeMap<Arc<str>, u32>,
}

/// An origin in trouble, on this machine's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// It failed since it last answered: an answer is news.
    failing: bool,
    paused_until: Option<Boot>,
    open_until: Option<Boot>,
}

impl Budgets {
    /// What holds a call to `origin` of `downstream` back at `now`.
    pub(super) fn hold(&self, downstream: &str, origin: Option<&str>, now: Boot) -> Hold {
        if !self.troubled() {
            return Hold::Free;
        }
        let local = self.lock();
        if local.paused.contains(downstream) {
            return Hold::Paused;
        }
        let Some(trouble) = origin.and_then(|origin| local.origins.get(origin)) else { return Hold::Free };
        let paused = trouble.paused_until.filter(|until| *until > now);
        match (paused, trouble.open_until) {
            (Some(paused), open) => Hold::Until(open.map_or(paused, |open| open.max(paused))),
            (None, Some(open)) if open > now => Hold::Until(open),
            (None, Some(_)) => Hold::Trial,
            (None, None) => Hold::Free,
        }
    }

    /// Takes note of what a call under `pass` showed.
    pub(super) fn observe(&self, pass: &Pass, outcome: &Outcome, max_pause: Duration, now: Boot) {
        self.note(pass, (sign(outcome), patience(outcome, max_pause)), &outcome.reason, now);
    }

    /// Takes note of what a probe under `pass` showed of the origin that it asked.
    pub(super) fn observe_probe(&self, pass: &Pass, probed: &Probed, max_pause: Duration, now: Boot) {
        let sign = match probed.contact {
            Contact::None => Sign::Nothing,
            Contact::Answered | Contact::Refused => Sign::Answered,
            Contact::Failed => Sign::Failed,
        };
        let pause = match probed.sighting {
            Sighting::Unknown => capped(probed.retry_after, max_pause),
            Sighting::Applied | Sighting::Unproven | Sighting::Absent | Sighting::Impossible => None,
        };
        self.note(pass, (sign, pause), &probed.reason, now);
    }

    fn note(&self, pass: &Pass, (sign, pause): (Sign, Option<Duration>), reason: &str, now: Boot) {
        let Some(origin) = &pass.origin else { return };
        let sign = match sign {
            Sign::Failed if pass.trial => Sign::TrialFailed,
            Sign::Unreached if pass.trial => Sign::TrialUnreached,
            Sign::Nothing if pass.trial => Sign::TrialEnded,
            Sign::Answered
            | Sign::Failed
            | Sign::Unreached
            | Sign::TrialFailed
            | Sign::TrialUnreached
            | Sign::TrialEnded
            | Sign::Nothing => sign,
        };
        let untroubled = !self.troubled();
        match (sign, pause) {
            (Sign::Nothing, None) => return,
            (Sign::Answered, None) if untroubled => return,
            _ => {}
        }
        let mut local = self.lock();
        let failing = local.origins.get(origin).is_some_and(|trouble| trouble.failing);
        if (sign, pause) == (Sign::Answered, None) && !failing {
            return;
        }
        local.origins.entry(Arc::clone(origin)).or_default().learn(sign, pause, now);
        let reason = if sign == Sign::Answered && pause.is_none() { "" } else { reason };
        local.reports.push(Report { origin: Arc::clone(origin), sign, pause, reason: reason.to_owned() });
        self.mark(local);
        self.found.notify_one();
    }

    /// The trial under which nothing was called is over.
    pub(super) fn end_trial(&self, origin: Option<&Arc<str>>) {
        let Some(origin) = origin.cloned() else { return };
        let report = Report { origin, sign: Sign::TrialEnded, pause: None, reason: String::new() };
        self.lock().reports.push(report);
        self.found.notify_one();
    }

    /// A call of `downstream` that its rate granted was not made.
    pub(super) fn spare(&self, downstream: &Arc<str>) {
        *self.lock().unmade.entry(Arc::clone(downstream)).or_default() += 1;
        self.found.notify_one();
    }

    /// Takes the calls that were granted and not made.
    pub(super) fn take_unmade(&self) -> BTreeMap<Arc<str>, u32> {
        std::mem::take(&mut self.lock().unmade)
    }

    /// Nothing more of this downstream: its credentials were refused.
    pub(super) fn refuse(&self, downstream: &Arc<str>, reason: &str) {
        let mut local = self.lock();
        local.paused.insert(Arc::clone(downstream));
        local.refusals.insert(Arc::clone(downstream), reason.to_owned());
        self.mark(local);
    }

    /// Pauses that are not written yet.
    pub(super) fn refusals(&self) -> Vec<(Arc<str>, String)> {
        self.lock().refusals.clone().into_iter().collect()
    }

    /// The pause is in the database.
    pub(super) fn refusal_written(&self, downstream: &str) {
        let mut local = self.lock();
        local.refusals.remove(downstream);
        local.refusals_written += 1;
    }

    /// There is something to tell.
    pub(super) async fn found(&self) {
        self.found.notified().await;
    }

    /// Tells again what could not be told.
    pub(super) fn tell_again(&self) {
        self.found.notify_one();
    }

    /// What is to be told; whoever takes it puts it back if it could not be.
    pub(super) fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.lock().reports)
    }

    pub(super) fn put_back(&self, reports: Vec<Report>) {
        let mut local = self.lock();
        let newer = std::mem::replace(&mut local.reports, reports);
        local.reports.extend(newer);
        let too_many = local.reports.len().saturating_sub(REPORTS_MAX);
        local.reports.drain(..too_many);
    }

    /// What the fleet knows of these origins, now that it was told.
    pub(super) fn learn(&self, told: Vec<(Arc<str>, Origin)>, at: Timestamp, now: Boot) {
        let mut local = self.lock();
        for (name, origin) in told {
            local.enter(name, Trouble::of(&origin, at, now), now);
        }
        self.mark(local);
    }

    /// Goes up with every pause that was written.
    pub(super) fn version(&self) -> u64 {
        self.lock().refusals_written
    }

    /// Takes over what holds calls back, as it was read at `version`.
    pub(super) fn replace(&self, holds: Holds, version: u64, now: Boot) {
        let mut local = self.lock();
        if local.refusals_written != version {
            return;
        }
        local.paused = holds.paused.into_iter().chain(local.refusals.keys().cloned()).collect();
        local.origins.clear();
        for (name, origin) in holds.origins {
            local.enter(name, Trouble::of(&origin, holds.now, now), now);
        }
        // What is still to be told holds all the same.
        let Local { origins, reports, .. } = &mut *local;
        for report in reports {
            origins.entry(Arc::clone(&report.origin)).or_default().learn(report.sign, report.pause, now);
        }
        self.mark(local);
    }

    pub(super) fn troubled(&self) -> bool {
        self.troubled.load(Ordering::SeqCst)
    }

    fn mark(&self, local: MutexGuard<'_, Local>) {
        let troubled = !local.paused.is_empty() || !local.origins.is_empty();
        self.troubled.store(troubled, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Local> {
        self.local.lock().expect("no holder of this lock panics")
    }
}

impl Local {
    /// An origin that recovered is none in trouble.
    fn enter(&mut self, name: Arc<str>, trouble: Trouble, now: Boot) {
        let paused = trouble.paused_until.is_some_and(|until| until > now);
        if paused || trouble.failing {
            self.origins.insert(name, trouble);
        } else {
            self.origins.remove(&name);
        }
    }
}

impl Trouble {
    fn of(origin: &Origin, at: Timestamp, now: Boot) -> Self {
        let on_ours = |until: Option<Timestamp>| until.map(|until| now.plus(until.since(at)));
        Self {
            failing: origin.failures > 0 || origin.open_until.is_some(),
            paused_until: on_ours(origin.paused_until),
            open_until: on_ours(origin.open_until),
        }
    }

    fn learn(&mut self, sign: Sign, pause: Option<Duration>, now: Boot) {
        match sign {
            Sign::Answered => (self.failing, self.open_until) = (false, None),
            Sign::Failed | Sign::Unreached | Sign::TrialFailed | Sign::TrialUnreached => self.failing = true,
            Sign::TrialEnded | Sign::Nothing => {}
        }
        self.paused_until = self.paused_until.max(pause.map(|pause| now.plus(pause)));
    }
}

/// What an outcome says about the health of the origin that it came from.
fn sign(outcome: &Outcome) -> Sign {
    match (outcome.finding, outcome.phase) {
        (_, Phase::Render | Phase::Lease) | (Finding::LeaseEnded, _) => Sign::Nothing,
        (Finding::NotApplied, Phase::Connect) => Sign::Unreached,
        // A connection that breaks before what counts was sent is no answer.
        (Finding::Unknown, _) | (Finding::NotApplied, Phase::Send) => Sign::Failed,
        (
            Finding::Applied
            | Finding::AlreadyDone
            | Finding::Rejected(_)
            | Finding::KeyReused
            | Finding::StoredError
            | Finding::NotApplied
            | Finding::InProgress,
            Phase::Connect | Phase::Send | Phase::Answer | Phase::Done,
        ) => Sign::Answered,
    }
}

/// An origin is left alone for as long as it asks for, but not for ever.
fn capped(asked: Option<Duration>, max_pause: Duration) -> Option<Duration> {
    asked.map(|asked| asked.min(max_pause)).filter(|pause| !pause.is_zero())
}

/// How long the origin asked to be left alone; what it said of one key, or of one request, is no business of the others.
fn patience(outcome: &Outcome, max_pause: Duration) -> Option<Duration> {
    match outcome.finding {
        Finding::NotApplied | Finding::Unknown => capped(outcome.retry_after, max_pause),
        Finding::Applied
        | Finding::AlreadyDone
        | Finding::Rejected(_)
        | Finding::KeyReused
        | Finding::StoredError
        | Finding::InProgress
        | Finding::LeaseEnded => None,
    }
}

/// What becomes of a claimed effect that is held until then (`None`: until somebody says so). It keeps its place where no
/// claim takes it before; else it is due when the hold ends. A delay that would pass its safe time parks it at once.
pub(super) fn held(
    terms: &Terms,
    history: &History,
    (now, until): (Timestamp, Option<Timestamp>),
    whose: Whose,
) -> Next {
    let Some(until) = until else { return Next::GiveBack };
    if history.uncertain
        && let Err(why) = decision::may_send_uncertain(&terms.contract, terms.timeout, history, until)
    {
        return Next::Decided(decision::park(&terms.contract, history, now, why));
    }
    match whose {
        Whose::Downstream => Next::GiveBack,
        Whose::Effect => Next::Decided(Decision::RetryAt(until)),
    }
}

#[cfg(test)]
mod tests;
