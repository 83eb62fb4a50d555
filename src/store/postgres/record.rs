//! What people did: the audit.

use sqlx::AssertSqlSafe;

use super::{PgStore, row, statement::sql};
use crate::{
    effect::EffectId,
    error::StoreError,
    store::{AuditFilter, Audited, PAGE_MAX},
};

/// Served by audit_effect, audit_downstream, audit_who, or the primary key.
fn audit_sql(filter: &AuditFilter) -> String {
    let parts = [
        (filter.effect.is_some(), " AND a.effect_id = $1"),
        (filter.downstream.is_some(), " AND a.downstream = $2"),
        (filter.who.is_some(), " AND a.who = $3"),
        (filter.before.is_some(), " AND a.id < $4"),
    ];
    let when: String = parts.into_iter().filter(|(given, _)| *given).map(|(_, part)| part).collect();
    format!(
        "WITH given AS (SELECT $1::int8, $2::text, $3::text, $4::int8)
         SELECT a.id, a.at, a.who, a.from_address, a.verb, a.effect_id, a.downstream, a.from_state, a.to_state, a.reason, a.bulk
         FROM aftercommit.audit AS a WHERE true{when} ORDER BY a.id DESC LIMIT $5"
    )
}

impl PgStore {
    pub(super) async fn audit_rows(&self, filter: &AuditFilter) -> Result<Vec<Audited>, StoreError> {
        let statement = sql(AssertSqlSafe(audit_sql(filter)))
            .bind(filter.effect.map(EffectId::get))
            .bind(filter.downstream.as_deref())
            .bind(filter.who.as_deref())
            .bind(filter.before)
            .bind(i64::from(filter.limit.min(PAGE_MAX)));
        self.read(statement, "reading the audit")
            .await?
            .iter()
            .map(|row| {
                Ok(Audited {
                    id: row::get(row, "id")?,
                    at: row::get(row, "at")?,
                    who: row::get(row, "who")?,
                    from: row::get(row, "from_address")?,
                    verb: row::get(row, "verb")?,
                    effect_id: row::get::<Option<i64>>(row, "effect_id")?.map(EffectId::new),
                    downstream: row::get(row, "downstream")?,
                    from_state: row::get(row, "from_state")?,
                    to_state: row::get(row, "to_state")?,
                    reason: row::get(row, "reason")?,
                    bulk: row::get(row, "bulk")?,
                })
            })
            .collect()
    }
}
