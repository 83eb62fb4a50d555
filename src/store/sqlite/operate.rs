//! A person's verbs: judged, applied and audited in one transaction.

use std::time::Duration;

use sqlx::{Connection as _, Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore, bulk,
    enqueue::write_alone,
    inspect,
    record::{Deed, write_down},
    retain,
    row::{Fields, HISTORY, QUEUE_STATE, history, next_token},
    write::{Ending, Writes, add_to_counter},
};
use crate::{
    clock::Timestamp,
    contract::Contract,
    decision::{KEY_USED_BEFORE, Resend},
    effect::{EffectId, NewEffect},
    enqueue::Enqueued,
    error::{EnqueueError, StoreError},
    key,
    outcome::{REASON_MAX, Response, stored_text},
    state::State,
    store::{Acted, Operate},
    verb::{Actor, Change, Pinned, Refusal, Seen, Subject, Verb, judge, not_applied},
};

const DOING: &str = "applying a person's verb";

const REISSUES_MAX: u32 = 100;
const TAKEN: &str =
    "SELECT EXISTS (SELECT 1 FROM aftercommit_effects WHERE downstream = ?1 AND idempotency_key = ?2)";
/// The same request with another key, due now.
const REISSUE: &str = "INSERT INTO aftercommit_effects \
         (downstream, operation, idempotency_key, payload, body, content_type, headers, target, expires_at, ordering_key, \
          metadata, trace_context) \
     SELECT e.downstream, e.operation, ?2, e.payload, e.body, e.content_type, e.headers, e.target, \
         CASE WHEN e.expires_at > ?3 THEN e.expires_at END, e.ordering_key, e.metadata, e.trace_context \
     FROM aftercommit_effects AS e WHERE e.id = ?1 RETURNING id";
/// What no INSERT may say.
const OF_REQUEST: &str = "UPDATE aftercommit_effects AS n SET request_id = e.request_id, enqueued_by = e.enqueued_by \
     FROM aftercommit_effects AS e WHERE e.id = ?2 AND n.id = ?1 AND ?3 IS NOT NULL";
const SUPERSEDE: &str = "UPDATE aftercommit_outcomes SET superseded_by = ?1, token = ?2 WHERE effect_id = ?3";

#[async_trait::async_trait]
impl Operate for SqliteStore {
    async fn act(
        &self,
        id: EffectId,
        verb: &Verb,
        actor: &Actor,
        seen: Option<Seen>,
    ) -> Result<Acted, StoreError> {
        let (verb, actor) = (verb.clone(), actor.clone());
        let acted = self
            .write("applying a person's verb", move |conn, now| {
                Box::pin(async move {
                    // A verb that is refused on its way leaves nothing of it.
                    let mut step = conn.begin().await.map_err(StoreError::during(DOING))?;
                    let acted = act(&mut step, id, (&verb, &actor, seen), now).await?;
                    match acted {
                        Acted::Done(..) => step.commit().await,
                        Acted::Refused(_) | Acted::NotFound => step.rollback().await,
                    }
                    .map_err(StoreError::during(DOING))?;
                    Ok(acted)
                })
            })
            .await;
        self.shared.acted.notify_one();
        acted
    }

    async fn enqueue(&self, effect: &NewEffect, actor: &Actor) -> Result<Vec<Enqueued>, EnqueueError> {
        let (effect, actor) = (effect.clone(), actor.clone());
        // What is refused is this statement's value, not its failure: nothing of it is left either way.
        let written = self
            .write("enqueueing", move |conn, now| {
                Box::pin(async move {
                    let mut step = conn.begin().await.map_err(StoreError::during("enqueueing"))?;
                    let written = write_alone(&mut step, effect, &actor, now).await;
                    match &written {
                        Ok(_) => step.commit().await,
                        Err(_) => step.rollback().await,
                    }
                    .map_err(StoreError::during("enqueueing"))?;
                    Ok(written)
                })
            })
            .await;
        self.shared.acted.notify_one();
        match written {
            Ok(written) => written,
            Err(StoreError::Database { source, .. }) => Err(EnqueueError::Database(source)),
            Err(error) => Err(EnqueueError::Database(sqlx::Error::Decode(error.into()))),
        }
    }
}

/// An effect under the write lock, and what its ending would carry on.
struct Target {
    id: i64,
    downstream: String,
    number: i64,
    sent_before: bool,
    subject: Subject,
}

