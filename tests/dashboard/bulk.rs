//! Bulks: what matches is listed once, every effect of the list is acted on once, whoever is killed meanwhile.

use std::time::Duration;

use aftercommit::{
    EffectId,
    state::State,
    store::NewBulk,
    verb::{Actor, Seen},
};
use aftercommit_dashboard::{BulkLimits, Settings, dashboard};
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, task::JoinSet};

use super::{
    Ask, Site,
    api::{assert_problem, body, get, post, site, worker},
    everybody, settings,
};
use crate::{
    e2e::processes::{Process, aftercommit},
    support::{Settling, TestDatabase, eventually, on_every_database},
};

on_every_database! {
    a_dry_run_tells_what_would_be_done_and_does_nothing,
    what_matches_is_done_and_what_changed_since_is_left_alone,
    it_stands_still_when_told_to_and_goes_on_and_is_called_off,
    what_may_be_applied_twice_wants_the_number_typed,
    only_the_oldest_are_listed_where_there_is_a_limit,
    two_thousand_are_done_once_though_a_dashboard_is_killed,
    an_application_that_has_the_dashboard_inside_carries_bulks_out,
    a_read_only_dashboard_carries_out_nothing,
}

const SOON: Duration = Duration::from_secs(60);

/// `n` failed effects at `pay`.
pub(super) async fn failed(db: &TestDatabase, n: usize) -> Vec<EffectId> {
    failed_with(db, "f", n).await
}

/// The same, with keys that begin so.
async fn failed_with(db: &TestDatabase, key: &str, n: usize) -> Vec<EffectId> {
    let worker = worker(db).await;
    let ids = db.insert_many("pay", key, n).await;
    loop {
        let claims = worker.claim("pay", 500).await;
        if claims.is_empty() {
            return ids;
        }
        let settlements: Vec<_> =
            claims.iter().map(|claim| Settling::of(claim).fail("card declined")).collect();
        db.store.settle(&settlements, &[]).await.expect("settling works");
    }
}

async fn count(db: &TestDatabase, state: State) -> u64 {
    let counts = db.store.counts().await.expect("counting works");
    counts.iter().filter(|count| count.state == state).map(|count| count.effects).sum()
}

/// The bulk, once `is` says so.
async fn bulk_that(site: &Site, id: &Value, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(SOON, what, async || {
        let bulk = get(site, &format!("bulk/{id}")).await;
        is(&bulk).then_some(bulk)
    })
    .await
}

async fn ended(site: &Site, id: &Value) -> Value {
    bulk_that(site, id, "the bulk ends", |bulk| !bulk["finished_at"].is_null()).await
}

async fn a_dry_run_tells_what_would_be_done_and_does_nothing(db: &TestDatabase) {
    failed(db, 3).await;
    let site = site(db).await;
    let wish =
        json!({ "verb": "retry", "filter": { "states": ["failed"], "error": "DECLINED" }, "dry_run": true });
    let told = post(&site, "bulk", &wish).await;
    assert_eq!(told.status, 200, "{told:?}");
    let told = body(&told);
    assert_eq!(
        (&told["effects"], &told["by_downstream"], &told["dry_run"]),
        (&3.into(), &json!({ "pay": 3 }), &true.into())
    );
    assert!(
        told["consequence"].as_str().expect("words").starts_with("3 effects will be attempted again"),
        "{told}"
    );
    assert_eq!(get(&site, "bulk").await["bulks"], json!([]), "nothing was started");
    for (wrong, status, kind) in [
        (json!({ "verb": "retry", "filter": { "states": ["in_doubt"] } }), 422, "request-unusable"),
        (json!({ "verb": "retry", "filter": { "downstream": "mail" } }), 404, "not-found"),
        (json!({ "verb": "resolve", "filter": {}, "reason": "x" }), 422, "request-unusable"),
        (json!({ "verb": "redact", "filter": {} }), 422, "reason-needed"),
        (json!({ "verb": "retry", "filter": { "states": ["failed"] }, "limit": 0 }), 422, "request-unusable"),
    ] {
        assert_problem(&post(&site, "bulk", &wrong).await, status, kind);
    }
    assert_eq!(count(db, State::Failed).await, 3);
}

