//! Defends the decision table of the design, cell by cell: every row × certain or uncertain × every contract × probe or
//! none × budget × cancel × resend (confirmed or not), against an oracle that is written from the design's words and not from the code.

mod resend;

use super::*;
use crate::outcome::Phase;

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(20);
const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// The columns of the contract table, with `key` by where its window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    KeyInside,
    KeyOutside,
    KeyUnpublished,
    KeyForever,
    Lookup,
    Hold,
    Retry,
}

const PROMISES: [Promise; 7] = [
    Promise::KeyInside,
    Promise::KeyOutside,
    Promise::KeyUnpublished,
    Promise::KeyForever,
    Promise::Lookup,
    Promise::Hold,
    Promise::Retry,
];

impl Promise {
    fn contract(self, can_probe: bool, stores: Stores) -> Contract {
        let day = Some(Window::For(24 * HOUR));
        let contract = match self {
            Self::KeyInside | Self::KeyOutside => Contract::key(day),
            Self::KeyUnpublished => Contract::key(None),
            Self::KeyForever => Contract::key(Some(Window::Forever)),
            Self::Lookup => Contract { dedupe: Dedupe::Lookup, ..Contract::none(OnUnknown::Hold) },
            Self::Hold => Contract::none(OnUnknown::Hold),
            Self::Retry => Contract::none(OnUnknown::Retry),
        };
        Contract { can_probe, absent_after: HOUR, stores, ..contract }
    }

    fn first_sent_at(self) -> Timestamp {
        match self {
            Self::KeyInside | Self::KeyUnpublished | Self::Lookup | Self::Hold | Self::Retry => {
                NOW.minus(HOUR)
            }
            Self::KeyOutside => NOW.minus(24 * HOUR),
            Self::KeyForever => NOW.minus(2000 * HOUR),
        }
    }

    /// "before `safe_until`", or duplicates accepted by name.
    fn sends_uncertain_again(self) -> bool {
        matches!(self, Self::KeyInside | Self::KeyForever | Self::Retry)
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    promise: Promise,
    uncertain: bool,
    sent_before: bool,
    can_probe: bool,
    stores: Stores,
    budget_left: bool,
    cancel: bool,
    resend: Option<Resend>,
}

impl Cell {
    /// Every cell that can be: only an uncertain effect is resent.
    fn all() -> impl Iterator<Item = Self> {
        PROMISES.into_iter().flat_map(|promise| {
            (0u16..256).map(move |bits| {
                let bit = |n: u8| bits & (1 << n) != 0;
                Self {
                    promise,
                    uncertain: bit(0),
                    sent_before: bit(1),
                    can_probe: bit(2),
                    stores: if bit(3) { Stores::Any } else { Stores::Success },
                    budget_left: bit(4),
                    cancel: bit(5),
                    resend: Resend::stored(bit(0) && bit(6), bit(0) && bit(7)),
                }
            })
        })
    }

    fn contract(&self) -> Contract {
        self.promise.contract(self.can_probe, self.stores)
    }

    fn history(&self) -> History {
        History {
            uncertain: self.uncertain,
            sent_before: self.sent_before,
            attempts: if self.budget_left { 3 } else { 100 },
            first_sent_at: Some(self.promise.first_sent_at()),
            window_at_claim: self.contract().window,
            resend: self.resend,
            cancel_requested: self.cancel,
            ..history()
        }
    }

    fn decide(&self, outcome: &Outcome) -> Decision {
        decide(&Policy::default(), &self.contract(), TIMEOUT, &self.history(), outcome, NOW)
    }

    /// "probed if it can be, else parked".
    fn doubt(&self) -> Want {
        if self.can_probe { Want::Probe } else { Want::Park }
    }

