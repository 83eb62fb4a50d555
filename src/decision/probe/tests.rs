//! Defends the two looks: an effect that may have been applied is sent again only once it was seen absent twice, both times
//! long enough after its last request; and what shows nothing ends with a person, not in a loop.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    contract::{Dedupe, OnUnknown},
    decision::{decide, tests::history, uncertain_after},
    outcome::{Finding, Outcome, Phase},
};

const MINUTE: Duration = Duration::from_secs(60);
const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn contract() -> Contract {
    Contract {
        dedupe: Dedupe::Lookup,
        can_probe: true,
        absent_after: 10 * MINUTE,
        ..Contract::none(OnUnknown::Hold)
    }
}

/// An effect whose request travelled until an hour ago.
fn doubt() -> Doubt {
    Doubt {
        history: History { uncertain: true, ..history() },
        made: 2,
        absent_at: None,
        travels_until: NOW.minus(60 * MINUTE),
        error_stored: false,
        why: "no answer in time".to_owned(),
    }
}

fn look(doubt: &Doubt, sighting: Sighting) -> Looked {
    let probed = Probed::new(sighting, "what was seen");
    decide_probe(&Policy::default(), &contract(), doubt, &probed, (NOW, NOW.plus(Duration::from_secs(1))))
}

fn seen_absent(doubt: Doubt) -> Doubt {
    Doubt { absent_at: Some(NOW.minus(MINUTE)), ..doubt }
}

#[test]
fn found_as_applied_succeeds_whatever_was_seen_before() {
    for doubt in [doubt(), seen_absent(doubt()), Doubt { error_stored: true, ..doubt() }] {
        assert_eq!(look(&doubt, Sighting::Applied).decision, Decision::Succeed);
    }
}

#[test]
fn one_absence_is_remembered_and_asked_for_again() {
    let Looked { decision, absent_at } = look(&doubt(), Sighting::Absent);
    assert!(matches!(decision, Decision::ProbeAt(at, _) if at > NOW), "{decision:?}");
    assert_eq!(absent_at, Some(NOW));
}

#[test]
fn a_second_absence_makes_it_certain_and_it_is_retried() {
    let decision = look(&seen_absent(doubt()), Sighting::Absent).decision;
    assert!(matches!(decision, Decision::RetryAt(at) if at > NOW), "{decision:?}");
}

#[test]
fn an_absence_counts_only_once_absent_after_has_passed_since_the_request_travelled() {
    let edge = NOW.minus(10 * MINUTE);
    let early = Doubt { travels_until: edge.plus(Duration::from_micros(1)), ..doubt() };
    let Looked { decision, absent_at } = look(&early, Sighting::Absent);
    assert_eq!(absent_at, None, "a microsecond too early");
    assert!(matches!(decision, Decision::ProbeAt(at, _) if at >= early.travels_until.plus(10 * MINUTE)));
    assert_eq!(look(&Doubt { travels_until: edge, ..doubt() }, Sighting::Absent).absent_at, Some(NOW));
    // The first look was too early to count: absent_after was raised meanwhile, or another request was sent.
    let stale = Doubt { travels_until: edge, ..seen_absent(doubt()) };
    assert!(matches!(look(&stale, Sighting::Absent).decision, Decision::ProbeAt(..)));
}

#[test]
fn a_pending_or_failed_object_is_unknown_and_undoes_an_absence() {
    let Looked { decision, absent_at } = look(&seen_absent(doubt()), Sighting::Unproven);
    assert!(matches!(decision, Decision::ProbeAt(..)), "{decision:?}");
    assert_eq!(absent_at, None);
}

#[test]
fn what_shows_nothing_keeps_an_absence_and_is_asked_again() {
    let before = seen_absent(doubt());
    let Looked { decision, absent_at } = look(&before, Sighting::Unknown);
    assert!(matches!(decision, Decision::ProbeAt(..)), "{decision:?}");
    assert_eq!(absent_at, before.absent_at);
}

#[test]
fn what_shows_nothing_is_left_to_a_person_once_max_age_has_passed_but_not_before_five_looks() {
    let old = |made| {
        let started_at = NOW.minus(Policy::default().max_age);
        Doubt { made, history: History { started_at, ..doubt().history }, ..doubt() }
    };
    for sighting in [Sighting::Unknown, Sighting::Unproven] {
        assert!(matches!(look(&old(3), sighting).decision, Decision::ProbeAt(..)), "the fourth");
        let Decision::Park(why) = look(&old(4), sighting).decision else { panic!("the fifth is the last") };
        assert!(why.contains("no answer in time") && why.contains("what was seen"), "{why}");
        let young = Doubt { made: 1000, ..doubt() };
        assert!(matches!(look(&young, sighting).decision, Decision::ProbeAt(..)));
    }
}

