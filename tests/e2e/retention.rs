//! `purge` and `effects redact`, as an operator types them.

use std::time::Duration;

use sqlx::Connection as _;

use super::processes::{aftercommit, run, run_ok};

const SOON: Duration = Duration::from_secs(60);

/// A folder with a SQLite database, a downstream that nobody runs, and one effect that was called off.
async fn called_off(folder: &std::path::Path) -> impl Fn(&[&str]) -> tokio::process::Command {
    let config = "database = \"sqlite:shop.db\"\nenvironment = \"test\"\n[retention]\nkeys = \"0s\"\n\
                  [downstream.pay]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:9\"\n";
    std::fs::write(folder.join("aftercommit.toml"), config).expect("it is written");
    let here = folder.to_owned();
    let command = move |words: &[&str]| {
        let mut command = aftercommit();
        command.current_dir(&here).args(words);
        command
    };
    run_ok(&mut command(&["migrate"]), SOON).await;
    run_ok(&mut command(&["enqueue", "pay", "--key", "k", "--payload", "{\"card\":\"4242\"}"]), SOON).await;
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_is_redacted_once_it_has_ended_and_its_key_goes_on_answering() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = called_off(folder.path()).await;
    let redact = ["effects", "redact", "1", "--reason", "erasure request 2026-118"];
    let (status, _, err) = run(&mut command(&redact), SOON).await;
    assert_eq!(status.code(), Some(4), "{err}");
    assert!(err.contains("cancel it first"), "it says what to do: {err}");
    run_ok(&mut command(&["effects", "cancel", "1"]), SOON).await;
    let said = run_ok(&mut command(&redact), SOON).await;
    assert!(said.contains("key and its outcome are kept"), "{said}");
    let shown = run_ok(&mut command(&["effects", "show", "1"]), SOON).await;
    assert!(shown.contains("The payload was dropped") && !shown.contains("4242"), "{shown}");
    let shown = run_ok(&mut command(&["effects", "show", "1", "--json"]), SOON).await;
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!((&shown["payload_dropped"], &shown["state"]), (&true.into(), &"cancelled".into()));
    let again = run_ok(
        &mut command(&["enqueue", "pay", "--key", "k", "--payload", "{\"card\":\"4242\"}", "--json"]),
        SOON,
    )
    .await;
    let again: serde_json::Value = serde_json::from_str(&again).expect("one object");
    assert_eq!((&again["id"], &again["inserted"]), (&1.into(), &false.into()), "{again}");
    let (status, _, err) =
        run(&mut command(&["enqueue", "pay", "--key", "k", "--payload", "{\"card\":\"4243\"}"]), SOON).await;
    assert!(!status.success() && err.contains("another request"), "{err}");
    let audit = run_ok(&mut command(&["audit"]), SOON).await;
    assert!(audit.contains("redact") && audit.contains("2026-118"), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_says_what_it_would_drop_and_then_drops_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = called_off(folder.path()).await;
    let purge = async |words: &[&str]| -> serde_json::Value {
        let said = run_ok(&mut command(words), SOON).await;
        serde_json::from_str(&said).expect("one object")
    };
    let nothing = purge(&["purge", "--yes", "--json"]).await;
    assert_eq!(
        (&nothing["payloads"], &nothing["keys"]),
        (&0.into(), &0.into()),
        "it has not ended: {nothing}"
    );
    run_ok(&mut command(&["effects", "cancel", "1"]), SOON).await;
    let would = purge(&["purge", "--dry-run", "--json"]).await;
    assert_eq!((&would["dry_run"], &would["payloads"], &would["keys"]), (&true.into(), &1.into(), &1.into()));
    let said = run_ok(&mut command(&["purge", "--yes"]), SOON).await;
    assert!(said.contains("payloads of 1 effect, history of 1 effect, keys of 1 effect"), "{said}");
    let (status, _, _) = run(&mut command(&["effects", "show", "1"]), SOON).await;
    assert_eq!(status.code(), Some(3), "it is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_that_a_clock_which_is_not_believed_would_drop_no_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = called_off(folder.path()).await;
    run_ok(&mut command(&["effects", "cancel", "1"]), SOON).await;
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let mut database = sqlx::SqliteConnection::connect(&url).await.expect("the file is there");
    let back = "UPDATE aftercommit_retention SET looked_at = looked_at - 172800000000";
    sqlx::query(back).execute(&mut database).await.expect("the clock seems to have jumped");
    database.close().await.expect("it closes");
    for (words, keys, ahead) in [
        (&["purge", "--dry-run", "--json"][..], 0, true),
        (&["purge", "--dry-run", "--json", "--trust-clock"], 1, false),
    ] {
        let (status, out, err) = run(&mut command(words), SOON).await;
        assert!(status.success(), "{err}");
        let would: serde_json::Value = serde_json::from_str(&out).expect("one object");
        assert_eq!((&would["keys"], &would["clock_ahead"]), (&keys.into(), &ahead.into()), "{words:?}");
        assert_eq!(would["payloads"], 1, "payloads go by the clock as it is");
        assert_eq!(err.contains("No key") && err.contains("--trust-clock"), ahead, "{words:?}: {err}");
    }
    let (status, out, err) = run(&mut command(&["purge", "--yes"]), SOON).await;
    assert_eq!(status.code(), Some(5), "{out}{err}");
    assert!(
        out.contains("keys of 0 effects") && err.contains("No key was dropped"),
        "as was told: {out}{err}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_without_ages_or_a_word_of_confirmation_drops_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = called_off(folder.path()).await;
    run_ok(&mut command(&["effects", "cancel", "1"]), SOON).await;
    let refused = async |words: &[&str], says: &[&str]| {
        let (status, out, err) = run(&mut command(words), SOON).await;
        assert_eq!(status.code(), Some(2), "{words:?}: {out}{err}");
        assert!(says.iter().all(|word| err.contains(word)), "{words:?}: {err}");
    };
    refused(&["purge"], &["--yes"]).await;
    // A configuration that does not say how long things are kept, then none at all.
    let config = folder.path().join("aftercommit.toml");
    let written = std::fs::read_to_string(&config).expect("it is there");
    std::fs::write(&config, written.replace("[retention]\nkeys = \"0s\"\n", "")).expect("it is written");
    let names = ["[retention]", "payloads =", "--history"];
    refused(&["purge", "--yes"], &names).await;
    refused(&["purge", "--dry-run"], &names).await;
    std::fs::remove_file(&config).expect("it is there");
    let bare = ["--database", "sqlite:shop.db", "purge", "--yes"];
    refused(&bare, &names).await;
    refused(&[&bare[..], &["--payloads", "0s", "--history", "0s"]].concat(), &names).await;
    refused(&[&bare[..], &["--payloads", "2s", "--history", "0s", "--keys", "1s"]].concat(), &["--payloads"])
        .await;
    let ages = [&bare[..], &["--payloads", "0s", "--history", "0s", "--keys", "1d"]].concat();
    let said = run_ok(&mut command(&ages), SOON).await;
    assert!(said.contains("payloads of 1 effect, history of 1 effect, keys of 0 effects"), "{said}");
}
