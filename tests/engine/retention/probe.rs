//! Late enqueues: keys whose effects are watched through their stages, each asked as an application would ask.

use std::{sync::Arc, time::Duration};

use aftercommit::{EffectId, Enqueued, IdempotencyKey, NewEffect, error::EnqueueError};
use tokio_util::sync::CancellationToken;

use super::{Shared, load::Plan};
use crate::support::{Engine, Sql, eventually};

/// How often each answer was given.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(super) struct Probes {
    /// Keys that were watched to the end.
    pub(super) keys: u64,
    /// Identical, after the payload had gone: the existing effect.
    pub(super) existing_without_payload: u64,
    /// Different, then: refused.
    pub(super) refused_without_payload: u64,
    /// A plain INSERT, then: a unique violation.
    pub(super) unique_violation: u64,
    /// Identical, after the history had gone.
    pub(super) existing_without_history: u64,
    /// Different, then.
    pub(super) refused_without_history: u64,
    /// After the key had gone: a new effect.
    pub(super) new_without_key: u64,
}

impl Probes {
    pub(super) fn check(&self) {
        assert!(self.keys >= 2, "few keys were watched to the end: {self:?}");
        for n in [
            self.existing_without_payload,
            self.refused_without_payload,
            self.unique_violation,
            self.existing_without_history,
            self.refused_without_history,
            self.new_without_key,
        ] {
            assert!(n >= self.keys, "a stage was not met: {self:?}");
        }
    }
}

/// Watches one key after the other until told to stop.
pub(super) async fn run(sql: Arc<Sql>, plan: Plan, (stop, probes): (CancellationToken, Shared<Probes>)) {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let (mut seen, key) = (Probes::default(), format!("late-{number}"));
        tokio::select! {
            () = watch(&sql, plan, &key, &mut seen) => {}
            () = stop.cancelled() => return,
        }
        let mut all = probes.lock().unwrap();
        all.keys += 1;
        all.existing_without_payload += seen.existing_without_payload;
        all.refused_without_payload += seen.refused_without_payload;
        all.unique_violation += seen.unique_violation;
        all.existing_without_history += seen.existing_without_history;
        all.refused_without_history += seen.refused_without_history;
        all.new_without_key += seen.new_without_key;
    }
}

fn request(key: &str, amount: u32) -> NewEffect {
    let key = IdempotencyKey::parse(key).expect("a key");
    NewEffect::to("pay").key(key).json(&serde_json::json!({ "amount": amount })).expect("JSON")
}

async fn watch(sql: &Sql, plan: Plan, key: &str, seen: &mut Probes) {
    let written = sql.enqueue(request(key, 1)).await.expect("it is written");
    let id = written.receipt().id;
    let patience = plan.retention.keys * 4 + Duration::from_secs(60);
    let stage = async |kept: &str| {
        let sql_text =
            format!("SELECT count(*) FROM aftercommit.outcomes WHERE effect_id = {id} AND kept {kept}");
        let there = async || (sql.number(&sql_text).await == 1).then_some(());
        eventually(patience, &format!("effect {id} reaches the stage kept {kept}"), there).await;
    };
    stage("< 3").await;
    existing(sql, key, id).await;
    seen.existing_without_payload += 1;
    refused(sql, key, id).await;
    seen.refused_without_payload += 1;
    plain(sql, key).await;
    seen.unique_violation += 1;
    stage("= 0").await;
    existing(sql, key, id).await;
    seen.existing_without_history += 1;
    refused(sql, key, id).await;
    seen.refused_without_history += 1;
    let gone = async || {
        let left = format!("SELECT count(*) FROM aftercommit.effects WHERE id = {id}");
        (sql.number(&left).await == 0).then_some(())
    };
    eventually(patience, &format!("the key of effect {id} goes"), gone).await;
    let again = sql.enqueue(request(key, 2)).await.expect("the key is free");
    assert!(matches!(&again, Enqueued::Inserted(receipt) if receipt.id != id), "{key}: {again:?}");
    seen.new_without_key += 1;
}

async fn existing(sql: &Sql, key: &str, id: EffectId) {
    let found = sql.enqueue(request(key, 1)).await;
    assert!(
        matches!(&found, Ok(Enqueued::Ended(receipt)) if receipt.id == id),
        "{key}, identical: {found:?}"
    );
}

async fn refused(sql: &Sql, key: &str, id: EffectId) {
    let found = sql.enqueue(request(key, 2)).await;
    let by = |holds: i64| holds == id.get();
    assert!(
        matches!(&found, Err(EnqueueError::OtherRequest { id, .. }) if by(*id)),
        "{key}, different: {found:?}"
    );
    if sql.engine() == Engine::Postgres {
        let error = sql
            .refused(&format!("SELECT * FROM aftercommit.enqueue('pay', '{{\"amount\":2}}', '{key}')"))
            .await;
        let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        assert_eq!(code.as_deref(), Some("AC422"), "{key}: {error}");
    }
}

async fn plain(sql: &Sql, key: &str) {
    let insert =
        format!("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', '{key}')");
    let error = sql.refused(&insert).await;
    let unique = error.as_database_error().is_some_and(|error| {
        error.code().as_deref() == Some("23505") || error.message().contains("UNIQUE constraint")
    });
    assert!(unique, "{key}, a plain INSERT: {error}");
}
