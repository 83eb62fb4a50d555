//! What an effect carries, for those who may read it; and who may read what was answered.

use super::{PgStore, row, statement::sql};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{Content, Intent, Look},
};

const DOING: &str = "reading what an effect carries";

/// Served by the primary key. A payload is counted in the bytes that are sent.
const INTENT: &str = "SELECT target, content_type, headers::text AS headers, ordering_key, trace_context, enqueued_by, request_id,
  expires_at, fingerprint IS NOT NULL AS dropped,
  payload IS NOT NULL AS json, coalesce(octet_length(payload::text), octet_length(body))::int8 AS bytes,
  CASE WHEN $2 THEN payload::text END AS payload, CASE WHEN $2 THEN body END AS body
FROM aftercommit.effects WHERE id = $1";

const ANSWERS: &str = "SELECT has_column_privilege('aftercommit.status_of_all', 'response', 'SELECT')";

impl PgStore {
    pub(super) async fn intent_of(&self, id: EffectId, look: Look) -> Result<Option<Intent>, StoreError> {
        let rows = self.read(sql(INTENT).bind(id.get()).bind(look == Look::Whole), DOING).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let bytes: Option<i64> = row::get(row, "bytes")?;
        let content = match (bytes, row::get(row, "json")?, row::get(row, "dropped")?) {
            (None, _, true) => Content::Dropped,
            (None, _, false) => Content::None,
            (Some(_), true, _) => Content::Json(row::get(row, "payload")?),
            (Some(_), false, _) => Content::Bytes(row::get(row, "body")?),
        };
        Ok(Some(Intent {
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
        }))
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
