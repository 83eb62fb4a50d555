//! RETAIN-03: what is cancelled, redacted and dropped keeps its key as long as it is promised and no longer, and nothing else of it stays.

use std::time::Duration;

use aftercommit::{EffectId, state::State, store::Step};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};

use super::{
    super::{
        Answer, Site,
        api::{assert_problem, body, by, failed, get, post, worker},
    },
    SOON, seen, site, with, words,
};
use crate::support::{TestDatabase, eventually, on_every_database};

on_every_database! {
    a_key_is_answered_for_until_it_is_dropped_and_is_free_then,
}

/// Runs a step to its end, as if everything that has ended were old enough.
async fn drop_all(db: &TestDatabase, step: Option<Step>) {
    let Some(step) = step else { return };
    while db.store.drop_batch(step, Duration::ZERO, 100).await.expect("the step runs").more {}
}

async fn enqueue(site: &Site, key: &str, amount: i64) -> Answer {
    let wish = json!({ "downstream": "pay", "idempotency_key": key, "payload": { "amount": amount } });
    post(site, "effects", &wish).await
}

/// The same request under the key is the same effect, in this state; another request is refused.
async fn is_answered_for(site: &Site, key: &str, (id, state): (EffectId, &str), stage: &str) {
    let again = enqueue(site, key, 1500).await;
    assert_eq!(again.status, 200, "{stage}: {key}: {again:?}");
    let effect = body(&again)["effects"][0].clone();
    let found = (&effect["id"], &effect["inserted"], &effect["state"]);
    assert_eq!(found, (&id.get().into(), &false.into(), &state.into()), "{stage}: {key}: {effect}");
    assert_problem(&enqueue(site, key, 1501).await, 409, "key-taken");
}

async fn act(db: &TestDatabase, site: &Site, id: EffectId, verb: &str) -> Answer {
    let wish = with(seen(db, id).await, &json!({ "reason": "the order was withdrawn" }));
    post(site, &format!("effects/{id}/{verb}"), &wish).await
}

async fn a_key_is_answered_for_until_it_is_dropped_and_is_free_then(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let written = async |key: &str| {
        let answer = enqueue(&site, key, 1500).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        EffectId::new(body(&answer)["effects"][0]["id"].as_i64().expect("a number"))
    };
    let running = written("running").await;
    assert_eq!(worker.claim_one("pay").await.effect.id, running);
    let pending = written("pending").await;
    let dead = refused(db, &worker, written("dead").await).await;
    let unlike = failed(db, &worker, "pay", "another").await;
    assert_eq!(act(db, &site, pending, "cancel").await.status, 200);
    assert_eq!(act(db, &site, dead, "redact").await.status, 200);
    // What runs is neither called off nor dropped: that is a request, and refused.
    assert_eq!(act(db, &site, running, "cancel").await.status, 200);
    assert_problem(&act(db, &site, running, "redact").await, 409, "state-forbids");
    let all =
        [("running", running, "in_flight"), ("pending", pending, "cancelled"), ("dead", dead, "failed")];
    for (stage, step) in [
        ("at once", None),
        ("without payloads", Some(Step::Payloads)),
        ("without history", Some(Step::History)),
    ] {
        drop_all(db, step).await;
        for (key, id, state) in all {
            is_answered_for(&site, key, (id, state), stage).await;
        }
    }
    let redacted = words(&site, &format!("effects/{dead}")).await;
    assert!(redacted.contains("Dropped: retention, or a person, removed it."), "{redacted}");
    drop_all(db, Some(Step::Keys)).await;
    is_answered_for(&site, "running", (running, "in_flight"), "without keys").await;
    for (key, id) in [("pending", pending), ("dead", dead)] {
        let gone = by(&site, Role::Viewer, "GET", &format!("effects/{id}")).send().await;
        assert_problem(&gone, 404, "not-found");
        let new = written(key).await;
        assert!(new > unlike, "{key}: a new effect, as documented");
        assert_eq!(db.state(new).await, State::Ready, "{key}: nothing of the old one holds it up");
    }
    assert_eq!(worker.claim("pay", 10).await.len(), 2, "both are carried out");
    nothing_else_is_left(db, &site).await;
}

/// A failed effect that was written through the API.
async fn refused(db: &TestDatabase, worker: &crate::support::Worker, id: EffectId) -> EffectId {
    for claim in worker.claim("pay", 10).await {
        let settling = crate::support::Settling::of(&claim);
        let settlement =
            if claim.effect.id == id { settling.fail("card declined") } else { settling.give_back() };
        worker.settle(settlement).await;
    }
    assert_eq!(db.state(id).await, State::Failed);
    id
}

/// No row tells of what is gone, and the counts say the same.
async fn nothing_else_is_left(db: &TestDatabase, site: &Site) {
    for table in ["attempts", "outcomes", "audit", "queue"] {
        let id = if table == "queue" { "id" } else { "effect_id" };
        let orphans = format!(
            "SELECT count(*) FROM aftercommit.{table} AS t WHERE t.{id} IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM aftercommit.effects AS e WHERE e.id = t.{id})"
        );
        assert_eq!(db.sql.number(&orphans).await, 0, "{table}");
    }
    db.store.maintain().await.expect("the counters fold");
    eventually(SOON, "the counts hold what is there and no more", async || {
        let counts = get(site, "counts").await;
        let counts = counts["counts"].as_array().expect("a list").clone();
        let shown: Vec<(&Value, &Value)> =
            counts.iter().map(|one| (&one["state"], &one["effects"])).collect();
        (shown == [(&json!("in_flight"), &json!(3))]).then_some(())
    })
    .await;
}
