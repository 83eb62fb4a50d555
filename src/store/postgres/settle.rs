//! The settle: what was decided, its log row and its outcome, in one statement, fenced by the token.
//!
//! The sweeps write the same things under other conditions, so the statement is made once, by [`write_sql`].

use super::{
    PgStore, durable,
    row::{self, StoredResponse, sentence},
    statement::{Statement, sql},
};
use crate::{
    clock::Timestamp,
    decision::Decision,
    error::StoreError,
    state::State,
    store::{AttemptLog, Next, Settled, Settlement, Token},
};

/// The statement that writes a batch. `$with` locks what must hold meanwhile, `$from` joins it, `$when` says of which queue
/// rows the claim is still the settler's, `$ended` and `$kept` give the token that a row has afterwards, `$parked` whether a
/// parked effect's worker may still answer.
///
/// RETURNING carries the settlement's columns along, so that nothing is joined twice. A first attempt that succeeded is not
/// logged in `attempts`: its outcome row holds it. An attempt whose lease the sweep logged is late.
macro_rules! write_sql {
    (with: $with:literal, from: $from:literal, when: $when:literal, ended: $ended:literal, kept: $kept:literal, parked: $parked:literal) => {
        concat!(
            "WITH moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at, ", durable!(), " AS durable
), s AS MATERIALIZED (
  SELECT * FROM unnest($1::int8[], $2::int8[], $3::text[], $4::text[], $5::timestamptz[], $6::text[], $7::int4[], $8::int4[],
    $9::bool[], $10::timestamptz[], $11::timestamptz[], $12::bool[], $13::text[], $14::bytea[], $15::bool[], $16::int4[],
    $17::text[], $18::int4[], $19::timestamptz[], $20::timestamptz[], $21::text[], $22::text[], $23::bool[], $24::int4[],
    $25::text[], $26::bool[], $27::bool[]) WITH ORDINALITY
  AS s (id, token, next, state, due_at, note, unstarted, uncounted,
    uncertain, quiet_at, sweep_at, refusal_stored, response, response_raw, truncated, status,
    worker, attempt, started_at, ended_at, phase, outcome, replayed, attempt_status,
    error, plain, reached, ord)
)", $with, ", gone AS (
  DELETE FROM aftercommit.queue AS q USING s", $from, "
  WHERE q.id = s.id AND q.token = s.token AND ", $when, " AND s.next = 'e' AND (s.state = 'succeeded' OR NOT q.applied_late)
  RETURNING q.downstream, q.number, q.sent_before, q.swept, s.plain AND q.number = 1 AND NOT q.swept AS first, s.*
), kept AS (
  UPDATE aftercommit.queue AS q
  SET claimed = false, token = ", $kept, ",
      swept = s.next = 'd' AND ", $parked, ",
      resend = q.resend AND (s.next = 'g' OR (s.next = 't' AND s.unstarted = 1)),
      resend_unconfirmed = q.resend_unconfirmed AND (s.next = 'g' OR (s.next = 't' AND s.unstarted = 1)),
      error_stored = q.error_stored OR s.refusal_stored,
      lane = CASE WHEN s.next <> 'g' THEN s.next::\"char\" WHEN q.lane = 'd' AND NOT s.uncertain THEN 'r' ELSE q.lane END,
      xid = CASE WHEN s.next = 'g' AND (q.claimed OR q.swept) THEN pg_current_xact_id() ELSE q.xid END,
      due_at = CASE WHEN s.next <> 'g' THEN s.due_at WHEN s.uncertain OR NOT q.swept THEN q.due_at ELSE moment.now_at END,
      attempts = greatest(q.attempts - s.uncounted, 0), tries = greatest(q.tries - s.unstarted, 0),
      number = CASE WHEN q.swept THEN q.number ELSE greatest(q.number - s.unstarted, 0) END,
      uncertain = s.uncertain, first_sent_at = CASE WHEN s.uncertain THEN q.first_sent_at END,
      sent_before = q.sent_before OR s.reached, quiet_at = greatest(q.quiet_at, s.quiet_at),
      sweep_at = CASE WHEN s.next = 'd' THEN NULL WHEN s.next = 't' THEN s.sweep_at
                      -- Given back: by a sweep, by a worker whose claim was parked meanwhile, by any other.
                      WHEN NOT q.claimed AND NOT q.swept THEN coalesce(s.sweep_at, q.sweep_at)
                      WHEN q.swept AND s.uncertain THEN NULL
                      WHEN q.cancel_requested THEN moment.now_at
                      WHEN q.swept THEN q.expires_at ELSE q.sweep_at END,
      note = CASE WHEN s.next = 'g' THEN q.note ELSE s.note END
  FROM moment CROSS JOIN s", $from, "
  WHERE q.id = s.id AND q.token = s.token AND ", $when, " AND s.next <> 'e' AND NOT q.applied_late
    AND NOT (q.cancel_requested AND s.next = 't')
  RETURNING s.*
), ended AS (
  INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, response_status, response_truncated,
    refusal_stored, sent_before, state, downstream, note, response, response_raw, started_at, ended_at, worker, phase)
  SELECT g.id, ", $ended, ", m.now_at, CASE WHEN g.swept THEN g.number ELSE greatest(g.number - g.unstarted, 0) END,
    g.status, g.truncated, g.refusal_stored, g.sent_before OR g.reached, g.state, g.downstream, g.note, g.response::json,
    g.response_raw, CASE WHEN g.first THEN g.started_at END, CASE WHEN g.first THEN g.ended_at END,
    CASE WHEN g.first THEN g.worker END, CASE WHEN g.first THEN g.phase END
  FROM gone AS g CROSS JOIN moment AS m
), logged AS (
  INSERT INTO aftercommit.attempts (effect_id, token, number, late, replayed, response_status, started_at, ended_at, worker,
    phase, outcome, error)
  SELECT id, token, attempt, swept, replayed, attempt_status, started_at, ended_at, worker, phase, outcome, error
  FROM gone WHERE attempt IS NOT NULL AND NOT first
  UNION ALL
  SELECT k.id, k.token, k.attempt,
    EXISTS (SELECT FROM aftercommit.attempts AS a WHERE a.effect_id = k.id AND a.token = k.token AND NOT a.late),
    k.replayed, k.attempt_status, k.started_at, k.ended_at, k.worker, k.phase, k.outcome, k.error
  FROM kept AS k WHERE k.attempt IS NOT NULL
), counted AS (
  INSERT INTO aftercommit.counters (downstream, state, n, at)
  SELECT downstream, state, count(*), (SELECT now_at FROM moment) FROM gone GROUP BY 1, 2
), unwritten AS (
  SELECT token FROM (
    SELECT token, 1 AS n FROM s UNION ALL SELECT token, -1 FROM gone UNION ALL SELECT token, -1 FROM kept) AS t
  GROUP BY token HAVING sum(n) <> 0
), dropped AS (
  -- Never a claim that one of this batch, or one that was never handed out, is still under: the sweep finds it by its lease.
  DELETE FROM aftercommit.claims AS c WHERE c.token = ANY ($28::int8[]) AND c.token NOT IN (SELECT token FROM unwritten)
    AND NOT EXISTS (
      SELECT FROM unnest(c.ids) AS held (id) JOIN aftercommit.queue AS q ON q.id = held.id
      WHERE held.id NOT IN (SELECT id FROM gone UNION ALL SELECT id FROM kept) AND q.token = c.token AND q.claimed)
)
SELECT w.ord, m.durable FROM (SELECT ord FROM gone UNION ALL SELECT ord FROM kept) AS w CROSS JOIN moment AS m")
    };
}
pub(super) use write_sql;

