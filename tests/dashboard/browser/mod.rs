//! The pages in a real browser, Debian's Chromium driven by playwright-core: what people do with them, without a mouse, without
//! scripts, narrow and wide; and that nothing that is stored ever runs. The scenarios are the `.mjs` files beside this one.

mod cases;
mod hostile;
mod stage;

use std::{path::PathBuf, process::Stdio};

use aftercommit::{state::State, store::AuditFilter, verb::Seen};
use aftercommit_dashboard::{Role, Settings};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{Site, everybody, token};
use crate::support::{TestDatabase, on_every_database, on_postgres};
use stage::Shop;

on_every_database! {
    a_charge_in_doubt_is_found_understood_and_resolved,
    a_thousand_failures_are_retried_while_somebody_watches,
}

on_postgres! {
    a_downstream_is_paused_and_resumed,
    a_stale_action_is_refused_and_explained,
    everything_can_be_done_by_keys_alone,
    without_scripts_what_can_be_read_can_be_done,
    what_happens_elsewhere_appears_and_disturbs_nobody,
    what_happens_at_any_moment_is_seen_at_the_pace_that_nobody_changed,
    times_say_their_zone,
    pages_of_many_effects_suit_every_window,
    pages_of_the_fleet_suit_every_window,
    pages_of_one_effect_suit_every_window,
    pages_without_anything_suit_every_window,
    pages_of_who_may_less_suit_every_window,
}

/// The programs of the test run.
fn given(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_unset| panic!("{name} is not set: use ./tests/run, which installs what it names"))
}

/// Where pictures are kept.
fn pictures() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("dashboard")
}

/// Plays a scenario against `site`; what it needs to know is `told`.
async fn play(scenario: &str, site: &Site, told: &Value) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/dashboard/browser");
    let shots = pictures();
    let output = Command::new("node")
        .arg(folder.join("run.mjs"))
        .arg(scenario)
        .env("SITE", format!("http://{}/", site.address))
        .env("TOLD", told.to_string())
        .env("SHOTS", &shots)
        .env("AFTERCOMMIT_TEST_NODE", given("AFTERCOMMIT_TEST_NODE"))
        .env("AFTERCOMMIT_TEST_CHROMIUM", given("AFTERCOMMIT_TEST_CHROMIUM"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: look at {} too\n{said}", shots.display());
    eprintln!("the pictures of {scenario} are in {}", shots.display());
}

async fn a_charge_in_doubt_is_found_understood_and_resolved(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let id = shop.doubtful("order-A-17/charge", "A-17").await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("doubt", &site, &json!({ "id": id.get() })).await;
    let effect = db.status(id).await;
    assert_eq!(effect.state, State::Succeeded);
    assert_eq!(
        effect.response.map(|json| json.get().to_owned()).as_deref(),
        Some(r#"{"id":"ch_19","big":9007199254740993}"#)
    );
    let filter = AuditFilter { effect: Some(id), limit: 10, ..AuditFilter::default() };
    let audit = db.store.audit(&filter).await.expect("the audit is readable");
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!(audit[0].reason.as_deref(), Some("ch_19 stands in the list of charges"));
    assert_eq!(audit[0].from.as_deref().map(|from| from.starts_with("127.0.0.1")), Some(true), "{audit:?}");
}

async fn a_thousand_failures_are_retried_while_somebody_watches(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let failed = shop.fail_many(1_204).await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("bulk", &site, &json!({})).await;
    let counts = db.store.counts().await.expect("counting works");
    let ready: u64 =
        counts.iter().filter(|count| count.state == State::Ready).map(|count| count.effects).sum();
    assert_eq!(ready, 1_204, "{counts:?}");
    assert_eq!(db.state(failed[0]).await, State::Ready);
}

async fn a_downstream_is_paused_and_resumed(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    shop.some().await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("pause", &site, &json!({})).await;
    let filter = AuditFilter { downstream: Some("payments".to_owned()), limit: 10, ..AuditFilter::default() };
    let audit = db.store.audit(&filter).await.expect("the audit is readable");
    let verbs: Vec<&str> =
        audit.iter().map(|row| row.verb.as_str()).filter(|verb| verb.ends_with("e")).collect();
    assert_eq!(verbs, ["resume", "pause"], "{audit:?}");
}

async fn a_stale_action_is_refused_and_explained(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let id = shop.failed("order-A-18/charge", "A-18").await;
    let before = db.status(id).await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("stale", &site, &json!({ "id": id.get() })).await;
    let after = db.status(id).await;
    assert_ne!((before.state, before.token), (after.state, after.token));
    let filter = AuditFilter { effect: Some(id), limit: 10, ..AuditFilter::default() };
    assert_eq!(db.store.audit(&filter).await.expect("the audit is readable").len(), 1, "one retry, not two");
    let seen = Seen { state: before.state, token: before.token };
    assert!(seen.token < after.token);
}

async fn everything_can_be_done_by_keys_alone(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    shop.some().await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("keyboard", &site, &json!({})).await;
}

async fn without_scripts_what_can_be_read_can_be_done(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let doubt = shop.doubtful_mail("welcome-1").await;
    shop.fail_many(60).await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("noscript", &site, &json!({ "doubt": doubt.get() })).await;
}

async fn what_happens_elsewhere_appears_and_disturbs_nobody(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let id = shop.due("order-A-20/charge", "A-20").await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("live", &site, &json!({ "id": id.get() })).await;
}

async fn what_happens_at_any_moment_is_seen_at_the_pace_that_nobody_changed(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    shop.failed("order-A-22/charge", "A-22").await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("late", &site, &json!({})).await;
}

async fn times_say_their_zone(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let failed = shop.failed("order-A-21/charge", "A-21").await;
    let site = Site::open(&db.store, Settings::default()).await;
    play("times", &site, &json!({ "failed": failed.get() })).await;
}

async fn pages_of_many_effects_suit_every_window(db: &TestDatabase) {
    let told = Shop::open(db).await.everything().await;
    look(db, "many", told).await;
}

async fn pages_of_the_fleet_suit_every_window(db: &TestDatabase) {
    let told = Shop::open(db).await.everything().await;
    look(db, "fleet", told).await;
}

async fn pages_of_one_effect_suit_every_window(db: &TestDatabase) {
    let told = Shop::open(db).await.everything().await;
    look(db, "one", told).await;
}

async fn pages_without_anything_suit_every_window(db: &TestDatabase) {
    look(db, "empty", json!({})).await;
}

async fn look(db: &TestDatabase, set: &str, mut told: Value) {
    let settings = Settings { environment: "production".to_owned(), ..Settings::default() };
    let site = Site::open(&db.store, settings).await;
    told["set"] = json!(set);
    play("looks", &site, &told).await;
}

async fn pages_of_who_may_less_suit_every_window(db: &TestDatabase) {
    let mut told = Shop::open(db).await.everything().await;
    let site = Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await;
    let read_only = Site::open(&db.store, Settings { read_only: true, ..Settings::default() }).await;
    told["set"] = json!("less");
    told["viewer"] = json!(token(Role::Viewer));
    told["sites"] = json!([format!("http://{}/", read_only.address)]);
    play("looks", &site, &told).await;
}