async fn what_matches_is_done_and_what_changed_since_is_left_alone(db: &TestDatabase) {
    let ids = failed(db, 6).await;
    let site = site(db).await;
    // As slowly as it goes: somebody acts on the last one before the bulk comes to it.
    let wish = json!({ "verb": "retry", "filter": { "states": ["failed"] }, "reason": "the key is valid again", "rate": 2 });
    let started = post(&site, "bulk", &wish).await;
    assert_eq!(started.status, 202, "{started:?}");
    let id = body(&started)["id"].clone();
    // What nobody could foresee: it is told when it comes to that.
    let stored = if db.engine == crate::support::Engine::Postgres { "true" } else { "1" };
    let refuse =
        format!("UPDATE aftercommit.outcomes SET refusal_stored = {stored} WHERE effect_id = {}", ids[4]);
    db.sql.execute(&refuse).await;
    let last = ids[5];
    let token = db.status(last).await.token;
    let cancelled = post(
        &site,
        &format!("effects/{last}/redact"),
        &json!({ "state": "failed", "token": token, "reason": "x" }),
    )
    .await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let retried = post(&site, &format!("effects/{last}/reissue"), &json!({})).await;
    assert_eq!(retried.status, 400, "{retried:?}");
    let bulk = ended(&site, &id).await;
    let counts =
        ["total", "done", "refused", "stale", "gone"].map(|name| bulk[name].as_u64().expect("a number"));
    assert_eq!(counts[0], 6, "{bulk}");
    assert_eq!(counts[1..].iter().sum::<u64>(), 6, "each item is counted once: {bulk}");
    assert_eq!((counts[1], counts[2] + counts[3]), (4, 2), "{bulk}");
    assert!(bulk["samples"][0].as_str().is_some_and(|words| words.contains("reissue it")), "{bulk}");
    let not_done = &bulk["not_done"][0];
    assert_eq!(
        (&not_done["outcome"], &not_done["effects"], &not_done["ids"]),
        (&"refused".into(), &1.into(), &json!([ids[4]])),
        "{bulk}"
    );
    let shown = super::forms::page(&site, &format!("bulk/{id}")).await.body;
    assert!(shown.contains("Finished: 4 done, "), "{shown}");
    assert!(shown.contains(&format!("effects?q=id:{}\"", ids[4])), "a way to what was refused: {shown}");
    assert_eq!(bulk["state"], "finished");
    let audit = get(&site, "audit?limit=100").await;
    let of_the_bulk = audit["audit"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["bulk"] == id && !row["effect_id"].is_null());
    let rows: Vec<&Value> = of_the_bulk.collect();
    assert_eq!(rows.len(), 4, "a row for each that was done: {audit}");
    assert!(
        rows.iter().all(|row| row["who"] == "operator" && row["reason"] == "the key is valid again"),
        "{audit}"
    );
}

async fn it_stands_still_when_told_to_and_goes_on_and_is_called_off(db: &TestDatabase) {
    failed(db, 60).await;
    let site = site(db).await;
    let wish = json!({ "verb": "retry", "filter": { "states": ["failed"] }, "rate": 20 });
    let id = body(&post(&site, "bulk", &wish).await)["id"].clone();
    bulk_that(&site, &id, "some are done", |bulk| bulk["done"].as_u64() > Some(2)).await;
    let paused = post(&site, &format!("bulk/{id}/pause"), &json!({})).await;
    assert_eq!((paused.status, &body(&paused)["state"]), (200, &"paused".into()), "{paused:?}");
    let before = get(&site, &format!("bulk/{id}")).await;
    // Nobody is told that nothing happens: a second of looking is the only proof.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = get(&site, &format!("bulk/{id}")).await;
    assert_eq!(before["done"], after["done"], "it is paused");
    let resumed = post(&site, &format!("bulk/{id}/resume"), &json!({})).await;
    assert_eq!(body(&resumed)["state"], "running", "{resumed:?}");
    bulk_that(&site, &id, "it goes on", |bulk| bulk["done"].as_u64() > after["done"].as_u64()).await;
    let cancelled = post(&site, &format!("bulk/{id}/cancel"), &json!({})).await;
    assert_eq!(body(&cancelled)["state"], "cancelled", "{cancelled:?}");
    let done = get(&site, &format!("bulk/{id}")).await["done"].as_u64().expect("a number");
    assert_eq!(count(db, State::Failed).await, 60 - done, "what was not done is as it was");
    assert_problem(&post(&site, &format!("bulk/{id}/resume"), &json!({})).await, 409, "state-forbids");
    assert_problem(&post(&site, "bulk/999/pause", &json!({})).await, 404, "not-found");
    let list = get(&site, "bulk").await;
    assert_eq!(list["bulks"][0]["id"], id, "{list}");
}

