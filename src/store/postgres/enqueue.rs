//! Writing effects into the caller's transaction. The trigger on `effects` checks and queues them; this file only INSERTs,
//! and asks about keys that exist in a statement of its own, which sees what others committed meanwhile.

use std::collections::{BTreeMap, HashMap};

use sqlx::{
    PgConnection, Row,
    postgres::{PgDatabaseError, PgRow},
};

use super::{
    PgStore,
    operate::enqueue_audit,
    session::Session,
    statement::{Statement, Tx, sql},
};
use crate::{
    clock::Timestamp,
    effect::{COLUMNS, EffectId, InvalidEffect, NewEffect},
    enqueue::{Enqueue, Enqueued, Outbox, Receipt},
    error::EnqueueError,
    guard::{RequestKey, Scope},
    key,
    state::State,
    verb::Actor,
};

/// A key that its downstream cannot take is left out: the trigger would refuse all of them, and the caller's transaction
/// with them. Sorted, so that two batches wait for each other's keys in one order only. Served by the unique key. `$when` may
/// hold everything back.
macro_rules! insert_sql {
    ($when:literal) => {
        concat!(
            "INSERT INTO aftercommit.effects (downstream, operation, idempotency_key, payload, body, content_type,
  headers, target, due_at, expires_at, metadata, trace_context)
SELECT n.downstream, n.operation, n.idempotency_key, n.payload::json, n.body, n.content_type, n.headers::json, n.target,
  coalesce(n.due_at, clock_timestamp()), n.expires_at, n.metadata::jsonb, n.trace_context
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
  $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[]) WITH ORDINALITY
  AS n (downstream, operation, idempotency_key, payload, body, content_type, headers, target, due_at, expires_at, metadata,
    trace_context, ord)
WHERE n.ord NOT IN (SELECT r.ord FROM aftercommit.key_refusals($1::text[], $3::text[]) AS r)",
            $when,
            "
ORDER BY n.downstream COLLATE \"C\", n.idempotency_key COLLATE \"C\"
ON CONFLICT (downstream, idempotency_key) DO NOTHING
RETURNING id, downstream, idempotency_key, clock_timestamp() AS now_at"
        )
    };
}

/// Where every effect has its key.
const INSERT: &str = insert_sql!("");

/// Where some have none: in a guarded request nothing is written yet, and one row without an id says which request it is, from
/// which their keys follow. After a transaction's end a setting reads as ''.
const INSERT_OR_REQUEST: &str = concat!(
    "WITH written AS (
",
    insert_sql!("\n  AND coalesce(current_setting('aftercommit.request', true), '') = ''"),
    "
)
SELECT w.id, w.downstream, w.idempotency_key, w.now_at FROM written AS w
UNION ALL
SELECT NULL, current_setting('aftercommit.request_scope', true), current_setting('aftercommit.request_key', true), clock_timestamp()
WHERE current_setting('aftercommit.request', true) <> ''"
);

/// What an application may not read about an effect, it may ask: is it this request? Or why it was left out.
const EXISTING: &str = "SELECT n.ord, x.id, x.state, x.identical,
  CASE WHEN $9 AND x.id IS NOT NULL THEN aftercommit.is_of_this_request(x.id) ELSE false END AS of_this_request,
  CASE WHEN x.id IS NULL THEN r.problem END AS refusal
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[])
  WITH ORDINALITY AS n (downstream, idempotency_key, operation, payload, body, content_type, headers, target, ord)
LEFT JOIN LATERAL aftercommit.existing(n.downstream, n.idempotency_key, n.operation, n.payload, n.body, n.content_type,
  n.headers, n.target) AS x ON true
LEFT JOIN aftercommit.key_refusals($1::text[], $2::text[]) AS r ON r.ord = n.ord";

const KIND: &str = "SELECT d.kind FROM aftercommit.downstreams AS d WHERE d.name = $1";

/// A key that is taken and freed again and again is somebody's mistake; it must not hold this transaction for ever.
const ROUNDS: usize = 100;

/// A key as it is compared.
type Name = (String, String);

impl Enqueue for PgConnection {
    async fn enqueue_one(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        Caller { connection: self, session: Session::Own }.enqueue_one(effect).await
    }

