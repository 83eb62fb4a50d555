//! The audit: who changes anything through the API leaves a row of it in the transaction that changes it. Where that row cannot be
//! written, nothing is changed. The routes come from the router's own table: a new one needs a line here.

use std::collections::BTreeSet;

use aftercommit::EffectId;
use serde_json::{Value, json};

use super::{
    super::{
        Answer, Site,
        api::{body, failed, get, in_doubt, post, worker},
    },
    quiet, seen, site, with,
};
use crate::support::{Engine, Row, TestDatabase, on_every_database};

on_every_database! {
    whoever_changes_something_is_in_the_audit_or_nothing_is_changed,
}

/// What can be done, in an order in which it can.
const DEEDS: [&str; 16] = [
    "effects",
    "effects/{id}/retry",
    "effects/{id}/resend",
    "effects/{id}/cancel",
    "effects/{id}/resolve",
    "effects/{id}/reissue",
    "effects/{id}/redact",
    "bulk",
    "bulk/{id}/pause",
    "bulk/{id}/resume",
    "bulk/{id}/cancel",
    "downstreams/{name}/pause",
    "downstreams/{name}/resume",
    "downstreams/{name}/endpoints/{endpoint}/disable",
    "downstreams/{name}/endpoints/{endpoint}/enable",
    // Never done: ordering keys are not built yet.
    "effects/{id}/skip",
];

/// An effect for each verb, and some for bulks.
struct Ids {
    failed: [EffectId; 3],
    doubt: [EffectId; 2],
    due: EffectId,
    many: Vec<i64>,
}

async fn written(db: &TestDatabase) -> Ids {
    let worker = worker(db).await;
    let mut ids = Ids {
        failed: [EffectId::new(0); 3],
        doubt: [EffectId::new(0); 2],
        due: EffectId::new(0),
        many: Vec::new(),
    };
    for (n, id) in ids.failed.iter_mut().enumerate() {
        *id = failed(db, &worker, "pay", &format!("f{n}")).await;
    }
    for (n, id) in ids.doubt.iter_mut().enumerate() {
        *id = in_doubt(db, &worker, "pay", &format!("d{n}")).await;
        quiet(db, *id).await;
    }
    for n in 0..6 {
        ids.many.push(failed(db, &worker, "mail", &format!("m{n}")).await.get());
    }
    ids.due = db.insert("pay", "due").await;
    db.sql
        .execute(
            "INSERT INTO aftercommit.endpoints (downstream, name, url, secrets)
             VALUES ('pay', 'acme', 'https://acme.test/hook', 'env:HOOK_ACME')",
        )
        .await;
    ids
}

/// Does one deed.
async fn done(db: &TestDatabase, site: &Site, ids: &Ids, deed: &str) -> Answer {
    let because = json!({ "reason": "the order was withdrawn" });
    let to = async |id: EffectId, more: Value| {
        let wish = with(with(seen(db, id).await, &because), &more);
        post(site, &deed.replace("{id}", &id.to_string()), &wish).await
    };
    match deed {
        "effects" => {
            post(site, deed, &json!({ "downstream": "pay", "idempotency_key": "new", "payload": 1 })).await
        }
        "effects/{id}/retry" | "effects/{id}/skip" => to(ids.failed[0], json!({})).await,
        "effects/{id}/resend" => {
            to(ids.doubt[0], json!({ "confirmation": format!("resend {}", ids.doubt[0]) })).await
        }
        "effects/{id}/cancel" => to(ids.due, json!({})).await,
        "effects/{id}/resolve" => to(ids.doubt[1], json!({ "as": "applied" })).await,
        "effects/{id}/reissue" => {
            to(ids.failed[1], json!({ "confirmation": format!("reissue {}", ids.failed[1]) })).await
        }
        "effects/{id}/redact" => to(ids.failed[2], json!({})).await,
        "bulk" => {
            let wish = json!({ "verb": "retry", "filter": { "ids": ids.many }, "rate": 1 });
            post(site, deed, &with(wish, &because)).await
        }
        "downstreams/{name}/resume" => {
            let all = get(site, "downstreams").await;
            let all = all["downstreams"].as_array().expect("a list").clone();
            let pay = all.into_iter().find(|info| info["name"] == "pay").expect("it is there");
            let at = Some(pay["paused_at"].clone()).filter(|at| !at.is_null());
            let at = at.unwrap_or_else(|| "2026-01-01T00:00:00Z".into());
            post(site, "downstreams/pay/resume", &with(json!({ "paused_at": at }), &because)).await
        }
        deed if deed.starts_with("bulk/") => {
            let bulk = db.sql.number("SELECT coalesce(max(id), 1) FROM aftercommit.bulks").await;
            post(site, &deed.replace("{id}", &bulk.to_string()), &json!({})).await
        }
        deed if deed.starts_with("downstreams/") => {
            post(site, &deed.replace("{name}", "pay").replace("{endpoint}", "acme"), &because).await
        }
        deed => panic!("how is {deed} done?"),
    }
}