async fn what_may_be_applied_twice_wants_the_number_typed(db: &TestDatabase) {
    failed(db, 2).await;
    let site = site(db).await;
    let wish = |confirmation: Option<&str>, reason: Option<&str>| json!({ "verb": "reissue", "filter": { "states": ["failed"] }, "confirmation": confirmation, "reason": reason });
    assert_problem(&post(&site, "bulk", &wish(None, Some("x"))).await, 422, "confirmation-needed");
    assert_problem(
        &post(&site, "bulk", &wish(Some("reissue 3"), Some("x"))).await,
        422,
        "confirmation-needed",
    );
    assert_problem(&post(&site, "bulk", &wish(Some("reissue 2"), None)).await, 422, "reason-needed");
    let started = post(&site, "bulk", &wish(Some("reissue 2"), Some("the bank forgot them"))).await;
    assert_eq!(started.status, 202, "{started:?}");
    let bulk = ended(&site, &body(&started)["id"]).await;
    assert_eq!(bulk["done"], 2, "{bulk}");
    assert_eq!(count(db, State::Ready).await, 2, "the new ones are due");
}

async fn only_the_oldest_are_listed_where_there_is_a_limit(db: &TestDatabase) {
    let ids = failed(db, 5).await;
    let bulk = BulkLimits { max: 3, rate: 0 };
    let site = Site::open(&db.store, Settings { access: everybody(), bulk, ..Settings::default() }).await;
    let wish = json!({ "verb": "retry", "filter": { "states": ["failed"] } });
    let mut dry = wish.clone();
    dry["dry_run"] = true.into();
    let told = body(&post(&site, "bulk", &dry).await);
    assert_eq!((&told["effects"], &told["left_out"]), (&3.into(), &2.into()), "{told}");
    let bulk = ended(&site, &body(&post(&site, "bulk", &wish).await)["id"]).await;
    assert_eq!((&bulk["total"], &bulk["done"]), (&3.into(), &3.into()), "{bulk}");
    for (place, id) in ids.iter().enumerate() {
        let state = if place < 3 { State::Ready } else { State::Failed };
        assert_eq!(db.state(*id).await, state, "the oldest first");
    }
}

/// A dashboard of its own process.
struct Running {
    process: Process,
    address: std::net::SocketAddr,
}

async fn start(db: &TestDatabase, folder: &std::path::Path, name: &str) -> Running {
    let mut command: Command = aftercommit();
    command.current_dir(folder).args(["dashboard", "--listen", "127.0.0.1:0", "--database", &db.url]);
    let process = Process::spawn(name, &mut command, &folder.join(format!("{name}.log")));
    let address = eventually(SOON, "the dashboard says where it is", async || {
        let output = process.output();
        let (_, rest) = output.split_once("Pages     http://")?;
        rest.split('/').next()?.parse().ok()
    })
    .await;
    Running { process, address }
}

impl Running {
    async fn ask(&self, method: &str, path: &str, sent: Option<&Value>) -> Value {
        let ask = Ask::new(self.address, method, &format!("/api/v1/{path}")).ours();
        let ask = sent.map_or(ask.clone(), |sent| ask.json(&sent.to_string()));
        let answer = ask.send().await;
        assert!(answer.status < 300, "{path}: {answer:?}");
        body(&answer)
    }
}

