//! What is told of a bulk: before it, what is to be known of its effects besides their rows; after it, what was not done.

use super::{PgStore, row, statement::sql};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{BULK_REFUSALS_MAX, Beside, BulkRefusal, ItemOutcome},
};

const DOING: &str = "looking at what is to be acted on";

/// Served by primary keys. LATERAL, with OFFSET 0, so that it is planned for one effect, however many there are.
const BESIDE: &str = "SELECT v.* FROM unnest($1::int8[]) AS w (id) CROSS JOIN LATERAL (
  SELECT e.id, q.expires_at,
         EXISTS (SELECT FROM aftercommit.attempts AS a WHERE a.effect_id = e.id AND a.outcome = 'unknown') AS was_unknown,
         sent.request_sha256 IS NOT NULL AND today.request_sha256 IS DISTINCT FROM sent.request_sha256 AS request_changed
  FROM aftercommit.effects AS e
  LEFT JOIN aftercommit.queue AS q ON q.id = e.id
  LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
  LEFT JOIN aftercommit.operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
  LEFT JOIN aftercommit.terms AS today ON today.id = op.terms
  WHERE e.id = w.id OFFSET 0) AS v";

/// Served by bulk_items_odd.
const REFUSALS: &str = "SELECT i.effect_id, i.outcome, i.words FROM aftercommit.bulk_items AS i
WHERE i.bulk = $1 AND i.outcome IN ('refused', 'stale', 'gone') AND i.words IS NOT NULL ORDER BY i.n LIMIT $2";

impl PgStore {
    pub(super) async fn known_beside(&self, ids: &[EffectId]) -> Result<Vec<Beside>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        self.read(sql(BESIDE).bind(ids), DOING)
            .await?
            .iter()
            .map(|row| {
                Ok(Beside {
                    id: EffectId::new(row::get(row, "id")?),
                    was_unknown: row::get(row, "was_unknown")?,
                    expires_at: row::get(row, "expires_at")?,
                    request_changed: row::get(row, "request_changed")?,
                })
            })
            .collect()
    }

    /// The items of a bulk that were not done, in their order.
    pub(super) async fn refusals_of(&self, bulk: i64) -> Result<Vec<BulkRefusal>, StoreError> {
        let statement = sql(REFUSALS).bind(bulk).bind(i64::from(BULK_REFUSALS_MAX));
        self.read(statement, "reading what a bulk did not do")
            .await?
            .iter()
            .map(|row| {
                let word: String = row::get(row, "outcome")?;
                let outcome = ItemOutcome::of_word(&word).ok_or_else(|| StoreError::Corrupt {
                    table: "bulk_items",
                    column: "outcome",
                    row: bulk,
                    problem: format!("{word:?} is none of an item"),
                })?;
                let effect = EffectId::new(row::get(row, "effect_id")?);
                Ok(BulkRefusal { effect, outcome, words: row::get(row, "words")? })
            })
            .collect()
    }
}
