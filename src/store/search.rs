//! What a filter asks for, and what a page of what was found says: the same for every database, and pure.

use serde_json::{Map, Value};

use super::{Filter, PAGE_MAX, Page, SEARCH_WINDOW, Status};
use crate::{effect::EffectId, error::StoreError, state::State};

/// Unfinished effects that one page looks through at most where what is asked for has no index by id: rows of the queue are thin.
pub(super) const QUEUE_WINDOW: u32 = 10 * SEARCH_WINDOW;
/// A lane of the queue that holds no more than this is read whole instead.
pub(super) const LANE_FEW: u32 = 2_000;

/// Where the candidates of a page come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Given numbers.
    Ids,
    /// The key, at every downstream or one.
    Key,
    /// Those whose metadata may fit.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "PostgreSQL's index tells which do fit"))]
    Metadata,
    /// The states that are asked for; of one downstream, all states.
    States,
    /// All effects.
    All,
}

/// What must be looked at of each candidate, since its source does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) states: bool,
    /// Only where a database has no index for it.
    pub(super) downstream: bool,
    pub(super) operation: bool,
    pub(super) metadata: bool,
    pub(super) error: bool,
}

impl Rest {
    pub(super) const fn is_nothing(self) -> bool {
        !(self.states || self.downstream || self.operation || self.metadata || self.error)
    }
}

/// How a filter is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) rest: Rest,
    /// The candidates looked at, at most.
    pub(super) candidates: u32,
    /// The unfinished effects looked through for them, at most.
    pub(super) queue: u32,
}

impl Plan {
    /// `by_metadata`: where an index leads to what the metadata asks for, what it gives.
    pub(super) fn of(
        filter: &Filter,
        metadata: Option<&Map<String, Value>>,
        by_metadata: Option<Source>,
    ) -> Self {
        let source = match filter {
            Filter { ids: Some(_), .. } => Source::Ids,
            Filter { key: Some(_), .. } => Source::Key,
            Filter { states, downstream, .. } => match by_metadata {
                Some(source) => source,
                None if !states.is_empty() || downstream.is_some() => Source::States,
                None => Source::All,
            },
        };
        let known = by_metadata == Some(Source::Ids) && filter.ids.is_none() && filter.key.is_none();
        let rest = Rest {
            states: !filter.states.is_empty() && source != Source::States,
            downstream: false,
            operation: filter.operation.is_some(),
            metadata: metadata.is_some() && !known,
            error: filter.error.is_some(),
        };
        Self { source, rest, candidates: 0, queue: QUEUE_WINDOW }.measured(filter)
    }

    /// The same for a first look at the newest `candidates` alone.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "SQLite's index of metadata is in the order of the numbers")
    )]
    pub(super) fn at_first(self, candidates: u32) -> Self {
        Self { candidates, queue: 10 * candidates, ..self }
    }

    /// The same where the source knows no downstream.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "PostgreSQL has indexes by downstream"))]
    pub(super) fn looking_for_downstream(self, filter: &Filter) -> Self {
        let downstream = filter.downstream.is_some();
        Self { rest: Rest { downstream, ..self.rest }, ..self }.measured(filter)
    }

    fn measured(self, filter: &Filter) -> Self {
        let candidates = match self.source {
            // All that there are: few.
            Source::Ids | Source::Key => SEARCH_WINDOW + 1,
            Source::States | Source::All if self.rest.is_nothing() => rows(filter),
            Source::Metadata | Source::States | Source::All => SEARCH_WINDOW,
        };
        Self { candidates, ..self }
    }

    /// Whether what is asked for is looked for among the newest candidates, and not found by an index.
    fn searches(&self) -> bool {
        match self.source {
            Source::Ids | Source::Key => false,
            Source::Metadata => !Rest { metadata: false, ..self.rest }.is_nothing(),
            Source::States | Source::All => !self.rest.is_nothing(),
        }
    }
}

/// Rows that a page is read with: one more than it shows, which tells whether there is another.
pub(super) fn rows(filter: &Filter) -> u32 {
    filter.limit.min(PAGE_MAX) + 1
}

/// The states that are asked for, each once; where none is, all of them.
pub(super) fn states(filter: &Filter) -> Vec<State> {
    let asked = |state: &State| filter.states.is_empty() || filter.states.contains(state);
    State::ALL.into_iter().filter(asked).collect()
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Newest first, each with its place among the candidates, from 1. [`rows`] at most.
    pub(super) hits: Vec<(u64, Status)>,
    /// Candidates that there were.
    pub(super) looked: u64,
    /// The oldest of them.
    pub(super) last: Option<EffectId>,
    /// Of the queue only what is at or above this was looked through.
    pub(super) floor: Option<EffectId>,
}

