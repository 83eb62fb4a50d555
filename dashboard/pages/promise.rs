//! What a downstream promises, in plain words, and what that means for an effect now. Pure.

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc},
    },
    contract::{Contract, Dedupe, OnUnknown, Window},
    follow::is_of_a_used_key,
    store::Status,
    visible::clean,
};

/// The contract, as people need it to decide.
pub(super) fn in_words(contract: &Contract) -> String {
    let asked = if contract.can_probe {
        format!(
            " It can be asked whether something was applied; what it does not show {} after the last request was not.",
            span(contract.absent_after)
        )
    } else {
        String::new()
    };
    let promise = match (contract.dedupe, contract.window, contract.on_unknown) {
        (Dedupe::Key, Some(Window::Forever), _) => {
            "It recognises our key for ever: the same request sent again is applied once. After a timeout it is sent again."
                .to_owned()
        }
        (Dedupe::Key, Some(Window::For(length)), _) => format!(
            "It recognises our key for {}: within that time the same request sent again is applied once. After a timeout it is \
             sent again as long as that is safe, and then a person is asked.",
            span(length)
        ),
        (Dedupe::Key, None, _) => "It takes our key and does not say for how long it recognises it. After a timeout a person is \
                                   asked."
            .to_owned(),
        (Dedupe::Lookup, _, _) => {
            "It cannot tell a repeated request from a new one. After a timeout it is asked, and the request is sent again only \
             when it was seen absent twice."
                .to_owned()
        }
        (Dedupe::None, _, OnUnknown::Hold) => "It cannot tell a repeated request from a new one. After a timeout nothing is sent \
                                               again: a person is asked."
            .to_owned(),
        (Dedupe::None, _, OnUnknown::Retry) => "It cannot tell a repeated request from a new one, and duplicates are accepted: \
                                                after a timeout it is sent again."
            .to_owned(),
    };
    promise + &asked
}

/// What the contract means for an effect whose outcome is not known.
pub(super) fn means_now(effect: &Status, contract: Option<&Contract>, now: Timestamp) -> String {
    let name = clean(&effect.downstream);
    let Some(contract) = contract else {
        return format!("No worker ever said what {name} promises, so sending it again may apply it twice.");
    };
    if is_of_a_used_key(effect) {
        return format!(
            "{name} knew this key before this effect was ever sent: what stands there under it need not be this effect, and the key \
             protects nothing. Sending it again would get the same answer or, once the key is forgotten there, may apply it twice."
        );
    }
    let ago = effect.first_sent_at.map(|at| format!("; this was first sent {} ago", span(now.since(at))));
    let ago = ago.unwrap_or_default();
    let how_long = match (contract.dedupe, contract.window) {
        (Dedupe::None, _) => {
            let accepted = match contract.on_unknown {
                OnUnknown::Retry => ", which is accepted here",
                OnUnknown::Hold => "",
            };
            return format!(
                "{name} cannot tell a repeated request from a new one: sending it again may apply it twice{accepted}."
            );
        }
        (Dedupe::Lookup, _) => {
            return format!(
                "{name} cannot tell a repeated request from a new one, but it can be asked. Until it answered, sending it again may \
                 apply it twice."
            );
        }
        (Dedupe::Key, None) => {
            return format!(
                "{name} does not say how long it recognises a key{ago}. Sending it again may apply it twice."
            );
        }
        (Dedupe::Key, Some(Window::Forever)) => "for ever".to_owned(),
        (Dedupe::Key, Some(Window::For(length))) => format!("for {}", span(length)),
    };
    // What it says today is not all: what it said when this was first sent counts too.
    match effect.safe_until {
        Some(Timestamp::MAX) => {
            format!("{name} recognises a key {how_long}: the same request sent again is applied once.")
        }
        Some(until) if now < until => format!(
            "{name} recognises a key {how_long}{ago}. Until {} the same request sent again is applied once.",
            utc(until)
        ),
        Some(_) if contract.window == Some(Window::Forever) => format!(
            "{name} recognises a key {how_long} today, and did not say so when this was first sent{ago}: the key no longer \
             protects, and sending it again may apply it twice."
        ),
        Some(_) | None => format!(
            "{name} recognises a key {how_long}{ago}: the key no longer protects, and sending it again may apply it twice."
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aftercommit::{
        decision::KEY_USED_BEFORE,
        follow::{key_protects, sent_once_more},
    };

    use super::*;
    use crate::pages::doubt::tests::effect;

    const HOUR: u64 = 3_600;

    fn at(hours: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(Duration::from_secs(hours * HOUR))
    }

    fn first_sent_at_0(safe_until: Option<Timestamp>) -> Status {
        Status { first_sent_at: Some(at(0)), safe_until, ..effect() }
    }

    fn contracts() -> Vec<Contract> {
        let day = Window::For(Duration::from_secs(24 * HOUR));
        vec![
            Contract::key(Some(Window::Forever)),
            Contract::key(Some(day)),
            Contract::key(None),
            Contract::none(OnUnknown::Hold),
            Contract::none(OnUnknown::Retry),
            Contract { dedupe: Dedupe::Lookup, ..Contract::none(OnUnknown::Hold) },
        ]
    }

    #[test]
    fn what_no_longer_protects_is_never_called_safe() {
        for contract in contracts() {
            for until in [Some(at(24)), None] {
                // 31 h old, claimed when keys were kept for a day: also where they are kept for ever today.
                let effect = first_sent_at_0(until);
                let said = means_now(&effect, Some(&contract), at(31));
                assert!(said.contains("twice") && !said.contains("applied once"), "{contract:?}: {said}");
                assert_eq!(sent_once_more(&effect, at(31)), "which may apply it twice");
            }
            let why = Some(format!("{KEY_USED_BEFORE}, as our log holds no attempt"));
            let used = Status { last_error: why, ..first_sent_at_0(Some(Timestamp::MAX)) };
            let said = means_now(&used, Some(&contract), at(1));
            assert!(said.contains("knew this key before") && !said.contains("applied once"), "{said}");
            assert!(!key_protects(&used, at(1)));
        }
    }

    #[test]
    fn what_protects_says_until_when() {
        let contracts = contracts();
        let [for_ever, day, ..] = contracts.as_slice() else { panic!("{contracts:?}") };
        let said = means_now(&first_sent_at_0(Some(at(24))), Some(day), at(1));
        assert!(said.contains(&utc(at(24))) && said.contains("applied once"), "{said}");
        let said = means_now(&first_sent_at_0(Some(at(24))), Some(for_ever), at(1));
        assert!(said.contains(&utc(at(24))), "what it said at the first claim counts: {said}");
        let said = means_now(&first_sent_at_0(Some(Timestamp::MAX)), Some(for_ever), at(1));
        assert!(said.contains("for ever") && said.contains("applied once"), "{said}");
    }
}