    async fn enqueue_all(&mut self, effects: Vec<NewEffect>) -> Result<Results, EnqueueError> {
        Caller { connection: self, session: Session::Own }.enqueue_all(effects).await
    }
}

/// The caller's connection, when it leads to a transaction pooler: `Outbox.enqueue(&mut Pooled(&mut *tx), effect)`.
///
/// Statements then have no names, since the server connection changes with every transaction, and are planned every time
/// (about half as many single enqueues per second). The application's own statements need the same
/// (`.persistent(false)`), and its connections `extra_float_digits(None)`.
#[derive(Debug)]
pub struct Pooled<'c>(pub &'c mut PgConnection);

impl Enqueue for Pooled<'_> {
    async fn enqueue_one(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        Caller { connection: self.0, session: Session::Borrowed }.enqueue_one(effect).await
    }

    async fn enqueue_all(&mut self, effects: Vec<NewEffect>) -> Result<Results, EnqueueError> {
        Caller { connection: self.0, session: Session::Borrowed }.enqueue_all(effects).await
    }
}

impl PgStore {
    /// A mail is split as `enqueue()` in SQL splits it, by the kind that its downstream was registered with.
    pub(super) async fn enqueue_alone(
        &self,
        effect: &NewEffect,
        actor: &Actor,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let mut tx = Tx::begin(&self.pool).await?;
        let kind = tx.optional(sql(KIND).bind(&effect.downstream)).await?;
        let kind: Option<String> = kind.map(|row| row.try_get("kind")).transpose()?;
        let effects = effect.clone().at_kind(kind.as_deref())?;
        let written = match tx.borrow() {
            (Session::Own, connection) => Outbox.enqueue_many(connection, effects).await,
            (Session::Borrowed, connection) => Outbox.enqueue_many(&mut Pooled(connection), effects).await,
        };
        match written.and_then(|results| results.into_iter().collect::<Result<Vec<_>, _>>()) {
            Ok(written) => {
                for one in &written {
                    if let Enqueued::Inserted(receipt) = one {
                        tx.execute(enqueue_audit(actor, &effect.downstream, receipt)).await?;
                    }
                }
                tx.commit().await?;
                Ok(written)
            }
            Err(error) => {
                drop(tx.rollback().await);
                Err(error)
            }
        }
    }
}

/// A result per effect, in the order given.
type Results = Vec<Result<Enqueued, EnqueueError>>;

/// The caller's transaction, and whose session it is in.
struct Caller<'c> {
    connection: &'c mut PgConnection,
    session: Session,
}

impl Caller<'_> {
    async fn all(&mut self, statement: Statement<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        self.session.name(statement).fetch_all(&mut *self.connection).await
    }

    async fn enqueue_one(&mut self, effect: NewEffect) -> Result<Enqueued, EnqueueError> {
        let mut results = self.enqueue_all(vec![effect]).await?;
        results.pop().unwrap_or(Err(EnqueueError::Database(sqlx::Error::RowNotFound)))
    }

    async fn enqueue_all(&mut self, effects: Vec<NewEffect>) -> Result<Results, EnqueueError> {
        let mut unasked = effects.iter().any(|effect| effect.key.is_none());
        let mut items: Vec<(Name, NewEffect)> =
            effects.into_iter().map(|effect| (named(&effect, None), effect)).collect();
        let mut results: Vec<Option<Result<Enqueued, EnqueueError>>> =
            items.iter().map(|item| storable(&item.1).err().map(Err)).collect();
        for _ in 0..ROUNDS {
            let open: Vec<usize> = (0..items.len()).filter(|index| results[*index].is_none()).collect();
            if open.is_empty() {
                break;
            }
            // The first of several with one key is written; the others find it.
            let mut first: BTreeMap<&Name, usize> = BTreeMap::new();
            for index in &open {
                first.entry(&items[*index].0).or_insert(*index);
            }
            match insert(self, &items, first, std::mem::take(&mut unasked)).await? {
                Written::These(written) => {
                    for (index, receipt) in written {
                        results[index] = Some(Ok(Enqueued::Inserted(receipt)));
                    }
                }
                Written::NothingIn(request) => {
                    for (name, effect) in &mut items {
                        *name = named(effect, Some(&request));
                    }
                    continue;
                }
            }
            let open: Vec<usize> = open.into_iter().filter(|index| results[*index].is_none()).collect();
            for (index, found) in existing(self, &items, &open).await? {
                results[index] = Some(found);
            }
        }
        let taken_and_freed = || Err(EnqueueError::Database(sqlx::Error::RowNotFound));
        Ok(results.into_iter().map(|result| result.unwrap_or_else(taken_and_freed)).collect())
    }
}

