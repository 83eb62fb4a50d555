//! `aftercommit dashboard`: it says where and for whom it is, refuses what nobody meant, and ends when it is told to.

use std::{net::SocketAddr, path::Path, time::Duration};

use rustix::process::Signal;
use tokio::process::Command;

use super::Ask;
use crate::{
    e2e::processes::{Process, aftercommit, run as run_command},
    support::{Engine, TestDatabase, eventually, run},
};

/// Longer than a start takes on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = aftercommit();
    command.current_dir(folder).arg("dashboard").args(arguments);
    command
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("aftercommit-dashboard.").tempdir().expect("a scratch folder")
}

/// Starts it on a free port; the process and the address that it says.
async fn start(db: &TestDatabase, folder: &Path, arguments: &[&str]) -> (Process, SocketAddr) {
    started(command(folder, arguments), &db.url, folder).await
}

/// Starts a command that is a dashboard, of a database, on a free port; the process and the address that it says.
pub(super) async fn started(mut command: Command, url: &str, folder: &Path) -> (Process, SocketAddr) {
    command.args(["--listen", "127.0.0.1:0", "--database", url]);
    let process = Process::spawn("aftercommit dashboard", &mut command, &folder.join("dashboard.log"));
    let address = || {
        let output = process.output();
        let (_, rest) = output.split_once("Pages     http://")?;
        rest.split('/').next()?.parse().ok()
    };
    let address =
        eventually(START_MAX, "the dashboard says where it is: see dashboard.log", async || address()).await;
    (process, address)
}

#[test]
fn without_configuration_it_serves_whoever_is_at_this_machine_and_ends_when_told() {
    run(Engine::Sqlite, async |db| {
        let folder = folder();
        let (mut process, address) = start(db, folder.path(), &[]).await;
        for path in ["/", "/healthz", "/readyz", "/metrics"] {
            assert_eq!(Ask::new(address, "GET", path).send().await.status, 200, "{path}");
        }
        let output = process.output();
        assert!(output.contains("whoever is at this machine, as admin"), "{output}");
        process.signal(Signal::TERM);
        let ended = process.ended(Duration::from_secs(30)).await;
        assert!(ended.success(), "{ended}\n{}", process.output());
    });
}

#[test]
fn a_connection_that_is_held_open_does_not_hold_up_the_end() {
    run(Engine::Sqlite, async |db| {
        let folder = folder();
        let (mut process, address) = start(db, folder.path(), &["--read-only"]).await;
        assert!(process.output().contains("read_only"), "{}", process.output());
        let _idle = tokio::net::TcpStream::connect(address).await.expect("it listens");
        process.signal(Signal::INT);
        let ended = process.ended(Duration::from_secs(30)).await;
        assert!(ended.success(), "{ended}\n{}", process.output());
    });
}

#[test]
fn a_taken_port_is_told_with_what_to_do() {
    run(Engine::Sqlite, async |db| {
        let (folder, taken) = (folder(), std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let address = taken.local_addr().expect("it is bound").to_string();
        let mut command = command(folder.path(), &["--listen", &address, "--database", &db.url]);
        let (status, _, said) = run_command(&mut command, START_MAX).await;
        assert_eq!(status.code(), Some(1), "{said}");
        for word in [address.as_str(), "cannot be listened at", "dashboard --listen 127.0.0.1:0"] {
            assert!(said.contains(word), "{word} in {said}");
        }
    });
}

#[test]
fn what_would_let_in_strangers_is_refused_with_what_to_write() {
    run(Engine::Sqlite, async |db| {
        let folder = folder();
        let config = format!("database = {:?}\nenvironment = \"test\"\n", db.url);
        std::fs::write(folder.path().join("aftercommit.toml"), config).expect("it is written");
        let without = folder.path().join("none");
        std::fs::create_dir(&without).expect("a folder");
        for place in [folder.path(), &without] {
            let mut command = command(place, &["--listen", "0.0.0.0:0", "--database", &db.url]);
            let (status, _, said) = run_command(&mut command, START_MAX).await;
            assert_eq!(status.code(), Some(2), "{said}");
            for word in
                ["dashboard.listen", "other machines", "auth = { tokens = [{ name = \"ops\"", "127.0.0.1"]
            {
                assert!(said.contains(word), "{word} in {said}");
            }
        }
    });
}

#[test]
fn a_token_that_is_not_set_is_refused_by_name() {
    run(Engine::Sqlite, async |db| {
        let folder = folder();
        let config = format!(
            "database = {:?}\nenvironment = \"test\"\n[dashboard]\nauth.tokens = [{{ name = \"ops\", role = \"operator\", secret = {{ env = \
             \"AFTERCOMMIT_TEST_OPS\" }} }}]\n",
            db.url
        );
        std::fs::write(folder.path().join("aftercommit.toml"), config).expect("it is written");
        for words in [vec!["dashboard"], vec!["config", "check"]] {
            let mut command = aftercommit();
            command.current_dir(folder.path()).args(&words);
            let (status, _, said) = run_command(&mut command, START_MAX).await;
            assert_eq!(status.code(), Some(2), "{words:?}: {said}");
            assert!(
                said.contains("dashboard.auth.tokens[0].secret") && said.contains("AFTERCOMMIT_TEST_OPS"),
                "{said}"
            );
        }
        let mut command = command(folder.path(), &["--listen", "127.0.0.1:0"]);
        command.env("AFTERCOMMIT_TEST_OPS", "a-token-of-ops-0123");
        let process =
            Process::spawn("aftercommit dashboard", &mut command, &folder.path().join("dashboard.log"));
        let says = || process.output().contains("1 token").then_some(());
        eventually(START_MAX, "it says for whom it is: see dashboard.log", async || says()).await;
        assert!(!process.output().contains("a-token-of-ops"), "{}", process.output());
    });
}
