//! What an effect carries. Differs because a file has no logins: who may read it may read all of it.

use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::row::{Fields, json_ids};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{Content, Intent, Look},
};

const DOING: &str = "reading what an effect carries";

/// Columns that applications write are cast, as everywhere. `length` of a BLOB counts bytes.
const INTENTS: &str = "SELECT id, CAST(target AS TEXT) AS target, CAST(content_type AS TEXT) AS content_type, \
     CAST(headers AS TEXT) AS headers, CAST(ordering_key AS TEXT) AS ordering_key, \
     CAST(trace_context AS TEXT) AS trace_context, CAST(enqueued_by AS TEXT) AS enqueued_by, request_id, \
     CAST(expires_at AS INTEGER) AS expires_at, fingerprint IS NOT NULL AS dropped, payload IS NOT NULL AS json, \
     length(CAST(coalesce(payload, body) AS BLOB)) AS bytes, \
     CASE WHEN length(CAST(payload AS BLOB)) <= ?2 THEN CAST(payload AS TEXT) END AS payload, \
     CASE WHEN length(CAST(body AS BLOB)) <= ?2 THEN CAST(body AS BLOB) END AS body \
     FROM aftercommit_effects WHERE id IN (SELECT value FROM json_each(?1))";

pub(super) async fn intents(
    conn: &mut SqliteConnection,
    ids: &[EffectId],
    look: Look,
) -> Result<Vec<(EffectId, Intent)>, StoreError> {
    let rows = sqlx::query(INTENTS)
        .bind(json_ids(ids.iter().map(|id| id.get())))
        .bind(look.longest())
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    let read = |row: &SqliteRow| {
        let id = Fields::new(row, "aftercommit_effects", 0).int("id").map(EffectId::new)?;
        Ok((id, read(row, id)?))
    };
    rows.iter().map(read).collect()
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
