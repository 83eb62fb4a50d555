//! The benches measure what they say: each runs, small, on each database, and prints one object with the figure, the limit of
//! the same run and the settings. No figure is judged here: times on a shared machine prove nothing.

use std::time::Duration;

use serde_json::Value;

use super::{
    database::Database,
    processes::{aftercommit, run_ok},
};

const SOON: Duration = Duration::from_secs(150);

async fn bench(database: &Database, words: &[&str]) -> Value {
    let mut command = aftercommit();
    command.arg("bench").args(words).args(["--json", "--database", &database.url()]);
    let out = run_ok(&mut command, SOON).await;
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}"));
    assert_eq!(said["bench"], words[0], "{said:#}");
    for figure in ["effects_per_s", "effects", "seconds"] {
        assert!(said[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure} in {said:#}");
    }
    assert!(said["limits"].is_object() || said["limits"].is_null(), "{said:#}");
    assert!(said["settings"]["database"].is_string(), "{said:#}");
    said
}

fn positive(said: &Value, pointer: &str) {
    let figure = said.pointer(pointer).and_then(Value::as_f64);
    assert!(figure.is_some_and(|figure| figure > 0.0), "{pointer} in {said:#}");
}

async fn every_bench(database: &Database) {
    let drain = bench(database, &["drain", "--effects", "300", "--batch", "50"]).await;
    assert_eq!(drain["effects"], 300);
    positive(&drain, "/limits/update_delete_per_s");
    let enqueue = bench(database, &["enqueue", "--effects", "200", "--each-ms", "50", "--rounds", "1"]).await;
    positive(&enqueue, "/limits/bare_bulk_insert_per_s");
    positive(&enqueue, "/transactions/0/of_bare_insert");
    let guard = bench(database, &["guard", "--each-ms", "50", "--rounds", "1"]).await;
    positive(&guard, "/limits/two_bare_writes_per_s");
    positive(&guard, "/requests/0/of_two_bare_writes");
    let latency = bench(database, &["latency", "--rate", "100", "--seconds", "1"]).await;
    assert_eq!(latency["effects"], 100);
    positive(&latency, "/from_insert/p50_ms");
    let http = bench(database, &["http", "--effects", "200", "--concurrency", "16"]).await;
    positive(&http, "/limits/harmonic_per_s");
    for (broker, variable) in [("nats", "AFTERCOMMIT_TEST_NATS"), ("redis", "AFTERCOMMIT_TEST_REDIS")] {
        let url = std::env::var(variable).expect("tests/run exports it");
        let words = [broker, "--effects", "200", "--concurrency", "16", "--url", &url];
        let said = bench(database, &words).await;
        assert_eq!(said["effects"], 200);
        positive(&said, "/limits/harmonic_per_s");
        positive(&said, "/limits/bare_client_per_s");
    }
    let held = bench(database, &["horizon", "--effects", "200", "--concurrency", "50"]).await;
    assert_eq!(held["tenths_per_s"].as_array().map(Vec::len), Some(10), "{held:#}");
    let backlog = bench(database, &["backlog", "--effects", "20000", "--claims", "5"]).await;
    positive(&backlog, "/claim/p99_ms");
    positive(&backlog, "/limits/claim_at_10000/p99_ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bench_measures_postgres_beside_its_limit() {
    let database = Database::on_shared_server("benches").await;
    every_bench(&database).await;
    database.drop_from_shared_server();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bench_measures_sqlite_beside_its_limit() {
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a temporary folder");
    every_bench(&Database::Sqlite(folder.path().join("bench.db"))).await;
}