impl Found {
    pub(super) fn page(self, filter: &Filter, plan: &Plan) -> Page {
        let Self { mut hits, looked, last, floor } = self;
        let limit = usize::try_from(filter.limit.min(PAGE_MAX)).unwrap_or(usize::MAX);
        let more = hits.len() > limit;
        hits.truncate(limit);
        let shown = hits.last().map(|(at, status)| (*at, status.id));
        let ends = matches!(plan.source, Source::Ids | Source::Key);
        let full = !ends && looked >= u64::from(plan.candidates);
        let next = match shown {
            Some((_, id)) if more => Some(id),
            // A page of nothing asks for nothing.
            _ if more => filter.before,
            // Whatever fits among the candidates is shown; the next page begins below them.
            _ if full => last,
            _ => floor,
        };
        let of_queue = floor.filter(|_| !more).map(|_| u64::from(plan.queue));
        // A page that is full is the newest of what fits, whatever stands below.
        let by_metadata = Rest { metadata: false, ..plan.rest }.is_nothing();
        let searched = if by_metadata { plan.rest.metadata && full && !more } else { plan.searches() };
        let of_candidates = searched.then_some(match shown {
            Some((at, _)) if more => at,
            _ => looked,
        });
        Page {
            effects: hits.into_iter().map(|(_, status)| status).collect(),
            next,
            searched: of_queue.max(of_candidates),
        }
    }
}

/// The filter's metadata as an object; `None` where none is asked for.
///
/// # Errors
///
/// [`StoreError::Invalid`] for a filter that cannot be meant.
pub(super) fn checked(filter: &Filter) -> Result<Option<Map<String, Value>>, StoreError> {
    let invalid = |field, problem: &str| Err(StoreError::Invalid { field, problem: problem.to_owned() });
    let texts = [
        ("downstream", &filter.downstream),
        ("operation", &filter.operation),
        ("key", &filter.key),
        ("metadata", &filter.metadata),
        ("error", &filter.error),
    ];
    if let Some((field, _)) =
        texts.into_iter().find(|(_, text)| text.as_ref().is_some_and(|text| text.contains('\0')))
    {
        return invalid(field, "must not contain U+0000");
    }
    if filter.ids.as_ref().is_some_and(|ids| ids.len() > PAGE_MAX as usize) {
        return invalid("ids", "must be at most 1000");
    }
    let Some(metadata) = &filter.metadata else { return Ok(None) };
    match serde_json::from_str::<Map<String, Value>>(metadata) {
        Ok(object) if has_nul(&object) => invalid("metadata", "must not contain U+0000"),
        // Every object contains it.
        Ok(object) => Ok((!object.is_empty()).then_some(object)),
        Err(_) => invalid("metadata", "must be a JSON object, for example {\"order\":\"A-17\"}"),
    }
}

/// Only what did not succeed, or may not have, has a cause to be grouped by.
///
/// # Errors
///
/// [`StoreError::Invalid`] for any other state.
pub(super) fn has_causes(state: State) -> Result<(), StoreError> {
    if matches!(state, State::Failed | State::InDoubt) {
        return Ok(());
    }
    Err(StoreError::Invalid { field: "state", problem: format!("must be failed or in_doubt, not {state}") })
}

fn has_nul(object: &Map<String, Value>) -> bool {
    fn within(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(within),
            Value::Object(object) => has_nul(object),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    object.iter().any(|(name, value)| name.contains('\0') || within(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let named = |filter: Filter| match checked(&filter) {
            Err(StoreError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        for metadata in ["", "[]", "1", "{", "{\"a\":\"\\u0000\"}", "{\"\\u0000\":1}"] {
            assert_eq!(
                named(Filter { metadata: Some(metadata.to_owned()), ..Filter::default() }),
                "metadata"
            );
        }
        assert_eq!(named(Filter { error: Some("a\0".to_owned()), ..Filter::default() }), "error");
        let ids = vec![EffectId::new(1); PAGE_MAX as usize + 1];
        assert_eq!(named(Filter { ids: Some(ids), ..Filter::default() }), "ids");
        assert_eq!(checked(&Filter::default()).unwrap(), None);
    }

    #[test]
    fn indexes_are_searched_exactly_and_the_rest_within_a_window() {
        let of = |filter: &Filter| Plan::of(filter, checked(filter).unwrap().as_ref(), None);
        let failed = Filter { states: vec![State::Failed], limit: 50, ..Filter::default() };
        let plan = of(&failed);
        assert_eq!((plan.source, plan.candidates, plan.searches()), (Source::States, 51, false));
        let plan = of(&Filter { error: Some("timeout".to_owned()), ..failed.clone() });
        assert_eq!((plan.source, plan.candidates, plan.searches()), (Source::States, SEARCH_WINDOW, true));
        let plan = of(&Filter { key: Some("k".to_owned()), ..failed.clone() });
        assert!(plan.source == Source::Key && plan.rest.states && !plan.searches());
        let metadata = Filter { metadata: Some("{\"a\":1}".to_owned()), ..failed.clone() };
        let plan = Plan::of(&metadata, checked(&metadata).unwrap().as_ref(), Some(Source::Ids));
        assert!(plan.source == Source::Ids && plan.rest.states && !plan.rest.metadata && !plan.searches());
        let plan = of(&metadata);
        assert!(plan.source == Source::States && plan.rest.metadata && plan.searches());
        assert_eq!(of(&Filter { limit: u32::MAX, ..Filter::default() }).candidates, PAGE_MAX + 1);
    }
}
