//! What the dashboard shows of the whole: downstreams, workers, requests and courses.

use aftercommit_dashboard::Settings;
use serde_json::{Value, json};

use super::{
    Site,
    api::{get, post, worker},
    everybody,
};
use crate::support::{TestDatabase, on_every_database};

on_every_database! {
    downstreams_are_read_once_for_everybody_who_asks,
    a_downstream_that_somebody_changed_is_told_as_it_is_now,
}

/// A dashboard whose clock goes on.
async fn site(db: &TestDatabase) -> Site {
    Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await
}

async fn downstreams_are_read_once_for_everybody_who_asks(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    // The database's clock has microseconds: two readings never tell the same time. One pair says nothing, since the one reading may
    // be renewed between its requests.
    for _ in 0..100 {
        let (one, other) = (get(&site, "downstreams").await, get(&site, "downstreams").await);
        assert_eq!(one["downstreams"].as_array().map(Vec::len), Some(2), "{one}");
        if one["now"] == other["now"] {
            return;
        }
    }
    panic!("each request read the queue");
}

async fn a_downstream_that_somebody_changed_is_told_as_it_is_now(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let paused_at = async || {
        let all = get(&site, "downstreams").await;
        let mut all = all["downstreams"].as_array().expect("a list").iter();
        all.find(|of| of["name"] == "pay").expect("it is there")["paused_at"].clone()
    };
    for round in 0..5 {
        assert_eq!(paused_at().await, Value::Null, "round {round}");
        let paused = post(&site, "downstreams/pay/pause", &json!({ "reason": "they asked us to" })).await;
        assert_eq!(paused.status, 200, "{paused:?}");
        let at = paused_at().await;
        assert!(at.is_string(), "round {round}: {at}");
        let resumed = post(&site, "downstreams/pay/resume", &json!({ "paused_at": at })).await;
        assert_eq!(resumed.status, 200, "{resumed:?}");
    }
}