pub(super) async fn act(
    conn: &mut SqliteConnection,
    id: EffectId,
    (verb, actor, seen): (&Verb, &Actor, Option<Seen>),
    now: Timestamp,
) -> Result<Acted, StoreError> {
    if let Some(item) = actor.bulk
        && !bulk::mark(conn, item, id).await.map_err(StoreError::during(DOING))?
    {
        return Ok(Acted::Refused(Refusal::NotInBulk { bulk: item.bulk }));
    }
    adopt(conn, id.get()).await.map_err(StoreError::during(DOING))?;
    let Some(target) = load(conn, id.get(), now).await? else { return Ok(Acted::NotFound) };
    let change = match judge(verb, actor, seen, &target.subject, now) {
        Ok(change) => change,
        Err(refusal) => return Ok(Acted::Refused(refusal)),
    };
    match &change {
        Change::End(state) => end(conn, &target, *state, (verb, actor), now).await?,
        Change::NewHistory
        | Change::DueNow
        | Change::OneResend { .. }
        | Change::RequestCancel
        | Change::Park(_)
        | Change::Probe(..) => {
            requeue(conn, &target, &change, now).await?;
        }
        Change::Redact => retain::redact(conn, id.get()).await?,
        Change::Reissue(resolved) => {
            if let Some(state) = resolved {
                end(conn, &target, *state, (verb, actor), now).await?;
            }
            if let Err(refusal) = reissue(conn, &target, now).await? {
                return Ok(Acted::Refused(refusal));
            }
        }
    }
    let Some(status) = inspect::effect(conn, id).await? else { return Ok(Acted::NotFound) };
    let deed = Deed {
        verb: verb.as_str(),
        effect: Some(id.get()),
        downstream: Some(&target.downstream),
        from_state: Some(target.subject.state.as_str()),
        to_state: Some(status.state.as_str()),
        bulk: actor.bulk.map(|item| item.bulk),
    };
    write_down(conn, actor, deed, now).await.map_err(StoreError::during(DOING))?;
    Ok(Acted::Done(change, Box::new(status)))
}

/// An effect that is neither queued nor finished (its INSERT ran without triggers) is uncertain: parked, as `status` shows it.
async fn adopt(conn: &mut SqliteConnection, id: i64) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO aftercommit_queue (id, downstream, lane, first_sent_at, uncertain, sent_before, expires_at, note) \
         SELECT e.id, e.downstream, 'd', max(e.created_at, coalesce(e.due_at, e.created_at)), 1, 1, e.expires_at, \
             'it was neither queued nor finished: nobody knows what became of it' \
         FROM aftercommit_effects AS e WHERE e.id = ?1 \
             AND NOT EXISTS (SELECT 1 FROM aftercommit_queue WHERE id = ?1) \
             AND NOT EXISTS (SELECT 1 FROM aftercommit_outcomes WHERE effect_id = ?1)",
    )
    .bind(id)
    .execute(conn)
    .await?;
    Ok(())
}

async fn load(conn: &mut SqliteConnection, id: i64, now: Timestamp) -> Result<Option<Target>, StoreError> {
    let sql = format!(
        "SELECT e.id, e.downstream, o.effect_id IS NOT NULL AS ended, {HISTORY}, \
             CASE WHEN o.effect_id IS NOT NULL THEN o.state ELSE {QUEUE_STATE} END AS state, \
             coalesce(q.token, o.token) AS token, coalesce(q.number, o.number) AS number, \
             coalesce(q.sent_before, o.sent_before) AS was_sent, p.request_sha256 AS sent, \
             today.request_sha256 AS today, today.contract AS contract, today.timeout_us, q.note, o.superseded_by, \
             coalesce(o.refusal_stored, q.error_stored, 0) AS refusal_stored, e.fingerprint IS NOT NULL AS payload_dropped, \
             coalesce(o.kept & 2 = 0, 0) AS log_dropped, \
             EXISTS (SELECT 1 FROM aftercommit_attempts AS a WHERE a.effect_id = e.id AND a.replayed AND NOT EXISTS ( \
                 SELECT 1 FROM aftercommit_attempts AS b WHERE b.effect_id = e.id AND b.token < a.token \
                     AND b.phase NOT IN ('render', 'connect'))) AS strange_replay \
         FROM aftercommit_effects AS e LEFT JOIN aftercommit_queue AS q ON q.id = e.id \
         LEFT JOIN aftercommit_outcomes AS o ON o.effect_id = e.id \
         LEFT JOIN aftercommit_terms AS p ON p.id = q.terms \
         LEFT JOIN aftercommit_operations AS op \
             ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '') \
         LEFT JOIN aftercommit_terms AS today ON today.id = op.terms \
         WHERE e.id = ?2"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.micros())
        .bind(id)
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    row.map(|row| target(&row, now)).transpose()
}

