use super::*;
use crate::decision::KEY_USED_BEFORE;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000 + 123_456)
}

fn effect(state: State) -> Status {
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
    Known { effect, attempts, holder: None, contract: None, last_act: None, now: at(30) }
}

fn follows(effect: &Status, attempts: &[LoggedAttempt]) -> Vec<Part> {
    what_follows(&known(effect, attempts))
}

fn words(parts: &[Part]) -> String {
    let way = |way: &Way| format!("<{way:?}>");
    text(parts, way, way)
}

fn offers(parts: &[Part], way: &Way) -> bool {
    parts.contains(&Part::Offers(way.clone()))
}

#[test]
fn a_retry_is_offered_only_where_it_would_not_be_refused() {
    let retry = Way::Retry(EffectId::new(17));
    let stored = Status { refusal_stored: true, ..effect(State::Failed) };
    let parts = follows(&stored, &[attempt(Verdict::Rejected, "answer")]);
    assert!(offers(&parts, &Way::Reissue(stored.id)) && !offers(&parts, &retry), "{parts:?}");
    for dropped in [
        Status { payload_dropped: true, ..effect(State::Failed) },
        Status { log_dropped: true, ..effect(State::Failed) },
    ] {
        let parts = follows(&dropped, &[]);
        assert!(words(&parts).contains("new key") && !offers(&parts, &retry), "{parts:?}");
    }
    let parts = follows(&effect(State::Failed), &[]);
    assert!(offers(&parts, &retry), "{parts:?}");
    let unsent = [attempt(Verdict::NotApplied, "render")];
    let parts = follows(&effect(State::Failed), &unsent);
    assert!(words(&parts).contains("only help if the configuration was the cause"), "{parts:?}");
    let refused = [attempt(Verdict::Rejected, "done"), LoggedAttempt { late: true, ..unsent[0].clone() }];
    let said = words(&follows(&effect(State::Failed), &refused));
    assert!(!said.contains("nothing was sent"), "a late hand-back is about an earlier claim: {said}");
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
    let told = |holder| what_follows(&Known { holder, ..known(&paused, &[]) });
    let resume = Way::Resume("payments".to_owned());
    let parts = told(Some(&by_hand));
    let said = words(&parts);
    assert!(said.contains("paused by ops at 1970-01-01T00:00:10Z (20 s ago): they asked us to"), "{said}");
    assert!(offers(&parts, &resume), "{parts:?}");
    let said = words(&told(Some(&patience)));
    assert!(said.contains("https://pay.test asked to be left alone until"), "{said}");
    assert!(words(&told(Some(&rate))).contains("(25/s)"));
    assert!(told(None).contains(&Part::Names(Way::Downstreams)));
    let probed = Status { held_by: Some("pause".to_owned()), ..effect(State::InDoubt) };
    let parts = what_follows(&Known { holder: Some(&by_hand), ..known(&probed, &[]) });
    assert!(words(&parts).contains("paused by ops") && offers(&parts, &resume), "{parts:?}");
    assert!(offers(&parts, &Way::ResolveApplied(probed.id)), "{parts:?}");
}

#[test]
fn nothing_is_offered_while_the_last_request_may_still_be_travelling() {
    let follows = |quiet_at| follows(&Status { quiet_at, ..effect(State::InDoubt) }, &[]);
    let parts = follows(Some(at(150)));
    let wanted = "nobody can resolve, resend or reissue it before 1970-01-01T00:02:30Z (in 2 min)";
    assert!(words(&parts).contains(wanted), "{parts:?}");
    assert!(!parts.iter().any(|part| matches!(part, Part::Offers(_))), "{parts:?}");
    for over in [Some(at(29)), None] {
        let parts = follows(over);
        assert!(!words(&parts).contains("travelling"), "{parts:?}");
        assert!(offers(&parts, &Way::ResolveApplied(EffectId::new(17))), "{parts:?}");
    }
}

#[test]
fn a_resend_is_not_recommended_where_the_key_was_used_before() {
    let used = Status {
        last_error: Some(format!("{KEY_USED_BEFORE}, as our log holds no attempt (it was dropped)")),
        last_outcome: Some(Verdict::Applied),
        ..effect(State::InDoubt)
    };
    let parts = follows(&used, &[]);
    assert!(!offers(&parts, &Way::Resend(used.id)) && words(&parts).contains("new key"), "{parts:?}");
    for way in [Way::ResolveApplied(used.id), Way::ResolveNotApplied(used.id)] {
        assert!(offers(&parts, &way), "{parts:?}");
    }
    assert!(offers(&parts, &Way::ReissueNotApplied(used.id)), "{parts:?}");
    let plain = follows(&effect(State::InDoubt), &[]);
    assert!(offers(&plain, &Way::Resend(used.id)) && !offers(&plain, &Way::ReissueNotApplied(used.id)));
}

