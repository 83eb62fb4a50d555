//! Bulks: the list, who carries it out, and what became of each item.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{
    PgStore, Tx,
    row::{self, sentence},
    statement::sql,
};
use crate::{
    clock::duration_micros,
    effect::EffectId,
    error::StoreError,
    store::{
        Beside, BulkInfo, BulkItemRow, BulkState, Bulks, Control, ItemOutcome, NewBulk, PAGE_MAX,
        bulk::{checked, in_words, samples},
    },
    verb::{Actor, BulkItem, Seen},
};

const START: &str =
    "INSERT INTO aftercommit.bulks (created_at, total, rate, verb, what, who, reason, from_address)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7) RETURNING id";

const ITEMS: &str = "INSERT INTO aftercommit.bulk_items (bulk, n, effect_id, seen_state, seen_token)
SELECT $1, s.n, s.effect_id, s.seen_state, s.seen_token
FROM unnest($2::int8[], $3::text[], $4::int8[]) WITH ORDINALITY AS s (effect_id, seen_state, seen_token, n)";

const AUDIT: &str =
    "INSERT INTO aftercommit.audit (at, who, from_address, verb, from_state, to_state, reason, bulk)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7)";

/// What became of the items of a bulk `b`: written down when it ended, counted until then. Served by bulk_items_open and
/// bulk_items_odd.
macro_rules! info_sql {
    ($when:literal) => {
        concat!(
            "SELECT b.id, b.verb, b.what, b.who, b.reason, b.from_address, b.rate, b.state, b.total, b.created_at, b.finished_at,
  coalesce(b.done, b.total - left_over.n - odd.refused - odd.stale - odd.gone)::int4 AS done,
  coalesce(b.refused, odd.refused)::int4 AS refused, coalesce(b.stale, odd.stale)::int4 AS stale,
  coalesce(b.gone, odd.gone)::int4 AS gone
FROM aftercommit.bulks AS b
CROSS JOIN LATERAL (
  SELECT count(*) AS n FROM aftercommit.bulk_items AS i
  WHERE b.done IS NULL AND i.bulk = b.id AND i.outcome IS NULL) AS left_over
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE i.outcome = 'refused') AS refused, count(*) FILTER (WHERE i.outcome = 'stale') AS stale,
         count(*) FILTER (WHERE i.outcome = 'gone') AS gone
  FROM aftercommit.bulk_items AS i
  WHERE b.done IS NULL AND i.bulk = b.id AND i.outcome IN ('refused', 'stale', 'gone')) AS odd
",
            $when
        )
    };
}

const ONE: &str = info_sql!("WHERE b.id = $1");
const NEWEST: &str = info_sql!("ORDER BY b.id DESC LIMIT $1");

