//! Which database this is, and the HOLD.

use std::{sync::atomic::Ordering, time::Duration};

use super::{PgStore, Tx, row, row::sentence, session::durable, statement::sql};
use crate::{
    clock::duration_micros,
    effect::EffectId,
    error::StoreError,
    store::{
        Token,
        identity::{Cluster, Hold, Identify, Identity, Lifted, Mismatch},
    },
    verb::Actor,
};

const DOING: &str = "asking the database which one it is";

/// The highest token without drawing one; null when none was drawn.
const IDENTITY: &str =
    "SELECT (SELECT value FROM aftercommit.meta WHERE key = 'installation') AS installation,
  coalesce(pg_sequence_last_value('aftercommit.tokens'::regclass), 0) AS token,
  coalesce(i.epoch, 0) AS epoch, i.one IS NOT NULL AS accepted, i.system_identifier, i.timeline
FROM (SELECT) AS always LEFT JOIN aftercommit.identity AS i ON i.one";

/// With the database's own number, which a dump that is restored does not keep, nor a copy by TEMPLATE. A plain role may ask
/// this; where a managed service forbids it, it is unknown.
const CLUSTER: &str = "SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
    AS system_identifier,
  ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline FROM pg_control_system()";

/// Served by the primary keys; claims are few.
const HAS_CLAIM: &str = "SELECT EXISTS (SELECT FROM aftercommit.queue WHERE id = $2 AND token = $1)
  OR EXISTS (SELECT FROM aftercommit.claims WHERE token = $1)
  OR EXISTS (SELECT FROM aftercommit.attempts WHERE effect_id = $2 AND token = $1)
  OR EXISTS (SELECT FROM aftercommit.outcomes WHERE effect_id = $2 AND token = $1)";

/// What this login may not ask for does not take the place of what another one knew.
const ACCEPT: &str =
    "INSERT INTO aftercommit.identity AS i (system_identifier, timeline, epoch) VALUES ($1, $2, $3)
ON CONFLICT (one) DO UPDATE
SET system_identifier = coalesce(excluded.system_identifier, i.system_identifier),
    timeline = coalesce(excluded.timeline, i.timeline), accepted_at = clock_timestamp()
WHERE NOT EXISTS (SELECT FROM aftercommit.hold)
  AND (i.system_identifier, i.timeline) IS DISTINCT FROM
      (coalesce(excluded.system_identifier, i.system_identifier), coalesce(excluded.timeline, i.timeline))";

