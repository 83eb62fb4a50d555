//! Lists of effects, in steps of one read: candidates, what is to be looked at of each, the page. Differs from the other
//! database, which does it in one statement and has an operator for metadata.

use futures_util::TryStreamExt as _;
use serde_json::{Map, Value};
use sqlx::{Connection as _, QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::{
    candidates::{Candidates, words},
    inspect::{STATUS, status},
    row::json_ids,
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    store::{
        Filter, Page,
        exact::Exact,
        search::{self, Found, Plan, Source},
    },
};

const DOING: &str = "listing effects";

/// The first effect at or above the middle.
macro_rules! middle {
    ($column:literal) => {
        concat!(
            "(SELECT CAST(e.",
            $column,
            " AS INTEGER) FROM aftercommit_effects AS e \
             WHERE e.id >= half.low + (half.high - half.low) / 2 AND e.id < half.high ORDER BY e.id LIMIT 1)"
        )
    };
}

/// The lowest number that was written at `?1` or later, by halves: numbers and times grow together.
const FIRST_SINCE: &str = concat!(
    "WITH RECURSIVE half (low, high) AS ( \
         SELECT coalesce((SELECT min(id) FROM aftercommit_effects), 0), coalesce((SELECT max(id) FROM aftercommit_effects), 0) + 1 \
         UNION ALL \
         SELECT CASE WHEN ",
    middle!("created_at"),
    " < ?1 THEN ",
    middle!("id"),
    " + 1 ELSE low END, CASE WHEN ",
    middle!("created_at"),
    " < ?1 THEN high ELSE low + (high - low) / 2 END FROM half WHERE low < high) \
     SELECT low FROM half WHERE low >= high"
);

/// The members of an object that the index of words can have.
const WORDS: &str =
    concat!("SELECT DISTINCT ", words!(), " FROM json_each(?1) AS m WHERE m.type NOT IN ('object', 'array')");

pub(super) async fn effects(
    conn: &mut SqliteConnection,
    filter: &Filter,
    now: Timestamp,
) -> Result<Page, StoreError> {
    let metadata = search::checked(filter)?;
    // One read, so that no effect moves between the steps.
    let mut read = conn.begin().await.map_err(StoreError::during(DOING))?;
    let page = page(&mut read, filter, metadata.as_ref(), now).await;
    read.rollback().await.map_err(StoreError::during(DOING))?;
    page
}

async fn page(
    conn: &mut SqliteConnection,
    filter: &Filter,
    metadata: Option<&Map<String, Value>>,
    now: Timestamp,
) -> Result<Page, StoreError> {
    let words = words_of(conn, filter, metadata).await?;
    let by_words = (!words.is_empty()).then_some(Source::Metadata);
    let mut plan = Plan::of(filter, metadata, by_words);
    if !Candidates::knows_downstream(filter, &plan) {
        plan = plan.looking_for_downstream(filter);
    }
    let list = Candidates { filter, bounds: bounds(conn, filter).await?, words, plan, now };
    let (ids, floor) = candidates(conn, &list).await?;
    let hits = if plan.rest.is_nothing() && filter.created_before.is_none() && filter.created_after.is_none()
    {
        let rows = usize::try_from(search::rows(filter)).unwrap_or(usize::MAX);
        ids.iter().copied().enumerate().take(rows).map(|(at, id)| (at as u64 + 1, id)).collect()
    } else {
        looked_at(conn, &list, &ids).await?
    };
    let found = Found {
        looked: ids.len() as u64,
        last: ids.last().copied().map(EffectId::new),
        floor: floor.map(EffectId::new),
        hits: whole(conn, hits).await?,
    };
    Ok(found.page(filter, &plan))
}

async fn words_of(
    conn: &mut SqliteConnection,
    filter: &Filter,
    metadata: Option<&Map<String, Value>>,
) -> Result<Vec<String>, StoreError> {
    if metadata.is_none() {
        return Ok(Vec::new());
    }
    sqlx::query_scalar(WORDS)
        .bind(filter.metadata.clone())
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))
}

/// The numbers between which effects stand that were written in the time that is asked for.
async fn bounds(
    conn: &mut SqliteConnection,
    filter: &Filter,
) -> Result<(Option<EffectId>, Option<EffectId>), StoreError> {
    let mut first = [None, None];
    for (first, at) in first.iter_mut().zip([filter.created_before, filter.created_after]) {
        if let Some(at) = at {
            let id = sqlx::query_scalar(FIRST_SINCE).bind(at.micros()).fetch_one(&mut *conn).await;
            *first = Some(EffectId::new(id.map_err(StoreError::during(DOING))?));
        }
    }
    let [before, from] = first;
    let below = match (before, filter.before) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    Ok((below, from))
}

