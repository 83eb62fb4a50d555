//! The systemd unit: systemd takes it as it is, it is confined, and it waits longer than a worker may drain.

use std::{path::PathBuf, time::Duration};

use tokio::process::Command;

use super::processes::run;

const SOON: Duration = Duration::from_secs(60);

fn unit() -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let file = root.parent().expect("the workspace is above").join("packaging/aftercommit.service");
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The unit with the binary that was just built, in a folder of its own.
fn installed() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.service");
    let text = unit().replace("/usr/bin/aftercommit", env!("CARGO_BIN_EXE_aftercommit"));
    assert!(text.contains(env!("CARGO_BIN_EXE_aftercommit")), "the unit starts the binary");
    std::fs::write(&file, text).expect("it is writable");
    (folder, file)
}

async fn analyze(words: &[&str], file: &PathBuf) -> (std::process::ExitStatus, String) {
    let mut command = Command::new("systemd-analyze");
    command.args(words).arg(file).env("SYSTEMD_COLORS", "0");
    let (status, out, err) = run(&mut command, SOON).await;
    (status, format!("{out}{err}"))
}

#[tokio::test]
async fn systemd_finds_nothing_wrong_with_the_unit() {
    let (_folder, file) = installed();
    let (status, said) = analyze(&["verify", "--man=no"], &file).await;
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("aftercommit")).collect();
    assert!(status.success() && about_it.is_empty(), "{said}");
}

#[tokio::test]
async fn the_unit_is_confined() {
    let (_folder, file) = installed();
    // From 0 (nothing allowed) to 100; a plain service has 96.
    let (status, said) =
        analyze(&["security", "--offline=true", "--threshold=20", "--no-pager"], &file).await;
    assert!(status.success(), "{said}");
}

#[test]
fn the_unit_waits_longer_than_a_worker_drains() {
    let seconds = |text: &str| text.trim_end_matches('s').parse::<u64>().expect("whole seconds");
    let unit = unit();
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("it is set");
    let defaults = aftercommit_workers::config::init();
    let grace =
        defaults.lines().find_map(|line| line.strip_prefix("shutdown_grace = \"")).expect("it is there");
    let grace = grace.split('"').next().expect("a value");
    assert!(seconds(stop) >= seconds(grace) + 10, "{stop} and {grace}");
    assert!(unit.contains("KillSignal=SIGTERM") && unit.contains("Restart=on-failure"));
}
