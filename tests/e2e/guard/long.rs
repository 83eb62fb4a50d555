//! The whole numbers of the issue: `./tests/run --long guard`.

use serde_json::json;
use tokio::time::Instant;

use super::rounds::{CLIENTS, Rounds, mixed, same};
use crate::support::{Chance, Engine, Report, TestDatabase, Way};

/// Rounds of one request.
const ROUNDS: usize = 1_000;
/// Racing calls with two bodies to a key.
const RACING: usize = 10_000;

#[test]
#[ignore = "minutes: ./tests/run --long guard"]
fn a_thousand_rounds_and_ten_thousand_racing_calls() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    let report = Report::begin("guard");
    let mut chance = Chance::seeded();
    let seed = chance.seed();
    let mut runs = Vec::new();
    for (name, engine) in [("postgres", Engine::Postgres), ("sqlite", Engine::Sqlite)] {
        let run = runtime.block_on(async {
            let db = TestDatabase::fresh(engine, Way::Direct).await;
            let version = match engine {
                Engine::Postgres => db.sql.scalar("SHOW server_version").await,
                Engine::Sqlite => db.sql.scalar("SELECT sqlite_version()").await,
            };
            let began = Instant::now();
            let mut rounds = Rounds::at(&db).await;
            for round in 0..ROUNDS {
                rounds.play(engine, same(round)).await;
            }
            let one_body = rounds.end().await;
            db.remove().await;
            let db = TestDatabase::fresh(engine, Way::Direct).await;
            let mut rounds = Rounds::at(&db).await;
            for round in 0..RACING.div_ceil(CLIENTS) {
                rounds.play(engine, mixed(round, &mut chance)).await;
            }
            let two_bodies = rounds.end().await;
            db.remove().await;
            assert_eq!((one_body.runs, one_body.first, one_body.mismatch), (ROUNDS, ROUNDS, 0));
            assert!(two_bodies.requests >= RACING && two_bodies.mismatch > 0, "{two_bodies:?}");
            let seconds = began.elapsed().as_secs_f64().round();
            json!({
                "database": name, "version": version, "seconds": seconds, "clients_per_round": CLIENTS, "servers": 2,
                "rounds": one_body, "mixed": two_bodies,
            })
        });
        println!("{run}");
        runs.push(run);
    }
    let what = "rounds of concurrent requests with one key at two server processes; mixed: some of them with another body";
    report.write(what, json!({ "seed": seed, "runs": runs }));
}