/// Newest first; and how far the queue was looked through, where that was not all.
pub(super) async fn candidates(
    conn: &mut SqliteConnection,
    list: &Candidates<'_>,
) -> Result<(Vec<i64>, Option<i64>), StoreError> {
    let mut query = list.with();
    query.push(
        " SELECT c.id, 0 AS is_floor FROM c UNION ALL SELECT f.id, 1 FROM floor AS f ORDER BY 2, 1 DESC",
    );
    let rows: Vec<(i64, bool)> =
        query.build_query_as().persistent(false).fetch_all(conn).await.map_err(StoreError::during(DOING))?;
    let floor = rows.iter().find(|(_, is_floor)| *is_floor).map(|(id, _)| *id);
    Ok((rows.iter().filter(|(_, is_floor)| !is_floor).map(|(id, _)| *id).collect(), floor))
}

/// Candidates in order, until there are enough of those that fit: each with its place.
async fn looked_at(
    conn: &mut SqliteConnection,
    list: &Candidates<'_>,
    ids: &[i64],
) -> Result<Vec<(u64, i64)>, StoreError> {
    let (filter, rest) = (list.filter, list.plan.rest);
    let part = filter.metadata.as_deref().and_then(Exact::of);
    let column = if rest.metadata { "CAST(s.metadata AS TEXT)" } else { "NULL" };
    let mut query = QueryBuilder::<Sqlite>::new(format!(
        "SELECT w.key + 1 AS at, s.id, {column} AS metadata FROM json_each("
    ));
    query.push_bind(json_ids(ids.iter().copied()));
    query.push(") AS w CROSS JOIN aftercommit_status AS s ON s.id = w.value WHERE 1");
    if rest.states {
        query.push(" AND s.state IN (0");
        for state in &filter.states {
            query.push(", ").push_bind(state.as_str());
        }
        query.push(")");
    }
    if let (true, Some(downstream)) = (rest.downstream, &filter.downstream) {
        query.push(" AND s.downstream = ").push_bind(downstream.clone());
    }
    if let Some(operation) = &filter.operation {
        query.push(" AND s.operation = ").push_bind(operation.clone());
    }
    // `lower` knows the letters of ASCII.
    if let Some(error) = &filter.error {
        query.push(" AND instr(lower(s.last_error), lower(").push_bind(error.clone()).push(")) > 0");
    }
    // Numbers and times grow together, but for what a clock wrote that was set back.
    if let Some(at) = filter.created_before {
        query.push(" AND s.created_at < ").push_bind(at.micros());
    }
    if let Some(at) = filter.created_after {
        query.push(" AND s.created_at >= ").push_bind(at.micros());
    }
    query.push(" ORDER BY w.key");
    let enough = usize::try_from(search::rows(filter)).unwrap_or(usize::MAX);
    let mut hits = Vec::new();
    let mut rows = query.build().persistent(false).fetch(conn);
    while let Some(row) = rows.try_next().await.map_err(StoreError::during(DOING))? {
        let fits = !rest.metadata || {
            let text: Option<String> = row.try_get("metadata").map_err(StoreError::during(DOING))?;
            let whole = text.as_deref().and_then(Exact::of);
            whole.zip(part.as_ref()).is_some_and(|(whole, part)| whole.contains(part))
        };
        if fits {
            let at: i64 = row.try_get("at").map_err(StoreError::during(DOING))?;
            let id = row.try_get("id").map_err(StoreError::during(DOING))?;
            hits.push((u64::try_from(at).unwrap_or(0), id));
        }
        if hits.len() >= enough {
            break;
        }
    }
    Ok(hits)
}

async fn whole(
    conn: &mut SqliteConnection,
    hits: Vec<(u64, i64)>,
) -> Result<Vec<(u64, crate::store::Status)>, StoreError> {
    let ids = json_ids(hits.iter().map(|(_, id)| *id));
    let sql = format!("{STATUS} WHERE s.id IN (SELECT value FROM json_each(?1)) ORDER BY s.id DESC");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(ids)
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    hits.iter().zip(&rows).map(|((at, _), row)| Ok((*at, status(row)?))).collect()
}
