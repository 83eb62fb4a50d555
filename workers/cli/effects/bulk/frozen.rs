//! The list that is acted on: made once, by keyset pages, before anything is asked or done.

use std::collections::BTreeMap;

use aftercommit::{
    effect::EffectId,
    state::State,
    store::{Database, Filter, PAGE_MAX},
    verb::Seen,
};
use indicatif::ProgressBar;

use super::Many;

/// The effects as they were seen, oldest first.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    pub(super) effects: Vec<(EffectId, Seen)>,
    pub(super) by_downstream: BTreeMap<String, u64>,
    /// How many match besides: younger ones than `--limit` takes.
    pub(super) left_out: u64,
}

impl Frozen {
    pub(super) fn len(&self) -> usize {
        self.effects.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}

/// Collects what is chosen now.
pub(super) async fn collect(store: &dyn Database, state: State, many: &Many) -> anyhow::Result<Frozen> {
    let written_by = match many.older_than {
        Some(age) => Some(store.now().await?.minus(age)),
        None => None,
    };
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
        found.extend(
            page.effects.into_iter().map(|status| {
                (status.id, Seen { state: status.state, token: status.token }, status.downstream)
            }),
        );
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
    let left_out = u64::try_from(matching - found.len()).unwrap_or(u64::MAX);
    let mut frozen = Frozen { left_out, ..Frozen::default() };
    for (id, seen, downstream) in found {
        *frozen.by_downstream.entry(downstream).or_default() += 1;
        frozen.effects.push((id, seen));
    }
    Ok(frozen)
}
