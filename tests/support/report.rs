//! What a long run leaves behind: `reports/NAME.json`, with the commit and the machine that it is of.

use std::{fs, path::Path, process::Command};

use serde_json::{Map, Value, json};

/// A report that is to be written.
pub(crate) struct Report {
    name: &'static str,
    /// Asked before the run, during which somebody may commit.
    commit: String,
}

impl Report {
    /// Of a run that begins now.
    pub(crate) fn begin(name: &'static str) -> Self {
        Self { name, commit: said("git", &["rev-parse", "HEAD"]) }
    }

    /// Writes it: what was run, and whatever else there is to say of it, an object.
    pub(crate) fn write(&self, what: &str, more: Value) {
        let about = json!({
            "what": what,
            "commit": self.commit,
            "machine": {
                "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
                "kernel": said("uname", &["-sr"]),
                "memory": fs::read_to_string("/proc/meminfo").unwrap_or_default().lines().next(),
            },
        });
        let report: Map<String, Value> =
            [about, more].into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workers/ lies in the root");
        let folder = root.join("reports");
        fs::create_dir_all(&folder).expect("reports/ can be made");
        let text = serde_json::to_string(&report).expect("JSON");
        fs::write(folder.join(format!("{}.json", self.name)), text + "\n")
            .expect("the report can be written");
    }
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