/// Whoever finds more adds it; what was marked before it was found that the database went back is marked again.
const ENTER: &str = concat!(
    "INSERT INTO aftercommit.hold AS h (found_by, reason, went_back, epoch_above)
SELECT $1, $2, $3, $4 FROM (SELECT ",
    durable!(),
    ") AS d
ON CONFLICT (one) DO UPDATE
SET reason = CASE WHEN strpos(h.reason, excluded.reason) > 0 THEN h.reason ELSE left(h.reason || '; ' || excluded.reason, 2000) END,
    marked = h.marked AND h.went_back = (h.went_back OR excluded.went_back),
    went_back = h.went_back OR excluded.went_back, epoch_above = greatest(h.epoch_above, excluded.epoch_above)"
);

const HOLD: &str = "SELECT since, found_by, reason, went_back, marked FROM aftercommit.hold";

/// Effects that one statement makes uncertain.
const MARK_BATCH: i64 = 2_000;

/// The hold's row says how far it came, and keeps two workers from doing it twice. Every effect is looked at again by the
/// sweep once the hold is lifted. Served by the primary key of `queue`.
///
/// A request of the lost history may travel until now plus the longest lease or timeout, so nothing that was seen of the
/// effect counts: under the new token a probe begins anew, and it makes a late answer of whatever is still to be settled under the old one: it can say
/// *applied*, and cannot make the effect certain again. One that was found to be applied meanwhile ends as it would have.
const MARK: &str = "WITH h AS MATERIALIZED (
  SELECT since, marked_to FROM aftercommit.hold WHERE went_back AND NOT marked FOR UPDATE
), few AS MATERIALIZED (
  SELECT q.id FROM aftercommit.queue AS q WHERE q.id > (SELECT marked_to FROM h) ORDER BY q.id LIMIT $1
), moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at, clock_timestamp() + greatest($2::int8, (
    SELECT max(least(t.timeout_us, 3155760000000000) + least(t.margin_us, 3155760000000000))
    FROM aftercommit.operations AS o JOIN aftercommit.terms AS t ON t.id = o.terms)) * interval '1 microsecond' AS quiet_at
), marked AS (
  UPDATE aftercommit.queue AS q
  SET uncertain = true, sent_before = true, resend = false, resend_unconfirmed = false, swept = false,
      first_sent_at = coalesce(q.first_sent_at, greatest(e.created_at, e.due_at)),
      terms = coalesce(q.terms, o.terms), quiet_at = greatest(q.quiet_at, m.quiet_at),
      claimed = q.claimed AND q.applied_late,
      token = CASE WHEN q.claimed AND q.applied_late THEN q.token ELSE nextval('aftercommit.tokens') END,
      lane = CASE WHEN q.claimed AND NOT q.applied_late THEN 't' ELSE q.lane END,
      due_at = CASE WHEN q.claimed AND NOT q.applied_late THEN m.quiet_at
                    WHEN q.lane = 'd' AND q.due_at IS NOT NULL THEN greatest(q.due_at, m.quiet_at) ELSE q.due_at END,
      sweep_at = CASE WHEN q.lane = 'd' THEN q.sweep_at ELSE m.now_at END
  FROM few CROSS JOIN moment AS m JOIN aftercommit.effects AS e ON e.id = few.id
  LEFT JOIN aftercommit.operations AS o ON o.downstream = e.downstream AND o.operation = coalesce(e.operation, '')
  WHERE q.id = few.id AND e.created_at <= (SELECT since FROM h)
), counted AS (
  SELECT count(*) AS n, max(id) AS last FROM few
)
UPDATE aftercommit.hold AS u SET marked_to = coalesce(c.last, h.marked_to), marked = c.n < $1
FROM h CROSS JOIN counted AS c RETURNING u.marked";

const LIFT: &str = "DELETE FROM aftercommit.hold WHERE marked OR NOT went_back
RETURNING since, found_by, reason, went_back, marked, epoch_above";

/// What the database is now is accepted, also where it cannot be told: the next worker that may ask writes it down.
const NEXT_EPOCH: &str = "INSERT INTO aftercommit.identity AS i (system_identifier, timeline, epoch) VALUES ($1, $2, $3 + 1)
ON CONFLICT (one) DO UPDATE
SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, accepted_at = clock_timestamp(),
    epoch = greatest(i.epoch + 1, excluded.epoch)";

const AUDIT: &str = "INSERT INTO aftercommit.audit (at, who, verb, reason, from_address)
VALUES (clock_timestamp(), $1, 'hold lift', $2, $3)";

#[async_trait::async_trait]
impl Identify for PgStore {
    fn reconnects(&self) -> u64 {
        self.pool.reconnects().wrapping_add(self.renewed.load(Ordering::Relaxed))
    }

    async fn identity(&self) -> Result<Identity, StoreError> {
        let row = self.one(sql(IDENTITY)).await.map_err(StoreError::during(DOING))?;
        let cluster = self.cluster().await?;
        let accepted = match row::get(&row, "accepted")? {
            true => Some(Cluster {
                system_identifier: row::get(&row, "system_identifier")?,
                timeline: row::get(&row, "timeline")?,
            }),
            false => None,
        };
        let identity = Identity {
            installation: row::get(&row, "installation")?,
            system_identifier: cluster.system_identifier,
            timeline: cluster.timeline,
            epoch: row::get(&row, "epoch")?,
            token: row::get(&row, "token")?,
            accepted,
        };
        Ok(identity)
    }

