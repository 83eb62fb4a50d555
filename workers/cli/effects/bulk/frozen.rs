//! The list that is acted on: made once, by keyset pages, before anything is asked or done.

use std::collections::BTreeMap;

use aftercommit::{
    effect::EffectId,
    state::State,
    store::{Beside, Database, Filter, PAGE_MAX, Status},
    verb::{Listed, Outlook, Seen, Verb, foresee, looks_beside},
};
use indicatif::ProgressBar;

use super::Many;

/// The effects as they were seen, oldest first, and what is told of them.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    pub(super) effects: Vec<(EffectId, Seen)>,
    pub(super) outlook: Outlook,
}

/// Collects what is chosen now, without what the verb is certainly refused for.
pub(super) async fn collect(
    store: &dyn Database,
    (verb, state): (&Verb, State),
    many: &Many,
) -> anyhow::Result<Frozen> {
    let now = store.now().await?;
    let written_by = many.older_than.map(|age| now.minus(age));
    let mut outlook = Outlook::default();
    let spinner = ProgressBar::new_spinner().with_message("looking for them");
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let filter = Filter {
            states: vec![state],
            downstream: many.downstream.clone(),
            operation: many.operation.clone(),
            metadata: many.metadata.clone(),
            error: many.error.clone(),
            created_before: written_by,
            before,
            limit: PAGE_MAX,
            ..Filter::default()
        };
        let page = store.effects(&filter).await?;
        spinner.inc(u64::try_from(page.effects.len()).unwrap_or(0));
        let beside = beside(store, verb, &page.effects).await?;
        for effect in &page.effects {
            let beside = beside.get(&effect.id);
            match foresee(verb, effect, beside, now) {
                Some(refusal) => outlook.refuse(&refusal),
                None => {
                    let seen = Seen { state: effect.state, token: effect.token };
                    found.push((effect.id, seen, Listed::of(effect, beside)));
                }
            }
        }
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    spinner.finish_and_clear();
    // Pages come newest first; who waited longest is helped first.
    found.reverse();
    let matching = found.len();
    if let Some(limit) = many.limit {
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    outlook.left_out = u64::try_from(matching - found.len()).unwrap_or(u64::MAX);
    let mut effects = Vec::with_capacity(found.len());
    for (id, seen, listed) in found {
        outlook.list(&listed);
        effects.push((id, seen));
    }
    Ok(Frozen { effects, outlook })
}

/// What is to be known of these besides their rows; where this login may not look there, less is foreseen.
async fn beside(
    store: &dyn Database,
    verb: &Verb,
    effects: &[Status],
) -> anyhow::Result<BTreeMap<EffectId, Beside>> {
    if !looks_beside(verb) || effects.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<EffectId> = effects.iter().map(|effect| effect.id).collect();
    match store.beside(&ids).await {
        Ok(known) => Ok(known.into_iter().map(|beside| (beside.id, beside)).collect()),
        Err(error) if error.is_forbidden() => Ok(BTreeMap::new()),
        Err(error) => Err(error.into()),
    }
}