/// Under a token that stands: claimed, or parked by a sweep that kept it. Served by the primary key of `queue`.
const SETTLE: &str = write_sql!(
    with: "", from: "", when: "(q.claimed OR q.swept)", ended: "g.token", kept: "q.token", parked: "false"
);

/// Why rows of a batch were not written. One that was written before is known by its outcome, or by its very row in the log:
/// a sweep logs under the same token, and somebody may ask for another decision under it.
const EXPLAIN: &str = "SELECT s.ord, coalesce(q.token = s.token, false) AS mine, coalesce(q.claimed OR q.swept, false) AS open,
  coalesce(q.cancel_requested, false) AS cancel_requested, coalesce(q.applied_late, false) AS applied_late,
  coalesce(o.token = s.token AND o.state = s.state, false) AS ended,
  EXISTS (
    SELECT FROM aftercommit.attempts AS a
    WHERE a.effect_id = s.id AND a.token = s.token AND a.number = s.attempt AND a.outcome = s.outcome AND a.phase = s.phase
      AND a.started_at = s.started_at AND a.ended_at = s.ended_at) AS logged
FROM unnest($1::int8[], $2::int8[], $3::text[], $4::int4[], $5::text[], $6::text[], $7::timestamptz[], $8::timestamptz[])
  WITH ORDINALITY AS s (id, token, state, attempt, outcome, phase, started_at, ended_at, ord)
