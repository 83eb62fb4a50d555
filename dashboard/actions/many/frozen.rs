//! The list of a bulk: what matches now, without what the verb is certainly refused for, the oldest first.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{BULK_MAX, Beside, Filter, PAGE_MAX, Page, Status},
    verb::{Listed, Outlook, Seen, Verb, foresee, looks_beside},
};
use axum::http::StatusCode;

use super::{BulkWish, Preview, consequence, takes};
use crate::{
    actions::unusable,
    causes::{self, Members},
    digest::digest,
    problem::Problem,
    shared::Shared,
};

/// Longer than this nobody waits for a list to be made.
const COLLECT_MAX: Duration = Duration::from_secs(60);

/// The effects as they were seen, oldest first, and what is told of them.
pub(super) struct Frozen {
    pub(super) items: Vec<(EffectId, Seen)>,
    /// The group that they were chosen by, in words.
    pub(super) cause: Option<String>,
    outlook: Outlook,
}

impl Frozen {
    pub(super) fn preview(&self, wish: &BulkWish) -> Preview {
        Preview {
            outlook: self.outlook.clone(),
            digest: self.digest(&wish.verb),
            consequence: consequence(&wish.verb, self.items.len()),
        }
    }

    fn digest(&self, verb: &Verb) -> String {
        let items =
            self.items.iter().map(|(id, seen)| format!("{id} {} {}", seen.state.as_str(), seen.token));
        let parts: Vec<String> = [verb.as_str().to_owned()].into_iter().chain(items).collect();
        digest(parts.iter().map(String::as_str))
    }
}

/// Lists what matches now: pages come newest first, and the oldest are kept.
pub(super) async fn freeze(shared: &Shared, wish: &BulkWish) -> Result<Frozen, Problem> {
    let filter = Filter { states: states(wish)?, before: None, limit: PAGE_MAX, ..wish.filter.clone() };
    // A list of none is no list, and never one of all.
    if wish.limit == Some(0) {
        return Err(unusable("limit: write a number from 1; left out, as many are taken as are configured."));
    }
    let keep = wish.limit.unwrap_or(u32::MAX).min(shared.settings().bulk.max);
    let keep = usize::try_from(keep).unwrap_or(usize::MAX).clamp(1, BULK_MAX);
    let collected = tokio::time::timeout(COLLECT_MAX, Collected::of(shared, wish, (filter, keep))).await;
    Ok(collected.map_err(|_late| too_many())??.frozen())
}

/// What was found so far, the newest first.
#[derive(Default)]
struct Collected {
    found: VecDeque<(EffectId, Seen, Listed)>,
    outlook: Outlook,
    cause: Option<String>,
}

impl Collected {
    async fn of(
        shared: &Shared,
        wish: &BulkWish,
        (mut filter, keep): (Filter, usize),
    ) -> Result<Self, Problem> {
        let now = shared.database().now().await?;
        let members = match &wish.cause {
            // Of a group that is gone there is nothing left.
            Some(cause) => {
                let at = wish.at.unwrap_or(now);
                Some(causes::members(shared, cause, (&filter, at)).await?.unwrap_or_default())
            }
            None => None,
        };
        let mut collected = Self::default();
        loop {
            let page = page(shared, members.as_ref(), &filter).await?;
            let beside = beside(shared, &wish.verb, &page.effects).await?;
            for effect in page.effects {
                collected.take((&wish.verb, now), &effect, beside.get(&effect.id));
                if collected.found.len() > keep {
                    collected.found.pop_front();
                    collected.outlook.left_out += 1;
                }
            }
            match page.next {
                Some(next) => filter.before = Some(next),
                None => break,
            }
        }
        collected.cause = members.map(|members| members.words);
        Ok(collected)
    }

    fn take(&mut self, (verb, now): (&Verb, Timestamp), effect: &Status, beside: Option<&Beside>) {
        match foresee(verb, effect, beside, now) {
            Some(refusal) => self.outlook.refuse(&refusal),
            None => {
                let seen = Seen { state: effect.state, token: effect.token };
                self.found.push_back((effect.id, seen, Listed::of(effect, beside)));
            }
        }
    }

    fn frozen(mut self) -> Frozen {
        let mut items = Vec::with_capacity(self.found.len());
        for (id, seen, listed) in self.found.into_iter().rev() {
            self.outlook.list(&listed);
            items.push((id, seen));
        }
        Frozen { items, cause: self.cause, outlook: self.outlook }
    }
}

/// What a bulk acts on is what a list shows.
async fn page(shared: &Shared, members: Option<&Members>, filter: &Filter) -> Result<Page, Problem> {
    match members {
        Some(members) => members.page(shared, filter).await,
        None => Ok(shared.eyes().effects(filter).await?),
    }
}

/// What is to be known of these besides their rows. A login that may only view may not look there: less is foreseen then, and nothing
/// is acted on.
async fn beside(
    shared: &Shared,
    verb: &Verb,
    effects: &[Status],
) -> Result<BTreeMap<EffectId, Beside>, Problem> {
    if !looks_beside(verb) || effects.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<EffectId> = effects.iter().map(|effect| effect.id).collect();
    match shared.database().beside(&ids).await {
        Ok(known) => Ok(known.into_iter().map(|beside| (beside.id, beside)).collect()),
        Err(error) if error.is_forbidden() => Ok(BTreeMap::new()),
        Err(error) => Err(error.into()),
    }
}

fn too_many() -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "too-many",
        "Too many match",
        format!(
            "To list what matches took longer than {} s, and nothing was done. Narrow it: by a downstream, by an age.",
            COLLECT_MAX.as_secs()
        ),
    )
}

/// The states that are asked for, of those that the verb takes.
fn states(wish: &BulkWish) -> Result<Vec<State>, Problem> {
    let taken = takes(&wish.verb);
    if wish.filter.states.is_empty() {
        return Ok(taken.to_vec());
    }
    match wish.filter.states.iter().find(|state| !taken.contains(state)) {
        None => Ok(wish.filter.states.clone()),
        Some(other) => {
            let words: Vec<&str> = taken.iter().map(|state| state.as_str()).collect();
            Err(unusable(format!("{} takes {}, not {other}.", wish.verb.as_str(), words.join(", "))))
        }
    }
}
