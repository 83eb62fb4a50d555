//! The rules as tables.

use super::*;
use crate::{contract::Contract, contract::Window, effect::EffectId, schedule::Policy};

fn outcome(finding: Finding, phase: Phase) -> Outcome {
    Outcome::new(finding, phase, "said")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn boot(at: u64) -> Boot {
    use crate::clock::Clock;
    let clock = crate::clock::ManualClock::at(Timestamp::from_micros(0));
    clock.advance(seconds(at));
    clock.boot()
}

fn to(origin: &str) -> Pass {
    Pass { origin: Some(origin.into()), ..Pass::default() }
}

#[test]
fn an_answer_is_a_sign_of_life_whatever_it_says_and_silence_is_none() {
    let by = |finding, phase| sign(&outcome(finding, phase));
    for finding in [
        Finding::Applied,
        Finding::AlreadyDone,
        Finding::Rejected(crate::outcome::About::ThisAttempt),
        Finding::KeyReused,
        Finding::StoredError,
        Finding::NotApplied,
        Finding::InProgress,
    ] {
        assert_eq!(by(finding, Phase::Done), Sign::Answered, "{finding:?}");
        assert_eq!(by(finding, Phase::Render), Sign::Nothing, "{finding:?}: nothing was called");
    }
    for phase in [Phase::Connect, Phase::Send, Phase::Answer, Phase::Done] {
        assert_eq!(by(Finding::Unknown, phase), Sign::Failed, "{phase:?}");
    }
    assert_eq!(by(Finding::NotApplied, Phase::Connect), Sign::Unreached, "nobody listens");
    assert_eq!(by(Finding::NotApplied, Phase::Send), Sign::Failed, "it broke before it mattered");
    assert_eq!(by(Finding::LeaseEnded, Phase::Lease), Sign::Nothing);
}

#[test]
fn what_a_trial_shows_is_said_of_it_and_a_probe_says_it_like_a_call() {
    let told = |pass: &Pass, contact, retry_after| {
        let budgets = Budgets::default();
        let probed = Probed { contact, retry_after, ..Probed::new(Sighting::Unknown, "said") };
        budgets.observe_probe(pass, &probed, seconds(600), boot(0));
        budgets.take_reports().into_iter().map(|report| (report.sign, report.pause)).collect::<Vec<_>>()
    };
    let (plain, trial) = (to("https://a"), Pass { trial: true, ..to("https://a") });
    assert_eq!(told(&plain, Contact::Failed, None), [(Sign::Failed, None)]);
    assert_eq!(told(&plain, Contact::None, None), []);
    assert_eq!(told(&plain, Contact::Answered, None), [], "nothing is wrong with it");
    let patience = Some(seconds(600));
    assert_eq!(told(&plain, Contact::Answered, Some(Duration::MAX)), [(Sign::Answered, patience)]);
    assert_eq!(told(&trial, Contact::Failed, None), [(Sign::TrialFailed, None)]);
    assert_eq!(told(&trial, Contact::None, None), [(Sign::TrialEnded, None)]);
    let budgets = Budgets::default();
    budgets.observe(&trial, &outcome(Finding::Unknown, Phase::Send), seconds(600), boot(0));
    budgets.observe(&trial, &outcome(Finding::NotApplied, Phase::Render), seconds(600), boot(0));
    budgets.observe(&trial, &outcome(Finding::NotApplied, Phase::Connect), seconds(600), boot(0));
    budgets.observe(&trial, &outcome(Finding::Applied, Phase::Done), seconds(600), boot(0));
    let signs: Vec<_> = budgets.take_reports().into_iter().map(|report| report.sign).collect();
    assert_eq!(signs, [Sign::TrialFailed, Sign::TrialEnded, Sign::TrialUnreached, Sign::Answered]);
}

#[test]
fn only_what_concerns_everybody_asks_for_patience_and_not_for_more_than_is_given() {
    let asked = |finding, retry_after| {
        patience(&Outcome { retry_after, ..outcome(finding, Phase::Done) }, seconds(600))
    };
    assert_eq!(asked(Finding::NotApplied, Some(seconds(5))), Some(seconds(5)));
    assert_eq!(asked(Finding::Unknown, Some(Duration::MAX)), Some(seconds(600)));
    assert_eq!(asked(Finding::NotApplied, Some(Duration::ZERO)), None);
    assert_eq!(asked(Finding::NotApplied, None), None);
    assert_eq!(asked(Finding::InProgress, Some(seconds(5))), None, "that is about one key");
    assert_eq!(asked(Finding::Applied, Some(seconds(5))), None);
}

#[test]
fn what_a_call_shows_holds_this_worker_at_once_and_is_told_once() {
    let budgets = Budgets::default();
    let asked = Outcome { retry_after: Some(seconds(60)), ..outcome(Finding::NotApplied, Phase::Done) };
    budgets.observe(&to("https://a"), &asked, seconds(600), boot(100));
    let hold = |origin, at| budgets.hold("pay", origin, boot(at));
    assert_eq!(hold(Some("https://a"), 101), Hold::Until(boot(160)));
    assert_eq!(hold(Some("https://a"), 160), Hold::Free);
    assert_eq!(hold(Some("https://b"), 101), Hold::Free);
    assert_eq!(hold(None, 101), Hold::Free);
    let told = budgets.take_reports();
    assert_eq!((told.len(), told[0].pause), (1, Some(seconds(60))));
    assert!(budgets.take_reports().is_empty());
    budgets.put_back(told);
    assert_eq!(budgets.take_reports().len(), 1, "it is told again when it could not be");
}

#[test]
fn a_healthy_origin_tells_nothing_and_takes_no_lock() {
    let budgets = Budgets::default();
    let _locked = budgets.lock();
    let fine = outcome(Finding::Applied, Phase::Done);
    budgets.observe(&to("https://a"), &fine, seconds(600), boot(100));
    assert_eq!(budgets.hold("pay", Some("https://a"), boot(100)), Hold::Free);
}

#[test]
fn the_first_answer_after_failures_is_told_and_the_next_is_not() {
    let budgets = Budgets::default();
    let observe = |outcome: &Outcome| budgets.observe(&to("https://a"), outcome, seconds(600), boot(100));
    observe(&outcome(Finding::Unknown, Phase::Send));
    observe(&outcome(Finding::Applied, Phase::Done));
    observe(&outcome(Finding::Applied, Phase::Done));
    let signs: Vec<Sign> = budgets.take_reports().iter().map(|report| report.sign).collect();
    assert_eq!(signs, [Sign::Failed, Sign::Answered]);
}

#[test]
fn an_open_breaker_holds_then_lets_a_trial_through() {
    let budgets = Budgets::default();
    let now = Timestamp::from_micros(5_000_000);
    let open = Origin { open_until: Some(now.plus(seconds(10))), ..Origin::default() };
    budgets.learn(vec![("https://a".into(), open)], now, boot(100));
    assert_eq!(budgets.hold("pay", Some("https://a"), boot(105)), Hold::Until(boot(110)));
    assert_eq!(budgets.hold("pay", Some("https://a"), boot(110)), Hold::Trial);
    budgets.learn(vec![("https://a".into(), Origin::default())], now, boot(111));
    assert_eq!(budgets.hold("pay", Some("https://a"), boot(111)), Hold::Free);
    assert!(!budgets.troubled());
}

#[test]
fn a_refusal_that_is_not_written_yet_holds_whatever_the_database_says() {
    let budgets = Budgets::default();
    let nothing = || Holds { now: Timestamp::from_micros(0), paused: Vec::new(), origins: Vec::new() };
    let before = budgets.version();
    budgets.refuse(&"pay".into(), "HTTP 401");
    budgets.replace(nothing(), before, boot(1));
    assert_eq!(budgets.hold("pay", None, boot(1)), Hold::Paused);
    budgets.refusal_written("pay");
    budgets.replace(nothing(), before, boot(2));
    assert_eq!(budgets.hold("pay", None, boot(2)), Hold::Paused, "that was read before it was written");
    budgets.replace(nothing(), budgets.version(), boot(3));
    assert_eq!(budgets.hold("pay", None, boot(3)), Hold::Free, "somebody resumed it");
}

#[test]
fn what_is_held_keeps_its_place_waits_for_the_end_or_is_parked() {
    let now = Timestamp::from_micros(1_000_000_000);
    let terms = Terms {
        contract: Contract::key(Some(Window::For(seconds(3600)))),
        policy: Policy::default(),
        timeout: seconds(20),
        request_sha256: [0; 32],
    };
    let history = |uncertain| History {
        id: EffectId::new(1),
        uncertain,
        sent_before: uncertain,
        attempts: 1,
        tries: 1,
        started_at: now,
        first_sent_at: Some(now),
        travels_until: None,
        window_at_claim: terms.contract.window,
        expires_at: None,
        resend: None,
        cancel_requested: false,
        applied_late: false,
    };
    let soon = Some(now.plus(seconds(60)));
    let late = Some(now.plus(seconds(7200)));
    let said = |uncertain, until, whose| held(&terms, &history(uncertain), (now, until), whose);
    for whose in [Whose::Downstream, Whose::Effect] {
        assert_eq!(said(true, None, whose), Next::GiveBack, "the sweep looks after its window");
        assert!(matches!(said(true, late, whose), Next::Decided(Decision::Park(_))));
    }
    assert_eq!(said(false, late, Whose::Downstream), Next::GiveBack);
    assert_eq!(said(true, soon, Whose::Downstream), Next::GiveBack);
    let until = now.plus(seconds(60));
    assert_eq!(said(true, soon, Whose::Effect), Next::Decided(Decision::RetryAt(until)));
}
