//! Bulks: the list, who carries it out, and what became of each item. Under the one write lock nobody acts for a bulk while
//! somebody else pauses or cancels it.

use std::time::Duration;

use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore, outlook,
    record::{Deed, write_down},
    row::Fields,
    too_slow,
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::{
        Beside, BulkInfo, BulkItemRow, BulkState, Bulks, Control, ItemOutcome, NewBulk, PAGE_MAX,
        bulk::{checked, in_words, samples},
    },
    verb::{Actor, BulkItem, Seen},
};

const DOING: &str = "acting on a bulk";
/// Items of one statement: below SQLite's limit of bound values, with room.
const ROWS_MAX: usize = 1000;

/// How many of a bulk `b` that goes on were not done for this reason.
macro_rules! odd {
    ($outcome:literal) => {
        concat!(
            "(SELECT count(*) FROM aftercommit_bulk_items AS i WHERE b.done IS NULL AND i.bulk = b.id \
             AND i.outcome IN ('refused', 'stale', 'gone') AND i.outcome = '",
            $outcome,
            "') AS odd_",
            $outcome
        )
    };
}

/// What became of the items of a bulk `b`: written down when it ended, counted until then. Served by the indexes of open and odd
/// items.
macro_rules! info_sql {
    ($when:literal) => {
        concat!(
            "SELECT b.id, b.verb, b.what, b.who, b.reason, b.from_address, b.rate, b.state, b.total, b.created_at, \
             b.finished_at, b.done, b.refused, b.stale, b.gone, \
             (SELECT count(*) FROM aftercommit_bulk_items AS i \
                 WHERE b.done IS NULL AND i.bulk = b.id AND i.outcome IS NULL) AS left_over, ",
            odd!("refused"),
            ", ",
            odd!("stale"),
            ", ",
            odd!("gone"),
            " FROM aftercommit_bulks AS b ",
            $when
        )
    };
}

const ONE: &str = info_sql!("WHERE b.id = ?1");
const NEWEST: &str = info_sql!("ORDER BY b.id DESC LIMIT ?1");
const TAKE: &str = "UPDATE aftercommit_bulks SET runner = ?1, lease_until = ?2 WHERE id = ( \
         SELECT o.id FROM aftercommit_bulks AS o WHERE o.state = 'running' AND coalesce(o.lease_until, 0) <= ?3 \
         ORDER BY o.id LIMIT 1) RETURNING id";
const KEEP: &str = "UPDATE aftercommit_bulks SET runner = CASE WHEN state = 'running' THEN runner END, \
         lease_until = CASE WHEN state = 'running' THEN ?3 END WHERE id = ?1 AND runner = ?2 RETURNING state";
const OPEN: &str = "SELECT i.n, i.effect_id, i.seen_state, i.seen_token FROM aftercommit_bulk_items AS i \
     WHERE i.bulk = ?1 AND i.outcome IS NULL ORDER BY i.n LIMIT ?2";
const DONE: &str = "UPDATE aftercommit_bulk_items SET outcome = 'done' \
     WHERE bulk = ?1 AND n = ?2 AND effect_id = ?3 AND outcome IS NULL \
         AND EXISTS (SELECT 1 FROM aftercommit_bulks AS b WHERE b.id = ?1 AND b.state = 'running')";
const NOT_DONE: &str = "UPDATE aftercommit_bulk_items SET outcome = ?3, words = ?4 \
     WHERE bulk = ?1 AND n = ?2 AND outcome IS NULL \
         AND EXISTS (SELECT 1 FROM aftercommit_bulks AS b WHERE b.id = ?1 AND b.finished_at IS NULL)";
const CONTROL: &str = "UPDATE aftercommit_bulks SET state = ?2, runner = CASE WHEN ?2 = 'paused' THEN runner END, \
         lease_until = CASE WHEN ?2 = 'paused' THEN lease_until END WHERE id = ?1 AND ?3 IS NOT NULL";