/// All that a deed may change.
async fn everything(db: &TestDatabase) -> Vec<Vec<Row>> {
    let mut all = Vec::new();
    for rows in [
        "SELECT id, state, superseded_by FROM aftercommit.status ORDER BY id",
        "SELECT id, token, cancel_requested FROM aftercommit.queue ORDER BY id",
        "SELECT id, fingerprint IS NULL AS whole FROM aftercommit.effects ORDER BY id",
        "SELECT name, paused_by, pause_reason FROM aftercommit.downstreams ORDER BY name",
        "SELECT downstream, name, disabled_at FROM aftercommit.endpoints ORDER BY 1, 2",
        "SELECT id, state FROM aftercommit.bulks ORDER BY id",
        "SELECT count(*) AS n FROM aftercommit.audit",
    ] {
        all.push(db.sql.rows(rows).await);
    }
    all
}

/// From now on the audit takes no row; the statement that ends it.
async fn full(db: &TestDatabase) -> &'static str {
    match db.engine {
        Engine::Postgres => {
            db.sql
                .execute(
                    "CREATE FUNCTION public.full_audit() RETURNS trigger LANGUAGE plpgsql AS
                       $$ BEGIN RAISE 'the audit takes no more rows'; END $$;
                     CREATE TRIGGER full_audit BEFORE INSERT ON aftercommit.audit
                       FOR EACH ROW EXECUTE FUNCTION public.full_audit()",
                )
                .await;
            "DROP TRIGGER full_audit ON aftercommit.audit"
        }
        Engine::Sqlite => {
            let refuse = "SELECT RAISE(ABORT, 'the audit takes no more rows');";
            db.sql
                .execute(&format!(
                    "CREATE TRIGGER full_audit BEFORE INSERT ON aftercommit.audit BEGIN {refuse} END"
                ))
                .await;
            "DROP TRIGGER full_audit"
        }
    }
}

async fn whoever_changes_something_is_in_the_audit_or_nothing_is_changed(db: &TestDatabase) {
    let ids = written(db).await;
    let site = site(db).await;
    let table = site.dashboard.table().iter();
    let routes =
        table.filter(|route| route.method == "POST").filter_map(|route| route.path.strip_prefix("/api/v1/"));
    assert_eq!(routes.collect::<BTreeSet<_>>(), BTreeSet::from(DEEDS), "left: the router; right: this file");

    let end = full(db).await;
    let before = everything(db).await;
    for deed in DEEDS {
        let answer = done(db, &site, &ids, deed).await;
        assert!(answer.status >= 400, "{deed}: {answer:?}");
        assert_eq!(everything(db).await, before, "{deed} left something behind: {answer:?}");
    }
    // That each of them could have been done is shown now.
    db.sql.execute(end).await;
    for deed in DEEDS.iter().filter(|deed| !deed.ends_with("/skip")) {
        let rows = db.sql.number("SELECT count(*) FROM aftercommit.audit").await;
        let answer = done(db, &site, &ids, deed).await;
        assert!((200..=202).contains(&answer.status), "{deed}: {answer:?}");
        let more = db.sql.number("SELECT count(*) FROM aftercommit.audit").await - rows;
        assert!(more > 0, "{deed} is not in the audit");
        let newest = &db.audit(None, 1).await[0];
        assert_eq!(
            (newest.who.as_str(), newest.from.as_deref()),
            ("operator", Some("127.0.0.1")),
            "{deed}: {newest:?}"
        );
        if let Some(verb) = deed.strip_prefix("effects/{id}/") {
            assert!(newest.verb.starts_with(verb) && newest.effect_id.is_some(), "{deed}: {newest:?}");
            assert_eq!(newest.reason.as_deref(), Some("the order was withdrawn"), "{deed}: {newest:?}");
            assert!(newest.from_state.is_some() && newest.to_state.is_some(), "{deed}: {newest:?}");
        }
    }
    let skip = done(db, &site, &ids, "effects/{id}/skip").await;
    assert_eq!((skip.status, skip.problem().as_str()), (409, "state-forbids"), "{:?}", body(&skip));
}
