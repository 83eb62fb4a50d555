//! Defends what a person may do: state × verb, and every reason to refuse. A verb that is refused writes nothing.

use std::time::Duration;

use super::*;
use crate::{
    contract::{Dedupe, OnUnknown, Window},
    effect::EffectId,
};

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn verbs() -> [Verb; 9] {
    [
        Verb::Retry,
        Verb::Resend,
        Verb::Cancel,
        Verb::ResolveApplied { response: None },
        Verb::ResolveNotApplied,
        Verb::Redact,
        Verb::Reissue { resolve: None },
        Verb::Reissue { resolve: Some(Resolved::Applied) },
        Verb::Reissue { resolve: Some(Resolved::NotApplied) },
    ]
}

#[test]
fn a_verb_is_read_back_from_its_word() {
    for verb in verbs() {
        assert_eq!(Verb::of_word(verb.as_str()), Some(verb));
    }
    assert_eq!(Verb::of_word("pay"), None);
}

fn somebody() -> Actor {
    Actor {
        who: "mika".to_owned(),
        reason: Some("the vendor's page shows it".to_owned()),
        confirmed: true,
        ..Actor::default()
    }
}

/// A resend that was confirmed, where nothing expires.
const RESENT: Change = Change::OneResend { resend: Resend::Confirmed, sweep_at: None };

fn subject(state: State, uncertain: bool) -> Subject {
    let history = History {
        id: EffectId::new(17),
        uncertain,
        sent_before: uncertain,
        attempts: 1,
        tries: 1,
        started_at: NOW.minus(HOUR),
        first_sent_at: uncertain.then(|| NOW.minus(HOUR)),
        window_at_claim: None,
        expires_at: None,
        resend: None,
        cancel_requested: false,
        applied_late: false,
        travels_until: None,
    };
    Subject {
        state,
        token: 5,
        history: (!state.is_terminal()).then_some(history),
        contract: Some(Contract::none(OnUnknown::Hold)),
        timeout: Duration::from_secs(20),
        key_used_before: false,
        quiet_at: None,
        pinned: None,
        superseded: false,
        refusal_stored: false,
        payload_dropped: false,
        log_dropped: false,
    }
}

/// Every subject that can be, without special circumstances.
fn subjects() -> impl Iterator<Item = Subject> {
    let possible = |state: State, uncertain: bool| match state {
        State::Waiting | State::Scheduled => !uncertain,
        State::InDoubt => uncertain,
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => !uncertain,
        State::Ready | State::Retrying | State::InFlight => true,
    };
    State::ALL
        .into_iter()
        .flat_map(|state| [(state, false), (state, true)])
        .filter(move |(state, uncertain)| possible(*state, *uncertain))
        .map(|(state, uncertain)| subject(state, uncertain))
}

pub(crate) fn subject_is_uncertain(subject: &Subject) -> bool {
    subject.history.as_ref().is_some_and(|history| history.uncertain)
}

/// Every change that any verb orders of any subject.
pub(crate) fn everything_judged() -> Vec<(Subject, Verb, Change)> {
    subjects()
        .flat_map(|subject| verbs().into_iter().map(move |verb| (subject.clone(), verb)))
        .filter_map(|(subject, verb)| {
            let change = judge(&verb, &somebody(), None, &subject, NOW).ok()?;
            Some((subject, verb, change))
        })
        .collect()
}

/// The matrix as the design words it; `None` is a refusal because of the state.
fn ordered(verb: &Verb, state: State, uncertain: bool) -> Option<Change> {
    match (verb, state) {
        (Verb::Retry, State::Failed) => Some(Change::NewHistory),
        (Verb::Retry, State::Scheduled | State::Retrying) => Some(Change::DueNow),
        (Verb::Resend, State::InDoubt) => Some(RESENT),
        (Verb::Cancel, State::InFlight) => Some(Change::RequestCancel),
        (Verb::Cancel, state) if state.is_pending() && uncertain => {
            Some(Change::Park("cancelled while its outcome was unknown".to_owned()))
        }
        (Verb::Cancel, state) if state.is_pending() => Some(Change::End(State::Cancelled)),
        (Verb::ResolveApplied { .. }, State::InDoubt) => Some(Change::End(State::Succeeded)),
        (Verb::ResolveNotApplied, State::InDoubt) => Some(Change::End(State::Failed)),
        (Verb::Redact, state) if state.is_terminal() => Some(Change::Redact),
        (Verb::Reissue { resolve: None }, state) if state.is_terminal() => Some(Change::Reissue(None)),
        (Verb::Reissue { resolve: Some(resolved) }, State::InDoubt) => {
            Some(Change::Reissue(Some(resolved.state())))
        }
        _ => None,
    }
}

