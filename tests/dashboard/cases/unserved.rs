//! CRASH-14: effects that nobody carries out are not quiet: pages, the API and the metrics say so, and how old the oldest is, whether
//! no worker was ever there, those that are there serve others, or the one that was there has died.

use std::time::Duration;

use aftercommit_dashboard::Role;
use serde_json::Value;

use super::{
    super::{Site, api::get, token},
    SOON, site, words,
};
use crate::support::{TestDatabase, Worker, eventually, key_terms, on_every_database, registered};

on_every_database! {
    effects_that_nobody_serves_are_told_of_everywhere_until_somebody_does,
}

const OLD: Duration = Duration::from_secs(2 * 3_600);

/// How long the oldest due effect has waited, as the metrics have it under this name.
async fn oldest(site: &Site, downstream: &str) -> Option<f64> {
    let answer = site.ask("GET", "/metrics").bearer(&token(Role::Viewer)).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let name = format!("aftercommit_oldest_due_age_seconds{{downstream=\"{downstream}\"}} ");
    answer.body.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

/// Waits until all of it is told; what is read for everybody may be two seconds old.
async fn is_told(site: &Site, id: i64, label: &str, stage: &str) {
    let what = format!("{stage}: the overview says that nobody serves pay");
    let says = "No live worker serves pay: 2 pending, the oldest due for 2 h";
    eventually(SOON, &what, async || words(site, "").await.contains(says).then_some(())).await;
    let overview = words(site, "").await;
    assert!(overview.contains("They wait, and nothing is lost."), "{stage}: {overview}");
    assert!(
        !overview.contains("No effect is in doubt or failed"),
        "{stage}: that is no good news: {overview}"
    );
    for (page, says) in [
        ("downstreams", says),
        ("workers", says),
        ("effects", "no worker"),
        (&format!("effects/{id}"), "No live worker serves pay: start aftercommit work"),
    ] {
        let said = words(site, page).await;
        assert!(said.contains(says), "{stage}: {page}: {said}");
    }
    let effect = get(site, &format!("effects/{id}")).await;
    assert_eq!(effect["held_by"], "unserved", "{stage}: {effect}");
    let all = get(site, "downstreams").await;
    let pay = of_pay(&all);
    assert_eq!((&pay["workers"], &pay["pending"]), (&0.into(), &2.into()), "{stage}: {all}");
    assert!(pay["oldest_due_at"].is_string(), "{stage}: {all}");
    let what = format!("{stage}: the metrics tell the age of the oldest, of {label}");
    let is_old = |age: f64| (7_190.0..7_900.0).contains(&age);
    eventually(SOON, &what, async || oldest(site, label).await.is_some_and(is_old).then_some(())).await;
}

fn of_pay(all: &Value) -> &Value {
    let all = all["downstreams"].as_array().expect("a list");
    all.iter().find(|info| info["name"] == "pay").expect("it is listed though nobody registered it")
}

async fn effects_that_nobody_serves_are_told_of_everywhere_until_somebody_does(db: &TestDatabase) {
    let ids = db.insert_many("pay", "k", 2).await;
    for id in &ids {
        db.shift_back("queue", "due_at", *id, OLD).await;
    }
    let (site, id) = (site(db).await, ids[0].get());
    is_told(&site, id, "(unregistered)", "no worker was ever there").await;
    Worker::start(&db.store, "w1", vec![registered("mail", key_terms())]).await;
    eventually(SOON, "the other downstream is listed", async || {
        words(&site, "downstreams").await.contains("mail").then_some(())
    })
    .await;
    is_told(&site, id, "(unregistered)", "a worker that serves another").await;
    Worker::start(&db.store, "w2", vec![registered("pay", key_terms())]).await;
    nobody_warns(&site).await;
    let silent = db.engine.before("seen_at", Duration::from_secs(120));
    db.sql.execute(&format!("UPDATE aftercommit.workers SET seen_at = {silent} WHERE name = 'w2'")).await;
    is_told(&site, id, "pay", "its worker fell silent").await;
    Worker::start(&db.store, "w3", vec![registered("pay", key_terms())]).await;
    nobody_warns(&site).await;
    assert!(!words(&site, &format!("effects/{id}")).await.contains("No live worker"));
}

async fn nobody_warns(site: &Site) {
    eventually(SOON, "the warning goes when somebody serves it", async || {
        (!words(site, "").await.contains("No live worker serves pay")).then_some(())
    })
    .await;
}
