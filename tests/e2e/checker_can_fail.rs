//! The checker is worth nothing unless it notices: every kind of breach is forged once, and must be named.

use std::collections::BTreeMap;

use super::{
    checker::{Attempt, EffectRow, Evidence, Kill, charge_key},
    ledger::{Call, Fate},
    servers::Charge,
};

const SECOND: i64 = 1_000_000;

fn call(seq: u64, order: &str, at: i64) -> Call {
    Call {
        seq,
        at,
        method: "POST".into(),
        path: "/v1/charges".into(),
        key: charge_key(order),
        body_sha256: format!("sha of {order}"),
        headers: BTreeMap::new(),
        fate: Some((Fate::Answered, at)),
    }
}

fn attempt(effect_id: i64, number: i64, started: i64, outcome: &str) -> Attempt {
    Attempt {
        effect_id,
        attempt: number,
        worker: None,
        started,
        ended: Some(started + SECOND),
        phase: if outcome == "unknown" { "lease" } else { "done" }.into(),
        outcome: outcome.into(),
    }
}

fn effect(id: i64, order: &str, state: &str) -> EffectRow {
    EffectRow {
        id,
        key: charge_key(order),
        state: state.into(),
        attempts: 1,
        last_outcome: None,
        last_error: None,
    }
}

fn charge(order: &str, id: &str) -> Charge {
    Charge { id: id.into(), order: order.into(), paid: true }
}

/// Two orders, one of them with a lost first answer; one transaction rolled back. Nothing is wrong.
fn honest() -> Evidence {
    Evidence {
        orders: vec!["a".into(), "b".into()],
        rolled_back: vec!["r".into()],
        effects: vec![effect(1, "a", "succeeded"), effect(2, "b", "succeeded")],
        attempts: vec![
            attempt(1, 1, 0, "applied"),
            attempt(2, 1, 0, "unknown"),
            attempt(2, 2, 5 * SECOND, "applied"),
        ],
        calls: vec![call(1, "a", 10), call(2, "b", 20), call(3, "b", 5 * SECOND + 10)],
        charges: vec![charge("a", "ch_1"), charge("b", "ch_2")],
        kills: vec![],
    }
}

/// The same at a downstream that cannot deduplicate: the lost answer is held.
fn honest_and_held() -> Evidence {
    let mut evidence = honest();
    evidence.effects[1].state = "in_doubt".into();
    evidence.attempts.pop();
    evidence.calls.pop();
    evidence.calls[1].fate = Some((Fate::AnswerDropped, 20));
    evidence
}

#[track_caller]
fn noticed(wrong: &[String], word: &str) {
    assert!(wrong.iter().any(|line| line.contains(word)), "{word:?} is missing in {wrong:#?}");
}

#[test]
fn an_honest_run_is_not_blamed() {
    assert_eq!(honest().charged_once(), Vec::<String>::new());
    assert_eq!(honest_and_held().called_at_most_once(), Vec::<String>::new());
}

#[test]
fn losses_duplicates_and_phantoms_are_noticed() {
    let mut evidence = honest();
    evidence.charges.push(charge("b", "ch_3"));
    noticed(&evidence.charged_once(), "twice: order b");

    let mut evidence = honest();
    evidence.charges.pop();
    noticed(&evidence.charged_once(), "lost: order b");

    let mut evidence = honest();
    evidence.effects.pop();
    noticed(&evidence.charged_once(), "has its order and no effect");

    let mut evidence = honest();
    evidence.charges.push(charge("r", "ch_3"));
    evidence.calls.push(call(4, "r", 30));
    evidence.effects.push(effect(3, "r", "succeeded"));
    noticed(&evidence.charged_once(), "charged and never committed");
    noticed(&evidence.charged_once(), "which was never committed");
    noticed(&evidence.charged_once(), "effect without an order");

    let mut evidence = honest();
    evidence.effects[0].state = "retrying".into();
    noticed(&evidence.charged_once(), "not done");
}

#[test]
fn a_changed_request_is_noticed() {
    for change in [
        |call: &mut Call| call.body_sha256 = "another".into(),
        |call: &mut Call| call.path = "/v2/charges".into(),
        |call: &mut Call| drop(call.headers.insert("x".into(), "y".into())),
    ] {
        let mut evidence = honest();
        change(&mut evidence.calls[2]);
        noticed(&evidence.charged_once(), "changed: ");
    }
}

#[test]
fn a_log_that_leaves_out_or_invents_is_noticed() {
    let mut evidence = honest();
    evidence.attempts.remove(1);
    noticed(&evidence.charged_once(), "unlogged");

    let mut evidence = honest();
    evidence.calls.remove(0);
    noticed(&evidence.charged_once(), "invented: order-a/charge");

    let mut evidence = honest();
    evidence.attempts.push(attempt(9, 1, 0, "unknown"));
    noticed(&evidence.charged_once(), "attempts of no effect");
}

#[test]
fn lies_about_what_was_applied_are_noticed() {
    for state in ["failed", "cancelled", "expired"] {
        let mut evidence = honest_and_held();
        evidence.effects[1].state = state.into();
        noticed(&evidence.called_at_most_once(), "a lie: it was charged");
    }
    let mut evidence = honest_and_held();
    evidence.charges.remove(0);
    noticed(&evidence.called_at_most_once(), "a lie: it was never charged");
}

#[test]
fn a_second_call_and_a_needless_doubt_are_noticed() {
    let mut evidence = honest_and_held();
    evidence.calls.push(call(3, "b", 30));
    noticed(&evidence.called_at_most_once(), "called 2 times");

    let mut evidence = honest_and_held();
    evidence.calls[1].fate = Some((Fate::Answered, 20));
    noticed(&evidence.called_at_most_once(), "needless doubt");

    // A worker was killed right after the answer; only when it was this one could nobody know.
    evidence.kills.push(Kill { at: SECOND, pid: 77 });
    noticed(&evidence.called_at_most_once(), "needless doubt");
    evidence.attempts[1].worker = Some("host-77-abc".into());
    assert_eq!(evidence.called_at_most_once(), Vec::<String>::new());
}
