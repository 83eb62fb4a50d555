//! Lists of effects. A page is found first, by a statement per state and its index, and only then read through the view: through
//! the view a state has no index, and takes seconds at ten million rows.

use sqlx::{AssertSqlSafe, postgres::PgRow};

use super::{
    PgStore,
    candidates::{Bounds, Candidates},
    inspect::{columns, status},
    row,
    statement::sql,
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    store::{
        Filter, PAGE_MAX, Page, SEARCH_WINDOW,
        search::{self, Found, Plan, Source},
    },
};

const DOING: &str = "listing effects";

/// So many of the newest are looked at before an index of metadata is asked.
const NEWEST: u32 = 1_000;
/// Metadata that as many of the newest effects have is had by too many: its index would give more than anybody looks at, and
/// takes half a second to say so at ten million.
const COMMON: i64 = 100;

/// The lowest number that was written at `$1` or later, by halves: numbers and times grow together.
const FIRST_SINCE: &str = "WITH RECURSIVE half (low, high) AS (
  SELECT coalesce((SELECT e.id FROM aftercommit.effects AS e ORDER BY e.id LIMIT 1), 0),
         coalesce((SELECT e.id FROM aftercommit.effects AS e ORDER BY e.id DESC LIMIT 1), 0) + 1
  UNION ALL
  SELECT CASE WHEN m.at < $1 THEN m.id + 1 ELSE h.low END, CASE WHEN m.at < $1 THEN h.high ELSE h.middle END
  FROM (SELECT low, high, low + (high - low) / 2 AS middle FROM half WHERE low < high) AS h
  LEFT JOIN LATERAL (
    SELECT e.id, e.created_at AS at FROM aftercommit.effects AS e WHERE e.id >= h.middle AND e.id < h.high
    ORDER BY e.id LIMIT 1) AS m ON true
)
SELECT low FROM half WHERE low >= high";

/// Those whose metadata fits, in no order: in the order of their numbers the planner might rather read the table from its end.
/// Served by effects_metadata.
const BY_METADATA: &str =
    "SELECT e.id FROM aftercommit.effects AS e WHERE e.metadata @> $1::text::jsonb LIMIT $2";

const HOW_COMMON: &str = "SELECT count(*) FILTER (WHERE e.metadata @> $1::text::jsonb) AS fits
FROM (SELECT e.metadata FROM aftercommit.effects AS e ORDER BY e.id DESC LIMIT $2) AS e";

impl Candidates<'_> {
    /// What is left to be looked at: columns of the view, and the conditions.
    fn rest(&self) -> Vec<(&'static str, &'static str)> {
        let rest = self.plan.rest;
        let parts = [
            (rest.states, "v.state", "v.state = ANY ($13)"),
            (rest.operation, "v.operation", "v.operation = $9"),
            (rest.metadata, "v.metadata", "v.metadata @> $8::jsonb"),
            (rest.error, "v.last_error", "strpos(lower(v.last_error), lower($10)) > 0"),
            // Numbers and times grow together, but for what a clock wrote that was set back.
            (
                self.filter.created_before.is_some(),
                "v.created_at AS written_before",
                "v.written_before < $11",
            ),
            (self.filter.created_after.is_some(), "v.created_at AS written_since", "v.written_since >= $12"),
        ];
        let asked = parts.into_iter().filter(|(is_asked, ..)| *is_asked);
        asked.map(|(_, column, condition)| (column, condition)).collect()
    }

    /// The page: candidates in order, until there are enough of those that fit; these alone are read whole.
    fn page(&self, columns: &str) -> String {
        let (read, conditions): (Vec<_>, Vec<_>) = self.rest().into_iter().unzip();
        // What the application wrote is read where it stands: no more than that.
        let told = self.plan.rest.states || self.plan.rest.error;
        let table = if told { "status_of_all" } else { "effects" };
        let hits = if read.is_empty() {
            "SELECT c.id, c.at FROM c ORDER BY c.id DESC LIMIT $4".to_owned()
        } else {
            format!(
                "SELECT s.id, s.at FROM (SELECT c.id, c.at FROM c ORDER BY c.id DESC) AS s CROSS JOIN LATERAL (
    SELECT {} FROM aftercommit.{table} AS v WHERE v.id = s.id OFFSET 0) AS v
  WHERE {} ORDER BY s.id DESC LIMIT $4",
                read.join(", "),
                conditions.join(" AND ")
            )
        };
        // LATERAL, with OFFSET 0: joined, the view's many joins would be planned on their own, for all effects there are.
        format!(
            "{},
hit AS MATERIALIZED (
  {hits}
)
SELECT m.looked, m.last, {} AS floor, v.*
FROM (SELECT count(*) AS looked, min(c.id) AS last FROM c) AS m
LEFT JOIN (
  SELECT h.at, v.* FROM hit AS h CROSS JOIN LATERAL (
    SELECT {columns} FROM aftercommit.status_of_all AS v WHERE v.id = h.id OFFSET 0) AS v) AS v ON true
ORDER BY v.id DESC",
            self.with(),
            self.floor()
        )
    }
}

