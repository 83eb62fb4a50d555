//! What a person is told before they act: in the contract's words, and the truth.

use std::time::Duration;

use aftercommit::{
    contract::{Contract, Dedupe, OnUnknown, Window},
    outcome::Verdict,
};

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn now() -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000)
}

fn effect(state: State) -> Status {
    Status {
        id: EffectId::new(17),
        downstream: "payments".to_owned(),
        operation: Some("charge".to_owned()),
        idempotency_key: "order-17/charge".to_owned(),
        state,
        held_by: None,
        attempts: 1,
        due_at: None,
        first_sent_at: Some(now().minus(HOUR * 31)),
        safe_until: None,
        lease_until: None,
        worker: None,
        last_outcome: Some(Verdict::Unknown),
        last_error: None,
        response_status: None,
        response: None,
        metadata: None,
        refusal_stored: false,
        payload_dropped: false,
        log_dropped: false,
        superseded_by: None,
        created_at: now().minus(HOUR * 32),
        finished_at: None,
        token: 5,
        quiet_at: None,
        uncertain: true,
    }
}

/// Sent so long ago, at a downstream with this contract.
fn in_doubt(contract: &Contract, ago: Duration) -> Status {
    let first_sent_at = now().minus(ago);
    let safe_until = contract.safe_until(first_sent_at, contract.window);
    Status { first_sent_at: Some(first_sent_at), safe_until, ..effect(State::InDoubt) }
}

fn resend(contract: Option<&Contract>, effect: &Status) -> Consequence {
    consequence(effect, &Verb::Resend, contract, now())
}

#[test]
fn a_resend_past_the_window_names_what_may_happen_and_wants_words() {
    let contract = Contract::key(Some(Window::For(HOUR * 24)));
    let told = resend(Some(&contract), &in_doubt(&contract, HOUR * 31));
    let says =
        "payments keeps keys for 24 h; this one was first sent 31 h ago: a resend may apply charge twice.";
    assert!(told.sentence.starts_with(says), "{}", told.sentence);
    assert_eq!((told.risky, told.type_this.as_deref()), (true, Some("resend 17")));
}

#[test]
fn a_resend_within_the_window_says_until_when_it_is_safe_and_wants_no_words() {
    let contract = Contract::key(Some(Window::For(HOUR * 24)));
    let told = resend(Some(&contract), &in_doubt(&contract, HOUR));
    assert!(told.sentence.contains("recognises this one until 2027-") && !told.risky, "{}", told.sentence);
    assert_eq!(told.type_this, None);
    let forever = Contract::key(Some(Window::Forever));
    let told = resend(Some(&forever), &in_doubt(&forever, HOUR * 9_000));
    assert!(told.sentence.contains("for ever") && !told.risky, "{}", told.sentence);
    // The margin is taken off: within it nobody promises anything.
    assert!(resend(Some(&contract), &in_doubt(&contract, HOUR * 24 - contract.margin / 2)).risky);
}

#[test]
fn a_downstream_that_cannot_deduplicate_is_always_a_risk() {
    let lookup = Contract { dedupe: Dedupe::Lookup, can_probe: true, ..Contract::none(OnUnknown::Hold) };
    for (contract, says) in [
        (Some(Contract::none(OnUnknown::Hold)), "cannot tell a repeated request"),
        (Some(Contract::none(OnUnknown::Retry)), "cannot tell a repeated request"),
        (Some(lookup), "can only be asked"),
        (Some(Contract::key(None)), "does not say how long it keeps keys"),
        (None, "nobody knows here what payments promises"),
    ] {
        let subject = contract.clone().unwrap_or_else(|| Contract::none(OnUnknown::Hold));
        let told = resend(contract.as_ref(), &in_doubt(&subject, Duration::from_secs(60)));
        assert!(told.risky && told.sentence.contains(says), "{}", told.sentence);
        assert!(told.sentence.contains("may apply charge twice"), "{}", told.sentence);
    }
}

#[test]
fn every_reissue_wants_words_and_says_what_it_adds() {
    for (state, says, risky) in [
        (State::Succeeded, "will be applied twice", true),
        (State::InDoubt, "if the old one was applied, it will be applied twice", true),
        (State::Failed, "It was not applied", false),
    ] {
        let told = consequence(&effect(state), &Verb::Reissue { resolve: None }, None, now());
        assert!(told.sentence.contains(says), "{}", told.sentence);
        assert_eq!((told.risky, told.type_this.as_deref()), (risky, Some("reissue 17")));
    }
}

#[test]
fn a_reissue_of_what_a_person_says_was_applied_is_told_as_a_second_application() {
    let told = |found| {
        consequence(&effect(State::InDoubt), &Verb::Reissue { resolve: Some(found) }, None, now()).sentence
    };
    let applied = told(Resolved::Applied);
    assert!(applied.contains("You say that it was applied") && !applied.contains("if "), "{applied}");
    assert!(applied.ends_with("it will be applied twice."), "{applied}");
    let not_applied = told(Resolved::NotApplied);
    assert!(
        not_applied.contains("if the old one was applied after all, it will be applied twice"),
        "{not_applied}"
    );
}

