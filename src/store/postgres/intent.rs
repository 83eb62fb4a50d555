//! What an effect carries, for those who may read it; and who may read what was answered.

use sqlx::postgres::PgRow;

use super::{PgStore, row, statement::sql};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{Content, Intent, Look},
};

const DOING: &str = "reading what an effect carries";

/// Served by the primary key. A payload is counted in the bytes that are sent.
const INTENTS: &str = "SELECT id, target, content_type, headers::text AS headers, ordering_key, trace_context, enqueued_by, request_id,
  expires_at, fingerprint IS NOT NULL AS dropped,
  payload IS NOT NULL AS json, coalesce(octet_length(payload::text), octet_length(body))::int8 AS bytes,
  CASE WHEN octet_length(payload::text) <= $2::int8 THEN payload::text END AS payload,
  CASE WHEN octet_length(body) <= $2::int8 THEN body END AS body
FROM aftercommit.effects WHERE id = ANY ($1::int8[])";

const ANSWERS: &str = "SELECT has_column_privilege('aftercommit.status_of_all', 'response', 'SELECT')";

impl PgStore {
    pub(super) async fn intents_of(
        &self,
        ids: &[EffectId],
        look: Look,
    ) -> Result<Vec<(EffectId, Intent)>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let rows = self.read(sql(INTENTS).bind(ids).bind(look.longest()), DOING).await?;
        rows.iter().map(|row| Ok((EffectId::new(row::get(row, "id")?), intent(row)?))).collect()
    }

    /// Whether this login may read what was answered. `aftercommit_viewer` may not, and a statement that names the column is
    /// refused whole.
    pub(super) async fn reads_answers(&self) -> Result<bool, StoreError> {
        let ask = || self.scalar(sql(ANSWERS));
        self.answers
            .get_or_try_init(ask)
            .await
            .copied()
            .map_err(StoreError::during("asking what may be read"))
    }
}

fn intent(row: &PgRow) -> Result<Intent, StoreError> {
    let bytes: Option<i64> = row::get(row, "bytes")?;
    let content = match (bytes, row::get(row, "json")?, row::get(row, "dropped")?) {
        (None, _, true) => Content::Dropped,
        (None, _, false) => Content::None,
        (Some(_), true, _) => Content::Json(row::get(row, "payload")?),
        (Some(_), false, _) => Content::Bytes(row::get(row, "body")?),
    };
    Ok(Intent {
        target: row::get(row, "target")?,
        content_type: row::get(row, "content_type")?,
        headers: row::get(row, "headers")?,
        ordering_key: row::get(row, "ordering_key")?,
        trace_context: row::get(row, "trace_context")?,
        enqueued_by: row::get(row, "enqueued_by")?,
        request_id: row::get(row, "request_id")?,
        expires_at: row::get(row, "expires_at")?,
        bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        content,
    })
}
