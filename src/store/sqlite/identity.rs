//! Which database this is, and the HOLD. A file has no cluster: the installation and the tokens tell whether it went back.

use std::time::Duration;

use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    record::{Deed, write_down},
    row::{Fields, next_token},
};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::{
        Token,
        identity::{Cluster, Hold, Identify, Identity, Lifted, Mismatch},
    },
    verb::Actor,
};

const MARKING: &str = "making effects uncertain";
const DOING: &str = "asking the database which one it is";

const IDENTITY: &str = "SELECT (SELECT value FROM aftercommit_meta WHERE key = 'installation') AS installation, \
     (SELECT last FROM aftercommit_token) AS token, \
     coalesce((SELECT epoch FROM aftercommit_identity), 0) AS epoch, \
     EXISTS (SELECT 1 FROM aftercommit_identity) AS accepted";

const HAS_CLAIM: &str = "SELECT EXISTS (SELECT 1 FROM aftercommit_queue WHERE id = ?2 AND token = ?1) \
     OR EXISTS (SELECT 1 FROM aftercommit_claims WHERE token = ?1) \
     OR EXISTS (SELECT 1 FROM aftercommit_attempts WHERE effect_id = ?2 AND token = ?1) \
     OR EXISTS (SELECT 1 FROM aftercommit_outcomes WHERE effect_id = ?2 AND token = ?1)";

/// Whoever finds more adds it; what was marked before it was found that the file went back is marked again.
const ENTER: &str = "INSERT INTO aftercommit_hold (one, since, found_by, reason, went_back, epoch_above) \
     VALUES (1, ?1, ?2, ?3, ?4, ?5) \
     ON CONFLICT (one) DO UPDATE \
     SET reason = CASE WHEN instr(reason, excluded.reason) > 0 THEN reason \
                       ELSE substr(reason || '; ' || excluded.reason, 1, 2000) END, \
         marked = CASE WHEN went_back >= excluded.went_back THEN marked ELSE 0 END, \
         went_back = max(went_back, excluded.went_back), epoch_above = max(epoch_above, excluded.epoch_above)";

const HOLD: &str =
    "SELECT since, found_by, reason, went_back, marked, marked_to, epoch_above FROM aftercommit_hold";

/// Effects that one statement makes uncertain.
const MARK_BATCH: i64 = 2_000;

/// The end of the next batch. Served by the primary key.
const BATCH: &str = "SELECT count(*) AS n, max(id) AS last FROM ( \
     SELECT id FROM aftercommit_queue WHERE id > ?1 ORDER BY id LIMIT ?2)";

/// Every effect is looked at again by the sweep once the hold is lifted.
///
/// A request of the lost history may travel until `?5`, so nothing that was seen of the effect counts: under the new
/// token a probe begins anew, and it makes a late answer of whatever is still to be settled under the old one: that can say
/// *applied*, and cannot make the effect certain again. One that was found to be applied meanwhile ends as it would have.
const MARK: &str = "UPDATE aftercommit_queue \
     SET uncertain = 1, sent_before = 1, resend = 0, resend_unconfirmed = 0, \
         first_sent_at = coalesce(first_sent_at, max(e.created_at, coalesce(e.due_at, e.created_at))), \
         terms = coalesce(aftercommit_queue.terms, o.terms), quiet_at = max(coalesce(quiet_at, ?5), ?5), \
         claimed = claimed = 1 AND applied_late = 1, \
         token = CASE WHEN claimed = 1 AND applied_late = 1 THEN token ELSE ?6 END, \
         lane = CASE WHEN claimed = 1 AND applied_late = 0 THEN 't' ELSE lane END, \
         due_at = CASE WHEN claimed = 1 AND applied_late = 0 THEN ?5 \
                       WHEN lane = 'd' AND aftercommit_queue.due_at IS NOT NULL THEN max(aftercommit_queue.due_at, ?5) \
                       ELSE aftercommit_queue.due_at END, \
         sweep_at = CASE WHEN lane = 'd' THEN sweep_at ELSE ?4 END \
     FROM aftercommit_effects AS e \
     LEFT JOIN aftercommit_operations AS o ON o.downstream = e.downstream AND o.operation = coalesce(e.operation, '') \
     WHERE e.id = aftercommit_queue.id AND aftercommit_queue.id > ?1 AND aftercommit_queue.id <= ?2 \
       AND e.created_at <= ?3";

