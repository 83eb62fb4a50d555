use super::*;
use crate::{
    contract::Contract,
    decision::{Decision, Doubt, History, decide_probe},
    effect::EffectId,
    outcome::{Probed, Sighting},
    schedule::Policy,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn noted(note: &str) -> Status {
    Status {
        id: EffectId::new(17),
        downstream: "mail".to_owned(),
        operation: None,
        idempotency_key: "welcome-17".to_owned(),
        state: State::InDoubt,
        held_by: None,
        attempts: 1,
        due_at: None,
        first_sent_at: Some(at(10)),
        safe_until: None,
        lease_until: None,
        worker: None,
        last_outcome: Some(Verdict::Unknown),
        last_error: Some(note.to_owned()),
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

fn attempt(n: u32, outcome: Verdict, (phase, error): (Phase, &str)) -> LoggedAttempt {
    LoggedAttempt {
        effect_id: EffectId::new(17),
        attempt: n,
        token: 1,
        worker: Some("shop-1-4711".to_owned()),
        started_at: at(10),
        ended_at: Some(at(40)),
        phase: phase.as_str().to_owned(),
        outcome,
        response_status: None,
        error: Some(error.to_owned()),
        late: false,
    }
}

#[test]
fn what_differs_is_told_apart_from_what_many_share() {
    let error =
        "no answer from https://pay.test in time; the request may have arrived: look there for the key";
    let shared = "the outcome is unknown and the downstream cannot deduplicate";
    let effect = noted(&format!("{shared} ({error})"));
    let why = why_unknown(&effect, &[attempt(1, Verdict::Unknown, (Phase::Send, error))]);
    assert_eq!(why.what, "No answer from https://pay.test in time, after 30 s");
    assert_eq!((why.said.as_deref(), why.meaning.as_deref()), (Some(error), Some(shared)));
    let lost =
        attempt(2, Verdict::Unknown, (Phase::Lease, "the worker's lease ended before it said what happened"));
    let said = format!("{shared} (the worker's lease ended before it said what happened)");
    let why = why_unknown(&noted(&said), &[attempt(1, Verdict::Unknown, (Phase::Send, error)), lost]);
    assert_eq!(why.what, "Worker shop-1-4711 did not come back from the call (attempt 2)");
    assert_eq!((why.said, why.meaning.as_deref()), (None, Some(shared)));
    let within = "no answer within 20 s";
    let why = why_unknown(&noted(within), &[attempt(1, Verdict::Unknown, (Phase::Send, within))]);
    assert_eq!(why, Why { what: "No answer within 20 s".to_owned(), ..Why::default() });
}

#[test]
fn a_later_refusal_does_not_hide_what_left_the_doubt() {
    let effect =
        noted("refused, which proves nothing about an earlier attempt (HTTP 401 from https://pay.test)");
    let attempts = [
        attempt(1, Verdict::Unknown, (Phase::Answer, "the connection was lost: reset")),
        attempt(2, Verdict::Rejected, (Phase::Done, "HTTP 401 from https://pay.test")),
    ];
    let why = why_unknown(&effect, &attempts);
    assert_eq!(why.what, "The connection was lost, after 30 s (attempt 1)");
    assert!(why.meaning.is_some_and(|meaning| meaning.ends_with("(HTTP 401 from https://pay.test)")));
    let why = why_unknown(&effect, &[]);
    assert!(why.what.starts_with("Refused, which proves nothing") && why.meaning.is_none(), "{why:?}");
}

/// What a probe writes down is what is read here.
#[test]
fn what_a_probe_showed_is_read_from_the_note_that_it_left() {
    let doubt = Doubt {
        history: History {
            id: EffectId::new(17),
            uncertain: true,
            sent_before: true,
            attempts: 1,
            tries: 1,
            started_at: at(1),
            first_sent_at: Some(at(10)),
            window_at_claim: None,
            expires_at: None,
            resend: None,
            cancel_requested: false,
            applied_late: false,
            travels_until: None,
        },
        made: 2,
        absent_at: None,
        travels_until: at(50),
        error_stored: false,
        why: "the outcome is unknown (a; b)".to_owned(),
    };
    let probed = Probed::new(Sighting::Unknown, "the list was not whole; probe again");
    let policy = |max_age| Policy { max_age, ..Policy::default() };
    for (max_age, made) in [(Duration::MAX, 2), (Duration::ZERO, 9)] {
        let doubt = Doubt { made, ..doubt.clone() };
        let decision =
            decide_probe(&policy(max_age), &Contract::key(None), &doubt, &probed, (at(60), at(61))).decision;
        let note = match decision {
            Decision::ProbeAt(_, note) | Decision::Park(note) => note,
            other @ (Decision::Succeed
            | Decision::Fail(_)
            | Decision::RetryAt(_)
            | Decision::Cancel
            | Decision::Expire) => panic!("{other:?}"),
        };
        let effect = noted(&note);
        let said = "the list was not whole; probe again";
        assert_eq!(asked(&effect), (doubt.why.as_str(), Some(Asked { times: made + 1, said })), "{note}");
    }
    assert_eq!(asked(&noted("no answer; probe x: y")), ("no answer; probe x: y", None));
}

#[test]
fn it_is_told_what_was_asked_last_and_when_it_is_asked_again() {
    let noted = noted("no answer; probe 3: it is not in the list");
    let due = |due_at, held_by: Option<&str>| Status {
        due_at,
        held_by: held_by.map(str::to_owned),
        ..noted.clone()
    };
    let said = |effect: &Status| asking(effect, at(60)).unwrap();
    let past = "Its downstream was asked 3 times, and the last time: it is not in the list. ";
    let wanted = "The next question goes out in 60 s (1970-01-01T00:02:00Z).";
    assert_eq!(said(&due(Some(at(120)), None)), format!("{past}{wanted}"));
    assert!(said(&due(Some(at(50)), None)).ends_with("as soon as a worker has a free slot."));
    assert!(said(&due(Some(at(50)), Some("pause"))).contains("waits until its downstream is called again"));
    assert_eq!(said(&due(None, None)), format!("{past}It is not asked any more."));
    let never = Status { last_error: Some("no answer".to_owned()), ..due(Some(at(120)), None) };
    assert_eq!(said(&never), wanted);
    assert_eq!(asking(&Status { due_at: None, ..never }, at(60)), None);
}