/// The counts of the items are written down with the end.
const END: &str = "UPDATE aftercommit_bulks AS b SET state = ?2, finished_at = ?3, runner = NULL, lease_until = NULL, \
         done = c.done, refused = c.refused, stale = c.stale, gone = c.gone \
     FROM (SELECT count(*) FILTER (WHERE outcome = 'done') AS done, count(*) FILTER (WHERE outcome = 'refused') AS refused, \
         count(*) FILTER (WHERE outcome = 'stale') AS stale, count(*) FILTER (WHERE outcome = 'gone') AS gone, \
         count(*) FILTER (WHERE outcome IS NULL) AS left_over FROM aftercommit_bulk_items WHERE bulk = ?1) AS c \
     WHERE b.id = ?1 AND b.finished_at IS NULL AND (?2 = 'cancelled' OR b.state = 'running' AND c.left_over = 0)";

#[async_trait::async_trait]
impl Bulks for SqliteStore {
    async fn start_bulk(&self, bulk: &NewBulk, items: &[(EffectId, Seen)]) -> Result<i64, StoreError> {
        let total = checked(bulk, items)?;
        let (bulk, items) = (bulk.clone(), items.to_vec());
        self.write("starting a bulk", move |conn, now| {
            Box::pin(async move {
                start(conn, &bulk, (&items, total), now).await.map_err(StoreError::during(DOING))
            })
        })
        .await
    }

    async fn bulk(&self, id: i64) -> Result<Option<BulkInfo>, StoreError> {
        one(&mut *self.people("reading a bulk").await?, id).await.map_err(too_slow)
    }

    async fn bulks(&self, limit: u32) -> Result<Vec<BulkInfo>, StoreError> {
        let doing = "listing bulks";
        let rows = sqlx::query(NEWEST)
            .bind(i64::from(limit.min(PAGE_MAX)))
            .fetch_all(&mut *self.people(doing).await?)
            .await
            .map_err(StoreError::during(doing))
            .map_err(too_slow)?;
        rows.iter().map(info).collect()
    }

    async fn take_bulk(&self, runner: &str, lease: Duration) -> Result<Option<BulkInfo>, StoreError> {
        let runner = runner.to_owned();
        self.write("taking a bulk", move |conn, now| {
            Box::pin(async move {
                let taken: Option<i64> = sqlx::query_scalar(TAKE)
                    .bind(runner)
                    .bind(now.plus(lease).micros())
                    .bind(now.micros())
                    .fetch_optional(&mut *conn)
                    .await
                    .map_err(StoreError::during(DOING))?;
                match taken {
                    Some(id) => one(conn, id).await,
                    None => Ok(None),
                }
            })
        })
        .await
    }

