//! `effects list`.

use std::time::Duration;

use aftercommit::{
    clock::{Timestamp, words::relative},
    effect::EffectId,
    state::State,
    store::{Filter, PAGE_MAX, SEARCH_WINDOW, Status},
    visible::clean,
};
use aftercommit_workers::config::nearest;
use clap::Args;

use crate::cli::{
    Context, Exit, Grid,
    context::invocation,
    data, fail,
    json::{self, EffectJson},
    output::plural,
    parse,
    people::People,
    table, talk,
};

/// Where a part of the filter has to be searched for, as many windows are looked through before a person is asked to go on.
const WINDOWS_MAX: u64 = 10;

/// Which effects.
#[derive(Clone, Debug, Args)]
pub(crate) struct Which {
    /// Only these states: waiting, scheduled, ready, in_flight, retrying, in_doubt, succeeded, failed, cancelled, expired
    #[arg(long, value_delimiter = ',', value_parser = parse::state)]
    state: Vec<State>,
    /// Only this downstream
    #[arg(long, value_name = "NAME")]
    downstream: Option<String>,
    /// Only this operation
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// Only this idempotency key
    #[arg(long)]
    key: Option<String>,
    /// Only those whose metadata contains this: order=A-17, or a JSON object
    #[arg(long, value_name = "NAME=VALUE|JSON", value_parser = parse::metadata)]
    metadata: Option<String>,
    /// Only those in whose last error this stands
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only those written longer ago than this, such as 30m, 2h, 7d
    #[arg(long, value_name = "AGE", value_parser = parse::duration)]
    older_than: Option<Duration>,
    /// Only those written since then
    #[arg(long, value_name = "AGE", value_parser = parse::duration)]
    newer_than: Option<Duration>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: u32,
}

impl Which {
    /// As it is asked for.
    ///
    /// # Errors
    ///
    /// When an age was given and the database's clock cannot be read.
    pub(super) async fn filter(
        &self,
        people: &dyn People,
        before: Option<EffectId>,
    ) -> anyhow::Result<Filter> {
        let now = match (self.older_than, self.newer_than) {
            (None, None) => None,
            (Some(_), _) | (_, Some(_)) => Some(people.now().await?),
        };
        let ago = |age: Option<Duration>| now.zip(age).map(|(now, age)| now.minus(age));
        Ok(Filter {
            states: self.state.clone(),
            downstream: self.downstream.clone(),
            operation: self.operation.clone(),
            key: self.key.clone(),
            metadata: self.metadata.clone(),
            error: self.error.clone(),
            created_before: ago(self.older_than),
            created_after: ago(self.newer_than),
            ids: None,
            before,
            limit: self.limit.min(PAGE_MAX),
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Operation and error are looked for among the newest effects that the others
leave; it is said how far.

Examples:
  aftercommit effects list --state in_doubt
  aftercommit effects list --state failed --error 'card declined'
  aftercommit effects list --metadata order=A-17
  aftercommit effects list --downstream payments --newer-than 1h --limit 10
  aftercommit effects list --json | jq -r 'select(.held_by) | .id'")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    which: Which,
    /// Only effects with a lower number: the next page
    #[arg(long, value_name = "ID", value_parser = parse::effect_id)]
    before: Option<EffectId>,
}

/// What was found, and how far it was looked for.
struct Found {
    /// For a table, which is as wide as its widest row; lines of JSON need not wait for each other and were printed already.
    effects: Vec<Status>,
    /// How many were found.
    shown: u64,
    /// Where the next page begins; `None`: there is none.
    next: Option<EffectId>,
    /// How many candidates were looked at, where it had to be searched.
    searched: Option<u64>,
}

/// Lists them.
pub(super) async fn run(context: &Context, args: &ListArgs) -> anyhow::Result<Exit> {
    let people = context.people().await?;
    let people = people.as_ref();
    let found = find(context, people, args).await?;
    if found.shown == 0
        && let Some(name) = &args.which.downstream
    {
        known_downstream(people, name).await?;
    }
    if found.shown == 0 && !context.json() {
        talk!("No effects.");
    } else if !context.json() {
        let now = people.now().await?;
        data(grid(&found.effects, now))?;
        if found.effects.iter().any(|effect| effect.held_by.as_deref() == Some("unserved")) {
            told_unserved(people, &found.effects, now).await?;
        }
    }
    tell_the_rest(context, &found);
    Ok(Exit::Ok)
}

/// A page is bounded; whoever asks for more gets more pages.
async fn find(context: &Context, people: &dyn People, args: &ListArgs) -> anyhow::Result<Found> {
    let limit = u64::from(args.which.limit);
    let mut filter = args.which.filter(people, args.before).await?;
    let mut found = Found { effects: Vec::new(), shown: 0, next: None, searched: None };
    loop {
        let left = limit.saturating_sub(found.shown);
        filter.limit = u32::try_from(left).unwrap_or(u32::MAX).min(PAGE_MAX);
        let page = people.effects(&filter).await?;
        found.shown += page.effects.len() as u64;
        found.next = page.next;
        if context.json() {
            json::print_all(page.effects.iter().map(EffectJson::from))?;
        } else {
            found.effects.extend(page.effects);
        }
        if let Some(searched) = page.searched {
            *found.searched.get_or_insert(0) += searched;
        }
        let far = found.searched.is_some_and(|searched| searched >= WINDOWS_MAX * u64::from(SEARCH_WINDOW));
        if page.next.is_none() || far || found.shown >= limit {
            return Ok(found);
        }
        filter.before = page.next;
    }
}

/// Says what was not looked at: a short list must not look like a whole one.
fn tell_the_rest(context: &Context, found: &Found) {
    let Some(next) = found.next else { return };
    let shown = plural(found.shown, "effect");
    match found.searched {
        Some(searched) => {
            talk!(
                "{shown} found among the newest {searched} that were looked at; for older ones add --before {next}."
            );
        }
        // Data for a program is as long as it asked for.
        None if context.json() => {}
        None => talk!("{shown} shown; for older ones add --before {next}."),
    }
}

/// Says of the downstreams of these effects which nobody serves: an empty gauge and a quiet list must not look like peace.
async fn told_unserved(people: &dyn People, shown: &[Status], now: Timestamp) -> anyhow::Result<()> {
    for info in people.downstreams().await? {
        if let Some(unserved) =
            info.unserved(now).filter(|_| shown.iter().any(|of| of.downstream == info.name))
        {
            talk!("Warning: {}.", clean(&unserved));
        }
    }
    Ok(())
}

/// Refuses a name that neither a configuration nor an effect has used here: it is a slip of the finger, not an empty list.
pub(super) async fn known_downstream(people: &dyn People, name: &str) -> anyhow::Result<()> {
    let known = people.downstreams().await?;
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
