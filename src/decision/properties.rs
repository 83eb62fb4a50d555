//! Defends honest doubt: whatever comes in, an effect that may have been applied is never called failed, cancelled or expired
//! without proof, and never sent again where nothing makes that safe. First over arbitrary sequences, then against a model of
//! a downstream that keeps its contract while the network and the worker do not keep theirs.
//!
//! A failing case prints its smallest form and a seed line for `proptest-regressions/`.

use proptest::{collection::vec, option, prelude::*};

use super::{tests::history, *};
use crate::outcome::Phase;

fn any_finding() -> impl Strategy<Value = Finding> {
    prop_oneof![
        Just(Finding::Applied),
        Just(Finding::AlreadyDone),
        Just(Finding::Rejected(About::ThisAttempt)),
        Just(Finding::Rejected(About::StoredKind)),
        Just(Finding::Rejected(About::FirstRequest)),
        Just(Finding::KeyReused),
        Just(Finding::StoredError),
        Just(Finding::NotApplied),
        Just(Finding::NotApplied),
        Just(Finding::NotApplied),
        Just(Finding::Unknown),
        Just(Finding::Unknown),
        Just(Finding::Unknown),
        Just(Finding::InProgress),
        Just(Finding::LeaseEnded),
    ]
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(vec![
        Phase::Render,
        Phase::Connect,
        Phase::Send,
        Phase::Answer,
        Phase::Done,
        Phase::Lease,
    ])
}

/// From nothing to far more than any clock holds.
fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        (0u64..200_000).prop_map(Duration::from_secs),
        any::<u64>().prop_map(Duration::from_micros),
        (any::<u64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos)),
    ]
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN),
        Just(Timestamp::MAX),
        any::<i64>().prop_map(Timestamp::from_micros),
        (1_700_000_000_000_000i64..1_900_000_000_000_000).prop_map(Timestamp::from_micros),
    ]
}

fn any_window() -> impl Strategy<Value = Option<Window>> {
    option::of(prop_oneof![Just(Window::Forever), any_duration().prop_map(Window::For)])
}

fn any_contract() -> impl Strategy<Value = Contract> {
    (
        prop::sample::select(vec![Dedupe::Key, Dedupe::Lookup, Dedupe::None]),
        prop::sample::select(vec![OnUnknown::Hold, OnUnknown::Retry]),
        any_window(),
        any_duration(),
        prop::sample::select(vec![Stores::Success, Stores::Any]),
        any::<bool>(),
        any_duration(),
    )
        .prop_map(|(dedupe, on_unknown, window, margin, stores, can_probe, absent_after)| Contract {
            dedupe,
            window,
            margin,
            stores,
            can_probe,
            absent_after,
            ..Contract::none(on_unknown)
        })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (any_duration(), any::<f64>(), any_duration(), any::<u32>(), any_duration(), any_duration()).prop_map(
        |(initial, factor, max, max_attempts, max_age, max_pause)| Policy {
            initial,
            factor,
            max,
            max_attempts,
            max_age,
            max_pause,
        },
    )
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    (any_finding(), any_phase(), prop::bool::weighted(0.1), option::of(any_duration())).prop_map(
        |(finding, phase, replayed, retry_after)| Outcome {
            replayed,
            retry_after,
            ..Outcome::new(finding, phase, "")
        },
    )
}

fn any_history() -> impl Strategy<Value = History> {
    let times = (any_time(), option::of(any_time()), option::of(any_time()), option::of(any_time()));
    let counts = (any::<i64>(), any::<u32>(), any::<u32>());
    let flags = (any::<bool>(), any::<bool>(), any::<(bool, bool)>(), any::<bool>());
    (times, counts, flags, any_window(), prop::bool::weighted(0.05)).prop_map(
        |(
            (started_at, first_sent_at, expires_at, travels_until),
            (id, attempts, tries),
            flags,
            window,
            applied_late,
        )| {
            let (uncertain, sent_before, (confirmed, unconfirmed), cancel_requested) = flags;
            History {
                id: EffectId::new(id),
                uncertain,
                sent_before,
                attempts,
                tries,
                started_at,
                first_sent_at,
                window_at_claim: window,
                expires_at,
                resend: Resend::stored(confirmed, unconfirmed),
                cancel_requested,
                applied_late,
                travels_until,
            }
        },
    )
}

/// What an outcome must be for an uncertain effect to be called failed: an answer about the first request.
fn proves_refusal(contract: &Contract, history: &History, outcome: &Outcome, now: Timestamp) -> bool {
    let inside = contract.dedupe == Dedupe::Key
        && contract.stores == Stores::Any
        && history.safe_until(contract).is_some_and(|safe_until| now <= safe_until);
    match outcome.finding {
        Finding::Rejected(About::FirstRequest) => true,
        Finding::Rejected(About::StoredKind) => inside,
        Finding::Rejected(About::ThisAttempt)
        | Finding::Applied
        | Finding::AlreadyDone
        | Finding::KeyReused
        | Finding::StoredError
        | Finding::NotApplied
        | Finding::Unknown
        | Finding::InProgress
        | Finding::LeaseEnded => false,
    }
}

