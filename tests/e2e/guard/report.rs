//! What the long run leaves behind: `reports/guard.json`.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

/// What is being measured: asked before the run, during which somebody may commit.
pub(super) fn commit() -> String {
    said("git", &["rev-parse", "HEAD"])
}

/// Writes the report beside the repository's other ones.
pub(super) fn write(commit: &str, seed: u64, runs: &[Value]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workers/ lies in the root");
    let report = json!({
        "what": "rounds of concurrent requests with one key at two server processes; mixed: some of them with another body",
        "commit": commit,
        "seed": seed,
        "machine": {
            "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "kernel": said("uname", &["-sr"]),
            "memory": fs::read_to_string("/proc/meminfo").unwrap_or_default().lines().next(),
        },
        "runs": runs,
    });
    let folder = root.join("reports");
    fs::create_dir_all(&folder).expect("reports/ can be made");
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    fs::write(folder.join("guard.json"), text + "\n").expect("the report can be written");
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