fn target(row: &SqliteRow, now: Timestamp) -> Result<Target, StoreError> {
    let id = row.try_get("id").map_err(StoreError::during(DOING))?;
    let fields = Fields::new(row, "aftercommit_queue", id);
    let history = if fields.flag("ended")? { None } else { Some(history(&fields, now)?) };
    let contract = match fields.opt_text("contract")? {
        Some(_) => Some(fields.of("aftercommit_terms").json::<Contract>("contract")?),
        None => None,
    };
    let today = fields.opt_bytes("today")?;
    Ok(Target {
        id,
        downstream: fields.text("downstream")?,
        number: fields.int("number")?,
        sent_before: fields.flag("was_sent")?,
        subject: Subject {
            state: fields.word("state", |word| word.parse::<State>().ok())?,
            token: fields.int("token")?,
            history,
            contract,
            timeout: Duration::from_micros(
                fields.opt_int("timeout_us")?.and_then(|us| u64::try_from(us).ok()).unwrap_or(0),
            ),
            // A replay, and nothing of ours was ever sent before it; what a person does writes other words.
            key_used_before: fields.flag("strange_replay")?
                || fields.opt_text("note")?.is_some_and(|note| note.starts_with(KEY_USED_BEFORE)),
            quiet_at: fields.opt_time("quiet_at")?,
            pinned: fields.opt_bytes("sent")?.map(|sent| Pinned { sent, today }),
            superseded: fields.opt_int("superseded_by")?.is_some(),
            refusal_stored: fields.flag("refusal_stored")?,
            payload_dropped: fields.flag("payload_dropped")?,
            log_dropped: fields.flag("log_dropped")?,
        },
    })
}

async fn end(
    conn: &mut SqliteConnection,
    target: &Target,
    state: State,
    (verb, actor): (&Verb, &Actor),
    now: Timestamp,
) -> Result<(), StoreError> {
    let response = match verb {
        Verb::ResolveApplied { response: Some(json) } => {
            Some(Response { body: json.clone().into_bytes(), ..Response::default() })
        }
        Verb::ResolveApplied { response: None }
        | Verb::ResolveNotApplied
        | Verb::Retry
        | Verb::Resend
        | Verb::Cancel
        | Verb::Redact
        | Verb::Reissue { .. } => None,
    };
    let note = (state == State::Failed)
        .then(|| stored_text(&not_applied(&actor.who, actor.reason.as_deref()), REASON_MAX));
    let ending = Ending {
        id: target.id,
        downstream: target.downstream.clone(),
        state,
        token: next_token(conn).await?.get(),
        note,
        number: target.number,
        sent_before: target.sent_before,
        refusal_stored: state == State::Failed
            && (target.subject.key_used_before || target.subject.refusal_stored),
        response,
        first: None,
    };
    Writes::of_ending(ending, now).apply(conn).await
}

