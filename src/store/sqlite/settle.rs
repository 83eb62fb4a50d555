//! Settling: what was decided, written under the token that still stands. Attempts, sweeps and late answers write here.

use std::collections::{HashMap, HashSet};

use sqlx::{Row, SqliteConnection};

use super::{
    row::{Fields, json_ids, next_token},
    write::Writes,
};
use crate::{
    clock::Timestamp,
    decision::Decision,
    error::StoreError,
    state::State,
    store::{Next, Settled, Settlement},
};

const DOING: &str = "settling";

/// Under which right something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// A worker settles its claim.
    Claim,
    /// A sweep settles a claim whose lease ended.
    LeaseOver,
    /// A sweep settles what nobody holds.
    Unclaimed,
}

/// A queue row as it stands.
pub(super) struct Standing {
    pub(super) downstream: String,
    token: i64,
    claimed: bool,
    in_doubt: bool,
    cancel_requested: bool,
    applied_late: bool,
    pub(super) number: i64,
    pub(super) sent_before: bool,
    lease_until: Option<i64>,
    pub(super) expires_at: Option<i64>,
}

/// What a settle under a token left behind, should it have been written before.
#[derive(Default)]
struct Traces {
    /// (effect, token) with a log row that the sweep wrote.
    swept: HashSet<(i64, i64)>,
    /// (effect, token) with a log row that the worker wrote, and what the attempt showed.
    told: HashMap<(i64, i64), String>,
    /// (effect, token) with an outcome, and the state in which it ended.
    ended: HashMap<(i64, i64), String>,
}

impl Traces {
    /// Whether this very settlement was committed before, by whoever has `right` to it.
    fn has(&self, right: Right, settlement: &Settlement) -> bool {
        let mark = (settlement.id.get(), settlement.token.get());
        let shown = settlement.attempt.as_ref().map(|attempt| attempt.verdict.as_str());
        match right {
            Right::Unclaimed => false,
            Right::LeaseOver => self.swept.contains(&mark),
            Right::Claim => match (self.ended.get(&mark), self.told.get(&mark)) {
                (Some(state), _) => Some(state.as_str()) == ends(&settlement.decision),
                (None, Some(told)) => Some(told.as_str()) == shown,
                (None, None) => false,
            },
        }
    }
}

/// The state in which a decision ends an effect.
fn ends(decision: &Next) -> Option<&'static str> {
    match decision {
        Next::Decided(Decision::Succeed) => Some(State::Succeeded.as_str()),
        Next::Decided(Decision::Fail(_)) => Some(State::Failed.as_str()),
        Next::Decided(Decision::Cancel) => Some(State::Cancelled.as_str()),
        Next::Decided(Decision::Expire) => Some(State::Expired.as_str()),
        Next::Decided(Decision::RetryAt(_) | Decision::ProbeAt(..) | Decision::Park(_)) | Next::GiveBack => {
            None
        }
    }
}

/// Writes each settlement that its `right` still covers, with its log row; says what became of each, in order.
pub(super) async fn settle(
    conn: &mut SqliteConnection,
    batch: &[Settlement],
    right: Right,
    now: Timestamp,
) -> Result<Vec<Settled>, StoreError> {
    let standing = standing(conn, batch).await?;
    let traces = traces(conn, batch, &standing).await?;
    // A sweep fences off whoever held the effect before.
    let fresh = match right {
        Right::Claim => None,
        Right::LeaseOver | Right::Unclaimed => Some(next_token(conn).await?),
    };
    let mut writes = Writes::new(now, fresh);
    let mut written = HashSet::new();
    let mut settled = Vec::with_capacity(batch.len());
    for settlement in batch {
        let row = standing.get(&settlement.id.get());
        match judge(right, settlement, row, &traces, now) {
            Ruling::Answer(answer) => settled.push(answer),
            // The same effect twice in a batch: the second finds what the first leaves.
            Ruling::Write { .. } if !written.insert(settlement.id.get()) => settled.push(Settled::Lost),
            Ruling::Write { late } => {
                let row = row.expect("only a standing row is written to");
                writes.add(right, settlement, row, late);
                settled.push(Settled::Done);
            }
        }
    }
    writes.apply(conn).await?;
    Ok(settled)
}

/// Whether a settlement may be written.
enum Ruling {
    Answer(Settled),
    /// `late`: the sweep logged and parked the claim meanwhile, under the same token.
    Write {
        late: bool,
    },
}

