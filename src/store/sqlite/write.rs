//! What a settle writes: statement by statement, not row by row.

use std::collections::BTreeMap;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::{
    chart::pass,
    row::json_ids,
    settle::{Right, Standing},
};
use crate::{
    clock::Timestamp,
    decision::Decision,
    error::StoreError,
    outcome::{REASON_MAX, Response, Verdict, stored_text},
    state::State,
    store::{AttemptLog, Next, Settlement, Token},
};

/// Rows per statement: below SQLite's limit of bound values, with room.
const ROWS_MAX: usize = 500;

/// An effect that ends.
pub(super) struct Ending {
    pub(super) id: i64,
    pub(super) downstream: String,
    pub(super) state: State,
    pub(super) token: i64,
    pub(super) note: Option<String>,
    pub(super) number: i64,
    pub(super) sent_before: bool,
    pub(super) refusal_stored: bool,
    pub(super) response: Option<Response>,
    /// The log row of a first attempt that succeeded; every other attempt has a row of its own.
    pub(super) first: Option<AttemptLog>,
}

/// An effect that stays.
struct Staying {
    id: i64,
    token: i64,
    /// `None`: as it was.
    lane: Option<&'static str>,
    due_at: Option<i64>,
    /// Attempts, tries and numbers that are taken back.
    back: (i64, i64, i64),
    uncertain: bool,
    sent_before: bool,
    quiet_at: Option<i64>,
    sweep_at: Option<i64>,
    note: Option<String>,
    error_stored: bool,
}

/// A log row.
pub(super) struct Logged {
    pub(super) id: i64,
    pub(super) token: i64,
    /// It came in after the lease of its claim had ended.
    pub(super) late: bool,
    /// A sweep writes it, not the worker that held the claim.
    pub(super) swept: bool,
    pub(super) attempt: AttemptLog,
}

/// What one transaction writes, statement by statement instead of row by row.
pub(super) struct Writes {
    now: Timestamp,
    /// The sweep's new token: whoever held the old one is fenced off.
    fresh: Option<Token>,
    endings: Vec<Ending>,
    staying: Vec<Staying>,
    attempts: Vec<Logged>,
}

impl Writes {
    pub(super) fn new(now: Timestamp, fresh: Option<Token>) -> Self {
        Self { now, fresh, endings: Vec::new(), staying: Vec::new(), attempts: Vec::new() }
    }

    /// Adds a settlement that was found to be covered. `late`: the sweep logged and parked it meanwhile.
    pub(super) fn add(&mut self, right: Right, settlement: &Settlement, row: &Standing, late: bool) {
        // Nobody claimed what the sweep finds unclaimed: there is nothing to take back.
        let back = match (right, &settlement.attempt) {
            (Right::Unclaimed, _) => (0, 0, 0),
            (_, None) => (1, 1, i64::from(!late)),
            (_, Some(_)) => (i64::from(!settlement.counts), 0, 0),
        };
        let mut attempt = settlement.attempt.clone();
        let (staying, parking) = (self.staying(settlement, back), settlement.token.get());
        match &settlement.decision {
            Next::Decided(Decision::Succeed) => {
                let mut ending = self.ending(settlement, row, back.2, State::Succeeded);
                if !late {
                    ending.first = attempt.take_if(|attempt| is_plain_first(attempt));
                }
                self.endings.push(ending);
            }
            Next::Decided(Decision::Fail(why)) => {
                let ending = self.ending(settlement, row, back.2, State::Failed);
                self.endings.push(Ending { note: Some(stored_text(why, REASON_MAX)), ..ending });
            }
            Next::Decided(Decision::Cancel) => {
                self.endings.push(self.ending(settlement, row, back.2, State::Cancelled));
            }
            Next::Decided(Decision::Expire) => {
                self.endings.push(self.ending(settlement, row, back.2, State::Expired));
            }
            Next::Decided(Decision::RetryAt(at)) => {
                self.staying.push(Staying { due_at: Some(at.micros()), ..staying });
            }
            Next::Decided(Decision::ProbeAt(at, why)) => {
                self.staying.push(Staying { due_at: Some(at.micros()), ..parked(staying, parking, why) });
            }
            Next::Decided(Decision::Park(why)) => self.staying.push(parked(staying, parking, why)),
            Next::GiveBack => {
                // What the sweep parked meanwhile was not sent after all: it waits again, if nothing else is in doubt.
                let again = late && !settlement.uncertain;
                let (lane, due_at) = (again.then_some("t"), again.then_some(self.now.micros()));
                // A sweep that gives back only moves its next look; whoever may hold the token keeps it.
                let (token, sweep_at) = match right {
                    Right::Unclaimed => (parking, staying.sweep_at),
                    Right::Claim | Right::LeaseOver if again => (staying.token, row.expires_at),
                    Right::Claim | Right::LeaseOver => (staying.token, None),
                };
                self.staying.push(Staying { lane, due_at, token, sweep_at, ..staying });
            }
        }
        let (id, token, swept) = (settlement.id.get(), settlement.token.get(), right != Right::Claim);
        self.attempts.extend(attempt.map(|attempt| Logged { id, token, late, swept, attempt }));
    }