#[test]
fn each_verb_takes_the_states_that_the_design_names_and_no_other() {
    for subject in subjects() {
        for verb in verbs() {
            let uncertain = subject_is_uncertain(&subject);
            let judged = judge(&verb, &somebody(), None, &subject, NOW);
            match (ordered(&verb, subject.state, uncertain), &judged) {
                (Some(want), Ok(change)) => assert_eq!(*change, want, "{verb:?} of {}", subject.state),
                (None, Err(Refusal::State { verb: word, state, hint, .. })) => {
                    assert_eq!((*word, *state), (verb.as_str(), subject.state));
                    assert!(!hint.is_empty(), "a refusal says what to do instead");
                }
                _ => panic!("{verb:?} of {} (uncertain: {uncertain}) gave {judged:?}", subject.state),
            }
        }
    }
}

#[test]
fn an_action_on_what_has_changed_since_is_stale_whatever_it_is() {
    for subject in subjects() {
        for verb in verbs() {
            let current = Seen { state: subject.state, token: subject.token };
            let judged = judge(&verb, &somebody(), None, &subject, NOW);
            assert_eq!(judge(&verb, &somebody(), Some(current), &subject, NOW), judged);
            let older = Seen { token: subject.token - 1, ..current };
            let elsewhere = State::ALL.into_iter().find(|state| *state != subject.state).expect("ten states");
            for seen in [older, Seen { state: elsewhere, ..current }] {
                let refused = judge(&verb, &somebody(), Some(seen), &subject, NOW);
                assert_eq!(refused, Err(Refusal::Stale { state: subject.state, token: subject.token }));
            }
        }
    }
}

#[test]
fn who_changes_an_outcome_says_why() {
    let in_doubt = subject(State::InDoubt, true);
    let reissue = Verb::Reissue { resolve: Some(Resolved::NotApplied) };
    for verb in [Verb::ResolveApplied { response: None }, Verb::ResolveNotApplied, reissue] {
        for reason in [None, Some(String::new()), Some(" \n".to_owned())] {
            let actor = Actor { who: "mika".to_owned(), reason, ..Actor::default() };
            let refused = judge(&verb, &actor, None, &in_doubt, NOW);
            assert_eq!(refused, Err(Refusal::NeedsReason { verb: verb.as_str() }));
        }
    }
    let reasonless = Actor { confirmed: true, ..Actor::default() };
    assert_eq!(judge(&Verb::Resend, &reasonless, None, &in_doubt, NOW), Ok(RESENT));
}

#[test]
fn nobody_decides_while_the_last_request_may_still_be_travelling() {
    let reissue = Verb::Reissue { resolve: Some(Resolved::Applied) };
    for verb in [Verb::Resend, Verb::ResolveApplied { response: None }, Verb::ResolveNotApplied, reissue] {
        let until = |quiet_at| Subject { quiet_at: Some(quiet_at), ..subject(State::InDoubt, true) };
        let later = NOW.plus(Duration::from_micros(1));
        let refused = judge(&verb, &somebody(), None, &until(later), NOW);
        assert_eq!(refused, Err(Refusal::StillTravelling { until: later }));
        assert!(judge(&verb, &somebody(), None, &until(NOW), NOW).is_ok());
    }
}

#[test]
fn a_resend_needs_the_request_that_was_sent() {
    let with = |sent: &[u8], today: Option<&[u8]>| {
        let pinned = Some(Pinned { sent: sent.to_vec(), today: today.map(<[u8]>::to_vec) });
        let subject = Subject { pinned, ..subject(State::InDoubt, true) };
        judge(&Verb::Resend, &somebody(), None, &subject, NOW)
    };
    assert_eq!(with(b"a", Some(b"a")), Ok(RESENT));
    assert_eq!(with(b"a", Some(b"b")), Err(Refusal::RequestChanged));
    assert_eq!(with(b"a", None), Err(Refusal::RequestChanged), "the operation is gone");
}

#[test]
fn a_resend_is_for_what_is_past_its_window_but_not_for_what_has_expired() {
    let expiring = |at| {
        let mut subject = subject(State::InDoubt, true);
        subject.history.as_mut().expect("it has not ended").expires_at = Some(at);
        judge(&Verb::Resend, &somebody(), None, &subject, NOW)
    };
    let later = NOW.plus(Duration::from_micros(1));
    let swept = Change::OneResend { resend: Resend::Confirmed, sweep_at: Some(later) };
    assert_eq!(expiring(later), Ok(swept), "the sweep looks at it when it expires");
    assert_eq!(expiring(NOW), Err(Refusal::Expired { at: NOW }));
}

/// Of a downstream with this contract, first sent an hour ago.
fn resent(contract: Option<Contract>, confirmed: bool) -> Result<Change, Refusal> {
    let mut subject = Subject { contract, ..subject(State::InDoubt, true) };
    let history = subject.history.as_mut().expect("it has not ended");
    history.window_at_claim = subject.contract.as_ref().and_then(|contract| contract.window);
    judge(&Verb::Resend, &Actor { confirmed, ..somebody() }, None, &subject, NOW)
}