impl PgStore {
    pub(super) async fn page_of_effects(&self, filter: &Filter) -> Result<Page, StoreError> {
        let metadata = search::checked(filter)?;
        let bounds = self.bounds(filter).await?;
        let ids = filter.ids.as_ref().map(|ids| ids.iter().map(|id| id.get()).collect());
        let plan = Plan::of(filter, metadata.as_ref(), None);
        let by_metadata = metadata.is_some() && matches!(plan.source, Source::States | Source::All);
        if !by_metadata {
            return self.page(filter, bounds, (ids, plan)).await;
        }
        // What nearly every effect has fills a page from the newest ones, and its index would give millions.
        let page = self.page(filter, bounds, (None, plan.at_first(NEWEST))).await?;
        if page.next.is_none() || page.effects.len() >= filter.limit.min(PAGE_MAX) as usize {
            return Ok(page);
        }
        match self.by_metadata(filter).await? {
            Some(few) => {
                let plan = Plan::of(filter, metadata.as_ref(), Some(Source::Ids));
                self.page(filter, bounds, (Some(few), plan)).await
            }
            None => self.page(filter, bounds, (None, plan)).await,
        }
    }

    async fn page(
        &self,
        filter: &Filter,
        bounds: Bounds,
        (ids, plan): (Option<Vec<i64>>, Plan),
    ) -> Result<Page, StoreError> {
        let list = Candidates { filter, bounds, ids, metadata: filter.metadata.clone(), plan };
        let text = list.page(&columns(self.reads_answers().await?));
        let rows = self.read(list.bind(sql(AssertSqlSafe(text))), DOING).await?;
        Ok(found(&rows)?.page(filter, &plan))
    }

    /// `None`: there are too many to be looked at one by one.
    async fn by_metadata(&self, filter: &Filter) -> Result<Option<Vec<i64>>, StoreError> {
        let common = sql(HOW_COMMON).bind(filter.metadata.as_deref()).bind(i64::from(NEWEST));
        let common = self.read(common, DOING).await?;
        let fits: Option<i64> = common.first().map(|row| row::get(row, "fits")).transpose()?;
        if fits >= Some(COMMON) {
            return Ok(None);
        }
        let most = i64::from(SEARCH_WINDOW);
        let statement = sql(BY_METADATA).bind(filter.metadata.as_deref()).bind(most + 1);
        let rows = self.read_by_bitmap(statement, DOING).await?;
        if rows.len() > SEARCH_WINDOW as usize {
            return Ok(None);
        }
        rows.iter().map(|row| row::get(row, "id")).collect::<Result<_, _>>().map(Some)
    }

    /// The numbers between which effects stand that were written in the time that is asked for.
    async fn bounds(&self, filter: &Filter) -> Result<Bounds, StoreError> {
        let before = match filter.created_before {
            Some(at) => Some(self.first_since(at).await?),
            None => None,
        };
        let below = match (before, filter.before) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let from = match filter.created_after {
            Some(at) => Some(self.first_since(at).await?),
            None => None,
        };
        Ok((below, from))
    }

    async fn first_since(&self, at: Timestamp) -> Result<EffectId, StoreError> {
        let rows = self.read(sql(FIRST_SINCE).bind(at), DOING).await?;
        let first = rows.first().map(|row| row::get(row, "low")).transpose()?;
        Ok(EffectId::new(first.unwrap_or(0)))
    }
}

/// Rows of [`Candidates::page`]: one at least, whose effect is null where there is none.
fn found(rows: &[PgRow]) -> Result<Found, StoreError> {
    let Some(first) = rows.first() else { return Ok(Found::default()) };
    let mut found = Found {
        hits: Vec::with_capacity(rows.len()),
        looked: row::sum(first, "looked")?,
        last: row::get::<Option<i64>>(first, "last")?.map(EffectId::new),
        floor: row::get::<Option<i64>>(first, "floor")?.map(EffectId::new),
    };
    for row in rows {
        if row::get::<Option<i64>>(row, "id")?.is_some() {
            found.hits.push((row::sum(row, "at")?, status(row)?));
        }
    }
    Ok(found)
}