    fn ending(&self, settlement: &Settlement, row: &Standing, back: i64, state: State) -> Ending {
        Ending {
            id: settlement.id.get(),
            downstream: row.downstream.clone(),
            state,
            token: self.fresh.map_or(settlement.token.get(), Token::get),
            note: None,
            number: row.number - back,
            sent_before: row.sent_before || reached(settlement),
            refusal_stored: settlement.refusal_stored,
            response: settlement.response.clone(),
            first: None,
        }
    }

    fn staying(&self, settlement: &Settlement, back: (i64, i64, i64)) -> Staying {
        Staying {
            id: settlement.id.get(),
            token: self.fresh.map_or(settlement.token.get(), Token::get),
            lane: Some("t"),
            due_at: None,
            back,
            uncertain: settlement.uncertain,
            sent_before: reached(settlement),
            quiet_at: settlement.quiet_at.map(Timestamp::micros),
            sweep_at: settlement.sweep_at.map(Timestamp::micros),
            note: None,
            error_stored: settlement.refusal_stored,
        }
    }

    /// An effect that ends outside a settle: a late answer, a person's verb.
    pub(super) fn of_ending(ending: Ending, now: Timestamp) -> Self {
        Self { endings: vec![ending], ..Self::new(now, None) }
    }

    pub(super) async fn apply(self, conn: &mut SqliteConnection) -> Result<(), StoreError> {
        let done = async {
            for attempts in self.attempts.chunks(ROWS_MAX) {
                log(conn, attempts).await?;
            }
            if !self.endings.is_empty() {
                sqlx::query("DELETE FROM aftercommit_queue WHERE id IN (SELECT value FROM json_each(?1))")
                    .bind(json_ids(self.endings.iter().map(|ending| ending.id)))
                    .execute(&mut *conn)
                    .await?;
                count(conn, &self.endings, self.now).await?;
            }
            for staying in self.staying.chunks(ROWS_MAX) {
                stay(conn, staying).await?;
            }
            let mut endings = self.endings;
            while !endings.is_empty() {
                let rest = endings.split_off(endings.len().min(ROWS_MAX));
                end(conn, endings, self.now).await?;
                endings = rest;
            }
            Ok(())
        };
        done.await.map_err(StoreError::during("settling"))
    }
}

/// Whether the outcome's row can say all that the log would.
fn is_plain_first(attempt: &AttemptLog) -> bool {
    attempt.number == 1
        && attempt.verdict == Verdict::Applied
        && attempt.error.is_empty()
        && !attempt.replayed
}

/// Whether the attempt may have reached the downstream.
fn reached(settlement: &Settlement) -> bool {
    settlement.attempt.as_ref().is_some_and(|attempt| attempt.phase.may_have_reached())
}

/// In doubt, under the token that it had: a worker that comes back late may still say what happened.
fn parked(staying: Staying, token: i64, why: &str) -> Staying {
    Staying { lane: Some("d"), token, note: Some(stored_text(why, REASON_MAX)), ..staying }
}

/// Writes log rows; one that stands already was written by this very settle.
pub(super) async fn log(conn: &mut SqliteConnection, attempts: &[Logged]) -> Result<(), sqlx::Error> {
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT OR IGNORE INTO aftercommit_attempts (effect_id, token, late, swept, number, worker, started_at, ended_at, \
             phase, outcome, replayed, response_status, error) ",
    );
    insert.push_values(attempts, |mut row, logged| {
        let attempt = &logged.attempt;
        let error = stored_text(&attempt.error, REASON_MAX);
        row.push_bind(logged.id)
            .push_bind(logged.token)
            .push_bind(logged.late)
            .push_bind(logged.swept)
            .push_bind(i64::from(attempt.number))
            .push_bind(attempt.worker.to_string())
            .push_bind(attempt.started_at.micros())
            .push_bind(attempt.ended_at.micros())
            .push_bind(attempt.phase.as_str())
            .push_bind(attempt.verdict.as_str())
            .push_bind(attempt.replayed)
            .push_bind(attempt.response_status.map(i64::from))
            .push_bind((!error.is_empty()).then_some(error));
    });
    insert.build().persistent(false).execute(conn).await?;
    Ok(())
}

