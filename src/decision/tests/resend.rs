//! A person's one resend: whether it may be sent past the safe time.

use super::*;

#[test]
fn a_resend_that_nobody_confirmed_is_sent_in_time_or_parked_with_the_reason() {
    let contract = Contract::key(Some(Window::For(24 * HOUR)));
    let of = |resend| History { uncertain: true, window_at_claim: contract.window, resend, ..history() };
    // The last moment from which it would end before safe_until.
    let last = NOW.plus(23 * HOUR).minus(contract.margin).minus(TIMEOUT);
    let later = last.plus(Duration::from_micros(1));
    let unsent = |resend, at| before_sending(&contract, TIMEOUT, &of(resend), at);
    assert_eq!(unsent(Some(Resend::Unconfirmed), last), None);
    let Some(Decision::Park(why)) = unsent(Some(Resend::Unconfirmed), later) else {
        panic!("it was sent too late")
    };
    assert!(why.contains("only as long as its downstream certainly recognises the key"), "{why}");
    assert_eq!(unsent(Some(Resend::Confirmed), later), None, "a person said that it may be later");
    for (resend, at) in
        [(Some(Resend::Unconfirmed), Some(last)), (Some(Resend::Confirmed), None), (None, Some(last))]
    {
        assert_eq!(sweep_at(&contract, TIMEOUT, &of(resend), true), at, "{resend:?}");
    }
    let expiring = History { expires_at: Some(NOW), ..of(Some(Resend::Confirmed)) };
    assert_eq!(sweep_at(&contract, TIMEOUT, &expiring, true), Some(NOW));
}
