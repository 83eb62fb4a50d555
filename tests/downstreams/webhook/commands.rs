//! The `endpoints` commands, as an operator runs them: nothing that they print holds more of a URL than its host (HTTP-07).

use std::time::Duration;

use tokio::process::Command;

use super::{Receiver, SECRET, header};
use crate::e2e::processes::{aftercommit, run, run_ok};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn endpoints_are_listed_switched_and_tested_without_their_tokens() {
    let receiver = Receiver::start(204).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:{}\"\nenvironment = \"test\"\n[downstream.hooks]\nkind = \"webhook\"\nprofile = \"standard-webhooks\"\n\
         egress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{}] }}\n\
         [downstream.hooks.endpoints.acme]\nurl = \"{}/SECRET-PATH?token=SECRET-QUERY\"\nsecret = {{ env = \"HOOK_ACME\" }}\n",
        folder.path().join("shop.db").display(),
        receiver.port,
        receiver.url
    );
    std::fs::write(&file, text).expect("it is writable");
    let command = |words: &[&str]| -> Command {
        let mut command = aftercommit();
        command.env("HOOK_ACME", SECRET).arg("--config").arg(&file).args(words);
        command
    };
    run_ok(&mut command(&["migrate"]), SOON).await;
    let mut printed = String::new();
    for (words, code) in [
        (&["endpoints", "list", "hooks"][..], 0),
        (&["endpoints", "test", "hooks", "acme"], 0),
        (&["endpoints", "disable", "hooks", "acme", "--reason", "they left"], 0),
        (&["endpoints", "disable", "hooks", "acme", "--reason", "again"], 4),
        (&["endpoints", "disable", "hooks", "nobody", "--reason", "x"], 3),
        (&["endpoints", "list", "hooks", "--json"], 0),
        (&["endpoints", "test", "hooks", "acme"], 0),
        (&["endpoints", "enable", "hooks", "acme", "--reason", "back"], 0),
        (&["endpoints", "enable", "hooks", "acme", "--reason", "again"], 4),
        (&["endpoints", "test", "hooks", "nobody"], 1),
        (&["config", "show"], 0),
        (&["audit"], 0),
    ] {
        let (status, out, err) = run(&mut command(words), SOON).await;
        assert_eq!(status.code(), Some(code), "{words:?}\n{out}\n{err}");
        printed.push_str(&out);
        printed.push_str(&err);
    }
    receiver.answer_with(500);
    let (status, out, err) =
        run(command(&["endpoints", "test", "hooks", "acme"]).env("RUST_LOG", "trace"), SOON).await;
    assert_eq!(status.code(), Some(1), "{out}\n{err}");
    printed.push_str(&(out + &err));
    for wanted in
        ["127.0.0.1", "\"state\":\"disabled\"", "they left", "disable_endpoint", "HTTP 204", "HTTP 500"]
    {
        assert!(printed.contains(wanted), "{wanted} in {printed}");
    }
    for secret in ["SECRET-PATH", "SECRET-QUERY", "C2FVsBQIhrscChlQIMV"] {
        assert!(!printed.contains(secret), "{secret} in {printed}");
    }
    let requests = receiver.requests.lock().expect("no panic");
    assert_eq!(requests.len(), 3, "a test is one message");
    let (head, body) = &requests[0];
    assert!(header(head, "webhook-id").is_some_and(|id| id.starts_with("test_")), "{head}");
    assert!(body.starts_with(b"{\"type\":\"aftercommit.test\""));
}