/// A key that follows from the old one; `n` counts on while it is somebody else's. Whoever builds flows lets `needs`, `if_failed`,
/// `undoes` and `bindings` of unstarted effects point to the new one here; until then those columns are refused.
async fn reissue(
    conn: &mut SqliteConnection,
    target: &Target,
    now: Timestamp,
) -> Result<Result<(), Refusal>, StoreError> {
    let doing = StoreError::during;
    let old: String = sqlx::query_scalar("SELECT idempotency_key FROM aftercommit_effects WHERE id = ?1")
        .bind(target.id)
        .fetch_one(&mut *conn)
        .await
        .map_err(doing(DOING))?;
    for n in 1..=REISSUES_MAX {
        let key = key::derive(&old, "reissue", &n.to_string());
        let taken: bool = sqlx::query_scalar(TAKEN)
            .bind(target.downstream.clone())
            .bind(key.as_str().to_owned())
            .fetch_one(&mut *conn)
            .await
            .map_err(doing(DOING))?;
        if taken {
            continue;
        }
        let written = sqlx::query_scalar(REISSUE)
            .bind(target.id)
            .bind(key.as_str().to_owned())
            .bind(now.micros())
            .fetch_one(&mut *conn)
            .await;
        let new: i64 = match written {
            Ok(id) => id,
            // The trigger refuses it in its own words: its downstream takes other keys by now, say.
            Err(error) => match error.as_database_error().map(|said| said.message().to_owned()) {
                Some(said) if said.contains("aftercommit: column ") => {
                    let why = said.rsplit("aftercommit: column ").next().unwrap_or_default().to_owned();
                    return Ok(Err(Refusal::NotWritten { why }));
                }
                Some(_) | None => return Err(doing(DOING)(error)),
            },
        };
        for (sql, number) in [(OF_REQUEST, target.id), (SUPERSEDE, next_token(conn).await?.get())] {
            sqlx::query(sql)
                .bind(new)
                .bind(number)
                .bind(target.id)
                .execute(&mut *conn)
                .await
                .map_err(doing(DOING))?;
        }
        return Ok(Ok(()));
    }
    Ok(Err(Refusal::NotWritten { why: "a hundred keys that follow from its own are taken".to_owned() }))
}

/// Writes the change of an effect that is, or comes back, in the queue.
async fn requeue(
    conn: &mut SqliteConnection,
    target: &Target,
    change: &Change,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = match change {
        // No new token: the worker that holds the claim must still be able to settle.
        Change::RequestCancel => "UPDATE aftercommit_queue SET cancel_requested = 1 WHERE id = ?1",
        Change::DueNow => "UPDATE aftercommit_queue SET lane = 'r', due_at = ?2, token = ?3 WHERE id = ?1",
        Change::OneResend { .. } => {
            "UPDATE aftercommit_queue SET lane = 'r', due_at = ?2, token = ?3, resend = ?4, resend_unconfirmed = NOT ?4, \
                 cancel_requested = 0, sweep_at = ?5, note = NULL WHERE id = ?1"
        }
        Change::Park(_) | Change::Probe(..) => {
            "UPDATE aftercommit_queue SET lane = 'd', due_at = ?5, sweep_at = NULL, token = ?3, note = ?4, \
                 cancel_requested = 1 WHERE id = ?1 AND ?2 IS NOT NULL"
        }
        Change::NewHistory => {
            "INSERT INTO aftercommit_queue \
                 (id, downstream, lane, due_at, sweep_at, expires_at, token, number, sent_before) \
             SELECT e.id, e.downstream, 'r', ?2, e.expires_at, e.expires_at, ?3, o.number, o.sent_before \
             FROM aftercommit_effects AS e JOIN aftercommit_outcomes AS o ON o.effect_id = e.id WHERE e.id = ?1"
        }
        Change::End(_) | Change::Redact | Change::Reissue(_) => return Ok(()),
    };
    let mut query = sqlx::query(sql).bind(target.id);
    if !matches!(change, Change::RequestCancel) {
        query = query.bind(now.micros()).bind(next_token(conn).await?.get());
    }
    let parked = match change {
        Change::Park(why) => Some((why, None)),
        Change::Probe(at, why) => Some((why, Some(at.micros()))),
        Change::NewHistory
        | Change::DueNow
        | Change::OneResend { .. }
        | Change::RequestCancel
        | Change::Redact
        | Change::Reissue(_)
        | Change::End(_) => None,
    };
    if let Change::OneResend { resend, sweep_at } = change {
        query = query.bind(*resend == Resend::Confirmed).bind(sweep_at.map(Timestamp::micros));
    }
    if let Some((why, probe_at)) = parked {
        query = query.bind(stored_text(why, REASON_MAX)).bind(probe_at);
    }
    query.execute(&mut *conn).await.map_err(StoreError::during(DOING))?;
    if matches!(change, Change::NewHistory) {
        sqlx::query("DELETE FROM aftercommit_outcomes WHERE effect_id = ?1")
            .bind(target.id)
            .execute(&mut *conn)
            .await
            .map_err(StoreError::during(DOING))?;
        add_to_counter(conn, &target.downstream, target.subject.state.as_str(), -1)
            .await
            .map_err(StoreError::during(DOING))?;
    }
    Ok(())
}