/// Served by bulks_open.
const TAKE: &str = "UPDATE aftercommit.bulks AS b
SET runner = $1, lease_until = clock_timestamp() + $2::int8 * interval '1 microsecond'
WHERE b.id = (
  SELECT o.id FROM aftercommit.bulks AS o
  WHERE o.finished_at IS NULL AND o.state = 'running'
    AND (o.lease_until IS NULL OR o.lease_until <= (SELECT clock_timestamp()))
  ORDER BY o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING b.id";

const KEEP: &str = "UPDATE aftercommit.bulks AS b
SET runner = CASE WHEN b.state = 'running' THEN b.runner END,
    lease_until = CASE WHEN b.state = 'running' THEN clock_timestamp() + $3::int8 * interval '1 microsecond' END
WHERE b.id = $1 AND b.runner = $2 RETURNING b.state";

/// Served by bulk_items_open.
const OPEN: &str = "SELECT i.n, i.effect_id, i.seen_state, i.seen_token FROM aftercommit.bulk_items AS i
WHERE i.bulk = $1 AND i.outcome IS NULL ORDER BY i.n LIMIT $2";

/// Shared with others who act for the same bulk, and with nobody who pauses or cancels it: so that nothing is done any more when that
/// has returned.
const HOLD: &str =
    "SELECT b.id FROM aftercommit.bulks AS b WHERE b.id = $1 AND b.finished_at IS NULL FOR SHARE";
const HOLD_RUNNING: &str =
    "SELECT b.id FROM aftercommit.bulks AS b WHERE b.id = $1 AND b.state = 'running' FOR SHARE";

const DONE: &str = "UPDATE aftercommit.bulk_items AS i SET outcome = 'done'
WHERE i.bulk = $1 AND i.n = $2 AND i.effect_id = $3 AND i.outcome IS NULL";
const NOT_DONE: &str = "UPDATE aftercommit.bulk_items AS i SET outcome = $3, words = $4
WHERE i.bulk = $1 AND i.n = $2 AND i.outcome IS NULL";

const LOCK: &str = "SELECT b.state FROM aftercommit.bulks AS b WHERE b.id = $1 FOR UPDATE";

/// The counts of the items are written down with the end.
const CONTROL: &str = "UPDATE aftercommit.bulks AS b
SET state = $2, runner = CASE WHEN $2 = 'paused' THEN b.runner END, lease_until = CASE WHEN $2 = 'paused' THEN b.lease_until END
WHERE b.id = $1";
macro_rules! end_sql {
    ($when:literal) => {
        concat!(
            "UPDATE aftercommit.bulks AS b
SET state = $2, finished_at = clock_timestamp(), runner = NULL, lease_until = NULL, done = c.done, refused = c.refused,
    stale = c.stale, gone = c.gone
FROM (
  SELECT count(*) FILTER (WHERE i.outcome = 'done') AS done, count(*) FILTER (WHERE i.outcome = 'refused') AS refused,
         count(*) FILTER (WHERE i.outcome = 'stale') AS stale, count(*) FILTER (WHERE i.outcome = 'gone') AS gone,
         count(*) FILTER (WHERE i.outcome IS NULL) AS left_over
  FROM aftercommit.bulk_items AS i WHERE i.bulk = $1) AS c
WHERE b.id = $1 AND b.finished_at IS NULL",
            $when
        )
    };
}
const CANCEL: &str = end_sql!("");
const FINISH: &str = end_sql!(" AND b.state = 'running' AND c.left_over = 0");

#[async_trait::async_trait]
impl Bulks for PgStore {
    async fn start_bulk(&self, bulk: &NewBulk, items: &[(EffectId, Seen)]) -> Result<i64, StoreError> {
        let total = checked(bulk, items)?;
        self.start(bulk, items, total).await.map_err(StoreError::during("starting a bulk"))
    }

    async fn bulk(&self, id: i64) -> Result<Option<BulkInfo>, StoreError> {
        let rows = self.read(sql(ONE).bind(id), "reading a bulk").await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let refusals = self.refusals_of(id).await?;
        Ok(Some(BulkInfo { samples: samples(&refusals), refusals, ..info(row)? }))
    }

    async fn bulks(&self, limit: u32) -> Result<Vec<BulkInfo>, StoreError> {
        let statement = sql(NEWEST).bind(i64::from(limit.min(PAGE_MAX)));
        self.read(statement, "listing bulks").await?.iter().map(info).collect()
    }

    async fn take_bulk(&self, runner: &str, lease: Duration) -> Result<Option<BulkInfo>, StoreError> {
        let doing = "taking a bulk";
        let taken = self.optional(sql(TAKE).bind(runner).bind(micros(lease))).await;
        let Some(taken) = taken.map_err(StoreError::during(doing))? else { return Ok(None) };
        self.bulk(row::get(&taken, "id")?).await
    }

    async fn keep_bulk(
        &self,
        id: i64,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<BulkState>, StoreError> {
        let kept = self.optional(sql(KEEP).bind(id).bind(runner).bind(micros(lease))).await;
        let kept = kept.map_err(StoreError::during("keeping a bulk"))?;
        kept.map(|row| state(&row::get::<String>(&row, "state")?, id)).transpose()
    }

    async fn bulk_items(&self, id: i64, limit: u32) -> Result<Vec<BulkItemRow>, StoreError> {
        let rows = self.all(sql(OPEN).bind(id).bind(i64::from(limit))).await;
        rows.map_err(StoreError::during("reading a bulk's items"))?
            .iter()
            .map(|row| {
                Ok(BulkItemRow {
                    n: row::count(row, "n")?,
                    effect: EffectId::new(row::get(row, "effect_id")?),
                    seen: Seen {
                        state: row::state(&row::get::<String>(row, "seen_state")?, id)?,
                        token: row::get(row, "seen_token")?,
                    },
                })
            })
            .collect()
    }

    async fn bulk_refused(
        &self,
        id: i64,
        n: u32,
        outcome: ItemOutcome,
        words: &str,
    ) -> Result<(), StoreError> {
        let doing = "writing down what became of a bulk's item";
        let written = async {
            let mut tx = Tx::begin(&self.pool).await?;
            if tx.optional(sql(HOLD).bind(id)).await?.is_some() {
                let words = sentence(words);
                tx.execute(sql(NOT_DONE).bind(id).bind(number(n)).bind(outcome.as_str()).bind(words)).await?;
            }
            tx.commit().await
        };
        written.await.map_err(StoreError::during(doing))
    }

    async fn control_bulk(
        &self,
        id: i64,
        control: Control,
        actor: &Actor,
    ) -> Result<Option<BulkInfo>, StoreError> {
        let doing = "acting on a bulk";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let held = tx.optional(sql(LOCK).bind(id)).await.map_err(StoreError::during(doing))?;
        if let Some(held) = held {
            let before = state(&row::get::<String>(&held, "state")?, id)?;
            if control.takes(before) {
                let text = if control == Control::Cancel { CANCEL } else { CONTROL };
                let to = control.leads_to().as_str();
                tx.execute(sql(text).bind(id).bind(to)).await.map_err(StoreError::during(doing))?;
                let audit = sql(AUDIT)
                    .bind(sentence(&actor.who))
                    .bind(actor.from.as_deref().map(sentence))
                    .bind(control.as_str())
                    .bind(before.as_str())
                    .bind(to)
                    .bind(actor.reason.as_deref().map(sentence))
                    .bind(id);
                tx.execute(audit).await.map_err(StoreError::during(doing))?;
            }
        }
        tx.commit().await.map_err(StoreError::during(doing))?;
        self.bulk(id).await
    }

    async fn end_bulk(&self, id: i64) -> Result<(), StoreError> {
        let ended = self.execute(sql(FINISH).bind(id).bind(BulkState::Finished.as_str())).await;
        ended.map(drop).map_err(StoreError::during("ending a bulk"))
    }

    async fn beside(&self, ids: &[EffectId]) -> Result<Vec<Beside>, StoreError> {
        self.known_beside(ids).await
    }
}

impl PgStore {
    async fn start(
        &self,
        bulk: &NewBulk,
        items: &[(EffectId, Seen)],
        total: i32,
    ) -> Result<i64, sqlx::Error> {
        let actor = &bulk.actor;
        let from = actor.from.as_deref().map(sentence);
        let mut tx = Tx::begin(&self.pool).await?;
        let start = sql(START)
            .bind(total)
            .bind(number(bulk.rate))
            .bind(sentence(&bulk.verb))
            .bind(sentence(&bulk.what))
            .bind(sentence(&actor.who))
            .bind(actor.reason.as_deref().map(sentence))
            .bind(from.clone());
        let id: i64 = tx.scalar(start).await?;
        let items = sql(ITEMS)
            .bind(id)
            .bind(items.iter().map(|(effect, _)| effect.get()).collect::<Vec<_>>())
            .bind(items.iter().map(|(_, seen)| seen.state.as_str()).collect::<Vec<_>>())
            .bind(items.iter().map(|(_, seen)| seen.token).collect::<Vec<_>>());
        tx.execute(items).await?;
        let audit = sql(AUDIT)
            .bind(sentence(&actor.who))
            .bind(from)
            .bind("start bulk")
            .bind(None::<&str>)
            .bind(BulkState::Running.as_str())
            .bind(sentence(&in_words(bulk, total)))
            .bind(id);
        tx.execute(audit).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Old bulks go with the history; how many rows went.
    pub(super) async fn drop_bulks(&self, age_us: i64, limit: u32) -> Result<u64, StoreError> {
        let dropped: i64 = self
            .scalar(sql("SELECT aftercommit.drop_bulks($1, $2)").bind(age_us).bind(i64::from(limit)))
            .await
            .map_err(StoreError::during(super::retain::DOING))?;
        Ok(u64::try_from(dropped).unwrap_or(0))
    }
}

/// Marks an item done, in the transaction that acts; `false`: its bulk is not running, or it was dealt with before.
pub(super) async fn mark(tx: &mut Tx<'_>, item: BulkItem, effect: EffectId) -> Result<bool, sqlx::Error> {
    if tx.optional(sql(HOLD_RUNNING).bind(item.bulk)).await?.is_none() {
        return Ok(false);
    }
    let marked = tx.execute(sql(DONE).bind(item.bulk).bind(number(item.n)).bind(effect.get())).await?;
    Ok(marked == 1)
}

fn info(row: &PgRow) -> Result<BulkInfo, StoreError> {
    let id = row::get(row, "id")?;
    Ok(BulkInfo {
        id,
        verb: row::get(row, "verb")?,
        what: row::get(row, "what")?,
        who: row::get(row, "who")?,
        reason: row::get(row, "reason")?,
        from: row::get(row, "from_address")?,
        rate: row::count(row, "rate")?,
        state: state(&row::get::<String>(row, "state")?, id)?,
        total: row::count(row, "total")?,
        done: row::count(row, "done")?,
        refused: row::count(row, "refused")?,
        stale: row::count(row, "stale")?,
        gone: row::count(row, "gone")?,
        created_at: row::get(row, "created_at")?,
        finished_at: row::get(row, "finished_at")?,
        samples: Vec::new(),
        refusals: Vec::new(),
    })
}

fn state(word: &str, row: i64) -> Result<BulkState, StoreError> {
    BulkState::of_word(word).ok_or_else(|| StoreError::Corrupt {
        table: "bulks",
        column: "state",
        row,
        problem: format!("{word:?} is no state of a bulk"),
    })
}

fn number(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Longer leases would not fit an interval's arithmetic.
fn micros(lease: Duration) -> i64 {
    duration_micros(lease).min(315_360_000_000_000)
}
