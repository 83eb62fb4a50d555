//! The table of answers, default and by rule (the shipped profiles' are in `workers/profiles/tests`): by status *and* machine code and markers, never by status alone.

use std::time::Duration;

use crate::{
    config::{Answers, Log, Section, Written, parse_toml},
    http::{
        classify::{Answer, Asked, classify},
        tests::answer,
    },
    profiles,
};
use aftercommit::{
    clock::Timestamp,
    outcome::{About, Finding, Outcome},
};

const THIS: Finding = Finding::Rejected(About::ThisAttempt);

fn profile(name: &str, refinement: &str) -> Answers {
    let table = parse_toml("test", refinement).unwrap();
    let log = Log::default();
    let refined = Written::read(&Section::root(&table, &log)).unwrap();
    refined.over(&profiles::get(name).unwrap().contract().unwrap()).answers().unwrap()
}

fn outcome(answers: &Answers, answer: Answer) -> Outcome {
    classify(answers, answer, Asked::Chosen, "api.example.com:443", Timestamp::from_micros(0))
}

#[test]
fn without_a_contract_the_default_table_holds() {
    let answers = profile("none", "");
    for (status, expected) in [
        (200, Finding::Applied),
        (202, Finding::Applied),
        (204, Finding::Applied),
        (303, Finding::Unknown),
        (301, THIS),
        (304, THIS),
        (307, THIS),
        (400, THIS),
        (402, THIS),
        (404, THIS),
        (409, THIS),
        (410, THIS),
        (422, THIS),
        (401, Finding::NotApplied),
        (403, Finding::NotApplied),
        (407, Finding::NotApplied),
        (421, Finding::NotApplied),
        (425, Finding::NotApplied),
        (429, Finding::NotApplied),
        (408, Finding::Unknown),
        (500, Finding::Unknown),
        (501, Finding::Unknown),
        (502, Finding::Unknown),
        (503, Finding::Unknown),
        (504, Finding::Unknown),
        (599, Finding::Unknown),
        (101, Finding::Unknown),
        (999, Finding::Unknown),
    ] {
        let outcome = outcome(&answers, answer(status, &[("Retry-After", "5")], "{}"));
        assert_eq!(outcome.finding, expected, "{status}");
        assert_eq!(outcome.retry_after.is_some(), expected != Finding::Applied, "{status}");
        assert_eq!(outcome.reason.is_empty(), expected == Finding::Applied, "{status}");
    }
}

