//! What came in, guarded requests and messages: dropping it, and looking at it.

use tokio::time::Instant;

use super::{PgStore, retain::DOING, row, statement::sql};
use crate::{
    error::StoreError,
    store::{Batch, PAGE_MAX, RequestFilter, RequestInfo, Step},
};

/// This login may drop what the migration's functions drop, and nothing else.
const fn drop_sql(step: Step) -> &'static str {
    match step {
        Step::Inbox => "SELECT elsewhere, dropped, more FROM aftercommit.drop_inbox($1)",
        Step::Requests | Step::Payloads | Step::History | Step::Keys => {
            "SELECT elsewhere, dropped, more FROM aftercommit.drop_requests($1)"
        }
    }
}

const fn due_sql(step: Step) -> &'static str {
    match step {
        Step::Inbox => {
            "SELECT count(*) FROM aftercommit.inbox WHERE expires_at <= (SELECT clock_timestamp())"
        }
        Step::Requests | Step::Payloads | Step::History | Step::Keys => {
            "SELECT count(*) FROM aftercommit.requests AS r
WHERE r.expires_at <= (SELECT clock_timestamp()) AND NOT aftercommit.request_is_unfinished(r.id)"
        }
    }
}

impl PgStore {
    pub(super) async fn drop_received(&self, step: Step, limit: u32) -> Result<Batch, StoreError> {
        let began = Instant::now();
        let row = self.one(sql(drop_sql(step)).bind(i64::from(limit))).await;
        let row = row.map_err(StoreError::during(DOING))?;
        Ok(Batch {
            effects: row::sum(&row, "dropped")?,
            more: row::get(&row, "more")?,
            elsewhere: row::get(&row, "elsewhere")?,
            held: began.elapsed(),
            ahead: None,
        })
    }

    pub(super) async fn received_due(&self, step: Step) -> Result<u64, StoreError> {
        let n: i64 =
            self.scalar(sql(due_sql(step))).await.map_err(StoreError::during("counting what is due"))?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    /// Served by the primary key, or by the index that retention reads, from its end.
    pub(super) async fn page_of_requests(
        &self,
        filter: &RequestFilter,
    ) -> Result<Vec<RequestInfo>, StoreError> {
        let scope = filter.scope.as_ref().map_or("", |_| " AND scope = $1");
        let key = filter.key.as_ref().map_or("", |_| " AND key = $2");
        let time = match filter.expired {
            None => "",
            Some(true) => " AND expires_at <= statement_timestamp()",
            Some(false) => " AND expires_at > statement_timestamp()",
        };
        let before = filter.before.map_or("", |_| " AND (expires_at, id) < ($4, $5)");
        let text = format!(
            "WITH given AS (SELECT $1::text, $2::text, $4::timestamptz, $5::int8)
             SELECT r.id, r.scope, r.key, r.created_at, r.expires_at, r.response_status,
                    r.expires_at <= statement_timestamp() AS expired, w.effects, w.unfinished
             FROM (SELECT id, scope, key, created_at, expires_at, response_status FROM aftercommit.requests
                   WHERE response_status IS NOT NULL{scope}{key}{time}{before} ORDER BY expires_at DESC, id DESC LIMIT $3) AS r
             CROSS JOIN LATERAL (
               SELECT count(*) AS effects, count(*) FILTER (WHERE NOT EXISTS (
                 SELECT FROM aftercommit.outcomes AS o WHERE o.effect_id = e.id)) AS unfinished
               FROM aftercommit.effects AS e WHERE e.request_id = r.id) AS w
             ORDER BY r.expires_at DESC, r.id DESC"
        );
        let statement = sql(sqlx::AssertSqlSafe(text))
            .bind(filter.scope.as_deref())
            .bind(filter.key.as_deref())
            .bind(i64::from(filter.limit.min(PAGE_MAX)))
            .bind(filter.before.map(|place| place.expires_at))
            .bind(filter.before.map(|place| place.id));
        self.read(statement, "listing requests")
            .await?
            .iter()
            .map(|row| {
                let status: i32 = row::get(row, "response_status")?;
                Ok(RequestInfo {
                    id: row::get(row, "id")?,
                    scope: row::get(row, "scope")?,
                    key: row::get(row, "key")?,
                    created_at: row::get(row, "created_at")?,
                    expires_at: row::get(row, "expires_at")?,
                    expired: row::get(row, "expired")?,
                    status: u16::try_from(status).unwrap_or(0),
                    effects: row::sum(row, "effects")?,
                    unfinished: row::sum(row, "unfinished")?,
                })
            })
            .collect()
    }
}
