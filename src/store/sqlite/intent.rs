//! What an effect carries. Differs because a file has no logins: who may read it may read all of it.

use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::row::Fields;
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{Content, Intent, Look},
};

const DOING: &str = "reading what an effect carries";

/// Columns that applications write are cast, as everywhere. `length` of a BLOB counts bytes.
const INTENT: &str = "SELECT CAST(target AS TEXT) AS target, CAST(content_type AS TEXT) AS content_type, \
     CAST(headers AS TEXT) AS headers, CAST(ordering_key AS TEXT) AS ordering_key, \
     CAST(trace_context AS TEXT) AS trace_context, CAST(enqueued_by AS TEXT) AS enqueued_by, request_id, \
     CAST(expires_at AS INTEGER) AS expires_at, fingerprint IS NOT NULL AS dropped, payload IS NOT NULL AS json, \
     length(CAST(coalesce(payload, body) AS BLOB)) AS bytes, \
     CASE WHEN ?2 THEN CAST(payload AS TEXT) END AS payload, CASE WHEN ?2 THEN CAST(body AS BLOB) END AS body \
     FROM aftercommit_effects WHERE id = ?1";

pub(super) async fn intent(
    conn: &mut SqliteConnection,
    id: EffectId,
    look: Look,
) -> Result<Option<Intent>, StoreError> {
    let row = sqlx::query(INTENT)
        .bind(id.get())
        .bind(look == Look::Whole)
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    row.map(|row| read(&row, id)).transpose()
}

fn read(row: &SqliteRow, id: EffectId) -> Result<Intent, StoreError> {
    let fields = Fields::new(row, "aftercommit_effects", id.get());
    let bytes = fields.opt_int("bytes")?;
    let content = match (bytes, fields.flag("json")?, fields.flag("dropped")?) {
        (None, _, true) => Content::Dropped,
        (None, _, false) => Content::None,
        (Some(_), true, _) => Content::Json(fields.shown("payload")?),
        (Some(_), false, _) => Content::Bytes(fields.opt_bytes("body")?),
    };
    Ok(Intent {
        target: fields.shown("target")?,
        content_type: fields.shown("content_type")?,
        headers: fields.shown("headers")?,
        ordering_key: fields.shown("ordering_key")?,
        trace_context: fields.shown("trace_context")?,
        enqueued_by: fields.shown("enqueued_by")?,
        request_id: fields.opt_int("request_id")?,
        expires_at: fields.opt_time("expires_at")?,
        bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        content,
    })
}
