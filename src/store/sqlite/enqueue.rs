//! Writing effects into the caller's transaction, on the caller's connection.

use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    record::{Deed, write_down},
    row::{Fields, QUEUE_STATE},
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    effect::{COLUMNS, EffectId, IdempotencyKey, InvalidEffect, NewEffect, fingerprint::Parts},
    enqueue::{Enqueue, Enqueued, Outbox, Receipt},
    error::EnqueueError,
    guard::{RequestKey, Scope},
    key,
    state::State,
    verb::Actor,
};

/// What makes an effect `e` the request that it is.
pub(super) const REQUEST: &str = "e.operation, e.payload, e.body, e.content_type, e.headers, e.target, e.ordering_key, e.needs, \
     e.bindings, CAST(e.undoes AS TEXT) AS undoes";

/// What the trigger says of a key that is taken.
const TAKEN: &str = "already has an effect with this key";

impl Enqueue for SqliteConnection {
    async fn enqueue_one(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        write(self, effect).await
    }

    /// In the order given: a refused INSERT undoes itself only, and with one writer two batches cannot deadlock.
    async fn enqueue_all(
        &mut self,
        effects: Vec<NewEffect>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        let mut results = Vec::with_capacity(effects.len());
        for effect in effects {
            match write(self, effect).await {
                Err(EnqueueError::Database(error)) if error.as_database_error().is_none() => {
                    return Err(error.into());
                }
                result => results.push(result),
            }
        }
        Ok(results)
    }
}

/// Under the write lock, by hand. A mail is split by the kind that its downstream was registered with. Each that is written has its
/// audit row.
pub(super) async fn write_alone(
    conn: &mut SqliteConnection,
    effect: NewEffect,
    actor: &Actor,
    now: Timestamp,
) -> Result<Vec<Enqueued>, EnqueueError> {
    let downstream = effect.downstream.clone();
    let kind: Option<String> = sqlx::query_scalar("SELECT kind FROM aftercommit_downstreams WHERE name = ?1")
        .bind(effect.downstream.clone())
        .fetch_optional(&mut *conn)
        .await?;
    let effects = effect.at_kind(kind.as_deref())?;
    let written = Outbox.enqueue_many(conn, effects).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    for one in &written {
        if let Enqueued::Inserted(receipt) = one {
            let deed = Deed {
                verb: "enqueue",
                effect: Some(receipt.id.get()),
                downstream: Some(&downstream),
                to_state: Some(receipt.state.as_str()),
                ..Deed::default()
            };
            write_down(conn, actor, deed, now).await?;
        }
    }
    Ok(written)
}

/// INSERTs first: it takes the write lock (waiting for it) also in a transaction begun as deferred, which a SELECT first
/// would turn into one that cannot be upgraded.
async fn write(conn: &mut SqliteConnection, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
    check(&effect)?;
    let request = if effect.key.is_none() { request(conn).await? } else { None };
    let key = key::of_effect(&effect, request.as_ref());
    match insert(conn, &effect, &key).await {
        Ok(inserted) => Ok(Enqueued::Inserted(inserted)),
        Err(error) => {
            let said = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
            if said.contains(TAKEN) {
                return existing(conn, &effect, &key, error).await;
            }
            Err(refusal(&said).map_or(EnqueueError::Database(error), EnqueueError::Invalid))
        }
    }
}

/// The guarded request that this transaction acts on. The UPDATE changes nothing; it takes the write lock, as an INSERT would.
async fn request(conn: &mut SqliteConnection) -> Result<Option<(Scope, RequestKey)>, EnqueueError> {
    sqlx::query("UPDATE aftercommit_requests SET unanswered = NULL WHERE 0").execute(&mut *conn).await?;
    let row = sqlx::query("SELECT scope, key FROM aftercommit_requests WHERE unanswered IS NOT NULL")
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let corrupt = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    let scope = Scope::parse(row.try_get::<&str, _>("scope")?).map_err(|error| corrupt(error.into()))?;
    let key = RequestKey::parse(row.try_get::<&str, _>("key")?).map_err(|error| corrupt(error.into()))?;
    Ok(Some((scope, key)))
}

/// What SQLite would take and nobody else: a NUL inside a text.
fn check(effect: &NewEffect) -> Result<(), InvalidEffect> {
    for (column, text) in [
        ("downstream", Some(&effect.downstream)),
        ("operation", effect.operation.as_ref()),
        ("payload", effect.payload.as_ref()),
        ("content_type", effect.content_type.as_ref()),
        ("headers", effect.headers.as_ref()),
        ("target", effect.target.as_ref()),
        ("metadata", effect.metadata.as_ref()),
        ("trace_context", effect.trace_context.as_ref()),
    ] {
        if text.is_some_and(|text| text.contains('\0')) {
            return Err(InvalidEffect::column(column, "must not contain U+0000"));
        }
    }
    Ok(())
}

