//! Cases that need a browser's own reading: of numbers and of times, of what commits late, and of pages that somebody else made.

use std::time::Duration;

use aftercommit::{decision::Decision, state::State, store::Filter};
use aftercommit_dashboard::{Role, Settings};
use serde_json::json;

use super::{
    super::{
        Site,
        api::worker,
        cases::{
            digits::NUMBERS,
            zones::{around_the_fold, in_tokyo},
        },
        everybody, token,
    },
    play,
};
use crate::support::{Settling, TestDatabase, answer, eventually, insert_sql, on_postgres};

on_postgres! {
    a_browser_shows_every_digit_also_of_what_it_refreshes,
    times_are_told_in_the_zone_of_who_reads_wherever_the_database_is,
    what_commits_late_appears_on_a_list_that_is_open,
    pages_of_others_change_frame_and_read_nothing,
}

/// ENCODING-03.
async fn a_browser_shows_every_digit_also_of_what_it_refreshes(db: &TestDatabase) {
    let worker = worker(db).await;
    let payload = format!("'{NUMBERS}'");
    let metadata = "'{\"order\": 9007199254740993}'";
    let id = db.insert_with("pay", "k", &[("payload", &payload), ("metadata", metadata)]).await;
    let claim = worker.claim_one("pay").await;
    let refusal = Decision::Fail("402: declined".to_owned());
    worker.settle(Settling::of(&claim).decided(refusal, &answer(402, NUMBERS))).await;
    let site = Site::open(&db.store, Settings::default()).await;
    let seen = json!({ "state": "failed", "token": db.status(id).await.token });
    play("digits", &site, &json!({ "id": id.get(), "numbers": NUMBERS, "seen": seen })).await;
}

/// DASH-12.
async fn times_are_told_in_the_zone_of_who_reads_wherever_the_database_is(db: &TestDatabase) {
    worker(db).await;
    let (written, due) = around_the_fold(db).await;
    let site = in_tokyo(db, Settings::default()).await;
    let numbers = |ids: &[aftercommit::EffectId]| ids.iter().map(|id| id.get()).collect::<Vec<_>>();
    play("zones", &site, &json!({ "written": numbers(&written), "due": numbers(&due) })).await;
}

/// OUTBOX-01.
async fn what_commits_late_appears_on_a_list_that_is_open(db: &TestDatabase) {
    worker(db).await;
    db.insert("pay", "old-1").await;
    let mut late = db.sql.begin().await;
    late.execute(&insert_sql("pay", "late-1", &[])).await;
    let site = Site::open(&db.store, Settings::default()).await;
    let told = json!({});
    let commit = async {
        let shown = Filter { key: Some("shown".to_owned()), limit: 1, ..Filter::default() };
        eventually(Duration::from_secs(120), "the page showed what is newer", async || {
            let found = db.store.effects(&shown).await.expect("a page");
            (!found.effects.is_empty()).then_some(())
        })
        .await;
        late.commit().await;
    };
    tokio::join!(play("outbox", &site, &told), commit);
}

/// CSRF, framing and rebound names, as a browser meets them.
async fn pages_of_others_change_frame_and_read_nothing(db: &TestDatabase) {
    worker(db).await;
    let id = db.insert("pay", "k").await;
    let open = Site::open(&db.store, Settings::default()).await;
    let guarded = Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await;
    let told = json!({
        "id": id.get(), "token": db.status(id).await.token, "guarded": format!("http://{}/", guarded.address),
        "secret": token(Role::Admin),
    });
    play("strangers", &open, &told).await;
    assert_eq!(db.state(id).await, State::Ready);
    assert!(db.audit(None, 10).await.is_empty(), "nobody did anything");
}
