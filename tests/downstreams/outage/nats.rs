//! NATS, with a file store: what it forgets at a kill is what its operating system did not get, and that is nothing.

use std::time::Duration;

use super::{
    super::{
        brokers::{Server, served},
        nats::{Stream, bystander},
    },
    load::{Away, judge, run},
};
use crate::support::{Engine, TestDatabase, on_postgres};

on_postgres!(a_nats_server_killed_under_load_loses_nothing_and_doubles_nothing);

async fn a_nats_server_killed_under_load_loses_nothing_and_doubles_nothing(db: &TestDatabase) {
    killed(db, Away::Noticed).await;
}

/// The long form: the server stays away for 30 seconds.
#[test]
#[ignore = "a long run: ./tests/run --long brokers"]
fn thirty_seconds() {
    crate::support::run(Engine::Postgres, async |db| killed(db, Away::For(Duration::from_secs(30))).await);
}

async fn killed(db: &TestDatabase, away: Away) {
    let mut server = Server::nats("").await;
    let stream = Stream::make(&server.place(), |_config| {}).await;
    let figures = run(db, served(&stream.table(&server.place()), ""), &mut server, away).await;
    let stored = Stream { name: stream.name, context: bystander(&server.place()).await }.ids().await;
    assert_eq!(judge("nats, file store", &figures, &stored), (0, 0), "lost and doubled");
    assert_eq!(figures.in_doubt, 0);
}
