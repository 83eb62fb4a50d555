//! What a long run leaves behind: `reports/retention.json`.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::load::{Load, Plan};
use crate::support::{Engine, TestDatabase};

/// One database's part.
pub(super) async fn of(db: &TestDatabase, name: &str, load: &Load) -> Value {
    let server = match db.engine {
        Engine::Postgres => db.sql.scalar("SHOW server_version").await,
        Engine::Sqlite => db.sql.scalar("SELECT sqlite_version()").await,
    };
    json!({
        "database": name,
        "version": server,
        "seed": load.seed,
        "sum": { "enqueued": load.enqueued, "restarts": load.restarts, "unfinished_at_the_end": load.in_doubt },
        "late_enqueues": load.probes,
        "most_rows": load.most(0.0, f64::MAX),
        "rows_left": load.left,
        "rows_over_time": load.samples,
    })
}

/// What is being measured: asked before the run, during which somebody may commit.
pub(super) fn commit() -> String {
    said("git", &["rev-parse", "HEAD"])
}

/// Writes the report beside the repository's other ones.
pub(super) fn write(plan: &Plan, commit: &str, runs: Vec<Value>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workers/ lies in the root");
    let report = json!({
        "what": "a load with a short retention: rows of every table over time, and late enqueues at every stage",
        "commit": commit,
        "machine": {
            "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "kernel": said("uname", &["-sr"]),
            "memory": fs::read_to_string("/proc/meminfo").unwrap_or_default().lines().next(),
        },
        "seconds": plan.lasts.as_secs(),
        "effects_per_second": plan.per_second,
        "retention_s": {
            "payloads": plan.retention.payloads.as_secs_f64(),
            "history": plan.retention.history.as_secs_f64(),
            "keys": plan.retention.keys.as_secs_f64(),
        },
        "runs": runs,
    });
    let folder = root.join("reports");
    fs::create_dir_all(&folder).expect("reports/ can be made");
    let text = serde_json::to_string(&report).expect("JSON");
    fs::write(folder.join("retention.json"), text + "\n").expect("the report can be written");
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