LEFT JOIN aftercommit.queue AS q ON q.id = s.id
LEFT JOIN aftercommit.outcomes AS o ON o.effect_id = s.id
ORDER BY s.ord";

/// A settle that met its row in the middle of somebody else's write looks again; more than twice is a fault.
const ROUNDS: usize = 5;

/// What stands where an attempt's own words could not be stored.
const UNSTORABLE: &str = "what was said of this attempt could not be stored";

/// Settlements as the statement takes them: one array per column.
#[derive(Debug, Default)]
pub(super) struct Batch {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    next: Vec<&'static str>,
    states: Vec<Option<&'static str>>,
    due: Vec<Option<Timestamp>>,
    notes: Vec<Option<String>>,
    unstarted: Vec<i32>,
    uncounted: Vec<i32>,
    uncertain: Vec<bool>,
    quiet: Vec<Option<Timestamp>>,
    sweep: Vec<Option<Timestamp>>,
    refusals: Vec<bool>,
    responses: Vec<Option<String>>,
    raw: Vec<Option<Vec<u8>>>,
    truncated: Vec<bool>,
    statuses: Vec<Option<i32>>,
    workers: Vec<Option<String>>,
    numbers: Vec<Option<i32>>,
    started: Vec<Option<Timestamp>>,
    ended: Vec<Option<Timestamp>>,
    phases: Vec<Option<&'static str>>,
    outcomes: Vec<Option<&'static str>>,
    replayed: Vec<bool>,
    attempt_statuses: Vec<Option<i32>>,
    errors: Vec<Option<String>>,
    plain: Vec<bool>,
    reached: Vec<bool>,
}

/// Whether the effects of a batch were claimed: what a claim counted is taken back where nothing was tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Claimed,
    Unclaimed,
}

