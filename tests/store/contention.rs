//! Defends: one file, several writers: whoever finds it locked waits, and is not told that it is busy.

use std::time::Duration;

use aftercommit::{
    contract::OnUnknown,
    store::{Acted, Settled},
    verb::Verb,
};

use super::{
    enqueue::effect,
    stage::{HOUR, Stage, person},
};
use crate::support::{Settling, TestDatabase, Worker, key_terms, none_terms, on_sqlite, registered, within};

on_sqlite! {
    a_writer_that_takes_its_time_is_waited_for,
    the_library_is_one_that_does_not_corrupt_its_log,
}

/// Trap T20 and DB-08: every write of the store waits for another program's; none is upgraded from a read, which would fail
/// at once whatever the timeout is.
async fn a_writer_that_takes_its_time_is_waited_for(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (open, held) = (stage.claimed(db, "open").await, stage.claimed(db, "held").await);
    let parked = stage.parked(db, "parked").await;
    let due = db.insert("pay", "due").await;
    let mut application = db.sql.begin().await;
    application.enqueue(effect("theirs")).await.expect("it is written");
    let (ann, leases) = (person(), [(held.token(), HOUR)]);
    let mail = registered("mail", none_terms(OnUnknown::Hold));
    let work = async {
        tokio::join!(
            stage.worker.settle(Settling::of(&open).succeed()),
            db.store.renew("w1", &leases),
            db.store.act(parked, &Verb::ResolveNotApplied, &ann, None),
            stage.worker.claim("pay", 1),
            Worker::start(&db.store, "w2", vec![mail]),
            db.store.maintain(),
            db.sql.enqueue(effect("ours")),
        )
    };
    let commit = async {
        // Longer than any pause between two tries, shorter than the time that a busy file is waited for.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        application.commit().await;
    };
    let (done, ()) = within(
        Duration::from_secs(30),
        "everything that waited is written",
        Box::pin(async { tokio::join!(work, commit) }),
    )
    .await;
    let (settled, renewed, acted, claimed, _worker, maintained, ours) = done;
    assert_eq!(settled, Settled::Done);
    assert_eq!(renewed.expect("renewing works"), [held.token()]);
    assert!(matches!(acted, Ok(Acted::Done(..))), "{acted:?}");
    assert_eq!(claimed.iter().map(|claim| claim.effect.id).collect::<Vec<_>>(), [due]);
    maintained.expect("upkeep waits, too");
    ours.expect("the library waits, too");
}

async fn the_library_is_one_that_does_not_corrupt_its_log(db: &TestDatabase) {
    let version = db.sql.scalar("SELECT sqlite_version()").await.expect("a version");
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    assert!(
        parts >= vec![3, 51, 3],
        "below 3.51.3 a reset of the write-ahead log may lose commits: {version}"
    );
    let _registered = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let file = db.url.trim_start_matches("sqlite:");
    let header = std::fs::read(file).expect("the file is there");
    assert_eq!(header[18..20], [2, 2], "the file itself says that it is in write-ahead mode");
}