    /// A row that says *retry* of an effect that may have been applied.
    fn retry_uncertain(&self) -> Want {
        let may =
            self.promise.sends_uncertain_again() && self.budget_left && !self.cancel && self.resend.is_none();
        if may { Want::Retry } else { self.doubt() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Succeed,
    Fail,
    Retry,
    Probe,
    Park,
    Cancel,
}

fn kind(decision: &Decision) -> Want {
    match decision {
        Decision::Succeed => Want::Succeed,
        Decision::Fail(_) => Want::Fail,
        Decision::RetryAt(at) => {
            assert!(*at > NOW, "a retry is never at once");
            Want::Retry
        }
        Decision::ProbeAt(at, _) => {
            assert_eq!(*at, NOW.plus(TIMEOUT), "a probe waits while the request may travel");
            Want::Probe
        }
        Decision::Park(_) => Want::Park,
        Decision::Cancel => Want::Cancel,
        Decision::Expire => panic!("an outcome never expires an effect"),
    }
}

pub(super) fn history() -> History {
    History {
        id: EffectId::new(17),
        uncertain: false,
        sent_before: false,
        attempts: 1,
        tries: 3,
        started_at: NOW.minus(2 * HOUR),
        first_sent_at: Some(NOW.minus(HOUR)),
        window_at_claim: None,
        expires_at: None,
        resend: None,
        cancel_requested: false,
        applied_late: false,
        travels_until: Some(NOW.plus(TIMEOUT)),
    }
}

fn outcome(finding: Finding) -> Outcome {
    Outcome::new(finding, Phase::Done, "what it said")
}

/// Holds one row of the table against every cell.
fn row(finding: Finding, want: impl Fn(&Cell) -> Want) {
    for cell in Cell::all() {
        let decision = cell.decide(&outcome(finding));
        assert_eq!(kind(&decision), want(&cell), "{finding:?} in {cell:?} gave {decision:?}");
    }
}

const FINDINGS: [Finding; 11] = [
    Finding::Applied,
    Finding::AlreadyDone,
    Finding::Rejected(About::ThisAttempt),
    Finding::Rejected(About::StoredKind),
    Finding::Rejected(About::FirstRequest),
    Finding::KeyReused,
    Finding::StoredError,
    Finding::NotApplied,
    Finding::Unknown,
    Finding::InProgress,
    Finding::LeaseEnded,
];

#[test]
fn a_replay_that_our_log_does_not_explain_is_in_doubt_whatever_it_says() {
    for finding in FINDINGS {
        for cell in Cell::all().filter(|cell| !cell.uncertain && !cell.sent_before) {
            let replay = Outcome { replayed: true, ..outcome(finding) };
            let Decision::Park(why) = cell.decide(&replay) else {
                panic!("{finding:?} in {cell:?} was not parked")
            };
            assert!(why.contains("this key was used before"), "{why}");
        }
    }
}

#[test]
fn a_replay_that_our_log_explains_is_judged_by_what_it_says() {
    for finding in FINDINGS {
        for cell in Cell::all().filter(|cell| cell.uncertain || cell.sent_before) {
            let replay = Outcome { replayed: true, ..outcome(finding) };
            assert_eq!(cell.decide(&replay), cell.decide(&outcome(finding)), "{finding:?} in {cell:?}");
        }
    }
}

#[test]
fn a_reused_key_fails_only_if_it_cannot_have_been_us() {
    row(Finding::KeyReused, |cell| if cell.uncertain || cell.sent_before { Want::Park } else { Want::Fail });
    for cell in Cell::all() {
        if let Decision::Fail(why) = cell.decide(&outcome(Finding::KeyReused)) {
            assert!(why.contains("another request holds this key"), "{why}");
        }
    }
}

#[test]
fn a_stored_server_error_is_probed_or_parked_never_retried() {
    row(Finding::StoredError, Cell::doubt);
}

#[test]
fn applied_and_already_done_succeed() {
    row(Finding::Applied, |_| Want::Succeed);
    row(Finding::AlreadyDone, |_| Want::Succeed);
}

#[test]
fn the_first_requests_stored_refusal_fails_certain_and_uncertain_alike_but_not_on_a_resend_past_the_window() {
    row(Finding::Rejected(About::FirstRequest), |cell| {
        // The downstream may have forgotten the first request: what it replays may be its answer to an earlier resend.
        if cell.resend.is_some() && cell.promise == Promise::KeyOutside { cell.doubt() } else { Want::Fail }
    });
}

#[test]
fn any_other_refusal_fails_only_a_certain_effect() {
    row(Finding::Rejected(About::ThisAttempt), |cell| if cell.uncertain { cell.doubt() } else { Want::Fail });
}

#[test]
fn a_refusal_of_a_stored_kind_is_proof_only_where_all_is_stored_and_inside_the_window() {
    row(Finding::Rejected(About::StoredKind), |cell| {
        let inside = matches!(cell.promise, Promise::KeyInside | Promise::KeyForever);
        let proves = inside && cell.stores == Stores::Any;
        if !cell.uncertain || proves { Want::Fail } else { cell.doubt() }
    });
}

#[test]
fn not_applied_retries_fails_or_cancels_a_certain_effect_and_leaves_doubt_where_it_was() {
    row(Finding::NotApplied, |cell| match (cell.uncertain, cell.promise) {
        (false, _) if !cell.budget_left => Want::Fail,
        (false, _) if cell.cancel => Want::Cancel,
        (false, _) => Want::Retry,
        (true, Promise::Lookup | Promise::Hold) => cell.doubt(),
        (true, _) => cell.retry_uncertain(),
    });
}

#[test]
fn unknown_in_progress_and_a_lost_lease_are_one_row_for_certain_and_uncertain() {
    for finding in [Finding::Unknown, Finding::InProgress, Finding::LeaseEnded] {
        row(finding, |cell| match cell.promise {
            Promise::Lookup | Promise::Hold => cell.doubt(),
            Promise::KeyInside
            | Promise::KeyOutside
            | Promise::KeyUnpublished
            | Promise::KeyForever
            | Promise::Retry => cell.retry_uncertain(),
        });
    }
}

#[test]
fn a_late_applied_settles_whatever_the_present_attempt_showed() {
    for finding in FINDINGS {
        for cell in Cell::all() {
            let history = History { applied_late: true, ..cell.history() };
            let contract = cell.contract();
            let decision = decide(&Policy::default(), &contract, TIMEOUT, &history, &outcome(finding), NOW);
            assert_eq!(decision, Decision::Succeed, "{finding:?} in {cell:?}");
        }
    }
}

#[test]
fn an_attempt_that_never_left_does_not_use_up_the_budget() {
    let policy = Policy { max_attempts: 1, ..Policy::default() };
    let contract = Contract::none(OnUnknown::Hold);
    let decide_at = |phase| {
        let refused = Outcome::new(Finding::NotApplied, phase, "");
        decide(&policy, &contract, TIMEOUT, &history(), &refused, NOW)
    };
    for phase in [Phase::Render, Phase::Connect] {
        assert_eq!(kind(&decide_at(phase)), Want::Retry, "{phase:?}");
    }
    for phase in [Phase::Send, Phase::Answer, Phase::Done, Phase::Lease] {
        assert_eq!(kind(&decide_at(phase)), Want::Fail, "{phase:?}");
    }
}

#[test]
fn max_age_runs_from_the_first_claim_and_ends_retries_also_of_attempts_that_never_left() {
    let contract = Contract::key(Some(Window::Forever));
    let refused = Outcome::new(Finding::NotApplied, Phase::Connect, "");
    let unknown = Outcome::new(Finding::Unknown, Phase::Send, "");
    let at = |age: Duration, outcome: &Outcome| {
        let history = History { started_at: NOW.minus(age), window_at_claim: contract.window, ..history() };
        kind(&decide(&Policy::default(), &contract, TIMEOUT, &history, outcome, NOW))
    };
    let max_age = Policy::default().max_age;
    let just_before = max_age - Duration::from_micros(1);
    assert_eq!((at(just_before, &refused), at(max_age, &refused)), (Want::Retry, Want::Fail));
    assert_eq!((at(just_before, &unknown), at(max_age, &unknown)), (Want::Retry, Want::Park));
}

#[test]
fn a_retry_is_decided_only_if_it_would_end_inside_the_window_to_the_microsecond() {
    let contract = Contract::key(Some(Window::For(24 * HOUR)));
    let policy = Policy::default();
    let unknown = outcome(Finding::Unknown);
    let delay = policy.delay(history().id, history().tries, None);
    // safe_until = first_sent_at + 24 h - 5 min; the last first_sent_at for which NOW + delay + timeout still fits:
    let edge = NOW.plus(delay).plus(TIMEOUT).plus(contract.margin).minus(24 * HOUR);
    for (first_sent_at, want) in [(edge, Want::Retry), (edge.minus(Duration::from_micros(1)), Want::Park)] {
        let history =
            History { first_sent_at: Some(first_sent_at), window_at_claim: contract.window, ..history() };
        assert_eq!(kind(&decide(&policy, &contract, TIMEOUT, &history, &unknown, NOW)), want);
    }
}

#[test]
fn a_delay_that_would_pass_the_window_or_the_expiry_parks_at_once() {
    let contract = Contract::key(Some(Window::For(HOUR + HOUR / 4)));
    let base = History { window_at_claim: contract.window, ..history() };
    let ask = |retry_after, expires_at| {
        let unavailable = Outcome { retry_after, ..outcome(Finding::Unknown) };
        let history = History { expires_at, ..base.clone() };
        kind(&decide(&Policy::default(), &contract, TIMEOUT, &history, &unavailable, NOW))
    };
    assert_eq!(ask(None, None), Want::Retry);
    assert_eq!(ask(Some(Duration::from_secs(590)), None), Want::Park, "Retry-After passes safe_until");
    assert_eq!(ask(None, Some(NOW.plus(Duration::from_micros(1)))), Want::Park, "it would begin too late");
}

#[test]
fn the_clock_settles_nothing_that_a_claim_may_have_sent() {
    for cell in Cell::all() {
        for expired in [false, true] {
            let expires_at = Some(if expired { NOW } else { NOW.plus(HOUR) });
            let history = History { expires_at, ..cell.history() };
            let decision = before_sending(&cell.contract(), TIMEOUT, &history, NOW).as_ref().map(kind_unsent);
            let may_send = cell.resend == Some(Resend::Confirmed) || cell.promise.sends_uncertain_again();
            let want = match (cell.uncertain, cell.cancel) {
                (false, true) => Some("cancel"),
                (false, false) => expired.then_some("expire"),
                (true, false) if may_send && !expired => None,
                (true, _) => Some(if cell.can_probe { "probe" } else { "park" }),
            };
            assert_eq!(decision, want, "{cell:?}, expired: {expired}");
        }
    }
}

fn kind_unsent(decision: &Decision) -> &'static str {
    match decision {
        Decision::Cancel => "cancel",
        Decision::Expire => "expire",
        Decision::ProbeAt(..) => "probe",
        Decision::Park(_) => "park",
        Decision::Succeed | Decision::Fail(_) | Decision::RetryAt(_) => "what only an answer can say",
    }
}
