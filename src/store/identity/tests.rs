//! Defends: what differs from what is remembered is noticed, and what somebody accepted is not asked again.

use super::*;

fn found() -> Identity {
    let cluster = Cluster { system_identifier: Some("7/5".to_owned()), timeline: Some(1) };
    Identity {
        installation: "one".to_owned(),
        system_identifier: cluster.system_identifier.clone(),
        timeline: cluster.timeline,
        epoch: 3,
        token: 100,
        accepted: Some(cluster),
    }
}

fn remembered() -> Remembered {
    Remembered { token: 90, last_claim: Some((90, 8)), ..Remembered::of(&found()) }
}

fn reason(verdict: Verdict) -> String {
    match verdict {
        Verdict::Hold(mismatch) => mismatch.reason,
        Verdict::Same | Verdict::PromotedIf(..) | Verdict::Promoted => panic!("no hold: {verdict:?}"),
    }
}

#[test]
fn what_did_not_change_is_the_same() {
    assert_eq!(compare(None, &found()), Verdict::Same);
    assert_eq!(compare(None, &Identity { accepted: None, ..found() }), Verdict::Same);
    assert_eq!(compare(Some(&remembered()), &found()), Verdict::Same);
    assert_eq!(compare(Some(&Remembered { exact: false, ..remembered() }), &found()), Verdict::Same);
    // What a managed service does not tell cannot differ.
    let untold = Identity { system_identifier: None, timeline: None, ..found() };
    assert_eq!(compare(Some(&remembered()), &untold), Verdict::Same);
}

#[test]
fn tokens_that_went_back_are_a_hold_and_go_on_far_above() {
    let verdict = compare(Some(&remembered()), &Identity { token: 89, ..found() });
    let Verdict::Hold(mismatch) = verdict else { panic!("{verdict:?}") };
    assert!(mismatch.went_back && mismatch.token_above >= 90 + TOKENS_BETWEEN, "{mismatch:?}");
    assert_eq!(compare(Some(&remembered()), &Identity { token: 90, ..found() }), Verdict::Same);
}

#[test]
fn a_copy_is_a_hold_with_and_without_a_memory() {
    let copy = Identity { system_identifier: Some("8/5".to_owned()), ..found() };
    assert!(reason(compare(Some(&remembered()), &copy)).contains("copy"));
    assert!(reason(compare(None, &copy)).contains("copy"));
    let other = Identity { installation: "two".to_owned(), ..found() };
    assert!(reason(compare(Some(&remembered()), &other)).contains("another installation"));
}

#[test]
fn a_promotion_is_judged_by_the_last_claim_and_only_by_who_knows_it() {
    let promoted = Identity { timeline: Some(2), ..found() };
    assert_eq!(
        compare(Some(&remembered()), &promoted),
        Verdict::PromotedIf(Token::new(90), EffectId::new(8))
    );
    let idle = Remembered { last_claim: None, ..remembered() };
    assert_eq!(compare(Some(&idle), &promoted), Verdict::Promoted);
    assert!(reason(compare(Some(&Remembered { exact: false, ..idle }), &promoted)).contains("promoted"));
    assert!(reason(compare(None, &promoted)).contains("promoted"));
}

#[test]
fn what_the_fleet_accepted_is_not_asked_again_by_who_cannot_tell() {
    let cluster = Cluster { system_identifier: Some("7/5".to_owned()), timeline: Some(2) };
    let accepted = Identity { timeline: Some(2), accepted: Some(cluster), ..found() };
    let killed = Remembered { exact: false, ..remembered() };
    assert_eq!(compare(Some(&killed), &accepted), Verdict::Same);
    // Who knows its last claim for sure still asks for it.
    let asked = Verdict::PromotedIf(Token::new(90), EffectId::new(8));
    assert_eq!(compare(Some(&remembered()), &accepted), asked);
}

#[test]
fn what_cannot_be_told_now_does_not_take_the_place_of_what_was_known() {
    let untold = Identity { system_identifier: None, timeline: None, ..found() };
    assert_eq!(Remembered::after(Some(&remembered()), &untold), remembered());
    let lifted = Remembered::after(Some(&remembered()), &Identity { epoch: 4, ..untold });
    assert_eq!((lifted.timeline, lifted.last_claim, lifted.token), (None, None, 90));
}

#[test]
fn what_a_person_accepted_since_is_not_asked_again_but_for_tokens() {
    let lifted = Identity {
        epoch: 4,
        system_identifier: Some("8/5".to_owned()),
        accepted: Some(Cluster { system_identifier: Some("8/5".to_owned()), timeline: Some(1) }),
        ..found()
    };
    assert_eq!(compare(Some(&remembered()), &lifted), Verdict::Same);
    assert!(
        reason(compare(Some(&remembered()), &Identity { token: 1, ..lifted.clone() })).contains("went back")
    );
    // An older epoch than the remembered one is a restore from before the lift.
    assert!(reason(compare(Some(&Remembered { epoch: 5, ..remembered() }), &lifted)).contains("went back"));
}
