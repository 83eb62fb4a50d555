//! What is told of a bulk: before it, what is to be known of its effects besides their rows; after it, what was not done.

use sqlx::{Row as _, SqliteConnection};

use super::row::{Fields, json_ids};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{BULK_REFUSALS_MAX, Beside, BulkRefusal, ItemOutcome},
};

const DOING: &str = "looking at what is to be acted on";

/// Served by primary keys.
const BESIDE: &str = "SELECT e.id, q.expires_at, \
         EXISTS (SELECT 1 FROM aftercommit_attempts AS a WHERE a.effect_id = e.id AND a.outcome = 'unknown') AS was_unknown, \
         sent.request_sha256 IS NOT NULL AND today.request_sha256 IS NOT sent.request_sha256 AS request_changed \
     FROM json_each(?1) AS w CROSS JOIN aftercommit_effects AS e ON e.id = w.value \
     LEFT JOIN aftercommit_queue AS q ON q.id = e.id LEFT JOIN aftercommit_terms AS sent ON sent.id = q.terms \
     LEFT JOIN aftercommit_operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '') \
     LEFT JOIN aftercommit_terms AS today ON today.id = op.terms";

/// Served by the index of odd items.
const REFUSALS: &str = "SELECT i.effect_id, i.outcome, i.words FROM aftercommit_bulk_items AS i \
     WHERE i.bulk = ?1 AND i.outcome IN ('refused', 'stale', 'gone') AND i.words IS NOT NULL ORDER BY i.n LIMIT ?2";

pub(super) async fn beside(conn: &mut SqliteConnection, ids: &[EffectId]) -> Result<Vec<Beside>, StoreError> {
    let rows = sqlx::query(BESIDE)
        .bind(json_ids(ids.iter().map(|id| id.get())))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let id = row.try_get("id").map_err(StoreError::during(DOING))?;
            let fields = Fields::new(row, "aftercommit_queue", id);
            Ok(Beside {
                id: EffectId::new(id),
                was_unknown: fields.flag("was_unknown")?,
                expires_at: fields.opt_time("expires_at")?,
                request_changed: fields.flag("request_changed")?,
            })
        })
        .collect()
}

/// The items of a bulk that were not done, in their order.
pub(super) async fn refusals(conn: &mut SqliteConnection, bulk: i64) -> Result<Vec<BulkRefusal>, StoreError> {
    let rows = sqlx::query(REFUSALS)
        .bind(bulk)
        .bind(i64::from(BULK_REFUSALS_MAX))
        .fetch_all(conn)
        .await
        .map_err(StoreError::during("reading what a bulk did not do"))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(row, "aftercommit_bulk_items", bulk);
            Ok(BulkRefusal {
                effect: EffectId::new(fields.int("effect_id")?),
                outcome: fields.word("outcome", ItemOutcome::of_word)?,
                words: fields.text("words")?,
            })
        })
        .collect()
}
