//! What a bulk did not do, and why: its refusals, grouped by what they have in common.

use aftercommit::{
    effect::EffectId,
    store::{BulkInfo, ItemOutcome},
};

use super::cause;

/// Items of a bulk that were not done for one reason.
pub(crate) struct NotDone {
    pub(crate) outcome: ItemOutcome,
    /// Why.
    pub(crate) reason: String,
    /// How many, of those that are told.
    pub(crate) effects: u64,
    /// Which: the first of them.
    pub(crate) ids: Vec<EffectId>,
}

/// So many numbers stand in one link.
pub(crate) const LINKED_MAX: usize = 100;

/// What a bulk did not do, by what its reasons have in common: in the order in which that came up.
pub(crate) fn not_done(bulk: &BulkInfo) -> Vec<NotDone> {
    let mut found: Vec<NotDone> = Vec::new();
    for item in &bulk.refusals {
        let reason = match item.outcome {
            ItemOutcome::Refused => {
                let words = item.words.strip_prefix(&format!("effect {}: ", item.effect));
                cause(words.unwrap_or(&item.words))
            }
            ItemOutcome::Stale => "it had changed since the list was made, and was left alone".to_owned(),
            ItemOutcome::NotFound => "it is gone".to_owned(),
        };
        let known = found.iter().position(|one| one.outcome == item.outcome && one.reason == reason);
        let at = known.unwrap_or_else(|| {
            found.push(NotDone { outcome: item.outcome, reason, effects: 0, ids: Vec::new() });
            found.len() - 1
        });
        if let Some(one) = found.get_mut(at) {
            one.effects += 1;
            if one.ids.len() < LINKED_MAX {
                one.ids.push(item.effect);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use aftercommit::{
        clock::Timestamp,
        store::{BulkRefusal, BulkState},
    };

    use super::*;

    #[test]
    fn what_was_not_done_is_told_by_reason_with_the_effects() {
        let refusal = |id, outcome, words: &str| BulkRefusal {
            effect: EffectId::new(id),
            outcome,
            words: words.to_owned(),
        };
        let bulk = BulkInfo {
            id: 1,
            verb: "retry".to_owned(),
            what: String::new(),
            who: "ann".to_owned(),
            reason: None,
            from: None,
            rate: 0,
            state: BulkState::Finished,
            total: 4,
            done: 0,
            refused: 3,
            stale: 1,
            gone: 0,
            created_at: Timestamp::from_micros(1),
            finished_at: None,
            samples: Vec::new(),
            refusals: vec![
                refusal(7, ItemOutcome::Refused, "effect 7: a new effect superseded this one"),
                refusal(8, ItemOutcome::Stale, "effect 8: it is ready now (token 12)"),
                refusal(9, ItemOutcome::Refused, "effect 9: a new effect superseded this one"),
                refusal(10, ItemOutcome::Refused, "effect 10: until 2026-01-07T12:00:00Z"),
            ],
        };
        let told = not_done(&bulk);
        let told: Vec<_> =
            told.iter().map(|one| (one.reason.as_str(), one.effects, one.ids[0].get())).collect();
        assert_eq!(told[0], ("a new effect superseded this one", 2, 7));
        assert_eq!((told.len(), told[1].1, told[2]), (3, 1, ("until …", 1, 10)));
    }
}
