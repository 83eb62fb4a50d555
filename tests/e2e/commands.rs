//! The two commands of the README's first screen, as a stranger types them: no configuration, an empty folder.

use std::{path::Path, time::Duration};

use rustix::process::Signal;
use tokio::process::Command;

use super::{
    processes::{Process, aftercommit, ending, eventually, run_ok},
    wire::get,
};

const SOON: Duration = Duration::from_secs(60);

/// A stranger's machine: an empty working folder, and a folder for temporary files.
pub(super) struct Machine(tempfile::TempDir);

impl Machine {
    /// A new one.
    pub(super) fn new() -> Self {
        let folder =
            tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a temporary folder");
        for name in ["here", "tmp"] {
            std::fs::create_dir(folder.path().join(name)).expect("it is new");
        }
        Self(folder)
    }

    /// Everything of it.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where its user is.
    pub(super) fn here(&self) -> std::path::PathBuf {
        self.0.path().join("here")
    }

    /// The binary, there.
    pub(super) fn command(&self) -> Command {
        let mut command = aftercommit();
        command.current_dir(self.here()).env("TMPDIR", self.0.path().join("tmp"));
        command
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_needs_nothing_and_ends_with_the_table() {
    let machine = Machine::new();
    let out = run_ok(machine.command().arg("demo"), SOON).await;
    for word in ["DOWNSTREAM", "EFFECTS", "CALLS", "APPLICATIONS", "KEYS", "IN DOUBT", "effects resolve"] {
        assert!(out.contains(word), "{word:?} is missing in:\n{out}");
    }
    assert_eq!(names_in(&machine.here()), Vec::<String>::new(), "demo leaves nothing in the working folder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_says_its_figures_as_json_and_they_are_right() {
    let machine = Machine::new();
    let out = run_ok(machine.command().args(["demo", "--json"]), SOON).await;
    let said: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(said["ok"], true, "{said:#}");
    let rows = said["downstreams"].as_array().expect("a row per downstream");
    for row in rows.iter().filter(|row| row["in_doubt"] == 0) {
        assert_eq!((&row["applications"], &row["keys"]), (&row["effects"], &row["effects"]), "{row:#}");
    }
    assert!(
        rows.iter().any(|row| row["calls"].as_u64() > row["applications"].as_u64()),
        "no call was repeated"
    );
    assert_eq!(rows.iter().filter(|row| row["in_doubt"] == 1).count(), 1, "{said:#}");
}

/// The `http://…` addresses that a text names, as host and path.
pub(super) fn urls(text: &str) -> Vec<(String, String)> {
    let rests = text.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
    rests
        .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
        .map(|(host, path)| (host.into(), format!("/{path}")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_prints_its_addresses_carries_effects_out_and_ends_on_term() {
    let machine = Machine::new();
    let log = machine.0.path().join("dev.log");
    let mut dev = Process::spawn("dev", machine.command().args(["dev", "--port", "0"]), &log);
    eventually("dev prints its addresses", SOON, async || {
        assert!(dev.has_ended().is_none(), "{}", dev.output());
        urls(&dev.output()).iter().any(|(_, path)| path == "/healthz")
    })
    .await;
    for (host, path) in urls(&dev.output()) {
        let answer =
            get(&host, &path, None).await.unwrap_or_else(|error| panic!("http://{host}{path}: {error}"));
        if matches!(path.as_str(), "/" | "/healthz") {
            assert_eq!(answer.status(), 200, "http://{host}{path}");
        }
    }

    let output = dev.output();
    let url =
        output.split_whitespace().find_map(|word| word.strip_prefix("DATABASE_URL=")).expect("it is printed");
    let url = url.trim_matches('\'').to_owned();
    let there = || {
        let mut command = machine.command();
        command.env("DATABASE_URL", &url);
        command
    };
    let effect = ["enqueue", "payments", "--key", "order-1", "--payload", "{\"amount\":1500}"];
    run_ok(there().args(effect), SOON).await;
    eventually("dev carries the effect out", SOON, async || {
        run_ok(there().args(["effects", "list", "--json"]), SOON).await.contains("\"succeeded\"")
    })
    .await;

    dev.signal(Signal::TERM);
    let status = dev.ended(Duration::from_secs(40)).await;
    assert!(status.success(), "{}\n{}", ending(status), dev.output());
}
