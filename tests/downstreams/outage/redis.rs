//! Redis, with an append-only file: once flushed with every command, once every second. A killed process loses neither.

use std::time::Duration;

use serde_json::Value;

use super::{
    super::{
        brokers::{Server, served},
        redis::{Bystander, table},
    },
    load::{Away, killed_without_a_trace},
};
use crate::support::{Engine, TestDatabase, Way, on_postgres};

on_postgres!(
    a_redis_killed_under_load_loses_nothing_and_doubles_nothing,
    a_redis_that_flushes_every_second_loses_nothing_when_it_is_killed,
);

async fn a_redis_killed_under_load_loses_nothing_and_doubles_nothing(db: &TestDatabase) {
    killed(db, "always", Away::Noticed).await;
}

async fn a_redis_that_flushes_every_second_loses_nothing_when_it_is_killed(db: &TestDatabase) {
    killed(db, "everysec", Away::Noticed).await;
}

/// The long form: the server stays away for 30 seconds.
pub(super) async fn half_a_minute_away() -> Vec<Value> {
    let mut said = Vec::new();
    for fsync in ["always", "everysec"] {
        let db = TestDatabase::fresh(Engine::Postgres, Way::Direct).await;
        said.push(killed(&db, fsync, Away::For(Duration::from_secs(30))).await);
        db.remove().await;
    }
    said
}

async fn killed(db: &TestDatabase, fsync: &str, away: Away) -> Value {
    let mut server = Server::redis(&["--appendonly", "yes", "--appendfsync", fsync]).await;
    let served = served(&table(&server.place(), "orders"), "");
    let stored = async |server: &mut Server| Bystander::at(&server.place()).await.keys("orders").await;
    let name = format!("redis, appendfsync {fsync}");
    killed_without_a_trace(db, served, (name.as_str(), &mut server, away), stored).await
}
