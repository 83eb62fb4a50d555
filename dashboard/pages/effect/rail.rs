//! The way of an effect through its states, as far as it went and what may come next. Pure.

use aftercommit::{
    clock::Timestamp,
    follow::unknown_since,
    outcome::Verdict,
    state::State,
    store::{LoggedAttempt, Status},
    verb::is_said_not_applied,
};

use crate::pages::parts::{Badge, Moment};

/// A step of the way.
pub(super) struct Step {
    pub(super) badge: Badge,
    pub(super) says: String,
    pub(super) at: Option<Moment>,
    pub(super) here: bool,
    /// It has not come yet.
    pub(super) next: bool,
}

/// The steps, oldest first.
pub(super) fn of(effect: &Status, attempts: &[LoggedAttempt], now: Timestamp) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut passed = |state, says: &str, at: Option<Timestamp>| {
        let at = at.map(|at| Moment::short(at, now));
        steps.push(Step { badge: Badge::of(state), says: says.to_owned(), at, here: false, next: false });
    };
    let waited = effect.state == State::Scheduled;
    if !waited && effect.state != State::Waiting {
        passed(State::Ready, "written", Some(effect.created_at));
    }
    if let Some(first) = attempts.first() {
        let tries = match attempts.len() {
            1 => "one attempt".to_owned(),
            n => format!("{n} attempts"),
        };
        passed(State::InFlight, &tries, Some(first.started_at));
    }
    let doubted = attempts.iter().any(|attempt| attempt.outcome == Verdict::Unknown && !attempt.late);
    if doubted && effect.state.is_terminal() {
        let since = attempts.iter().find(|attempt| attempt.outcome == Verdict::Unknown);
        passed(State::InDoubt, "its outcome was unknown", since.and_then(|attempt| attempt.ended_at));
    }
    let (says, at) = present(effect, attempts);
    let at = at.map(|at| Moment::short(at, now));
    // A step that was only passed through and is where it stands is told once.
    if steps.last().is_some_and(|last| last.badge == Badge::of(effect.state)) {
        steps.pop();
    }
    steps.push(Step { badge: Badge::of(effect.state), says: says.to_owned(), at, here: true, next: false });
    for (state, says) in possible(effect.state) {
        steps.push(Step {
            badge: Badge::of(*state),
            says: (*says).to_owned(),
            at: None,
            here: false,
            next: true,
        });
    }
    steps
}

fn present(effect: &Status, attempts: &[LoggedAttempt]) -> (&'static str, Option<Timestamp>) {
    match effect.state {
        State::Waiting => ("for its prerequisites", Some(effect.created_at)),
        State::Scheduled => ("due", effect.due_at),
        State::Ready => ("due", effect.due_at),
        State::Retrying => ("due again", effect.due_at),
        State::InFlight => ("lease ends", effect.lease_until),
        State::InDoubt => ("unknown since", unknown_since(effect, attempts)),
        State::Succeeded => ("applied", effect.finished_at),
        State::Failed if effect.last_error.as_deref().is_some_and(is_said_not_applied) => {
            ("not applied, a person said", effect.finished_at)
        }
        State::Failed => ("never applied", effect.finished_at),
        State::Cancelled => ("called off", effect.finished_at),
        State::Expired => ("not begun in time", effect.finished_at),
    }
}

/// What most likely comes next, and by whom.
const fn possible(state: State) -> &'static [(State, &'static str)] {
    match state {
        State::InDoubt => &[(State::Succeeded, "if it was applied"), (State::Failed, "if it was not")],
        State::Waiting | State::Scheduled => &[(State::Ready, "then")],
        State::Ready | State::Retrying => &[(State::InFlight, "next")],
        State::InFlight => &[(State::Succeeded, "if it is applied")],
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => &[],
    }
}
