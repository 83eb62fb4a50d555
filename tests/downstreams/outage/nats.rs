//! NATS, with a file store: what it forgets at a kill is what its operating system did not get, and that is nothing.

use std::time::Duration;

use serde_json::Value;

use super::{
    super::{
        brokers::{Server, served},
        nats::{Stream, bystander},
    },
    load::{Away, judge, run},
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
    let figures = run(db, served(&stream.table(&server.place()), ""), &mut server, away).await;
    let stored = Stream { name: stream.name, context: bystander(&server.place()).await }.ids().await;
    let (found, said) = judge("nats, file store", &figures, &stored);
    assert_eq!(found, (0, 0), "lost and doubled");
    assert_eq!(figures.in_doubt, 0);
    said
}
