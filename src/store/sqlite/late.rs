//! Answers that came in after their lease had ended.

use sqlx::SqliteConnection;

use super::{
    row::Fields,
    write::{Ending, Logged, Writes, log},
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    outcome::Verdict,
    state::State,
    store::{Late, LateAnswer},
};

/// Logs what a worker found out after it lost its lease, and lets a late *applied* settle.
pub(super) async fn late(
    conn: &mut SqliteConnection,
    answer: &LateAnswer,
    now: Timestamp,
) -> Result<Late, StoreError> {
    let (id, token) = (answer.id.get(), answer.token.get());
    // Retention deletes an effect long after its end: then there is nothing that an answer could be about.
    let there: Option<i64> = sqlx::query_scalar("SELECT id FROM aftercommit_effects WHERE id = ?1")
        .bind(id)
        .fetch_optional(&mut *conn)
        .await
        .map_err(StoreError::during("logging a late answer"))?;
    if there.is_none() || !(answer.begun || is_logged(conn, id, token).await?) {
        return Ok(Late::Logged);
    }
    log(conn, &[Logged { id, token, late: true, swept: false, attempt: answer.attempt.clone() }])
        .await
        .map_err(StoreError::during("logging a late answer"))?;
    if answer.attempt.verdict != Verdict::Applied {
        return Ok(Late::Logged);
    }
    let absent = seen_absent(conn, id, token).await?;
    let Some(row) = Met::load(conn, id).await? else {
        return if absent { Ok(Late::Contradicts) } else { ended(conn, id, token).await };
    };
    if row.claimed && (row.uncertain || row.token == token) {
        sqlx::query("UPDATE aftercommit_queue SET applied_late = 1 WHERE id = ?1")
            .bind(id)
            .execute(conn)
            .await
            .map_err(StoreError::during("noting a late answer"))?;
        return Ok(if absent { Late::Contradicts } else { Late::Noted });
    }
    if !row.uncertain {
        // A certain effect that an earlier attempt applied after all: a person, or a probe, said that it was not.
        return Ok(if row.denied || absent { Late::Contradicts } else { Late::Logged });
    }
    let ending = Ending {
        id,
        downstream: row.downstream,
        state: State::Succeeded,
        token,
        note: None,
        number: row.number,
        sent_before: true,
        refusal_stored: false,
        response: answer.response.clone(),
        first: None,
    };
    Writes::of_ending(ending, now).apply(conn).await?;
    Ok(if absent { Late::Contradicts } else { Late::Succeeded })
}

/// Whether a sweep took this claim for an attempt.
async fn is_logged(conn: &mut SqliteConnection, id: i64, token: i64) -> Result<bool, StoreError> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM aftercommit_attempts WHERE effect_id = ?1 AND token = ?2 AND late = 0)",
    )
    .bind(id)
    .bind(token)
    .fetch_one(conn)
    .await
    .map_err(StoreError::during("logging a late answer"))
}

/// A queue row as a late answer meets it.
struct Met {
    downstream: String,
    token: i64,
    claimed: bool,
    uncertain: bool,
    number: i64,
    /// A person said *not applied*.
    denied: bool,
}

impl Met {
    async fn load(conn: &mut SqliteConnection, id: i64) -> Result<Option<Self>, StoreError> {
        let row = sqlx::query(
            "SELECT downstream, token, claimed, uncertain, number, EXISTS (SELECT 1 FROM aftercommit_audit \
                 WHERE effect_id = ?1 AND verb = 'resolve not-applied') AS denied \
             FROM aftercommit_queue WHERE id = ?1",
        )
        .bind(id)
        .fetch_optional(conn)
        .await
        .map_err(StoreError::during("reading what a late answer meets"))?;
        let Some(row) = row else { return Ok(None) };
        let fields = Fields::new(&row, "aftercommit_queue", id);
        Ok(Some(Self {
            downstream: fields.text("downstream")?,
            token: fields.int("token")?,
            claimed: fields.flag("claimed")?,
            uncertain: fields.flag("uncertain")?,
            number: fields.int("number")?,
            denied: fields.flag("denied")?,
        }))
    }
}

/// Whether a probe began a new history since the claim that now answers: what was sent under it was seen absent, twice.
async fn seen_absent(conn: &mut SqliteConnection, id: i64, token: i64) -> Result<bool, StoreError> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM aftercommit_absences WHERE effect_id = ?1 AND token > ?2)",
    )
    .bind(id)
    .bind(token)
    .fetch_one(conn)
    .await
    .map_err(StoreError::during("reading what a late answer meets"))
}

/// A late *applied* that meets a finished effect: it agrees, or it contradicts what people read there.
async fn ended(conn: &mut SqliteConnection, id: i64, token: i64) -> Result<Late, StoreError> {
    let outcome: Option<(String, i64, Option<i64>)> =
        sqlx::query_as("SELECT state, token, superseded_by FROM aftercommit_outcomes WHERE effect_id = ?1")
            .bind(id)
            .fetch_optional(conn)
            .await
            .map_err(StoreError::during("reading what a late answer meets"))?;
    Ok(match outcome {
        None => Late::Logged,
        Some((_, _, Some(_))) => Late::Contradicts,
        // This very answer, told again.
        Some((state, by, None)) if state == "succeeded" && by == token => Late::Succeeded,
        Some((state, _, None)) if state == "succeeded" => Late::Logged,
        Some(_) => Late::Contradicts,
    })
}
