use aftercommit::effect::EffectId;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000 + 123_456)
}

pub(in crate::cli::effects) fn effect(state: State) -> Status {
    Status {
        id: EffectId::new(17),
        downstream: "payments".to_owned(),
        operation: None,
        idempotency_key: "order-17".to_owned(),
        state,
        held_by: None,
        attempts: 1,
        due_at: None,
        first_sent_at: Some(at(10)),
        safe_until: None,
        lease_until: None,
        worker: None,
        last_outcome: Some(Verdict::Rejected),
        last_error: Some("refused\x1b[2J".to_owned()),
        response_status: Some(402),
        refusal_stored: false,
        payload_dropped: false,
        log_dropped: false,
        response: None,
        metadata: None,
        superseded_by: None,
        created_at: at(1),
        finished_at: None,
        token: 1,
        quiet_at: None,
        uncertain: false,
    }
}

fn attempt(outcome: Verdict, phase: &str) -> LoggedAttempt {
    LoggedAttempt {
        effect_id: EffectId::new(17),
        attempt: 1,
        token: 1,
        worker: None,
        started_at: at(10),
        ended_at: Some(at(20)),
        phase: phase.to_owned(),
        outcome,
        response_status: None,
        error: None,
        late: false,
    }
}

fn known<'a>(effect: &'a Status, attempts: &'a [LoggedAttempt]) -> Known<'a> {
    Known { effect, attempts, holder: None, quiet_at: None, now: at(30) }
}

fn told(effect: &Status, attempts: &[LoggedAttempt]) -> String {
    said(&known(effect, attempts), "aftercommit")
}

#[test]
fn a_retry_is_recommended_only_where_it_would_not_be_refused() {
    let stored = Status { refusal_stored: true, ..effect(State::Failed) };
    let words = told(&stored, &[attempt(Verdict::Rejected, "response")]);
    assert!(words.contains("new key") && !words.contains("effects retry"), "{words}");
    for dropped in [
        Status { payload_dropped: true, ..effect(State::Failed) },
        Status { log_dropped: true, ..effect(State::Failed) },
    ] {
        let words = told(&dropped, &[]);
        assert!(words.contains("new key") && !words.contains("effects retry"), "{words}");
    }
    let words = said(&known(&effect(State::Failed), &[]), "aftercommit --database sqlite:x.db");
    assert!(words.contains("aftercommit --database sqlite:x.db effects retry 17"), "{words}");
    let unsent = [attempt(Verdict::NotApplied, RENDER)];
    let words = told(&effect(State::Failed), &unsent);
    assert!(words.contains("only help if the configuration was the cause"), "{words}");
    let refused = [attempt(Verdict::Rejected, "done"), LoggedAttempt { late: true, ..unsent[0].clone() }];
    let words = told(&effect(State::Failed), &refused);
    assert!(!words.contains("nothing was sent"), "a late hand-back is about an earlier claim: {words}");
}

#[test]
fn who_paused_a_downstream_is_told_and_how_that_ends() {
    let paused = Status { held_by: Some("pause".to_owned()), ..effect(State::Ready) };
    let by = PausedBy { at: at(10), who: "ops".to_owned(), reason: Some("they asked us to".to_owned()) };
    let (by_hand, patience, rate) = (
        DownstreamInfo { paused: Some(by), ..DownstreamInfo::default() },
        DownstreamInfo {
            paused_until: Some(at(90)),
            origin: Some("https://pay.test".to_owned()),
            ..DownstreamInfo::default()
        },
        DownstreamInfo { rate: Some("25/s".to_owned()), ..DownstreamInfo::default() },
    );
    let words = |holder| said(&Known { holder, ..known(&paused, &[]) }, "aftercommit");
    let told = words(Some(&by_hand));
    assert!(told.contains("paused by ops at 1970-01-01T00:00:10Z (20 s ago): they asked us to"), "{told}");
    assert!(told.contains("aftercommit downstreams resume payments"), "{told}");
    let told = words(Some(&patience));
    assert!(told.contains("https://pay.test asked to be left alone until"), "{told}");
    assert!(words(Some(&rate)).contains("(25/s)") && words(None).contains("downstreams list"));
    let probed = Status { held_by: Some("pause".to_owned()), ..effect(State::InDoubt) };
    let told = said(&Known { holder: Some(&by_hand), ..known(&probed, &[]) }, "aftercommit");
    assert!(told.contains("paused by ops") && told.contains("effects resolve 17"), "{told}");
}

#[test]
fn from_when_on_a_person_may_decide_is_told() {
    let doubted = effect(State::InDoubt);
    let words = |quiet_at| said(&Known { quiet_at, ..known(&doubted, &[]) }, "aftercommit");
    let told = words(Some(at(150)));
    assert!(
        told.contains("nobody can resolve or resend it before 1970-01-01T00:02:30Z (in 2 min)"),
        "{told}"
    );
    assert!(!words(Some(at(29))).contains("travelling") && !words(None).contains("travelling"));
}

#[test]
fn a_resend_is_not_recommended_where_the_key_was_used_before() {
    let used = Status {
        last_error: Some(format!("{KEY_USED_BEFORE}, as our log holds no attempt (it was dropped)")),
        last_outcome: Some(Verdict::Applied),
        ..effect(State::InDoubt)
    };
    let words = told(&used, &[]);
    assert!(!words.contains("effects resend") && words.contains("new key"), "{words}");
    assert!(words.contains("--as applied") && words.contains("--as not-applied"), "{words}");
    let words = told(&effect(State::InDoubt), &[]);
    assert!(words.contains("effects resend 17"), "{words}");
}

#[test]
fn what_follows_has_no_microseconds_and_no_control_characters() {
    let mut retrying = Status { due_at: Some(at(90)), safe_until: Some(at(900)), ..effect(State::Retrying) };
    retrying.last_outcome = Some(Verdict::Unknown);
    let words = told(&retrying, &[]);
    assert!(words.contains("in 60 s") && !words.contains(".123456"), "{words}");
    let words = told(&effect(State::InDoubt), &[]);
    assert!(!words.contains('\x1b') && words.contains(r"refused\x1b[2J"), "{words}");
}

#[test]
fn an_effect_is_unknown_since_the_first_attempt_that_did_not_show_it() {
    let attempts = [attempt(Verdict::NotApplied, "connect"), attempt(Verdict::Unknown, "response")];
    assert_eq!(unknown_since(&effect(State::InDoubt), &attempts), Some(at(20)));
    assert_eq!(unknown_since(&effect(State::InDoubt), &attempts[..1]), None);
    assert_eq!(unknown_since(&effect(State::Failed), &attempts), None);
}
