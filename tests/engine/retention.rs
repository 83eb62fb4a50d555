//! Guarantee: with a short retention every table stays bounded under load, and a late enqueue of a purged effect's key is
//! answered at every stage (RETAIN-01, RETAIN-05). A few seconds here; ten minutes by `./tests/run --long retention`.

mod load;
mod probe;
mod report;

use std::{sync::Arc, time::Duration};

use aftercommit::store::Retention;

use self::load::{Load, Plan};
use crate::support::{Chance, Engine, Report, TestDatabase, Way, on_every_database};

on_every_database! {
    every_table_stays_bounded_and_late_keys_are_answered,
}

async fn every_table_stays_bounded_and_late_keys_are_answered(db: &TestDatabase) {
    let ms = Duration::from_millis;
    let plan = Plan {
        lasts: Duration::from_secs(16),
        per_second: 60,
        retention: Retention { payloads: ms(800), history: ms(1600), keys: ms(3000), ..Retention::default() },
        restart_every: Duration::from_secs(4),
    };
    let load = Load::run(db, plan, Chance::seeded()).await;
    load.check();
}

/// Ten minutes on each database that `AFTERCOMMIT_LONG_ENGINES` names (both, unless it says `postgres` or `sqlite`), at a
/// gentle rate.
#[test]
#[ignore = "ten minutes: ./tests/run --long retention"]
fn ten_minutes() {
    let wanted = std::env::var("AFTERCOMMIT_LONG_ENGINES").unwrap_or_default();
    let engines = [("postgres", Engine::Postgres), ("sqlite", Engine::Sqlite)];
    let engines: Vec<_> =
        engines.into_iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name)).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    let s = Duration::from_secs;
    let plan = Plan {
        lasts: s(600),
        per_second: 200,
        retention: Retention { payloads: s(10), history: s(20), keys: s(60), ..Retention::default() },
        restart_every: s(30),
    };
    let begun = Report::begin("retention");
    assert!(!engines.is_empty(), "AFTERCOMMIT_LONG_ENGINES names no database: {wanted}");
    let each = engines.into_iter().map(async |(name, engine)| {
        let db = TestDatabase::fresh(engine, Way::Direct).await;
        let load = Load::run(&db, plan, Chance::seeded()).await;
        let about = report::of(&db, name, &load).await;
        db.remove().await;
        println!("{name}: {}", about["sum"]);
        (about, load)
    });
    let runs = runtime.block_on(futures_util::future::join_all(each));
    let abouts: Vec<_> = runs.iter().map(|(about, _)| about.clone()).collect();
    report::write(&begun, &plan, &abouts);
    runs.iter().for_each(|(_, load)| load.check());
}

/// What several parts of a run share.
type Shared<T> = Arc<std::sync::Mutex<T>>;