/// The longest that a request of today's may travel.
const LONGEST: &str = "SELECT coalesce(max(min(t.timeout_us, 3155760000000000) + min(t.margin_us, 3155760000000000)), 0) \
     FROM aftercommit_operations AS o JOIN aftercommit_terms AS t ON t.id = o.terms";

const NEXT_EPOCH: &str = "INSERT INTO aftercommit_identity (one, epoch, accepted_at) VALUES (1, ?1 + 1, ?2) \
     ON CONFLICT (one) DO UPDATE SET epoch = max(epoch + 1, excluded.epoch), accepted_at = excluded.accepted_at";

#[async_trait::async_trait]
impl Identify for SqliteStore {
    /// A file that is replaced while it is open is not noticed here, but by its tokens.
    fn reconnects(&self) -> u64 {
        0
    }

    async fn identity(&self) -> Result<Identity, StoreError> {
        let mut reader = self.reader(DOING).await?;
        let row = sqlx::query(IDENTITY).fetch_one(&mut *reader).await.map_err(StoreError::during(DOING))?;
        let fields = Fields::new(&row, "aftercommit_meta", 0);
        Ok(Identity {
            installation: fields.text("installation")?,
            system_identifier: None,
            timeline: None,
            epoch: fields.int("epoch")?,
            token: fields.int("token")?,
            accepted: fields.flag("accepted")?.then_some(Cluster { system_identifier: None, timeline: None }),
        })
    }

    async fn has_claim(&self, token: Token, effect: EffectId) -> Result<bool, StoreError> {
        let doing = "looking for a claim";
        let mut reader = self.reader(doing).await?;
        sqlx::query_scalar(HAS_CLAIM)
            .bind(token.get())
            .bind(effect.get())
            .fetch_one(&mut *reader)
            .await
            .map_err(StoreError::during(doing))
    }

    async fn accept(&self, _found: &Identity) -> Result<(), StoreError> {
        // A file has no cluster to write down.
        Ok(())
    }

    async fn enter_hold(&self, found_by: &str, mismatch: &Mismatch) -> Result<(), StoreError> {
        let (found_by, mismatch) = (found_by.to_owned(), mismatch.clone());
        self.write("entering HOLD", move |conn, now| {
            Box::pin(async move {
                enter(conn, found_by, &mismatch, now).await.map_err(StoreError::during("entering HOLD"))
            })
        })
        .await
    }

    async fn hold(&self) -> Result<Option<Hold>, StoreError> {
        let mut reader = self.reader("looking for a HOLD").await?;
        let row = held(&mut reader).await?;
        row.as_ref().map(hold).transpose()
    }

    async fn mark_uncertain(&self, lease: Duration) -> Result<bool, StoreError> {
        self.write(MARKING, move |conn, now| Box::pin(async move { mark(conn, lease, now).await })).await
    }

    async fn lift_hold(&self, actor: &Actor) -> Result<Lifted, StoreError> {
        let actor = actor.clone();
        let lifted = self
            .write("lifting the HOLD", move |conn, now| {
                Box::pin(async move { lift(conn, &actor, now).await })
            })
            .await;
        self.shared.acted.notify_one();
        lifted
    }
}