/// When an uncertain effect may be sent: inside its window, or where duplicates are accepted by name.
fn safe_to_send(contract: &Contract, timeout: Duration, history: &History, at: Timestamp) -> bool {
    let accepted = contract.dedupe == Dedupe::None && contract.on_unknown == OnUnknown::Retry;
    accepted || history.safe_until(contract).is_some_and(|safe_until| at.plus(timeout) <= safe_until)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn an_arbitrary_life_never_hides_doubt_and_never_panics(
        contract in any_contract(),
        policy in any_policy(),
        timeout in any_duration(),
        first in any_history(),
        steps in vec((any_outcome(), any_time(), any::<bool>()), 1..12),
    ) {
        let mut history = first;
        // Kept beside `History::uncertain`, so that the test does not believe what it checks.
        let mut may_have_been_applied = history.uncertain;
        for (outcome, now, cancel) in steps {
            history.cancel_requested |= cancel;
            if let Some(unsent) = before_sending(&contract, timeout, &history, now) {
                let in_doubt = matches!(unsent, Decision::Park(_) | Decision::ProbeAt(..));
                prop_assert_eq!(in_doubt, may_have_been_applied, "unsent: {:?}", unsent);
                break;
            }
            let confirmed = history.resend == Some(Resend::Confirmed);
            prop_assert!(!may_have_been_applied || confirmed || safe_to_send(&contract, timeout, &history, now));
            let decision = decide(&policy, &contract, timeout, &history, &outcome, now);
            may_have_been_applied |= matches!(
                outcome.finding,
                Finding::Unknown | Finding::InProgress | Finding::LeaseEnded | Finding::StoredError
            );
            match &decision {
                Decision::Fail(_) if may_have_been_applied => {
                    prop_assert!(proves_refusal(&contract, &history, &outcome, now), "failed without proof");
                }
                Decision::Cancel | Decision::Expire => prop_assert!(!may_have_been_applied, "{:?}", decision),
                Decision::RetryAt(at) if may_have_been_applied => {
                    prop_assert!(history.resend.is_none(), "exactly one resend");
                    prop_assert!(safe_to_send(&contract, timeout, &history, *at), "unsafe retry");
                    prop_assert!(!history.cancel_requested, "retried although cancelled");
                }
                Decision::Succeed | Decision::Fail(_) | Decision::RetryAt(_) | Decision::ProbeAt(..) | Decision::Park(_) => {}
            }
            if outcome.finding == Finding::NotApplied && !may_have_been_applied && !outcome.replayed && !history.applied_late {
                let kept_alive = matches!(decision, Decision::RetryAt(_) | Decision::Fail(_) | Decision::Cancel);
                prop_assert!(kept_alive, "certainly not applied, yet {:?}", decision);
            }
            let uncertain = uncertain_after(&history, &outcome, &decision);
            prop_assert!(uncertain || !may_have_been_applied, "doubt was forgotten after {:?}", outcome.finding);
            let parked = matches!(decision, Decision::Park(_) | Decision::ProbeAt(..));
            prop_assert!(uncertain || !parked, "in doubt, yet certain");
            let Decision::RetryAt(_) = decision else { break };
            let sent_before = history.sent_before || outcome.phase.may_have_reached();
            let (attempts, tries) = (history.attempts.saturating_add(1), history.tries.saturating_add(1));
            history = History { uncertain, sent_before, attempts, tries, ..history };
        }
    }

    #[test]
    fn a_person_who_asks_what_to_do_with_an_unsent_effect_gets_the_claims_answer(
        contract in any_contract(), timeout in any_duration(), history in any_history(), at in any_time(),
    ) {
        let sendable = before_sending(&contract, timeout, &history, at).is_none();
        let too_late = history.expires_at.is_some_and(|expires_at| at >= expires_at);
        let allowed = if history.uncertain {
            may_send_uncertain(&contract, timeout, &history, at).is_ok()
        } else {
            !too_late
        };
        prop_assert_eq!(sendable, allowed && !history.cancel_requested);
        prop_assert!(!(sendable && too_late), "begun after expires_at");
    }

    #[test]
    fn an_honest_downstream_is_charged_once_and_told_the_truth_about(
        stores in prop::sample::select(vec![Stores::Success, Stores::Any]),
        marks_replays in any::<bool>(),
        steps in vec((any_fate(), any_ruling(), 0u64..40 * 3600, prop::bool::weighted(0.05)), 1..40),
    ) {
        let contract = Contract { stores, ..Contract::key(Some(Window::For(DAY))) };
        let mut vendor = Vendor { stores, marks_replays, ..Vendor::default() };
        let life = live(&contract, &mut vendor, &steps);
        prop_assert!(vendor.applied <= 1, "applied {} times", vendor.applied);
        match life {
            Decision::Succeed => prop_assert_eq!(vendor.applied, 1, "succeeded, never applied"),
            Decision::Fail(_) | Decision::Cancel | Decision::Expire => {
                prop_assert_eq!(vendor.applied, 0, "{:?}, yet applied", life);
            }
            Decision::RetryAt(_) | Decision::ProbeAt(..) | Decision::Park(_) => {}
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const TIMEOUT: Duration = Duration::from_secs(20);

/// What the network and the worker do to one attempt.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Refused,
    RequestLost,
    AnswerLost,
    WorkerKilledBefore,
    WorkerKilledAfter,
    Fine,
}

/// What the vendor would say to a request whose key it does not hold.
#[derive(Clone, Copy, Debug)]
enum Ruling {
    Apply,
    Decline,
    Unauthorised,
    Busy,
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop::sample::select(vec![
        Fate::Refused,
        Fate::RequestLost,
        Fate::AnswerLost,
        Fate::WorkerKilledBefore,
        Fate::WorkerKilledAfter,
        Fate::Fine,
    ])
}

fn any_ruling() -> impl Strategy<Value = Ruling> {
    prop::sample::select(vec![Ruling::Apply, Ruling::Decline, Ruling::Unauthorised, Ruling::Busy])
}

/// A downstream that keeps its contract: it applies a key once, for a day.
#[derive(Default)]
struct Vendor {
    stores: Stores,
    marks_replays: bool,
    stored: Option<(Timestamp, bool)>,
    applied: u32,
}

impl Vendor {
    fn receive(&mut self, ruling: Ruling, at: Timestamp) -> Outcome {
        let held = self.stored.filter(|(since, _)| at < since.plus(DAY));
        if let Some((_, applied)) = held {
            let about =
                Finding::Rejected(if self.marks_replays { About::FirstRequest } else { About::StoredKind });
            let finding = if applied { Finding::Applied } else { about };
            return Outcome { replayed: self.marks_replays, ..Outcome::new(finding, Phase::Done, "") };
        }
        let (finding, stored) = match ruling {
            Ruling::Apply => {
                self.applied += 1;
                (Finding::Applied, Some(true))
            }
            Ruling::Decline if self.stores == Stores::Any => {
                (Finding::Rejected(About::StoredKind), Some(false))
            }
            Ruling::Decline => (Finding::Rejected(About::ThisAttempt), None),
            Ruling::Unauthorised | Ruling::Busy => (Finding::NotApplied, None),
        };
        self.stored = stored.map(|applied| (at, applied));
        Outcome::new(finding, Phase::Done, "")
    }
}

/// One effect's life in one history, without a person, until it ends, is parked, or the steps are used up.
fn live(contract: &Contract, vendor: &mut Vendor, steps: &[(Fate, Ruling, u64, bool)]) -> Decision {
    let policy = Policy { max_age: 30 * DAY, ..Policy::default() };
    let start = history().started_at;
    let mut effect = History { attempts: 0, tries: 0, started_at: start, first_sent_at: None, ..history() };
    let mut now = start;
    for (fate, ruling, pause_s, cancel) in steps {
        effect.attempts += 1;
        effect.tries += 1;
        if effect.first_sent_at.is_none() {
            effect.first_sent_at = Some(now);
            effect.window_at_claim = contract.window;
        }
        effect.cancel_requested |= cancel;
        if let Some(unsent) = before_sending(contract, TIMEOUT, &effect, now) {
            return unsent;
        }
        // The request may travel for as long as the attempt may take.
        let received_at = now.plus(TIMEOUT);
        let outcome = match fate {
            Fate::Refused => Outcome::new(Finding::NotApplied, Phase::Connect, ""),
            Fate::RequestLost => Outcome::new(Finding::Unknown, Phase::Send, ""),
            Fate::WorkerKilledBefore => Outcome::lease_ended(),
            Fate::Fine => vendor.receive(*ruling, received_at),
            Fate::AnswerLost => {
                vendor.receive(*ruling, received_at);
                Outcome::new(Finding::Unknown, Phase::Answer, "")
            }
            Fate::WorkerKilledAfter => {
                vendor.receive(*ruling, received_at);
                Outcome::lease_ended()
            }
        };
        let decision = decide(&policy, contract, TIMEOUT, &effect, &outcome, received_at);
        let Decision::RetryAt(at) = decision else { return decision };
        effect.uncertain = uncertain_after(&effect, &outcome, &decision);
        effect.sent_before |= outcome.phase.may_have_reached();
        if !effect.uncertain {
            effect.first_sent_at = None;
        }
        // Due is not claimed: a pause or an outage may come between.
        now = at.plus(Duration::from_secs(*pause_s));
    }
    Decision::RetryAt(now)
}
