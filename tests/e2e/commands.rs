//! The two commands of the README's first screen, as a stranger types them: no configuration, an empty folder.

use std::{path::Path, time::Duration};

use rustix::process::Signal;

use super::{
    processes::{Process, aftercommit, ending, eventually, free_port, run_ok},
    wire::get,
};

const SOON: Duration = Duration::from_secs(60);

fn empty_folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("the temporary folder is writable")
}

fn left_behind(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_needs_nothing_and_ends_with_the_table() {
    let folder = empty_folder();
    let out = run_ok(aftercommit().arg("demo").current_dir(folder.path()), SOON).await;
    for word in ["payments", "in doubt", "effects resolve"] {
        assert!(out.to_lowercase().contains(word), "{word:?} is missing in:\n{out}");
    }
    assert_eq!(left_behind(folder.path()), Vec::<String>::new(), "demo leaves nothing in the folder");
}

/// The `http://…` addresses that a text names.
fn urls(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '/'))
        .filter_map(|word| word.split_once("http://").map(|(_, rest)| rest.trim_end_matches('/').to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_prints_its_addresses_answers_and_ends_on_term() {
    let folder = empty_folder();
    let mut command = aftercommit();
    command.arg("dev").args(["--listen", &format!("127.0.0.1:{}", free_port())]).current_dir(folder.path());
    let mut dev = Process::spawn("dev", &mut command, &folder.path().join("dev.log"));
    eventually("dev prints its addresses", SOON, async || {
        assert!(dev.has_ended().is_none(), "{}", dev.output());
        !urls(&dev.output()).is_empty() && dev.output().to_lowercase().contains("ready")
    })
    .await;
    let hosts: Vec<String> =
        urls(&dev.output()).iter().map(|url| url.split('/').next().unwrap_or_default().to_owned()).collect();
    let mut healthy = 0;
    for host in &hosts {
        let answer = get(host, "/healthz", None).await;
        healthy += usize::from(answer.is_ok_and(|answer| answer.status() == 200));
    }
    assert!(healthy >= 1, "none of {hosts:?} answers /healthz:\n{}", dev.output());
    dev.signal(Signal::TERM);
    let status = dev.ended(Duration::from_secs(40)).await;
    assert!(status.success(), "{}\n{}", ending(status), dev.output());
}
