//! Rows as values: each column is parsed once, here, into [`StoreError::Corrupt`] on failure, never into a default.

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use crate::{
    clock::Timestamp,
    contract::{Contract, Window},
    decision::{History, Resend},
    effect::EffectId,
    error::StoreError,
    schedule::Policy,
    store::{RegisteredTerms, Token},
};

/// The state of an unfinished effect (`q`), as `status` says it; `?1` is the time now.
pub(super) const QUEUE_STATE: &str = "CASE WHEN q.lane = 'd' THEN 'in_doubt' WHEN q.claimed = 1 THEN 'in_flight' \
     WHEN q.lane = 'w' THEN 'waiting' WHEN q.lane = 'r' OR q.due_at <= ?1 THEN 'ready' \
     WHEN q.tries > 0 THEN 'retrying' ELSE 'scheduled' END";

/// What [`history`] reads, of a queue row `q` and the terms `p` that its last claim pinned.
pub(super) const HISTORY: &str = "q.uncertain, q.sent_before, q.attempts, q.tries, q.started_at, q.first_sent_at, \
     q.expires_at, q.resend, q.resend_unconfirmed, q.cancel_requested, q.applied_late, q.quiet_at, p.window_us";

/// One row, and where it is from, so that what cannot be read is named.
pub(super) struct Fields<'r> {
    row: &'r SqliteRow,
    table: &'static str,
    id: i64,
}

impl<'r> Fields<'r> {
    pub(super) fn new(row: &'r SqliteRow, table: &'static str, id: i64) -> Self {
        Self { row, table, id }
    }

    /// The same row, read as columns of another table.
    pub(super) fn of(&self, table: &'static str) -> Self {
        Self { row: self.row, table, id: self.id }
    }

    pub(super) fn corrupt(&self, column: &'static str, problem: impl ToString) -> StoreError {
        StoreError::Corrupt { table: self.table, column, row: self.id, problem: problem.to_string() }
    }

    fn get<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: sqlx::Type<sqlx::Sqlite> + sqlx::Decode<'r, sqlx::Sqlite>,
    {
        self.row.try_get(column).map_err(|error| self.corrupt(column, error))
    }

    pub(super) fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        self.get(column)
    }

    pub(super) fn opt_int(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.get(column)
    }

    pub(super) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.get(column)
    }

    pub(super) fn opt_text(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.get(column)
    }

    /// Text that an application wrote, for people: bytes that are no UTF-8 are shown as U+FFFD, they do not hide the page.
    pub(super) fn shown(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        Ok(self.opt_bytes(column)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    pub(super) fn opt_bytes(&self, column: &'static str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(column)
    }

    pub(super) fn count(&self, column: &'static str) -> Result<u32, StoreError> {
        let count = self.int(column)?;
        u32::try_from(count).map_err(|error| self.corrupt(column, format!("{count}: {error}")))
    }

    pub(super) fn flag(&self, column: &'static str) -> Result<bool, StoreError> {
        match self.int(column)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(column, format!("{other} is neither 0 nor 1"))),
        }
    }

    pub(super) fn time(&self, column: &'static str) -> Result<Timestamp, StoreError> {
        self.int(column).map(Timestamp::from_micros)
    }

    pub(super) fn opt_time(&self, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.opt_int(column)?.map(Timestamp::from_micros))
    }

    pub(super) fn opt_status(&self, column: &'static str) -> Result<Option<u16>, StoreError> {
        let status = self.opt_int(column)?;
        status.map(u16::try_from).transpose().map_err(|error| self.corrupt(column, error))
    }

    pub(super) fn opt_hash(&self, column: &'static str) -> Result<Option<[u8; 32]>, StoreError> {
        let bytes = self.opt_bytes(column)?;
        bytes
            .map(|bytes| <[u8; 32]>::try_from(bytes.as_slice()))
            .transpose()
            .map_err(|error| self.corrupt(column, error))
    }

    /// A word that `parse` knows.
    pub(super) fn word<T>(
        &self,
        column: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, StoreError> {
        let word = self.text(column)?;
        parse(&word).ok_or_else(|| self.corrupt(column, format!("{word:?} is not known")))
    }

    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| self.corrupt(column, error))
    }
}

/// What is known of an unfinished effect. One that was never claimed is as old as `now`.
pub(super) fn history(fields: &Fields<'_>, now: Timestamp) -> Result<History, StoreError> {
    Ok(History {
        id: EffectId::new(fields.id),
        uncertain: fields.flag("uncertain")?,
        sent_before: fields.flag("sent_before")?,
        attempts: fields.count("attempts")?,
        tries: fields.count("tries")?,
        started_at: fields.opt_time("started_at")?.unwrap_or(now),
        first_sent_at: fields.opt_time("first_sent_at")?,
        window_at_claim: fields.opt_int("window_us")?.map(Window::from_micros),
        expires_at: fields.opt_time("expires_at")?,
        resend: Resend::stored(fields.flag("resend")?, fields.flag("resend_unconfirmed")?),
        cancel_requested: fields.flag("cancel_requested")?,
        applied_late: fields.flag("applied_late")?,
        travels_until: fields.opt_time("quiet_at")?,
    })
}

/// Registered terms, from `contract`, `policy` and `timeout_us`.
pub(super) fn terms(row: &SqliteRow) -> Result<RegisteredTerms, StoreError> {
    let id = row.try_get("id").map_err(StoreError::during("reading terms"))?;
    let fields = Fields::new(row, "aftercommit_terms", id);
    let timeout = fields.int("timeout_us")?;
    Ok(RegisteredTerms {
        contract: fields.json::<Contract>("contract")?,
        policy: fields.json::<Policy>("policy")?,
        timeout: std::time::Duration::from_micros(
            u64::try_from(timeout).map_err(|error| fields.corrupt("timeout_us", error))?,
        ),
    })
}

/// Numbers as a JSON array: one bound value for a set.
pub(super) fn json_ids(ids: impl IntoIterator<Item = i64>) -> String {
    let ids: Vec<i64> = ids.into_iter().collect();
    serde_json::to_string(&ids).expect("numbers always serialise")
}

/// Draws the next token of the one sequence.
pub(super) async fn next_token(conn: &mut SqliteConnection) -> Result<Token, StoreError> {
    sqlx::query_scalar("UPDATE aftercommit_token SET last = last + 1 WHERE one = 1 RETURNING last")
        .fetch_one(conn)
        .await
        .map(Token::new)
        .map_err(StoreError::during("drawing a token"))
}