/// Under a key that is known there, a retry would be answered as done again, and end as applied.
#[test]
fn what_was_answered_as_done_and_said_to_be_not_applied_is_offered_a_new_key_and_no_retry() {
    let (answered, refused) = (attempt(Verdict::Applied, "done"), attempt(Verdict::Rejected, "done"));
    let parts = follows(&effect(State::Failed), std::slice::from_ref(&answered));
    let (retry, reissue) = (Way::Retry(EffectId::new(17)), Way::Reissue(EffectId::new(17)));
    assert!(offers(&parts, &reissue) && !offers(&parts, &retry), "{parts:?}");
    let later = LoggedAttempt { late: true, ..answered };
    let parts = follows(&effect(State::Failed), &[refused, later]);
    assert!(offers(&parts, &retry), "a late answer is about an earlier attempt: {parts:?}");
}

#[test]
fn offers_stand_on_lines_of_their_own_and_sentences_after_them_too() {
    let said = words(&follows(&effect(State::InDoubt), &[]));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&"<Resend(EffectId(17))>"), "{said}");
    assert!(lines.contains(&"or send it once more, which may apply it twice:"), "{said}");
    assert!(lines.iter().all(|line| !line.is_empty()), "{said}");
}

#[test]
fn what_cannot_be_sent_any_more_is_not_offered_under_a_new_key() {
    let dropped = Status { payload_dropped: true, ..effect(State::Failed) };
    let parts = follows(&dropped, &[]);
    assert!(!offers(&parts, &Way::Reissue(dropped.id)), "{parts:?}");
}

#[test]
fn what_follows_has_no_microseconds_and_no_control_characters() {
    let mut retrying = Status { due_at: Some(at(90)), safe_until: Some(at(900)), ..effect(State::Retrying) };
    retrying.uncertain = true;
    let said = words(&follows(&retrying, &[]));
    assert!(said.contains("in 60 s") && !said.contains(".123456"), "{said}");
    let said = words(&follows(&effect(State::InDoubt), &[]));
    assert!(!said.contains('\x1b') && said.contains(r"refused\x1b[2J"), "{said}");
}

#[test]
fn a_retry_is_told_with_the_reason_for_its_time() {
    let retrying = Status { due_at: Some(at(90)), ..effect(State::Retrying) };
    let mut last = attempt(Verdict::NotApplied, "done");
    last.error = Some("429 with Retry-After 60.".to_owned());
    let said = words(&follows(&retrying, &[last]));
    let wanted = "It is sent again at 1970-01-01T00:01:30Z (in 60 s), because attempt 1 ended not applied: \
                  429 with Retry-After 60.";
    assert_eq!(said, wanted);
}

#[test]
fn an_effect_is_unknown_since_the_first_attempt_that_did_not_show_it() {
    let attempts = [attempt(Verdict::NotApplied, "connect"), attempt(Verdict::Unknown, "answer")];
    assert_eq!(unknown_since(&effect(State::InDoubt), &attempts), Some(at(20)));
    assert_eq!(unknown_since(&effect(State::InDoubt), &attempts[..1]), None);
    assert_eq!(unknown_since(&effect(State::Failed), &attempts), None);
}

#[test]
fn an_earlier_unknown_attempt_is_told_whatever_the_last_one_showed() {
    let limited = [attempt(Verdict::Unknown, "answer"), attempt(Verdict::NotApplied, "done")];
    let retrying = Status {
        uncertain: true,
        last_outcome: Some(Verdict::NotApplied),
        due_at: Some(at(90)),
        safe_until: Some(at(900)),
        ..effect(State::Retrying)
    };
    let said = words(&follows(&retrying, &limited));
    assert!(said.contains("may have been applied; the same key makes the next one safe until"), "{said}");
    let certain = Status { uncertain: false, last_outcome: Some(Verdict::Unknown), ..retrying.clone() };
    assert!(!words(&follows(&certain, &limited)).contains("may have been applied"));
    let by = PausedBy { at: at(10), who: "ops".to_owned(), reason: None };
    let holder = DownstreamInfo { paused: Some(by), ..DownstreamInfo::default() };
    let held = Status { held_by: Some("pause".to_owned()), ..retrying };
    let said = words(&what_follows(&Known { holder: Some(&holder), ..known(&held, &limited) }));
    assert!(said.contains("paused by ops") && said.contains("\nAn earlier attempt may have been"), "{said}");
}