#[test]
fn what_cannot_be_asked_about_is_left_to_a_person_at_once() {
    assert!(matches!(look(&doubt(), Sighting::Impossible).decision, Decision::Park(_)));
}

#[test]
fn after_a_stored_server_error_absence_proves_nothing() {
    let stored = Doubt { error_stored: true, ..seen_absent(doubt()) };
    assert!(matches!(look(&stored, Sighting::Absent).decision, Decision::Park(_)));
}

#[test]
fn a_cancelled_or_expired_effect_that_is_absent_is_due_at_once_to_end_as_certain_ones_do() {
    let cancelled = History { cancel_requested: true, ..doubt().history };
    let expired = History { expires_at: Some(NOW), ..doubt().history };
    for history in [cancelled, expired] {
        let looked = look(&seen_absent(Doubt { history, ..doubt() }), Sighting::Absent);
        assert!(matches!(looked.decision, Decision::RetryAt(at) if at <= NOW.plus(Duration::from_secs(1))));
    }
}

#[test]
fn an_absent_effect_whose_budget_is_used_up_failed_and_was_never_applied() {
    let policy = Policy::default();
    let attempts = History { attempts: policy.max_attempts, ..doubt().history };
    let age = History { started_at: NOW.minus(policy.max_age), ..doubt().history };
    for history in [attempts, age] {
        let Decision::Fail(why) = look(&seen_absent(Doubt { history, ..doubt() }), Sighting::Absent).decision
        else {
            panic!("it has no budget left")
        };
        assert!(why.contains("never applied"), "{why}");
    }
}

fn any_sighting() -> impl Strategy<Value = Sighting> {
    prop::sample::select(vec![
        Sighting::Applied,
        Sighting::Unproven,
        Sighting::Absent,
        Sighting::Absent,
        Sighting::Absent,
        Sighting::Unknown,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// From the attempt on: whatever outcome makes it uncertain, it is retried only after two absences that count, with no
    /// sight of the object between them.
    #[test]
    fn an_uncertain_lookup_effect_is_never_retried_without_two_absences_that_count(
        finding in prop::sample::select(vec![
            Finding::Unknown, Finding::InProgress, Finding::LeaseEnded, Finding::StoredError, Finding::NotApplied,
        ]),
        before in any::<bool>(),
        travels_s in 0u64..1000,
        looks in vec((any_sighting(), 0u64..2000), 1..20),
    ) {
        let contract = contract();
        let policy = Policy { max_age: Duration::from_secs(100_000), ..Policy::default() };
        let travels_until = NOW.plus(Duration::from_secs(travels_s));
        let first = History { uncertain: before, started_at: NOW, travels_until: Some(travels_until), ..history() };
        let outcome = Outcome::new(finding, Phase::Done, "");
        let decision = decide(&policy, &contract, MINUTE, &first, &outcome, NOW);
        if !uncertain_after(&first, &outcome, &decision) {
            return Ok(());
        }
        let Decision::ProbeAt(mut at, why) = decision else {
            return Err(TestCaseError::fail(format!("uncertain, yet {decision:?}")));
        };
        prop_assert!(at >= travels_until, "probed while the request may still travel");
        let error_stored = finding == Finding::StoredError;
        let mut doubt = Doubt { history: first, made: 0, absent_at: None, travels_until: at, error_stored, why };
        let mut counted = 0;
        for (sighting, late_s) in looks {
            let looked_at = at.plus(Duration::from_secs(late_s));
            let ended = looked_at.plus(Duration::from_secs(1));
            let probed = Probed::new(sighting, "");
            let looked = decide_probe(&policy, &contract, &doubt, &probed, (looked_at, ended));
            match sighting {
                Sighting::Absent if looked_at >= travels_until.plus(contract.absent_after) => counted += 1,
                Sighting::Unproven => counted = 0,
                Sighting::Applied | Sighting::Absent | Sighting::Unknown | Sighting::Impossible => {}
            }
            match looked.decision {
                Decision::RetryAt(_) => {
                    prop_assert!(counted >= 2, "retried after {counted} absences that count");
                    prop_assert!(!error_stored, "retried although an error is stored");
                    break;
                }
                Decision::ProbeAt(next, _) => {
                    prop_assert!(next > looked_at, "a hot loop");
                    at = next;
                }
                Decision::Succeed => {
                    prop_assert_eq!(sighting, Sighting::Applied);
                    break;
                }
                Decision::Park(_) => break,
                Decision::Fail(_) | Decision::Cancel | Decision::Expire => {
                    prop_assert!(counted >= 2, "{:?} after {counted} absences", looked.decision);
                    break;
                }
            }
            doubt = Doubt { made: doubt.made + 1, absent_at: looked.absent_at, ..doubt };
        }
    }
}
