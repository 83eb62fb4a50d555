//! Whose effect is which: the effects that one mail to several recipients became. Found by their keys, which follow from the
//! first one's; nothing in the database names them together.

use std::collections::HashMap;

use aftercommit::{
    effect::{EffectId, recipients_of},
    key::derive,
    state::State,
    store::{Filter, Status},
};
use serde_json::{Value, json};

use crate::cli::{Grid, people::People, table};

/// They are written in one transaction, so their numbers are near each other: so many effects of the downstream, on either side,
/// are looked through for the others.
const NEAR: u32 = 300;

/// A recipient of the mail, and what became of the effect that is theirs; `None` where it was not found near by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recipient {
    address: String,
    effect: Option<(EffectId, State)>,
}

/// The recipients of the mail that `effect` is a part of, in the order to, cc, bcc; none where it has only one, or the payload is
/// no mail.
///
/// # Errors
///
/// When the database fails.
pub(super) async fn of(
    people: &dyn People,
    effect: &Status,
    (payload, target): (&str, &str),
) -> anyhow::Result<Vec<Recipient>> {
    let Ok(addresses) = recipients_of(payload) else { return Ok(Vec::new()) };
    if addresses.len() < 2 || !addresses.iter().any(|address| address == target) {
        return Ok(Vec::new());
    }
    let filter = Filter {
        downstream: Some(effect.downstream.clone()),
        before: Some(EffectId::new(effect.id.get().saturating_add(i64::from(NEAR)))),
        limit: 2 * NEAR,
        ..Filter::default()
    };
    Ok(found(effect, target, addresses, &people.effects(&filter).await?.effects))
}

/// Pure: `near` are effects of the same downstream.
fn found(effect: &Status, target: &str, addresses: Vec<String>, near: &[Status]) -> Vec<Recipient> {
    let own = effect.idempotency_key.as_str();
    let key = |first: &str, n: usize, address: &str| {
        if n == 0 { first.to_owned() } else { derive(&effect.downstream, first, address).to_string() }
    };
    let place = addresses.iter().position(|address| address == target).unwrap_or_default();
    // Only the first one's key gives this one's: who has it is the first, whatever else stands near by.
    let first =
        near.iter().map(|of| of.idempotency_key.as_str()).find(|first| key(first, place, target) == own);
    let by_key: HashMap<&str, &Status> = near.iter().map(|of| (of.idempotency_key.as_str(), of)).collect();
    let of = |(n, address): (usize, String)| {
        let there = first.and_then(|first| by_key.get(key(first, n, &address).as_str()));
        let there = there.map(|status| (status.id, status.state));
        let effect = if n == place { Some((effect.id, effect.state)) } else { there };
        Recipient { address, effect }
    };
    addresses.into_iter().enumerate().map(of).collect()
}

/// As a table; the effect that is shown has a mark.
pub(super) fn grid(recipients: &[Recipient], shown: EffectId) -> Grid {
    let mut grid = Grid::new(&["  ID", "RECIPIENT", "STATE"]).numbers(&[0]).cut(&[1]);
    for Recipient { address, effect } in recipients {
        let is_shown = effect.is_some_and(|(id, _)| id == shown);
        let address = if is_shown { format!("{address} (this one)") } else { address.clone() };
        grid.row(vec![
            table::maybe(effect.map(|(id, _)| id)),
            table::cell(address),
            effect.map_or_else(|| table::maybe(None::<String>), |(_, state)| table::state(state, None)),
        ]);
    }
    grid
}

/// For `--json`.
pub(super) fn json(recipients: &[Recipient]) -> Option<Value> {
    let of = |Recipient { address, effect }: &Recipient| {
        let (id, state) = effect.map(|(id, state)| (id.get(), state.as_str())).unzip();
        json!({ "recipient": address, "id": id, "state": state })
    };
    (!recipients.is_empty()).then(|| recipients.iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use aftercommit::clock::Timestamp;

    use super::*;

    fn of(id: i64, key: &str) -> Status {
        Status {
            id: EffectId::new(id),
            downstream: "mail".to_owned(),
            operation: None,
            idempotency_key: key.to_owned(),
            state: State::Ready,
            held_by: None,
            attempts: 0,
            due_at: None,
            first_sent_at: None,
            safe_until: None,
            lease_until: None,
            worker: None,
            last_outcome: None,
            last_error: None,
            response_status: None,
            refusal_stored: false,
            payload_dropped: false,
            log_dropped: false,
            response: None,
            metadata: None,
            superseded_by: None,
            created_at: Timestamp::from_micros(0),
            finished_at: None,
            token: 0,
            quiet_at: None,
            uncertain: false,
        }
    }

    #[test]
    fn the_effects_of_one_mail_find_each_other_by_their_keys() {
        let key = |address: &str| derive("mail", "order-17", address).to_string();
        let (ann, bob) = (of(7, "order-17"), of(8, &key("bob@x.test")));
        let near = [of(9, "other"), bob.clone(), ann.clone()];
        let addresses = || ["ann@x.test", "bob@x.test", "cid@x.test"].map(str::to_owned).to_vec();
        for (shown, target) in [(&ann, "ann@x.test"), (&bob, "bob@x.test")] {
            let all = found(shown, target, addresses(), &near);
            let ids: Vec<_> = all.iter().map(|one| one.effect.map(|(id, _)| id.get())).collect();
            assert_eq!(ids, [Some(7), Some(8), None], "{target}");
        }
    }

    #[test]
    fn an_effect_that_was_written_alone_finds_nobody_elses() {
        let alone = of(7, "my-own-key");
        let near = [alone.clone(), of(8, "order-18"), of(6, "order-17")];
        let all =
            found(&alone, "bob@x.test", ["ann@x.test", "bob@x.test"].map(str::to_owned).to_vec(), &near);
        let ids: Vec<_> = all.iter().map(|one| one.effect.map(|(id, _)| id.get())).collect();
        assert_eq!(ids, [None, Some(7)]);
    }
}
