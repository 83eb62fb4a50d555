//! Defends the end of the promise: `safe_until` is never later than what the downstream said, at any edge.

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const SENT: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn for_hours(hours: u32) -> Option<Window> {
    Some(Window::For(hours * HOUR))
}

fn safe_hours(today: Option<Window>, at_claim: Option<Window>) -> Option<Timestamp> {
    Contract { margin: HOUR, ..Contract::key(today) }.safe_until(SENT, at_claim)
}

#[test]
fn the_window_counts_from_the_first_sending_less_the_margin() {
    assert_eq!(safe_hours(for_hours(24), for_hours(24)), Some(SENT.plus(23 * HOUR)));
}

#[test]
fn the_shorter_of_the_window_at_the_claim_and_todays_counts() {
    assert_eq!(safe_hours(for_hours(8), for_hours(24)), Some(SENT.plus(7 * HOUR)));
    assert_eq!(safe_hours(for_hours(24), for_hours(8)), Some(SENT.plus(7 * HOUR)));
    assert_eq!(safe_hours(Some(Window::Forever), for_hours(8)), Some(SENT.plus(7 * HOUR)));
    assert_eq!(safe_hours(for_hours(8), Some(Window::Forever)), Some(SENT.plus(7 * HOUR)));
    assert_eq!(safe_hours(Some(Window::Forever), Some(Window::Forever)), Some(Timestamp::MAX));
}

#[test]
fn an_unpublished_window_promises_nothing_then_or_now() {
    assert_eq!(safe_hours(None, for_hours(24)), None);
    assert_eq!(safe_hours(for_hours(24), None), None);
    assert_eq!(safe_hours(Some(Window::Forever), None), None);
}

#[test]
fn without_deduplication_no_time_is_safe() {
    for dedupe in [Dedupe::Lookup, Dedupe::None] {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry] {
            let contract = Contract { dedupe, window: for_hours(24), ..Contract::none(on_unknown) };
            assert_eq!(contract.safe_until(SENT, for_hours(24)), None);
        }
    }
}

#[test]
fn a_window_that_no_retry_fits_into_is_refused_and_nothing_overflows() {
    let timeout = Duration::from_secs(20);
    let window = |window| Contract::key(Some(Window::For(window))).refuses(timeout).is_some();
    assert!(window(timeout + DEFAULT_MARGIN));
    assert!(!window(timeout + DEFAULT_MARGIN + Duration::from_micros(1)));
    let huge = Contract { margin: Duration::MAX, ..Contract::key(for_hours(24)) };
    assert!(huge.refuses(Duration::MAX).is_some());
    assert!(Contract::key(None).refuses(timeout).is_none(), "unpublished is honest, if useless");
    assert!(Contract::key(Some(Window::Forever)).refuses(timeout).is_none());
}

#[test]
fn a_window_without_a_key_and_a_lookup_without_a_probe_are_refused() {
    let none = Contract { window: for_hours(1), ..Contract::none(OnUnknown::Retry) };
    assert!(none.refuses(HOUR).is_some_and(|why| why.contains("window")));
    let lookup = Contract { dedupe: Dedupe::Lookup, ..Contract::none(OnUnknown::Hold) };
    assert!(lookup.refuses(HOUR).is_some_and(|why| why.contains("probe")));
    assert_eq!(Contract { can_probe: true, ..lookup }.refuses(HOUR), None);
}

#[test]
fn windows_read_back_from_microseconds() {
    for window in [Window::Forever, Window::For(Duration::ZERO), Window::For(24 * HOUR)] {
        assert_eq!(Window::from_micros(window.micros()), window);
    }
    assert_eq!(Window::from_micros(-1), Window::For(Duration::ZERO), "a negative window protects nothing");
    assert_eq!(Window::from_micros(i64::MIN), Window::For(Duration::ZERO));
}

#[test]
fn keys_are_refused_by_length_and_alphabet_and_never_changed() {
    let rule = |min_len, max_len, charset| KeyRule { min_len, max_len, charset };
    let token = rule(3, 8, KeyCharset::Token);
    assert_eq!(token.refuses("a_B:9-"), None);
    for bad in ["ab", "abcdefghi", "a b", "a/b", "é_1"] {
        assert!(token.refuses(bad).is_some(), "{bad:?}");
    }
    let uuid = rule(1, 255, KeyCharset::Uuid);
    assert_eq!(uuid.refuses("8e03978e-40d5-43e8-bc93-6894a57f9324"), None);
    for bad in ["8e03978e40d543e8bc936894a57f9324", "{8e03978e-40d5-43e8-bc93-6894a57f9324}", "order-17", ""]
    {
        assert!(uuid.refuses(bad).is_some(), "{bad:?}");
    }
    let printable = KeyRule::default();
    assert_eq!(printable.refuses(&"x".repeat(255)), None);
    for bad in ["", &"x".repeat(256), "tab\t", "nul\0", "é", "del\u{7f}"] {
        assert!(printable.refuses(bad).is_some(), "{bad:?}");
    }
}

fn any_window() -> impl Strategy<Value = Window> {
    prop_oneof![Just(Window::Forever), any::<u64>().prop_map(|s| Window::For(Duration::from_secs(s)))]
}

proptest! {
    #[test]
    fn safe_until_is_never_later_than_either_window_says(
        sent in any::<i64>(), margin in any::<u64>(), today in any_window(), at_claim in any_window(),
    ) {
        let contract = Contract { margin: Duration::from_micros(margin), ..Contract::key(Some(today)) };
        let sent = Timestamp::from_micros(sent);
        let safe_until = contract.safe_until(sent, Some(at_claim)).expect("both windows are published");
        for window in [today, at_claim] {
            if let Window::For(length) = window {
                prop_assert!(safe_until <= sent.plus(length));
            }
        }
        prop_assert_eq!(Some(safe_until), Contract { window: Some(at_claim), ..contract }.safe_until(sent, Some(today)));
    }
}