#[test]
fn a_code_beats_a_status_and_a_status_beats_a_class() {
    let answers = profile(
        "none",
        "dedupe = \"key\"\nwindow = \"24h\"\ncode_at = [\"/code\"]\nin_progress = [\"4xx\"]\nrejected = [\"409\"]\n\
         already_done = [\"409:done\", \"400:704\"]\nnot_applied = [\"503:busy\"]",
    );
    for (status, body, expected) in [
        (409, r#"{"code":"done"}"#, Finding::AlreadyDone),
        (409, r#"{"code":"else"}"#, THIS),
        (409, "not json", THIS),
        (410, "{}", Finding::InProgress),
        (400, r#"{"code":704}"#, Finding::AlreadyDone),
        (503, r#"{"code":"busy"}"#, Finding::NotApplied),
        (503, r#"{"code":["busy"]}"#, Finding::Unknown),
    ] {
        assert_eq!(outcome(&answers, answer(status, &[], body)).finding, expected, "{status} {body}");
    }
}

#[test]
fn a_success_that_the_body_does_not_show_is_unknown() {
    for (predicate, body, expected) in [
        ("{ pointer = \"/ok\", equals = true }", r#"{"ok":true}"#, Finding::Applied),
        ("{ pointer = \"/ok\", equals = true }", r#"{"ok":false}"#, Finding::Unknown),
        ("{ pointer = \"/ok\", equals = true }", "", Finding::Unknown),
        ("{ pointer = \"/id\", differs = \"\" }", r#"{"id":"x"}"#, Finding::Applied),
        ("{ pointer = \"/id\", differs = \"\" }", r#"{"id":""}"#, Finding::Unknown),
        ("{ pointer = \"/id\", differs = \"\" }", "{}", Finding::Unknown),
        ("{ pointer = \"/id\", exists = true }", r#"{"id":0}"#, Finding::Applied),
    ] {
        let answers = profile("none", &format!("success = {predicate}"));
        assert_eq!(outcome(&answers, answer(200, &[], body)).finding, expected, "{predicate} {body}");
    }
    // Slack says no in a 200: a rule with a code says so.
    let answers = profile(
        "none",
        "code_at = [\"/error\"]\nrejected = [\"200:channel_not_found\"]\nsuccess = { pointer = \"/ok\", equals = true }",
    );
    assert_eq!(
        outcome(&answers, answer(200, &[], r#"{"ok":false,"error":"channel_not_found"}"#)).finding,
        THIS
    );
}

#[test]
fn what_the_open_question_of_adyen_advises_tells_a_refused_payment_from_a_paid_one() {
    let advised = profile(
        "adyen",
        "code_at = [\"/errorCode\", \"/resultCode\"]\nrejected = [\"200:Refused\", \"200:Cancelled\"]\n\
         stored = [\"200:Refused\", \"200:Cancelled\"]\nunknown = [\"200:Error\"]",
    );
    for (code, expected) in [
        ("Authorised", Finding::Applied),
        ("Refused", Finding::Rejected(About::StoredKind)),
        ("Cancelled", Finding::Rejected(About::StoredKind)),
        // Without the word that it is transient it is stored: asking again would only repeat it.
        ("Error", Finding::StoredError),
    ] {
        let body = format!("{{\"resultCode\":\"{code}\"}}");
        assert_eq!(outcome(&advised, answer(200, &[], &body)).finding, expected, "{code}");
    }
}

#[test]
fn an_answer_that_is_listed_as_unknown_is_never_taken_for_a_refusal() {
    let answers =
        profile("none", "unknown = [\"424\", \"200:later\"]\ncode_at = [\"/code\"]\nrejected = [\"424:no\"]");
    for (status, body, expected) in [
        (424, "{}", Finding::Unknown),
        (424, r#"{"code":"no"}"#, THIS),
        (200, r#"{"code":"later"}"#, Finding::Unknown),
        (200, "{}", Finding::Applied),
    ] {
        assert_eq!(outcome(&answers, answer(status, &[], body)).finding, expected, "{status} {body}");
    }
}

#[test]
fn success_and_nothing_done_in_one_answer_is_unknown() {
    let answers = profile("none", "retry_directive = \"transient-error=true\"\nalready_done = [\"409\"]");
    for status in [200, 409] {
        for (said, contradicts) in [("true", true), ("false", false)] {
            let outcome = outcome(&answers, answer(status, &[("transient-error", said)], "{}"));
            assert_eq!(
                outcome.finding == Finding::Unknown,
                contradicts,
                "{status} {said}: {}",
                outcome.reason
            );
        }
    }
}

#[test]
fn a_stranger_that_refuses_credentials_which_it_never_got_refuses_one_effect() {
    let plain = profile("none", "");
    for status in [401, 403, 407] {
        let of_a_stranger = answer(status, &[], "{}");
        let refused =
            classify(&plain, of_a_stranger, Asked::Named, "x.example:443", Timestamp::from_micros(0));
        assert_eq!((refused.finding, refused.refuses_us), (THIS, false), "{}", refused.reason);
    }
    let knows = profile("none", "not_applied = [\"403\"]");
    let of_a_stranger = answer(403, &[], "{}");
    let refused = classify(&knows, of_a_stranger, Asked::Named, "x.example:443", Timestamp::from_micros(0));
    assert_eq!(refused.finding, Finding::NotApplied, "a rule of the contract knows better");
}

#[test]
fn a_deep_or_cut_body_has_no_code_and_breaks_nothing() {
    let answers = profile("stripe-v1", "");
    let deep = "[".repeat(100_000);
    assert_eq!(outcome(&answers, answer(409, &[], &deep)).finding, THIS);
    let mut cut = answer(409, &[], r#"{"error":{"code":"idempotency_key_in_use"}}"#);
    cut.truncated = true;
    assert_eq!(outcome(&answers, cut).finding, THIS);
}

#[test]
fn a_reason_names_the_code_and_nothing_else_of_the_body() {
    let answers = profile("stripe-v1", "");
    let said =
        outcome(&answers, answer(402, &[], r#"{"error":{"code":"card_declined","type":"x y sk_live"}}"#));
    assert!(
        said.reason.starts_with("HTTP 402 from api.example.com:443 (card_declined): "),
        "{}",
        said.reason
    );
    assert!(!said.reason.contains("sk_live"), "{}", said.reason);
    let later = outcome(&answers, answer(429, &[("Retry-After", "120")], ""));
    assert_eq!(later.retry_after, Some(Duration::from_secs(120)));
}

#[test]
fn refused_credentials_are_told_apart_and_a_rule_of_the_contract_knows_better() {
    let plain = profile("none", "");
    for status in [401, 403, 407] {
        let refused = outcome(&plain, answer(status, &[], "{}"));
        assert!(refused.refuses_us && refused.finding == Finding::NotApplied, "{status}");
    }
    for status in [200, 303, 400, 402, 404, 409, 421, 425, 429, 500, 503] {
        assert!(!outcome(&plain, answer(status, &[], "{}")).refuses_us, "{status}");
    }
    let knows = profile("none", "code_at = [\"/code\"]\nrejected = [\"403:not_yours\"]");
    let single = outcome(&knows, answer(403, &[], "{\"code\":\"not_yours\"}"));
    assert_eq!((single.finding, single.refuses_us), (THIS, false));
    assert!(outcome(&knows, answer(403, &[], "{\"code\":\"bad_key\"}")).refuses_us);
}