    async fn keep_bulk(
        &self,
        id: i64,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<BulkState>, StoreError> {
        let runner = runner.to_owned();
        self.write("keeping a bulk", move |conn, now| {
            Box::pin(async move {
                let kept = sqlx::query(KEEP)
                    .bind(id)
                    .bind(runner)
                    .bind(now.plus(lease).micros())
                    .fetch_optional(conn)
                    .await
                    .map_err(StoreError::during(DOING))?;
                kept.map(|row| Fields::new(&row, "aftercommit_bulks", id).word("state", BulkState::of_word))
                    .transpose()
            })
        })
        .await
    }

    async fn bulk_items(&self, id: i64, limit: u32) -> Result<Vec<BulkItemRow>, StoreError> {
        let doing = "reading a bulk's items";
        let rows = sqlx::query(OPEN)
            .bind(id)
            .bind(i64::from(limit))
            .fetch_all(&mut *self.reader(doing).await?)
            .await
            .map_err(StoreError::during(doing))?;
        rows.iter()
            .map(|row| {
                let fields = Fields::new(row, "aftercommit_bulk_items", id);
                Ok(BulkItemRow {
                    n: fields.count("n")?,
                    effect: EffectId::new(fields.int("effect_id")?),
                    seen: Seen {
                        state: fields.word("seen_state", |word| word.parse().ok())?,
                        token: fields.int("seen_token")?,
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
        let words = stored_text(words, REASON_MAX);
        self.write("writing down what became of a bulk's item", move |conn, _| {
            Box::pin(async move {
                let item = sqlx::query(NOT_DONE).bind(id).bind(i64::from(n));
                let written = item.bind(outcome.as_str()).bind(words).execute(conn).await;
                written.map(|_| ()).map_err(StoreError::during(DOING))
            })
        })
        .await
    }

    async fn control_bulk(
        &self,
        id: i64,
        control: Control,
        actor: &Actor,
    ) -> Result<Option<BulkInfo>, StoreError> {
        let actor = actor.clone();
        self.write(DOING, move |conn, now| {
            Box::pin(async move {
                let Some(before) = one(conn, id).await? else { return Ok(None) };
                if control.takes(before.state) {
                    steer(conn, (id, before.state), control, (&actor, now))
                        .await
                        .map_err(StoreError::during(DOING))?;
                }
                one(conn, id).await
            })
        })
        .await
    }

    async fn end_bulk(&self, id: i64) -> Result<(), StoreError> {
        self.write("ending a bulk", move |conn, now| {
            Box::pin(async move {
                let end = sqlx::query(END).bind(id).bind(BulkState::Finished.as_str()).bind(now.micros());
                end.execute(conn).await.map(|_| ()).map_err(StoreError::during(DOING))
            })
        })
        .await
    }

    async fn beside(&self, ids: &[EffectId]) -> Result<Vec<Beside>, StoreError> {
        outlook::beside(&mut *self.people("looking at effects").await?, ids).await.map_err(too_slow)
    }
}

async fn start(
    conn: &mut SqliteConnection,
    bulk: &NewBulk,
    (items, total): (&[(EffectId, Seen)], i32),
    now: Timestamp,
) -> Result<i64, sqlx::Error> {
    let sentence = |text: &str| stored_text(text, REASON_MAX);
    let actor = &bulk.actor;
    let id: i64 = sqlx::query_scalar(
        "INSERT INTO aftercommit_bulks (created_at, total, rate, verb, what, who, reason, from_address) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING id",
    )
    .bind(now.micros())
    .bind(total)
    .bind(i64::from(bulk.rate))
    .bind(sentence(&bulk.verb))
    .bind(sentence(&bulk.what))
    .bind(sentence(&actor.who))
    .bind(actor.reason.as_deref().map(sentence))
    .bind(actor.from.as_deref().map(sentence))
    .fetch_one(&mut *conn)
    .await?;
    let mut n = 0i64;
    for part in items.chunks(ROWS_MAX) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO aftercommit_bulk_items (bulk, n, effect_id, seen_state, seen_token) ",
        );
        insert.push_values(part, |mut row, (effect, seen)| {
            n += 1;
            row.push_bind(id)
                .push_bind(n)
                .push_bind(effect.get())
                .push_bind(seen.state.as_str())
                .push_bind(seen.token);
        });
        insert.build().persistent(false).execute(&mut *conn).await?;
    }
    let told = Actor { reason: Some(in_words(bulk, total)), ..actor.clone() };
    let to_state = Some(BulkState::Running.as_str());
    let deed = Deed { verb: "start bulk", to_state, bulk: Some(id), ..Deed::default() };
    write_down(conn, &told, deed, now).await?;
    Ok(id)
}

async fn steer(
    conn: &mut SqliteConnection,
    (id, before): (i64, BulkState),
    control: Control,
    (actor, now): (&Actor, Timestamp),
) -> Result<(), sqlx::Error> {
    let to = control.leads_to().as_str();
    sqlx::query(if control == Control::Cancel { END } else { CONTROL })
        .bind(id)
        .bind(to)
        .bind(now.micros())
        .execute(&mut *conn)
        .await?;
    let deed = Deed {
        verb: control.as_str(),
        from_state: Some(before.as_str()),
        to_state: Some(to),
        bulk: Some(id),
        ..Deed::default()
    };
    write_down(conn, actor, deed, now).await
}

async fn one(conn: &mut SqliteConnection, id: i64) -> Result<Option<BulkInfo>, StoreError> {
    let row =
        sqlx::query(ONE).bind(id).fetch_optional(&mut *conn).await.map_err(StoreError::during(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let refusals = outlook::refusals(conn, id).await?;
    Ok(Some(BulkInfo { samples: samples(&refusals), refusals, ..info(&row)? }))
}

fn info(row: &SqliteRow) -> Result<BulkInfo, StoreError> {
    let id = row.try_get("id").map_err(StoreError::during(DOING))?;
    let fields = Fields::new(row, "aftercommit_bulks", id);
    let total = fields.count("total")?;
    let open = fields.count("left_over")?;
    let (odd_refused, odd_stale, odd_gone) =
        (fields.count("odd_refused")?, fields.count("odd_stale")?, fields.count("odd_gone")?);
    let written = |column, counted| match fields.opt_int(column)? {
        Some(_) => fields.count(column),
        None => Ok(counted),
    };
    Ok(BulkInfo {
        id,
        verb: fields.text("verb")?,
        what: fields.text("what")?,
        who: fields.text("who")?,
        reason: fields.opt_text("reason")?,
        from: fields.opt_text("from_address")?,
        rate: fields.count("rate")?,
        state: fields.word("state", BulkState::of_word)?,
        total,
        done: written("done", total.saturating_sub(open + odd_refused + odd_stale + odd_gone))?,
        refused: written("refused", odd_refused)?,
        stale: written("stale", odd_stale)?,
        gone: written("gone", odd_gone)?,
        created_at: fields.time("created_at")?,
        finished_at: fields.opt_time("finished_at")?,
        samples: Vec::new(),
        refusals: Vec::new(),
    })
}

/// Marks an item done, in the transaction that acts; `false`: its bulk is not running, or it was dealt with before.
pub(super) async fn mark(
    conn: &mut SqliteConnection,
    item: BulkItem,
    effect: EffectId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(DONE).bind(item.bulk).bind(i64::from(item.n)).bind(effect.get());
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Whether a bulk ended before this.
pub(super) async fn is_old(conn: &mut SqliteConnection, before: Timestamp) -> Result<bool, StoreError> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM aftercommit_bulks WHERE finished_at <= ?1)")
        .bind(before.micros())
        .fetch_one(conn)
        .await
        .map_err(StoreError::during(DOING))
}

/// Old bulks go with the history: items of the one that ended first, and it with its last one. How many rows went.
pub(super) async fn drop(
    conn: &mut SqliteConnection,
    before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    let dropped = async {
        let old: Option<i64> = sqlx::query_scalar(
            "SELECT id FROM aftercommit_bulks WHERE finished_at <= ?1 ORDER BY finished_at LIMIT 1",
        )
        .bind(before.micros())
        .fetch_optional(&mut *conn)
        .await?;
        let Some(old) = old else { return Ok(0) };
        let items = sqlx::query(
            "DELETE FROM aftercommit_bulk_items WHERE bulk = ?1 AND n IN ( \
                 SELECT n FROM aftercommit_bulk_items WHERE bulk = ?1 ORDER BY n LIMIT ?2)",
        )
        .bind(old)
        .bind(i64::from(limit))
        .execute(&mut *conn)
        .await?
        .rows_affected();
        if items >= u64::from(limit) {
            return Ok(items);
        }
        sqlx::query("DELETE FROM aftercommit_bulks WHERE id = ?1").bind(old).execute(conn).await?;
        Ok(items + 1)
    };
    dropped.await.map_err(StoreError::during("dropping old bulks"))
}