#[test]
fn a_key_that_protects_nothing_is_not_told_as_protection() {
    let uncertain = Status { uncertain: true, safe_until: None, ..effect(State::Retrying) };
    let said = |contract: Option<&Contract>, effect: &Status| {
        words(&what_follows(&Known { contract, ..known(effect, &[]) }))
    };
    let accepted = Contract::none(OnUnknown::Retry);
    assert!(said(Some(&accepted), &uncertain).contains("duplicates are accepted here"));
    for contract in [Contract::none(OnUnknown::Hold), Contract::key(None)] {
        let said = said(Some(&contract), &uncertain);
        assert!(said.contains("no key keeps the next one") && !said.contains("safe"), "{said}");
    }
    let past = Status { safe_until: Some(at(20)), ..uncertain.clone() };
    assert!(!said(None, &past).contains("safe"), "its time is over");
    let for_ever = Status { safe_until: Some(Timestamp::MAX), ..uncertain };
    assert!(said(None, &for_ever).ends_with("the same key makes the next one safe."));
}

#[test]
fn a_resend_is_told_by_what_the_key_still_does() {
    let until = |until| Status { safe_until: Some(until), ..effect(State::InDoubt) };
    let said = |effect: &Status| words(&follows(effect, &[]));
    let within = said(&until(at(150)));
    assert!(within.contains("send it once more, which applies nothing twice before 1970-01-01T00:02:30Z:"));
    assert!(said(&until(Timestamp::MAX)).contains("send it once more, which applies nothing twice:"));
    assert!(
        said(&until(at(30))).contains("send it once more, which may apply it twice:"),
        "its time is over"
    );
    let used = Status { last_error: Some(KEY_USED_BEFORE.to_owned()), ..until(Timestamp::MAX) };
    assert!(!key_protects(&used, at(30)) && key_protects(&until(Timestamp::MAX), at(30)));
}

#[test]
fn only_what_may_have_reached_the_downstream_in_this_history_was_sent() {
    let ended = |ended: i64, outcome, phase: &str| LoggedAttempt {
        ended_at: Some(at(ended)),
        ..attempt(outcome, phase)
    };
    let log = [
        ended(5, Verdict::Unknown, "answer"),
        ended(12, Verdict::NotApplied, "connect"),
        ended(14, Verdict::Unknown, "lease"),
        LoggedAttempt { late: true, ..ended(16, Verdict::NotApplied, "done") },
        ended(18, Verdict::NotApplied, "done"),
        ended(19, Verdict::Unknown, "a-phase-of-a-newer-version"),
    ];
    let sent: Vec<_> =
        sent(&effect(State::InDoubt), &log).into_iter().map(|one| one.phase.as_str()).collect();
    assert_eq!(sent, ["lease", "done", "a-phase-of-a-newer-version"]);
}

/// Trap T28.
#[test]
fn a_cancel_in_flight_is_told_as_a_request_and_what_became_of_it() {
    let act = |verb: &str, from: &str| Audited {
        id: 1,
        at: at(20),
        who: "ann\x1b[2J".to_owned(),
        from: None,
        verb: verb.to_owned(),
        effect_id: Some(EffectId::new(17)),
        downstream: None,
        from_state: Some(from.to_owned()),
        to_state: Some(from.to_owned()),
        reason: None,
        bulk: None,
    };
    let said = |effect: &Status, act: &Audited| {
        words(&what_follows(&Known { last_act: Some(act), ..known(effect, &[]) }))
    };
    let (asked, other) = (act("cancel", "in_flight"), act("cancel", "retrying"));
    let flies =
        Status { worker: Some("w1".to_owned()), lease_until: Some(at(60)), ..effect(State::InFlight) };
    let told = said(&flies, &asked);
    let wanted = "w1 is carrying it out; its lease ends in 30 s.\nann\\x1b[2J asked to cancel it at 1970-01-01T00:00:20Z (10 s ago). \
                  That is a request: what is being sent is not called back.";
    assert!(told.starts_with(wanted), "{told}");
    assert!(!said(&flies, &other).contains("cancel"), "that one was about another moment");
    assert!(
        !said(&flies, &act("resend", "in_doubt")).contains("cancel"),
        "a resend is carried out all the same"
    );
    let applied = Status { last_outcome: Some(Verdict::Applied), ..effect(State::Succeeded) };
    let told = said(&applied, &asked);
    assert!(told.contains("it was applied. ann") && told.contains("too late"), "{told}");
    assert_eq!(said(&applied, &other), "Nothing: it was applied.");
}
