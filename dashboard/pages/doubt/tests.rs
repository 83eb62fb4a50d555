use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    outcome::Verdict,
    state::State,
    store::{LoggedAttempt, Status},
};

use super::card::what_we_know;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

/// One in doubt, whose present history began at the 50th second.
pub(in crate::pages) fn effect() -> Status {
    Status {
        id: EffectId::new(17),
        downstream: "pay".to_owned(),
        operation: None,
        idempotency_key: "k".to_owned(),
        state: State::InDoubt,
        held_by: None,
        attempts: 5,
        due_at: None,
        first_sent_at: Some(at(50)),
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
        created_at: at(1),
        finished_at: None,
        token: 1,
        quiet_at: None,
        uncertain: true,
    }
}

fn attempt(n: u32, outcome: Verdict, phase: &str) -> LoggedAttempt {
    LoggedAttempt {
        effect_id: EffectId::new(17),
        attempt: n,
        token: 1,
        worker: None,
        started_at: at(i64::from(n) * 10),
        ended_at: Some(at(i64::from(n) * 10 + 5)),
        phase: phase.to_owned(),
        outcome,
        response_status: None,
        error: None,
        late: false,
    }
}

#[test]
fn only_what_may_have_reached_the_downstream_is_called_sent() {
    let refused = |n| attempt(n, Verdict::NotApplied, "connect");
    let timeout = |n| attempt(n, Verdict::Unknown, "answer");
    let said = |attempts: &[LoggedAttempt]| what_we_know(&effect(), attempts);
    let others = "It was attempted 5 times in all: the others never reached it, or had ended before.";
    let wanted = format!("It was sent once: attempt 5 ended unknown. {others}");
    assert_eq!(said(&[refused(1), refused(2), refused(3), refused(4), timeout(5)]), wanted);
    let ruled = "It was sent once: attempt 5 ended unknown. It was sent before that, too: one attempt ended unknown, and somebody \
                 said that it had not been applied.";
    assert_eq!(said(&[timeout(2), timeout(5)]), ruled);
    let limited = attempt(6, Verdict::NotApplied, "done");
    let wanted =
        "It was sent 2 times, and 1 of these may have applied it; the last of them: attempt 5 ended unknown.";
    assert_eq!(said(&[timeout(5), limited.clone()]), wanted);
    let late = LoggedAttempt { late: true, ..limited };
    assert_eq!(said(&[timeout(5), late]), "It was sent once: attempt 5 ended unknown.");
    let nothing = "It was attempted once, and nothing of that is known to have reached it.";
    assert_eq!(said(&[refused(5)]), nothing);
    assert!(said(&[]).starts_with("No attempt is in the log"));
}