fn judge(
    right: Right,
    settlement: &Settlement,
    row: Option<&Standing>,
    traces: &Traces,
    now: Timestamp,
) -> Ruling {
    let mark = (settlement.id.get(), settlement.token.get());
    let before = traces.has(right, settlement);
    let fenced = Ruling::Answer(if before { Settled::Done } else { Settled::Lost });
    let Some(row) = row.filter(|row| row.token == settlement.token.get()) else { return fenced };
    let told = traces.told.contains_key(&mark);
    let late = !row.claimed && row.in_doubt && traces.swept.contains(&mark) && !told;
    match right {
        Right::Claim if row.claimed || late => {}
        // Not claimed under the claim's own token, and nothing in the log: it was given back, or decided unstarted, before.
        Right::Claim if settlement.attempt.is_none() && !told => return Ruling::Answer(Settled::Done),
        Right::LeaseOver if row.claimed && row.lease_until.is_none_or(|until| until <= now.micros()) => {}
        Right::Unclaimed if !row.claimed && !row.in_doubt => {}
        Right::Claim | Right::LeaseOver | Right::Unclaimed => return fenced,
    }
    if must_reconsider(&settlement.decision, row) {
        return Ruling::Answer(Settled::Reconsider {
            cancel_requested: row.cancel_requested,
            applied_late: row.applied_late,
        });
    }
    Ruling::Write { late }
}

/// Whether the decision would be another one had its maker known of the flags. A request to cancel only stops what would
/// be sent again; a late *applied* makes everything succeed.
fn must_reconsider(decision: &Next, row: &Standing) -> bool {
    match decision {
        Next::Decided(Decision::Succeed) => false,
        Next::Decided(Decision::RetryAt(_)) | Next::GiveBack => row.cancel_requested || row.applied_late,
        Next::Decided(
            Decision::Fail(_)
            | Decision::ProbeAt(..)
            | Decision::Park(_)
            | Decision::Cancel
            | Decision::Expire,
        ) => row.applied_late,
    }
}

async fn standing(
    conn: &mut SqliteConnection,
    batch: &[Settlement],
) -> Result<HashMap<i64, Standing>, StoreError> {
    let rows = sqlx::query(
        "SELECT q.id, q.downstream, q.token, q.claimed, q.lane = 'd' AS in_doubt, q.cancel_requested, \
             q.applied_late, q.number, q.sent_before, q.expires_at, c.lease_until \
         FROM json_each(?1) AS wanted CROSS JOIN aftercommit_queue AS q ON q.id = wanted.value \
         LEFT JOIN aftercommit_claims AS c ON c.token = q.token",
    )
    .bind(json_ids(batch.iter().map(|settlement| settlement.id.get())))
    .fetch_all(conn)
    .await
    .map_err(StoreError::during(DOING))?;
    let mut standing = HashMap::with_capacity(rows.len());
    for row in &rows {
        let id = row.try_get("id").map_err(StoreError::during(DOING))?;
        let fields = Fields::new(row, "aftercommit_queue", id);
        let row = Standing {
            downstream: fields.text("downstream")?,
            token: fields.int("token")?,
            claimed: fields.flag("claimed")?,
            in_doubt: fields.flag("in_doubt")?,
            cancel_requested: fields.flag("cancel_requested")?,
            applied_late: fields.flag("applied_late")?,
            number: fields.int("number")?,
            sent_before: fields.flag("sent_before")?,
            lease_until: fields.opt_int("lease_until")?,
            expires_at: fields.opt_int("expires_at")?,
        };
        standing.insert(id, row);
    }
    Ok(standing)
}

/// Looks for traces of an earlier settle, only of those that no claim under their token stands for.
async fn traces(
    conn: &mut SqliteConnection,
    batch: &[Settlement],
    standing: &HashMap<i64, Standing>,
) -> Result<Traces, StoreError> {
    let suspects: Vec<i64> = batch
        .iter()
        .filter(|settlement| {
            standing
                .get(&settlement.id.get())
                .is_none_or(|row| !row.claimed || row.token != settlement.token.get())
        })
        .map(|settlement| settlement.id.get())
        .collect();
    let mut traces = Traces::default();
    if suspects.is_empty() {
        return Ok(traces);
    }
    let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(
        "SELECT effect_id, token, CASE WHEN swept = 1 THEN 'swept' ELSE 'told' END, outcome \
         FROM aftercommit_attempts WHERE effect_id IN (SELECT value FROM json_each(?1)) \
         UNION ALL SELECT effect_id, token, 'ended', state FROM aftercommit_outcomes \
         WHERE effect_id IN (SELECT value FROM json_each(?1))",
    )
    .bind(json_ids(suspects))
    .fetch_all(conn)
    .await
    .map_err(StoreError::during(DOING))?;
    for (id, token, by, word) in rows {
        match by.as_str() {
            "swept" => drop(traces.swept.insert((id, token))),
            "told" => drop(traces.told.insert((id, token), word)),
            _ => drop(traces.ended.insert((id, token), word)),
        }
    }
    Ok(traces)
}

/// The same settlement with a fixed text in the place of the downstream's words.
pub(super) fn without_answer(settlement: &Settlement) -> Settlement {
    let mut plain = settlement.clone();
    plain.response = None;
    if let Some(attempt) = &mut plain.attempt {
        attempt.error = "what the downstream said could not be stored".to_owned();
    }
    plain
}
