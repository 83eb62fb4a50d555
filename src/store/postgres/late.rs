//! Late answers: what a worker found out after it lost its lease. Rare, so one transaction per answer and one statement per
//! step.

use sqlx::PgConnection;

use super::{
    PgStore, Tx,
    row::{StoredResponse, sentence},
};
use crate::{
    error::StoreError,
    outcome::Verdict,
    store::{Late, LateAnswer},
};

/// Retention deletes an effect years after its end: then there is nothing that an answer could be about.
const HOLD: &str = "SELECT id FROM aftercommit.effects WHERE id = $1 FOR KEY SHARE";

/// Always logged; heard twice, logged once.
const LOG: &str = "INSERT INTO aftercommit.attempts
  (effect_id, token, number, late, replayed, response_status, started_at, ended_at, worker, phase, outcome, error)
VALUES ($1, $2, $3, true, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (effect_id, token, late) DO NOTHING";

/// It ends here: the effect was uncertain and nobody holds it.
const SUCCEED: &str = "WITH gone AS (
  DELETE FROM aftercommit.queue WHERE id = $1 RETURNING downstream, number
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n) SELECT downstream, 'succeeded', 1 FROM gone
)
INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, response_status, response_truncated, sent_before,
  state, downstream, response, response_raw)
SELECT $1, nextval('aftercommit.tokens'), clock_timestamp(), number, $2, $3, true, 'succeeded', downstream, $4::json, $5
FROM gone";

/// Whether a person said that it was not applied, since the claim that now answers.
const PERSON_SAID_NOT: &str = "SELECT EXISTS (
  SELECT FROM aftercommit.audit WHERE effect_id = $1 AND verb = 'resolve not-applied')";

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

async fn hear(connection: &mut PgConnection, answer: &LateAnswer) -> Result<Late, sqlx::Error> {
    use sqlx::Row;
    let id = answer.id.get();
    let queued =
        sqlx::query("SELECT claimed, uncertain, token FROM aftercommit.queue WHERE id = $1 FOR UPDATE")
            .bind(id)
            .fetch_optional(&mut *connection)
            .await?;
    if sqlx::query(HOLD).bind(id).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(Late::Logged);
    }
    log(connection, answer).await?;
    if answer.attempt.verdict != Verdict::Applied {
        return Ok(Late::Logged);
    }
    let Some(queued) = queued else { return ended(connection, id).await };
    let (claimed, uncertain): (bool, bool) = (queued.try_get("claimed")?, queued.try_get("uncertain")?);
    // Its own attempt, or an uncertain effect: it succeeds when the attempt in flight settles.
    if claimed && (uncertain || queued.try_get::<i64, _>("token")? == answer.token.get()) {
        sqlx::query("UPDATE aftercommit.queue SET applied_late = true WHERE id = $1")
            .bind(id)
            .execute(&mut *connection)
            .await?;
        return Ok(Late::Noted);
    }
    if uncertain && !claimed {
        let response = StoredResponse::of(answer.response.as_ref());
        sqlx::query(SUCCEED)
            .bind(id)
            .bind(response.status.or(answer.attempt.response_status.map(i32::from)))
            .bind(response.truncated)
            .bind(response.json)
            .bind(response.raw)
            .execute(&mut *connection)
            .await?;
        return Ok(Late::Succeeded);
    }
    // Certain, waiting for its next attempt or in it: a person began a new history by saying that it was not applied.
    let contradicts = sqlx::query_scalar(PERSON_SAID_NOT).bind(id).fetch_one(&mut *connection).await?;
    Ok(if contradicts { Late::Contradicts } else { Late::Logged })
}

/// A late *applied* of an effect that has ended.
async fn ended(connection: &mut PgConnection, id: i64) -> Result<Late, sqlx::Error> {
    let contradicts: Option<bool> = sqlx::query_scalar(
        "SELECT state <> 'succeeded' OR superseded_by IS NOT NULL FROM aftercommit.outcomes WHERE effect_id = $1",
    )
    .bind(id)
    .fetch_optional(connection)
    .await?;
    // Failed, cancelled and expired mean "never applied", whoever said so.
    Ok(if contradicts.unwrap_or(false) { Late::Contradicts } else { Late::Logged })
}

async fn log(connection: &mut PgConnection, answer: &LateAnswer) -> Result<(), sqlx::Error> {
    let attempt = &answer.attempt;
    let error = sentence(&attempt.error);
    sqlx::query(LOG)
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
        .execute(connection)
        .await
        .map(drop)
}
