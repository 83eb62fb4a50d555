//! What a long run leaves behind: `reports/retention.json`.

use serde_json::{Value, json};

use super::load::{Load, Plan};
use crate::support::{Engine, Report, TestDatabase};

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

/// What was run, and what it showed.
pub(super) fn write(report: &Report, plan: &Plan, runs: &[Value]) {
    let what =
        "a load with a short retention: rows of every table over time, and late enqueues at every stage";
    let more = json!({
        "seconds": plan.lasts.as_secs(),
        "effects_per_second": plan.per_second,
        "retention_s": {
            "payloads": plan.retention.payloads.as_secs_f64(),
            "history": plan.retention.history.as_secs_f64(),
            "keys": plan.retention.keys.as_secs_f64(),
        },
        "runs": runs,
    });
    report.write(what, more);
}
