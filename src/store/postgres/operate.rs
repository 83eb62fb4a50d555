//! People's verbs: read under a lock, judged, applied, audited, in one transaction.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{
    PgStore, Tx,
    bulk::mark,
    inspect::status_of,
    row::{self, StoredResponse, history_columns, sentence},
    statement::{Statement, sql},
    wake::CHANNEL,
};
use crate::{
    clock::Timestamp,
    decision::Resend,
    effect::EffectId,
    enqueue::Receipt,
    error::StoreError,
    follow::is_of_a_used_key,
    outcome::Response,
    state::State,
    store::{Acted, Status},
    verb::{Actor, Change, Pinned, Refusal, Seen, Subject, Verb, judge, not_applied},
};

/// Holds the queue row, or the outcome row where there is none: whoever would move the effect waits.
const LOCK: [&str; 2] = [
    "SELECT id FROM aftercommit.queue WHERE id = $1 FOR UPDATE",
    "SELECT effect_id FROM aftercommit.outcomes WHERE effect_id = $1 FOR UPDATE",
];

/// An effect that is neither queued nor finished (its INSERT ran without the trigger) is uncertain: parked, as `status` shows
/// it. One statement has one snapshot, so an effect that is being settled is never taken for one.
const ADOPT: &str = "INSERT INTO aftercommit.queue (id, lane, uncertain, sent_before, first_sent_at, expires_at, downstream, operation,
  note)
SELECT e.id, 'd', true, true, greatest(e.created_at, e.due_at), e.expires_at, e.downstream, e.operation,
  'it was neither queued nor finished: nobody knows what became of it'
FROM aftercommit.effects AS e
WHERE e.id = $1 AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = e.id)
  AND NOT EXISTS (SELECT FROM aftercommit.outcomes AS o WHERE o.effect_id = e.id)
ON CONFLICT DO NOTHING";

/// What a verb is judged by, besides the state.
const SUBJECT: &str = concat!(
    "SELECT ",
    history_columns!(),
    ", clock_timestamp() AS now_at, sent.request_sha256 AS sent_sha256, today.request_sha256 AS today_sha256,
  today.id AS today_id, today.contract::text AS contract, today.timeout_us,
  o.superseded_by IS NOT NULL AS superseded, coalesce(o.refusal_stored, q.error_stored, false) AS refusal_stored,
  e.fingerprint IS NOT NULL AS payload_dropped, coalesce(o.kept & 2 = 0, false) AS log_dropped,
  -- A replay, and nothing of ours was ever sent before it. Its words may be gone: what a person does writes others.
  EXISTS (SELECT FROM aftercommit.attempts AS a WHERE a.effect_id = e.id AND a.replayed AND NOT EXISTS (
    SELECT FROM aftercommit.attempts AS b
    WHERE b.effect_id = e.id AND b.token < a.token AND b.phase NOT IN ('render', 'connect'))) AS strange_replay
FROM aftercommit.effects AS e
LEFT JOIN aftercommit.queue AS q ON q.id = e.id
LEFT JOIN aftercommit.outcomes AS o ON o.effect_id = e.id
LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
LEFT JOIN aftercommit.operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
LEFT JOIN aftercommit.terms AS today ON today.id = op.terms
WHERE e.id = $1"
);

/// The finished effect's row becomes a queue row with a new history; only what every history shares is kept.
const NEW_HISTORY: &str = "WITH o AS (
  DELETE FROM aftercommit.outcomes WHERE effect_id = $1 RETURNING state, number, sent_before
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n)
  SELECT e.downstream, o.state, -1 FROM o CROSS JOIN aftercommit.effects AS e WHERE e.id = $1
)
INSERT INTO aftercommit.queue (id, token, due_at, sweep_at, expires_at, number, sent_before, lane, downstream, operation)
SELECT e.id, nextval('aftercommit.tokens'), clock_timestamp(), e.expires_at, e.expires_at, o.number, o.sent_before, 'r',
  e.downstream, e.operation
FROM o CROSS JOIN aftercommit.effects AS e WHERE e.id = $1";

const DUE_NOW: &str = "UPDATE aftercommit.queue
SET lane = 'r', xid = pg_current_xact_id(), due_at = clock_timestamp(), token = nextval('aftercommit.tokens')
WHERE id = $1";

/// It stays uncertain since when it was. A wish to cancel must not stop what a person asked for; nor must the safe time, where they
/// confirmed it.
const ONE_RESEND: &str = "UPDATE aftercommit.queue
SET lane = 'r', xid = pg_current_xact_id(), due_at = clock_timestamp(), token = nextval('aftercommit.tokens'), resend = $2,
    resend_unconfirmed = NOT $2, swept = false, cancel_requested = false, sweep_at = $3, note = NULL
WHERE id = $1";

/// The token stands: the attempt goes on, and its settle finds the mark.
const REQUEST_CANCEL: &str = "UPDATE aftercommit.queue SET cancel_requested = true WHERE id = $1";

