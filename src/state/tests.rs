//! Defends the table of transitions: an effect that has ended stays as it is unless a person's audited verb says otherwise,
//! and everything that is ever decided is a legal transition.

use super::*;
use crate::{clock::Timestamp, decision::Decision, verb::Change};

/// The table as the design draws it, a row per state: which states may follow.
fn drawn(from: State) -> &'static [State] {
    use State::{
        Cancelled, Expired, Failed, InDoubt, InFlight, Ready, Retrying, Scheduled, Succeeded, Waiting,
    };
    match from {
        Waiting => &[Scheduled, Ready, Cancelled, Expired],
        Scheduled => &[Ready, Cancelled, Expired],
        // Succeeded: a late *applied* of an earlier attempt.
        Ready => &[InFlight, InDoubt, Succeeded, Cancelled, Expired],
        Retrying => &[Ready, InFlight, InDoubt, Succeeded, Cancelled, Expired],
        InFlight => &[Succeeded, Failed, InDoubt, Retrying, Ready, Cancelled, Expired],
        InDoubt => &[Succeeded, Failed, Retrying, Ready],
        Failed => &[Waiting, Ready],
        Cancelled => &[Waiting],
        Succeeded | Expired => &[],
    }
}

#[test]
fn every_pair_of_states_is_legal_exactly_where_the_design_draws_an_arrow() {
    for from in State::ALL {
        for to in State::ALL {
            let legal = from.transition_to(to).is_some();
            assert_eq!(legal, drawn(from).contains(&to), "{from} → {to}");
        }
    }
}

#[test]
fn no_transition_is_listed_twice_or_leads_nowhere() {
    for (index, (from, to, _)) in TRANSITIONS.iter().enumerate() {
        assert_ne!(from, to);
        let again = TRANSITIONS[index + 1..].iter().any(|(f, t, _)| (f, t) == (from, to));
        assert!(!again, "{from} → {to} stands twice");
    }
}

#[test]
fn what_has_ended_changes_only_by_a_person() {
    for (from, to, cause) in TRANSITIONS {
        if from.is_terminal() {
            assert_eq!(*cause, Cause::Person, "{from} → {to}");
            assert!(to.is_pending(), "{from} → {to}: a new life begins in the queue");
        }
    }
}

#[test]
fn doubt_is_never_called_off_and_never_expires() {
    for to in [State::Cancelled, State::Expired, State::Waiting, State::Scheduled, State::InFlight] {
        assert_eq!(State::InDoubt.transition_to(to), None);
    }
}

#[test]
fn only_a_claim_puts_an_effect_in_flight() {
    for (from, to, cause) in TRANSITIONS {
        assert_eq!(*to == State::InFlight, *cause == Cause::Claim, "{from} → {to}");
    }
}

/// The state that a decision leads to.
fn after(decision: &Decision) -> State {
    match decision {
        Decision::Succeed => State::Succeeded,
        Decision::Fail(_) => State::Failed,
        Decision::RetryAt(_) => State::Retrying,
        Decision::ProbeAt(..) | Decision::Park(_) => State::InDoubt,
        Decision::Cancel => State::Cancelled,
        Decision::Expire => State::Expired,
    }
}

#[test]
fn every_decision_about_an_effect_in_flight_is_a_legal_settle() {
    let at = Timestamp::from_micros(0);
    let decisions = [
        Decision::Succeed,
        Decision::Fail(String::new()),
        Decision::RetryAt(at),
        Decision::ProbeAt(at, String::new()),
        Decision::Park(String::new()),
        Decision::Cancel,
        Decision::Expire,
    ];
    for decision in decisions {
        let cause = State::InFlight.transition_to(after(&decision));
        assert_eq!(cause, Some(Cause::Settle), "{decision:?}");
    }
    // What `before_sending` says of effects that nobody holds.
    for from in [State::Ready, State::Retrying] {
        for decision in
            [Decision::ProbeAt(at, String::new()), Decision::Park(String::new()), Decision::Expire]
        {
            assert_eq!(from.transition_to(after(&decision)), Some(Cause::Sweep), "{from}, {decision:?}");
        }
    }
}

#[test]
fn every_change_that_a_person_may_order_is_a_legal_transition() {
    use crate::verb::tests::{everything_judged, subject_is_uncertain};
    for (subject, verb, change) in everything_judged() {
        let to = match change {
            Change::NewHistory | Change::OneResend { .. } => State::Ready,
            // The state follows from the due time; asking to cancel changes it only at the settle.
            Change::DueNow => State::Ready,
            Change::RequestCancel | Change::Redact | Change::Reissue(None) => continue,
            Change::End(state) | Change::Reissue(Some(state)) => state,
            Change::Park(_) | Change::Probe(..) => State::InDoubt,
        };
        assert!(subject.state.transition_to(to).is_some(), "{verb:?}: {} → {to}", subject.state);
        assert!(
            to != State::Cancelled || !subject_is_uncertain(&subject),
            "{verb:?} cancels what may have been applied"
        );
    }
}

#[test]
fn words_are_unique_and_read_back() {
    for state in State::ALL {
        assert_eq!(state.as_str().parse::<State>(), Ok(state));
        assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        let ends = State::ALL.iter().filter(|other| other.as_str() == state.as_str()).count();
        assert_eq!(ends, 1);
        let phases =
            [state.is_pending(), state.is_terminal(), state == State::InFlight, state == State::InDoubt];
        assert_eq!(phases.iter().filter(|phase| **phase).count(), 1, "{state} is in one phase of life");
    }
    let error = "done".parse::<State>().unwrap_err().to_string();
    assert!(State::ALL.iter().all(|state| error.contains(state.as_str())), "{error}");
}