/// Two dashboards at one database. The one that works is killed in the middle; the other goes on where it stopped.
async fn two_thousand_are_done_once_though_a_dashboard_is_killed(db: &TestDatabase) {
    const N: u64 = 2_000;
    failed(db, usize::try_from(N).expect("few")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let first = start(db, folder.path(), "first").await;
    let wish = json!({ "verb": "retry", "filter": { "states": ["failed"] }, "reason": "again", "rate": 400 });
    let bulk = first.ask("POST", "bulk", Some(&wish)).await;
    assert_eq!(bulk["total"], N, "{bulk}");
    let path = format!("bulk/{}", bulk["id"]);
    eventually(SOON, "the first one works", async || {
        (first.ask("GET", &path, None).await["done"].as_u64() > Some(100)).then_some(())
    })
    .await;
    let second = start(db, folder.path(), "second").await;
    let mut killed = first.process;
    killed.kill().await;
    let at_the_kill = second.ask("GET", &path, None).await["done"].as_u64().expect("a number");
    assert!(at_the_kill < N, "it was killed too late: {at_the_kill}");
    let bulk = eventually(Duration::from_secs(90), "the second one goes on and ends it", async || {
        let bulk = second.ask("GET", &path, None).await;
        (!bulk["finished_at"].is_null()).then_some(bulk)
    })
    .await;
    let counts = ["done", "refused", "stale", "gone"].map(|name| bulk[name].as_u64().expect("a number"));
    assert_eq!(counts, [N, 0, 0, 0], "{bulk}");
    let rows = "SELECT count(*) FROM aftercommit.audit WHERE verb = 'retry' AND effect_id IS NOT NULL";
    let effects = "SELECT count(DISTINCT effect_id) FROM aftercommit.audit WHERE verb = 'retry' AND effect_id IS NOT NULL";
    let (rows, effects) = (db.sql.number(rows).await, db.sql.number(effects).await);
    assert_eq!((rows, effects), (2_000, 2_000), "one row for each, and none acted on twice");
    assert_eq!((count(db, State::Failed).await, count(db, State::Ready).await), (0, N));
    println!("killed after {at_the_kill} of {N}");
}

/// A bulk that somebody started who is gone.
async fn left(db: &TestDatabase, ids: &[EffectId]) -> i64 {
    let mut items = Vec::new();
    for id in ids {
        let status = db.status(*id).await;
        items.push((*id, Seen { state: status.state, token: status.token }));
    }
    let actor = Actor { who: "ann".to_owned(), ..Actor::default() };
    let bulk = NewBulk { verb: "retry".to_owned(), what: "failed".to_owned(), rate: 0, actor };
    db.store.start_bulk(&bulk, &items).await.expect("it starts")
}

async fn carried_out(db: &TestDatabase, bulk: i64, what: &str) {
    let bulk = eventually(SOON, what, async || {
        let bulk = db.store.bulk(bulk).await.expect("readable").expect("it is there");
        bulk.finished_at.is_some().then_some(bulk)
    })
    .await;
    assert_eq!((bulk.done, bulk.total), (3, 3), "{bulk:?}");
}

/// A router that somebody else serves runs bulks too: from when it is made, and where there was no runtime yet, from the first request
/// on, whatever that asks for.
async fn an_application_that_has_the_dashboard_inside_carries_bulks_out(db: &TestDatabase) {
    let bulk = left(db, &failed(db, 3).await).await;
    let inside = dashboard(db.store.clone(), settings(everybody()).1);
    carried_out(db, bulk, "it is carried out although nobody asked").await;
    drop(inside);

    let bulk = left(db, &failed_with(db, "again", 3).await).await;
    let (store, settings) = (db.store.clone(), settings(everybody()).1);
    let made = std::thread::spawn(move || dashboard(store, settings));
    let inside = made.join().expect("a dashboard can be made without a runtime");
    let app = axum::Router::new().merge(inside.at("/ops/effects"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
    task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
    assert_eq!(Ask::new(address, "GET", "/ops/effects/healthz").send().await.status, 200);
    carried_out(db, bulk, "it is carried out once somebody asked for anything").await;
}

async fn a_read_only_dashboard_carries_out_nothing(db: &TestDatabase) {
    let ids = failed(db, 3).await;
    let bulk = left(db, &ids).await;
    let settings = Settings { access: everybody(), read_only: true, ..Settings::default() };
    let site = Site::open(&db.store, settings).await;
    for path in ["bulk".to_owned(), format!("bulk/{bulk}"), "counts".to_owned()] {
        get(&site, &path).await;
    }
    // Nobody holds it: whoever asks for work first is given it.
    let taken = db.store.take_bulk("the test", SOON).await.expect("readable");
    assert_eq!(taken.map(|taken| (taken.id, taken.done)), Some((bulk, 0)));
    assert_eq!(count(db, State::Failed).await, 3);
}