/// Refuses, before the database does and aborts the caller's transaction, the one character that no text of it can hold.
fn storable(effect: &NewEffect) -> Result<(), EnqueueError> {
    let texts = [
        ("downstream", Some(effect.downstream.as_str())),
        ("operation", effect.operation.as_deref()),
        ("content_type", effect.content_type.as_deref()),
        ("target", effect.target.as_deref()),
        ("trace_context", effect.trace_context.as_deref()),
    ];
    match texts.into_iter().find(|(_, text)| text.is_some_and(|text| text.contains('\0'))) {
        Some((column, _)) => Err(InvalidEffect::column(column, "must not contain U+0000").into()),
        None => Ok(()),
    }
}

/// What the database's check refused, as a value: it names the column.
fn refused(error: sqlx::Error) -> EnqueueError {
    let said = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let invalid = said.filter(|said| matches!(said.code(), "23514" | "23502")).and_then(|said| {
        let column = COLUMNS.into_iter().find(|column| said.column() == Some(*column))?;
        let words = said.message();
        let problem = words.strip_prefix(&format!("effects.{column} ")).unwrap_or(words);
        Some(InvalidEffect::column(column, problem))
    });
    invalid.map_or(EnqueueError::Database(error), EnqueueError::Invalid)
}

fn named(effect: &NewEffect, request: Option<&(Scope, RequestKey)>) -> Name {
    (effect.downstream.clone(), key::of_effect(effect, request).as_str().to_owned())
}

/// What an INSERT did.
enum Written {
    /// These.
    These(Vec<(usize, Receipt)>),
    /// Nothing: this transaction acts on this request, and some keys must be derived from it first.
    NothingIn((Scope, RequestKey)),
}

/// The request of a row of [`INSERT_OR_REQUEST`]. The database verifies it as it writes.
fn request(row: &PgRow) -> Result<(Scope, RequestKey), sqlx::Error> {
    let read = |column| row.try_get::<Option<String>, _>(column).map(Option::unwrap_or_default);
    let (scope, key) = (Scope::parse(read("downstream")?), RequestKey::parse(read("idempotency_key")?));
    scope.ok().zip(key.ok()).ok_or_else(|| {
        sqlx::Error::Protocol(
            "begin_request gave this transaction another answer than 'new' (ROLLBACK, and send that answer), or something \
             else has written its settings aftercommit.request, request_scope and request_key (RESET them)"
                .to_owned(),
        )
    })
}

