//! Late answers: what a worker found out after it lost its lease. Rare, so one transaction per answer and one statement per
//! step.

use sqlx::Row as _;

use super::{
    PgStore, Tx,
    row::{StoredResponse, sentence},
    statement::sql,
};
use crate::{
    error::StoreError,
    outcome::Verdict,
    store::{Late, LateAnswer},
};

/// Retention deletes an effect years after its end: then there is nothing that an answer could be about.
const HOLD: &str = "SELECT id FROM aftercommit.effects WHERE id = $1 FOR KEY SHARE";

/// Heard twice, logged once. Always logged where it was begun ($12), else only where a sweep says that it was. Served by the
/// primary key.
const LOG: &str = "INSERT INTO aftercommit.attempts
  (effect_id, token, number, late, replayed, response_status, started_at, ended_at, worker, phase, outcome, error)
SELECT $1, $2, $3, true, $4, $5, $6, $7, $8, $9, $10, $11
WHERE $12 OR EXISTS (SELECT FROM aftercommit.attempts AS a WHERE a.effect_id = $1 AND a.token = $2 AND NOT a.late)
ON CONFLICT (effect_id, token, late) DO NOTHING";

/// It ends here: the effect was uncertain and nobody holds it.
const SUCCEED: &str = "WITH gone AS (
  DELETE FROM aftercommit.queue WHERE id = $1 RETURNING downstream, number
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n, at) SELECT downstream, 'succeeded', 1, clock_timestamp() FROM gone
)
INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, response_status, response_truncated, sent_before,
  state, downstream, response, response_raw)
SELECT $1, nextval('aftercommit.tokens'), clock_timestamp(), number, $2, $3, true, 'succeeded', downstream, $4::json, $5
FROM gone";

/// Whether a person said that it was not applied, since the claim that now answers.
const PERSON_SAID_NOT: &str = "SELECT EXISTS (
  SELECT FROM aftercommit.audit WHERE effect_id = $1 AND verb = 'resolve not-applied')";

/// Whether a probe began a new history since the claim that now answers: what was sent under it was seen absent, twice.
const PROBE_SAID_NOT: &str =
    "SELECT EXISTS (SELECT FROM aftercommit.absences WHERE effect_id = $1 AND token > $2)";

impl PgStore {
    pub(super) async fn hear_late(&self, answers: &[LateAnswer]) -> Result<Vec<Late>, StoreError> {
        let doing = "hearing a late answer";
        let mut heard = Vec::with_capacity(answers.len());
        for answer in answers {
            let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
            heard.push(hear(&mut tx, answer).await.map_err(StoreError::during(doing))?);
            tx.commit().await.map_err(StoreError::during(doing))?;
        }
        Ok(heard)
    }
}

async fn hear(tx: &mut Tx<'_>, answer: &LateAnswer) -> Result<Late, sqlx::Error> {
    let id = answer.id.get();
    let lock = sql("SELECT claimed, uncertain, token FROM aftercommit.queue WHERE id = $1 FOR UPDATE");
    let queued = tx.optional(lock.bind(id)).await?;
    if tx.optional(sql(HOLD).bind(id)).await?.is_none() {
        return Ok(Late::Logged);
    }
    log(tx, answer).await?;
    if answer.attempt.verdict != Verdict::Applied {
        return Ok(Late::Logged);
    }
    let absent: bool = tx.scalar(sql(PROBE_SAID_NOT).bind(id).bind(answer.token.get())).await?;
    let Some(queued) = queued else {
        return if absent { Ok(Late::Contradicts) } else { ended(tx, id).await };
    };
    let (claimed, uncertain): (bool, bool) = (queued.try_get("claimed")?, queued.try_get("uncertain")?);
    // Its own attempt, or an uncertain effect: it succeeds when the attempt in flight settles.
    if claimed && (uncertain || queued.try_get::<i64, _>("token")? == answer.token.get()) {
        tx.execute(sql("UPDATE aftercommit.queue SET applied_late = true WHERE id = $1").bind(id)).await?;
        return Ok(if absent { Late::Contradicts } else { Late::Noted });
    }
    if uncertain && !claimed {
        let response = StoredResponse::of(answer.response.as_ref());
        let succeed = sql(SUCCEED)
            .bind(id)
            .bind(response.status.or(answer.attempt.response_status.map(i32::from)))
            .bind(response.truncated)
            .bind(response.json)
            .bind(response.raw);
        tx.execute(succeed).await?;
        return Ok(if absent { Late::Contradicts } else { Late::Succeeded });
    }
    // Certain, waiting for its next attempt or in it: a person, or a probe, began a new history by saying that it was not applied.
    let contradicts = absent || tx.scalar(sql(PERSON_SAID_NOT).bind(id)).await?;
    Ok(if contradicts { Late::Contradicts } else { Late::Logged })
}

/// A late *applied* of an effect that has ended.
async fn ended(tx: &mut Tx<'_>, id: i64) -> Result<Late, sqlx::Error> {
    let statement = sql(
        "SELECT state <> 'succeeded' OR superseded_by IS NOT NULL FROM aftercommit.outcomes WHERE effect_id = $1",
    );
    let row = tx.optional(statement.bind(id)).await?;
    // Failed, cancelled and expired mean "never applied", whoever said so.
    Ok(if row.map_or(Ok(false), |row| row.try_get(0))? { Late::Contradicts } else { Late::Logged })
}

async fn log(tx: &mut Tx<'_>, answer: &LateAnswer) -> Result<(), sqlx::Error> {
    let attempt = &answer.attempt;
    let error = sentence(&attempt.error);
    let statement = sql(LOG)
        .bind(answer.id.get())
        .bind(answer.token.get())
        .bind(i32::try_from(attempt.number).unwrap_or(i32::MAX))
        .bind(attempt.replayed)
        .bind(attempt.response_status.map(i32::from))
        .bind(attempt.started_at)
        .bind(attempt.ended_at)
        .bind(sentence(&attempt.worker))
        .bind(attempt.phase.as_str())
        .bind(attempt.verdict.as_str())
        .bind((!error.is_empty()).then_some(error))
        .bind(answer.begun);
    tx.execute(statement).await.map(drop)
}
