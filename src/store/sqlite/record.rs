//! What people did: the audit.

use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::{inspect::DOING, row::Fields};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    outcome::{REASON_MAX, stored_text},
    store::{AuditFilter, Audited, PAGE_MAX},
    verb::Actor,
};

/// Served by the indexes of the audit by effect, downstream and person, or the primary key.
pub(super) async fn audit(
    conn: &mut SqliteConnection,
    filter: &AuditFilter,
) -> Result<Vec<Audited>, StoreError> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT id, at, who, from_address, verb, effect_id, downstream, from_state, to_state, reason, bulk \
         FROM aftercommit_audit WHERE 1",
    );
    if let Some(effect) = filter.effect {
        query.push(" AND effect_id = ").push_bind(effect.get());
    }
    if let Some(downstream) = &filter.downstream {
        query.push(" AND downstream = ").push_bind(downstream.clone());
    }
    if let Some(who) = &filter.who {
        query.push(" AND who = ").push_bind(who.clone());
    }
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before);
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit.min(PAGE_MAX)));
    let rows = query.build().persistent(false).fetch_all(conn).await.map_err(StoreError::during(DOING))?;
    rows.iter()
        .map(|row| {
            let id = row.try_get("id").map_err(StoreError::during(DOING))?;
            let fields = Fields::new(row, "aftercommit_audit", id);
            Ok(Audited {
                id,
                at: fields.time("at")?,
                who: fields.text("who")?,
                from: fields.opt_text("from_address")?,
                verb: fields.text("verb")?,
                effect_id: fields.opt_int("effect_id")?.map(EffectId::new),
                downstream: fields.opt_text("downstream")?,
                from_state: fields.opt_text("from_state")?,
                to_state: fields.opt_text("to_state")?,
                reason: fields.opt_text("reason")?,
                bulk: fields.opt_int("bulk")?,
            })
        })
        .collect()
}

/// What was done; by whom, and why, is the actor's.
#[derive(Default)]
pub(super) struct Deed<'a> {
    pub(super) verb: &'a str,
    pub(super) effect: Option<i64>,
    pub(super) downstream: Option<&'a str>,
    pub(super) from_state: Option<&'a str>,
    pub(super) to_state: Option<&'a str>,
    pub(super) bulk: Option<i64>,
}

/// Writes an audit row, in the transaction of what it tells of.
pub(super) async fn write_down(
    conn: &mut SqliteConnection,
    actor: &Actor,
    deed: Deed<'_>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let sentence = |text: &String| stored_text(text, REASON_MAX);
    sqlx::query(
        "INSERT INTO aftercommit_audit \
             (at, who, from_address, verb, effect_id, downstream, from_state, to_state, reason, bulk) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )
    .bind(now.micros())
    .bind(sentence(&actor.who))
    .bind(actor.from.as_ref().map(sentence))
    .bind(deed.verb.to_owned())
    .bind(deed.effect)
    .bind(deed.downstream.map(str::to_owned))
    .bind(deed.from_state.map(str::to_owned))
    .bind(deed.to_state.map(str::to_owned))
    .bind(actor.reason.as_ref().map(sentence))
    .bind(deed.bulk)
    .execute(conn)
    .await
    .map(drop)
}