async fn stay(conn: &mut SqliteConnection, staying: &[Staying]) -> Result<(), sqlx::Error> {
    let mut update = QueryBuilder::<Sqlite>::new(
        "UPDATE aftercommit_queue SET claimed = 0, token = v.column2, lane = coalesce(v.column3, lane), \
             due_at = CASE WHEN v.column3 IS NULL THEN due_at ELSE v.column4 END, \
             attempts = max(attempts - v.column5, 0), tries = max(tries - v.column6, 0), \
             number = max(number - v.column7, 0), uncertain = v.column8, \
             first_sent_at = CASE WHEN v.column8 = 1 THEN first_sent_at END, \
             sent_before = max(sent_before, v.column9), \
             quiet_at = max(coalesce(quiet_at, v.column10), coalesce(v.column10, quiet_at)), \
             sweep_at = CASE WHEN v.column3 IS NULL THEN coalesce(v.column11, sweep_at) ELSE v.column11 END, \
             resend = CASE WHEN v.column3 IS NULL OR (v.column3 = 't' AND v.column6 = 1) THEN resend ELSE 0 END, \
             resend_unconfirmed = CASE WHEN v.column3 IS NULL OR (v.column3 = 't' AND v.column6 = 1) \
                 THEN resend_unconfirmed ELSE 0 END, \
             note = CASE WHEN v.column3 IS NULL THEN note ELSE v.column12 END, \
             error_stored = max(error_stored, v.column13) FROM (",
    );
    update.push_values(staying, |mut row, staying| {
        row.push_bind(staying.id)
            .push_bind(staying.token)
            .push_bind(staying.lane)
            .push_bind(staying.due_at)
            .push_bind(staying.back.0)
            .push_bind(staying.back.1)
            .push_bind(staying.back.2)
            .push_bind(staying.uncertain)
            .push_bind(staying.sent_before)
            .push_bind(staying.quiet_at)
            .push_bind(staying.sweep_at)
            .push_bind(staying.note.clone())
            .push_bind(staying.error_stored);
    });
    update.push(") AS v WHERE aftercommit_queue.id = v.column1");
    update.build().persistent(false).execute(conn).await?;
    Ok(())
}

async fn end(conn: &mut SqliteConnection, endings: Vec<Ending>, now: Timestamp) -> Result<(), sqlx::Error> {
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT INTO aftercommit_outcomes (effect_id, downstream, state, finished_at, token, note, number, \
             sent_before, refusal_stored, response, response_raw, response_truncated, response_status, worker, \
             started_at, ended_at, phase) ",
    );
    insert.push_values(endings, |mut row, ending| {
        let response = ending.response.unwrap_or_default();
        let status = response.status;
        let truncated = response.truncated;
        let (json, raw) = split(response);
        let first = ending.first.as_ref();
        row.push_bind(ending.id)
            .push_bind(ending.downstream)
            .push_bind(ending.state.as_str())
            .push_bind(now.micros())
            .push_bind(ending.token)
            .push_bind(ending.note)
            .push_bind(ending.number.max(0))
            .push_bind(ending.sent_before)
            .push_bind(ending.refusal_stored)
            .push_bind(json)
            .push_bind(raw)
            .push_bind(truncated)
            .push_bind(status.or(first.and_then(|first| first.response_status)).map(i64::from))
            .push_bind(first.map(|first| first.worker.to_string()))
            .push_bind(first.map(|first| first.started_at.micros()))
            .push_bind(first.map(|first| first.ended_at.micros()))
            .push_bind(first.map(|first| first.phase.as_str()));
    });
    insert.build().persistent(false).execute(conn).await?;
    Ok(())
}

/// The response as JSON text where it is that, whole; else its bytes. Whatever a downstream says fits one of the two.
fn split(response: Response) -> (Option<String>, Option<Vec<u8>>) {
    if response.body.is_empty() {
        return (None, None);
    }
    if response.truncated || serde_json::from_slice::<&serde_json::value::RawValue>(&response.body).is_err() {
        return (None, Some(response.body));
    }
    match String::from_utf8(response.body) {
        Ok(json) => (Some(json), None),
        Err(error) => (None, Some(error.into_bytes())),
    }
}

async fn count(conn: &mut SqliteConnection, endings: &[Ending], now: Timestamp) -> Result<(), sqlx::Error> {
    let mut deltas: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for ending in endings {
        *deltas.entry((&ending.downstream, ending.state.as_str())).or_default() += 1;
    }
    for (ended, n) in deltas {
        count_ended(conn, ended, n, now).await?;
    }
    Ok(())
}

/// Counts what has just ended.
pub(super) async fn count_ended(
    conn: &mut SqliteConnection,
    (downstream, state): (&str, &str),
    n: i64,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    add_to_counter(conn, downstream, state, n).await?;
    pass(conn, (downstream, state), n, now).await
}

/// Differs from PostgreSQL, which appends deltas and folds them: here there is one writer, and nobody to wait for.
pub(super) async fn add_to_counter(
    conn: &mut SqliteConnection,
    downstream: &str,
    state: &str,
    n: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO aftercommit_counters (downstream, state, n) VALUES (?1, ?2, ?3) \
         ON CONFLICT (downstream, state) DO UPDATE SET n = n + excluded.n",
    )
    .bind(downstream.to_owned())
    .bind(state.to_owned())
    .bind(n)
    .execute(conn)
    .await?;
    Ok(())
}
