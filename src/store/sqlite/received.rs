//! What came in, guarded requests and messages: dropping it, and looking at it. There are no steps' rows to take turns by: here
//! there is one writer.

use std::time::Duration;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::{
    retain::looked_at,
    row::{Fields, json_ids},
};
use crate::{
    clock::{Timestamp, duration_micros},
    error::StoreError,
    store::{AHEAD_MAX, PAGE_MAX, RequestFilter, RequestInfo, Step},
};

const DOING: &str = "listing requests";

/// A request is kept while an effect that it wrote has not ended.
macro_rules! over {
    () => {
        "FROM aftercommit_requests AS r WHERE r.expires_at <= ?1 AND r.unanswered IS NULL \
         AND NOT EXISTS (SELECT 1 FROM aftercommit_effects AS e WHERE e.request_id = r.id \
             AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes AS o WHERE o.effect_id = e.id))"
    };
}

/// The numbers of what is due; a message has none. Served by the index by time.
pub(super) const fn due_sql(step: Step) -> &'static str {
    match step {
        Step::Inbox => "SELECT 0 FROM aftercommit_inbox WHERE expires_at <= ?1 LIMIT ?2",
        Step::Requests | Step::Payloads | Step::History | Step::Keys => {
            concat!("SELECT r.id ", over!(), " ORDER BY r.expires_at LIMIT ?2")
        }
    }
}

pub(super) const fn count_sql(step: Step) -> &'static str {
    match step {
        Step::Inbox => "SELECT count(*) FROM aftercommit_inbox WHERE expires_at <= ?1",
        Step::Requests | Step::Payloads | Step::History | Step::Keys => concat!("SELECT count(*) ", over!()),
    }
}

/// A clock that is not believed about keys drops nothing of what came in either.
pub(super) async fn is_too_late(conn: &mut SqliteConnection, now: Timestamp) -> Result<bool, StoreError> {
    Ok(now.since(looked_at(conn).await?) > AHEAD_MAX)
}

/// `ids` were found in this transaction; of messages, as many as there are.
pub(super) async fn drop(
    conn: &mut SqliteConnection,
    step: Step,
    ids: &[i64],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let dropped = match step {
        Step::Inbox => sqlx::query(
            "DELETE FROM aftercommit_inbox WHERE (consumer, key) IN ( \
                 SELECT consumer, key FROM aftercommit_inbox WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        )
        .bind(now.micros())
        .bind(i64::try_from(ids.len()).unwrap_or(i64::MAX)),
        Step::Requests | Step::Payloads | Step::History | Step::Keys => {
            sqlx::query("DELETE FROM aftercommit_requests WHERE id IN (SELECT value FROM json_each(?1))")
                .bind(json_ids(ids.iter().copied()))
        }
    };
    dropped.execute(conn).await.map(|_| ())
}

/// How long an answer is kept whose request does not say it.
pub(super) async fn keep_requests(conn: &mut SqliteConnection, kept: Duration) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO aftercommit_meta (key, value) VALUES ('requests_kept_us', ?1) \
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )
    .bind(duration_micros(kept).to_string())
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(StoreError::during("registering how long answers are kept"))
}

pub(super) async fn requests(
    conn: &mut SqliteConnection,
    filter: &RequestFilter,
    now: Timestamp,
) -> Result<Vec<RequestInfo>, StoreError> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT r.id, CAST(r.scope AS BLOB) AS scope, r.key, r.created_at, r.expires_at, r.response_status, \
             (SELECT count(*) FROM aftercommit_effects AS e WHERE e.request_id = r.id) AS effects, \
             (SELECT count(*) FROM aftercommit_effects AS e WHERE e.request_id = r.id \
                 AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes AS o WHERE o.effect_id = e.id)) AS unfinished \
         FROM aftercommit_requests AS r WHERE r.response_status IS NOT NULL",
    );
    if let Some(scope) = &filter.scope {
        query.push(" AND r.scope = ").push_bind(scope.clone());
    }
    if let Some(key) = &filter.key {
        query.push(" AND r.key = ").push_bind(key.clone());
    }
    match filter.expired {
        None => {}
        Some(true) => {
            query.push(" AND r.expires_at <= ").push_bind(now.micros());
        }
        Some(false) => {
            query.push(" AND r.expires_at > ").push_bind(now.micros());
        }
    }
    if let Some(place) = filter.before {
        query.push(" AND (r.expires_at, r.id) < (").push_bind(place.expires_at.micros());
        query.push(", ").push_bind(place.id).push(")");
    }
    query
        .push(" ORDER BY r.expires_at DESC, r.id DESC LIMIT ")
        .push_bind(i64::from(filter.limit.min(PAGE_MAX)));
    let rows = query.build().fetch_all(conn).await.map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let id = Fields::new(row, "aftercommit_requests", 0).int("id")?;
            let fields = Fields::new(row, "aftercommit_requests", id);
            let expires_at = fields.time("expires_at")?;
            Ok(RequestInfo {
                id,
                scope: fields.shown("scope")?.unwrap_or_default(),
                key: fields.text("key")?,
                created_at: fields.time("created_at")?,
                expires_at,
                expired: expires_at <= now,
                status: fields.opt_status("response_status")?.unwrap_or_default(),
                effects: u64::from(fields.count("effects")?),
                unfinished: u64::from(fields.count("unfinished")?),
            })
        })
        .collect()
}
