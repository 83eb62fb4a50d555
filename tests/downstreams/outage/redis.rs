//! Redis, with an append-only file: once flushed with every command, once every second. A killed process loses neither.

use std::time::Duration;

use super::{
    super::{
        brokers::{Server, served},
        redis::{Bystander, table},
    },
    load::{Away, judge, run},
};
use crate::support::{Engine, TestDatabase, on_postgres};

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
#[test]
#[ignore = "a long run: ./tests/run --long brokers"]
fn thirty_seconds() {
    for fsync in ["always", "everysec"] {
        let away = Away::For(Duration::from_secs(30));
        crate::support::run(Engine::Postgres, async |db| killed(db, fsync, away).await);
    }
}

async fn killed(db: &TestDatabase, fsync: &str, away: Away) {
    let mut server = Server::redis(&["--appendonly", "yes", "--appendfsync", fsync]).await;
    let figures = run(db, served(&table(&server.place(), "orders"), ""), &mut server, away).await;
    let stored = Bystander::at(&server.place()).await.keys("orders").await;
    let broker = format!("redis, appendfsync {fsync}");
    assert_eq!(judge(&broker, &figures, &stored), (0, 0), "lost and doubled");
    assert_eq!(figures.in_doubt, 0);
}
