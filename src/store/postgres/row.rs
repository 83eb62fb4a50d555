//! Reading rows, and time on the wire. Nothing that stands in a column may fail a batch: times of any size are times, and
//! JSON is read as text.

use std::sync::Arc;

use sqlx::{
    Decode, Encode, Postgres, Row, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueFormat, PgValueRef, types::Oid},
};

use crate::{
    clock::Timestamp,
    contract::Window,
    decision::{History, Resend},
    effect::{Effect, EffectId},
    error::StoreError,
    outcome::{Response, Verdict, stored_text},
    state::State,
};

/// Microseconds between 1970 and 2000, where PostgreSQL's clock begins.
const EPOCH: i64 = 946_684_800_000_000;
/// The earliest time that PostgreSQL takes (4714 BC), in its own count.
const EARLIEST: i64 = -211_813_488_000_000_000;
/// One more than the latest (294276 AD).
const END: i64 = 9_223_371_331_200_000_000;

// By number and not by name: a name would be looked up by a query of its own on every connection.
impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for Timestamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Timestamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = match *self {
            Self::MAX => i64::MAX,
            Self::MIN => i64::MIN,
            // What no calendar holds becomes the nearest time that the server takes: it would refuse the whole statement.
            time => time.micros().saturating_sub(EPOCH).clamp(EARLIEST, END - 1),
        };
        buffer.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() != PgValueFormat::Binary {
            return Err("a timestamp came as text: it was asked for with a simple query".into());
        }
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        Ok(match micros {
            i64::MAX => Self::MAX,
            i64::MIN => Self::MIN,
            micros => Self::from_micros(micros.saturating_add(EPOCH)),
        })
    }
}

/// A column that must be there: a failure names it.
pub(super) fn get<'r, T>(row: &'r PgRow, column: &'static str) -> Result<T, StoreError>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    row.try_get(column).map_err(|source| StoreError::Database { doing: "reading a row", source })
}

/// A count as the vocabulary has it; the schema keeps them from being negative.
pub(super) fn count(row: &PgRow, column: &'static str) -> Result<u32, StoreError> {
    let number: i32 = get(row, column)?;
    Ok(u32::try_from(number).unwrap_or(0))
}

/// A sum as the vocabulary has it.
pub(super) fn sum(row: &PgRow, column: &'static str) -> Result<u64, StoreError> {
    let number: i64 = get(row, column)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

/// A word that must be a state.
pub(super) fn state(word: &str, row: i64) -> Result<State, StoreError> {
    word.parse().map_err(|problem: crate::state::UnknownState| StoreError::Corrupt {
        table: "status",
        column: "state",
        row,
        problem: problem.to_string(),
    })
}

/// A word that must be a verdict.
pub(super) fn verdict(word: &str, row: i64) -> Result<Verdict, StoreError> {
    Verdict::ALL.into_iter().find(|verdict| verdict.as_str() == word).ok_or_else(|| StoreError::Corrupt {
        table: "attempts",
        column: "outcome",
        row,
        problem: format!("{word:?} is no outcome"),
    })
}

/// Text in a `json` column that must be what this library wrote there.
pub(super) fn parsed<T: serde::de::DeserializeOwned>(
    text: &str,
    (table, column, row): (&'static str, &'static str, i64),
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|problem| StoreError::Corrupt {
        table,
        column,
        row,
        problem: problem.to_string(),
    })
}

/// The columns of a queue row that [`history`] reads, of an alias `q`, with the pinned window of an alias `sent`.
macro_rules! history_columns {
    () => {
        "q.id, q.uncertain, q.sent_before, q.attempts, q.tries, q.number, q.started_at, q.first_sent_at, \
         sent.window_us, q.expires_at, q.resend, q.resend_unconfirmed, q.cancel_requested, q.applied_late, q.quiet_at"
    };
}
pub(super) use history_columns;

/// An effect as its downstream is given it.
pub(super) fn effect(row: &PgRow, id: EffectId, downstream: Arc<str>) -> Result<Effect, StoreError> {
    Ok(Effect {
        id,
        downstream,
        operation: get(row, "operation")?,
        key: get(row, "idempotency_key")?,
        payload: get(row, "payload")?,
        body: get(row, "body")?,
        content_type: get(row, "content_type")?,
        headers: get(row, "headers")?,
        target: get(row, "target")?,
        metadata: get(row, "metadata")?,
        trace_context: get(row, "trace_context")?,
        created_at: get(row, "created_at")?,
    })
}

/// What is known of an effect.
pub(super) fn history(row: &PgRow) -> Result<History, StoreError> {
    Ok(History {
        id: EffectId::new(get(row, "id")?),
        uncertain: get(row, "uncertain")?,
        sent_before: get(row, "sent_before")?,
        attempts: count(row, "attempts")?,
        tries: count(row, "tries")?,
        // Null only before the first claim, when no age has begun.
        started_at: get::<Option<Timestamp>>(row, "started_at")?.unwrap_or(Timestamp::MAX),
        first_sent_at: get(row, "first_sent_at")?,
        window_at_claim: get::<Option<i64>>(row, "window_us")?.map(Window::from_micros),
        expires_at: get(row, "expires_at")?,
        resend: Resend::stored(get(row, "resend")?, get(row, "resend_unconfirmed")?),
        cancel_requested: get(row, "cancel_requested")?,
        applied_late: get(row, "applied_late")?,
        travels_until: get(row, "quiet_at")?,
    })
}

/// Deepest nesting of a response that is stored as json: far below what the server's parser takes.
const RESPONSE_DEPTH_MAX: usize = 512;

/// A response as it is stored: as JSON only when it is whole and the database certainly takes it, else as bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoredResponse {
    pub(super) json: Option<String>,
    pub(super) raw: Option<Vec<u8>>,
    pub(super) truncated: bool,
    pub(super) status: Option<i32>,
}

impl StoredResponse {
    pub(super) fn of(response: Option<&Response>) -> Self {
        let Some(response) = response else { return Self::default() };
        let status = response.status.map(i32::from);
        if response.body.is_empty() {
            return Self { status, truncated: response.truncated, ..Self::default() };
        }
        match (!response.truncated).then(|| json(&response.body)).flatten() {
            Some(text) => Self { json: Some(text), raw: None, truncated: false, status },
            None => {
                Self { json: None, raw: Some(response.body.clone()), truncated: response.truncated, status }
            }
        }
    }
}

/// The text of a document that a `json` column certainly takes.
fn json(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    if text.contains('\0') || crate::effect::depth(text) > RESPONSE_DEPTH_MAX {
        return None;
    }
    serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
    Some(text.to_owned())
}

/// A sentence as it is stored.
pub(super) fn sentence(text: &str) -> String {
    stored_text(text, crate::outcome::REASON_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_json_only_where_the_database_takes_it() {
        let stored = |body: &[u8], truncated| {
            StoredResponse::of(Some(&Response { status: Some(200), body: body.to_vec(), truncated }))
        };
        assert_eq!(stored(br#"{"a":"\u0000"}"#, false).json.as_deref(), Some(r#"{"a":"\u0000"}"#));
        for raw in [&b"\xff"[..], b"{\"a\":\"\0\"}", b"<html>", &b"[".repeat(600)] {
            let stored = stored(raw, false);
            assert_eq!((stored.json, stored.raw.as_deref()), (None, Some(raw)));
        }
        assert!(stored(b"{}", true).json.is_none());
        assert_eq!(stored(b"", false), StoredResponse { status: Some(200), ..StoredResponse::default() });
    }
}