#[test]
fn a_resend_that_nobody_confirmed_is_refused_where_it_may_be_applied_twice() {
    let lookup = Contract { dedupe: Dedupe::Lookup, ..Contract::none(OnUnknown::Hold) };
    let at_its_end = Contract { margin: HOUR * 23, ..Contract::key(Some(Window::For(HOUR * 24))) };
    for contract in [
        None,
        Some(Contract::none(OnUnknown::Hold)),
        Some(Contract::none(OnUnknown::Retry)),
        Some(lookup),
        Some(Contract::key(None)),
        Some(at_its_end),
    ] {
        assert_eq!(resent(contract.clone(), false), Err(Refusal::Unconfirmed), "{contract:?}");
        assert_eq!(resent(contract.clone(), true), Ok(RESENT), "{contract:?}");
    }
    let forever = Contract::key(Some(Window::Forever));
    let mut used =
        Subject { contract: Some(forever.clone()), key_used_before: true, ..subject(State::InDoubt, true) };
    used.history.as_mut().expect("it has not ended").window_at_claim = forever.window;
    let unconfirmed = Actor { confirmed: false, ..somebody() };
    assert_eq!(judge(&Verb::Resend, &unconfirmed, None, &used, NOW), Err(Refusal::Unconfirmed));
}

#[test]
fn a_resend_that_nobody_confirmed_is_looked_at_when_it_could_not_be_sent_in_time_any_more() {
    let unconfirmed = |sweep_at| Ok(Change::OneResend { resend: Resend::Unconfirmed, sweep_at });
    let day = Contract::key(Some(Window::For(HOUR * 24)));
    let begin_by = NOW.plus(HOUR * 23).minus(day.margin).minus(Duration::from_secs(20));
    assert_eq!(resent(Some(day.clone()), false), unconfirmed(Some(begin_by)));
    assert_eq!(resent(Some(day), true), Ok(RESENT), "whoever confirmed it said that it may be later");
    assert_eq!(resent(Some(Contract::key(Some(Window::Forever))), false), unconfirmed(None));
}

#[test]
fn what_was_superseded_or_refused_for_good_is_not_sent_again() {
    let failed = || subject(State::Failed, false);
    let retry = |subject: Subject| judge(&Verb::Retry, &somebody(), None, &subject, NOW);
    assert_eq!(retry(Subject { superseded: true, ..failed() }), Err(Refusal::Superseded));
    assert_eq!(retry(Subject { refusal_stored: true, ..failed() }), Err(Refusal::RefusalStored));
    assert_eq!(retry(Subject { payload_dropped: true, ..failed() }), Err(Refusal::PayloadDropped));
    assert_eq!(retry(Subject { log_dropped: true, ..failed() }), Err(Refusal::LogDropped));
    let superseded = Subject { superseded: true, ..subject(State::InDoubt, true) };
    assert_eq!(judge(&Verb::Resend, &somebody(), None, &superseded, NOW), Err(Refusal::Superseded));
}

#[test]
fn a_cancel_of_an_uncertain_effect_that_can_be_asked_about_waits_until_its_request_cannot_travel() {
    let contract = Contract { can_probe: true, ..Contract::none(OnUnknown::Hold) };
    let why = "cancelled while its outcome was unknown".to_owned();
    for (quiet_at, at) in [(None, NOW), (Some(NOW.minus(HOUR)), NOW), (Some(NOW.plus(HOUR)), NOW.plus(HOUR))]
    {
        let subject =
            Subject { contract: Some(contract.clone()), quiet_at, ..subject(State::Retrying, true) };
        let change = judge(&Verb::Cancel, &somebody(), None, &subject, NOW);
        assert_eq!(change, Ok(Change::Probe(at, why.clone())));
    }
}

#[test]
fn what_was_superseded_or_has_no_payload_any_more_is_not_reissued() {
    let judged = |subject: Subject| {
        let resolve = (subject.state == State::InDoubt).then_some(Resolved::NotApplied);
        judge(&Verb::Reissue { resolve }, &somebody(), None, &subject, NOW)
    };
    for state in [State::Succeeded, State::Failed, State::Cancelled, State::Expired, State::InDoubt] {
        let of = || subject(state, state == State::InDoubt);
        assert!(judged(of()).is_ok(), "{state}");
        assert_eq!(judged(Subject { superseded: true, ..of() }), Err(Refusal::Superseded), "{state}");
        assert_eq!(
            judged(Subject { payload_dropped: true, ..of() }),
            Err(Refusal::PayloadDropped),
            "{state}"
        );
        // A new key is what these call for; and what the downstream saw under the old one says nothing of it.
        assert!(judged(Subject { refusal_stored: true, log_dropped: true, ..of() }).is_ok(), "{state}");
    }
}

#[test]
fn where_the_key_was_used_before_nobody_is_led_to_a_resend() {
    let told = |key_used_before| {
        let subject = Subject { key_used_before, ..subject(State::InDoubt, true) };
        judge(&Verb::Retry, &somebody(), None, &subject, NOW).unwrap_err().to_string()
    };
    assert!(told(true).contains("reissue it with a new key") && !told(true).contains("resend"));
    assert!(told(false).contains("resend or resolve it"));
}
