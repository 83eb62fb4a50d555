//! `completions` and `man`: every shell gets a script that it can read, every command a page.

use std::time::Duration;

use tokio::process::Command;

use super::processes::{aftercommit, run, run_ok};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn every_shell_gets_a_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run_ok(aftercommit().args(["completions", shell]), SOON).await;
        for word in ["doctor", "effects", "downstreams"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
        if shell == "bash" {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("aftercommit.bash");
            std::fs::write(&file, &script).expect("it is writable");
            let check = format!("set -u; . {}; complete -p aftercommit", file.display());
            let out = run_ok(Command::new("bash").args(["-c", &check]), SOON).await;
            assert!(out.contains("aftercommit"), "{out}");
        }
    }
    let (status, ..) = run(aftercommit().args(["completions", "tcsh"]), SOON).await;
    assert_eq!(status.code(), Some(2));
}

#[tokio::test]
async fn every_command_gets_a_page() {
    let page = run_ok(aftercommit().arg("man"), SOON).await;
    assert!(page.contains(".TH aftercommit 1") && page.contains("doctor"), "{page}");
    let folder = tempfile::tempdir().expect("a folder");
    run_ok(aftercommit().args(["man", "--into"]).arg(folder.path()), SOON).await;
    for name in ["aftercommit.1", "aftercommit-doctor.1", "aftercommit-effects-retry.1", "aftercommit-work.1"]
    {
        let page = std::fs::read_to_string(folder.path().join(name));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH NAME"), "{name}: {page}");
    }
}