    async fn has_claim(&self, token: Token, effect: EffectId) -> Result<bool, StoreError> {
        let statement = sql(HAS_CLAIM).bind(token.get()).bind(effect.get());
        self.scalar(statement).await.map_err(StoreError::during("looking for a claim"))
    }

    async fn accept(&self, found: &Identity) -> Result<(), StoreError> {
        let statement = sql(ACCEPT).bind(&found.system_identifier).bind(found.timeline).bind(found.epoch);
        self.execute(statement).await.map(drop).map_err(StoreError::during("accepting a promotion"))
    }

    async fn enter_hold(&self, found_by: &str, mismatch: &Mismatch) -> Result<(), StoreError> {
        let doing = "entering HOLD";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let enter = sql(ENTER)
            .bind(found_by)
            .bind(sentence(&mismatch.reason))
            .bind(mismatch.went_back)
            .bind(mismatch.epoch_above);
        tx.execute(enter).await.map_err(StoreError::during(doing))?;
        let raise = sql("SELECT aftercommit.raise_tokens($1)").bind(mismatch.token_above);
        tx.all(raise).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))
    }

    async fn hold(&self) -> Result<Option<Hold>, StoreError> {
        let row = self.optional(sql(HOLD)).await.map_err(StoreError::during("looking for a HOLD"))?;
        row.as_ref().map(hold).transpose()
    }

    async fn mark_uncertain(&self, lease: Duration) -> Result<bool, StoreError> {
        // Longer leases would not fit an interval's arithmetic.
        let lease = duration_micros(lease).min(315_360_000_000_000);
        let row = self.optional(sql(MARK).bind(MARK_BATCH).bind(lease)).await;
        let row = row.map_err(StoreError::during("making effects uncertain"))?;
        row.map_or(Ok(false), |row| row::get::<bool>(&row, "marked").map(|marked| !marked))
    }

    async fn lift_hold(&self, actor: &Actor) -> Result<Lifted, StoreError> {
        let doing = "lifting the HOLD";
        let cluster = self.cluster().await?;
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        let Some(row) = tx.optional(sql(LIFT)).await.map_err(StoreError::during(doing))? else {
            let held = tx.optional(sql(HOLD)).await.map_err(StoreError::during(doing))?;
            tx.rollback().await.map_err(StoreError::during(doing))?;
            return Ok(if held.is_some() { Lifted::NotMarked } else { Lifted::NotHeld });
        };
        let lifted = hold(&row)?;
        let epoch: i64 = row::get(&row, "epoch_above")?;
        let accept = sql(NEXT_EPOCH).bind(&cluster.system_identifier).bind(cluster.timeline).bind(epoch);
        tx.execute(accept).await.map_err(StoreError::during(doing))?;
        let audit = sql(AUDIT)
            .bind(sentence(&actor.who))
            .bind(actor.reason.as_deref().map(sentence))
            .bind(actor.from.as_deref().map(sentence));
        tx.execute(audit).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(Lifted::Done(lifted))
    }
}

impl PgStore {
    /// The cluster; unknown where it may not be asked for.
    async fn cluster(&self) -> Result<Cluster, StoreError> {
        let unknown = Cluster { system_identifier: None, timeline: None };
        match self.one(sql(CLUSTER)).await {
            Ok(row) => Ok(Cluster {
                system_identifier: row::get(&row, "system_identifier")?,
                timeline: row::get(&row, "timeline")?,
            }),
            Err(error) => {
                let error = StoreError::Database { doing: DOING, source: error };
                if error.is_outage() {
                    return Err(error);
                }
                tracing::debug!(%error, "the cluster cannot be told: copies and promotions are noticed by tokens only");
                Ok(unknown)
            }
        }
    }
}

fn hold(row: &sqlx::postgres::PgRow) -> Result<Hold, StoreError> {
    Ok(Hold {
        since: row::get(row, "since")?,
        found_by: row::get(row, "found_by")?,
        reason: row::get(row, "reason")?,
        went_back: row::get(row, "went_back")?,
        marked: row::get(row, "marked")?,
    })
}