#[test]
fn no_resend_is_said_to_go_out_at_once_and_a_safe_one_ends_with_what_makes_it_safe() {
    let contract = Contract::key(Some(Window::For(HOUR * 24)));
    let safe = resend(Some(&contract), &in_doubt(&contract, HOUR)).sentence;
    assert!(safe.ends_with("if that is not by then, nothing is sent and it is in doubt again."), "{safe}");
    let risky = resend(Some(&contract), &in_doubt(&contract, HOUR * 31)).sentence;
    assert!(risky.ends_with("as soon as payments can be called, however late that is."), "{risky}");
    let forever = Contract::key(Some(Window::Forever));
    for told in [safe, risky, resend(Some(&forever), &in_doubt(&forever, HOUR)).sentence] {
        assert!(!told.contains(", now") && told.contains("as soon as payments can be called"), "{told}");
    }
}

#[test]
fn what_others_wrote_cannot_move_a_cursor() {
    let odd = Status { downstream: "pay\u{202e}\n".to_owned(), ..effect(State::InDoubt) };
    let told = resend(None, &odd).sentence;
    assert!(!told.contains('\u{202e}') && !told.contains('\n'), "{told}");
}

#[test]
fn a_confirmation_is_compared_word_for_word_and_needs_a_reason() {
    let risky = consequence(&effect(State::InDoubt), &Verb::Resend, None, now());
    let typed = |words: Option<&str>, reason: Option<&str>| {
        confirmed(&risky, &words.map(str::to_owned), &reason.map(str::to_owned))
            .map_err(|problem| problem.status())
    };
    assert_eq!(typed(Some("resend 17"), Some("asked them")), Ok(()));
    for (words, reason) in [
        (None, Some("x")),
        (Some("resend 18"), Some("x")),
        (Some("Resend 17"), Some("x")),
        (Some("resend 17"), None),
    ] {
        assert_eq!(typed(words, reason), Err(StatusCode::UNPROCESSABLE_ENTITY), "{words:?} {reason:?}");
    }
    let harmless = consequence(&effect(State::Failed), &Verb::Retry, None, now());
    assert_eq!(confirmed(&harmless, &None, &None), Ok(()));
}

#[test]
fn a_retry_of_what_a_person_said_was_not_applied_names_what_follows_if_they_were_wrong() {
    let said = Status {
        last_error: Some("resolved as not applied by ann: not in their list".to_owned()),
        ..effect(State::Failed)
    };
    for (dedupe, words) in [
        (Dedupe::None, "it will be applied twice: payments cannot tell"),
        (Dedupe::Lookup, "it will be applied twice: payments cannot tell"),
        (Dedupe::Key, "it is applied twice once payments has forgotten the key"),
    ] {
        let contract = Contract { dedupe, ..Contract::none(OnUnknown::Hold) };
        let told = consequence(&said, &Verb::Retry, Some(&contract), now());
        assert!(told.risky && told.sentence.contains(words), "{dedupe:?}: {told:?}");
        assert!(!told.sentence.contains("never applied"), "{told:?}");
    }
    let answered = Status { last_error: Some("402: declined".to_owned()), ..effect(State::Failed) };
    let told = consequence(&answered, &Verb::Retry, None, now());
    assert!(!told.risky && told.sentence.starts_with("It was never applied."), "{told:?}");
}

#[test]
fn every_verb_is_offered_or_refused_with_its_reason() {
    let of = |effect: &Status| choices(effect, None, None, now());
    let offered = |effect: &Status| -> Vec<&'static str> {
        of(effect).iter().filter(|choice| choice.outlook.is_ok()).map(|choice| choice.verb.as_str()).collect()
    };
    assert_eq!(
        offered(&effect(State::InDoubt)),
        ["resend", "resolve applied", "resolve not-applied", "reissue not-applied"]
    );
    assert_eq!(offered(&effect(State::Failed)), ["retry", "reissue", "redact"]);
    assert_eq!(offered(&effect(State::Succeeded)), ["reissue", "redact"]);
    assert_eq!(offered(&effect(State::InFlight)), ["cancel"]);
    let travelling = Status { quiet_at: Some(now().plus(HOUR)), ..effect(State::InDoubt) };
    assert_eq!(offered(&travelling), [""; 0]);
    for choice in of(&travelling) {
        let why = choice.outlook.expect_err("nothing is offered").to_string();
        assert!(why.len() > 20, "{why}");
    }
    let stored = Status { refusal_stored: true, ..effect(State::Failed) };
    assert_eq!(offered(&stored), ["reissue", "redact"]);
}
