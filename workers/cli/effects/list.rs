//! `effects list`.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{Database, Filter, PAGE_MAX, Status},
};
use aftercommit_workers::config::nearest;
use clap::Args;

use crate::cli::{
    Context, Exit, Grid,
    clean::clean,
    context::invocation,
    data, fail,
    json::{self, EffectJson},
    output::plural,
    parse, table, talk,
    times::relative,
};

/// Which effects.
#[derive(Clone, Debug, Args)]
pub(crate) struct Which {
    /// Only this state: waiting, scheduled, ready, in_flight, retrying, in_doubt, succeeded, failed, cancelled, expired
    #[arg(long, value_parser = parse::state)]
    state: Option<State>,
    /// Only this downstream
    #[arg(long, value_name = "NAME")]
    downstream: Option<String>,
    /// Only this idempotency key
    #[arg(long)]
    key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: u32,
}

impl Which {
    /// As the store asks for it.
    pub(super) fn filter(&self, before: Option<EffectId>) -> Filter {
        Filter {
            states: self.state.into_iter().collect(),
            downstream: self.downstream.clone(),
            key: self.key.clone(),
            before,
            limit: self.limit.min(PAGE_MAX),
            ..Filter::default()
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aftercommit effects list --state in_doubt
  aftercommit effects list --downstream payments --limit 10
  aftercommit effects list --json | jq -r 'select(.held_by) | .id'")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    which: Which,
    /// Only effects with a lower number: the next page
    #[arg(long, value_name = "ID", value_parser = parse::effect_id)]
    before: Option<EffectId>,
}

/// Lists them.
pub(super) async fn run(context: &Context, args: &ListArgs) -> anyhow::Result<Exit> {
    let store = context.open().await?;
    let mut before = args.before;
    let mut left = args.which.limit;
    let (mut all, mut any): (Vec<Status>, bool) = (Vec::new(), false);
    // A page is bounded; whoever asks for more gets more pages.
    while left > 0 {
        let mut filter = args.which.filter(before);
        filter.limit = left.min(PAGE_MAX);
        let page = store.effects(&filter).await?;
        left -= u32::try_from(page.effects.len()).unwrap_or(left).min(left);
        before = page.next;
        any |= !page.effects.is_empty();
        // A table is as wide as its widest row; lines of JSON need not wait for each other.
        if context.json() {
            json::print_all(page.effects.iter().map(EffectJson::from))?;
        } else {
            all.extend(page.effects);
        }
        if before.is_none() {
            break;
        }
    }
    if !any && let Some(name) = &args.which.downstream {
        known_downstream(store.as_ref(), name).await?;
    }
    if context.json() {
        return Ok(Exit::Ok);
    }
    if !any {
        talk!("No effects.");
        return Ok(Exit::Ok);
    }
    let now = store.now().await?;
    data(grid(&all, now))?;
    if all.iter().any(|effect| effect.held_by.as_deref() == Some("unserved")) {
        told_unserved(store.as_ref(), &all, now).await?;
    }
    if left == 0
        && let Some(last) = before
    {
        talk!("{} shown; for older ones add --before {last}.", plural(u64::from(args.which.limit), "effect"));
    }
    Ok(Exit::Ok)
}

/// Says of the downstreams of these effects which nobody serves: an empty gauge and a quiet list must not look like peace.
async fn told_unserved(store: &dyn Database, shown: &[Status], now: Timestamp) -> anyhow::Result<()> {
    for info in store.downstreams().await? {
        if let Some(unserved) =
            info.unserved(now).filter(|_| shown.iter().any(|of| of.downstream == info.name))
        {
            talk!("Warning: {}.", clean(&unserved));
        }
    }
    Ok(())
}

/// Refuses a name that neither a configuration nor an effect has used here: it is a slip of the finger, not an empty list.
pub(super) async fn known_downstream(store: &dyn Database, name: &str) -> anyhow::Result<()> {
    let known = store.downstreams().await?;
    if known.iter().any(|info| info.name == name) {
        return Ok(());
    }
    let hint = nearest(name, known.iter().map(|info| info.name.as_str()));
    let hint = hint.map_or_else(
        || format!("`{} downstreams list` shows what there is", invocation()),
        |nearest| format!("did you mean {nearest}?"),
    );
    Err(fail(Exit::NotFound, format!("no downstream {name} is known here; {hint}")))
}

/// Effects as a table.
pub(super) fn grid(effects: &[Status], now: Timestamp) -> Grid {
    let mut grid = Grid::new(&["ID", "DOWNSTREAM", "KEY", "STATE", "TRIES", "WHEN"])
        .numbers(&[0, 4])
        .cut(&[1, 2])
        .below(&[5]);
    for effect in effects {
        grid.row(vec![
            table::cell(effect.id),
            table::cell(place(effect)),
            table::cell(&effect.idempotency_key),
            table::state(effect.state, effect.held_by.as_deref()),
            table::cell(effect.attempts),
            table::cell(when(effect, now)),
        ]);
    }
    grid
}

/// The downstream, and the operation where there is one.
pub(super) fn place(effect: &Status) -> String {
    match &effect.operation {
        Some(operation) => format!("{}/{operation}", effect.downstream),
        None => effect.downstream.clone(),
    }
}

/// The time that matters in this state.
pub(super) fn when(effect: &Status, now: Timestamp) -> String {
    match effect.state {
        State::Scheduled | State::Retrying => {
            effect.due_at.map_or_else(String::new, |due| format!("due {}", relative(due, now)))
        }
        State::InFlight => {
            effect.lease_until.map_or_else(String::new, |until| format!("lease {}", relative(until, now)))
        }
        State::Succeeded | State::Failed | State::Cancelled | State::Expired => {
            effect.finished_at.map_or_else(String::new, |at| relative(at, now))
        }
        State::Waiting | State::Ready | State::InDoubt => {
            format!("written {}", relative(effect.created_at, now))
        }
    }
}