impl Batch {
    pub(super) fn of<'a>(settlements: impl IntoIterator<Item = &'a Settlement>, held: Held) -> Self {
        let mut batch = Self::default();
        for settlement in settlements {
            batch.push(settlement, held);
        }
        batch
    }

    fn push(&mut self, settlement: &Settlement, held: Held) {
        let (next, state, due_at, note) = written(&settlement.decision);
        let unstarted = held == Held::Claimed && settlement.attempt.is_none();
        let uncounted = unstarted || (held == Held::Claimed && !settlement.counts);
        self.ids.push(settlement.id.get());
        self.tokens.push(settlement.token.get());
        self.next.push(next);
        self.states.push(state.map(State::as_str));
        self.due.push(due_at);
        self.notes.push(note);
        self.unstarted.push(i32::from(unstarted));
        self.uncounted.push(i32::from(uncounted));
        self.uncertain.push(settlement.uncertain);
        self.quiet.push(settlement.quiet_at);
        self.sweep.push(settlement.sweep_at);
        self.refusals.push(settlement.refusal_stored);
        // A response belongs to an outcome; a retry's own words are in the log.
        let response = StoredResponse::of(settlement.response.as_ref().filter(|_| state.is_some()));
        self.responses.push(response.json);
        self.raw.push(response.raw);
        self.truncated.push(response.truncated);
        let attempt = settlement.attempt.as_ref();
        let status = attempt.and_then(|attempt| attempt.response_status).map(i32::from);
        self.statuses.push(response.status.or(status));
        self.push_attempt(attempt, state);
    }

    fn push_attempt(&mut self, attempt: Option<&AttemptLog>, state: Option<State>) {
        let error = attempt.map(|attempt| sentence(&attempt.error)).filter(|error| !error.is_empty());
        self.plain.push(
            state == Some(State::Succeeded)
                && error.is_none()
                && attempt.is_some_and(|attempt| {
                    !attempt.replayed && attempt.verdict == crate::outcome::Verdict::Applied
                }),
        );
        self.workers.push(attempt.map(|attempt| sentence(&attempt.worker)));
        self.numbers.push(attempt.map(|attempt| i32::try_from(attempt.number).unwrap_or(i32::MAX)));
        self.started.push(attempt.map(|attempt| attempt.started_at));
        self.ended.push(attempt.map(|attempt| attempt.ended_at));
        self.phases.push(attempt.map(|attempt| attempt.phase.as_str()));
        self.outcomes.push(attempt.map(|attempt| attempt.verdict.as_str()));
        self.replayed.push(attempt.is_some_and(|attempt| attempt.replayed));
        self.attempt_statuses.push(attempt.and_then(|attempt| attempt.response_status).map(i32::from));
        self.errors.push(error);
        self.reached.push(attempt.is_some_and(|attempt| attempt.phase.may_have_reached()));
    }

    /// The same decisions without a word of what anybody said.
    fn without_words(mut self) -> Self {
        let fixed = |text: Option<String>| text.map(|_| UNSTORABLE.to_owned());
        self.notes = self.notes.into_iter().map(fixed).collect();
        self.errors = self.errors.into_iter().map(fixed).collect();
        self.responses.iter_mut().for_each(|response| *response = None);
        self.raw.iter_mut().for_each(|raw| *raw = None);
        self
    }

    /// Runs one of the statements of [`write_sql`]; the positions (from 0) of what was written.
    pub(super) async fn write(
        &self,
        store: &PgStore,
        text: &'static str,
        finished: &[Token],
    ) -> Result<Vec<usize>, StoreError> {
        let finished: Vec<i64> = finished.iter().map(|token| token.get()).collect();
        let rows = store.all(self.bind(sql(text)).bind(finished)).await;
        let rows = rows.map_err(StoreError::during("settling"))?;
        rows.iter()
            .map(|row| row::get::<i64>(row, "ord").map(|ord| usize::try_from(ord - 1).unwrap_or(usize::MAX)))
            .collect()
    }

    fn bind<'q>(&'q self, statement: Statement<'q>) -> Statement<'q> {
        statement
            .bind(&self.ids)
            .bind(&self.tokens)
            .bind(&self.next)
            .bind(&self.states)
            .bind(&self.due)
            .bind(&self.notes)
            .bind(&self.unstarted)
            .bind(&self.uncounted)
            .bind(&self.uncertain)
            .bind(&self.quiet)
            .bind(&self.sweep)
            .bind(&self.refusals)
            .bind(&self.responses)
            .bind(&self.raw)
            .bind(&self.truncated)
            .bind(&self.statuses)
            .bind(&self.workers)
            .bind(&self.numbers)
            .bind(&self.started)
            .bind(&self.ended)
            .bind(&self.phases)
            .bind(&self.outcomes)
            .bind(&self.replayed)
            .bind(&self.attempt_statuses)
            .bind(&self.errors)
            .bind(&self.plain)
            .bind(&self.reached)
    }
}

/// The lane (`e`: it ends, `g`: given back), the final state, the next time, the last word.
fn written(next: &Next) -> (&'static str, Option<State>, Option<Timestamp>, Option<String>) {
    let Next::Decided(decision) = next else { return ("g", None, None, None) };
    match decision {
        Decision::Succeed => ("e", Some(State::Succeeded), None, None),
        Decision::Fail(why) => ("e", Some(State::Failed), None, Some(sentence(why))),
        Decision::Cancel => ("e", Some(State::Cancelled), None, None),
        Decision::Expire => ("e", Some(State::Expired), None, None),
        Decision::RetryAt(at) => ("t", None, Some(*at), None),
        Decision::ProbeAt(at, why) => ("d", None, Some(*at), Some(sentence(why))),
        Decision::Park(why) => ("d", None, None, Some(sentence(why))),
    }
}