async fn enter(
    conn: &mut SqliteConnection,
    found_by: String,
    mismatch: &Mismatch,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query(ENTER)
        .bind(now.micros())
        .bind(found_by)
        .bind(stored_text(&mismatch.reason, REASON_MAX))
        .bind(mismatch.went_back)
        .bind(mismatch.epoch_above)
        .execute(&mut *conn)
        .await?;
    sqlx::query("UPDATE aftercommit_token SET last = max(last, ?1)")
        .bind(mismatch.token_above)
        .execute(conn)
        .await
        .map(drop)
}

async fn held(conn: &mut SqliteConnection) -> Result<Option<SqliteRow>, StoreError> {
    sqlx::query(HOLD).fetch_optional(conn).await.map_err(StoreError::during("looking for a HOLD"))
}

fn hold(row: &SqliteRow) -> Result<Hold, StoreError> {
    let fields = Fields::new(row, "aftercommit_hold", 1);
    Ok(Hold {
        since: fields.time("since")?,
        found_by: fields.text("found_by")?,
        reason: fields.text("reason")?,
        went_back: fields.flag("went_back")?,
        marked: fields.flag("marked")?,
    })
}

async fn mark(conn: &mut SqliteConnection, lease: Duration, now: Timestamp) -> Result<bool, StoreError> {
    let Some(row) = held(conn).await? else { return Ok(false) };
    let standing = hold(&row)?;
    if !standing.went_back || standing.marked {
        return Ok(false);
    }
    let from = Fields::new(&row, "aftercommit_hold", 1).int("marked_to")?;
    let token = next_token(conn).await?;
    let longest: i64 =
        sqlx::query_scalar(LONGEST).fetch_one(&mut *conn).await.map_err(StoreError::during(MARKING))?;
    let longest = Duration::from_micros(u64::try_from(longest).unwrap_or(0));
    let mark = Mark { since: standing.since, now, quiet_at: now.plus(lease.max(longest)), token };
    mark_batch(conn, from, &mark).await.map_err(StoreError::during(MARKING))
}

/// What a batch is marked with.
struct Mark {
    since: Timestamp,
    now: Timestamp,
    quiet_at: Timestamp,
    token: Token,
}

async fn mark_batch(conn: &mut SqliteConnection, from: i64, mark: &Mark) -> Result<bool, sqlx::Error> {
    let batch = sqlx::query(BATCH).bind(from).bind(MARK_BATCH).fetch_one(&mut *conn).await?;
    let (n, last): (i64, Option<i64>) = (batch.try_get("n")?, batch.try_get("last")?);
    let last = last.unwrap_or(from);
    sqlx::query(MARK)
        .bind(from)
        .bind(last)
        .bind(mark.since.micros())
        .bind(mark.now.micros())
        .bind(mark.quiet_at.micros())
        .bind(mark.token.get())
        .execute(&mut *conn)
        .await?;
    let more = n == MARK_BATCH;
    sqlx::query("UPDATE aftercommit_hold SET marked_to = ?1, marked = ?2")
        .bind(last)
        .bind(!more)
        .execute(conn)
        .await?;
    Ok(more)
}

async fn lift(conn: &mut SqliteConnection, actor: &Actor, now: Timestamp) -> Result<Lifted, StoreError> {
    let Some(row) = held(conn).await? else { return Ok(Lifted::NotHeld) };
    let standing = hold(&row)?;
    if standing.went_back && !standing.marked {
        return Ok(Lifted::NotMarked);
    }
    let epoch_above = Fields::new(&row, "aftercommit_hold", 1).int("epoch_above")?;
    forget(conn, actor, epoch_above, now).await.map_err(StoreError::during("lifting the HOLD"))?;
    Ok(Lifted::Done(standing))
}

async fn forget(
    conn: &mut SqliteConnection,
    actor: &Actor,
    epoch_above: i64,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM aftercommit_hold").execute(&mut *conn).await?;
    sqlx::query(NEXT_EPOCH).bind(epoch_above).bind(now.micros()).execute(&mut *conn).await?;
    write_down(conn, actor, Deed { verb: "hold lift", ..Deed::default() }, now).await
}