/// `unasked`: some effects have no key yet, and whether they are part of a guarded request is not known.
async fn insert(
    caller: &mut Caller<'_>,
    items: &[(Name, NewEffect)],
    first: BTreeMap<&Name, usize>,
    unasked: bool,
) -> Result<Written, EnqueueError> {
    let column = |take: fn(&NewEffect) -> Option<&str>| -> Vec<Option<&str>> {
        first.values().map(|index| take(&items[*index].1)).collect()
    };
    let of = |index: &usize| &items[*index].1;
    let statement = sql(if unasked { INSERT_OR_REQUEST } else { INSERT })
        .bind(first.keys().map(|name| name.0.as_str()).collect::<Vec<_>>())
        .bind(column(|effect| effect.operation.as_deref()))
        .bind(first.keys().map(|name| name.1.as_str()).collect::<Vec<_>>())
        .bind(column(|effect| effect.payload.as_deref()))
        .bind(first.values().map(|index| of(index).body.as_deref()).collect::<Vec<_>>())
        .bind(column(|effect| effect.content_type.as_deref()))
        .bind(column(|effect| effect.headers.as_deref()))
        .bind(column(|effect| effect.target.as_deref()))
        .bind(first.values().map(|index| of(index).due_at).collect::<Vec<_>>())
        .bind(first.values().map(|index| of(index).expires_at).collect::<Vec<_>>())
        .bind(column(|effect| effect.metadata.as_deref()))
        .bind(column(|effect| effect.trace_context.as_deref()));
    let rows = caller.all(statement).await.map_err(refused)?;
    let first: HashMap<(&str, &str), usize> =
        first.iter().map(|(name, index)| ((name.0.as_str(), name.1.as_str()), *index)).collect();
    let mut inserted = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(id) = row.try_get::<Option<i64>, _>("id")? else {
            return Ok(Written::NothingIn(request(row)?));
        };
        let key: &str = row.try_get("idempotency_key")?;
        let downstream: &str = row.try_get("downstream")?;
        let index = first.get(&(downstream, key)).copied();
        let index =
            index.ok_or_else(|| sqlx::Error::Protocol("an effect came back that was not sent".into()))?;
        // Not asked of the row: an application may not read its due_at.
        let now_at: Timestamp = row.try_get("now_at")?;
        let later = items[index].1.due_at.is_some_and(|due_at| due_at > now_at);
        let state = if later { State::Scheduled } else { State::Ready };
        inserted.push((index, Receipt { id: EffectId::new(id), key: key.to_owned(), state }));
    }
    Ok(Written::These(inserted))
}

async fn existing(
    caller: &mut Caller<'_>,
    items: &[(Name, NewEffect)],
    open: &[usize],
) -> Result<Vec<(usize, Result<Enqueued, EnqueueError>)>, EnqueueError> {
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let column = |take: fn(&NewEffect) -> Option<&str>| -> Vec<Option<&str>> {
        open.iter().map(|index| take(&items[*index].1)).collect()
    };
    let statement = sql(EXISTING)
        .bind(open.iter().map(|index| items[*index].0.0.as_str()).collect::<Vec<_>>())
        .bind(open.iter().map(|index| items[*index].0.1.as_str()).collect::<Vec<_>>())
        .bind(column(|effect| effect.operation.as_deref()))
        .bind(column(|effect| effect.payload.as_deref()))
        .bind(open.iter().map(|index| items[*index].1.body.as_deref()).collect::<Vec<_>>())
        .bind(column(|effect| effect.content_type.as_deref()))
        .bind(column(|effect| effect.headers.as_deref()))
        .bind(column(|effect| effect.target.as_deref()))
        .bind(open.iter().any(|index| items[*index].1.key.is_none()));
    let rows = caller.all(statement).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let ord: i64 = row.try_get("ord")?;
        let Some(index) = usize::try_from(ord - 1).ok().and_then(|ord| open.get(ord).copied()) else {
            continue;
        };
        let ((downstream, key), _) = &items[index];
        if let Some(problem) = row.try_get::<Option<String>, _>("refusal")? {
            found.push((index, Err(InvalidEffect::column("idempotency_key", problem).into())));
            continue;
        }
        // Neither there nor refused: whoever held the key has rolled back, and it is tried again.
        let Some(id) = row.try_get::<Option<i64>, _>("id")? else { continue };
        if items[index].1.key.is_none() && row.try_get("of_this_request")? {
            let (downstream, key) = (downstream.clone(), key.clone());
            found.push((index, Err(EnqueueError::NeedsName { downstream, key, id })));
            continue;
        }
        if !row.try_get::<bool, _>("identical")? {
            let (downstream, key) = (downstream.clone(), key.clone());
            found.push((index, Err(EnqueueError::OtherRequest { downstream, key, id })));
            continue;
        }
        let state: State = row
            .try_get::<&str, _>("state")?
            .parse()
            .map_err(|problem: crate::state::UnknownState| sqlx::Error::Decode(problem.into()))?;
        let receipt = Receipt { id: EffectId::new(id), key: key.clone(), state };
        let enqueued =
            if state.is_terminal() { Enqueued::Ended(receipt) } else { Enqueued::Pending(receipt) };
        found.push((index, Ok(enqueued)));
    }
    Ok(found)
}