const PARK: &str = "UPDATE aftercommit.queue
SET lane = 'd', due_at = $3, token = nextval('aftercommit.tokens'), swept = false, sweep_at = NULL,
    cancel_requested = true, note = $2
WHERE id = $1";

const END: &str = "WITH q AS (
  DELETE FROM aftercommit.queue WHERE id = $1 RETURNING downstream, number, sent_before
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n, at) SELECT downstream, $2, 1, clock_timestamp() FROM q
)
INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, sent_before, state, downstream, note, response,
  response_raw, refusal_stored)
SELECT $1, nextval('aftercommit.tokens'), clock_timestamp(), number, sent_before, $2, downstream, $3, $4::json, $5, $6 FROM q";

const AUDIT: &str = "INSERT INTO aftercommit.audit (at, who, verb, effect_id, from_state, to_state, reason, downstream, from_address, bulk)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// Functions: an operator may not write what applications write, but for these.
const REDACT: &str = "SELECT aftercommit.redact($1)";
const REISSUE: &str = "SELECT aftercommit.reissue($1)";

/// Between the two locks an effect may move from one table to the other; it does not do so for ever.
const ROUNDS: usize = 10;

impl PgStore {
    pub(super) async fn judge_and_apply(
        &self,
        id: EffectId,
        verb: &Verb,
        actor: &Actor,
        seen: Option<Seen>,
    ) -> Result<Acted, StoreError> {
        let doing = "acting on an effect";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let acted = act(&mut tx, id, verb, (actor, seen)).await?;
        match acted {
            Acted::Done(..) => tx.commit().await,
            Acted::Refused(_) | Acted::NotFound => tx.rollback().await,
        }
        .map_err(StoreError::during(doing))?;
        Ok(acted)
    }
}

async fn act(
    tx: &mut Tx<'_>,
    id: EffectId,
    verb: &Verb,
    (actor, seen): (&Actor, Option<Seen>),
) -> Result<Acted, StoreError> {
    let doing = "acting on an effect";
    // Before the effect, as whoever pauses or cancels a bulk holds no effect.
    if let Some(item) = actor.bulk
        && !mark(tx, item, id).await.map_err(StoreError::during(doing))?
    {
        return Ok(Acted::Refused(Refusal::NotInBulk { bulk: item.bulk }));
    }
    tx.execute(sql(ADOPT).bind(id.get())).await.map_err(StoreError::during(doing))?;
    lock(tx, id).await?;
    let Some(before) = status_of(tx, id).await? else { return Ok(Acted::NotFound) };
    let row = tx.one(sql(SUBJECT).bind(id.get())).await.map_err(StoreError::during(doing))?;
    let subject = subject(&before, &row)?;
    let now: Timestamp = row::get(&row, "now_at")?;
    let change = match judge(verb, actor, seen, &subject, now) {
        Ok(change) => change,
        Err(refusal) => return Ok(Acted::Refused(refusal)),
    };
    match apply(tx, id, (verb, &subject), (actor, &change)).await {
        Ok(()) => {}
        Err(error) => return refused(&change, error),
    }
    let Some(after) = status_of(tx, id).await? else { return Ok(Acted::NotFound) };
    let audit = sql(AUDIT)
        .bind(sentence(&actor.who))
        .bind(verb.as_str())
        .bind(id.get())
        .bind(before.state.as_str())
        .bind(after.state.as_str())
        .bind(actor.reason.as_deref().map(sentence))
        .bind(&before.downstream)
        .bind(actor.from.as_deref().map(sentence))
        .bind(actor.bulk.map(|item| item.bulk));
    tx.execute(audit).await.map_err(StoreError::during(doing))?;
    Ok(Acted::Done(change, Box::new(after)))
}

/// The checks of an INSERT refuse the new effect of a reissue in their own words: its downstream takes other keys by now, say.
fn refused(change: &Change, error: sqlx::Error) -> Result<Acted, StoreError> {
    let said = error.as_database_error().filter(|said| {
        matches!(change, Change::Reissue(_)) && said.code().is_some_and(|code| code == "23514")
    });
    match said.map(|said| said.message().to_owned()) {
        Some(why) => Ok(Acted::Refused(Refusal::NotWritten { why })),
        None => Err(StoreError::Database { doing: "acting on an effect", source: error }),
    }
}

async fn lock(tx: &mut Tx<'_>, id: EffectId) -> Result<(), StoreError> {
    for _ in 0..ROUNDS {
        for text in LOCK {
            let held = tx.optional(sql(text).bind(id.get())).await;
            if held.map_err(StoreError::during("acting on an effect"))?.is_some() {
                return Ok(());
            }
        }
    }
    // Neither queued nor ended: there is no such effect, which the caller will find.
    Ok(())
}

