//! A bulk that a dashboard carries out: listed there, followed here.

use std::collections::BTreeMap;

use aftercommit::{
    clock::{Clock as _, SystemClock},
    state::State,
    verb::{Actor, Resolved, Verb},
};
use aftercommit_dashboard::api::json::{BulkJson, BulkWishJson, FilterJson, Resolution, Time};
use serde_json::value::RawValue;

use super::{Asked, List, Many, confirm, nothing, tally::Tally, work::bar, would};
use crate::cli::{Context, Exit, people::People as _, remote::Remote};

/// Asks, starts it, follows it, and tells what became of it.
pub(super) async fn run(
    context: &Context,
    remote: &Remote,
    (verb, state, many): (&Verb, State, &Many),
    (actor, yes): (&Actor, Asked),
) -> anyhow::Result<Exit> {
    let mut wish = wish(remote, (verb, state, many), actor).await?;
    let preview = remote.preview(&wish).await?;
    let list = List::of(many, preview.outlook());
    let n = list.n;
    if many.dry_run {
        return would(context, verb, state, &list);
    }
    if n == 0 {
        return nothing(context, verb, state, &list);
    }
    confirm(verb, (n, &list.told(verb, state)), many.confirm, yes)?;
    // This list, or none: what came in meanwhile was confirmed by nobody.
    wish.limit = u32::try_from(n).ok();
    wish.digest = Some(preview.digest);
    wish.confirmation = preview.confirmation;
    let began = SystemClock.boot();
    let (bulk, interrupted) = remote.bulk(&wish, &bar(n)).await?;
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let handled = bulk.done.saturating_add(bulk.refused).saturating_add(bulk.stale).saturating_add(bulk.gone);
    // What we were not told to stop, somebody else stopped.
    let problem = (bulk.state == "cancelled" && !interrupted)
        .then(|| format!("Somebody called bulk {} off at the dashboard.", bulk.id));
    let tally = Tally {
        effects: count(bulk.total),
        done: count(bulk.done),
        stale: count(bulk.stale),
        gone: count(bulk.gone),
        refused: refused(&bulk),
        not_begun: count(bulk.total.saturating_sub(handled)),
        interrupted,
        problem,
        took: SystemClock.boot() - began,
        ..Tally::default()
    }
    .with(&list);
    tally.tell(context, verb)?;
    Ok(tally.exit())
}

/// How many were refused, by why: the dashboard tells it of the first thousand.
fn refused(bulk: &BulkJson) -> BTreeMap<String, usize> {
    let mut refused = BTreeMap::new();
    let mut untold = u64::from(bulk.refused);
    for one in bulk.not_done.iter().filter(|one| one.outcome == "refused") {
        untold = untold.saturating_sub(one.effects);
        refused.insert(one.reason.clone(), usize::try_from(one.effects).unwrap_or(usize::MAX));
    }
    if untold > 0 {
        refused
            .insert("refused: its page says why".to_owned(), usize::try_from(untold).unwrap_or(usize::MAX));
    }
    refused
}

/// What is asked for.
async fn wish(
    remote: &Remote,
    (verb, state, many): (&Verb, State, &Many),
    actor: &Actor,
) -> anyhow::Result<BulkWishJson> {
    let created_before = match many.older_than {
        Some(age) => Some(Time(remote.now().await?.minus(age))),
        None => None,
    };
    let of = |resolved: Resolved| match resolved {
        Resolved::Applied => Resolution::Applied,
        Resolved::NotApplied => Resolution::NotApplied,
    };
    let (word, found) = match verb {
        Verb::Retry => ("retry", None),
        Verb::Resend => ("resend", None),
        Verb::Cancel => ("cancel", None),
        Verb::Redact => ("redact", None),
        Verb::ResolveApplied { .. } => ("resolve", Some(Resolution::Applied)),
        Verb::ResolveNotApplied => ("resolve", Some(Resolution::NotApplied)),
        Verb::Reissue { resolve } => ("reissue", resolve.map(of)),
    };
    Ok(BulkWishJson {
        verb: word.to_owned(),
        found,
        filter: FilterJson {
            states: vec![state],
            downstream: many.downstream.clone(),
            operation: many.operation.clone(),
            metadata: many.metadata.clone().map(RawValue::from_string).transpose()?,
            error: many.error.clone(),
            created_before,
            ..FilterJson::default()
        },
        reason: actor.reason.clone(),
        rate: many.rate,
        limit: many.limit,
        confirmation: None,
        digest: None,
        dry_run: false,
    })
}
