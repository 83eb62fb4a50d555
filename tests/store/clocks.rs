//! Defends: every comparison uses the database's clock and absolute times, whatever zone anybody is in.

use std::time::Duration;

use aftercommit::{
    clock::{Clock, SystemClock, Timestamp},
    state::State,
};

use super::stage::Stage;
use crate::support::{
    Engine, Settling, TestDatabase, Worker, key_terms, on_every_database, on_postgres, registered,
};

on_every_database! {
    times_are_absolute,
    another_zone_of_the_process_changes_nothing,
    the_clock_is_the_databases,
}
on_postgres! { another_zone_of_the_session_changes_nothing }

/// 2030-07-01T12:00:00.123456Z.
const FAR: i64 = 1_909_137_600_123_456;

/// RETRY-09.
async fn times_are_absolute(db: &TestDatabase) {
    let forms: &[&str] = match db.engine {
        Engine::Postgres => &[
            "'2030-07-01T12:00:00.123456Z'",
            "'2030-07-01 21:00:00.123456+09:00'",
            "'2030-07-01 09:30:00.123456 America/St_Johns'",
        ],
        Engine::Sqlite => &["1909137600123456"],
    };
    for (number, form) in forms.iter().enumerate() {
        let id =
            db.insert_with("pay", &format!("far-{number}"), &[("due_at", form), ("expires_at", form)]).await;
        let status = db.status(id).await;
        assert_eq!(status.due_at, Some(Timestamp::from_micros(FAR)), "{form}");
        let stored = db
            .sql
            .number(&format!(
                "SELECT {} FROM aftercommit.effects WHERE id = {id}",
                db.engine.micros("expires_at")
            ))
            .await;
        assert_eq!(stored, FAR, "{form}");
    }
    // On both sides of now, and nearer to it than any two zones are to each other.
    let stage = Stage::by_key(db, "mail").await;
    let apart = Duration::from_secs(600);
    let soon = db.engine.after(db.engine.now(), apart);
    let id = db.insert_with("mail", "soon", &[("due_at", &soon)]).await;
    assert_eq!(db.state(id).await, State::Scheduled);
    assert!(stage.worker.claim("mail", 1).await.is_empty(), "it is due in ten minutes");
    // As what was scheduled and has become due: not as what was ready from the start.
    db.shift_back("queue", "due_at", id, 2 * apart).await;
    let claim = stage.worker.claim_one("mail").await;
    let due = db.status(id).await.due_at.expect("it has a time");
    let since = claim.claimed_at.since(due);
    assert!(claim.claimed_at >= due && since >= apart / 2 && since < 2 * apart, "{claim:?}");
    let held = db.store.renew("w1", &[(claim.token(), crate::support::LEASE)]).await.expect("renewing works");
    assert_eq!(held, [claim.token()], "its lease runs");
    assert!(db.store.expired(5).await.expect("the sweep reads").is_empty());
    let retry = db.now().await.plus(Duration::from_secs(5));
    stage.done(Settling::of(&claim).retry_not_applied(retry)).await;
    assert_eq!(db.status(id).await.due_at, Some(retry));
}

/// RETRY-09, TZ.
///
/// Runs [`times_are_absolute`] in a process of another zone.
async fn another_zone_of_the_process_changes_nothing(db: &TestDatabase) {
    let engine = match db.engine {
        Engine::Postgres => "postgres",
        Engine::Sqlite => "sqlite",
    };
    for zone in ["America/St_Johns", "Asia/Tokyo"] {
        let output = tokio::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("store::clocks::times_are_absolute::{engine}"), "--nocapture"])
            .env("TZ", zone)
            .output()
            .await
            .expect("this program runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "TZ={zone}: {said}");
    }
}

/// RETRY-09, the database's zone.
async fn another_zone_of_the_session_changes_nothing(db: &TestDatabase) {
    for zone in ["Asia/Tokyo", "America/St_Johns"] {
        let name = db.sql.scalar("SELECT current_database()").await.expect("a name");
        db.sql.execute(&format!("ALTER DATABASE {name} SET timezone = '{zone}'; ALTER DATABASE {name} SET datestyle = 'German, DMY'")).await;
        let store = db.another_store().await;
        let worker = Worker::start(&store, "w9", vec![registered("zone", key_terms())]).await;
        let id = db.insert("zone", zone).await;
        let claim = worker.claim_one("zone").await;
        let wall = SystemClock.wall();
        assert!(wall.since(claim.claimed_at) < Duration::from_secs(60), "{} at {wall}", claim.claimed_at);
        assert!(claim.claimed_at.since(wall) < Duration::from_secs(60), "{} at {wall}", claim.claimed_at);
        let due = store.now().await.expect("readable").plus(Duration::from_secs(7));
        assert_eq!(
            worker.settle(Settling::of(&claim).retry_unknown(due)).await,
            aftercommit::store::Settled::Done
        );
        let status = store.effect(id).await.expect("readable").expect("it is there");
        assert_eq!(status.due_at, Some(due));
        assert_eq!(status.first_sent_at, claim.history.first_sent_at);
    }
}

/// Trap T18.
async fn the_clock_is_the_databases(db: &TestDatabase) {
    let read = async || db.sql.number(&format!("SELECT {}", db.engine.micros(db.engine.now()))).await;
    let before = read().await;
    let now = db.now().await.micros();
    let after = read().await;
    // SQLite's clock has milliseconds.
    assert!(before - 1000 <= now && now <= after + 1000, "{before} {now} {after}");
    let mut last = db.now().await;
    for _ in 0..20 {
        let next = db.now().await;
        assert!(next >= last, "it does not stand still in a transaction, nor run backwards");
        last = next;
    }
}
