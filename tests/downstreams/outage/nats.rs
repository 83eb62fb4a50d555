//! NATS, with a file store: what it forgets at a kill is what its operating system did not get, and that is nothing.

use std::time::Duration;

use serde_json::Value;

use super::{
    super::{
        brokers::{Server, served},
        nats::{Stream, bystander},
    },
    load::{Away, killed_without_a_trace},
};
use crate::support::{Engine, TestDatabase, Way, on_postgres};

on_postgres!(a_nats_server_killed_under_load_loses_nothing_and_doubles_nothing);

async fn a_nats_server_killed_under_load_loses_nothing_and_doubles_nothing(db: &TestDatabase) {
    killed(db, Away::Noticed).await;
}

/// The long form: the server stays away for 30 seconds.
pub(super) async fn half_a_minute_away() -> Vec<Value> {
    let db = TestDatabase::fresh(Engine::Postgres, Way::Direct).await;
    let said = killed(&db, Away::For(Duration::from_secs(30))).await;
    db.remove().await;
    vec![said]
}

async fn killed(db: &TestDatabase, away: Away) -> Value {
    let mut server = Server::nats("").await;
    let stream = Stream::make(&server.place(), |_config| {}).await;
    let served = served(&stream.table(&server.place()), "");
    let stored = async |server: &mut Server| {
        Stream { name: stream.name, context: bystander(&server.place()).await }.ids().await
    };
    killed_without_a_trace(db, served, ("nats, file store", &mut server, away), stored).await
}