impl PgStore {
    pub(super) async fn settle_batch(
        &self,
        settlements: &[Settlement],
        finished: &[Token],
    ) -> Result<Vec<Settled>, StoreError> {
        let mut settled: Vec<Option<Settled>> = vec![None; settlements.len()];
        for _ in 0..ROUNDS {
            let open: Vec<usize> = (0..settlements.len()).filter(|index| settled[*index].is_none()).collect();
            let written = self.write_somehow(settlements, &open, finished).await?;
            for index in written {
                settled[index] = Some(Settled::Done);
            }
            let open: Vec<usize> = open.into_iter().filter(|index| settled[*index].is_none()).collect();
            if open.is_empty() {
                break;
            }
            self.explain(settlements, &open, &mut settled).await?;
        }
        settled
            .into_iter()
            .map(|settled| {
                settled.ok_or_else(|| StoreError::Database {
                    doing: "settling: a row was in the middle of another write again and again",
                    source: sqlx::Error::RowNotFound,
                })
            })
            .collect()
    }

    /// Writes the settlements at `open`; when the database refuses the batch, one by one; when it refuses one, without words.
    async fn write_somehow(
        &self,
        settlements: &[Settlement],
        open: &[usize],
        finished: &[Token],
    ) -> Result<Vec<usize>, StoreError> {
        let batch = Batch::of(open.iter().map(|index| &settlements[*index]), Held::Claimed);
        match batch.write(self, SETTLE, finished).await {
            Ok(written) => {
                return Ok(written.into_iter().filter_map(|at| open.get(at).copied()).collect());
            }
            Err(error) if !error.is_refusal() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, effects = open.len(), "a settle was refused as a batch; trying one by one");
            }
        }
        let mut written = Vec::new();
        for index in open {
            let one = Batch::of([&settlements[*index]], Held::Claimed);
            let done = match one.write(self, SETTLE, &[]).await {
                Err(error) if error.is_refusal() => one.without_words().write(self, SETTLE, &[]).await?,
                result => result?,
            };
            written.extend(done.first().map(|_| *index));
        }
        // The claims themselves: none of them is still in use, unless one of this batch was not written.
        if written.len() == open.len() {
            Batch::default().write(self, SETTLE, finished).await?;
        }
        Ok(written)
    }

    /// Says why the settlements at `open` were not written; leaves those open that should be tried again.
    async fn explain(
        &self,
        settlements: &[Settlement],
        open: &[usize],
        settled: &mut [Option<Settled>],
    ) -> Result<(), StoreError> {
        let batch = Batch::of(open.iter().map(|index| &settlements[*index]), Held::Claimed);
        let statement = sql(EXPLAIN)
            .bind(&batch.ids)
            .bind(&batch.tokens)
            .bind(&batch.states)
            .bind(&batch.numbers)
            .bind(&batch.outcomes)
            .bind(&batch.phases)
            .bind(&batch.started)
            .bind(&batch.ended);
        let rows = self.all(statement).await.map_err(StoreError::during("settling"))?;
        for (at, (index, row)) in open.iter().zip(&rows).enumerate() {
            let unstarted = batch.numbers[at].is_none() && batch.states[at].is_none();
            let cancel_requested = row::get(row, "cancel_requested")?;
            let applied_late = row::get(row, "applied_late")?;
            let before = row::get(row, "ended")? || row::get(row, "logged")?;
            settled[*index] = match (row::get(row, "mine")?, row::get(row, "open")?) {
                (true, true) if cancel_requested || applied_late => {
                    Some(Settled::Reconsider { cancel_requested, applied_late })
                }
                (true, true) => None,
                // Nobody but the holder of a token takes a claim back under it: an earlier settle of ours was committed.
                (true, false) if unstarted => Some(Settled::Done),
                _ if before => Some(Settled::Done),
                _ => Some(Settled::Lost),
            };
        }
        Ok(())
    }
}