fn subject(before: &Status, row: &PgRow) -> Result<Subject, StoreError> {
    let queued: Option<i64> = row::get(row, "id")?;
    let sent: Option<Vec<u8>> = row::get(row, "sent_sha256")?;
    let today: Option<Vec<u8>> = row::get(row, "today_sha256")?;
    let contract = match row::get::<Option<i64>>(row, "today_id")? {
        Some(id) => Some(row::parsed(&row::get::<String>(row, "contract")?, ("terms", "contract", id))?),
        None => None,
    };
    Ok(Subject {
        state: before.state,
        token: before.token,
        history: queued.map(|_| row::history(row)).transpose()?,
        contract,
        timeout: Duration::from_micros(
            row::get::<Option<i64>>(row, "timeout_us")?.and_then(|us| u64::try_from(us).ok()).unwrap_or(0),
        ),
        key_used_before: is_of_a_used_key(before) || row::get(row, "strange_replay")?,
        quiet_at: row::get(row, "quiet_at")?,
        pinned: sent.map(|sent| Pinned { sent, today }),
        superseded: row::get(row, "superseded")?,
        refusal_stored: row::get(row, "refusal_stored")?,
        payload_dropped: row::get(row, "payload_dropped")?,
        log_dropped: row::get(row, "log_dropped")?,
    })
}

async fn apply(
    tx: &mut Tx<'_>,
    id: EffectId,
    (verb, subject): (&Verb, &Subject),
    (actor, change): (&Actor, &Change),
) -> Result<(), sqlx::Error> {
    let simple = match change {
        Change::NewHistory => NEW_HISTORY,
        Change::DueNow => DUE_NOW,
        Change::RequestCancel => REQUEST_CANCEL,
        Change::Redact => REDACT,
        Change::OneResend { resend, sweep_at } => {
            let confirmed = *resend == Resend::Confirmed;
            tx.execute(sql(ONE_RESEND).bind(id.get()).bind(confirmed).bind(*sweep_at)).await?;
            return wake(tx).await;
        }
        Change::Park(why) => return park(tx, id, why, None).await,
        Change::Probe(at, why) => return park(tx, id, why, Some(*at)).await,
        Change::End(state) => return end(tx, id, (verb, subject), (actor, *state)).await,
        Change::Reissue(resolved) => {
            if let Some(state) = resolved {
                end(tx, id, (verb, subject), (actor, *state)).await?;
            }
            // The trigger that queues the new effect wakes the workers.
            return tx.execute(sql(REISSUE).bind(id.get())).await.map(drop);
        }
    };
    tx.execute(sql(simple).bind(id.get())).await?;
    match change {
        Change::NewHistory | Change::DueNow => wake(tx).await,
        Change::OneResend { .. }
        | Change::RequestCancel
        | Change::Redact
        | Change::Park(_)
        | Change::Probe(..)
        | Change::End(_)
        | Change::Reissue(_) => Ok(()),
    }
}

/// Who wrote an effect by hand.
pub(super) fn enqueue_audit<'q>(actor: &Actor, downstream: &str, receipt: &Receipt) -> Statement<'q> {
    sql(AUDIT)
        .bind(sentence(&actor.who))
        .bind("enqueue")
        .bind(receipt.id.get())
        .bind(None::<String>)
        .bind(receipt.state.as_str())
        .bind(actor.reason.as_deref().map(sentence))
        .bind(downstream.to_owned())
        .bind(actor.from.as_deref().map(sentence))
        .bind(actor.bulk.map(|item| item.bulk))
}

async fn wake(tx: &mut Tx<'_>) -> Result<(), sqlx::Error> {
    tx.execute(sql("SELECT pg_notify($1, '')").bind(CHANNEL)).await.map(drop)
}

async fn park(
    tx: &mut Tx<'_>,
    id: EffectId,
    why: &str,
    probe_at: Option<Timestamp>,
) -> Result<(), sqlx::Error> {
    tx.execute(sql(PARK).bind(id.get()).bind(sentence(why)).bind(probe_at)).await.map(drop)
}

async fn end(
    tx: &mut Tx<'_>,
    id: EffectId,
    (verb, subject): (&Verb, &Subject),
    (actor, state): (&Actor, State),
) -> Result<(), sqlx::Error> {
    let response = match verb {
        Verb::ResolveApplied { response: Some(response) } => {
            let body = response.clone().into_bytes();
            StoredResponse::of(Some(&Response { status: None, body, truncated: false }))
        }
        Verb::ResolveApplied { response: None }
        | Verb::Retry
        | Verb::Resend
        | Verb::Cancel
        | Verb::ResolveNotApplied
        | Verb::Redact
        | Verb::Reissue { .. } => StoredResponse::default(),
    };
    let note = if state == State::Failed {
        not_applied(&actor.who, actor.reason.as_deref())
    } else {
        let reason = actor.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
        format!("{} by {}{reason}", verb.as_str(), actor.who)
    };
    let end = sql(END)
        .bind(id.get())
        .bind(state.as_str())
        // A success needs no words about what went wrong.
        .bind((state != State::Succeeded).then_some(sentence(&note)))
        .bind(response.json)
        .bind(response.raw)
        .bind(state == State::Failed && (subject.key_used_before || subject.refusal_stored));
    tx.execute(end).await.map(drop)
}