/// The trigger's words, `aftercommit: column X: …`, as a value.
fn refusal(said: &str) -> Option<InvalidEffect> {
    let (_, rest) = said.split_once("aftercommit: column ")?;
    let (column, problem) = rest.split_once(": ")?;
    let column = COLUMNS.into_iter().find(|known| *known == column)?;
    Some(InvalidEffect::column(column, problem))
}

async fn insert(
    conn: &mut SqliteConnection,
    effect: &NewEffect,
    key: &IdempotencyKey,
) -> Result<Receipt, sqlx::Error> {
    let now = SystemClock.wall();
    // Without a time of its own it is due now, by the clock that the trigger asks too: hence no column at all.
    let sql = match effect.due_at {
        None => {
            "INSERT INTO aftercommit_effects (downstream, operation, idempotency_key, payload, body, content_type, \
                 headers, target, expires_at, metadata, trace_context) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) RETURNING id"
        }
        Some(_) => {
            "INSERT INTO aftercommit_effects (downstream, operation, idempotency_key, payload, body, content_type, \
                 headers, target, expires_at, metadata, trace_context, due_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) RETURNING id"
        }
    };
    let mut query = sqlx::query_scalar(sql)
        .bind(effect.downstream.clone())
        .bind(effect.operation.clone())
        .bind(key.as_str().to_owned())
        .bind(effect.payload.clone())
        .bind(effect.body.clone())
        .bind(effect.content_type.clone())
        .bind(effect.headers.clone())
        .bind(effect.target.clone())
        .bind(effect.expires_at.map(|at| at.micros()))
        .bind(effect.metadata.clone())
        .bind(effect.trace_context.clone());
    if let Some(due_at) = effect.due_at {
        query = query.bind(due_at.micros());
    }
    let id: i64 = query.fetch_one(conn).await?;
    let state = match effect.due_at {
        Some(due_at) if due_at > now => State::Scheduled,
        _ => State::Ready,
    };
    Ok(Receipt { id: EffectId::new(id), key: key.as_str().to_owned(), state })
}

/// The effect that holds the key; `refused` is what the INSERT was told, should it have vanished since.
async fn existing(
    conn: &mut SqliteConnection,
    effect: &NewEffect,
    key: &IdempotencyKey,
    refused: sqlx::Error,
) -> Result<Enqueued, EnqueueError> {
    let sql = format!(
        "SELECT e.id, {REQUEST}, e.fingerprint, \
             e.request_id = (SELECT id FROM aftercommit_requests WHERE unanswered IS NOT NULL) AS of_this_request, \
             CASE WHEN o.effect_id IS NOT NULL THEN o.state ELSE {QUEUE_STATE} END AS state \
         FROM aftercommit_effects AS e LEFT JOIN aftercommit_queue AS q ON q.id = e.id \
         LEFT JOIN aftercommit_outcomes AS o ON o.effect_id = e.id \
         WHERE e.downstream = ?2 AND e.idempotency_key = ?3"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(SystemClock.wall().micros())
        .bind(effect.downstream.clone())
        .bind(key.as_str().to_owned())
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else { return Err(refused.into()) };
    let id: i64 = row.try_get("id")?;
    if effect.key.is_none() && row.try_get::<Option<bool>, _>("of_this_request")? == Some(true) {
        let (downstream, key) = (effect.downstream.clone(), key.as_str().to_owned());
        return Err(EnqueueError::NeedsName { downstream, key, id });
    }
    if stored_fingerprint(&row)? != Parts::of(effect).fingerprint() {
        return Err(EnqueueError::OtherRequest {
            downstream: effect.downstream.clone(),
            key: key.as_str().to_owned(),
            id,
        });
    }
    let state = Fields::new(&row, "aftercommit_effects", id)
        .word("state", |word| word.parse::<State>().ok())
        .map_err(|error| sqlx::Error::Decode(error.into()))?;
    let receipt = Receipt { id: EffectId::new(id), key: key.as_str().to_owned(), state };
    Ok(if state.is_terminal() { Enqueued::Ended(receipt) } else { Enqueued::Pending(receipt) })
}

/// As retention stored it, else of the columns that it is made of.
fn stored_fingerprint(row: &SqliteRow) -> Result<Vec<u8>, sqlx::Error> {
    match row.try_get("fingerprint")? {
        Some(stored) => Ok(stored),
        None => fingerprint_of_row(row),
    }
}

/// The fingerprint of a row with [`REQUEST`]'s columns.
pub(super) fn fingerprint_of_row(row: &SqliteRow) -> Result<Vec<u8>, sqlx::Error> {
    let parts = Parts {
        operation: row.try_get("operation")?,
        payload: row.try_get("payload")?,
        body: row.try_get("body")?,
        content_type: row.try_get("content_type")?,
        headers: row.try_get("headers")?,
        target: row.try_get("target")?,
        ordering_key: row.try_get("ordering_key")?,
        needs: row.try_get("needs")?,
        bindings: row.try_get("bindings")?,
        undoes: row.try_get("undoes")?,
    };
    Ok(parts.fingerprint().to_vec())
}
