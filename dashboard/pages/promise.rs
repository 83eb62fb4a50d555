//! What a downstream promises, in plain words, and what that means for an effect now. Pure.

use aftercommit::{
    clock::{
        Timestamp,
        words::{span, utc},
    },
    contract::{Contract, Dedupe, OnUnknown, Window},
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
    let ago = effect.first_sent_at.map(|at| format!("; this was first sent {} ago", span(now.since(at))));
    let ago = ago.unwrap_or_default();
    match (contract.dedupe, contract.window) {
        (Dedupe::None, _) => {
            format!(
                "{name} cannot tell a repeated request from a new one: sending it again may apply it twice."
            )
        }
        (Dedupe::Lookup, _) => format!(
            "{name} cannot tell a repeated request from a new one, but it can be asked. Until it answered, sending it again may \
             apply it twice."
        ),
        (Dedupe::Key, None) => {
            format!(
                "{name} does not say how long it recognises a key{ago}. Sending it again may apply it twice."
            )
        }
        (Dedupe::Key, Some(Window::Forever)) => {
            format!("{name} recognises keys for ever: the same request sent again is applied once.")
        }
        (Dedupe::Key, Some(Window::For(length))) => match effect.safe_until.filter(|until| now < *until) {
            Some(until) => format!(
                "{name} recognises a key for {}{ago}. Until {} the same request sent again is applied once.",
                span(length),
                utc(until)
            ),
            None => format!(
                "{name} recognises a key for {}{ago}: the key no longer protects, and sending it again may apply it twice.",
                span(length)
            ),
        },
    }
}
